// Rule layout: how blocks of dims change with shapes, and over which axes the rule looks.
#include <cstring>

#include "layouts.h"
#include "piper/plan/cuts.h"

namespace piper {

namespace {

// Marks the runs that are cut from parameters, the runs of these, and what is loaded of either.
std::vector<bool> runs_of_parameters(const RoleProgram& role) {
  std::vector<bool> marked(role.buffers.size());
  const auto derives = [](const Instruction& one) {
    return one.kind == InstructionKind::kOwnPart || one.kind == InstructionKind::kCopy;
  };
  for (const auto* section : role.sections())
    for (const Instruction& one : *section)
      for (size_t a = 0; derives(one) && a + 1 < one.args.size(); a += 2)
        if (marked[one.args[a]] || !role.tensor(one.args[a]).param.empty())
          marked[one.args[a + 1]] = true;
  return marked;
}
// Returns whether the instruction cuts a flat run from a value of the step that is no parameter,
// nor a run of one, and something uses that run.
bool takes_run(const RoleProgram& role, const Instruction& one, const std::vector<int32_t>& uses,
               const std::vector<bool>& of_parameters) {
  const Tensor& whole = role.tensor(one.args[0]);
  bool used = false;
  for (size_t a = 1; a < one.args.size(); a += 2) used = used || uses[one.args[a]] > 1;
  return one.kind == InstructionKind::kOwnPart && whole.kind == BufferKind::kStep &&
         whole.param.empty() && !of_parameters[one.args[0]] && used;
}

// Returns whether the instruction puts flat runs of a value together that is no parameter, nor part
// of one: ranks have computed parts of it, which ops then read whole.
bool gathers_run(const RoleProgram& role, const Instruction& one,
                 const std::vector<bool>& of_parameters) {
  if (one.kind != InstructionKind::kAllGather || one.dim >= 0) return false;
  for (size_t a = 1; a < one.args.size(); a += 2) {
    const Tensor &part = role.tensor(one.args[a - 1]), &whole = role.tensor(one.args[a]);
    const auto is_computed = [](const Tensor& tensor) {
      return tensor.kind == BufferKind::kStep && tensor.param.empty();
    };
    if (is_computed(part) && is_computed(whole) && !of_parameters[one.args[a - 1]]) return true;
  }
  return false;
}

// Returns whether what the instruction moves says how values are cut over its group.
bool shows_cut(const RoleProgram& role, const Instruction& one, const std::vector<int32_t>& uses,
               const std::vector<bool>& of_parameters) {
  return one.group >= 0 &&
         (one.dim >= 0 || one.to_dim >= 0 || info(one.kind).args == ArgForm::kTurns ||
          one.reduction == Reduction::kMax || takes_run(role, one, uses, of_parameters) ||
          gathers_run(role, one, of_parameters));
}

}  // namespace

uint32_t find_followed_axes(const PlanSet& set) {
  uint32_t axes = 0;
  for (const RoleProgram& role : set.roles) {
    for (const Tensor& tensor : role.tensors)
      for (const TensorCut& cut : tensor.cuts)
        if (cut.axis >= 0) axes |= uint32_t{1} << cut.axis;
    const std::vector<bool> of_parameters = runs_of_parameters(role);
    std::vector<int32_t> uses(role.buffers.size());
    for (const auto* section : role.sections())
      for (const Instruction& one : *section)
        for (const int32_t arg : one.args) ++uses[arg];
    for (const auto* section : role.sections())
      for (const Instruction& one : *section)
        if (shows_cut(role, one, uses, of_parameters)) axes |= axes_of(role.groups[one.group]);
  }
  for (size_t axis = 0; axis < set.roles[0].mesh.size(); ++axis)
    if (set.roles[0].mesh[axis].second == 1) axes &= ~(uint32_t{1} << axis);
  return axes;
}

namespace {

// Returns a bit for each dim along which all elements of these bytes are equal.
uint32_t equal_along(const TensorType& type, const Bytes& all) {
  const Bytes bytes = all.made();
  uint32_t dims = 0;
  for (size_t d = 0; d < type.shape.size() && d < 32 && bytes.size > 0; ++d) {
    const size_t step = bytes.size / static_cast<size_t>(elements_of(type.shape, d + 1));
    const auto is_first = [&](size_t at) {
      const size_t first = at / step / static_cast<size_t>(type.shape[d]) * step *
                           static_cast<size_t>(type.shape[d]);
      return std::memcmp(bytes.data + at, bytes.data + first, step) == 0;
    };
    bool equal = true;
    for (size_t at = 0; at < bytes.size && equal; at += step) equal = is_first(at);
    if (equal) dims |= uint32_t{1} << d;
  }
  return dims;
}

}  // namespace

void note_equal_elements(const PlanSet& set, Model& model) {
  std::unordered_map<std::string_view, const Bytes*> values;
  for (const auto& [name, bytes] : set.tensors) values.emplace(name, &bytes);
  std::unordered_map<std::string_view, uint32_t> known;
  for (size_t r = 0; r < set.roles.size(); ++r)
    for (const int32_t b : model.facts[r].kept) {
      const Tensor& tensor = set.roles[r].tensor(b);
      if (tensor.kind != BufferKind::kConstant || !tensor.is_whole()) continue;
      const auto its = values.find(tensor.init);
      if (its == values.end() || its->second->size != static_cast<size_t>(tensor.type.bytes()))
        continue;
      const auto [at, is_new] = known.try_emplace(tensor.init);
      if (is_new) at->second = equal_along(tensor.type, *its->second);
      model.facts[r].buffers[b].same = at->second;
    }
}

uint32_t axes_of(const Group& group) {
  uint32_t axes = 0;
  for (const int32_t axis : group.axes) axes |= uint32_t{1} << axis;
  return axes;
}

std::string to_string(const Lies& lies, const Shape& shape) {
  constexpr const char* kNames[] = {"unset",
                                    "unknown",
                                    "whole",
                                    "cut",
                                    "terms of a sum",
                                    "terms of a maximum",
                                    "begin of the rank's block",
                                    "rows routed by an index",
                                    "places of rows",
                                    "rows in order of those that own them",
                                    "runs of several values",
                                    "a value of its own",
                                    "numbers that differ between ranks",
                                    "true on one rank at most"};
  std::string text;
  for (const Lies& one : lies.readings()) {
    text += fmt::format("{}{}", text.empty() ? "" : " or ", kNames[one.kind]);
    if (one.packed != 0) text += fmt::format(", {} at most", one.packed);
    if (one.run != 0) text += " into runs";
    if (one.turn.before != 0) text += fmt::format(" of the rank {} before", one.turn.before);
    if (!one.turn.of.empty())
      text += fmt::format(", with the parts of {} ranks", one.turn.of.size());
    bool known = one.kind != Lies::kCut || one.run != 0;
    for (size_t d = 0; d < shape.size() && d < 32 && !known; ++d) {
      const int64_t before = elements_of(shape, d);
      if (!(one.dims >> d & 1) || before == 0) continue;
      text += fmt::format(" at dim {}", d);
      if (one.outer != before) text += fmt::format(", outer {}", one.outer / before);
      if (one.mirrored) text += " mirrored";
      known = true;
    }
  }
  return text;
}

Lies blocks_of(const Shape& shape, size_t dim, int64_t outer, bool mirrored) {
  Lies made{Lies::kCut, uint32_t{1} << dim, 0, elements_of(shape, dim) * outer};
  made.mirrored = mirrored;
  return made;
}

uint32_t dims_of(const Shape& shape, int64_t outer, bool several) {
  uint32_t all = 0, blocks = 0;
  int64_t before = 1;
  for (size_t d = 0; d < shape.size() && d < 32 && before > 0; before *= shape[d++]) {
    if (outer % before != 0 || shape[d] <= 0) continue;
    const int64_t stretches = outer / before;
    if (stretches > shape[d] || shape[d] % stretches != 0) continue;
    all |= uint32_t{1} << d;
    if (stretches < shape[d] || stretches == 1) blocks |= uint32_t{1} << d;
  }
  return several && blocks != 0 ? blocks : all;
}

namespace {

// Returns the dims of `to` that may be the cut one if dim d of `from` was, with blocks of several
// elements. These cannot be dims of `to` that are made of dims before d.
uint32_t dims_within(const Shape& from, size_t d, const Shape& to, int64_t outer) {
  const auto is_border = [&](size_t dims) {
    const int64_t before = elements_of(to, dims);
    for (size_t i = 0; i <= d; ++i)
      if (elements_of(from, i) == before) return true;
    return false;
  };
  size_t first = to.size();
  while (first > 0 && !is_border(first)) --first;
  while (first > 0 && to[first - 1] == 1) --first;
  return dims_of(to, outer, false) & ~((uint32_t{1} << std::min<size_t>(first, 31)) - 1);
}

// Returns the dims of `to` along which all elements are equal: those within one of the given dims
// of `from`, or within several that follow each other.
uint32_t same_along(uint32_t dims, const Shape& from, const Shape& to) {
  uint32_t same = 0;
  for (size_t first = 0, end = 0; dims != 0 && first < from.size(); first = end + 1) {
    for (end = first; end < from.size() && (from[end] == 1 || (dims >> end & 1)); ++end) {
    }
    const int64_t before = elements_of(from, first), behind = elements_of(from, end);
    for (size_t d = 0; d < to.size() && d < 32 && before < behind; ++d)
      if (elements_of(to, d) % before == 0 && elements_of(to, d + 1) > 0 &&
          behind % elements_of(to, d + 1) == 0)
        same |= uint32_t{1} << d;
  }
  return same;
}

}  // namespace

Lies reshaped(const Lies& lies, const Shape& from, const Shape& to) {
  return of_each(lies, [&](Lies one) {
    if (one.kind == Lies::kWhole) one.dims = same_along(one.dims, from, to);
    if (one.kind != Lies::kCut || one.run != 0) return one;
    const uint32_t known = std::exchange(one.dims, 0);
    for (size_t d = 0; d < from.size() && d < 32; ++d)
      if (known >> d & 1)
        one.dims |= elements_of(from, d + 1) > one.outer ? dims_within(from, d, to, one.outer)
                                                         : dims_of(to, one.outer, false);
    return one;
  });
}

Lies cut_at(const Lies& lies, const Shape& shape, int64_t dim) {
  return of_each(lies, [&](Lies one) {
    if (one.kind != Lies::kCut || one.run != 0) return one;
    const uint32_t at = dim >= 0 && dim < 32 ? uint32_t{1} << dim : 0;
    one.dims = dims_of(shape, one.outer, false) & at;
    return one.dims != 0 ? one : Lies{Lies::kUnknown};
  });
}

namespace {

// Returns the layout of a range within each rank's block: it counts as a cut of a dim of one
// element.
Lies inside_block(const Shape& to) {
  Lies made{Lies::kUnknown};
  for (size_t d = 0; d < to.size() && d < 32; ++d)
    if (to[d] == 1) made.add_reading(blocks_of(to, d, 1));
  return made;
}

}  // namespace

Lies run_of(const Lies& lies, int64_t all, int64_t first, int64_t count, const Shape& to) {
  return of_each(lies, [&](Lies one) {
    if (one.is_routed()) return Lies{Lies::kUnknown};
    if (one.kind != Lies::kCut) return renewed(one);
    const int64_t block = one.outer > 0 ? all / one.outer : 0;
    if (one.run != 0 || block == 0) return Lies{Lies::kUnknown};
    if (count < block && first / block == (first + count - 1) / block)
      return one.turn == Lies::Turn() && !one.mirrored ? inside_block(to) : Lies{Lies::kUnknown};
    const int64_t unit = one.mirrored ? 2 * block : block;
    if (first % unit != 0 || count % unit != 0) return Lies{Lies::kUnknown};
    one.outer = count / block;
    one.dims = dims_of(to, one.outer, false);
    return renewed(one);
  });
}

namespace {

// Is a factor of a dim's extent, from the outside in: a part that a rank has (axis -1), or the
// ranks of an axis that cuts the dim there.
struct Factor {
  int32_t axis = -1;
  int64_t size = 1;
};

// Inserts a cut into the factors of a dim. Returns false if it crosses blocks of an earlier cut.
bool cut_factors(std::vector<Factor>& dim, const TensorCut& cut, int64_t parts) {
  int64_t outer = cut.outer;
  auto at = dim.begin();
  for (; at != dim.end() && (outer > 1 || at->axis >= 0 || at->size == 1); ++at) {
    if (at->axis >= 0) continue;
    if (outer % at->size == 0) {
      outer /= at->size;
    } else if (at->size % outer == 0) {
      const int64_t inner = at->size / outer;
      at->size = std::exchange(outer, 1);
      at = dim.insert(at + 1, {-1, inner}) - 1;
    } else {
      return false;
    }
  }
  if (at == dim.end() || (cut.block == 0 && at->size % parts != 0)) return false;
  at->size = cut.block > 0 ? cut.block : at->size / parts;
  dim.insert(at, {cut.axis, parts});
  return true;
}

}  // namespace

Lies kept_of(const RoleProgram& role, const Tensor& tensor, int32_t axis) {
  const Shape whole = tensor.whole_type().shape;
  Shape left = whole;
  std::vector<std::vector<Factor>> dims;
  for (const int64_t extent : whole) dims.push_back({{-1, extent}});
  Lies lies{Lies::kWhole};
  size_t own = 0;
  for (const TensorCut& cut : tensor.cuts) {
    const auto dim = static_cast<size_t>(cut.dim);
    if (cut.axis < 0) {  // a tensor by itself
      dims[dim] = {{-1, cut.block}};
      left[dim] = cut.block;
      continue;
    }
    const int64_t size = role.mesh[cut.axis].second;
    if (size > 1 && !cut_factors(dims[dim], cut, size)) return {Lies::kUnknown};
    left[dim] = cut_extent(left[dim], cut, size);
    if (cut.axis == axis) own = dim, lies.kind = Lies::kCut;
  }
  PIPER_CHECK(tensor.part_of >= 0 || left == tensor.type.shape,
              "the size of '{}' is not that of its blocks", tensor.name);
  if (lies.kind == Lies::kCut) {
    lies = blocks_of(left, own, 1);
    bool before = true;
    for (const Factor& factor : dims[own]) {
      if (factor.axis < 0 && factor.size > 1 && !before) break;
      if (factor.axis == axis) before = false;
      if (factor.axis < 0 && before) lies.outer *= factor.size;
      if (factor.axis < 0 && factor.size > 1) lies.outside = 0;
      if (factor.axis >= 0 && factor.axis != axis)
        (before ? lies.outside : lies.inside) |= uint32_t{1} << factor.axis;
    }
  }
  if (tensor.part_of < 0) return lies;
  const uint32_t run = axes_of(role.groups[tensor.part_of]);
  if (lies.kind == Lies::kWhole && (run >> axis & 1)) return {Lies::kCut, 0, run};
  if (lies.kind == Lies::kCut) lies.run = run, lies.dims = 0;
  return lies;
}

Lies beside(const Lies& lies, const Shape& shape, int32_t of_dim, int64_t outer, uint32_t over,
            int64_t members, bool joins) {
  if (lies.kind != Lies::kCut) return lies;
  const auto dim = static_cast<size_t>(of_dim);
  Lies made{Lies::kUnknown};
  for (size_t own = 0; lies.run == 0 && own < shape.size() && own < 32; ++own) {
    if (!(lies.dims >> own & 1)) continue;
    const int64_t before = elements_of(shape, own),
                  stretches = before > 0 ? lies.outer / before : 0;
    const bool there = own == dim && stretches == outer;  // both axes cut the same stretches
    const bool known = !there || !joins || ((lies.outside | lies.inside) & over) != 0;
    Lies reading{Lies::kCut, uint32_t{1} << own,   0,
                 lies.outer, lies.outside & ~over, lies.inside & ~over};
    reading.turn = lies.turn, reading.mirrored = lies.mirrored;
    if (own < dim || (own == dim && stretches > 0 && outer % stretches == 0 &&
                      !(there && joins && (lies.outside & over)))) {
      if (there && !joins) reading.inside |= over;
      made.add_reading(reading);
      if (known) continue;
    }
    if (own == dim && stretches % (outer * (joins ? 1 : members) * (lies.mirrored ? 2 : 1)) != 0)
      continue;
    Lies moved = reading;
    moved.outer = joins ? lies.outer * members : lies.outer / members;
    if (!joins && own == dim && stretches == outer * members) moved.outside |= over;
    made.add_reading(moved);
  }
  return made;
}

}  // namespace piper
