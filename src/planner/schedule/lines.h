// What list scheduling chooses from. Private to the schedule room.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "dependencies.h"

namespace piper {

// Holds the tasks of one region and pass on a cell, by turn: the next one is the only choice. They
// have the places [first, end) in Lines::places.
struct Line {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t first = 0, end = 0;
  size_t cell = 0;
  size_t chunk = 0;  // of the first task
  TaskPass pass = TaskPass::kF;
  int rank = 0;             // in `prefer`
  bool first_here = false;  // of the first region that the cell runs forward
  int64_t slots = 0;        // 1 where activations are taken or given back
  size_t forward = kNone;   // that of this region, where it has both passes
  int64_t room = 1;   // forwards: chunks of activations that must fit, with those of later regions
  int64_t bytes = 0;  // the same in bytes
  std::vector<size_t> readers;  // lines whose tasks need its own
};

struct LinePlace {
  TaskId task;
  int32_t line = 0;
  int32_t micro = 0;
  int64_t time = 0;   // that it takes
  int64_t held = 0;   // forwards: bytes that are kept
  int64_t freed = 0;  // parts of backwards: of these, what is not kept any longer
};

// Says what a task needs, and how long the message takes.
struct Need {
  int32_t place = 0;
  int64_t delay = 0;
};

class Lines {
 public:
  Lines(const Dag& dag, const TaskLists& deps, const ListPolicy& policy);

  std::vector<Line> all;
  std::vector<std::vector<size_t>> of_cell;  // in `all`
  std::vector<LinePlace> places;
  ListsByTask<Need> needs;  // by place
  bool are_aligned = true;  // whether a line's nth task needs the nth ones of other lines only
  bool are_alike = false;   // whether a line's tasks take the same, and need the same

 private:
  std::vector<std::vector<TaskId>> find_lines(const ListPolicy& policy);
  void find_needs(const TaskLists& deps, const ListPolicy& policy);
  void find_readers();
  bool find_alike() const;
  void measure(const ListPolicy& policy);
  void free_in(const std::map<TaskPass, size_t>& passes, const ListPolicy& policy);

  const Dag& dag_;
};

// Says what limits were compared with when forwards were let through: the most of it.
struct Used {
  int64_t chunks = 0, bytes = 0;
  void note(int64_t more_chunks, int64_t more_bytes) {
    chunks = std::max(chunks, more_chunks);
    bytes = std::max(bytes, more_bytes);
  }
};

// A steady state in units of time, a forward or a half of a backward each: microbatch m of a line
// starts at start + m × period.
struct Pattern {
  int64_t period = 1;
  std::vector<int64_t> start;  // by line
  std::vector<int64_t> limit;  // by line: chunks of activations that its region holds at most
  std::vector<Used> used;      // by cell: what its own order holds
  bool fits(const ListPolicy& limits) const;
};
// Returns patterns in which the busiest cell never waits; nothing where microbatches run on
// different cells.
std::vector<Pattern> find_patterns(const Dag& dag, const Lines& lines);

// Returns the forwards in the order in which a microbatch goes through them; fewer than all where
// it goes two ways.
std::vector<size_t> way_of(const Lines& lines);

// Describes a pipeline that goes through all its cells, and as often again as each has regions.
struct RoundShape {
  struct Region {
    size_t forward, backward, weights;  // lines; no weights: Line::kNone
  };
  struct Cell {
    size_t cell = 0;
    std::vector<Region> regions;
  };
  std::vector<Cell> cells;  // from the first on
};
// Nothing: the pipeline has another shape.
std::optional<RoundShape> find_round_shape(const Dag& dag, const Lines& lines);

// Describes a pipeline that goes down its cells and back up again: by cell from the top down, the
// lines of forwards, input halves and weight halves, each in the order in which a microbatch comes
// to them.
struct VShape {
  static constexpr size_t kNoLine = static_cast<size_t>(-1);  // of weights: it has none
  std::vector<size_t> cells;
  std::vector<std::array<std::array<size_t, 2>, 3>> lines;
};
// Nothing: the pipeline has another shape.
std::optional<VShape> find_v(const Dag& dag, const Lines& lines);

// Says which tasks may wait for a weight half that begins before they can; and whether all tasks
// are taken to be equally long, and messages to take no time.
struct VRules {
  bool forwards_wait = true, backwards_wait = true, are_equal = false;
};
// Says how many tasks of each line are ordered, and by cell how long all of these take.
struct Sample {
  Sample(const Lines& lines, size_t count);
  size_t micros = 0;
  std::vector<int64_t> work;
};

// Goes through the limits of a policy and those that are tighter. An order within tighter limits is
// one within wider ones, and a choice that is best at the moment may be worse in the end. So if all
// of them are tried (stride 1), more memory never makes an order longer.
class TighterLimits {
 public:
  // Every `stride`th of the tighter limits is tried.
  TighterLimits(const ListPolicy& policy, const Lines& lines, int64_t stride);
  // Returns the policy with the limits to try.
  const ListPolicy& policy() const { return now_; }
  // Returns whether an order that used so much goes beyond them.
  bool exclude(const Used& used) const;
  // Goes to the next limits under which orders differ from those that used so much. False: there
  // are none that let a microbatch through.
  bool tighten(const Used& used);

 private:
  int64_t level(int64_t step) const { return need_ + (step * chunk_ + kSteps - 1) / kSteps; }
  // Takes the greatest level of memory that is less; where there is none, memory is not tightened
  // any more.
  void set_memory(int64_t below, int64_t stride);

  static constexpr int64_t kSteps = 2;  // of memory, for each chunk
  const ListPolicy& wide_;
  const int64_t stride_;
  ListPolicy now_;
  int64_t room_ = 0, need_ = 0;                // that one microbatch needs: chunks and bytes
  int64_t chunk_ = 0;                          // bytes of the smallest
  std::optional<Used> of_wide_;                // under the policy's own limits
  bool by_chunks_ = false, by_bytes_ = false;  // what is tightened
};

struct TimedOrder {
  std::vector<ComputeOrder> order;
  int64_t length = 0;
};
// Returns the order that these rules make. It may become shorter only when it is made anew, so it
// is not given up behind others: which orders are found would depend on these, and on limits.
// Nothing: the limits do not let it through.
std::optional<TimedOrder> order_v(const ListPolicy& policy, const Lines& lines, const VShape& v,
                                  const Sample& sample, const VRules& rules, Used& used);

// Returns the orders in which cells run `ahead` forwards more for each cell that follows, as soon
// as these limits let them, and then forwards and backwards in turn, in rounds of as many
// microbatches as there are cells. Nothing: the limits do not let it through.
std::vector<ComputeOrder> order_in_rounds(const ListPolicy& limits, const Lines& lines,
                                          const RoundShape& shape, const Sample& sample,
                                          size_t ahead, Used& used);

}  // namespace piper
