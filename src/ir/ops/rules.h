// What the op files of this room share: type checks, loop letters, costs, and the families.
#pragma once

#include "piper/ir/ops.h"

namespace piper {

// ---- The families: each file of families/ defines the ops of one ------------------------------

#define PIPER_FAMILY(name) std::vector<OpDef> name##_ops();
#include "families.inc"
#undef PIPER_FAMILY

// ---- Attributes -------------------------------------------------------------------------------

using enum OpAttribute::Kind;
// The attribute `whole`: of how many a part is, where the use is told at which of them it begins.
OpAttribute whole_of_parts();
// Returns the attributes of a rank's share, where `shape` is that of the result (OpDef::localise).
Attrs localise_shape(const OpTypes& use, const std::vector<Shape>& local_outputs);

// ---- Types ------------------------------------------------------------------------------------

using TypesResult = Result<std::vector<TensorType>>;

inline bool is_float(DType dtype) { return info(dtype).is_float; }
inline bool is_index(DType dtype) { return dtype == DType::kI64 || dtype == DType::kI32; }

// Requires at least `least` inputs, those all present, and at most `most`.
Status check_arity(const OpTypes& use, size_t least, size_t most);
inline bool has_input(const OpTypes& use, size_t i) {
  return i < use.inputs.size() && use.present[i];
}
// "f32[2,3], f32[3]": the operands, for an error sentence.
std::string operands(const OpTypes& use);
Status check_float(const OpTypes& use, size_t input);
// Returns the type of a product: that of its first operand, or f32 where `to` says that sums of
// 16-bit floats are not rounded.
Result<DType> product_type(const OpTypes& use);
// Returns the type of the only input, which has floats, for a result of the same type.
TypesResult float_types(const OpTypes& use);
Status check_index(const OpTypes& use, size_t input);
// Checks an optional i64[] that says where a part of a letter begins (LoopRule::firsts).
Status check_first(const OpTypes& use, size_t input);
// Checks the same input, where attribute `whole` is the extent of all parts, after which a part has
// zeros.
Status check_part(const OpTypes& use, size_t input);
Status check_type(const OpTypes& use, size_t input, std::string_view role, const TensorType& type);
// Returns the attribute `name` as an axis of a value of `rank` dims, counted from 0.
Result<size_t> check_axis(const Attrs& attrs, std::string_view name, size_t rank);
// Checks the attribute `reduction` of what is put at places.
Status check_reduction(const Attrs& attrs);
// Returns the shape that numpy broadcasting gives; none when the shapes do not fit.
std::optional<Shape> broadcast(const Shape& a, const Shape& b);
// Returns the elements of a list attribute that must have one entry for each of `rank` dims.
Result<std::vector<int64_t>> check_list(const Attrs& attrs, std::string_view name, size_t rank);
// Returns an attribute `shape` with no negative entry and a number of elements that fits in memory.
Result<Shape> check_shape(const Attrs& attrs, std::string_view name);

// ---- Loops ------------------------------------------------------------------------------------

using Dim = LoopRule::Dim;
using Dims = std::vector<Dim>;

// Hands out letters while a rule is made. A whole letter that fills its dim may stand for dims of
// different extents.
class LoopBuilder {
 public:
  char letter(int64_t size);
  char whole(int64_t size);
  void mark_whole(char letter);
  Dims letters(const Shape& shape);        // one new letter for each dim
  Dims whole_letters(const Shape& shape);  // likewise, all whole
  LoopRule rule;
};
// Returns the dims of an operand that is broadcast to `shape` whose dims are `dims`.
Dims broadcast_dims(const Dims& dims, const Shape& shape, const Shape& operand);
// Returns the rule of a pointwise op with the given linear sets: each operand has the letters of
// the output.
LoopRule pointwise_loops(const OpTypes& use, std::vector<std::vector<int>> linear);
// Returns the dims of operands that have blocks of `unit` elements of a dim in common, each its own
// number of them: letters for what is inside of a block, the number being whole.
Dim block_letters(LoopBuilder& build, int64_t extent, int64_t unit);
// Gives no letter at all: every dim of every operand is whole.
LoopRule whole_loops(const OpTypes& use);
// Returns letters that two shapes with equally many elements share.
std::pair<Dims, Dims> common_letters(LoopBuilder& build, const Shape& from, const Shape& to);

// ---- Costs ------------------------------------------------------------------------------------

inline Cost moves(const OpTypes&) { return {}; }
// A first_byte: a use that keeps type and size has its input's bytes.
inline std::optional<int64_t> same_bytes(const TensorType& from, const TensorType& to,
                                         const Attrs&) {
  const bool same = from.dtype == to.dtype && from.bytes() == to.bytes();
  return same ? std::optional<int64_t>(0) : std::nullopt;
}
// Returns a number of floating-point operations for each element of the largest operand.
Cost per_element(const OpTypes& use, double flops);
template <int kFlops>
Cost element_cost(const OpTypes& use) {
  return per_element(use, kFlops);
}

// ---- Samples ----------------------------------------------------------------------------------

inline TensorType f64(Shape shape) { return {DType::kF64, std::move(shape)}; }
inline TensorType i64(Shape shape) { return {DType::kI64, std::move(shape)}; }
inline TensorType boolean(Shape shape) { return {DType::kBool, std::move(shape)}; }

}  // namespace piper
