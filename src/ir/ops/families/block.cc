// Floats in 8 bits, in blocks with a scale each (piper/base/scaled.h):
//   ToBlocks{to, block, run, piece}(x) -> i32: for each block its codes, then its scale
//   FromBlocks{to, block, run, piece, shape, type}(blocks) -> the numbers
// `to` is int8 or float8. `piece`: extents of the pieces whose elements are flat; absent: all is
// one. `run`: blocks begin anew after so many elements of a piece; absent: they do not.
#include "piper/base/scaled.h"
#include "rules.h"

namespace piper {
namespace {

constexpr int64_t kMostRun = int64_t{1} << 40;
constexpr double kMostBlocks = 0x1p50;

// Returns how many words the blocks of such a tensor take.
Result<int64_t> words_of(const Attrs& attrs, const Shape& shape) {
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
  const BlockPlaces places(block, shape, piece, run);
  double pieces = 1;
  for (size_t d = 0; d < piece.size(); ++d)
    pieces *= static_cast<double>((shape[d] + piece[d] - 1) / piece[d]);
  const double blocks =
      pieces * static_cast<double>(places.runs()) * static_cast<double>(places.per_run());
  if (blocks > kMostBlocks) return fail("its blocks are too many");
  return places.blocks() * (block / 4 + 1);
}

TypesResult to_blocks_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_float(use, 0));
  PIPER_ASSIGN(const int64_t words, words_of(use.attrs, use.inputs[0].shape));
  return std::vector<TensorType>{{DType::kI32, {words}}};
}

TypesResult from_blocks_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_ASSIGN(const Shape shape, check_shape(use.attrs, "shape"));
  const auto type = parse_dtype(use.attrs.text("type"));
  if (!type || !is_float(*type))
    return fail("'{}' is no type of floats", quote_control(use.attrs.text("type")));
  PIPER_ASSIGN(const int64_t words, words_of(use.attrs, shape));
  PIPER_TRY(check_type(use, 0, "of the blocks", {DType::kI32, {words}}));
  return std::vector<TensorType>{{*type, shape}};
}

}  // namespace

std::vector<OpDef> block_ops() {
  OpDef to{.name = "ToBlocks", .types = to_blocks_types, .loops = whole_loops};
  to.cost = element_cost<3>;
  const auto how = [](const char* type, int64_t block, int64_t run, std::vector<int64_t> piece) {
    Attrs attrs{{"to", std::string(type)}, {"block", block}};
    if (run > 0) attrs.set("run", run);
    if (!piece.empty()) attrs.set("piece", std::move(piece));
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
                {.inputs = {f64({})}, .attrs = how("float8", 32, 0, {})}};
  to.attributes = {{"to", kText}, {"block"}, {"run"}, {"piece", kIntegers}};
  OpDef from{.name = "FromBlocks", .types = from_blocks_types, .loops = whole_loops};
  from.cost = element_cost<2>;
  const auto words = [](int64_t count) { return TensorType{DType::kI32, {count}}; };
  from.samples = {
      {.inputs = {words(68)}, .attrs = as(how("int8", 64, 0, {}), {5, 40}), .int_high = 1 << 30},
      {.inputs = {words(72)}, .attrs = as(how("float8", 32, 50, {}), {5, 40}), .int_high = 1 << 30},
      {.inputs = {words(108)},
       .attrs = as(how("int8", 32, 40, {2, 20}), {6, 30}),
       .int_high = 1 << 30}};
  from.attributes = to.attributes;
  from.attributes.push_back({"shape", kIntegers});
  from.attributes.push_back({"type", kText});
  return {to, from};
}

}  // namespace piper
