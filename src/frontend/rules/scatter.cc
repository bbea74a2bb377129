// Elements by their place: GatherElements, the scatters, the largest ones, and tensors whose shape
// depends on values, which must be known.
#include <algorithm>
#include <numeric>

#include "rule.h"

namespace piper::onnx_import {
namespace {

// Returns indices of 64 bits, where the model has 32.
Result<Val> indices(RuleContext& c) {
  const Val& index = c.in(1);
  return index.dtype == DType::kI32 ? c.cast(index, DType::kI64) : Result<Val>(index);
}

Result<Vals> gather_elements(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", 0), c.in(0).rank()));
  PIPER_ASSIGN(const Val index, indices(c));
  return single(c.op("GatherElements", {c.in(0), index}, {{"axis", static_cast<int64_t>(axis)}}));
}

Result<std::string> reduction_of(RuleContext& c) {
  const std::string reduction = c.text("reduction", "none");
  for (const char* known : {"none", "add", "mul", "max", "min"}) {
    if (reduction == known) return reduction;
  }
  return c.error("reduction '{}' is not known", quote_control(reduction));
}

Result<Vals> scatter_elements(RuleContext& c) {
  PIPER_TRY(c.need(3, 3));
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", 0), c.in(0).rank()));
  PIPER_ASSIGN(const std::string reduction, reduction_of(c));
  PIPER_ASSIGN(const Val index, indices(c));
  return single(c.op("ScatterElements", {c.in(0), index, c.in(2)},
                     {{"axis", static_cast<int64_t>(axis)}, {"reduction", reduction}}));
}

// x[:, t] = y: by each of x's first dims, the places that are written over.
using Region = std::vector<std::vector<int64_t>>;

// Returns those that the indices name, one after the other; none where they name other than a
// product of places.
std::optional<Region> region_of(const Val& index, const Shape& data) {
  if (!index.is_constant() || index.rank() == 0 || num_elements(index.shape) == 0 ||
      num_elements(index.shape) > kMostListed)
    return {};
  const auto depth = static_cast<size_t>(index.shape.back());
  std::vector<int64_t> all =
      read_integers(expand_bytes(index.data, index.stored, index.shape, index.dtype), index.dtype);
  if (depth > data.size()) return {};
  Region region(depth);
  for (size_t d = 0; d < depth; ++d) {
    std::vector<bool> seen(static_cast<size_t>(data[d]));
    for (size_t i = d; i < all.size(); i += depth) {
      if (all[i] < 0) all[i] += data[d];  // counted from the end
      if (all[i] < 0 || all[i] >= data[d]) return {};
      if (!seen[static_cast<size_t>(all[i])]) region[d].push_back(all[i]);
      seen[static_cast<size_t>(all[i])] = true;
    }
  }
  size_t count = 1;
  for (const std::vector<int64_t>& places : region) count *= places.size();
  if (count * depth != all.size()) return {};
  for (size_t i = 0; i < all.size(); i += depth) {
    size_t place = i / depth;
    for (size_t d = depth; d-- > 0; place /= region[d].size())
      if (all[i + d] != region[d][place % region[d].size()]) return {};
  }
  return region;
}

bool follow_each_other(const std::vector<int64_t>& places) {
  return std::adjacent_find(places.begin(), places.end(),
                            [](int64_t a, int64_t b) { return b != a + 1; }) == places.end();
}

// Along one dim, y at these places and x at the others: beside each other where they can be.
Result<Val> put_along(RuleContext& c, const Val& x, const Val& y, size_t d,
                      const std::vector<int64_t>& places) {
  const Attrs axis{{"axis", static_cast<int64_t>(d)}};
  if (!follow_each_other(places)) {
    std::vector<int64_t> from(static_cast<size_t>(x.shape[d]));
    std::iota(from.begin(), from.end(), 0);
    for (size_t i = 0; i < places.size(); ++i)
      from[static_cast<size_t>(places[i])] = x.shape[d] + static_cast<int64_t>(i);
    PIPER_ASSIGN(const Val both, c.op("Concat", {x, y}, axis));
    return c.op("Gather", {both, integers_val(from)}, axis);
  }
  const auto cut = [&](int64_t from, int64_t to) {
    std::vector<int64_t> starts(x.rank(), 0);
    Shape shape = x.shape;
    starts[d] = from;
    shape[d] = to - from;
    return c.slice(x, starts, std::vector<int64_t>(x.rank(), 1), shape);
  };
  Vals parts;
  if (places.front() > 0) {
    PIPER_ASSIGN(parts.emplace_back(), cut(0, places.front()));
  }
  parts.push_back(y);
  if (places.back() + 1 < x.shape[d]) {
    PIPER_ASSIGN(parts.emplace_back(), cut(places.back() + 1, x.shape[d]));
  }
  return c.op("Concat", parts, axis);
}

Result<Val> put(RuleContext& c, const Val& x, const Val& y, const Region& region, size_t d) {
  const auto is_whole = [&](size_t k) {
    return static_cast<int64_t>(region[k].size()) == x.shape[k] && follow_each_other(region[k]);
  };
  while (d < region.size() && is_whole(d)) ++d;
  if (d == region.size()) return c.reshape(y, x.shape);
  PIPER_ASSIGN(Val middle,
               c.op("Gather", {x, integers_val(region[d])}, {{"axis", static_cast<int64_t>(d)}}));
  PIPER_ASSIGN(middle, put(c, middle, y, region, d + 1));
  return put_along(c, x, middle, d, region[d]);
}

Result<Vals> scatter_nd(RuleContext& c) {
  PIPER_TRY(c.need(3, 3));
  PIPER_ASSIGN(const std::string reduction, reduction_of(c));
  const Shape& data = c.in(0).shape;
  const auto region = region_of(c.in(1), data);
  if (region && reduction == "none") {
    Shape written(data.begin() + static_cast<int64_t>(region->size()), data.end());
    for (const std::vector<int64_t>& places : *region)
      written.push_back(static_cast<int64_t>(places.size()));
    if (num_elements(written) == num_elements(c.in(2).shape))
      return single(put(c, c.in(0), c.in(2), *region, 0));
  }
  return single(c.op("ScatterND", {c.in(0), c.in(1), c.in(2)}, {{"reduction", reduction}}));
}

// ---- The greatest elements --------------------------------------------------------------------

Result<Vals> top_k_of(RuleContext& c, const Val& x, size_t axis, int64_t k, bool largest) {
  return c.ops("TopK", {x},
               {{"axis", static_cast<int64_t>(axis)}, {"k", k}, {"largest", int64_t{largest}}});
}

Result<Vals> top_k(RuleContext& c) {
  PIPER_TRY(c.need(1, 2));
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", -1), c.in(0).rank()));
  PIPER_ASSIGN(const auto k, c.integers_or_input("k", 1));
  const int64_t count = k && k->size() == 1 ? (*k)[0] : c.integer("k", -1);
  c.integer("sorted", 1);  // Where any order will do, they are sorted.
  return top_k_of(c, c.in(0), axis, count, c.integer("largest", 1) != 0);
}

Result<Val> reversed(RuleContext& c, const Val& x, size_t axis) {
  std::vector<int64_t> starts(x.rank(), 0), steps(x.rank(), 1);
  starts[axis] = x.shape[axis] - 1;
  steps[axis] = -1;
  return c.slice(x, starts, steps, x.shape);
}

// Returns the place of the largest (smallest) element: the first of equal ones, or the last.
Result<Val> place_of_extreme(RuleContext& c, const Val& x, size_t axis, bool largest, bool last) {
  const int64_t size = x.shape[axis];
  if (size < 1) return c.error("of no elements");
  Val from = x;
  if (last) {
    PIPER_ASSIGN(from, reversed(c, x, axis));
  }
  PIPER_ASSIGN(Vals made, top_k_of(c, from, axis, 1, largest));
  if (!last) return made[1];
  return c.pointwise("Sub", {integer_val(size - 1), made[1]});
}

Result<Vals> arg_extreme(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const size_t axis, c.axis(c.integer("axis", 0), x.rank()));
  PIPER_ASSIGN(const Val place, place_of_extreme(c, x, axis, c.node.op == "ArgMax",
                                                 c.integer("select_last_index", 0) != 0));
  if (c.integer("keepdims", 1) != 0) return Vals{place};
  Shape shape = place.shape;
  shape.erase(shape.begin() + static_cast<int64_t>(axis));
  return single(c.reshape(place, shape));
}

Result<Val> hardmax_of(RuleContext& c, const Val& x, size_t axis) {
  if (x.shape[axis] > kMostListed) return c.error("of more than {} elements", kMostListed);
  PIPER_ASSIGN(const Val place, place_of_extreme(c, x, axis, true, false));
  std::vector<int64_t> numbers(static_cast<size_t>(x.shape[axis]));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
  Shape row(x.rank(), 1);
  row[axis] = x.shape[axis];
  PIPER_ASSIGN(const Val names, c.reshape(integers_val(numbers), row));
  PIPER_ASSIGN(const Val hit, c.pointwise("Equal", {place, names}));
  return c.pointwise("Cast", {hit}, {{"to", std::string(info(x.dtype).name)}});
}
Result<Vals> hardmax(RuleContext& c) { return single(along_axis(c, hardmax_of)); }

// ---- Shapes that depend on values -------------------------------------------------------------

// Returns the elements of a constant, in full.
Result<std::vector<double>> known_values(RuleContext& c, size_t i) {
  const Val& x = c.in(i);
  if (!x.is_constant())
    return c.error("is not supported where its input {} depends on the data: so would its shape",
                   i);
  PIPER_TRY(c.check_shape(x.shape));
  if (num_elements(x.shape) > kMostListed) return c.error("its input {} is too large", i);
  const Bytes data = expand_bytes(x.data, x.stored, x.shape, x.dtype);
  std::vector<double> out(static_cast<size_t>(num_elements(x.shape)));
  for (size_t k = 0; k < out.size(); ++k) out[k] = read_number(data, x.dtype, k);
  return out;
}

Result<Vals> non_zero(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  PIPER_ASSIGN(const std::vector<double> values, known_values(c, 0));
  const Shape& shape = c.in(0).shape;
  const size_t rank = shape.size();
  std::vector<std::vector<int64_t>> places(rank);
  int64_t count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) continue;
    ++count;
    int64_t rest = static_cast<int64_t>(i);
    for (size_t d = rank; d-- > 0;) {
      places[d].push_back(rest % shape[d]);
      rest /= shape[d];
    }
  }
  std::vector<int64_t> all;
  for (const auto& list : places) all.insert(all.end(), list.begin(), list.end());
  return Vals{constant_val(DType::kI64, {static_cast<int64_t>(rank), count}, bytes_of(all))};
}

