// Cutting and joining: slices, splits, concatenations, pads, and the sequences that exporters make
// of them.
#include <algorithm>
#include <cstdlib>

#include "rule.h"

namespace piper::onnx_import {
namespace {

constexpr int64_t kMaxPad = int64_t{1} << 40;

struct Cut {
  int64_t start = 0, step = 1, count = 0;
};
// Cuts as ONNX's Slice does along a dim of size n.
Cut cut_of(int64_t start, int64_t end, int64_t step, int64_t n) {
  // Saturating first: INT64_MIN and INT64_MAX stand for "from the end" and "to the end".
  auto from_end = [n](int64_t v) { return v < 0 ? (v < -n ? -n - 1 : v) + n : std::min(v, n); };
  step = std::clamp(step, -n - 1, n + 1);
  int64_t s = from_end(start), e = from_end(end);
  if (step > 0) {
    s = std::clamp(s, int64_t{0}, n);
    e = std::clamp(e, int64_t{0}, n);
    return {s, step, e > s ? (e - s + step - 1) / step : 0};
  }
  s = std::clamp(s, std::min<int64_t>(0, n - 1), n - 1);
  e = std::clamp(e, int64_t{-1}, n - 1);
  return {s, step, s > e ? (s - e - step - 1) / -step : 0};
}

Result<Vals> slice(RuleContext& c) {
  PIPER_TRY(c.need(1, 5));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const auto starts, c.integers_or_input("starts", 1));
  PIPER_ASSIGN(const auto ends, c.integers_or_input("ends", 2));
  PIPER_ASSIGN(auto named, c.integers_or_input("axes", 3));
  PIPER_ASSIGN(const auto steps, c.integers_or_input("steps", 4));
  if (!starts || !ends) return c.error("names no starts or ends");
  if (!named) {
    named.emplace();
    for (size_t i = 0; i < starts->size(); ++i) named->push_back(static_cast<int64_t>(i));
  }
  if (ends->size() != starts->size() || named->size() != starts->size() ||
      (steps && steps->size() != starts->size())) {
    return c.error("its starts, ends, axes and steps are not equally long");
  }
  PIPER_TRY(c.axes(*named, x.rank()));
  Shape out = x.shape;
  std::vector<int64_t> begin(x.rank(), 0), stride(x.rank(), 1);
  for (size_t i = 0; i < named->size(); ++i) {
    PIPER_ASSIGN(const size_t d, c.axis((*named)[i], x.rank()));
    const int64_t step = steps ? (*steps)[i] : 1;
    if (step == 0) return c.error("a step of 0");
    const Cut cut = cut_of((*starts)[i], (*ends)[i], step, x.shape[d]);
    begin[d] = cut.count > 0 ? cut.start : 0;
    stride[d] = cut.count > 0 ? cut.step : 1;
    out[d] = cut.count;
  }
  return single(c.slice(x, begin, stride, out));
}

Result<Vals> split_up(RuleContext& c, const Val& x, size_t axis,
                      const std::vector<int64_t>& sizes) {
  Vals out;
  int64_t start = 0;
  for (const int64_t size : sizes) {
    if (size < 0 || size > x.shape[axis] - start)
      return c.error("its parts do not fit into {}", to_string(x.shape));
    PIPER_ASSIGN(Val piece, c.part(x, axis, start, size));
    out.push_back(std::move(piece));
    start += size;
  }
  if (start != x.shape[axis]) return c.error("its parts do not make up {}", to_string(x.shape));
  return out;
}

// Returns pieces of `size`, the last one smaller if it must be.
std::vector<int64_t> even_parts(int64_t whole, int64_t size) {
  std::vector<int64_t> sizes;
  for (int64_t done = 0; done < whole; done += size) sizes.push_back(std::min(size, whole - done));
  return sizes;
}

Result<Vals> split(RuleContext& c) {
  PIPER_TRY(c.need(1, 2));
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", 0), c.in(0).rank()));
  PIPER_ASSIGN(const auto named, c.integers_or_input("split", 1));
  if (named) return split_up(c, c.in(0), axis, *named);
  const int64_t count = c.integer("num_outputs", static_cast<int64_t>(c.node.outputs.size()));
  const int64_t whole = c.in(0).shape[axis];
  if (count < 1 || count > std::max<int64_t>(whole, 1))
    return c.error("cannot make {} parts of {}", count, to_string(c.in(0).shape));
  const std::vector<int64_t> sizes = even_parts(whole, (whole + count - 1) / count);
  if (static_cast<int64_t>(sizes.size()) != count)
    return c.error("cannot make {} parts of {}", count, to_string(c.in(0).shape));
  return split_up(c, c.in(0), axis, sizes);
}

Result<Val> join_all(RuleContext& c, Vals items, int64_t axis_attr) {
  if (items.empty()) return c.error("has nothing to join");
  PIPER_ASSIGN(const size_t axis, c.axis(axis_attr, items[0].rank()));
  // A dim that is broadcast in all of them may stay so.
  std::vector<size_t> held{axis};
  Shape shape = items[0].shape;
  shape[axis] = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool repeated = std::all_of(
        items.begin(), items.end(), [d](const Val& v) { return v.rank() > d && v.stored[d] == 1; });
    if (!repeated && d != axis) held.push_back(d);
  }
  for (Val& v : items) {
    if (v.rank() != shape.size())
      return c.error("joins {} with {}", to_string(items[0].shape), to_string(v.shape));
    shape[axis] += v.shape[axis];
    Result<Val> exact = c.emit.exact_dims(v, held);
    if (!exact) return c.located(exact.error().message);
    v = *std::move(exact);
  }
  if (items.size() == 1) return items[0];
  for (const Val& v : items) {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (d != axis && v.shape[d] != shape[d])
        return c.error("joins {} with {}", to_string(items[0].shape), to_string(v.shape));
    }
  }
  Result<Vals> made = c.emit.op("Concat", items, {{"axis", static_cast<int64_t>(axis)}});
  if (!made) return c.located(made.error().message);
  Val out = (*made)[0];
  out.shape = shape;
  return out;
}

