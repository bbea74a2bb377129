// Floats in 8 bits, in blocks with a scale each (piper/base/scaled.h):
//   ToBlocks{to, block, run, piece, axis}(x) -> i32: for each block its codes, then its scale
//   FromBlocks{to, block, run, piece, axis, shape, type}(blocks) -> the numbers
// `to` is int8 or float8. `piece`: extents of the pieces whose elements are flat; absent: all is
// one. `run`: blocks begin anew after so many elements of a piece; absent: they do not. `axis`: a
// run is the elements of the dims from there on; the blocks have the dims before it, too, which may
// be cut. Absent: the blocks are flat.
#include "piper/base/scaled.h"
#include "rules.h"

namespace piper {
namespace {

constexpr int64_t kMostRun = int64_t{1} << 40;
constexpr double kMostBlocks = 0x1p50;

// Checks that the runs are those of the dims from the axis on.
Status check_runs(const Attrs& attrs, const Shape& shape) {
  const int64_t axis = attrs.integer("axis");
  if (axis == 0) return ok_status();
  if (axis < 0 || axis >= std::ssize(shape) || attrs.find("piece"))
    return fail("{} has no runs from dim {} on", to_string(shape), axis);
  const int64_t run = num_elements(Shape(shape.begin() + axis, shape.end()));
  if (run == 0 || attrs.integer("run") != run)
    return fail("runs of {} are not those of {} from dim {} on", attrs.integer("run"),
                to_string(shape), axis);
  return ok_status();
}

// Returns the extents of the words of such a tensor in blocks.
Result<Shape> words_of(const Attrs& attrs, const Shape& shape) {
  if (parse_scaled(attrs.text("to")) == Scaled::kNone)
    return fail("'{}' is no type of 8 bits", quote_control(attrs.text("to")));
  const int64_t block = attrs.integer("block"), run = attrs.integer("run");
  if (!is_block(block)) return fail("there are no blocks of {}", block);
  if (run < 0 || run > kMostRun) return fail("there are no runs of {}", run);
  const std::vector<int64_t> piece = attrs.integers("piece");
  bool fits = piece.empty() || piece.size() == shape.size();
  for (size_t d = 0; fits && d < piece.size(); ++d)
    fits = piece[d] > 0 && piece[d] <= std::max<int64_t>(shape[d], 1);
  if (!fits) return fail("{} is not cut into pieces of {}", to_string(shape), to_string(piece));
  PIPER_TRY(check_runs(attrs, shape));
  const BlockPlaces places(block, shape, piece, run);
  double pieces = 1;
  for (size_t d = 0; d < piece.size(); ++d)
    pieces *= static_cast<double>((shape[d] + piece[d] - 1) / piece[d]);
  const double blocks =
      pieces * static_cast<double>(places.runs()) * static_cast<double>(places.per_run());
  if (blocks > kMostBlocks) return fail("its blocks are too many");
  Shape words(shape.begin(), shape.begin() + attrs.integer("axis"));
  words.push_back((words.empty() ? places.blocks() : places.per_run()) * (block / 4 + 1));
  return words;
}

// Returns the loops of dims before the axis; what is after it is whole.
LoopRule block_loops(const OpTypes& use, const Shape& numbers) {
  const int64_t axis = use.attrs.integer("axis");
  if (axis == 0) return whole_loops(use);
  LoopBuilder build;
  const Dims before = build.letters(Shape(numbers.begin(), numbers.begin() + axis));
  const char row = build.whole(1);
  const auto dims = [&](const Shape& shape) {
    Dims all = before;
    all.resize(shape.size(), Dim{row});
    return all;
  };
  build.rule.inputs = {dims(use.inputs[0].shape)};
  build.rule.outputs = {dims(use.outputs[0].shape)};
  build.rule.reduces = LoopRule::kNone;
  return build.rule;
}
LoopRule to_blocks_loops(const OpTypes& use) { return block_loops(use, use.inputs[0].shape); }
LoopRule from_blocks_loops(const OpTypes& use) { return block_loops(use, use.outputs[0].shape); }

TypesResult to_blocks_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_float(use, 0));
  PIPER_ASSIGN(Shape words, words_of(use.attrs, use.inputs[0].shape));
  return std::vector<TensorType>{{DType::kI32, std::move(words)}};
}

