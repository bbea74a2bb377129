// FLOPs of plan programs, by the costs of the op table, and bytes of instructions: what pictures,
// summaries, profiles and predictions measure with.
#pragma once

#include "piper/plan/bundle.h"

namespace piper {

// Says what one op of a program computes, fused or not.
struct OpWork {
  enum Kind : uint8_t { kElements, kProduct, kAttention, kAttentionGrad } kind = kElements;
  // By the op table: a multiply-add counts two, moves count nothing.
  double flops = 0;
  DType dtype = DType::kF32;  // of the operands, of all but kElements
  // Products: `count` of [m, k] by [k, n]; of experts those of this rank, which get as many rows
  // as the others. Attentions: `count` heads of m queries, of which each sees n keys on average,
  // and of k elements.
  double count = 0, m = 0, n = 0, k = 0;
  bool operator==(const OpWork&) const = default;
};
// A fused op counts as its words, what a product takes along as ops after it. Error: an op that the
// table lacks, or operands that its cost cannot be told from.
Result<OpWork> work_of(const Program& program, const ProgramOp& op);

// Returns the FLOPs of one run, so that a program costs the same however it is fused. Error: as
// above.
Result<double> program_flops(const Program& program);
// Returns the FLOPs by program of the role.
Result<std::vector<double>> program_flops(const RoleProgram& role);

// Returns the FLOPs of the model in a step, as the compiler has counted them before it cut the
// model; 0: the manifest does not say.
double model_flops(const Manifest& manifest);

// Returns the type of the operands of most products of the model, by FLOPs: the type whose peak the
// rank's device has for them. f32 if there are none.
Result<DType> type_of_products(const RoleProgram& role);

// Returns the sum over all ranks of what `of_role` finds for the role of each, by one of the above.
Result<double> flops_of_ranks(const PlanSet& set, Result<double> (*of_role)(const RoleProgram&));
// Returns the FLOPs that the computations of a step run, whatever they are for.
Result<double> run_flops(const RoleProgram& role);

// Returns the bytes of the rank that needs most.
int64_t largest_peak(const PlanSet& set);

// Returns the bytes that go through the instruction: of whole tensors where they are cut.
int64_t bytes_through(const RoleProgram& role, const Instruction& one);
// Returns the bytes that go through the sends and collectives of an outer update.
int64_t outer_bytes(const RoleProgram& role, const OuterUpdate& update);
// Returns the way of what stays on a rank: "device", "host", "device to host", "host to device".
std::string way_of(const RoleProgram& role, const Instruction& one);

}  // namespace piper