Result<Vals> concat(RuleContext& c) {
  PIPER_TRY(c.need(1));
  Vals items;
  for (size_t i = 0; i < c.num_inputs(); ++i) items.push_back(c.in(i));
  return single(join_all(c, std::move(items), c.integer("axis", c.opset < 4 ? 1 : 0)));
}

// Returns where element i (from before the first past the last) of a dim of n comes from.
int64_t mirrored(const std::string& mode, int64_t i, int64_t n) {
  if (mode == "edge" || n == 1) return std::clamp<int64_t>(i, 0, n - 1);
  const int64_t period = mode == "wrap" ? n : 2 * (n - 1);
  const int64_t at = (i % period + period) % period;
  return at < n ? at : period - at;
}

// Surrounds x with elements of its own: repeated, mirrored, or from the other end.
Result<Val> repeated_around(RuleContext& c, Val x, const std::string& mode,
                            const std::vector<int64_t>& before, const Shape& out) {
  for (size_t d = 0; d < out.size(); ++d) {
    if (out[d] == x.shape[d]) continue;
    if (x.shape[d] == 0 || out[d] > kMostListed) return c.error("impossible pads");
    std::vector<int64_t> places;
    for (int64_t i = 0; i < out[d]; ++i)
      places.push_back(mirrored(mode, i - before[d], x.shape[d]));
    PIPER_ASSIGN(x, c.op("Gather", {x, integers_val(places)}, {{"axis", static_cast<int64_t>(d)}}));
  }
  return x;
}

