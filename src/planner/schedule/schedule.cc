// Orders all tasks of each cell around its computations.
#include "piper/planner/schedule.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <span>

#include "dependencies.h"
#include "post.h"
#include "steps.h"

namespace piper {
namespace {

class Issuer {
 public:
  Issuer(const Dag& dag, const TaskLists& deps)
      : dag_(dag),
        deps_(deps),
        briefs_(dag.tasks.size()),
        issued_(dag.tasks.size()),
        missing_(dag.tasks.size()),
        next_(dag.cells.size()),
        next_pair_(dag.cells.size()) {
    schedule_.order.resize(dag.cells.size());
    schedule_.overlaps.resize(dag.cells.size());
    first_waiter_.resize(dag.tasks.size(), -1);
    for (size_t t = dag.tasks.size(); t-- > 0;) {  // so that lists ascend
      const Task& task = dag.tasks[t];
      briefs_[t] = {task.cell, is_ordered(task), is_peer_reduction(dag, task)};
      posts_ =
          posts_ || (task.distance > 0 && !task.within.valid() && !gathers_parameters(dag, task));
      if (runs_by_itself(dag, task)) issue_behind(TaskId(t), deps[t]);
    }
    receive_parts();
  }

  Result<Schedule> run(const std::vector<ComputeOrder>& compute) {
    if (posts_) sent_at_.resize(dag_.tasks.size());
    // What microbatches need of the whole step, on whichever cells it is made.
    const std::vector<bool> needed = needed_by_ordered();
    for (size_t t = 0; t < dag_.tasks.size(); ++t) {
      const Task& task = dag_.tasks[t];
      const bool early = task.pass == TaskPass::kPrepare ||
                         (task.micro < 0 && task.kind != InstructionKind::kInput);
      if (early && needed[t] && !issued_[t] && !briefs_[t].ordered && can_issue(TaskId(t)))
        issue_with_needs(TaskId(t));
    }
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t cell = 0; cell < compute.size(); ++cell)
        while (advance(compute[cell], cell)) {
          progress = true;
          if (posts_) break;  // in turn: about as they run at once
        }
    }
    for (size_t cell = 0; cell < compute.size(); ++cell)
      if (next_[cell] < compute[cell].tasks.size()) return deadlock(compute);
    for (size_t t = 0; t < dag_.tasks.size(); ++t)
      if (!issued_[t]) issue(TaskId(t));
    if (posts_) schedule_.nearer = post_ahead(dag_, sent_at_, schedule_.order, schedule_.overlaps);
    return std::move(schedule_);
  }

 private:
  // Keeps side by side what is asked of tasks again and again.
  struct Brief {
    int32_t cell = 0;
    bool ordered = false, reduces = false;
  };
  // Names an eager task that another holds back, and the next such task of the same.
  struct Waiter {
    TaskId task;
    int32_t next = -1;
  };

