// What tasks wait for.
#pragma once

#include "piper/dag.h"

namespace piper {

// The computations whose order is free; all else is derived from it.
bool is_ordered(const Task& task);

// Tasks that must be issued before each task: writers of what it reads, and for receives the send.
std::vector<std::vector<TaskId>> find_dependencies(const Dag& dag);

}  // namespace piper
