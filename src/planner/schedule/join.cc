// Several messages as one: which may wait for each other, and the tasks that then stand for them.
#include <algorithm>
#include <functional>
#include <map>

#include "dependencies.h"
#include "piper/planner/schedule.h"

namespace piper {
namespace {

size_t at(int64_t id) { return static_cast<size_t>(id); }

// Returns by task how many steps it runs ahead of the one under way. What is sent then is received
// then.
std::vector<int32_t> run_ahead(const Dag& dag, const std::vector<ComputeOrder>& compute,
                               const TaskLists& deps) {
  std::vector<int32_t> ahead(dag.tasks.size());
  int32_t most = 1;
  for (const ComputeOrder& order : compute)
    for (size_t i = 0; i < order.ahead.size(); ++i)
      most = std::max(most, ahead[order.tasks[i].index()] = order.ahead[i]);
  for (size_t t = 0; t < ahead.size(); ++t) {
    const Task& task = dag.tasks[t];
    if (task.kind == InstructionKind::kRecv)
      ahead[t] = ahead[t - 1];
    else if (!is_ordered(task) && runs_by_itself(dag, task)) {
      ahead[t] = most;
      for (TaskId d : deps[t]) ahead[t] = std::min(ahead[t], ahead[d.index()]);
    }
  }
  return ahead;
}

// Runs all tasks in an order that the schedule allows, that of one step or of a steady one, where
// those of a group run when all of them can. Where nothing can run, a group on a cycle of waits
// lets those go that can.
class Waiting {
 public:
  // `ahead`: of a steady step, see run_ahead(); null: of one step.
  Waiting(const Dag& dag, const std::vector<ComputeOrder>& compute, const TaskLists& deps,
          const std::vector<int32_t>* ahead)
      : dag_(dag),
        deps_(deps),
        before_(dag.tasks.size()),
        after_(dag.tasks.size()),
        missing_(dag.tasks.size()),
        done_(dag.tasks.size()),
        group_of_(dag.tasks.size(), -1) {
    for (size_t t = 0; t < dag.tasks.size(); ++t)
      for (TaskId d : deps[t])  // what steady steps before have done is there
        if (!ahead || (*ahead)[t] >= (*ahead)[d.index()]) wait_for(TaskId(t), d);
    for (const ComputeOrder& order : compute) ahead ? follow_steady(order) : follow(order);
    close_step(compute, ahead != nullptr);
    meet();
  }

  void add(const std::vector<TaskId>& tasks) { add_group(tasks, true); }

  // False: the tasks wait for each other whatever is joined.
  bool run() {
    for (size_t t = 0; t < missing_.size(); ++t)
      missing_[t] = static_cast<int32_t>(before_[t].size());
    for (size_t t = 0; t < missing_.size(); ++t)
      if (missing_[t] == 0) ready_.push_back(TaskId(t));
    while (true) {
      while (!ready_.empty()) {
        const TaskId id = ready_.back();
        ready_.pop_back();
        arrive(id);
      }
      if (left_ == 0) return true;
      if (!open_circle()) return false;
    }
  }
  // Returns what runs as one, each in order.
  const std::vector<std::vector<TaskId>>& joined() const { return joined_; }

 private:
  struct Group {
    std::vector<TaskId> tasks;
    bool may_part = false;
    size_t arrived = 0;
  };

  void wait_for(TaskId task, TaskId other) {
    before_[task.index()].push_back(other);
    after_[other.index()].push_back(task);
  }
  // Both sides of an overlap begin when all that they need is there.
  void follow(const ComputeOrder& order) {
    for (size_t i = 1; i < order.tasks.size(); ++i) wait_for(order.tasks[i], order.tasks[i - 1]);
    if (!order.body.empty()) return;  // its pairs are of two steps
    for (const Overlap& overlap : order.overlaps)
      for (int32_t i = overlap.first + 1; i < overlap.end; ++i)
        for (TaskId d : deps_[order.tasks[at(i)].index()])
          if (!is_ordered(dag_.tasks[d.index()])) wait_for(order.tasks[at(overlap.first)], d);
  }
  void follow_steady(const ComputeOrder& order) {
    for (size_t i = 1; i < order.tasks.size(); ++i)
      wait_for(in_body(order, i), in_body(order, i - 1));
  }
  static TaskId in_body(const ComputeOrder& order, size_t i) {
    return order.tasks[order.body.empty() ? i : at(order.body[i])];
  }
  // Closes the step with what no computation of a microbatch needs, and what does not run by
  // itself.
  void close_step(const std::vector<ComputeOrder>& compute, bool steady) {
    std::vector<bool> needed(dag_.tasks.size());
    for (size_t t = dag_.tasks.size(); t-- > 0;)
      if (needed[t] || is_ordered(dag_.tasks[t]))
        for (TaskId d : deps_[t]) needed[d.index()] = true;
    for (size_t t = 0; t < dag_.tasks.size(); ++t) {
      const Task& task = dag_.tasks[t];
      const ComputeOrder& order = compute[at(task.cell)];
      const size_t last = order.tasks.size() - 1;
      if (needed[t] || order.tasks.empty() || is_ordered(task) || runs_by_itself(dag_, task))
        continue;
      wait_for(TaskId(t), steady ? in_body(order, last) : order.tasks[last]);
    }
  }
  // The k-th collective over all cells is one.
  void meet() {
    std::vector<std::vector<TaskId>> met;
    std::vector<size_t> count(dag_.cells.size());
    for (size_t t = 0; t < dag_.tasks.size(); ++t) {
      const Task& task = dag_.tasks[t];
      if (task.kind != InstructionKind::kAllReduce || is_peer_reduction(dag_, task)) continue;
      const size_t k = count[at(task.cell)]++;
      if (k == met.size()) met.emplace_back();
      met[k].push_back(TaskId(t));
    }
    for (const auto& tasks : met) add_group(tasks, false);
  }
  void add_group(const std::vector<TaskId>& tasks, bool may_part) {
    for (TaskId id : tasks) group_of_[id.index()] = static_cast<int32_t>(groups_.size());
    groups_.push_back({tasks, may_part});
  }