  void issue_behind(TaskId id, std::span<const TaskId> tasks) {
    missing_[id.index()] = static_cast<int32_t>(tasks.size());
    for (TaskId task : tasks) {
      waiters_.push_back({id, first_waiter_[task.index()]});
      first_waiter_[task.index()] = static_cast<int32_t>(waiters_.size() - 1);
    }
  }
  // Another cell's part of a sum is received when it has been sent and its own part is whole, so
  // that the sum goes on before the step ends.
  void receive_parts() {
    std::map<TaskId, std::vector<TaskId>> behind;
    for (size_t t = 0; t < dag_.tasks.size(); ++t) {
      if (!adds_parts(dag_.tasks[t])) continue;
      for (TaskId d : deps_[t]) {
        const Task& recv = dag_.tasks[d.index()];
        if (recv.kind != InstructionKind::kRecv || recv.distance == kEarliest) continue;
        std::vector<TaskId>& tasks = behind[d];
        tasks.push_back(TaskId(d.index() - 1));
        for (TaskId own : deps_[t])
          if (is_ordered(dag_.tasks[own.index()])) tasks.push_back(own);
      }
    }
    for (auto& [recv, tasks] : behind) {
      std::sort(tasks.begin(), tasks.end());
      tasks.erase(std::unique(tasks.begin(), tasks.end()), tasks.end());
      issue_behind(recv, tasks);
      posts_ = true;
    }
  }
  std::vector<bool> needed_by_ordered() const {
    std::vector<bool> needed(dag_.tasks.size());
    for (size_t t = dag_.tasks.size(); t-- > 0;)
      if (needed[t] || (briefs_[t].ordered && !dag_.tasks[t].region.valid()))
        for (TaskId d : deps_[t]) needed[d.index()] = true;
    return needed;
  }
  // Issues the cell's next task, or its next two that overlap; false: they must wait.
  bool advance(const ComputeOrder& compute, size_t cell) {
    if (next_[cell] == compute.tasks.size()) return false;
    size_t& pair = next_pair_[cell];
    const bool overlaps = compute.body.empty() && pair < compute.overlaps.size() &&
                          static_cast<size_t>(compute.overlaps[pair].first) == next_[cell];
    if (!overlaps) {
      if (!can_issue(compute.tasks[next_[cell]])) return false;
      issue_with_needs(compute.tasks[next_[cell]++]);
      return true;
    }
    const auto [first, second, end] = compute.overlaps[pair];
    const std::span<const TaskId> a(&compute.tasks[static_cast<size_t>(first)],
                                    static_cast<size_t>(second - first));
    const std::span<const TaskId> b(&compute.tasks[static_cast<size_t>(second)],
                                    static_cast<size_t>(end - second));
    if (!can_issue_all(a) || !can_issue_all(b)) return false;
    issue_overlap(a, b, cell);
    next_[cell] = static_cast<size_t>(end);
    ++pair;
    return true;
  }
  // Returns whether the tasks can be issued one after another.
  bool can_issue_all(std::span<const TaskId> tasks) {
    size_t good = 0;
    for (; good < tasks.size() && can_issue(tasks[good]); ++good)
      issued_[tasks[good].index()] = true;
    for (size_t i = 0; i < good; ++i) issued_[tasks[i].index()] = false;
    return good == tasks.size();
  }
  void issue_overlap(std::span<const TaskId> a, std::span<const TaskId> b, size_t cell) {
    const auto& order = schedule_.order[cell];
    for (const auto tasks : {a, b})
      for (TaskId task : tasks)
        for (TaskId d : deps_[task.index()])
          if (!issued_[d.index()] && !briefs_[d.index()].ordered) issue_with_needs(d);
    Overlap at;
    at.first = static_cast<int32_t>(order.size());
    for (TaskId task : a) issue_with_needs(task);
    at.second = static_cast<int32_t>(order.size());
    for (TaskId task : b) issue_with_needs(task);
    at.end = static_cast<int32_t>(order.size());
    schedule_.overlaps[cell].push_back(at);
  }
  // Returns whether the task, and all that can be issued on demand before it, can be issued now.
  bool can_issue(TaskId id) const {
    for (TaskId d : deps_[id.index()]) {
      if (issued_[d.index()]) continue;
      const Brief& brief = briefs_[d.index()];
      if (brief.cell != briefs_[id.index()].cell || brief.ordered || !can_issue(d)) return false;
    }
    return true;
  }
  void issue_with_needs(TaskId id) {
    for (TaskId d : deps_[id.index()])
      if (!issued_[d.index()]) issue_with_needs(d);
    if (!issued_[id.index()]) issue(id);
  }
  // Issues a task and what only waited for it. Reductions come after everything else that it
  // releases, in the order in which what they waited for last was issued: that of a sum of several
  // parts is last.
  void issue(TaskId id) {
    issue_alone(id);
    while (!reductions_.empty()) {
      const TaskId reduction = reductions_.top().second;
      reductions_.pop();
      issue_alone(reduction);
    }
  }
  void issue_alone(TaskId id) {
    issued_[id.index()] = true;
    const int32_t number = count_++;
    if (posts_) note_send(id);
    schedule_.order[static_cast<size_t>(briefs_[id.index()].cell)].push_back(id);
    for (int32_t w = first_waiter_[id.index()]; w >= 0;) {
      const auto [task, next] = waiters_[static_cast<size_t>(w)];
      w = next;
      if (--missing_[task.index()] > 0 || issued_[task.index()]) continue;
      if (briefs_[task.index()].reduces)
        reductions_.push({number, task});
      else
        issue_alone(task);
    }
  }

  void note_send(TaskId id) {
    if (dag_.tasks[id.index()].kind != InstructionKind::kSend) return;
    const auto receiver = static_cast<size_t>(dag_.tasks[id.index() + 1].cell);
    sent_at_[id.index() + 1] = static_cast<int32_t>(schedule_.order[receiver].size());
  }

