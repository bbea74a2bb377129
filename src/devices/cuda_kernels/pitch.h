// Which matrices have their rows apart, so that each row begins at a multiple of 16 bytes: what
// products need for loads of 16 bytes and for tensor maps. A matrix of 50,257 columns of 16 bits
// has a pitch of 50,304 elements. Only values that nothing but products, cross-entropy and passes
// over rows touches can be like that; what follows from k and n stays as it is.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

// The attribute of MatMul and CrossEntropy… that lists the arguments of the program whose rows are
// apart: written by prepared_for_cuda, never part of a plan.
inline constexpr std::string_view kAlignedArgs = "aligned_args";

// Returns the elements from row to row of a matrix of this type whose rows begin at multiples of
// 16 bytes: 0 where they do so without a gap, or where rows are so short that gaps would take more
// than a sixteenth. Long rows begin at multiples of 128 bytes, a line of the cache.
int64_t aligned_pitch(const TensorType& type);

// Returns, by argument, whether an op of the program lists it there.
std::vector<bool> aligned_args(const Program& program);

struct Pitches {
  std::vector<int64_t> rows;     // by value: elements from row to row; 0: there is no gap
  std::vector<bool> in_product;  // by value: a product touches it
};
// Returns which locals of a program have their rows apart, and which of these arguments may:
// arguments that an op cannot take so have 0.
Pitches find_pitches(const FusedProgram& program, const std::vector<bool>& args);

// Returns the program with the shapes of such values widened by their gaps, for whoever places
// them.
FusedProgram widened_by(const Pitches& pitches, FusedProgram program);

}  // namespace piper::cuda_kernels
