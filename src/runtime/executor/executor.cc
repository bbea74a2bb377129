// Runs the instructions of one rank.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "helper.h"
#include "piper/base/float16.h"
#include "piper/plan/outer_updates.h"
#include "piper/plan/trained_parts.h"
#include "reader.h"
#include "replay.h"

namespace piper {
namespace {

using State = Executor::State;

}  // namespace

State::State(const RankSource& from, Backend& on, Control& with, Fabric& over)
    : source(from),
      backend(on),
      control(with),
      fabric(over),
      activity(with.activity()),
      recorder(from.rank, with.seat(), from.recording) {}
State::~State() = default;

double now_us() { return static_cast<double>(now_ns()) / 1e3; }

// Runs an instruction other than compute: it may wait or fail.
Status run_op(State& state, const Op& op) {
  Fabric& fabric = state.fabric;
  switch (op.kind) {
    case InstructionKind::kInput:
      if (op.handle < 0) {  // the numbers of the samples
        auto* numbers = reinterpret_cast<int64_t*>(op.a);
        std::iota(numbers, numbers + op.count, op.size);
        return ok_status();
      }
      std::memcpy(op.a, op.staged->at[state.sections % 2], static_cast<size_t>(op.staged->bytes));
      return ok_status();
    case InstructionKind::kSend:
      if (op.parts) return fabric.send(op.handle, {op.parts, static_cast<size_t>(op.count)});
      return fabric.send(op.handle, op.a, op.size);
    case InstructionKind::kRecv:
      if (op.parts) return fabric.recv(op.handle, {op.parts, static_cast<size_t>(op.count)});
      return fabric.recv(op.handle, op.a, op.size);
    case InstructionKind::kOwnPart:
      for (const Shard& shard : op.collective->shards) take_part(shard, op.member);
      return ok_status();
    case InstructionKind::kPosition:
      std::memcpy(op.a, op.b, static_cast<size_t>(op.size));
      return ok_status();
    case InstructionKind::kCopy:
      state.backend.copy(op.b, op.a, op.size);
      return ok_status();
    case InstructionKind::kCompute:
      state.backend.launch(op.handle);
      return ok_status();
    default:
      PIPER_CHECK(op.collective, "no instruction is of kind {}", static_cast<int>(op.kind));
      return fabric.run(op.handle, *op.collective);
  }
}

// Adds to a fabric's error, which names the ranks, where in the step it happened.
Error located(const Op& op, int64_t step, Error error) {
  error.message = fmt::format("step {}, {}: {}", step + 1, op.label, error.message);
  return error;
}

namespace {

// Returns what a computation writes: parameters and states (`kept`), or values of the step.
std::vector<SpoiledValues> written(State& state, const Instruction& one, bool kept) {
  std::vector<SpoiledValues> values;
  const Program& program = state.role->programs[static_cast<size_t>(one.program)];
  for (size_t k = 0; k < one.args.size(); ++k) {
    const bool is_step = state.role->tensor(one.args[k]).kind == BufferKind::kStep;
    if (program.arg_written[k] && is_step != kept)
      values.push_back({state.type(one.args[k]), state.at(one.args[k])});
  }
  return values;
}

bool is_in_phase(TaskPass pass, const std::string& phase) {
  return phase == "forward"    ? pass == TaskPass::kF
         : phase == "backward" ? is_backward(pass)
                               : pass == TaskPass::kU;
}

}  // namespace

Status find_fault(State& state, int64_t step) {
  PIPER_ASSIGN(const auto found, find_fault_inside(state.source.rank, step + 1));
  state.fault_at = -1;
  if (!found) return ok_status();
  if (state.backend.is_asynchronous())
    return fail("PIPER_FAULT: {} is not supported on a GPU", found->phase)
        .with_code(ExitCode::kUsage);
  const std::vector<Instruction>& body = state.role->body;
  bool keeps = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const TaskPass pass = body[i].pass;
    if (!is_in_phase(pass, found->phase) || body[i].kind != InstructionKind::kCompute) continue;
    // After the last update of a state only reports of the step may be computed.
    const bool is_kept = pass == TaskPass::kU && !written(state, body[i], /*kept=*/true).empty();
    if (keeps && !is_kept) continue;
    keeps = is_kept;
    state.fault_at = static_cast<int64_t>(i);
  }
  state.fault = *found;
  return ok_status();
}

