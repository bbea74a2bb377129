// Lowers a scheduled DAG to role programs: programs, buffers, instructions, waits.
#include "piper/planner/lower.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "at.h"
#include "cell.h"
#include "communicators.h"
#include "credit.h"
#include "piper/base/parallel.h"
#include "place.h"
#include "send_lifetimes.h"
#include "steps.h"

namespace piper {
namespace {

// By compute task: what is asked of its collectives, in the order of its nodes.
std::unordered_map<int32_t, std::vector<ChunkCollective>> find_collectives(const Dag& dag) {
  std::unordered_map<int32_t, std::vector<ChunkCollective>> collectives;
  for (const Task& task : dag.tasks)
    if (task.within.valid() && (task.stream != 0 || task.distance != 0 || task.nodes.size() > 1))
      collectives[task.within.value].push_back({task.nodes, task.stream, task.distance});
  for (auto& [task, own] : collectives) std::sort(own.begin(), own.end());
  return collectives;
}

// Chooses which programs the compute tasks run: the first to add to an accumulator sets it.
void choose_programs(const Dag& dag, const Schedule& schedule, ProgramPool& pool, Places& places) {
  std::vector<uint8_t> started(dag.items.size());  // each of one cell
  // This lists by chunk, each of one cell, the programs of most tasks, which all add to what is
  // there.
  std::vector<const ChunkPrograms*> later(dag.chunks.size());
  const auto collectives = find_collectives(dag);
  in_parallel(schedule.order.size(), [&](size_t cell) {
    std::vector<bool> first;
    for (TaskId id : schedule.order[cell]) {
      const Task& task = dag.tasks[id.index()];
      if (task.kind != InstructionKind::kCompute) continue;
      first.clear();
      bool is_later = true;
      for (const Accumulate& a : task.accumulates) {
        first.push_back(!started[a.into.index()]);
        is_later = is_later && !first.back();
        started[a.into.index()] = true;
      }
      ChunkPrograms const*& programs = places.programs[id.index()];
      if (const auto asked = collectives.find(id.value); asked != collectives.end()) {
        programs = &pool.of_task(task, first, asked->second);
        continue;
      }
      const ChunkPrograms*& known = later[task.chunk.index()];
      programs = is_later && known ? known : &pool.of_task(task, first, {});
      if (is_later) known = programs;
    }
  });
  pool.share();
}

std::vector<Transfer> find_transfers(const Dag& dag, const Places& places) {
  std::vector<Transfer> transfers;
  for (size_t t = 0; t + 1 < dag.tasks.size(); ++t) {
    const Task& task = dag.tasks[t];
    if (task.kind != InstructionKind::kSend) continue;
    transfers.push_back({task.cell, places.instruction[t], task.peer, places.instruction[t + 1]});
  }
  return transfers;
}

void add_tensors(const Dag& dag, const Places& places, Lowered& lowered) {
  std::unordered_set<std::string_view> wanted;
  for (const RoleProgram& role : lowered.roles)
    for (const Tensor& tensor : role.tensors)
      if (!tensor.init.empty()) wanted.insert(tensor.init);
  for (size_t v = 0; v < dag.graph.values.size(); ++v) {
    const Value& value = dag.graph.values[v];
    const bool has_data = value.kind == ValueKind::kState || value.kind == ValueKind::kConstant;
    if (!has_data || value.data.size == 0 || !wanted.contains(value.name)) continue;
    // Parts are stored whole.
    const TensorType& held = places.part[v] ? places.part[v]->whole : value.type;
    lowered.tensor_types.emplace_back(value.name, uncut(dag, value, held));
    lowered.tensors.emplace_back(value.name, value.data);
  }
}

// Gives all roles the streams that any has: communicators number them for all.
void equal_streams(std::vector<RoleProgram>& roles) {
  const auto fewer = [](const RoleProgram& a, const RoleProgram& b) {
    return a.streams.size() < b.streams.size();
  };
  const std::vector<Stream> most = std::max_element(roles.begin(), roles.end(), fewer)->streams;
  for (RoleProgram& role : roles) role.streams = most;
}

}  // namespace

Result<Lowered> lower(const Dag& dag, const Schedule& schedule) {
  ProgramPool pool(dag);
  Places places(dag);
  choose_programs(dag, schedule, pool, places);
  Lowered lowered;
  lowered.roles.resize(dag.cells.size());
  std::vector<LoweredCell> cells(dag.cells.size());
  in_parallel(cells.size(), [&](size_t c) {
    cells[c] = lower_cell(dag, schedule, pool, places, static_cast<int32_t>(c));
    lowered.roles[c] = std::move(cells[c].role);
  });
  const bool overlap = !schedule.body.empty();
  const std::vector<Transfer> transfers = find_transfers(dag, places);
  std::vector<std::vector<int64_t>> held;
  lowered.offloads.resize(dag.offloads.size());
  if (overlap) {
    std::vector<StepOrder> orders;
    for (size_t c = 0; c < cells.size(); ++c)
      orders.push_back({cells[c].starts, schedule.body[c], schedule.ahead[c],
                        placed_reductions(dag, schedule.order[c]), schedule.overlaps[c],
                        cells[c].gathered, cells[c].offloaded});
    PIPER_TRY(split_steps(lowered.roles, orders, transfers, dag, lowered));
  } else {
    held = send_lifetimes(dag, lowered.roles, transfers);
    for (size_t c = 0; c < cells.size(); ++c) {
      for (const auto& [copy, until] : cells[c].offloads.leaving)
        held[c][at(copy)] = until - 1;  // what leaves for the host is held until it has left
      add_counts(cells[c].offloads, lowered.offloads);
      add_counts(cells[c].credits, lowered.credits);
    }
  }
  equal_streams(lowered.roles);
  assign_communicators(lowered.roles, dag.cells);
  const auto all_readers = readers(dag.graph);
  in_parallel(cells.size(), [&](size_t c) {
    RoleProgram& role = lowered.roles[c];
    role.workspace_bytes.resize(role.streams.size());
    describe_needs(role, dag, all_readers);
    if (!overlap) {
      place_buffers(role, held[c], cells[c].overlaps, cells[c].pool);
      wait_for_memory(role, held[c]);
    }
    for (auto* section : role.sections()) drop_implied_waits(*section, role.streams.size());
  });
  add_tensors(dag, places, lowered);
  return lowered;
}

}  // namespace piper