Result<Vals> compressed(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  Val x = c.in(0);
  PIPER_ASSIGN(const std::vector<double> keep, known_values(c, 1));
  size_t axis = 0;
  if (c.has_attr("axis")) {
    PIPER_ASSIGN(axis, c.axis(c.integer("axis", 0), x.rank()));
  } else {
    PIPER_ASSIGN(x, c.reshape(x, {num_elements(x.shape)}));
  }
  std::vector<int64_t> places;
  for (size_t i = 0; i < keep.size(); ++i) {
    if (keep[i] == 0) continue;
    if (static_cast<int64_t>(i) >= x.shape[axis]) return c.error("its condition is too long");
    places.push_back(static_cast<int64_t>(i));
  }
  return single(c.op("Gather", {x, integers_val(places)}, {{"axis", static_cast<int64_t>(axis)}}));
}

// ---- Each sequence of a batch turned round ----------------------------------------------------

// Returns y[t] = x[len - 1 - t] for t < len, else x[t]: the place in time of each element of
// [batch, time].
Result<Val> turned_places(RuleContext& c, const Val& lengths, int64_t time) {
  if (time > kMostListed) return c.error("of more than {} steps", kMostListed);
  std::vector<int64_t> steps(static_cast<size_t>(time));
  for (size_t t = 0; t < steps.size(); ++t) steps[t] = static_cast<int64_t>(t);
  PIPER_ASSIGN(const Val now, c.reshape(integers_val(steps), {1, time}));
  PIPER_ASSIGN(const Val length, c.reshape(lengths, {lengths.shape[0], 1}));
  PIPER_ASSIGN(Val turned, c.pointwise("Sub", {length, now}));
  PIPER_ASSIGN(turned, c.pointwise("Sub", {turned, integer_val(1)}));
  PIPER_ASSIGN(const Val inside, c.pointwise("Less", {now, length}));
  return c.pointwise("Where", {inside, turned, now});
}

