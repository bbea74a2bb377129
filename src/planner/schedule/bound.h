// How long no order of a pipeline is shorter than. Private to the schedule room.
#pragma once

#include "lines.h"

namespace piper {

// Says how one microbatch goes through a region of a cell, where it is alone in the pipeline.
struct Trip {
  int64_t count = 0;                            // microbatches that do
  int64_t forward = 0, input = 0, weights = 0;  // time of its tasks
  int64_t time = 0;            // from the end of its forward until a backward of it can begin
  int64_t held = 0, left = 0;  // bytes that a forward keeps, and of them those for weights
  double bytes_for = 0;        // these by how long they are kept at least
  int64_t slot_for = 0;        // how long it is in flight at least
  bool is_last = true;         // no other forward of the cell follows its own
  double forwards() const {
    return static_cast<double>(time) / static_cast<double>(std::max<int64_t>(forward, 1));
  }
};
struct CellTrips {
  std::vector<Trip> regions;
  int64_t wait = 0;  // from the begin of its first forward until a backward can begin
  // What the policy counts besides a cell's work: before its tasks, and before and behind those
  // that are no weight halves. Spans: of the cell for which that is the most.
  int64_t before = 0, around = 0;
};
// Holds the trips by cell; none: a microbatch does not go through the pipeline by itself. They
// bound orders where all microbatches take the same time and memory.
struct Trips {
  std::vector<CellTrips> cells;
  bool are_alike = false;
  // Returns whether each cell has one region, with a backward in halves.
  bool are_straight() const;
};
Trips find_trips(const Lines& lines, const ListPolicy& policy);

// Returns how long these orders take, if all cells begin what they do next as soon as it can.
// Nothing: they wait for each other.
std::optional<int64_t> time_of_orders(const Dag& dag, const Lines& lines, bool span,
                                      const std::vector<ComputeOrder>& orders);

// Says which cell takes so long, whatever the order, and why.
struct CellBound {
  int64_t length = 0;
  size_t cell = 0;
  BoundBy by = BoundBy::kWork;
};
// Returns the bound of the cell that takes longest: its work, and how long it idles until its first
// backward can begin, before which so many forwards may run. Where the last forward is none of
// these, it idles a second time, until a backward of that one can begin. Besides, what is kept for
// all microbatches has to be kept within the limits. Trips that are not alike: its work.
CellBound bound_within(const ListPolicy& limits, const Sample& sample, const Trips& trips);

}  // namespace piper
