// A section on an asynchronous backend: each instruction is on its stream, after the events of
// what it waits for. Sections follow each other; the host waits for the last but one of them only,
// when it fills again what that has brought to the device.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "executor_state.h"
#include "job_log.h"

namespace piper {
namespace {

using State = Executor::State;

void take_parts(State& state, const Op& op, int32_t stream) {
  for (const Shard& shard : op.collective->shards) {
    int64_t end = 0;
    shard.for_each_run(op.member, [&](const Shard::Run& run) {
      state.backend.copy(shard.part + run.part, shard.whole + run.whole, run.bytes, stream);
      end = run.part + run.bytes;
    });
    const int64_t size = info(shard.dtype).bytes, rest = shard.part_count - end / size;
    if (rest > 0) state.backend.fill(shard.part + end, TensorType{shard.dtype, {rest}}, 0, stream);
  }
}

Status queue_op(State& state, const Op& op, const Queued& queued) {
  Backend& backend = state.backend;
  switch (op.kind) {
    case InstructionKind::kCompute:
      backend.launch(op.handle, queued.stream);
      return ok_status();
    case InstructionKind::kCopy:
      backend.copy(op.b, op.a, op.size, queued.stream);
      return ok_status();
    case InstructionKind::kOwnPart:
      take_parts(state, op, queued.stream);
      return ok_status();
    case InstructionKind::kInput:
    case InstructionKind::kPosition:
      backend.copy(op.a, op.staged->at[state.sections % 2], op.staged->bytes, queued.stream);
      return ok_status();
    case InstructionKind::kSend:
      backend.record(queued.ready, queued.stream);
      backend.wait(queued.ready, queued.leaves);
      return run_op(state, op);
    default:  // receives and collectives
      return run_op(state, op);
  }
}

// All streams go on after what has been queued so far.
void begin_section(State& state) {
  Backend& backend = state.backend;
  Queues& queues = state.queues;
  backend.record(queues.begun, queues.all[0]);
  for (size_t s = 1; s < queues.all.size(); ++s) backend.wait(queues.begun, queues.all[s]);
}

// Stream 0 has all that others have done, and what is reported goes to the host after it.
void end_section(State& state, const BoundSection& section, int64_t step, bool reports) {
  Backend& backend = state.backend;
  Queues& queues = state.queues;
  for (size_t s = 1; s < queues.all.size(); ++s) {
    backend.record(queues.joins[s], queues.all[s]);
    backend.wait(queues.joins[s], queues.all[0]);
  }
  const auto parity = static_cast<size_t>(step % 2);
  const std::vector<Report>& all = state.reports_of(section);
  for (size_t i = 0; reports && i < all.size(); ++i) {
    const int32_t buffer = all[i].buffer;
    backend.copy(queues.reports[parity] + kStagedReportBytes * static_cast<int64_t>(i),
                 state.at(buffer), state.type(buffer).bytes(), queues.all[0]);
  }
}

// Returns where the events of the section begin among those of its step.
size_t begin_times(State& state, const BoundSection& section, int64_t step, bool is_step,
                   StepEvents& times) {
  const auto is_it = [&](const StepEvents::Run& run) { return run.section == &section; };
  if (times.step != step || std::ranges::any_of(times.runs, is_it)) {
    read_times_left(state, times);
    times.step = step, times.began_us = -1;
    times.runs.clear();
    state.backend.record(times.begin, state.queues.all[0]);
  }
  const StepEvents::Run* const last = times.runs.empty() ? nullptr : &times.runs.back();
  const size_t first = last ? last->first + last->section->ops.size() : 0;
  times.runs.push_back({&section, first, is_step});
  return first;
}

Status queue_all(State& state, const BoundSection& section, int64_t step, bool reports,
                 bool is_timed) {
  Backend& backend = state.backend;
  StepEvents* times = is_timed ? &state.queues.times[step % 2] : nullptr;
  const size_t first = times ? begin_times(state, section, step, reports, *times) : 0;
  begin_section(state);
  for (size_t i = 0; i < section.ops.size(); ++i) {
    const Op& op = section.ops[i];
    const Queued& queued = section.queued[i];
    state.activity.store(op.label, std::memory_order_release);
    state.queued_last = op.label;
    state.recorder.lines[0].note(op.label, step, now_us());
    const NvtxScope range = range_of(state, section, i);
    double from = times ? now_us() : 0;
    for (const int32_t event : queued.waits) backend.wait(event, queued.stream);
    if (times) {
      times->issue_us[first + i] = now_us() - from;
      backend.record(times->instructions[first + i].first, queued.stream);
      from = now_us();
    }
    if (Status status = queue_op(state, op, queued); !status)
      return located(op, step, std::move(status).error());
    if (queued.event >= 0) backend.record(queued.event, queued.stream);
    if (!times) continue;
    times->issue_us[first + i] += now_us() - from;
    backend.record(times->instructions[first + i].second, queued.stream);
  }
  state.activity.store("the end of its step", std::memory_order_release);
  PIPER_TRY(wait_sends(state, step));
  end_section(state, section, step, reports);
  if (times && reports) backend.record(times->end, state.queues.all[0]);
  return ok_status();
}

// Returns whether all ranks can. NCCL, for one, wants a call to be in a graph on all of its
// ranks or on none.
Result<bool> can_all(State& state, bool own) {
  auto can = static_cast<std::byte>(own);
  PIPER_TRY(state.control.merge({&can, 1}, "graph of its step",
                                [&](std::span<const std::byte> theirs) { can &= theirs[0]; }));
  return can != std::byte{0};
}

// Makes graphs of the body as this step and section have it, and the next ones: when a run begins,
// as no word between ranks is under way then. False: a rank has said why it has none.
Result<bool> capture_body(State& state, int64_t step) {
  Queues& queues = state.queues;
  const int64_t sections = state.sections;
  Status made = ok_status();
  for (int64_t ahead = 0; ahead < 2 && made; ++ahead) {
    if (Status before = state.backend.begin_capture(queues.all[0]); !before)
      return of_step(state, std::max<int64_t>(step - 1, 0), std::move(before).error());
    state.sections = sections + ahead;
    Status queued = queue_all(state, state.body, step + ahead, true, /*is_timed=*/false);
    state.sections = sections;
    Result<int32_t> graph = state.backend.end_capture(queues.all[0]);
    if (!queued) {
      Error error = std::move(queued).error();
      error.notes.push_back("its step was made a graph of; --graphs off does without");
      return error;
    }
    if (graph)
      queues.graphs[(step + ahead) % 2][(sections + ahead) % 2] = *graph;
    else
      made = std::move(graph).error();
  }
  if (!made)
    say(fmt::format("rank {}: no graph of its step, which all ranks queue op by op: {}\n",
                    state.source.rank, made.error().message));
  Result<bool> all = can_all(state, made.ok());
  if (all) return all;
  Error error = std::move(all).error();
  error.message = fmt::format("step {}, the graph of its step: {}", step + 1, error.message);
  return error;
}

// The first body is queued op by op: libraries load on first use what no graph may, and connect.
Status queue_body(State& state, int64_t step) {
  Queues& queues = state.queues;
  const bool is_timed = state.is_timed(step);
  if (!std::exchange(queues.has_warmed_up, true) || is_timed)
    return queue_all(state, state.body, step, true, is_timed);
  const int32_t& graph = queues.graphs[step % 2][state.sections % 2];
  if (graph < 0) {
    PIPER_ASSIGN(queues.keeps_graphs, capture_body(state, step));
    if (!queues.keeps_graphs) return queue_all(state, state.body, step, true, false);
  }
  state.queued_last = "the graph of its step";
  state.recorder.lines[0].note(state.queued_last, step, now_us());
  state.backend.launch_graph(graph, queues.all[0]);
  return ok_status();
}

// The section is queued, and the one before has ended: where that had its data there is room.
Status follow_up(State& state, const BoundSection& section, int64_t step) {
  const int64_t number = state.sections;
  if (number > 0)
    PIPER_TRY(
        wait_for(state, state.queues.ended[(number + 1) % 2], std::max<int64_t>(step - 1, 0)));
  if (state.reader) read_ahead(state, section, step);
  ++state.sections;
  return ok_status();
}

}  // namespace

Status prepare_queues(State& state) {
  Queues& queues = state.queues;
  for (const Stream& stream : state.role->streams) {
    const bool is_first = queues.streams.empty();
    PIPER_ASSIGN(const int32_t made,
                 is_first ? Result<int32_t>(0) : state.backend.add_stream(stream));
    queues.streams.push_back(made);
  }
  queues.all = queues.streams;
  PIPER_ASSIGN(queues.begun, state.backend.add_event());
  const int64_t bytes = kStagedReportBytes * std::max(std::ssize(state.role->reports),
                                                      std::ssize(state.role->evaluation_reports));
  for (size_t parity = 0; parity < 2; ++parity) {
    PIPER_ASSIGN(queues.ended[parity], state.backend.add_event());
    PIPER_ASSIGN(queues.reported[parity], state.backend.add_event());
    PIPER_ASSIGN(queues.reports[parity], allocate_stage(state, bytes));
  }
  return ok_status();
}

Status prepare_section(State& state, BoundSection& section) {
  const std::vector<Instruction>& instructions = *section.instructions;
  section.queued.resize(instructions.size());
  for (size_t i = 0; i < instructions.size(); ++i) {
    Queued& queued = section.queued[i];
    queued.stream = state.queues.streams[static_cast<size_t>(instructions[i].stream)];
    for (const int32_t before : instructions[i].waits) {
      int32_t& event = section.queued[static_cast<size_t>(before)].event;
      if (event < 0) {
        PIPER_ASSIGN(event, state.backend.add_event());
      }
      queued.waits.push_back(event);
    }
    if (instructions[i].kind != InstructionKind::kSend) continue;
    queued.leaves = state.queues.stream_of_route.at(section.ops[i].handle);
    PIPER_ASSIGN(queued.ready, state.backend.add_event());
  }
  return ok_status();
}

Status prepare_times(State& state) {
  for (StepEvents& times : state.queues.times) {
    times.instructions.resize(state.events_of_step);
    times.issue_us.resize(state.events_of_step);
    for (auto& [before, behind] : times.instructions) {
      PIPER_ASSIGN(before, state.backend.add_timed_event());
      PIPER_ASSIGN(behind, state.backend.add_timed_event());
    }
    PIPER_ASSIGN(times.begin, state.backend.add_timed_event());
    PIPER_ASSIGN(times.end, state.backend.add_timed_event());
  }
  return ok_status();
}

// Reads the times of a step's sections, all of them or up to that of its reports.
void read_runs(State& state, StepEvents& times, bool all) {
  const auto at = [&](int32_t event) {
    return times.began_us + state.backend.microseconds(times.begin, event);
  };
  for (StepEvents::Run& run : times.runs) {
    const auto* const events = times.instructions.data() + run.first;
    TraceEvent* const traced = run.is_read ? nullptr : next_trace(state, *run.section, times.step);
    for (size_t i = 0; !run.is_read && i < run.section->ops.size(); ++i) {
      const auto& [before, behind] = events[i];
      state.recorder.lines[0].spend(run.section->ops[i].spent,
                                    state.backend.microseconds(before, behind));
      if (traced)
        traced[i] = event_of(*run.section, times.step, i, at(before), at(behind),
                             times.issue_us[run.first + i]);
    }
    run.is_read = true;
    if (run.is_step && !all) return;
  }
}

void read_times_left(State& state, StepEvents& times) {
  if (times.began_us >= 0) read_runs(state, times, true);
}

// The device's clock is another one: the body's end is now.
void read_times(State& state, int64_t step) {
  StepEvents& times = state.queues.times[step % 2];
  if (times.step != step || times.began_us >= 0) return;
  times.began_us = now_us() - state.backend.microseconds(times.begin, times.end);
  read_runs(state, times, false);
}

Status prepare_graphs(State& state) {
  const bool can = state.role->communicators.empty() || state.fabric.is_capturable();
  PIPER_ASSIGN(state.queues.keeps_graphs, can_all(state, can));
  return ok_status();
}

Status queue_section(State& state, const BoundSection& section, int64_t step, bool reports) {
  Queues& queues = state.queues;
  PIPER_TRY(take_inputs(state, section, step));
  const bool is_body = &section == &state.body;
  PIPER_TRY(
      queues.keeps_graphs && is_body && reports
          ? queue_body(state, step)
          : queue_all(state, section, step, reports, section.is_traced && state.is_timed(step)));
  if (reports) state.backend.record(queues.reported[step % 2], queues.all[0]);
  state.backend.record(queues.ended[state.sections % 2], queues.all[0]);
  return follow_up(state, section, step);
}

void skip_section(State& state) {
  if (state.backend.is_asynchronous())
    state.backend.record(state.queues.ended[state.sections % 2], state.queues.all[0]);
  ++state.sections;
}

}  // namespace piper