  // Finds what keeps a task from being issued: tasks that no demand can issue, through those that
  // it can.
  void find_blockers(TaskId id, std::vector<TaskId>& out) const {
    const Task& task = dag_.tasks[id.index()];
    for (TaskId d : deps_[id.index()]) {
      if (issued_[d.index()]) continue;
      if (is_ordered(dag_.tasks[d.index()]))
        out.push_back(d);
      else if (dag_.tasks[d.index()].cell != task.cell || !can_issue(d))
        find_blockers(d, out);
    }
  }
  std::string where(TaskId id) const { return print_place(dag_, id); }
  // Names a task that a cell waits with, and what that task waits for.
  struct Wait {
    TaskId head, block;
  };
  std::vector<std::vector<Wait>> find_waits(const std::vector<ComputeOrder>& compute) const {
    std::vector<std::vector<Wait>> waits(compute.size());
    for (size_t cell = 0; cell < compute.size(); ++cell) {
      const auto& tasks = compute[cell].tasks;
      const auto& overlaps = compute[cell].overlaps;
      if (next_[cell] == tasks.size()) continue;
      std::vector<TaskId> heads{tasks[next_[cell]]};
      const bool pair = compute[cell].body.empty() && next_pair_[cell] < overlaps.size() &&
                        static_cast<size_t>(overlaps[next_pair_[cell]].first) == next_[cell];
      if (pair) heads.push_back(tasks[static_cast<size_t>(overlaps[next_pair_[cell]].second)]);
      for (TaskId head : heads) {
        std::vector<TaskId> blocks;
        find_blockers(head, blocks);
        for (TaskId block : blocks) waits[cell].push_back({head, block});
      }
    }
    return waits;
  }
  static std::vector<Wait> way_back(const std::vector<std::pair<size_t, Wait>>& reached,
                                    size_t start) {
    std::vector<Wait> circle;
    for (size_t at = start; circle.empty() || at != start; at = reached[at].first)
      circle.insert(circle.begin(), reached[at].second);
    return circle;
  }

