// The compute tasks of one cell that wait for an item of the order to take them.
#pragma once

#include <map>

#include "piper/planner/directives.h"

namespace piper {

// What an item takes: a task; two for a whole backward whose parts are tasks of their own; before
// them, what runs again for it; all that updates a region, or adds up its gradients.
using Taken = std::vector<TaskId>;

// Returns by cell its F, R, B, BI and BW tasks, and the updates and reductions of regions.
std::vector<std::vector<TaskId>> ordered_tasks(const Dag& dag);

class OrderPool {
 public:
  // Returns the item that takes the task.
  static std::string_view name_of_item(const Task& task) {
    return task.kind == InstructionKind::kCompute ? name_of(task.pass) : "S";
  }
  // `tasks`: the ordered compute tasks of the cell.
  OrderPool(const Dag& dag, int32_t cell, const std::vector<TaskId>& tasks,
            const Strategy& strategy);

  // Returns the next of what matches, by microbatch, then in dataflow order; empty when none is
  // left. A backward takes what runs again for it, too, where no item has. Where parts or shares of
  // samples are tasks, an item that names none takes all that its pass has left of a stage and
  // microbatch; one that names a part takes with it what is before it in no part, and with the last
  // part what is after it.
  // `number` is the item's, for later errors. Errors: a tag or a tag's value that no task of the
  // cell has.
  Result<Taken> take(const OrderItem& item, int32_t number);

  // "F3", with the stage before it when the cell has several: "1F3", and a chunk of tokens after
  // it: "F3.0"; `pass` instead of its own.
  std::string short_name(TaskId task, const std::string& pass = "") const;
  // Returns whether no task matches, taken or not: a stage whose backward has nothing to compute.
  bool has_none(const OrderItem& item);
  // Returns why take() found nothing: how many tasks match and which item took the last of them.
  std::string why_none(const OrderItem& item);
  // Returns the number of the item that took the last of what matches.
  int32_t last_taker(const OrderItem& item);
  // Returns the tasks that no item has taken, updates last.
  std::vector<TaskId> left() const;
  // "8 F, 8 BI and 6 BW": of all tasks, or of those taken.
  std::string count_passes(bool taken) const;
  // Returns into how many chunks of tokens a microbatch is split; 0: there are none.
  int64_t chunks_of_tokens() const { return chunks_; }

 private:
  struct Entry {
    TaskId task;
    int32_t chunk = -1;    // local index of the region
    int32_t partner = -1;  // of a BI: the entry of its BW
    int32_t again = -1;    // of a backward: the entry of its R
    int32_t taken_by = -1;
    bool alone = true;  // a BW without a BI
  };
  struct Queue {
    std::vector<int32_t> entries;
    size_t next = 0;  // all before are taken
  };
  using Key = std::pair<std::string, std::vector<std::string>>;  // pass, tags
  using Queues = std::map<std::vector<int64_t>, Queue>;          // by the tags' values

  bool has_pass(const Entry& entry, const std::string& pass) const;
  bool is_taken(const Entry& entry, const std::string& pass) const;
  int64_t value_of(const Entry& entry, const std::string& tag) const;
  // Returns what is left of an item's pass, of the stage, microbatch and values of tags of `next`.
  std::vector<size_t> left_of(const Entry& next, const OrderItem& item,
                              const std::vector<ptrdiff_t>& alike) const;
  // Returns what an item takes whose next task is that of the entry.
  std::vector<size_t> taken_with(size_t entry, const OrderItem& item) const;
  void take_one(Entry& entry, const OrderItem& item, int32_t number, Taken& taken);
  Status check_tag(const std::string& tag, const OrderItem& item) const;
  Status check_values(const OrderItem& item) const;
  Result<Queue*> queue_of(const OrderItem& item);
  const Task& task(const Entry& entry) const { return dag_.tasks[entry.task.index()]; }
  const Chunk& chunk_of(const Task& task) const {
    return dag_.chunks[(task.region.valid() ? task.region : task.chunk).index()];
  }
  const Dag& dag_;
  void sort_like_backwards();
  // Returns the tags of a chunk that tell stages apart.
  std::vector<int32_t> stage_of(const Chunk& chunk) const;
  int32_t tag_of(const Entry& entry, ptrdiff_t tag) const {
    return chunk_of(task(entry)).tags[static_cast<size_t>(tag)];
  }
  // Returns the part that a task is, or its chunk of tokens; kNoTag: neither.
  int32_t part_of(const Task& task) const;
  // Returns whether values of the tag are parts of a region.
  bool tells_parts(ptrdiff_t tag) const;
  bool is_in_part(const Entry& entry) const;
  // A stage, chunk of tokens or span and part, and microbatch, of which each pass has one task.
  using Unit = std::tuple<int32_t, std::vector<int32_t>, int32_t>;
  Unit unit_of(const Entry& entry) const;

  size_t count_items(const std::vector<const Entry*>& entries) const;

  const std::string micro_tag_;
  // Among the region's tags, those that do not tell stages apart, ascending: of chunks of tokens,
  // of shares of samples, of parts, and of spans.
  std::vector<ptrdiff_t> within_;
  std::vector<std::string> parts_;                    // tags of parts that no item names
  ptrdiff_t tokens_ = -1, shares_ = -1, spans_ = -1;  // of these; -1: none
  int64_t chunks_ = 0;                                // of tokens
  std::vector<std::vector<int32_t>> regions_;         // local stage index -> tag values
  std::vector<Entry> entries_;
  std::map<Key, Queues> queues_;
  Queue none_;
};

}  // namespace piper
