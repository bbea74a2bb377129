// Moves states between ranks when a job switches to other plans. Each rank sends what others need
// of it as one message to each, and keeps the rest.
#include "switching.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "piper/plan/verify.h"

namespace piper {

Switching::HostBytes Switching::HostBytes::of(int64_t size) {
  return {std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(size)), size};
}

template <class Visit>
void Switching::HeldState::for_each_part(const StateTransfer::Run& run, Visit visit) const {
  auto next = std::ranges::upper_bound(runs, run.first, {}, &Held::Run::whole);
  --next;
  for (int64_t at = run.first; at < run.end(); ++next) {
    const int64_t inside = at - next->whole, count = std::min(next->count - inside, run.end() - at);
    visit(at, count, bytes.data.get() + (next->held + inside) * size);
    at += count;
  }
}

Switching::Switching(const PlanSet& from, const PlanSet& to, double timeout_s, bool averages,
                     StateTransfer transfer)
    : from_(from),
      to_(to),
      timeout_s_(timeout_s),
      averages_(averages),
      transfer_(std::move(transfer)),
      ranks_(static_cast<size_t>(from.world())) {}

Result<std::unique_ptr<Switching>> Switching::plan(const PlanSet& from, const PlanSet& to,
                                                   double timeout_s, bool averages) {
  PIPER_ASSIGN(StateTransfer transfer, plan_transfer(from, to));
  const std::vector<Finding> findings = verify_transfer(transfer, from, to);
  if (!findings.empty())
    return fail("the transfer of states from {} to {} is not proved: {}", from.directory,
                to.directory, findings[0].text)
        .with_code(ExitCode::kRefused);
  return std::unique_ptr<Switching>(
      new Switching(from, to, timeout_s, averages, std::move(transfer)));
}

namespace {

// Returns the states that a rank gives to others or keeps, by name.
std::map<std::string, int32_t> given_by(const StateTransfer& transfer, int64_t rank) {
  std::map<std::string, int32_t> given;
  for (const StateTransfer::Move& move : transfer.moves)
    if (move.from == rank)
      given[transfer.states[static_cast<size_t>(move.state)].name] = move.state;
  return given;
}

}  // namespace

namespace {

// Returns what is there of a state, ascending in the whole.
std::vector<Held::Run> sorted_runs(const Held& held) {
  std::vector<Held::Run> runs;
  held.for_each_run([&](const Held::Run& run) { runs.push_back(run); });
  std::ranges::sort(runs, {}, &Held::Run::whole);
  return runs;
}

}  // namespace

// Copies all that the rank gives to others or keeps.
Result<Switching::HeldStates> Switching::copy_held(Executor& executor, int64_t rank) const {
  const RoleProgram& role = executor.role();
  const std::vector<int64_t> coordinates = coordinates_of(role.mesh, rank);
  const std::map<std::string, int32_t> given = given_by(transfer_, rank);
  HeldStates held;
  std::vector<std::pair<int32_t, std::byte*>> copies;
  for (size_t b = 0; b < role.buffers.size(); ++b) {
    const Tensor& tensor = role.tensor(role.buffers[b]);
    if (!is_stored(tensor)) continue;
    const auto number = given.find(names_of_state(role, tensor)[0]);
    if (number == given.end()) continue;
    HeldState& state = held[number->second];
    state.size = info(tensor.type.dtype).bytes;
    state.runs = sorted_runs(held_of(role, tensor, coordinates));
    state.bytes = HostBytes::of(tensor.type.bytes());
    copies.emplace_back(static_cast<int32_t>(b), state.bytes.data.get());
  }
  PIPER_TRY(executor.copy_out(copies));
  return held;
}

// Packs what each other rank gets of this one.
Switching::Messages Switching::pack(const HeldStates& held, int64_t rank) const {
  Messages out;
  for (const StateTransfer::Move& move : transfer_.moves)
    if (move.from == rank && move.to != rank) out[move.to].size += transfer_.bytes_of(move);
  for (auto& [to, message] : out) {
    message = HostBytes::of(message.size);
    std::byte* at = message.data.get();
    for (const StateTransfer::Move& move : transfer_.moves) {
      if (move.from != rank || move.to != to) continue;
      const HeldState& state = held.at(move.state);
      for (const StateTransfer::Run& run : move.runs)
        state.for_each_part(run, [&](int64_t, int64_t count, const std::byte* data) {
          std::memcpy(at, data, static_cast<size_t>(count * state.size));
          at += count * state.size;
        });
    }
  }
  return out;
}