  // Returns the shortest way from `start` back to it along the waits, by breadth; empty: there is
  // none.
  std::vector<Wait> shortest_circle(const std::vector<std::vector<Wait>>& waits,
                                    size_t start) const {
    std::vector<size_t> open{start};
    std::vector<std::pair<size_t, Wait>> reached(waits.size(), {waits.size(), {}});
    for (size_t i = 0; i < open.size(); ++i) {
      for (const Wait& wait : waits[open[i]]) {
        const auto to = static_cast<size_t>(dag_.tasks[wait.block.index()].cell);
        if (reached[to].first < waits.size()) continue;
        reached[to] = {open[i], wait};
        if (to != start) {
          open.push_back(to);
          continue;
        }
        return way_back(reached, start);
      }
    }
    return {};
  }
  // Returns the update of the cycle that comes before a gradient which it needs, or which the norm
  // of all gradients needs.
  std::optional<Error> early_update(const std::vector<ComputeOrder>& compute,
                                    const std::vector<Wait>& circle) const {
    for (const Wait& wait : circle) {
      const Task &update = dag_.tasks[wait.head.index()], &block = dag_.tasks[wait.block.index()];
      const bool is_sum = info(block.kind).adds && block.region.valid();  // an S
      if (!update.region.valid() || (block.accumulates.empty() && !is_sum)) continue;
      const SourceSpan* at = place_in(compute[static_cast<size_t>(update.cell)], wait.head);
      const SourceSpan* behind = place_in(compute[static_cast<size_t>(block.cell)], wait.block);
      const std::string there =
          where(wait.block) + (behind ? fmt::format(" (line {})", behind->line) : "");
      std::string what = there;
      if (!is_sum) {
        const Accumulate& first = block.accumulates[0];
        const NodeId made_by = dag_.graph.value(first.contribution).producer;
        what = fmt::format("'{}', which {} adds to in {}",
                           dag_.sums[static_cast<size_t>(first.sum)].name,
                           made_by.valid() ? dag_.graph.node(made_by).op : "an op", there);
      }
      Error error = fail(at ? *at : SourceSpan(), "the order cannot run: {} comes before {}",
                         where(wait.head), what);
      const ChunkId of = is_sum ? block.region : block.chunk;
      const bool own = dag_.chunks[update.region.index()].tags == dag_.chunks[of.index()].tags;
      return std::move(error).with_note(
          own ? "help: what a stage adds up or updates comes after its last backward"
              : "with clip_norm, loss_scale or skip_nonfinite an update needs the norm of all "
                "gradients; without, only those of its stage");
    }
    return std::nullopt;
  }
  // Returns a pair of tasks of the cycle, though they have no order between them.
  std::optional<Error> pair_in(const std::vector<ComputeOrder>& compute,
                               const std::vector<Wait>& circle) const {
    for (size_t i = 0; i < circle.size(); ++i) {
      const TaskId reached = circle[i].block, next = circle[(i + 1) % circle.size()].head;
      const auto cell = static_cast<size_t>(dag_.tasks[next.index()].cell);
      const ComputeOrder& order = compute[cell];
      const bool pairs = order.body.empty() && next_pair_[cell] < order.overlaps.size();
      if (reached == next || !pairs) continue;
      const Overlap& pair = order.overlaps[next_pair_[cell]];
      const auto first = order.tasks.begin() + pair.first, end = order.tasks.begin() + pair.end;
      if (std::find(first, end, reached) != end && std::find(first, end, next) != end)
        return no_pair(order, next_pair_[cell]);
    }
    return std::nullopt;
  }
  // Returns a forward that waits for the forward of a stage with a higher number.
  std::string against_dataflow(const Wait& wait) const {
    const Task &head = dag_.tasks[wait.head.index()], &block = dag_.tasks[wait.block.index()];
    if (head.pass != TaskPass::kF || block.pass != TaskPass::kF || head.micro != block.micro)
      return "";
    const auto& here = dag_.chunks[head.chunk.index()].tags;
    const auto& there = dag_.chunks[block.chunk.index()].tags;
    for (size_t t = 0; t < here.size(); ++t)
      if (there[t] > here[t] && here[t] >= 0)
        return fmt::format("{0} {1} feeds {0} {2}: the numbers run against the dataflow",
                           dag_.region_tags[t], there[t], here[t]);
    return "";
  }
  // Says of a task that waits for another chunk or part of its stage and microbatch that these have
  // an order.
  std::string against_turns(const Wait& wait) const {
    const Task &head = dag_.tasks[wait.head.index()], &block = dag_.tasks[wait.block.index()];
    const bool alike = head.pass == block.pass && head.micro == block.micro &&
                       head.cell == block.cell && head.chunk.valid() && block.chunk.valid();
    if (!alike) return "";
    const auto& here = dag_.chunks[head.chunk.index()].tags;
    const auto& there = dag_.chunks[block.chunk.index()].tags;
    const auto differ = std::ranges::mismatch(here, there);
    if (differ.in1 == here.end() || *differ.in1 == kNoTag || *differ.in2 == kNoTag) return "";
    const auto t = static_cast<size_t>(differ.in1 - here.begin());
    if (!std::equal(differ.in1 + 1, here.end(), differ.in2 + 1)) return "";
    return fmt::format("{0} of {1} {2} comes after that of {1} {3}, whose results it needs",
                       name_of(head.pass), dag_.region_tags[t], here[t], there[t]);
  }
  Error deadlock(const std::vector<ComputeOrder>& compute) const {
    const auto waits = find_waits(compute);
    std::vector<Wait> best;
    for (size_t cell = 0; cell < waits.size(); ++cell) {
      const std::vector<Wait> circle = shortest_circle(waits, cell);
      if (!circle.empty() && (best.empty() || circle.size() < best.size())) best = circle;
    }
    Error error =
        early_update(compute, best)
            .value_or(pair_in(compute, best)
                          .value_or(fail("the order cannot run: its tasks wait for each other")));
    for (const Wait& wait : best) {
      const auto cell = static_cast<size_t>(dag_.tasks[wait.head.index()].cell);
      const SourceSpan* at = place_in(compute[cell], wait.head);
      if (at && error.at.line == 0) error.at = *at;
      error.notes.push_back(fmt::format("{}{} comes next and waits for {}", where(wait.head),
                                        at ? fmt::format(" (line {})", at->line) : "",
                                        where(wait.block)));
    }
    for (const Wait& wait : best) {
      std::string note = against_turns(wait);
      if (note.empty()) note = against_dataflow(wait);
      if (note.empty()) continue;
      error.notes.push_back(note);
      break;
    }
    return error;
  }

  const Dag& dag_;
  const TaskLists& deps_;
  std::vector<Brief> briefs_;  // by task
  std::vector<bool> issued_;
  std::vector<int32_t> missing_;       // eager tasks: dependencies not issued yet
  std::vector<Waiter> waiters_;        // in a list for each task
  std::vector<int32_t> first_waiter_;  // by task, in waiters_
  // Between peers, with nothing missing: the number of the task that came last, and themselves.
  using Released = std::pair<int32_t, TaskId>;
  std::priority_queue<Released, std::vector<Released>, std::greater<>> reductions_;
  int32_t count_ = 0;              // of tasks issued
  std::vector<size_t> next_;       // by cell: position in its compute order
  std::vector<size_t> next_pair_;  // by cell: its next overlap
  bool posts_ = false;             // some receive comes ahead
  std::vector<int32_t> sent_at_;   // see post_ahead
  Schedule schedule_;
};

}  // namespace

Result<Schedule> make_schedule(const Dag& dag, const TaskLists& deps,
                               const std::vector<ComputeOrder>& compute) {
  PIPER_ASSIGN(Schedule schedule, Issuer(dag, deps).run(compute));
  schedule.compute = compute;
  PIPER_TRY(overlap_steps(dag, deps, schedule));
  return schedule;
}

}  // namespace piper
