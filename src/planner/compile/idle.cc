// What receives that come ahead of their readers cost, for --explain: the plans beside those in
// which each message is received just before its first reader, both simulated.
#include "idle.h"

#include <set>
#include <utility>

#include "plan_set.h"

namespace piper {
namespace {

// Schedules each message just before the first task that reads it.
Result<Schedule> plain_schedule(Dag& dag, const TaskLists& deps, const Schedule& schedule) {
  std::vector<int32_t> distances;
  for (Task& task : dag.tasks) distances.push_back(std::exchange(task.distance, 0));
  Result<Schedule> plain = make_schedule(dag, deps, schedule.compute);
  for (size_t t = 0; t < distances.size(); ++t) dag.tasks[t].distance = distances[t];
  return plain;
}

// Returns the computations and messages of a cell in issue order, which are all that cells wait
// for.
std::vector<TaskId> waits_of(const Dag& dag, const std::vector<TaskId>& order) {
  std::vector<TaskId> waits;
  for (const TaskId id : order) {
    const Task& task = dag.tasks[id.index()];
    const bool computes = task.kind == InstructionKind::kCompute && is_ordered(task.pass);
    if (computes || task.kind == InstructionKind::kSend || task.kind == InstructionKind::kRecv)
      waits.push_back(id);
  }
  return waits;
}

// Returns whether all receives are on streams that compute nothing.
bool receives_beside(const PlanSet& set) {
  std::set<std::pair<const RoleProgram*, int32_t>> computing, receiving;
  for (const RoleProgram& role : set.roles)
    for (const Instruction& one : role.body) {
      if (one.kind == InstructionKind::kCompute) computing.emplace(&role, one.stream);
      if (one.kind == InstructionKind::kRecv) receiving.emplace(&role, one.stream);
    }
  return std::ranges::none_of(receiving,
                              [&](const auto& stream) { return computing.contains(stream); });
}

// Returns the share of a step in which devices idle; 0 where the simulation does not come to an
// end.
double idle_share(const PlanSet& set, RankLanes lanes) {
  const std::unique_ptr<Machine> machine = stated_machine({}, lanes);
  const auto picture = make_picture(set, *machine, PictureCosts::kUnits);
  return picture ? picture->idle : 0;
}

}  // namespace

void explain_idle(Dag& dag, const TaskLists& deps, const Schedule& schedule, const PlanSet& set,
                  const Strategy& strategy, Explanations& explain) {
  const bool prefetches = !strategy.prefetches.empty();
  if ((!prefetches && strategy.streams.empty()) || !schedule.body.empty()) return;
  const Result<Schedule> plain = plain_schedule(dag, deps, schedule);
  const auto is_alike = [&](const auto& a, const auto& b) {
    return waits_of(dag, a) == waits_of(dag, b);
  };
  if (!plain || std::ranges::equal(plain->order, schedule.order, is_alike)) return;
  Result<Lowered> lowered = lower(dag, *plain);
  if (!lowered) return;
  const PlanSet without = make_plan_set(dag, *std::move(lowered));
  std::vector<std::string> lines;
  const auto compare = [&](RankLanes lanes, const char* whose) {
    const double before = idle_share(without, lanes), after = idle_share(set, lanes);
    if (after <= before + 1e-9) return false;
    lines.push_back(
        fmt::format("later on devices {}: idle {:.0f} % of a step without this, {:.0f} % with it",
                    whose, before * 100, after * 100));
    return true;
  };
  if (!compare(RankLanes::kThread, "that work in issue order, as the CPU does")) return;
  const bool also_there = compare(RankLanes::kStreams, "with streams");
  lines.push_back(
      "note: receives that come ahead of computations wait in their place; a forward takes a unit "
      "of time, a backward two");
  if (also_there && receives_beside(set))
    lines.push_back(
        "note: with streams, memory of what was sent is used again once a later receive tells that "
        "it has arrived, and the computation that uses it waits for that");
  else if (also_there)
    lines.push_back(
        "help: 'stream: {where: {kind: recv}, name: NAME}' lets them wait beside the computations");
  explain.push_back({prefetches ? strategy.prefetches.front().at : strategy.streams.front().at,
                     prefetches ? "prefetch" : "stream", std::move(lines)});
}

}  // namespace piper
