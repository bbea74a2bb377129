// Pointwise ops over a run of elements: what both single pointwise ops and Fused are made of, so
// that fusing changes no bit.
#pragma once

#include <span>

#include "piper/base/base.h"

namespace piper::cpu {

// out[i] = f(in[0][i], in[1][i], …) for i < n; an operand whose `step` is false is one element for
// all i. `out` may be an operand with the same size of elements. The result of an element depends
// on its operands only, not on i or n.
using BlockFn = void (*)(const std::byte* const* in, const bool* step, std::byte* out, int64_t n);

struct Block {
  BlockFn run = nullptr;
  DType type = DType::kF32;  // of the result
};

inline constexpr size_t kMaxBlockOperands = 3;

// Returns how many operands a pointwise op takes; 0 when it is not one.
size_t block_operands(std::string_view op);
std::vector<std::string_view> block_ops();  // all that have some
// `option` is the op's one textual choice: Cast's type, Gelu's approximation, Mod's "fmod"; else
// empty.
Result<Block> find_block(std::string_view op, std::string_view option,
                         std::span<const DType> operands);

// Describes a vectorised one: float and double arithmetic, and Where by the size of f32 and f64.
struct SimdBlock {
  std::string_view op, option;
  size_t operands;
  BlockFn f32, f64;
};
std::span<const SimdBlock> simd_blocks();
// y[i] = Gelu(x[i]), slope[i] = what GeluGrad multiplies with, for i < n; either may be x.
using SlopeFn = void (*)(const std::byte* x, std::byte* y, std::byte* slope, int64_t n);
// `type`: f32 or f64.
SlopeFn find_gelu_and_slope(std::string_view option, DType type);
// Finds the cast between f32 and 16-bit floats; null for others.
BlockFn find_simd_cast(DType from, DType to);

}  // namespace piper::cpu