  void arrive(TaskId id) {
    const int32_t g = group_of_[id.index()];
    if (g < 0) return finish(id);
    Group& group = groups_[at(g)];
    if (++group.arrived == group.tasks.size()) finish_group(group);
  }
  void finish_group(const Group& group) {
    if (group.may_part) joined_.push_back(group.tasks);
    for (TaskId id : group.tasks) finish(id);
  }
  void finish(TaskId id) {
    done_[id.index()] = true;
    --left_;
    for (TaskId next : after_[id.index()])
      if (--missing_[next.index()] == 0) ready_.push_back(next);
  }

  bool waits(TaskId id) const { return missing_[id.index()] > 0; }
  // Opens a cycle: walks from a group that some of its tasks have reached, over what the others
  // wait for, to the next such group, until one comes again. The first group of the cycle, by its
  // tasks, is split.
  bool open_circle() {
    std::vector<int32_t> path;
    std::vector<int32_t> place(groups_.size(), -1);
    int32_t g = first_reached();
    while (g >= 0 && place[at(g)] < 0) {
      place[at(g)] = static_cast<int32_t>(path.size());
      path.push_back(g);
      g = next_reached(g);
    }
    if (g < 0) return false;
    int32_t best = -1;
    for (size_t i = at(place[at(g)]); i < path.size(); ++i) {
      const Group& group = groups_[at(path[i])];
      if (group.may_part && (best < 0 || group.tasks[0] < groups_[at(best)].tasks[0]))
        best = path[i];
    }
    if (best < 0) return false;
    part(best);
    return true;
  }
  int32_t first_reached() {
    for (; reached_ < groups_.size(); ++reached_)
      if (const Group& group = groups_[reached_];
          group.arrived > 0 && group.arrived < group.tasks.size())
        return static_cast<int32_t>(reached_);
    reached_ = 0;  // those before may have been reached since
    for (size_t g = 0; g < groups_.size(); ++g)
      if (groups_[g].arrived > 0 && groups_[g].arrived < groups_[g].tasks.size())
        return static_cast<int32_t>(g);
    return -1;
  }
  int32_t next_reached(int32_t g) const {
    const auto& tasks = groups_[at(g)].tasks;
    TaskId task = *std::find_if(tasks.begin(), tasks.end(), [&](TaskId id) { return waits(id); });
    for (size_t steps = 0; steps <= before_.size(); ++steps) {
      const auto& before = before_[task.index()];
      task = *std::find_if(before.begin(), before.end(),
                           [&](TaskId id) { return !done_[id.index()]; });
      if (!waits(task)) return group_of_[task.index()];
    }
    return -1;
  }
  void part(int32_t g) {
    std::vector<TaskId> rest;
    Group& group = groups_[at(g)];
    for (TaskId id : group.tasks)
      if (waits(id)) rest.push_back(id);
    std::erase_if(group.tasks, [&](TaskId id) { return waits(id); });
    finish_group(Group(group));
    add_group(rest, true);
  }

  const Dag& dag_;
  const TaskLists& deps_;
  std::vector<std::vector<TaskId>> before_, after_;
  std::vector<int32_t> missing_;
  std::vector<bool> done_;
  std::vector<int32_t> group_of_;
  std::vector<Group> groups_;
  std::vector<std::vector<TaskId>> joined_;
  std::vector<TaskId> ready_;
  size_t left_ = dag_.tasks.size();
  size_t reached_ = 0;  // where the search for a reached group goes on
};

size_t tensors_of(const Task& task) {
  return std::max({task.reads.size(), task.writes.size(), task.nodes.size()});
}

// "send a mb=0" and two others: "send a and 2 more mb=0"; and those of mb=1: "… mb=0..2".
std::string joined_label(std::string label, const Task& first, const Task& joined) {
  if (joined.micros > 1) return label;
  const size_t own = tensors_of(first);
  if (const size_t more = label.rfind(" and "); own > 1 && more != label.npos) label.resize(more);
  return fmt::format("{} and {} more", label, tensors_of(joined) - 1);
}

// Writes the tasks again, each after what it needs, one for each list of `joined`.
class Rewriter {
 public:
  Rewriter(Dag& dag, const TaskLists& deps, const std::vector<std::vector<TaskId>>& joined)
      : dag_(dag),
        deps_(deps),
        joined_(joined),
        list_of_(dag.tasks.size(), -1),
        now_(dag.tasks.size()) {
    for (size_t j = 0; j < joined.size(); ++j)
      for (TaskId id : joined[j]) list_of_[id.index()] = static_cast<int32_t>(j);
  }