Status do_fault(State& state) {
  const Instruction& one = state.role->body[static_cast<size_t>(std::exchange(state.fault_at, -1))];
  const std::vector<SpoiledValues> first = written(state, one, one.pass == TaskPass::kU);
  return do_fault_inside(state.fault,
                         first.empty() ? written(state, one, one.pass != TaskPass::kU) : first);
}

Status wait_sends(State& state, int64_t step) {
  Status status = state.fabric.wait_sends();
  if (status) return status;
  Error error = std::move(status).error();
  error.message = fmt::format("step {}, at its end: {}", step + 1, error.message);
  return error;
}

// Returns the step among the last two that are traced, without this section yet; -1 for none. What
// follows a step may be known after the next one.
int64_t find_traced(const State& state, const BoundSection& section, int64_t step) {
  const int64_t slots = state.source.trace_steps, last = state.traced_steps - 1;
  for (int64_t k = last; k >= 0 && k > last - 2; --k)
    if (const TracedStep& known = state.traced[static_cast<size_t>(k % slots)];
        known.step == step && std::ranges::count(known.sections, &section) == 0)
      return k;
  return -1;
}

TraceEvent* next_trace(State& state, const BoundSection& section, int64_t step) {
  const int64_t slots = state.source.trace_steps;
  if (slots == 0 || !section.is_traced) return nullptr;
  const auto slot_of = [&](int64_t k) { return static_cast<size_t>(k % slots); };
  const int64_t last = state.traced_steps - 1;
  int64_t found = find_traced(state, section, step);
  if (found < 0 && last >= 0 && step < state.traced[slot_of(last)].step && section.update >= 0 &&
      section.body_count == 0)
    return nullptr;  // of a step that others have replaced
  if (found < 0) {
    found = state.traced_steps++;
    TracedStep& fresh = state.traced[slot_of(found)];
    fresh.step = step, fresh.events = 0;
    fresh.sections.clear();
  }
  TracedStep& traced = state.traced[slot_of(found)];
  TraceEvent* const first = state.trace.data() + slot_of(found) * state.events_of_step;
  traced.sections.push_back(&section);
  return first + std::exchange(traced.events, traced.events + section.ops.size());
}

TraceEvent event_of(const BoundSection& section, int64_t step, size_t op, double start_us,
                    double end_us, double issue_us) {
  const auto at = static_cast<int32_t>(op) - section.body_first;
  TraceEvent event{step, static_cast<int32_t>(op), start_us, end_us, issue_us, section.update};
  if (at >= 0 && at < section.body_count) event.instruction = at, event.update = -1;
  if (at >= section.body_count) event.instruction -= section.body_count;
  return event;
}

