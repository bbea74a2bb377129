// States that microbatches read in place of parameters and of the step's number. Each changes the
// graph before it is cut into chunks.
#pragma once

#include "piper/ir/ops.h"
#include "piper/planner/make_dag.h"

namespace piper {

// What is read of a trained parameter of f32 in 16 bits is a state of its own, and no cast; also
// where ops that move elements are between the parameter and the casts. `only`: if it is named
// here.
void keep_copies(Dag& dag, const std::optional<std::set<std::string>>& only);
// Adds ops that round a value in blocks.
ValueId rounded_in_blocks(Builder& build, ValueId value, const PartsInBlocks& how);
// Lets microbatches read parameters, or their copies, as gathers in blocks would bring them.
void read_in_blocks(Dag& dag, const std::map<std::string, PartsInBlocks>& params);

// Adds older versions, so that there are as many as are said of the parameter, of each trained one
// that is read and of each copy: states that start as it does. Microbatches read the oldest.
void keep_previous_weights(Dag& dag, const std::map<std::string, int64_t>& versions);

// What is drawn depends on the number of the step. So that a step may begin while the one before is
// under way, the number is kept in two versions, too: the newest is that of the next step. What
// counts updates counts for itself.
void keep_next_step(Dag& dag);

}  // namespace piper
