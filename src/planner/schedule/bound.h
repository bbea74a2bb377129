// How long no order of a pipeline is shorter than. Private to the schedule room.
#pragma once

#include "lines.h"

namespace piper {

// Says how long it is from the end of a cell's first forward until that one's backward can begin,
// on an empty pipeline, and how long its tasks take there.
struct Trip {
  int64_t begin = 0;  // of the first forward
  int64_t time = 0, forward = 1, input = 0, weights = 0;
  int64_t held = 0, left = 0;  // bytes that a forward keeps, and of them those for weights
  double forwards() const { return static_cast<double>(time) / static_cast<double>(forward); }
};
// Returns the trips by cell. Empty: cells have several regions, or backwards that are not in
// halves.
std::vector<Trip> find_trips(const Dag& dag, const ListPolicy& policy, const Lines& lines);
// Returns whether cells have nothing but forwards before their first backward, and all microbatches
// take the same time and memory: then trips bound orders.
bool only_forwards_come_first(const Lines& lines);

// Says which cell takes so long, whatever the order.
struct CellBound {
  int64_t length = 0;
  size_t cell = 0;
};
// Returns the bound of the cell that takes longest: its work, and how long it idles until its first
// backward can begin, before which so many forwards may run. Where the last forward is none of
// these, it idles a second time, until the backward of that one can begin. No trips: its work.
CellBound bound_within(const ListPolicy& limits, const Sample& sample,
                       const std::vector<Trip>& trips);

}  // namespace piper
