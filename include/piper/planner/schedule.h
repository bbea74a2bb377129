// Task order per cell: the order programs decide the order of compute tasks; everything else is
// derived from it.
#pragma once

#include <span>

#include "piper/planner/make_dag.h"

namespace piper {

// Keeps a list for each task, in one array.
template <class Item>
class ListsByTask {
 public:
  std::span<const Item> operator[](size_t task) const {
    return {items_.data() + end_[task], end_[task + 1] - end_[task]};
  }
  // Adds the list of the next task.
  void add(const std::vector<Item>& items) {
    items_.insert(items_.end(), items.begin(), items.end());
    end_.push_back(items_.size());
  }
  void append(const ListsByTask& lists) {
    const size_t before = items_.size();
    items_.insert(items_.end(), lists.items_.begin(), lists.items_.end());
    for (size_t l = 1; l < lists.end_.size(); ++l) end_.push_back(before + lists.end_[l]);
  }

 private:
  std::vector<Item> items_;
  std::vector<size_t> end_{0};  // [t + 1]: of the list of t
};
using TaskLists = ListsByTask<TaskId>;

// Returns the tasks that must be issued before each task: writers of what it reads, and for
// receives the send; ascending.
TaskLists find_dependencies(const Dag& dag);

struct Schedule {
  std::vector<std::vector<TaskId>> order;      // by cell: all its tasks in issue order
  std::vector<std::vector<Overlap>> overlaps;  // by cell: positions in its order, or in its body
  std::vector<ComputeOrder> compute;           // by cell: as asked for, or the default
  // Where steps overlap, by cell: positions in its order, as a steady step runs them, and of each
  // position how many steps ahead of the one under way the task then is.
  std::vector<std::vector<int32_t>> body, ahead;
  int64_t nearer = 0;  // receives that stand nearer to their use than asked, behind their sends
};

// A ListPolicy says how list_schedule chooses. Each cell takes the task that can start first; of
// several, the pass that `prefer` names first, then the lower microbatch, then the later stage.
// Besides, orders that repeat a pattern, and orders within tighter limits: what ends first is
// taken. The tasks of one chunk and pass run in microbatch order, or in that of `turn`.
struct ListPolicy {
  std::vector<TaskPass> prefer;    // passes; those that are not named come last
  std::vector<int64_t> in_flight;  // by cell: chunks whose activations are held at most
  int64_t memory = 0;              // bytes of activations that a cell holds at most; 0: any
  std::vector<int64_t> time;       // by chunk, of one microbatch
  std::vector<int64_t> held;       // by chunk: bytes that a forward keeps
  std::vector<int64_t> left;       // by chunk: bytes that an input half leaves for its weight half
  double time_per_byte = 0;        // of messages
  int64_t time_per_message = 0;    // besides
  bool span = false;  // what counts is the longest that a cell is at work, not the end of all
  bool limits_give_way = false;  // rather than fail
  std::vector<int32_t> turn;     // by task, among those of its chunk; empty: the microbatch
  SourceSpan at;
};
// Returns the order of the computations by cell: of several orders the best. A forward leaves room
// for the chunks that follow it on its cell, so limits that let one microbatch through let all
// through. Error: limits that do not.
Result<std::vector<ComputeOrder>> list_schedule(const Dag& dag, const TaskLists& deps,
                                                const ListPolicy& policy);

// Puts other tasks of each cell between those of its order: each runs as soon as what it reads is
// there, where computations take their FLOPs, and a byte of a message kFlopsPerSentByte. Requires
// orders without overlaps, of one step. `at`: for errors, where the strategy names the others.
std::vector<ComputeOrder> insert_tasks(const Dag& dag, const TaskLists& deps,
                                       std::vector<ComputeOrder> orders,
                                       const std::vector<std::vector<TaskId>>& others,
                                       const SourceSpan& at);

// Says why no order is below a bound: a cell computes so long; or waits besides for its first and
// its last backward, with what the limits let it do meanwhile; or its tasks that are no weight
// halves take so long, with the way to the first and from the last; or what it keeps for all
// microbatches takes so long within the limits.
enum class BoundBy : uint8_t { kWork, kWaits, kWay, kLimits };
// Says how long a step takes in this order, by the policy's times and what it wants to be short,
// and what no order of these computations is below within its limits, by which cell.
struct OrderLength {
  int64_t length = 0, bound = 0;
  size_t cell = 0;
  BoundBy by = BoundBy::kWork;
};
OrderLength length_of(const Dag& dag, const TaskLists& deps, const ListPolicy& policy,
                      const std::vector<ComputeOrder>& orders);

// Returns the policy without an order: a backward before a forward, a forward counts as much as
// half a backward, and at most as many microbatches in flight as there are cells from this one on.
ListPolicy default_policy(const Dag& dag);

// Holds the result of joining a message group.
struct JoinedMessages {
  int64_t messages = 0;  // that they are now
  std::string apart;     // of several, the first of the second: "'send a mb=1' on pp=0"
};
// Joins the tasks of each group into one, which reads and writes what they did, in order: sends of
// one cell to another, with their receives, or collectives of one kind over one group of ranks. A
// group whose tasks would wait for each other in a circle, by their data and the order of the
// computations, becomes several messages, each of what is there first. Ids in `compute` follow. By
// group; no messages: nothing was joined, for the order cannot run.
std::vector<JoinedMessages> join_messages(Dag& dag, std::vector<ComputeOrder>& compute,
                                          const std::vector<std::vector<TaskId>>& groups);

// `compute` gives, by cell, its F, B, BI and BW tasks in the order wanted. Inputs are loaded and
// receives posted just before their first reader, or as far ahead as Task::distance says, but not
// before their send in an order of all cells where each in turn runs one computation; sends come
// just after their writer, reductions once all they sum is there; sums and updates close the step.
// What the tasks of an overlap need is issued before its first. Where steps overlap, what is
// received runs as early as what sent it, so that no message is under way when a step ends. Error
// (kRefused): the orders wait for each other; the notes print the shortest chain of waits.
Result<Schedule> make_schedule(const Dag& dag, const TaskLists& deps,
                               const std::vector<ComputeOrder>& compute);

}  // namespace piper
