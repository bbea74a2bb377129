// Which tasks must be complete before each task starts.
#include "dependencies.h"

#include <algorithm>
#include <map>

#include "piper/base/parallel.h"

namespace piper {

bool is_ordered(const Task& task) {
  if (info(task.kind).adds) return task.region.valid();
  return task.kind == InstructionKind::kCompute && task.pass != TaskPass::kPrepare &&
         (task.pass != TaskPass::kU || task.region.valid());
}

bool is_peer_reduction(const Dag& dag, const Task& task) {
  if (!info(task.kind).adds) return false;
  return std::none_of(task.group.begin(), task.group.end(), [&](int32_t axis) {
    return dag.mesh[static_cast<size_t>(axis)].tells_cells_apart();
  });
}

bool rounds_sums(const Dag& dag, const Task& task) {
  const auto bytes = [&](ItemId item) {
    return info(dag.graph.value(dag.items[item.index()].value).type.dtype).bytes;
  };
  return !task.combines.empty() &&
         std::all_of(task.combines.begin(), task.combines.end(), [&](const Combine& sum) {
           return sum.from.size() == 1 && bytes(sum.into) < bytes(sum.from[0]);
         });
}

namespace {

// Returns whether the task squares the gradients of one region, for the norm.
bool squares_region(const Dag& dag, const Task& task) {
  if (!dag.split_update || task.pass != TaskPass::kU || task.micro >= 0 || task.region.valid() ||
      !task.chunk.valid())
    return false;
  const std::vector<int32_t>& tags = dag.chunks[task.chunk.index()].tags;
  return std::any_of(tags.begin(), tags.end(), [](int32_t tag) { return tag != kNoTag; });
}

}  // namespace

bool runs_by_itself(const Dag& dag, const Task& task) {
  const bool joins = task.pass == TaskPass::kU && task.micro >= 0;  // what a reduction has left
  const bool for_send = task.kind == InstructionKind::kOwnPart && task.micro >= 0;
  if (task.within.valid()) return true;
  const bool follows_update = task.region.valid() && task.kind == InstructionKind::kAllGather;
  const bool with_send = task.kind == InstructionKind::kRecv && task.distance == kEarliest;
  return task.kind == InstructionKind::kSend ||
         (is_peer_reduction(dag, task) && !task.region.valid()) || joins || for_send || with_send ||
         follows_update || squares_region(dag, task) || adds_parts(task) || rounds_sums(dag, task);
}

bool adds_parts(const Task& task) {
  return task.pass == TaskPass::kU && task.micro < 0 &&
         std::any_of(task.combines.begin(), task.combines.end(),
                     [](const Combine& sum) { return sum.from.size() > 1; });
}

const SourceSpan* place_in(const ComputeOrder& compute, TaskId id) {
  const auto found = std::find(compute.tasks.begin(), compute.tasks.end(), id);
  if (found == compute.tasks.end() || compute.named_at.empty()) return nullptr;
  const auto position = static_cast<size_t>(found - compute.tasks.begin());
  return &compute.places[static_cast<size_t>(compute.named_at[position])];
}

Error no_pair(const ComputeOrder& compute, size_t overlap) {
  SourceSpan at;
  if (overlap < compute.pair_at.size())
    at = compute.places[static_cast<size_t>(compute.pair_at[overlap])];
  return fail(std::move(at), "the order cannot run: one task of this pair needs the other");
}

std::string print_place(const Dag& dag, TaskId id) {
  const Task& task = dag.tasks[id.index()];
  std::string text = fmt::format("'{}'", print_label(dag, task));
  if (dag.cells.size() == 1) return text;
  text += " on";
  for (size_t a = 0; a < dag.mesh.size(); ++a)
    if (dag.mesh[a].placed)
      text += fmt::format(" {}={}", dag.mesh[a].name, dag.cells[static_cast<size_t>(task.cell)][a]);
  return text;
}

namespace {

// Lists for each item the tasks that write it. Most items have one; the others have a list through
// all writes.
class Writers {
 public:
  explicit Writers(const Dag& dag) : first_(dag.items.size(), kNone) {
    for (size_t t = 0; t < dag.tasks.size(); ++t) {
      for (ItemId item : dag.tasks[t].writes) note(item, static_cast<int32_t>(t));
      for (const Accumulate& a : dag.tasks[t].accumulates) note(a.into, static_cast<int32_t>(t));
    }
  }
  void add_to(std::vector<TaskId>& tasks, ItemId item) const {
    const int32_t first = first_[item.index()];
    if (first >= 0) tasks.emplace_back(static_cast<size_t>(first));
    const auto before = static_cast<std::ptrdiff_t>(tasks.size());
    for (int32_t w = first < kNone ? kNone - 1 - first : -1; w >= 0;) {
      const Write& write = writes_[static_cast<size_t>(w)];
      tasks.push_back(write.task);
      w = write.before;
    }
    // Accumulators of one chunk, which are read together, have the same writers.
    const auto from = tasks.begin() + before;
    const std::ptrdiff_t added = tasks.end() - from;
    if (added <= before && std::equal(from, tasks.end(), from - added))
      tasks.erase(from, tasks.end());
  }