namespace {

template <bool kTraced, bool kShown>
Status run_section(State& state, const BoundSection& section, int64_t step) {
  TraceEvent* event = kTraced ? next_trace(state, section, step) : nullptr;
  Recorder::Line& line = state.recorder.lines[0];
  double before = now_us();
  for (const Op& op : section.ops) {
    state.activity.store(op.label, std::memory_order_release);
    line.note(op.label, step, before);
    const auto number = static_cast<size_t>(&op - section.ops.data());
    const NvtxScope range = kShown ? range_of(state, section, number) : NvtxScope();
    double start = kTraced ? now_us() : 0;
    if (op.kind == InstructionKind::kCompute) {
      state.backend.launch(op.handle);
    } else if (Status status = run_op(state, op); !status) {
      return located(op, step, std::move(status).error());
    }
    if (state.fault_at == static_cast<int64_t>(number)) [[unlikely]]
      PIPER_TRY(do_fault(state));
    const double end = now_us();
    line.spend(op.spent, end - before);
    if constexpr (kTraced)
      if (event != nullptr) *event++ = event_of(section, step, number, start, end, start - before);
    before = end;
  }
  return ok_status();
}

// Runs the body of a step whose first part has run before: the same instructions, one by one.
Status run_again(State& state, const BoundSection& section, int64_t step) {
  for (size_t i = 0; i < section.ops.size(); ++i) {
    const Op& op = section.ops[i];
    if (state.replay->is_end(i)) PIPER_TRY(state.replay->compare(step));
    state.activity.store(op.label, std::memory_order_release);
    state.recorder.lines[0].note(op.label, step, now_us());
    if (Status status = run_op(state, op); !status)
      return located(op, step, std::move(status).error());
    if (state.fault_at == static_cast<int64_t>(i)) PIPER_TRY(do_fault(state));
    if (state.replay->compares()) state.replay->note(i);
  }
  return state.replay->compares() ? state.replay->compare(step) : ok_status();
}

Status run_instructions(State& state, const BoundSection& section, int64_t step) {
  if (state.replay && state.replay->compares()) return run_again(state, section, step);
  if (!section.lines[0].empty()) return state.helper->run(section, step);
  const bool traced = state.source.trace_steps > 0 && section.is_traced;
  const bool shown = state.tool != nullptr;
  if (traced)
    return shown ? run_section<true, true>(state, section, step)
                 : run_section<true, false>(state, section, step);
  return shown ? run_section<false, true>(state, section, step)
               : run_section<false, false>(state, section, step);
}

Status start_section(State& state, const BoundSection& section, int64_t step, bool is_step) {
  if (state.backend.is_asynchronous()) return queue_section(state, section, step, is_step);
  const double began = now_us();
  PIPER_TRY(take_inputs(state, section, step));
  state.recorder.lines[0].spend(Spent::kData, now_us() - began);
  if (&section == &state.body && state.replay && state.replay->is_due(step))
    PIPER_TRY(state.replay->run_first(step));
  if (state.reader) read_ahead(state, section, step);
  PIPER_TRY(run_instructions(state, section, step));
  ++state.sections;
  state.activity.store("the end of its step", std::memory_order_release);
  return wait_sends(state, step);
}

double read_scalar(DType dtype, const std::byte* at) {
  if (dtype == DType::kF64 || dtype == DType::kF32 || is_half(dtype)) return float_at(dtype, at);
  if (dtype == DType::kBool) return at[0] == std::byte{0} ? 0 : 1;
  return std::nan("");
}

// Reads the report at position i of its section.
double read_report(State& state, const Report& report, size_t i, size_t parity) {
  const std::byte* at = state.at(report.buffer);
  if (state.backend.is_asynchronous()) {
    at = state.queues.reports[parity] + kStagedReportBytes * static_cast<int64_t>(i);
    state.backend.host_uses(at, kStagedReportBytes, false);
  }
  return read_scalar(state.type(report.buffer).dtype, at);
}

// Runs the outer updates that follow the step. An asynchronous backend queues them before the next
// step. One that runs them at once overwrites the memory of reports, which are read before.
Status update_outer(State& state, int64_t step) {
  for (size_t u = 0; u < state.outer_updates.size(); ++u) {
    const OuterUpdate& update = state.role->outer_updates[u];
    if (!state.bodies_beside[u].ops.empty() || !runs_at(update, step + 1)) continue;
    PIPER_TRY(start_section(state, state.outer_updates[u], step, false));
    skip_section(state);
  }
  return ok_status();
}

// Returns what the step runs: the body, perhaps with an outer update beside it. Of several outer
// updates the others run before the body.
Result<const BoundSection*> body_of(State& state, int64_t step) {
  const BoundSection* body = &state.body;
  for (size_t u = 0; u < state.outer_updates.size(); ++u) {
    const OuterUpdate& update = state.role->outer_updates[u];
    if (state.bodies_beside[u].ops.empty() || !runs_at(update, step + 1)) continue;
    if (body == &state.body) {
      body = &state.bodies_beside[u];
      continue;
    }
    PIPER_TRY(start_section(state, state.outer_updates[u], step, false));
    skip_section(state);
  }
  return body;
}

}  // namespace