TypesResult from_blocks_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_ASSIGN(const Shape shape, check_shape(use.attrs, "shape"));
  const auto type = parse_dtype(use.attrs.text("type"));
  if (!type || !is_float(*type))
    return fail("'{}' is no type of floats", quote_control(use.attrs.text("type")));
  PIPER_ASSIGN(const Shape words, words_of(use.attrs, shape));
  PIPER_TRY(check_type(use, 0, "of the blocks", {DType::kI32, words}));
  return std::vector<TensorType>{{*type, shape}};
}

}  // namespace

std::vector<OpDef> block_ops() {
  OpDef to{.name = "ToBlocks", .types = to_blocks_types, .loops = to_blocks_loops};
  to.cost = element_cost<3>;
  const auto how = [](const char* type, int64_t block, int64_t run, std::vector<int64_t> piece) {
    Attrs attrs{{"to", std::string(type)}, {"block", block}};
    if (run > 0) attrs.set("run", run);
    if (!piece.empty()) attrs.set("piece", std::move(piece));
    return attrs;
  };
  const auto from_axis = [](Attrs attrs, int64_t axis) {
    attrs.set("axis", axis);
    return attrs;
  };
  const auto as = [](Attrs attrs, std::vector<int64_t> shape) {
    attrs.set("shape", std::move(shape));
    attrs.set("type", std::string("f64"));
    return attrs;
  };
  to.samples = {{.inputs = {f64({5, 40})}, .attrs = how("int8", 64, 0, {})},
                {.inputs = {f64({5, 40})}, .attrs = how("float8", 32, 50, {})},
                {.inputs = {f64({6, 30})}, .attrs = how("int8", 32, 40, {2, 20})},
                {.inputs = {f64({})}, .attrs = how("float8", 32, 0, {})},
                {.inputs = {f64({4, 2, 40})}, .attrs = from_axis(how("int8", 32, 40, {}), 2)},
                {.inputs = {f64({4, 2, 40})}, .attrs = from_axis(how("float8", 64, 80, {}), 1)}};
  to.attributes = {{"to", kText}, {"block"}, {"run"}, {"piece", kIntegers}, {"axis"}};
  OpDef from{.name = "FromBlocks", .types = from_blocks_types, .loops = from_blocks_loops};
  from.cost = element_cost<2>;
  from.localise = localise_shape;
  const auto words = [](int64_t count) { return TensorType{DType::kI32, {count}}; };
  from.samples = {
      {.inputs = {words(68)}, .attrs = as(how("int8", 64, 0, {}), {5, 40}), .int_high = 1 << 30},
      {.inputs = {words(72)}, .attrs = as(how("float8", 32, 50, {}), {5, 40}), .int_high = 1 << 30},
      {.inputs = {words(108)},
       .attrs = as(how("int8", 32, 40, {2, 20}), {6, 30}),
       .int_high = 1 << 30},
      {.inputs = {{DType::kI32, {4, 2, 18}}},
       .attrs = as(from_axis(how("int8", 32, 40, {}), 2), {4, 2, 40}),
       .int_high = 1 << 30},
      {.inputs = {{DType::kI32, {4, 34}}},
       .attrs = as(from_axis(how("float8", 64, 80, {}), 1), {4, 2, 40}),
       .int_high = 1 << 30}};
  from.attributes = to.attributes;
  from.attributes.push_back({"shape", kIntegers});
  from.attributes.push_back({"type", kText});
  return {to, from};
}

}  // namespace piper
