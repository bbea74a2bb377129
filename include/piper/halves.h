// 16-bit floats (bf16 and f16): stored in 16 bits, computed with in 32.
#pragma once

#include "piper/bundle.h"

namespace piper {

inline bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }
float float_of_half(DType dtype, uint16_t bits);  // one element of kBF16 or kF16
// Many elements; to 16 bits rounded to nearest, ties to even, as Cast does.
void widen_halves(DType dtype, const std::byte* from, float* to, int64_t count);
void round_to_halves(DType dtype, const float* from, std::byte* to, int64_t count);

// The program in the form that plans have: 16-bit floats are operands of ops that move, compare,
// choose or convert elements; any other op takes them converted to f32 in the workspace, and each
// of its results is rounded once. Same arguments; requires a program without places and views.
// `moves_casts`: past Slices and Concats, with the same bits, where that leaves more to fuse.
Program widened(Program program, bool moves_casts = true);

}  // namespace piper