Executor::Executor(std::unique_ptr<State> state) : state_(std::move(state)) {}
Executor::~Executor() = default;

int32_t Executor::prologue_parts() const { return std::max(state_->role->steps_ahead, 1); }

Status Executor::start_prologue(int32_t part, int64_t step, int64_t end) {
  State& state = *state_;
  const int32_t most = state.role->steps_ahead;
  return start_section(
      state, most == 0 ? state.prologue : state.section_for(step - most + part, step, end), step,
      false);
}

Status Executor::run_epilogue(int64_t step) {
  return start_section(*state_, state_->epilogue, step, false);
}

Status Executor::read_inputs(int64_t step) { return take_inputs(*state_, state_->body, step); }

Status Executor::start_step(int64_t step, int64_t end) {
  State& state = *state_;
  state.begun = step;
  state.recorder.set_patience(state.control.timeout());
  PIPER_TRY(find_fault(state, step));
  for (auto& [buffer, before] : state.numbers)
    std::memcpy(before.data(), state.at(buffer), static_cast<size_t>(state.type(buffer).bytes()));
  const NvtxScope range =
      state.tool ? NvtxScope(*state.tool, Nvtx::numbered(state.step_range, step + 1)) : NvtxScope();
  const bool overlap = state.role->steps_ahead > 0;
  PIPER_ASSIGN(const BoundSection* const body, body_of(state, step));
  const BoundSection& section = overlap ? state.section_for(step, step, end) : *body;
  PIPER_TRY(start_section(state, section, step, true));
  return state.backend.is_asynchronous() ? update_outer(state, step) : ok_status();
}

Status Executor::finish_step(int64_t step) {
  State& state = *state_;
  const auto parity = static_cast<size_t>(step % 2);
  if (state.backend.is_asynchronous()) {
    PIPER_CHECK(step + 2 > state.begun, "step {} is asked for its results after step {} began",
                step + 1, state.begun + 1);
    PIPER_TRY(wait_for(state, state.queues.reported[parity], step));
    read_times(state, step);
  }
  for (size_t i = 0; i < state.reports.size(); ++i) {
    const Report& report = state.role->reports[i];
    state.reports[i] = read_report(state, report, i, parity);
  }
  return state.backend.is_asynchronous() ? ok_status() : update_outer(state, step);
}

Status Executor::start_evaluation(const BatchSource& data, int64_t batch) {
  State& state = *state_;
  state.evaluated = &data;
  PIPER_TRY(start_section(state, state.evaluation, batch, true));
  skip_section(state);
  return ok_status();
}

Result<Evaluated> Executor::finish_evaluation(int64_t batch) {
  State& state = *state_;
  const auto parity = static_cast<size_t>(batch % 2);
  if (state.backend.is_asynchronous())
    PIPER_TRY(wait_for(state, state.queues.reported[parity], batch));
  Evaluated result;
  const std::vector<Report>& all = state.role->evaluation_reports;
  for (size_t i = 0; i < all.size(); ++i)
    (all[i].name == "loss" ? result.loss : result.weight) = read_report(state, all[i], i, parity);
  return result;
}

void Executor::undo_numbers() {
  for (const auto& [buffer, before] : state_->numbers)
    std::memcpy(state_->at(buffer), before.data(),
                static_cast<size_t>(state_->type(buffer).bytes()));
}

Status Executor::reload(const StateSource& states, int64_t left_out) {
  if (state_->reader) state_->reader->forget();
  state_->left_out = left_out;
  return refill_states(*state_, states);
}

Status Executor::settle() {
  State& state = *state_;
  if (!is_asynchronous() || state.sections == 0) return ok_status();
  PIPER_TRY(wait_for(state, state.queues.ended[(state.sections + 1) % 2], state.begun));
  return refresh_mirrors(state);
}

