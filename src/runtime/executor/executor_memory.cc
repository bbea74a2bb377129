// The memory of a rank: its arenas, and what is there before the first step.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "executor_state.h"
#include "piper/base/float16.h"
#include "piper/plan/trained_parts.h"

namespace piper {

namespace {

using State = Executor::State;

Status finish_copies(State& state) {
  if (!state.backend.is_asynchronous()) return ok_status();
  state.backend.record(state.queues.ended[0], 0);
  return wait_for(state, state.queues.ended[0], 0);
}

void copy_to_mirror(State& state, size_t buffer, std::vector<std::byte>& mirror) {
  state.backend.copy(mirror.data(), state.at(static_cast<int32_t>(buffer)), std::ssize(mirror));
}

// Returns the elements of a file as the tensor has them: a copy of a parameter is that, rounded.
Bytes value_of(const RoleProgram& role, const Tensor& tensor, const Bytes& stored) {
  Bytes value = stored.made();
  if (role.original(tensor).type.dtype == tensor.type.dtype) return value;
  const size_t count = value.size / sizeof(float);
  std::string rounded(count * sizeof(uint16_t), '\0');
  std::array<float, 4096> some;  // files align nothing
  for (size_t at = 0; at < count; at += some.size()) {
    const size_t next = std::min(some.size(), count - at);
    std::memcpy(some.data(), value.data + at * sizeof(float), next * sizeof(float));
    round_to_halves(tensor.type.dtype, some.data(),
                    reinterpret_cast<std::byte*>(rounded.data()) + at * sizeof(uint16_t),
                    static_cast<int64_t>(next));
  }
  return Bytes::copy_of(rounded.data(), rounded.size());
}

}  // namespace

const std::byte* readable(State& state, const Buffer& buffer) {
  if (state.backend.shares_memory()) return state.at(buffer);
  const auto number = static_cast<size_t>(&buffer - state.role->buffers.data());
  const auto [mirror, is_new] = state.mirrors.try_emplace(number);
  if (is_new) {
    mirror->second.resize(static_cast<size_t>(state.role->tensor(buffer).type.bytes()));
    copy_to_mirror(state, number, mirror->second);
    if (Status copied = finish_copies(state); !copied) state.mirrored = std::move(copied);
  }
  return mirror->second.data();
}

Status refresh_mirrors(State& state) {
  PIPER_TRY(state.mirrored);
  if (state.mirrors.empty()) return ok_status();
  for (auto& [buffer, mirror] : state.mirrors) copy_to_mirror(state, buffer, mirror);
  return finish_copies(state);
}

Status allocate(Executor::State& state) {
  // The device gives no more memory than the plan states.
  if (state.backend.keeps_within(state.plan->target))
    PIPER_TRY(state.backend.reserve(state.plan->peak_bytes()));
  PIPER_ASSIGN(state.arena, state.backend.allocate(state.role->arena_bytes));
  std::string places;
  for (const Buffer& buffer : state.role->buffers)
    fmt::format_to(std::back_inserter(places), "{} ", buffer.offset);
  PIPER_TRY(state.fabric.add_memory(state.arena, state.role->arena_bytes, digest(places)));
  if (state.role->host_bytes > 0) {
    PIPER_ASSIGN(state.host, state.backend.allocate(state.role->host_bytes, Space::kHost));
  }
  return ok_status();
}

Result<std::byte*> allocate_stage(Executor::State& state, int64_t bytes) {
  state.staged += bytes;
  if (state.staged > state.plan->staging_bytes)
    return fail("rank {} takes {} bytes to stage what the host brings, the plan states {}",
                state.source.rank, state.staged, state.plan->staging_bytes)
        .with_code(ExitCode::kPlan);
  return state.backend.allocate(bytes, Space::kHost);
}

Status allocate_workspaces(Executor::State& state, std::span<const int64_t> bytes) {
  const RoleProgram& plan = *state.plan;
  const bool is_stated = state.backend.keeps_within(plan.target);
  for (size_t s = 0; s < bytes.size(); ++s) {
    if (is_stated && bytes[s] > plan.workspace_bytes[s])
      return fail("programs on stream '{}' take {} bytes for their values, the plan states {}",
                  quote_control(plan.streams[s].name), bytes[s], plan.workspace_bytes[s])
          .with_code(ExitCode::kPlan);
    PIPER_ASSIGN(std::byte * workspace, state.backend.allocate(bytes[s]));
    state.workspaces.push_back(workspace);
  }
  return ok_status();
}

Status copy_out(Executor::State& state, std::span<const std::pair<int32_t, std::byte*>> copies) {
  for (const auto& [buffer, to] : copies)
    state.backend.copy(to, state.at(buffer), state.type(buffer).bytes());
  return finish_copies(state);
}

Status copy_in(Executor::State& state,
               std::span<const std::pair<int32_t, const std::byte*>> copies) {
  for (const auto& [buffer, from] : copies)
    state.backend.copy(state.at(buffer), from, state.type(buffer).bytes());
  return finish_copies(state);
}

namespace {

// Fills a buffer with what the source of states has for it, if it has anything.
Result<bool> fill_from_source(State& state, const StateSource* from, const Tensor& tensor,
                              std::byte* to) {
  if (from == nullptr) return false;
  if (tensor.kind != BufferKind::kState) return false;
  const std::vector<std::string> names = names_of_state(*state.role, tensor);
  const Held held = held_of(*state.role, tensor, state.coordinates);
  std::vector<std::byte> value(static_cast<size_t>(tensor.type.bytes()));
  PIPER_ASSIGN(const bool has, from->fill(tensor, names, held, value.data()));
  if (!has) return false;
  state.backend.copy(to, value.data(), std::ssize(value));
  PIPER_TRY(finish_copies(state));
  return true;
}

using InitialValues = std::map<std::string_view, const Bytes*>;

InitialValues initial_values(const State& state) {
  InitialValues values;
  for (const auto& [name, bytes] : state.source.set->tensors) values[name] = &bytes;
  return values;
}

// Fills a buffer with what the plan says that it begins with, but for zeros.
Status fill_initial(State& state, const InitialValues& values, const Tensor& tensor,
                    std::byte* to) {
  if (tensor.init.empty()) {
    if (tensor.fill != 0) state.backend.fill(to, tensor.type, tensor.fill);
    return ok_status();
  }
  auto found = values.find(tensor.init);
  if (found == values.end()) {
    return fail("the plan set holds no initial value '{}' for buffer '{}'", tensor.init,
                tensor.name)
        .with_code(ExitCode::kPlan);
  }
  const Bytes value = value_of(*state.role, tensor, *found->second);
  const Held held = held_of(*state.role, by_itself(tensor), state.coordinates);
  if (static_cast<int64_t>(value.size) != held.whole.bytes()) {
    return fail("the initial value '{}' has {} bytes, buffer '{}' is {}", tensor.init, value.size,
                tensor.name, to_string(held.whole))
        .with_code(ExitCode::kPlan);
  }
  const int64_t size = info(tensor.type.dtype).bytes;
  held.for_each_run([&](const Held::Run& run) {
    state.backend.copy(to + run.held * size, value.data + run.whole * size, run.count * size);
  });
  return finish_copies(state);  // the value may leave memory
}

}  // namespace

Status fill_buffers(Executor::State& state) {
  const InitialValues values = initial_values(state);
  for (const Buffer& buffer : state.role->buffers) {
    const Tensor& tensor = state.role->tensor(buffer);
    if (tensor.kind == BufferKind::kStep) continue;
    std::byte* to = state.at(buffer);
    PIPER_ASSIGN(const bool is_filled, fill_from_source(state, state.source.states, tensor, to));
    if (!is_filled) PIPER_TRY(fill_initial(state, values, tensor, to));
  }
  return ok_status();
}

Status refill_states(Executor::State& state, const StateSource& from) {
  const InitialValues values = initial_values(state);
  for (const Buffer& buffer : state.role->buffers) {
    const Tensor& tensor = state.role->tensor(buffer);
    if (tensor.kind != BufferKind::kState) continue;
    std::byte* to = state.at(buffer);
    PIPER_ASSIGN(const bool has, fill_from_source(state, &from, tensor, to));
    if (has) continue;
    const std::vector<std::byte> zeros(static_cast<size_t>(tensor.type.bytes()));
    state.backend.copy(to, zeros.data(), std::ssize(zeros));
    PIPER_TRY(finish_copies(state));
    PIPER_TRY(fill_initial(state, values, tensor, to));
  }
  return finish_copies(state);
}

void list_numbers(Executor::State& state) {
  if (state.backend.is_asynchronous()) return;
  for (size_t b = 0; b < state.role->buffers.size(); ++b) {
    const Tensor& tensor = state.role->tensor(state.role->buffers[b]);
    if (tensor.kind == BufferKind::kState && tensor.type.shape.empty())
      state.numbers.push_back({static_cast<int32_t>(b), {}});
  }
}

}  // namespace piper
