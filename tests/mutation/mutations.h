// Small changes of right plans, each of the kind that a wrong compiler would make.
#pragma once

#include <random>
#include <span>

#include "piper/plan/bundle.h"

namespace piper::mutation {

using Random = std::mt19937_64;

struct Mutation {
  const char* name;
  // Changes the set; says what, or nothing when the plan has no place for such a change.
  std::optional<std::string> (*apply)(PlanSet& set, Random& random);
};
std::vector<Mutation> mutations();
// For plans with two versions of the weights.
std::span<const Mutation> version_mutations();
// For plans with messages of several tensors.
std::span<const Mutation> join_mutations();
// Those of them that aim at one promise of the verifier each.
std::span<const Mutation> targeted_mutations();
// Those of copies of parameters in 16 bits.
std::span<const Mutation> copy_mutations();
// Those of what all ranks and parameters have in common.
std::span<const Mutation> agreement_mutations();
// Those of what a backward draws again.
std::span<const Mutation> redraw_mutations();

// Those of blocks that ranks have along a mesh axis, and of what adds up or moves them.
std::span<const Mutation> block_mutations();
// Those of them that leave out an all-to-all.
std::span<const Mutation> exchange_mutations();
// Those of what plans do, which the plan for one device tells.
std::span<const Mutation> doing_mutations();
// Returns those that change how values are rounded on their way between stages.
std::span<const Mutation> round_mutations();

// Those of states that are cut over axes of replicas.
std::span<const Mutation> state_mutations();

// Those that take elements from other dims, which shapes alone tell.
std::span<const Mutation> view_mutations();
// Returns those that sum over more than there is: elements twice, or zeros where none belong.
std::span<const Mutation> longer_mutations();

// Those of the step's numbers, where no label tells.
std::span<const Mutation> number_mutations();
// Those of what random numbers are drawn for, and by which keys.
std::span<const Mutation> draw_mutations();
// Those of what microbatches do, beside something that is done for nothing.
std::span<const Mutation> hidden_mutations();

}  // namespace piper::mutation
