// Finds what tasks wait for, and which of them a schedule may order.
#pragma once

#include "piper/planner/schedule.h"

namespace piper {

// Returns the computations whose order is free; all else is derived from it.
bool is_ordered(const Task& task);

// Returns whether the task is a reduction between SPMD peers: all peers run the same program, so
// these may start as soon as they can.
bool is_peer_reduction(const Dag& dag, const Task& task);

// Returns whether the task rounds sums so that they travel in fewer bytes.
bool rounds_sums(const Dag& dag, const Task& task);

// Returns what is issued as soon as it can: sends, those reductions, what they have left and what
// is rounded for them, squares of the gradients of a region, sums of parts, receives that are
// posted with their sends, gathers of what the update of a region has made, and what a computation
// runs, after it.
bool runs_by_itself(const Dag& dag, const Task& task);

// Adds to a sum of the whole step what another cell has of it.
bool adds_parts(const Task& task);

// "'F stage=1 mb=3' on pp=1"
std::string print_place(const Dag& dag, TaskId id);
// Returns where the strategy names the task; null: nowhere.
const SourceSpan* place_in(const ComputeOrder& compute, TaskId id);
// Makes the error at the '&' of the overlap, where the strategy has one.
Error no_pair(const ComputeOrder& compute, size_t overlap);

}  // namespace piper