  // Returns by old task the new one.
  std::vector<TaskId> run() {
    for (size_t t = 0; t < dag_.tasks.size(); ++t) add_with_needs(TaskId(t));
    dag_.tasks = std::move(tasks_);
    return std::move(now_);
  }

 private:
  // Adds tasks with a stack of its own: chains of needs are as long as a pipeline.
  void add_with_needs(TaskId wanted) {
    std::vector<TaskId> open{wanted};
    while (!open.empty()) {
      const TaskId id = open.back();
      if (now_[id.index()].valid()) {
        open.pop_back();
        continue;
      }
      const size_t size = open.size();
      if (dag_.tasks[id.index()].kind == InstructionKind::kRecv) {
        open.push_back(TaskId(id.index() - 1));  // comes with its send
        continue;
      }
      const int32_t list = list_of_[id.index()];
      const std::vector<TaskId> alone{id};
      for (TaskId member : list < 0 ? alone : joined_[at(list)])
        for (TaskId d : deps_[member.index()])
          if (!now_[d.index()].valid()) open.push_back(d);
      if (open.size() == size) add(list < 0 ? alone : joined_[at(list)]);
    }
  }
  void add(const std::vector<TaskId>& members) {
    add_joined(members, 0);
    if (dag_.tasks[members[0].index()].kind == InstructionKind::kSend) add_joined(members, 1);
  }
  // Adds a joined task. `behind`: 1 for the receives of sends.
  void add_joined(const std::vector<TaskId>& members, size_t behind) {
    const TaskId now(tasks_.size());
    tasks_.push_back(std::move(dag_.tasks[members[0].index() + behind]));
    Task& task = tasks_.back();
    const Task first = task;
    now_[members[0].index() + behind] = now;
    if (task.within.valid()) task.within = now_[task.within.index()];
    for (size_t m = 1; m < members.size(); ++m) {
      const Task& other = dag_.tasks[members[m].index() + behind];
      task.reads.append(other.reads);
      task.writes.append(other.writes);
      task.nodes.append(other.nodes);
      task.micros += other.micro == first.micro ? 0 : other.micros;
      now_[members[m].index() + behind] = now;
    }
    if (members.size() == 1) return;
    std::string label = joined_label(dag_.labels[at(first.label)], first, task);
    task.label = static_cast<int32_t>(dag_.labels.size());
    dag_.labels.push_back(std::move(label));
  }

  Dag& dag_;
  const TaskLists& deps_;
  const std::vector<std::vector<TaskId>>& joined_;
  std::vector<int32_t> list_of_;
  std::vector<TaskId> now_;
  std::vector<Task> tasks_;
};

}  // namespace

std::vector<JoinedMessages> join_messages(Dag& dag, std::vector<ComputeOrder>& compute,
                                          const std::vector<std::vector<TaskId>>& groups) {
  const TaskLists deps = find_dependencies(dag);
  const std::vector<int32_t> ahead = run_ahead(dag, compute, deps);
  std::vector<std::vector<TaskId>> joined;
  std::vector<int32_t> group_of(dag.tasks.size(), -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (TaskId id : groups[g]) group_of[id.index()] = static_cast<int32_t>(g);
    std::map<int32_t, std::vector<TaskId>, std::greater<>> of_step;  // those of two do not meet
    for (const TaskId id : groups[g]) of_step[ahead[id.index()]].push_back(id);
    for (auto& [steps, here] : of_step) joined.push_back(std::move(here));
  }
  std::vector<JoinedMessages> result(groups.size());
  const bool overlap = std::ranges::any_of(ahead, [](int32_t steps) { return steps > 0; });
  for (const bool steady : {false, true}) {
    if (steady && !overlap) break;
    Waiting waiting(dag, compute, deps, steady ? &ahead : nullptr);
    for (const std::vector<TaskId>& tasks : joined) waiting.add(tasks);
    if (!waiting.run()) return result;  // the schedule says which tasks wait for each other
    joined = waiting.joined();
  }
  for (const std::vector<TaskId>& tasks : joined) {
    JoinedMessages& of = result[at(group_of[tasks[0].index()])];
    if (of.messages++ == 1) of.apart = print_place(dag, tasks[0]);
  }
  const std::vector<TaskId> now = Rewriter(dag, deps, joined).run();
  for (ComputeOrder& order : compute)
    for (TaskId& id : order.tasks) id = now[id.index()];
  return result;
}

}  // namespace piper
