// Rule layout: one letter of an op is cut into blocks; what all operands must be, and what results
// are then.
#include "layouts_ops.h"

namespace piper {

// Returns the letters that may be the cut one. Those of which a block has several iterations come
// first.
std::vector<OpLayouts::Cut> OpLayouts::cuts_of(const Use& use, size_t input) const {
  const LaidOut& one = use.inputs[input];
  const Dims& dims = use.rule.inputs[input];
  std::vector<Cut> cuts, single;
  for (size_t d = 0; d < dims.size() && d < 32; ++d) {
    const int64_t before = elements_of(one.type.shape, d);
    if (!(one.lies.dims >> d & 1) || before == 0 || one.lies.outer % before != 0) continue;
    int64_t left = one.lies.outer / before;
    const std::vector<int64_t> extents = extents_of(use.rule, dims[d], one.type.shape[d]);
    for (size_t i = 0; i < extents.size() && extents[i] > 0; ++i) {
      if (left <= extents[i] && extents[i] % left == 0 && !(one.lies.mirrored && left % 2 != 0))
        (left == extents[i] && left > 1 ? single : cuts)
            .push_back({dims[d][i], left, one.lies.mirrored});
      if (left % extents[i] != 0) break;
      left /= extents[i];
    }
  }
  cuts.insert(cuts.end(), single.begin(), single.end());
  return cuts;
}

OpLayouts::Made OpLayouts::cut_blocks(const Use& use, size_t from) {
  if (use.def->draws >= 0) return draw_samples(use);
  Made all;
  // Next to a dim of one element, both dims may be the cut one: each is followed as a reading.
  const auto add = [&](const Made& made) {
    if (!all) all = made;
    for (size_t o = 0; made && o < made->size(); ++o) (*all)[o].add_reading((*made)[o]);
  };
  const std::vector<Cut> cuts = cuts_of(use, from);
  for (const Cut& cut : cuts) add(by_cut(use, cut));
  for (const Cut& cut : cuts) add(by_turns(use, cut));
  return all ? all : refuse("which cannot be computed from such parts");
}

// Returns the axes outside and inside of the operands' blocks, of all operands.
std::pair<uint32_t, uint32_t> OpLayouts::beside_all(const Use& use) {
  std::pair<uint32_t, uint32_t> axes;
  for (const LaidOut& one : use.inputs)
    axes.first |= one.lies.outside, axes.second |= one.lies.inside;
  return axes;
}

OpLayouts::Made OpLayouts::by_cut(const Use& use, const Cut& cut) {
  const LoopRule& rule = use.rule;
  if (needs_whole(rule, cut.letter)) return std::nullopt;
  for (size_t i = 0; i < use.inputs.size(); ++i)
    if (use.inputs[i].present && !takes(use, i, cut)) return std::nullopt;
  Lies::Turn turn;
  for (const LaidOut& one : use.inputs)
    if (one.lies.kind == Lies::kCut) turn = one.lies.turn;
  for (const auto& [letter, input] : rule.firsts)
    if (letter == cut.letter && !begins(use, static_cast<size_t>(input), cut, turn.before))
      return std::nullopt;
  const auto [outside, inside] = beside_all(use);
  if ((outside & inside) != 0) return std::nullopt;
  std::vector<Lies> made;
  for (size_t o = 0; o < rule.outputs.size(); ++o) {
    const bool is_sum = sums_over(use, o, cut.letter);
    const size_t times = is_sum ? 0 : occurrences(rule.outputs[o], cut.letter);
    const Shape& shape = use.types.outputs[o].shape;
    auto lies = is_sum ? std::nullopt
                       : placed(rule, rule.outputs[o], shape, cut.letter, cut.outer, cut.mirrored);
    if (lies) lies->outside = outside, lies->inside = inside, lies->turn = turn_of(use, o);
    if (!lies && !turn.is_home()) return std::nullopt;
    if (times > 1 || (times == 1 && !lies)) return std::nullopt;
    const bool sums = rule.reduces == LoopRule::kSum;
    if (times == 0 && !sums && rule.reduces != LoopRule::kMax) return std::nullopt;
    made.push_back(lies ? *lies : Lies{sums ? Lies::kTerms : Lies::kGreatest});
    if (const auto rows = lies ? std::nullopt : looked_up(use, cut, o)) made[o].add_reading(*rows);
  }
  return made;
}

// Returns the turn of a result, where all blocks are of one rank of this axis: that of an operand
// with the same letter, as other axes may have turned keys and their gradients further than
// queries.
Lies::Turn OpLayouts::turn_of(const Use& use, size_t output) {
  const char own = use.rule.turns ? use.rule.turns->own : '\0';
  const bool of_own = own != 0 && occurrences(use.rule.outputs[output], own) > 0;
  Lies::Turn turn;
  for (size_t i = 0; i < use.inputs.size(); ++i)
    if (use.inputs[i].lies.kind == Lies::kCut &&
        (own == 0 || (occurrences(use.rule.inputs[i], own) > 0) == of_own))
      turn = use.inputs[i].lies.turn;
  return turn;
}

// Returns the second reading of a lookup in a rank's part of a table. The op gives zeros for
// indices that other ranks own, so its result is terms of a sum, and also routed rows.
std::optional<Lies> OpLayouts::looked_up(const Use& use, const Cut& cut, size_t output) const {
  const LoopRule& rule = use.rule;
  if (rule.picks < 0 || rule.firsts.size() != 1 || rule.firsts[0].first != cut.letter)
    return std::nullopt;
  const LaidOut& index = use.inputs[static_cast<size_t>(rule.picks)];
  const Dims &rows = rule.inputs[static_cast<size_t>(rule.picks)], &made = rule.outputs[output];
  if (index.lies.kind != Lies::kWhole || index.lies.index == 0 || made.size() < rows.size() ||
      !std::equal(rows.begin(), rows.end(), made.begin()))
    return std::nullopt;
  // Other axes may cut what the rank owns along this axis further.
  const Lies& first = use.inputs[static_cast<size_t>(rule.firsts[0].second)].lies;
  return Lies{.kind = Lies::kRows,
              .outer = num_elements(index.type.shape),
              .index = index.lies.index,
              .owned = first.outer};
}

// Returns whether a whole operand has the same elements for all blocks of the letter: it has no
// such dim, only one element of it (a broadcast), or equal elements along it.
bool OpLayouts::is_repeated(const Use& use, size_t input, char letter) const {
  const LaidOut& one = use.inputs[input];
  const Dims& dims = use.rule.inputs[input];
  return occurrences(dims, letter) == 0 || extent_in(use.rule, dims, one.type.shape, letter) == 1 ||
         (one.lies.dims >> dim_of(dims, letter) & 1);
}

// Returns whether a result is the gradient of a mask that is broadcast along the letter. It is then
// terms of a sum, though a rank's single element looks like a block.
bool OpLayouts::sums_over(const Use& use, size_t output, char letter) const {
  constexpr size_t kMask = 6, kMaskGrad = 3;
  return use.def->name == "AttentionGrad" && output == kMaskGrad &&
         use.inputs[kMask].lies.kind == Lies::kWhole && is_repeated(use, kMask, letter);
}

bool OpLayouts::takes(const Use& use, size_t input, const Cut& cut) const {
  const LaidOut& one = use.inputs[input];
  const Dims& dims = use.rule.inputs[input];
  const auto begins_here = [&](const auto& first) {
    return first.first == cut.letter && static_cast<size_t>(first.second) == input;
  };
  if (std::any_of(use.rule.firsts.begin(), use.rule.firsts.end(), begins_here)) return true;
  const size_t times = occurrences(dims, cut.letter);
  if (times == 0) return one.lies.kind == Lies::kWhole;
  auto wanted = placed(use.rule, dims, one.type.shape, cut.letter, cut.outer, cut.mirrored);
  if (times > 1 || !wanted) return false;
  for (const LaidOut& other : use.inputs)  // all operands belong to one rank
    if (other.lies.kind == Lies::kCut) wanted->turn = other.lies.turn;
  if (one.lies.kind == Lies::kWhole) return is_repeated(use, input, cut.letter);
  return one.lies.fits(*wanted);
}

// Returns whether an operand tells where the rank's block begins, or the block of each stretch,
// given that the axis cuts the loop `before` positions before this rank.
bool OpLayouts::begins(const Use& use, size_t input, const Cut& cut, int64_t before) const {
  if (input >= use.inputs.size() || !use.inputs[input].present) return false;
  const Lies& first = use.inputs[input].lies;
  if (first.kind != Lies::kFirst || first.turn.before != before || first.mirrored != cut.mirrored ||
      num_elements(use.inputs[input].type.shape) != cut.outer)
    return false;
  const int64_t size = loop_size(use.rule, cut.letter), own = first.outer * cut.outer;
  // Attention says how many keys there are if they are not as many as the queries.
  const bool of_other = use.rule.turns && cut.letter == use.rule.turns->other;
  const int64_t queries = use.types.attrs.integer("whole", -1),
                whole = of_other ? use.types.attrs.integer("keys", queries) : queries;
  // If no operand has the letter, there may be axes outside and inside that are not seen here.
  const auto any = [&](const auto& is) {
    return std::any_of(use.inputs.begin(), use.inputs.end(), is);
  };
  const bool shows = std::any_of(use.rule.inputs.begin(), use.rule.inputs.end(),
                                 [&](const Dims& d) { return occurrences(d, cut.letter) > 0; });
  const bool is_inside = !shows || any([](const LaidOut&one) { return one.lies.outside != 0; }),
             is_outside = !shows || any([](const LaidOut&one) { return one.lies.inside != 0; });
  if (own <= 0 || size <= 0 || own % size != 0) return false;
  // The blocks of this axis are ceil(whole / ranks) long, or, if axes inside cut them, as long as
  // their blocks of ceil(whole / all parts) together.
  const int64_t inside = own / size, parts = ranks_ * inside;
  const bool first_of_all =
      own == (whole + ranks_ - 1) / ranks_ || own == (whole + parts - 1) / parts * inside;
  const bool of_all =
      whole < 0 || first_of_all || ((is_inside || first.fixed) && whole > (own - 1) * ranks_);
  return of_all && (own == size || is_outside || first_of_all);
}

}  // namespace piper
