// Weights that many products of few rows read are packed once a step.
#pragma once

#include "piper/plan/bundle.h"

namespace piper::cpu {

// So many microbatches, at least; rows of a product, at most, by microbatches and in all; extents
// of the matrix, at least.
inline constexpr int64_t kPackedTimes = 8, kPackedRowsEach = 4, kPackedRows = 128, kPackedSide = 64;

// Returns what Pack makes of a right operand [k, n] (or its transpose): fewer than 32 more columns,
// so that all instruction sets' vectors fit. Only products with the attribute `packed_b` read it.
inline Shape packed_shape(int64_t k, int64_t n) { return {k, (n + 31) / 32 * 32}; }

// Gives each parameter that is kept whole, and that programs read only as the right operand of such
// products, a buffer after the arena. An instruction at the start of the body fills it (the op
// Pack), and the products read it. Where steps overlap, the role stays as it is.
RoleProgram pack_weights(RoleProgram role);

}  // namespace piper::cpu