 private:
  static constexpr int32_t kNone = -1;
  struct Write {
    TaskId task;
    int32_t before = -1;
  };
  void note(ItemId item, int32_t task) {
    int32_t& first = first_[item.index()];
    if (first == kNone) {
      first = task;
      return;
    }
    int32_t before = kNone - 1 - first;
    if (first >= 0) {
      before = static_cast<int32_t>(writes_.size());
      writes_.push_back({TaskId(static_cast<size_t>(first)), -1});
    }
    first = kNone - 1 - static_cast<int32_t>(writes_.size());
    writes_.push_back({TaskId(static_cast<size_t>(task)), before});
  }

  std::vector<int32_t> first_;  // the only task; or below kNone: the last of `writes_`
  std::vector<Write> writes_;
};

// Returns the computations of each chunk of tokens, by microbatch.
std::map<std::pair<int32_t, int32_t>, TaskId> computations_of_tokens(const Dag& dag) {
  std::map<std::pair<int32_t, int32_t>, TaskId> tasks;
  for (size_t t = 0; dag.tokens >= 0 && t < dag.tasks.size(); ++t)
    if (const Task& task = dag.tasks[t];
        task.kind == InstructionKind::kCompute && is_ordered(task.pass))
      tasks.emplace(std::pair(task.chunk.value, task.micro), TaskId(t));
  return tasks;
}

}  // namespace

TaskLists find_dependencies(const Dag& dag) {
  const Writers writers(dag);
  const auto of_tokens = computations_of_tokens(dag);
  const std::vector<int32_t> before =
      of_tokens.empty() ? std::vector<int32_t>() : chunks_before(dag);
  constexpr size_t kBlock = 1 << 14;
  std::vector<TaskLists> blocks((dag.tasks.size() + kBlock - 1) / kBlock);
  in_parallel(blocks.size(), [&](size_t b) {
    std::vector<TaskId> own;
    for (size_t t = b * kBlock; t < std::min((b + 1) * kBlock, dag.tasks.size()); ++t) {
      const Task& task = dag.tasks[t];
      own.clear();
      for (ItemId item : task.reads) writers.add_to(own, item);
      if (task.within.valid()) own.push_back(task.within);
      if (!before.empty() && task.kind == InstructionKind::kCompute && is_ordered(task.pass))
        if (const auto last = of_tokens.find({before[task.chunk.index()], task.micro});
            last != of_tokens.end())
          own.push_back(last->second);
      if (task.kind == InstructionKind::kRecv) {
        // expand_tasks adds the send just before its receive.
        PIPER_CHECK(t > 0 && dag.tasks[t - 1].kind == InstructionKind::kSend,
                    "a receive without its send");
        own.emplace_back(t - 1);
      }
      std::sort(own.begin(), own.end());
      own.erase(std::unique(own.begin(), own.end()), own.end());
      std::erase(own, TaskId(t));  // no task waits for itself
      blocks[b].add(own);
    }
  });
  TaskLists deps;
  for (const TaskLists& block : blocks) deps.append(block);
  return deps;
}

}  // namespace piper