Result<Switching::Messages> Switching::exchange(const Messages& out, Fabric& fabric, int64_t rank) {
  Messages in;
  for (const StateTransfer::Move& move : transfer_.moves)
    if (move.to == rank && move.from != rank) in[move.from].size += transfer_.bytes_of(move);
  Moved& own = ranks_[static_cast<size_t>(rank)];
  for (const auto& [to, message] : out) {
    const auto [route, is_new] = own.routes_to.try_emplace(to);
    if (is_new) {
      PIPER_ASSIGN(route->second, fabric.add_send(to, 0, 1));
    }
    PIPER_TRY(fabric.send(route->second, message.data.get(), message.size));
  }
  for (auto& [from, message] : in) {
    message = HostBytes::of(message.size);
    const auto [route, is_new] = own.routes_from.try_emplace(from);
    if (is_new) {
      PIPER_ASSIGN(route->second, fabric.add_recv(from, 0));
    }
    PIPER_TRY(fabric.recv(route->second, message.data.get(), message.size));
  }
  PIPER_TRY(fabric.wait_sends());
  return in;
}

// Returns what the rank has kept and what has come to it, each run as a piece of its own.
CheckpointReader Switching::unpack(int64_t rank, const HeldStates& held, const Messages& in) const {
  std::map<std::string, TensorType> types;
  CheckpointReader::Pieces pieces;
  for (const StateTransfer::State& state : transfer_.states) {
    types.emplace(state.name, state.whole);
    pieces[state.name];
  }
  std::map<int64_t, int64_t> at;  // by rank
  for (const StateTransfer::Move& move : transfer_.moves) {
    if (move.to != rank) continue;
    const auto& [name, whole] = transfer_.states[static_cast<size_t>(move.state)];
    const int64_t size = info(whole.dtype).bytes;
    const auto add = [&](int64_t first, int64_t count, const HostBytes& owner,
                         const std::byte* data) {
      pieces[name].push_back({Held{whole, {}, first, count},
                              Bytes{owner.data, data, static_cast<size_t>(count * size)}});
    };
    for (const StateTransfer::Run& run : move.runs) {
      if (move.from == rank) {
        const HeldState& state = held.at(move.state);
        state.for_each_part(run, [&](int64_t first, int64_t count, const std::byte* data) {
          add(first, count, state.bytes, data);
        });
        continue;
      }
      const HostBytes& message = in.at(move.from);
      add(run.first, run.count, message, message.data.get() + at[move.from]);
      at[move.from] += run.count * size;
    }
  }
  return CheckpointReader::of_memory(from_.directory, {}, std::move(types), std::move(pieces));
}

Status Switching::move(Executor& executor, Transport& transport) {
  const auto began = std::chrono::steady_clock::now();
  Control& control = transport.control();
  const int64_t rank = control.rank();
  control.set_timeout(timeout_s_);
  control.activity().store("the exchange of its states", std::memory_order_release);
  PIPER_ASSIGN(const HeldStates held, copy_held(executor, rank));
  PIPER_ASSIGN(const Messages in, exchange(pack(held, rank), transport.fabric(), rank));
  Moved& moved = ranks_[static_cast<size_t>(rank)];
  moved.reader = std::make_unique<CheckpointReader>(unpack(rank, held, in));
  moved.states = std::make_unique<CheckpointStates>(*moved.reader, false, averages_);
  PIPER_TRY(control.barrier());
  if (rank == 0)
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return ok_status();
}

void Switching::forget(int64_t rank) {
  Moved& moved = ranks_[static_cast<size_t>(rank)];
  moved.states.reset();
  moved.reader.reset();
}

const StateSource& Switching::of_rank(int64_t rank) const {
  return *ranks_[static_cast<size_t>(rank)].states;
}

Result<bool> Switching::fill(const Tensor& tensor, std::span<const std::string> names,
                             const Held& held, std::byte* to) const {
  return of_rank(0).fill(tensor, names, held, to);
}

std::string Switching::print(int64_t step) const {
  return fmt::format(
      "after step {} the job goes on under {}: {} bytes moved between ranks in {:.1f} ms (the "
      "least is {}), {} stayed where they were",
      step, to_.directory, transfer_.moved_bytes, seconds_ * 1e3, transfer_.least_bytes,
      transfer_.kept_bytes);
}

}  // namespace piper