Result<Vals> pad(RuleContext& c) {
  PIPER_TRY(c.need(1, 4));
  const Val& x = c.in(0);
  const std::string mode = c.text("mode", "constant");
  if (mode != "constant" && mode != "edge" && mode != "reflect" && mode != "wrap")
    return c.error("mode '{}' is not known", quote_control(mode));
  PIPER_ASSIGN(const auto pads, c.integers_or_input(c.opset < 2 ? "paddings" : "pads", 1));
  PIPER_ASSIGN(auto axes, c.integers_or_input("axes", 3));
  if (!axes) {
    axes.emplace();
    for (size_t d = 0; d < x.rank(); ++d) axes->push_back(static_cast<int64_t>(d));
  }
  if (!pads || pads->size() != 2 * axes->size()) return c.error("has not two pads for each axis");
  double value = c.real("value", 0);
  if (c.has(2)) {
    if (!c.in(2).is_constant() || num_elements(c.in(2).stored) != 1)
      return c.error("its value must be constant");
    value = read_number(c.in(2).data, c.in(2).dtype, 0);
  }
  std::vector<int64_t> before(x.rank(), 0), after(x.rank(), 0), starts(x.rank(), 0);
  Shape cut = x.shape, out = x.shape;
  PIPER_TRY(c.axes(*axes, x.rank()));
  for (size_t i = 0; i < axes->size(); ++i) {
    PIPER_ASSIGN(const size_t d, c.axis((*axes)[i], x.rank()));
    const int64_t b = (*pads)[i], a = (*pads)[axes->size() + i];
    for (const int64_t pad : {b, a})
      if (pad < -kMaxPad || pad > kMaxPad) return c.error("impossible pads");
    const int64_t lost = std::max<int64_t>(-b, 0) + std::max<int64_t>(-a, 0);
    if (lost > cut[d]) return c.error("impossible pads");
    before[d] = std::max<int64_t>(b, 0);
    after[d] = std::max<int64_t>(a, 0);
    starts[d] = std::max<int64_t>(-b, 0);
    cut[d] -= lost;
    out[d] = cut[d] + before[d] + after[d];
  }
  PIPER_TRY(c.check_shape(out));
  PIPER_ASSIGN(const Val kept, c.slice(x, starts, std::vector<int64_t>(x.rank(), 1), cut));
  if (out == cut) return Vals{kept};
  if (mode != "constant") return single(repeated_around(c, kept, mode, before, out));
  return single(c.op("Pad", {kept}, {{"before", before}, {"after", after}, {"value", value}}));
}

// ---- Sequences: known at import time, never in the graph ----

Val sequence_of(Vals items) {
  Val out;
  out.kind = Val::Kind::kSequence;
  out.items = std::move(items);
  return out;
}

Status drop_axis(RuleContext& c, size_t axis, Vals& items) {
  for (Val& item : items) {
    Shape shape = item.shape;
    shape.erase(shape.begin() + static_cast<int64_t>(axis));
    PIPER_ASSIGN(item, c.reshape(item, shape));
  }
  return ok_status();
}

Result<std::vector<int64_t>> given_sizes(RuleContext& c, int64_t extent, int64_t most) {
  PIPER_ASSIGN(std::vector<int64_t> sizes, c.constant_integers(1, "split"));
  if (c.in(1).rank() == 0) {
    if (sizes[0] < 1 || extent / sizes[0] > most) return c.error("parts of {} elements", sizes[0]);
    sizes = even_parts(extent, sizes[0]);
  }
  return sizes;
}

Result<Vals> split_to_sequence(RuleContext& c) {
  PIPER_TRY(c.need(1, 2));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", 0), x.rank()));
  constexpr int64_t kMostParts = 1 << 20;
  if (!c.has(1) && x.shape[axis] > kMostParts)
    return c.error("makes {} parts; at most {} are made", x.shape[axis], kMostParts);
  std::vector<int64_t> sizes = c.has(1) ? Shape() : even_parts(x.shape[axis], 1);
  const bool single_slices = !c.has(1);
  c.pass_over({"keepdims"});
  if (!single_slices) {
    PIPER_ASSIGN(sizes, given_sizes(c, x.shape[axis], kMostParts));
  }
  PIPER_ASSIGN(Vals items, split_up(c, x, axis, sizes));
  if (single_slices && c.integer("keepdims", 1) == 0) PIPER_TRY(drop_axis(c, axis, items));
  return Vals{sequence_of(std::move(items))};
}

