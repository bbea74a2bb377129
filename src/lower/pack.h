// Weights that many products of few rows read are packed once a step.
#pragma once

#include "piper/bundle.h"

namespace piper {

// So many microbatches, at least; rows of a product, at most, by microbatches and in all; extents
// of the matrix, at least.
inline constexpr int64_t kPackedTimes = 8, kPackedRowsEach = 4, kPackedRows = 128, kPackedSide = 64;

// Each parameter that is kept whole and that programs read as the right operand of such products,
// and as nothing else, gets a buffer that an instruction at the start of the body fills (the op
// Pack); those products read that. Whether a program does so follows from itself and from its
// arguments being parameters: all cells decide alike. Before waits are added. Returns how many
// instructions were put in front.
int32_t pack_weights(RoleProgram& role, int64_t microbatches);

}  // namespace piper
