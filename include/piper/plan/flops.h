// FLOPs of plan programs, by the costs of the op table: what pictures and summaries measure with.
#pragma once

#include "piper/plan/bundle.h"

namespace piper {

// Returns the FLOPs of one run; a multiply-add counts two, moves count nothing. A fused op counts
// as its words, what a product takes along as ops after it, so that a program costs the same
// however it is fused. Error: an op that the table lacks, or operands that its cost cannot be told
// from.
Result<double> program_flops(const Program& program);
// Returns the FLOPs by program of the role.
Result<std::vector<double>> program_flops(const RoleProgram& role);

}  // namespace piper
