// The directive `prefetch`: how far ahead of their use receives, inputs and gathers are issued.
#include <algorithm>
#include <map>
#include <tuple>

#include "match.h"
#include "transforms.h"

namespace piper {
namespace {

// Checks which kinds may have a distance, and names the directive that decides for the others.
Status check_kinds(const Prefetch& prefetch) {
  for (const Condition& condition : prefetch.where) {
    if (condition.tag != "kind") continue;
    for (const std::string& kind : condition.words)
      if (kind != "recv" && kind != "input" && kind != "all_gather")
        return fail(condition.at, "prefetch: '{}' has no distance", kind)
            .with_note(
                "only 'recv', 'input' and 'all_gather' wait to be needed; all others run "
                "when what they take is there");
  }
  return ok_status();
}

// Returns what a distance counts.
const char* unit_of(const Dag& dag, const Task& task) {
  if (gathers_parameters(dag, task)) return "message";
  return task.within.valid() ? "program" : "compute task";
}
std::string print_distance(int32_t distance, const std::string& unit) {
  if (distance == kEarliest) return "as early as possible";
  if (distance == 0)
    return fmt::format("just before the first {} that reads it",
                       unit == "program" ? "program" : "task");
  return fmt::format("{} {}{} ahead of the first that reads it", distance, unit,
                     distance == 1 ? "" : "s");
}

// Returns the distance of one task, over what its conditions bind.
Result<int32_t> distance_of(const Prefetch& prefetch, const TaskMatcher& matcher, TaskId id,
                            const Variables& variables) {
  if (!prefetch.distance) return kEarliest;
  constexpr int64_t kMost = 1 << 20;
  PIPER_ASSIGN(const auto bound, matcher.bound(id, prefetch.where, variables));
  PIPER_ASSIGN(const int64_t distance, prefetch.distance->evaluate(*bound));
  if (distance < 0 || distance > kMost)
    return fail(prefetch.distance->at(), "prefetch: the distance becomes {}; it is from 0 to {}",
                distance, kMost);
  return static_cast<int32_t>(distance);
}

// Receives, inputs, and gathers of what is there already.
bool waits_to_be_needed(const Dag& dag, const Task& task) {
  return task.kind == InstructionKind::kRecv || task.kind == InstructionKind::kInput ||
         (task.kind == InstructionKind::kAllGather && task.micro >= 0) ||
         gathers_parameters(dag, task);
}

// Returns how many tasks an entry would choose, too, if it did not ask for a pass, and have none.
Result<int64_t> without_pass(const Dag& dag, const TaskMatcher& matcher, const Prefetch& prefetch,
                             const std::vector<TaskId>& found, const Variables& variables) {
  Where others = prefetch.where;
  std::erase_if(others, [](const Condition& condition) { return condition.tag == "pass"; });
  if (others.size() == prefetch.where.size()) return 0;
  PIPER_ASSIGN(const std::vector<TaskId> all, matcher.find(others, variables));
  std::vector<bool> chosen(dag.tasks.size());
  for (const TaskId id : found) chosen[id.index()] = true;
  return std::ranges::count_if(all, [&](TaskId id) {
    const Task& task = dag.tasks[id.index()];
    return waits_to_be_needed(dag, task) && !matcher.is_of_one_pass(id) && !chosen[id.index()];
  });
}

// A message on a stream on which its device computes nothing may wait there for its receive.
// Receives that are posted when their sends are follow one order over all devices, in which nothing
// waits in a cycle whatever the streams.
void post_with_sends(Dag& dag, const std::vector<bool>& claimed, Explanation& report) {
  std::vector<bool> computes(dag.cells.size() * dag.streams.size());
  const auto stream_of = [&](const Task& task) {
    return static_cast<size_t>(task.cell) * dag.streams.size() + static_cast<size_t>(task.stream);
  };
  for (const Task& task : dag.tasks)
    if (task.chunk.valid()) computes[stream_of(task)] = true;
  int64_t count = 0;
  for (size_t t = 1; t < dag.tasks.size(); ++t) {
    if (dag.tasks[t].kind != InstructionKind::kRecv || claimed[t]) continue;
    if (computes[stream_of(dag.tasks[t - 1])]) continue;
    dag.tasks[t].distance = kEarliest;
    ++count;
  }
  if (count > 0)
    report.lines.push_back(
        fmt::format("{} receives are posted when their sends are issued, for these have streams of "
                    "their own",
                    count));
}

// Sends that have streams of their own are received as they are issued unless an entry says
// otherwise. Errors: nothing matches, a kind of task without a distance, a task that two entries
// claim.
Result<Dag> apply_prefetch(Dag dag, const TransformContext& context) {
  const auto& [strategy, variables, costs, out] = context;
  if (strategy.prefetches.empty() && strategy.streams.empty()) return dag;
  const TaskMatcher matcher(dag, strategy);
  std::vector<const Prefetch*> claimed_by(dag.tasks.size());
  for (const Prefetch& prefetch : strategy.prefetches) {
    PIPER_TRY(check_kinds(prefetch));
    PIPER_ASSIGN(const std::vector<TaskId> found, matcher.find(prefetch.where, variables));
    std::map<std::tuple<std::string, std::string, int32_t>, int64_t>
        counts;  // kind, unit, distance
    for (TaskId id : found) {
      Task& task = dag.tasks[id.index()];
      if (!waits_to_be_needed(dag, task)) continue;
      if (const Prefetch* other = claimed_by[id.index()])
        return fail(prefetch.at, "prefetch: '{}' has a distance already", print_label(dag, task))
            .with_note("from " + place_of(other->at));
      claimed_by[id.index()] = &prefetch;
      PIPER_ASSIGN(task.distance, distance_of(prefetch, matcher, id, variables));
      ++counts[{to_string(task.kind), unit_of(dag, task), task.distance}];
    }
    const std::string excuse = matcher.excuse(prefetch.where);
    if (counts.empty() && excuse.empty())
      return matcher.nothing(prefetch.where, prefetch.at, "prefetch");
    Explanation report{prefetch.at, "prefetch", {}};
    if (counts.empty()) report.lines.push_back(excuse);
    for (const auto& [what, count] : counts) {
      const auto& [kind, unit, distance] = what;
      report.lines.push_back(fmt::format("{} {}{}: {}", count, kind, count == 1 ? "" : "s",
                                         print_distance(distance, unit)));
    }
    PIPER_ASSIGN(const int64_t left, without_pass(dag, matcher, prefetch, found, variables));
    if (left > 0)
      report.lines.push_back(fmt::format(
          "note: 'pass' leaves {} others out, which several passes read: they have none", left));
    out.push_back(std::move(report));
  }
  if (strategy.streams.empty()) return dag;
  Explanation report{strategy.streams.front().at, "stream", {}};
  post_with_sends(dag, {claimed_by.begin(), claimed_by.end()}, report);
  if (!report.lines.empty()) out.push_back(std::move(report));
  return dag;
}

}  // namespace

Transform prefetch_transform() { return {TransformTime::kDistances, apply_prefetch}; }

}  // namespace piper