Result<Vals> reverse_sequence(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  const Val &x = c.in(0), &lengths = c.in(1);
  const int64_t batch = c.integer("batch_axis", 1), time = c.integer("time_axis", 0);
  if (x.rank() < 2 || batch < 0 || time < 0 || batch > 1 || time > 1 || batch == time ||
      lengths.shape != Shape{x.shape[static_cast<size_t>(batch)]} || lengths.dtype != DType::kI64)
    return c.error("its axes {} and {} do not fit {}", batch, time, to_string(x.shape));
  std::vector<int64_t> perm(x.rank());
  for (size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<int64_t>(d);
  perm[0] = batch;
  perm[1] = time;
  PIPER_ASSIGN(Val rows, c.transpose(x, perm));
  PIPER_ASSIGN(Val places, turned_places(c, lengths, rows.shape[1]));
  PIPER_ASSIGN(places, c.reshape(places, {rows.shape[0], rows.shape[1], 1}));
  PIPER_ASSIGN(rows, c.op("GatherND", {rows, places}, {{"batch_dims", int64_t{1}}}));
  return single(c.transpose(rows, perm));
}

constexpr ImportRule kScatterRules[] = {
    {"ArgMax", 1, kNewest, arg_extreme},
    {"ArgMin", 1, kNewest, arg_extreme},
    {"Compress", 9, kNewest, compressed, "with a known condition"},
    {"GatherElements", 11, kNewest, gather_elements},
    {"Hardmax", 1, kNewest, hardmax},
    {"NonZero", 9, kNewest, non_zero, "of known values"},
    {"ReverseSequence", 10, kNewest, reverse_sequence},
    {"Scatter", 9, 10, scatter_elements, "its newer name is ScatterElements"},
    {"ScatterElements", 11, kNewest, scatter_elements},
    {"ScatterND", 11, kNewest, scatter_nd},
    {"TopK", 1, kNewest, top_k, "of known k"},
};

}  // namespace

std::span<const ImportRule> scatter_rules() { return kScatterRules; }

}  // namespace piper::onnx_import
