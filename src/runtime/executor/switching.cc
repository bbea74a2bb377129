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
  if (next != runs.begin()) --next;
  for (; next != runs.end() && next->whole < run.end(); ++next) {
    const int64_t at = std::max(run.first, next->whole),
                  count = std::min(run.end(), next->whole + next->count) - at;
    if (count > 0) visit(at, count, bytes.data.get() + (next->held + at - next->whole) * size);
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

// Returns what is there of a state, ascending in the whole. `packed`: places count no element past
// the end of a dim.
std::vector<Held::Run> sorted_runs(const Held& held, bool packed) {
  std::vector<Held::Run> runs;
  int64_t before = 0;
  held.for_each_run([&](const Held::Run& run) {
    runs.push_back({run.whole, packed ? before : run.held, run.count});
    before += run.count;
  });
  if (!std::ranges::is_sorted(runs, {}, &Held::Run::whole))
    std::ranges::sort(runs, {}, &Held::Run::whole);
  return runs;
}

// Returns what a rank is to hold of states, each part once, by their number: of the types in which
// they were held before.
std::map<int32_t, std::vector<Held>> wanted_by(const PlanSet& set, int64_t rank,
                                               const std::vector<StateTransfer::State>& states) {
  std::map<std::string, TensorType> types;
  std::map<std::string, int32_t> numbers;
  for (const StateTransfer::State& state : states)
    types.emplace(state.name, state.whole), numbers.emplace(state.name, std::ssize(types) - 1);
  const RoleProgram& role =
      set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])];
  std::map<int32_t, std::vector<Held>> wanted;
  for (const Buffer& buffer : role.buffers) {
    const Tensor& tensor = role.tensor(buffer);
    if (tensor.kind != BufferKind::kState) continue;
    const auto name = name_held(types, names_of_state(role, tensor));
    if (!name || tensor.whole_type().shape != types.at(*name).shape) continue;
    Held held = held_of(role, tensor, coordinates_of(role.mesh, rank));
    held.whole = types.at(*name);
    std::vector<Held>& parts = wanted[numbers.at(*name)];
    if (std::ranges::find(parts, held) == parts.end()) parts.push_back(std::move(held));
  }
  return wanted;
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
    state.runs = sorted_runs(held_of(role, tensor, coordinates), /*packed=*/false);
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
        state.for_each_part(run, [&](int64_t, int64_t count, std::byte* data) {
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

// Returns what the rank has kept and what has come to it: a piece for each part of a state that it
// is to hold.
CheckpointReader Switching::unpack(int64_t rank, const HeldStates& held, const Messages& in) const {
  struct Come {
    const StateTransfer::Move* move;
    const std::byte* data;  // null: it was here
  };
  std::map<int32_t, std::vector<Come>> come;  // by state
  std::map<int64_t, int64_t> at;              // by rank
  for (const StateTransfer::Move& move : transfer_.moves) {
    if (move.to != rank) continue;
    const bool moved = move.from != rank;
    come[move.state].push_back(
        {&move, moved ? in.at(move.from).data.get() + at[move.from] : nullptr});
    if (moved) at[move.from] += transfer_.bytes_of(move);
  }
  std::map<std::string, TensorType> types;
  CheckpointReader::Pieces pieces;
  for (const StateTransfer::State& state : transfer_.states) {
    types.emplace(state.name, state.whole);
    pieces[state.name];
  }
  for (auto& [number, parts] : wanted_by(to_, rank, transfer_.states)) {
    const auto& [name, whole] = transfer_.states[static_cast<size_t>(number)];
    for (Held& part : parts) {
      HeldState to{info(whole.dtype).bytes, sorted_runs(part, /*packed=*/true), {}};
      to.bytes = HostBytes::of(part.count * to.size);
      const auto put = [&](const StateTransfer::Run& run, const std::byte* data) {
        to.for_each_part(run, [&](int64_t first, int64_t count, std::byte* place) {
          std::memcpy(place, data + (first - run.first) * to.size,
                      static_cast<size_t>(count * to.size));
        });
      };
      for (const auto& [move, message] : come[number]) {
        const std::byte* next = message;
        for (const StateTransfer::Run& run : move->runs) {
          if (message)
            put(run, std::exchange(next, next + run.count * to.size));
          else
            held.at(number).for_each_part(run, [&](int64_t first, int64_t count, std::byte* data) {
              put({first, count}, data);
            });
        }
      }
      pieces[name].push_back({std::move(part), Bytes{to.bytes.data, to.bytes.data.get(),
                                                     static_cast<size_t>(to.bytes.size)}});
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
