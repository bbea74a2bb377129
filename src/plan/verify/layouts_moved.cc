// Rule layout: how values lie after collectives.
#include "layouts_moved.h"

#include <algorithm>

namespace piper {

Lies MovedLayout::made_of(const Lies& from) {
  if (from.kind == Lies::kUnset || from.kind == Lies::kUnknown) return {Lies::kUnknown};
  if (one_.kind == InstructionKind::kAllToAll && in_stacks()) return spread(from);
  if (from.kind == Lies::kStack || from.kind == Lies::kOwn) return wrong("cannot move", a_, from);
  switch (one_.kind) {
    case InstructionKind::kAllReduce:
      return reduced(from);
    case InstructionKind::kReduceScatter:
      return cut(from, Lies::kTerms);
    case InstructionKind::kOwnPart:
      return cut(from, Lies::kWhole);
    case InstructionKind::kAllGather:
      return gathered(from);
    case InstructionKind::kAllToAll:
      return exchanged(from);
    case InstructionKind::kRotate:
      return rotated(from);
    case InstructionKind::kDispatch:
    case InstructionKind::kCombine:
      return routed(from);
    default:
      PIPER_CHECK(false, "{} has no members", to_string(one_.kind));
  }
}

int32_t MovedLayout::integers_of(int32_t from) {
  if (from == 0) return 0;
  const auto joins = blocks_joined(), cuts = blocks_cut();
  std::optional<int32_t> made = from;
  if (joins) made = check_.integers().whole_of(from, *joins);
  if (cuts && made) made = check_.integers().part_of(*made, *cuts);
  if (made && (joins || cuts)) return *made;
  std::vector<int64_t> what{from, static_cast<int64_t>(one_.kind), over_, one_.turn};
  for (const auto& blocks : {joins, cuts})
    what.insert(what.end(), {blocks ? blocks->stretches : 0, blocks && blocks->mirrored});
  return check_.number_of({place_.cell, -1}, what);
}

Lies MovedLayout::wrong(const char* does, size_t arg, const Lies& lies) {
  check_.add(place_, "{} {}", does, check_.shown(place_, one_.args[arg], lies));
  return {Lies::kUnknown};
}

// ---- Blocks -------------------------------------------------------------------------------------

std::optional<Blocks> MovedLayout::blocks_joined() const {
  const bool joins = info(one_.kind).whole == 1 || one_.kind == InstructionKind::kAllToAll;
  if (!joins || one_.dim < 0) return std::nullopt;
  return blocks_at(shape(a_), one_.dim, one_.outer, one_.mirrored);
}
std::optional<Blocks> MovedLayout::blocks_cut() const {
  if (one_.kind == InstructionKind::kAllToAll && one_.to_dim < 0) return std::nullopt;
  if (one_.kind == InstructionKind::kAllToAll)
    return blocks_at(together(), one_.to_dim, one_.to_outer, one_.to_mirrored);
  if (info(one_.kind).whole != 0 || one_.dim < 0) return std::nullopt;
  return blocks_at(shape(a_), one_.dim, one_.outer, one_.mirrored);
}
Blocks MovedLayout::blocks_at(const Shape& all, int32_t dim, int64_t outer, bool mirrored) const {
  return {over_, check_.members(place_), elements_of(all, static_cast<size_t>(dim)) * outer,
          mirrored};
}
Shape MovedLayout::together() const {
  Shape all = shape(a_ + 1);
  all[static_cast<size_t>(one_.to_dim)] *= check_.members(place_);
  return all;
}

// ---- Along the axis -----------------------------------------------------------------------------

// After a rotation, blocks and the parts in them come from ranks that are `turn` further away. If
// it is along other axes, which cut the blocks, too, only these axes know whether it is in order.
Lies MovedLayout::rotated(Lies from) {
  if (!along_axis()) {
    if (from.kind == Lies::kRows) from.index = integers_of(from.index);
    if (from.kind != Lies::kCut) return from;
    from.turn.beside = check_.further(from.turn.beside, over_, one_.turn);
    for (auto& [before, beside] : from.turn.of) beside = check_.further(beside, over_, one_.turn);
    std::sort(from.turn.of.begin(), from.turn.of.end());
    const bool is_home = from.turn.of.empty() && from.turn.beside == 0;
    from.turn.rings = is_home ? 0 : from.turn.rings | over_;
    return from;
  }
  if (from.kind == Lies::kWhole) return from;
  if (from.kind != Lies::kCut || from.run != 0) return wrong("cannot rotate", 0, from);
  if (!check_.is_alone(place_)) return {Lies::kUnknown};
  from.turn.before = (from.turn.before + one_.turn) % check_.ranks();
  for (auto& [before, beside] : from.turn.of) before = (before + one_.turn) % check_.ranks();
  std::sort(from.turn.of.begin(), from.turn.of.end());
  return from;
}

Lies MovedLayout::reduced(const Lies& from) {
  const bool sums = one_.reduction == Reduction::kSum;
  const Lies::Kind wanted = sums ? Lies::kTerms : Lies::kGreatest;
  if (!along_axis()) {
    const bool keeps = from.kind == Lies::kWhole || from.kind == Lies::kCut ||
                       from.kind == Lies::kRows || from.kind == Lies::kSent || from.kind == wanted;
    return keeps ? out_of_rings(from)
                 : wrong("reduces along another axis, and must not,", a_, from);
  }
  if (from.kind == wanted) return {Lies::kWhole};
  return wrong(sums ? "cannot sum" : "cannot take the maximum of", a_, from);
}

// A sum over other axes belongs to no place in their rings.
Lies MovedLayout::out_of_rings(const Lies& from) const {
  return of_each(from, [&](Lies lies) {
    if (lies.turn.of.empty() && (lies.turn.rings & ~over_) == 0)
      lies.turn.rings = 0, lies.turn.beside = 0;
    return lies;
  });
}

Lies MovedLayout::cut(const Lies& from, Lies::Kind wanted) {
  if (!along_axis()) {
    const Lies whole = wanted == Lies::kTerms ? out_of_rings(from) : from;
    if (one_.dim < 0) return in_runs(whole);
    const Lies made = cut_beside(whole);
    return made.kind == Lies::kUnknown ? wrong("cannot cut into blocks", a_, from) : made;
  }
  if (from.kind != wanted)
    return wrong(wanted == Lies::kTerms ? "cannot sum" : "cannot cut into parts", a_, from);
  if (one_.dim < 0) return {Lies::kCut, 0, over_};
  if (!check_.is_alone(place_)) return {Lies::kUnknown};
  return own_blocks(one_.dim, one_.outer, one_.mirrored);
}

Lies MovedLayout::own_blocks(int32_t dim, int64_t outer, bool mirrored) const {
  const int32_t buffer = one_.args[a_ + 1];
  Lies made = blocks_of(shape(a_ + 1), static_cast<size_t>(dim), outer, mirrored);
  const auto is_inside = [&](const Lies& other) { return other.outside >> check_.axis() & 1; };
  const auto are_cut = [&](const Lies& other) { return (other.dims & made.dims) != 0; };
  made.outside = check_.beside_them(place_, buffer, made, are_cut) &
                 ~check_.beside_them(place_, buffer, made, is_inside);
  return made;
}

Lies MovedLayout::in_runs(const Lies& from) {
  const bool again = from.run != 0 && (one_.micro >= 0 || (from.run & over_) != 0);
  if (again || !from.turn.is_home() || from.is_routed())
    return wrong("cannot cut into flat runs", a_, from);
  Lies made = from;
  if (from.kind == Lies::kCut) made.dims = 0, made.run |= over_;
  const Shape& all = shape(a_);
  for (size_t d = 0; from.kind == Lies::kWhole && d < all.size() && d < 32; ++d)
    if (from.dims >> d & 1) made.add_reading({Lies::kCut, 0, over_, elements_of(all, d)});
  return made;
}

Lies MovedLayout::gathered(const Lies& from) {
  if (one_.dim >= 0) return joined(from);
  if (!along_axis() && from.kind != Lies::kCut) return from;
  // Runs of runs of states are joined one after the other; rule sum knows in which order.
  const bool joins = one_.micro >= 0 ? from.run == over_ : (from.run & over_) == over_;
  if (from.kind != Lies::kCut || !joins) return wrong("cannot join as flat runs", a_, from);
  if (along_axis()) return {Lies::kWhole};
  Lies made = from;
  if (made.run = from.run & ~over_; made.run != 0) return made;
  made.dims = dims_of(shape(a_ + 1), from.outer, false), made.run = 0;
  return made;
}

Lies MovedLayout::joined(const Lies& from) {
  if (!along_axis()) {
    const Lies made = joined_beside(from);
    return made.kind == Lies::kUnknown ? wrong("cannot join as blocks", a_, from) : made;
  }
  if (!check_.is_alone(place_)) return {Lies::kUnknown};
  const Shape& own = shape(a_);
  const Lies wanted = blocks_of(own, static_cast<size_t>(one_.dim), one_.outer, one_.mirrored);
  if (from.fits(wanted)) return {Lies::kWhole};
  check_.add(place_, "joins {}, as if it were {}", check_.shown(place_, one_.args[a_], from),
             to_string(wanted, own));
  return {Lies::kUnknown};
}

// Rows for rank k are in the k-th block of [ranks, room, …], and come as those of rank k in the
// k-th part of [1, ranks × room, …].
Lies MovedLayout::packed_exchanged(Lies rows) {
  const Shape& own = shape(a_);
  const bool sends = rows.kind == Lies::kSent,
             plain = one_.outer == 1 && one_.to_outer == 1 && !one_.mirrored && !one_.to_mirrored;
  const bool fits = own.size() >= 2 && own[0] == (sends ? check_.ranks() : 1) &&
                    own[0] * own[1] == rows.packed && one_.dim == (sends ? 1 : 0) &&
                    one_.to_dim == (sends ? 0 : 1);
  if (!plain || !fits || !check_.is_alone(place_)) return wrong("cannot exchange", a_, rows);
  rows.kind = sends ? Lies::kRows : Lies::kSent;
  return rows;
}

Lies MovedLayout::exchanged(const Lies& from) {
  if (along_axis() && from.packed != 0 && from.kind != Lies::kPlaces) return packed_exchanged(from);
  const Lies whole = joined(from);
  if (whole.kind == Lies::kUnknown) return whole;
  if (along_axis()) return own_blocks(one_.to_dim, one_.to_outer, one_.to_mirrored);
  return of_each(whole, [&](const Lies& reading) { return cut_beside(reading); });
}

Lies MovedLayout::spread(const Lies& from) {
  const Lies stack{Lies::kStack, 0, over_, check_.members(place_)}, own{Lies::kOwn, 0, over_};
  const bool takes = one_.dim < 0;
  if (along_axis() ? renewed(from) == (takes ? stack : own) : from.kind == Lies::kWhole)
    return along_axis() ? (takes ? own : stack) : from;
  return wrong(takes ? "cannot make values of its own of" : "cannot return runs of", a_, from);
}

Lies MovedLayout::routed(const Lies& from) {
  const bool sends = one_.kind == InstructionKind::kDispatch;
  const Lies index = check_.given(place_, one_.args[2]).readings()[0];
  const int64_t rows = num_elements(shape(2));
  if (!along_axis()) return routed_beside(from, index);
  // Rows return to the blocks that they left.
  const int64_t stretches =
      elements_of(shape(0), one_.dim) * (one_.mirrored ? -one_.outer : one_.outer);
  const bool alike = check_.stretches_of(index.index, stretches) == stretches;
  if (index.kind != Lies::kWhole || index.index == 0 || !alike)
    return wrong("cannot route rows by", 2, index);
  const Lies all{.kind = Lies::kRows, .outer = rows, .index = index.index, .owned = one_.owned};
  if (!sends && !from.fits(all)) return wrong("cannot return rows of", 0, from);
  if (!check_.is_alone(place_)) return {Lies::kUnknown};
  if (!sends) return own_blocks(one_.dim, one_.outer, one_.mirrored);
  return joined(from).kind == Lies::kUnknown ? Lies{Lies::kUnknown} : all;
}

// ---- Along other axes ---------------------------------------------------------------------------

Lies MovedLayout::joined_beside(const Lies& from) {
  if (from.packed != 0) return each_cut(from, *blocks_joined());
  if (from.kind == Lies::kRows) return rows_joined(from);
  return beside(from, shape(a_), one_.dim, one_.outer, over_, check_.members(place_), true);
}
Lies MovedLayout::cut_beside(const Lies& from) {
  if (from.packed != 0) return each_cut(from, *blocks_cut());
  if (from.kind == Lies::kRows) return rows_cut(from);
  if (one_.kind == InstructionKind::kAllToAll)
    return beside(from, together(), one_.to_dim, one_.to_outer, over_, check_.members(place_),
                  false);
  return beside(from, shape(a_), one_.dim, one_.outer, over_, check_.members(place_), false);
}

Lies MovedLayout::each_cut(const Lies& rows, const Blocks& blocks) {
  return rows.outer > 0 && blocks.stretches % rows.outer == 0 ? rows : Lies{Lies::kUnknown};
}

Lies MovedLayout::rows_cut(Lies rows) {
  const Blocks blocks = *blocks_cut();
  if (blocks.stretches % rows.outer == 0) return rows;
  const std::optional<int32_t> part = check_.integers().part_of(rows.index, blocks);
  if (!part || rows.outer % (blocks.stretches * blocks.members) != 0) return {Lies::kUnknown};
  rows.index = *part;
  rows.outer /= blocks.members;
  return rows;
}
Lies MovedLayout::rows_joined(Lies rows) {
  const Blocks blocks = *blocks_joined();
  const bool known = check_.integers().are_blocks(rows.index, blocks.axes);
  if (!known && blocks.stretches % rows.outer == 0) return rows;
  const std::optional<int32_t> whole = rows.outer % blocks.stretches == 0
                                           ? check_.integers().whole_of(rows.index, blocks)
                                           : std::nullopt;
  if (!whole) return {Lies::kUnknown};
  rows.index = *whole;
  rows.outer *= blocks.members;
  return rows;
}

Lies MovedLayout::routed_beside(const Lies& from, const Lies& index) {
  const bool sends = one_.kind == InstructionKind::kDispatch;
  const int64_t rows = num_elements(shape(2)) / check_.members(place_);
  const Lies made = sends ? joined_beside(from) : cut_beside(from);
  const Lies& blocks = sends ? from : made;
  bool alike = index.kind == Lies::kWhole;
  if (blocks.kind == Lies::kCut) {
    const int64_t elements = num_elements(shape(sends ? 0 : 1));
    const bool inside = blocks.outer % rows == 0 && elements / blocks.outer > 0;
    alike = index.kind == Lies::kWhole ? inside : index.kind == Lies::kCut;
  }
  if (made.kind != Lies::kUnknown && alike) return made;
  return wrong("routes by an index with another layout", 0, from);
}

}  // namespace piper