Result<Vals> sequence_at(RuleContext& c) {
  if (c.in(0).kind != Val::Kind::kSequence) return c.error("its input 0 is not a sequence");
  PIPER_ASSIGN(const auto index, c.constant_integers(1, "position"));
  const Vals& items = c.in(0).items;
  if (index.size() != 1) return c.error("names {} positions", index.size());
  PIPER_ASSIGN(const size_t i, c.axis(index[0], items.size()));
  return Vals{items[i]};
}

Result<Vals> sequence_construct(RuleContext& c) {
  PIPER_TRY(c.need(1));
  Vals items;
  for (size_t i = 0; i < c.num_inputs(); ++i) items.push_back(c.in(i));
  return Vals{sequence_of(std::move(items))};
}

Result<Vals> concat_from_sequence(RuleContext& c) {
  if (c.in(0).kind != Val::Kind::kSequence) return c.error("its input 0 is not a sequence");
  Vals items = c.in(0).items;
  const int64_t axis = c.integer("axis", 0);
  if (c.integer("new_axis", 0) != 0) {
    for (Val& item : items) {
      PIPER_ASSIGN(const size_t at, c.axis(axis, item.rank() + 1));
      Shape shape = item.shape;
      shape.insert(shape.begin() + static_cast<int64_t>(at), 1);
      PIPER_ASSIGN(item, c.reshape(item, shape));
    }
  }
  return single(join_all(c, std::move(items), axis));
}

Result<size_t> position(RuleContext& c, size_t input, size_t size, int64_t otherwise) {
  if (!c.has(input)) return c.axis(otherwise, size);
  PIPER_ASSIGN(const auto index, c.constant_integers(input, "position"));
  if (index.size() != 1) return c.error("names {} positions", index.size());
  return c.axis(index[0], size);
}

Result<Vals> sequence_insert(RuleContext& c) {
  if (c.in(0).kind != Val::Kind::kSequence) return c.error("its input 0 is not a sequence");
  if (!c.has(1) || c.in(1).kind == Val::Kind::kSequence) return c.error("inserts no tensor");
  Vals items = c.in(0).items;
  PIPER_ASSIGN(const size_t at, position(c, 2, items.size() + 1, -1));
  items.insert(items.begin() + static_cast<int64_t>(at), c.in(1));
  return Vals{sequence_of(std::move(items))};
}

Result<Vals> sequence_erase(RuleContext& c) {
  if (c.in(0).kind != Val::Kind::kSequence) return c.error("its input 0 is not a sequence");
  Vals items = c.in(0).items;
  PIPER_ASSIGN(const size_t at, position(c, 1, items.size(), -1));
  items.erase(items.begin() + static_cast<int64_t>(at));
  return Vals{sequence_of(std::move(items))};
}

Result<Vals> sequence_empty(RuleContext&) { return Vals{sequence_of({})}; }

Result<Vals> sequence_length(RuleContext& c) {
  if (c.in(0).kind != Val::Kind::kSequence) return c.error("its input 0 is not a sequence");
  return Vals{integer_val(static_cast<int64_t>(c.in(0).items.size()))};
}

constexpr ImportRule kJoinRules[] = {
    {"SequenceEmpty", 11, kNewest, sequence_empty, "folds away"},
    {"SequenceErase", 11, kNewest, sequence_erase, "folds away"},
    {"SequenceInsert", 11, kNewest, sequence_insert, "folds away"},
    {"SequenceLength", 11, kNewest, sequence_length, "folds away"},
    {"Concat", 1, kNewest, concat},
    {"ConcatFromSequence", 11, kNewest, concat_from_sequence, "folds away"},
    {"Pad", 1, kNewest, pad, "by known pads"},
    {"SequenceAt", 11, kNewest, sequence_at, "folds away"},
    {"SequenceConstruct", 11, kNewest, sequence_construct, "folds away"},
    {"Slice", 1, kNewest, slice, "at known places"},
    {"Split", 1, kNewest, split, "into known sizes"},
    {"SplitToSequence", 11, kNewest, split_to_sequence, "folds away"},
};

}  // namespace

std::span<const ImportRule> join_rules() { return kJoinRules; }

}  // namespace piper::onnx_import
