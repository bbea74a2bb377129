// Task order per cell: the order programs decide the order of compute tasks; everything else is
// derived from it.
#pragma once

#include "piper/dag.h"

namespace piper {

struct Schedule {
  std::vector<std::vector<TaskId>> order;      // by cell: all its tasks in issue order
  std::vector<std::vector<Overlap>> overlaps;  // by cell: positions in its order
  std::vector<ComputeOrder> compute;           // by cell: as asked for, or the default
};

// `compute` gives, by cell, its F, B, BI and BW tasks in the order wanted; an empty list: the safe
// default (one-forward-one-backward by greedy list scheduling, at most as many microbatches in
// flight as there are cells after this one). Inputs are loaded and receives posted just before
// their first reader, sends just after their writer, reductions once all they sum is there; sums
// and updates close the step. What the tasks of an overlap need is issued before its first. Error
// (kRefused): the orders wait for each other; the notes print the shortest chain of waits.
Result<Schedule> make_schedule(const Dag& dag, const std::vector<ComputeOrder>& compute);

}  // namespace piper
