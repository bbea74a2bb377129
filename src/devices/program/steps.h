// The steps of fuse(), in the order in which it takes them.
#pragma once

#include "piper/devices/program.h"
#include "piper/ir/ops.h"
#include "piper/ir/signatures.h"

namespace piper {

inline size_t at(int32_t value) { return static_cast<size_t>(value); }

// Ops of whose results nothing is read, nor given out, are gone.
void drop_dead(FusedProgram& program);
// Removes ops that only rename bytes; their results, or what they read, become views.
void make_views(FusedProgram& program, FuseCounts& counts);
// Joins to an attention the Slices that make its operands, and a Concat of its gradients.
void make_columns(FusedProgram& program, FuseCounts& counts);
// Sums and products with what a matrix product or the gradient of a norm makes are part of it.
void finish_products(FusedProgram& program, FuseCounts& counts);
// Groups of pointwise ops are Fused ops.
void make_groups(FusedProgram& program, FuseCounts& counts);
// Values that no op touches are gone, the others numbered again in order.
void drop_unused(FusedProgram& program);

// Returns the product of the extents from dim `from` on.
int64_t product(const Shape& shape, size_t from);

// Returns whether the op runs at matrix speed, by its first sample.
bool is_product(const OpDef& def);

// Returns what makes a pointwise op one word of an expression: its name, with its option after a
// colon; nothing when it cannot be one.
std::optional<std::string> word_of(const ProgramOp& op);

}  // namespace piper
