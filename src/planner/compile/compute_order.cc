// The order of computations on each cell: as the strategy gives it, or by policy.
#include <algorithm>
#include <cmath>
#include <map>

#include "piper/planner/compile.h"
#include "piper/planner/cost.h"
#include "piper/planner/job_costs.h"

namespace piper {
namespace {

// Returns the passes of these names. Where the backward is split into BI and BW, B stands for BI.
std::vector<TaskPass> passes_named(const std::vector<std::string>& names) {
  std::vector<TaskPass> passes;
  for (const std::string& name : names) {
    passes.push_back(*find_task_pass(name));
    if (passes.back() == TaskPass::kB) passes.push_back(TaskPass::kBI);
  }
  return passes;
}

// Returns a stated time in whole numbers, of which a forward takes a million.
int64_t in_ticks(const PolicyCosts& costs, double time) {
  return std::llround(time / costs.forward * 1e6);
}

// Returns the stage of a chunk; -1: it has none.
int64_t stage_of(const Dag& dag, const Chunk& chunk) {
  for (size_t t = 0; t < dag.region_tags.size(); ++t)
    if (dag.region_tags[t] == "stage") return chunk.tags[t];
  return -1;
}

int64_t stated_time(const PolicyCosts& costs, int64_t stage, TaskPass pass) {
  const PassTimes* times = &costs;
  for (const StageTimes& other : costs.stages)
    if (other.stage == stage) times = &other;
  switch (pass) {
    case TaskPass::kF:
      return in_ticks(costs, times->forward);
    case TaskPass::kB:
      return in_ticks(costs, times->backward);
    case TaskPass::kBI:
      return in_ticks(costs, times->input_half);
    case TaskPass::kBW:
      return in_ticks(costs, times->weight_half);
    default:
      return 0;
  }
}

// Returns a time on devices in whole numbers: of 10 picoseconds.
constexpr double kTicksPerSecond = 1e11;

// Returns by chunk what one of its tasks takes on the slowest of its devices.
Result<std::vector<double>> times_on(const Dag& dag, const JobCosts& costs) {
  std::vector<double> times;
  for (const Chunk& chunk : dag.chunks) {
    const std::vector<int32_t> kinds =
        costs.kinds_at(dag.cells[static_cast<size_t>(std::max(chunk.cell, 0))]);
    double most = 0;
    for (const int32_t kind : kinds) {
      double sum = 0;
      for (NodeId id : chunk.nodes) {
        PIPER_ASSIGN(const double one, costs.seconds(dag.graph, dag.graph.node(id), kind));
        sum += one;
      }
      most = std::max(most, sum);
    }
    times.push_back(most * kTicksPerSecond);
  }
  return times;
}

// Returns the most that a message between neighbouring cells takes, in such numbers.
MessageTime slowest_message(const Dag& dag, const JobCosts& costs) {
  MessageTime most;
  for (size_t cell = 0; cell < dag.cells.size() && dag.cells.size() > 1; ++cell) {
    const MessageTime one =
        costs.message(dag.cells[cell], dag.cells[(cell + 1) % dag.cells.size()]);
    most.latency = std::max(most.latency, one.latency * kTicksPerSecond);
    most.of_byte = std::max(most.of_byte, one.of_byte * kTicksPerSecond);
  }
  return most;
}

// Returns what a task of this chunk takes.
int64_t time_of(const Policy& given, const Dag& dag, const Chunk& chunk, double flops) {
  if (given.costs) return stated_time(*given.costs, stage_of(dag, chunk), chunk.pass);
  if (given.unit_costs) return chunk.pass == TaskPass::kB ? 2 : 1;
  return std::max<int64_t>(1, std::llround(flops));
}

Status check_stages(const Dag& dag, const PolicyCosts& costs) {
  for (const StageTimes& times : costs.stages) {
    int64_t last = -1;
    bool is_there = false;
    for (const Chunk& chunk : dag.chunks) {
      last = std::max(last, stage_of(dag, chunk));
      is_there = is_there || stage_of(dag, chunk) == times.stage;
    }
    if (!is_there)
      return fail(times.at, "there is no stage {}{}", times.stage,
                  last < 0 ? "" : fmt::format("; there are 0 to {}", last));
  }
  return ok_status();
}

Result<ListPolicy> make_policy(const Dag& dag, const Strategy& strategy, const Variables& variables,
                               const JobCosts& by) {
  const Policy& given = *strategy.orders.front().policy;
  ListPolicy policy;
  policy.prefer = passes_named(given.prefer);
  policy.memory = given.memory;
  policy.at = given.at;
  PIPER_ASSIGN(policy.in_flight, policy_limits(dag, strategy, variables));
  policy.span = given.span;
  if (given.costs) PIPER_TRY(check_stages(dag, *given.costs));
  const std::vector<ChunkCost> costs = chunk_costs(dag);
  const bool on_devices = by.devices() && !given.costs && !given.unit_costs;
  std::vector<double> times;
  if (on_devices) {
    PIPER_ASSIGN(times, times_on(dag, by));
  }
  for (size_t c = 0; c < costs.size(); ++c) {
    policy.time.push_back(
        time_of(given, dag, dag.chunks[c], on_devices ? times[c] : costs[c].flops));
    policy.held.push_back(costs[c].kept_bytes);
    policy.left.push_back(costs[c].left_bytes);
  }
  if (given.costs)
    policy.time_per_message = in_ticks(*given.costs, given.costs->send);
  else if (on_devices) {
    const MessageTime message = slowest_message(dag, by);
    policy.time_per_message = std::llround(message.latency);
    policy.time_per_byte = message.of_byte;
  } else if (!given.unit_costs)
    policy.time_per_byte = kFlopsPerSentByte;
  return policy;
}

// "F0 F1 BI0 …", as order directives are reported: with the stage where the cell has several.
std::string list_tasks(const Dag& dag, const ComputeOrder& order) {
  constexpr size_t kShown = 24;
  const auto tags = [&](TaskId id) { return dag.chunks[dag.tasks[id.index()].chunk.index()].tags; };
  const bool several = std::any_of(order.tasks.begin(), order.tasks.end(), [&](TaskId id) {
    return tags(id) != tags(order.tasks.front());
  });
  std::string text;
  for (size_t i = 0; i < std::min(order.tasks.size(), kShown); ++i) {
    const Task& task = dag.tasks[order.tasks[i].index()];
    const std::string stage = several ? std::to_string(tags(order.tasks[i]).front()) : "";
    text += fmt::format(" {}{}{}", stage, name_of(task.pass), task.micro % dag.microbatches);
  }
  return order.tasks.size() > kShown ? text + " …" : text;
}

std::string place_of(const Dag& dag, size_t cell) {
  std::string where;
  for (size_t a = 0; a < dag.mesh.size(); ++a)
    if (dag.mesh[a].placed)
      where +=
          fmt::format("{}{}={}", where.empty() ? "" : " ", dag.mesh[a].name, dag.cells[cell][a]);
  return where;
}

// Says what no order of a device is shorter than.
const char* why_no_shorter(const ListPolicy& policy, BoundBy by) {
  if (by == BoundBy::kWaits)
    return "computes so long, and waits for its first and last backward with what the limits let "
           "it do";
  if (by == BoundBy::kWay)
    return "computes so long without weight halves, after what leads to its first task and before "
           "what follows its last";
  if (by == BoundBy::kLimits)
    return "keeps activations of all microbatches so long, within the limits at a time";
  return policy.span ? "computes so long"
                     : "computes so long, after what leads to its first task and before what "
                       "follows its last";
}

// "within 3.2 % of the bound: …".
std::string gap(const Dag& dag, const ListPolicy& policy, const OrderLength& length) {
  const double over =
      length.bound > 0 ? static_cast<double>(length.length) / static_cast<double>(length.bound) - 1
                       : 0;
  const std::string where = place_of(dag, length.cell);
  return fmt::format("by these costs within {:.1f} % of the bound: {} {}", over * 100,
                     where.empty() ? "the device" : where, why_no_shorter(policy, length.by));
}

// Returns what the policy came to on each cell.
Explanation report(const Dag& dag, const ListPolicy& policy,
                   const std::vector<ComputeOrder>& orders, const OrderLength& length) {
  Explanation out{policy.at, "policy", {gap(dag, policy, length)}};
  // By region, cell and variant.
  std::map<std::tuple<std::vector<int32_t>, int32_t, int32_t>, int64_t> of_region;
  for (size_t c = 0; c < dag.chunks.size(); ++c) {
    const Chunk& chunk = dag.chunks[c];
    for (int32_t v = 0; v < dag.variants.count() && chunk.pass == TaskPass::kF; ++v)
      if (chunk.variants.empty() || std::count(chunk.variants.begin(), chunk.variants.end(), v) > 0)
        of_region[{chunk.tags, chunk.cell, v}] = policy.held[c];
  }
  std::vector<int64_t> held;  // by chunk
  for (const Chunk& chunk : dag.chunks)
    held.push_back(
        of_region[{chunk.tags, chunk.cell, chunk.variants.empty() ? 0 : chunk.variants.front()}]);
  for (size_t cell = 0; cell < orders.size(); ++cell) {
    int64_t chunks = 0, most = 0, bytes = 0, most_bytes = 0;
    for (TaskId id : orders[cell].tasks) {
      const Task& task = dag.tasks[id.index()];
      if (task.pass == TaskPass::kBI) continue;
      const int64_t sign = task.pass == TaskPass::kF ? 1 : -1;
      chunks += sign;
      bytes += sign * held[task.chunk.index()];
      most = std::max(most, chunks);
      most_bytes = std::max(most_bytes, bytes);
    }
    const std::string where = place_of(dag, cell);
    out.lines.push_back(fmt::format("{}: {} tasks, at most {} chunk{} in flight, {} kept", where,
                                    orders[cell].tasks.size(), most, most == 1 ? "" : "s",
                                    human_bytes(most_bytes)));
    out.lines.push_back(where + ":" + list_tasks(dag, orders[cell]));
  }
  return out;
}

}  // namespace

Status time_messages(Dag& dag, const JobCosts& costs) {
  const auto has_credit = [](const TaskStream& stream) { return stream.credit > 0; };
  if (!costs.devices() || std::ranges::none_of(dag.streams, has_credit)) return ok_status();
  PIPER_ASSIGN(const std::vector<double> times, times_on(dag, costs));
  const std::vector<ChunkCost> chunks = chunk_costs(dag);
  double flops = 0, ticks = 0;
  for (size_t c = 0; c < chunks.size(); ++c) flops += chunks[c].flops, ticks += times[c];
  const double flops_per_second = ticks > 0 ? flops / ticks * kTicksPerSecond : 0;
  std::vector<bool> known(dag.streams.size());
  for (const Task& task : dag.tasks) {
    TaskStream& stream = dag.streams[static_cast<size_t>(task.stream)];
    if (!has_credit(stream) || !info(task.kind).adds) continue;
    // The slowest link of those that add up counts: if there is one between nodes, it lies between
    // the first rank and the last.
    const std::vector<int32_t>& here = dag.cells[static_cast<size_t>(task.cell)];
    std::vector<int32_t> last = here;
    for (const int32_t axis : task.group)
      last[static_cast<size_t>(axis)] =
          static_cast<int32_t>(dag.mesh[static_cast<size_t>(axis)].size) - 1;
    const MessageTime time = costs.message(here, last);
    const int64_t of_byte = std::max<int64_t>(1, std::llround(time.of_byte * flops_per_second)),
                  of_message = std::llround(time.latency * flops_per_second);
    const bool more = known[static_cast<size_t>(task.stream)];
    stream.flops_of_byte = more ? std::max(stream.flops_of_byte, of_byte) : of_byte;
    stream.flops_of_message = more ? std::max(stream.flops_of_message, of_message) : of_message;
    known[static_cast<size_t>(task.stream)] = true;
  }
  return ok_status();
}

Result<std::vector<ComputeOrder>> choose_order(const Dag& dag, const TaskLists& deps,
                                               const Strategy* strategy, const Variables& variables,
                                               const JobCosts& costs, Explanations& explain) {
  if (!strategy || strategy->orders.empty()) return list_schedule(dag, deps, default_policy(dag));
  if (!strategy->orders.front().policy) {
    PIPER_ASSIGN(auto orders, apply_order(dag, *strategy, variables, explain));
    const auto others = tasks_of_parts(dag, *strategy);
    if (std::ranges::all_of(others, [](const auto& of_cell) { return of_cell.empty(); }))
      return orders;
    return insert_tasks(dag, deps, std::move(orders), others, strategy->orders.front().at);
  }
  PIPER_ASSIGN(const ListPolicy policy, make_policy(dag, *strategy, variables, costs));
  PIPER_ASSIGN(auto orders, list_schedule(dag, deps, policy));
  explain.push_back(report(dag, policy, orders, length_of(dag, deps, policy, orders)));
  return orders;
}

}  // namespace piper