const RoleProgram& Executor::role() const { return *state_->plan; }
std::shared_ptr<const RoleProgram> Executor::prepared() const { return state_->role; }
const Backend& Executor::backend() const { return state_->backend; }
const Fabric& Executor::fabric() const { return state_->fabric; }
Recorder& Executor::recorder() const { return state_->recorder; }
bool Executor::is_asynchronous() const { return state_->backend.is_asynchronous(); }
bool Executor::knows_times(int64_t step) const {
  return !is_asynchronous() || state_->is_timed(step);
}
std::span<const double> Executor::reports() const { return state_->reports; }

std::optional<double> Executor::report(std::string_view name) const {
  for (size_t i = 0; i < state_->reports.size(); ++i) {
    if (state_->role->reports[i].name == name) return state_->reports[i];
  }
  return std::nullopt;
}

namespace {

std::string name_of_state(const Executor::State& state, const Buffer& buffer,
                          const Tensor& tensor) {
  const std::vector<int32_t>& roles = state.source.set->role_of_rank;
  return fmt::format("{} (state {} of role {})", tensor.name, &buffer - state.role->buffers.data(),
                     roles[static_cast<size_t>(state.source.rank)]);
}

// Returns what is kept from step to step. With `apart`, parts that are trained by themselves are
// tensors under names of their own.
std::vector<ParameterView> views_of(Executor::State& state, bool apart) {
  std::vector<ParameterView> views;
  for (const Buffer& buffer : state.role->buffers) {
    const Tensor& kept = state.role->tensor(buffer);
    if (kept.kind != BufferKind::kState) continue;
    const Tensor tensor = apart ? by_itself(kept) : kept;
    const bool trained = !tensor.param.empty();
    std::string name =
        trained ? name_of_whole(tensor, tensor.param) : name_of_state(state, buffer, tensor);
    std::vector<std::string> aliases;
    for (const std::string& alias : tensor.aliases) aliases.push_back(name_of_whole(tensor, alias));
    views.push_back({std::move(name), std::move(aliases),
                     held_of(*state.role, tensor, state.coordinates), readable(state, buffer),
                     trained});
  }
  return views;
}

}  // namespace

std::vector<ParameterView> Executor::parameters() const {
  std::vector<ParameterView> views = states();
  std::erase_if(views, [](const ParameterView& view) { return !view.trained; });
  return views;
}

std::vector<ParameterView> Executor::trained_parts() const {
  std::vector<ParameterView> views = views_of(*state_, true);
  std::erase_if(views, [](const ParameterView& view) { return !view.trained; });
  return views;
}

std::vector<ParameterView> Executor::states() const { return views_of(*state_, false); }

Status Executor::copy_out(std::span<const std::pair<int32_t, std::byte*>> copies) {
  return piper::copy_out(*state_, copies);
}

Status Executor::copy_in(std::span<const std::pair<int32_t, const std::byte*>> copies) {
  return piper::copy_in(*state_, copies);
}

std::span<const std::byte> Executor::buffer(std::string_view name) const {
  for (const Buffer& buffer : state_->role->buffers) {
    if (state_->role->name(buffer) != name) continue;
    return {readable(*state_, buffer),
            static_cast<size_t>(state_->role->tensor(buffer).type.bytes())};
  }
  return {};
}

std::vector<TraceEvent> Executor::trace() const {
  State& state = *state_;
  const int32_t last = state.queues.ended[(state.sections + 1) % 2];
  if (is_asynchronous() && state.sections > 0 && wait_for(state, last, state.begun))
    for (StepEvents& times : state.queues.times) read_times_left(state, times);
  std::vector<TraceEvent> events;
  const int64_t kept = std::min(state.traced_steps, state.source.trace_steps);
  for (int64_t s = state.traced_steps - kept; s < state.traced_steps; ++s) {
    const auto slot = static_cast<size_t>(s % state.source.trace_steps);
    const TraceEvent* const first = state.trace.data() + slot * state.events_of_step;
    events.insert(events.end(), first, first + state.traced[slot].events);
  }
  return events;
}

}  // namespace piper
