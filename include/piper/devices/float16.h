// 16-bit floats (bf16 and f16): stored in 16 bits, computed with in 32.
#pragma once

#include "piper/plan/bundle.h"

namespace piper {

inline bool is_half(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }
float float_of_half(DType dtype, uint16_t bits);  // one element of kBF16 or kF16
// Many elements; to 16 bits rounded to nearest, ties to even, as Cast does.
void widen_halves(DType dtype, const std::byte* from, float* to, int64_t count);
void round_to_halves(DType dtype, const float* from, std::byte* to, int64_t count);

// The program in the form that a device runs whose kernels take 16-bit floats in some ops only:
// any other op takes them converted to f32, and each of its results is rounded once. Same
// arguments, and the same bits: an op means no more.
using TakesHalves = bool (*)(std::string_view op);
Program widened(Program program, TakesHalves takes);

// Writes the composites of 16-bit ops that a device has no kernel for as their single ops, in f32
// between them, so that each result is rounded once.
Program taken_apart(Program program);

}  // namespace piper
