// Orders the tasks of steps that overlap.
#pragma once

#include "dependencies.h"
#include "piper/planner/schedule.h"

namespace piper {

// Fills `body` and `ahead` of a schedule whose compute orders reach into later steps; leaves all
// others only. `deps`: of all tasks. Error: a device begins a later step with what
// another does not begin yet, or a steady step's tasks wait for each other.
Status overlap_steps(const Dag& dag, const TaskLists& deps, Schedule& schedule);

}  // namespace piper
