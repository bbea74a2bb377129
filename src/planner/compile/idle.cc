// How long devices idle if each message arrives just before its first reader, for --explain.
#include "idle.h"

#include <utility>

namespace piper {
namespace {

// Schedules each message just before the first task that reads it.
Result<Schedule> plain_schedule(Dag& dag, const TaskLists& deps,
                                const std::vector<ComputeOrder>& compute) {
  std::vector<int32_t> distances;
  for (Task& task : dag.tasks) distances.push_back(std::exchange(task.distance, 0));
  Result<Schedule> plain = make_schedule(dag, deps, compute);
  for (size_t t = 0; t < distances.size(); ++t) dag.tasks[t].distance = distances[t];
  return plain;
}

}  // namespace

void explain_idle(Dag& dag, const TaskLists& deps, const Schedule& schedule,
                  const Strategy& strategy, Explanations& explain) {
  const bool prefetches = !strategy.prefetches.empty();
  if ((!prefetches && strategy.streams.empty()) || !schedule.body.empty()) return;
  const Result<Schedule> plain = plain_schedule(dag, deps, schedule.compute);
  if (!plain) return;
  std::vector<std::string> lines;
  const auto compare = [&](Queue queue, const char* whose) {
    const double before = idle_share(dag, deps, *plain, queue);
    const double after = idle_share(dag, deps, schedule, queue);
    if (after <= before + 1e-9) return false;
    lines.push_back(
        fmt::format("later on devices {}: idle {:.0f} % of a step without this, {:.0f} % with it",
                    whose, before * 100, after * 100));
    return true;
  };
  if (!compare(Queue::kIssue, "that work in issue order, as the CPU does")) return;
  const bool also_there = compare(Queue::kStream, "with streams");
  lines.push_back(
      "note: receives that come ahead of computations wait in their place; a forward takes a unit "
      "of time, a backward two");
  if (also_there)
    lines.push_back(
        "help: 'stream: {where: {kind: recv}, name: NAME}' lets them wait beside the computations");
  explain.push_back({prefetches ? strategy.prefetches.front().at : strategy.streams.front().at,
                     prefetches ? "prefetch" : "stream", std::move(lines)});
}

}  // namespace piper
