// Slice{starts, ends, steps}: per dim the elements start, start + step, … before end. One entry for
// each dim, counted from 0: start in [0, extent], end in [0, extent], or -1 to go down to the first
// element with a negative step.
#include <algorithm>
#include <numeric>

#include "rules.h"

namespace piper {
namespace {

struct Cut {
  int64_t start, end, step;
};
struct Cuts {
  std::vector<Cut> dims;
};

Cuts cuts_of(const Attrs& attrs) {
  const std::vector<int64_t> starts = attrs.integers("starts"), ends = attrs.integers("ends"),
                             steps = attrs.integers("steps");
  Cuts cuts;
  for (size_t d = 0; d < starts.size(); ++d) cuts.dims.push_back({starts[d], ends[d], steps[d]});
  return cuts;
}

int64_t count(const Cut& cut) {
  const int64_t distance = cut.step > 0 ? cut.end - cut.start : cut.start - cut.end;
  const int64_t stride = cut.step > 0 ? cut.step : -cut.step;
  return distance <= 0 ? 0 : (distance + stride - 1) / stride;
}

TypesResult slice_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  const Shape& from = use.inputs[0].shape;
  for (const char* name : {"starts", "ends", "steps"})
    PIPER_TRY(check_list(use.attrs, name, from.size()));
  Shape shape;
  const Cuts cuts = cuts_of(use.attrs);
  for (size_t d = 0; d < from.size(); ++d) {
    const Cut& cut = cuts.dims[d];
    const int64_t most = int64_t{1} << 48;  // keeps the arithmetic below from overflowing
    if (cut.step == 0 || cut.step > most || cut.step < -most || cut.start < 0 ||
        cut.start > from[d] - (cut.step < 0 ? 1 : 0) || cut.end < (cut.step < 0 ? -1 : 0) ||
        cut.end > from[d]) {
      return fail("{}:{}:{} is not a range of dim {} of {}", cut.start, cut.end, cut.step, d,
                  operands(use));
    }
    shape.push_back(count(cut));
  }
  return std::vector<TensorType>{{use.inputs[0].dtype, std::move(shape)}};
}

// Returns the same elements the other way round.
ValueId reversed(Builder& build, ValueId id, size_t dim) {
  const Shape shape = build.shape(id);
  std::vector<int64_t> starts(shape.size(), 0), steps(shape.size(), 1);
  Shape ends = shape;
  starts[dim] = shape[dim] - 1;
  ends[dim] = -1;
  steps[dim] = -1;
  return build.op1("Slice", {id}, {{"starts", starts}, {"ends", ends}, {"steps", steps}});
}

// Inserts step − 1 zeros after each element of the dim.
ValueId spread(Builder& build, ValueId id, size_t dim, int64_t step) {
  Shape shape = build.shape(id);
  Shape apart = shape;
  apart.insert(apart.begin() + static_cast<int64_t>(dim) + 1, 1);
  std::vector<int64_t> before(apart.size(), 0), after(apart.size(), 0);
  after[dim + 1] = step - 1;
  const ValueId padded = build.op1("Pad", {build.reshape(id, apart)},
                                   {{"before", before}, {"after", after}, {"value", 0.0}});
  shape[dim] *= step;
  return build.reshape(padded, shape);
}

Grads slice_gradient(Builder& build, const GradientArgs& args) {
  const Shape shape = build.shape(args.inputs[0]);
  const Shape cut_shape = build.shape(args.outputs[0]);
  const Cuts cuts = cuts_of(args.attrs);
  std::vector<int64_t> before(shape.size()), after(shape.size());
  ValueId dx = args.output_grads[0];
  for (size_t d = 0; d < shape.size(); ++d) {
    Cut cut = cuts.dims[d];
    const int64_t taken = cut_shape[d];
    if (cut.step < 0) {
      if (taken > 1) dx = reversed(build, dx, d);
      cut.start += (taken - 1) * cut.step;
      cut.step = -cut.step;
    }
    if (taken == 1) cut.step = 1;
    if (taken == 0) cut = {0, 0, 1};
    if (cut.step > 1) dx = spread(build, dx, d, cut.step);
    before[d] = cut.start;
    after[d] = shape[d] - cut.start - taken * cut.step;  // negative: cuts off the last zeros
  }
  const std::vector<int64_t> none(shape.size(), 0);
  if (before == none && after == none) return {dx};
  return {build.op1("Pad", {dx}, {{"before", before}, {"after", after}, {"value", 0.0}})};
}

bool is_full(const Cut& cut, int64_t extent) {
  return cut.start == 0 && cut.step == 1 && cut.end == extent;
}

// What is taken are whole blocks of so many elements: one of three heads' projections that are
// stored as one. 1: none greater.
int64_t unit_of(const Cut& cut, int64_t extent) {
  if (cut.step != 1 || cut.end <= cut.start) return 1;
  return std::gcd(std::gcd(cut.start, cut.end), extent);
}

LoopRule slice_rule(const OpTypes& use) {
  LoopBuilder build;
  const Shape& shape = use.inputs[0].shape;
  const Cuts cuts = cuts_of(use.attrs);
  Dims dims;
  for (size_t d = 0; d < shape.size(); ++d)
    dims.push_back(is_full(cuts.dims[d], shape[d])
                       ? Dim{build.letter(shape[d])}
                       : block_letters(build, shape[d], unit_of(cuts.dims[d], shape[d])));
  build.rule.inputs = {dims};
  build.rule.outputs = {dims};
  build.rule.linear = {{0}};
  return build.rule;
}

Attrs slice_localise(const OpTypes& use, const std::vector<Shape>& local_outputs) {
  Attrs attrs = use.attrs;
  std::vector<int64_t> starts = attrs.integers("starts"), ends = attrs.integers("ends");
  for (size_t d = 0; d < ends.size(); ++d) {
    const int64_t whole = use.outputs[0].shape[d], local = local_outputs[0][d];
    if (local == whole || whole == 0) continue;
    starts[d] = starts[d] * local / whole;
    ends[d] = ends[d] * local / whole;
  }
  attrs.set("starts", starts);
  attrs.set("ends", ends);
  return attrs;
}

OpSample slice_sample(Shape shape, std::vector<int64_t> starts, std::vector<int64_t> ends,
                      std::vector<int64_t> steps) {
  return {.inputs = {f64(std::move(shape))},
          .attrs = {{"starts", starts}, {"ends", ends}, {"steps", steps}}};
}

// Returns the first byte where the slice is one run of the input's bytes: all dims after the first
// that is cut are whole, all before it single.
std::optional<int64_t> slice_first_byte(const TensorType& from, const TensorType& to,
                                        const Attrs& attrs) {
  const std::vector<int64_t> starts = attrs.integers("starts"), steps = attrs.integers("steps");
  const size_t rank = to.shape.size();
  const bool fits =
      starts.size() == rank && from.shape.size() == rank && (steps.empty() || steps.size() == rank);
  if (!fits || from.dtype != to.dtype || num_elements(to.shape) == 0) return std::nullopt;
  int64_t element = 0, inner = 1;
  bool cut = false;  // some dim from here on is not whole
  for (size_t d = rank; d-- > 0; inner *= from.shape[d]) {
    const int64_t step = steps.empty() ? 1 : steps[d];
    if (to.shape[d] > 1 && (cut || step != 1)) return std::nullopt;
    cut = cut || to.shape[d] != from.shape[d];
    const int64_t start = starts[d] < 0 ? starts[d] + from.shape[d] : starts[d];
    element += std::clamp<int64_t>(start, 0, from.shape[d] - (step < 0 ? 1 : 0)) * inner;
  }
  return element * info(from.dtype).bytes;
}

}  // namespace

std::vector<OpDef> slice_ops() {
  OpDef def{.name = "Slice", .types = slice_types, .gradient = slice_gradient, .loops = slice_rule};
  def.cost = moves;
  def.localise = slice_localise;
  def.elements = OpDef::Elements::kPart;
  def.first_byte = slice_first_byte;
  def.samples = {slice_sample({4, 6}, {0, 1}, {4, 5}, {1, 1}),
                 slice_sample({4, 2, 6}, {0, 1, 0}, {4, 2, 6}, {1, 1, 1}),
                 slice_sample({7, 2}, {1, 0}, {7, 2}, {2, 1}),
                 slice_sample({7, 2}, {5, 1}, {-1, -1}, {-2, -1}),
                 slice_sample({4, 2}, {3, 0}, {3, 2}, {1, 1}),
                 slice_sample({2, 4}, {0, 1}, {2, 4}, {1, 2}),
                 slice_sample({12, 3}, {4, 0}, {8, 3}, {1, 1}),
                 slice_sample({2, 18}, {0, 6}, {2, 18}, {1, 1})};
  def.attributes = {{"starts", kIntegers}, {"ends", kIntegers}, {"steps", kIntegers}};
  return {def};
}

}  // namespace piper
