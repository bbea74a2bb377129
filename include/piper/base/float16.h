// Elements of 16-bit floats (bf16 and f16): stored in 16 bits, computed with in 32.
#pragma once

#include "piper/base/base.h"

namespace piper {

inline bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }
float float_of_half(DType dtype, uint16_t bits);  // one element of kBF16 or kF16
// Returns one element of any float type. `at` may be at any address.
double float_at(DType dtype, const std::byte* at);
// Convert `count` elements; to 16 bits they are rounded to nearest, ties to even, as Cast does.
void widen_halves(DType dtype, const std::byte* from, float* to, int64_t count);
void round_to_halves(DType dtype, const float* from, std::byte* to, int64_t count);

}  // namespace piper
