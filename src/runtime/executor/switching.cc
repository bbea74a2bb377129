// Moves states between ranks when a job switches to other plans. Each rank sends what others need
// of it as one message to each, and keeps the rest.
#include "switching.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "piper/plan/verify.h"

namespace piper {
namespace {

using Bytes8 = std::vector<std::byte>;

// A state as this rank has held it, on the host, and where its elements are there.
struct HeldState {
  int32_t buffer = -1;
  int64_t size = 0;             // of an element
  std::vector<Held::Run> runs;  // ascending in the whole
  Bytes8 data;
};

// Copies a run of the whole to `to`. What is held has all of it, in one or several runs.
std::byte* copy_run(const HeldState& state, const StateTransfer::Run& run, std::byte* to) {
  auto next = std::ranges::upper_bound(state.runs, run.first, {}, &Held::Run::whole);
  --next;
  for (int64_t at = run.first; at < run.end(); ++next) {
    const int64_t inside = at - next->whole, count = std::min(next->count - inside, run.end() - at);
    std::memcpy(to, state.data.data() + (next->held + inside) * state.size,
                static_cast<size_t>(count * state.size));
    to += count * state.size;
    at += count;
  }
  return to;
}

}  // namespace

Switching::Switching(const PlanSet& from, const PlanSet& to, double timeout_s,
                     StateTransfer transfer)
    : from_(from),
      to_(to),
      timeout_s_(timeout_s),
      transfer_(std::move(transfer)),
      ranks_(static_cast<size_t>(from.world())) {}

Result<std::unique_ptr<Switching>> Switching::plan(const PlanSet& from, const PlanSet& to,
                                                   double timeout_s) {
  PIPER_ASSIGN(StateTransfer transfer, plan_transfer(from, to));
  const std::vector<Finding> findings = verify_transfer(transfer, from, to);
  if (!findings.empty())
    return fail("the transfer of states from {} to {} is not proved: {}", from.directory,
                to.directory, findings[0].text)
        .with_code(ExitCode::kRefused);
  return std::unique_ptr<Switching>(new Switching(from, to, timeout_s, std::move(transfer)));
}

// Packs what each rank gets of this one, itself among them.
Status Switching::pack(Executor& executor, int64_t rank, Buffers& out) const {
  const RoleProgram& role = executor.role();
  const std::vector<int64_t> coordinates = coordinates_of(role.mesh, rank);
  std::map<std::string, int32_t> numbers;
  for (size_t s = 0; s < transfer_.states.size(); ++s)
    numbers[transfer_.states[s].name] = static_cast<int32_t>(s);
  std::map<int32_t, HeldState> held;
  std::vector<std::pair<int32_t, std::byte*>> copies;
  for (size_t b = 0; b < role.buffers.size(); ++b) {
    const Tensor& tensor = role.tensor(role.buffers[b]);
    if (!is_stored(tensor)) continue;
    const auto number = numbers.find(names_of_state(role, tensor)[0]);
    if (number == numbers.end()) continue;
    HeldState& state = held[number->second];
    state.size = info(tensor.type.dtype).bytes;
    held_of(role, tensor, coordinates).for_each_run([&](const Held::Run& run) {
      state.runs.push_back(run);
    });
    std::ranges::sort(state.runs, {}, &Held::Run::whole);
    state.data.resize(static_cast<size_t>(tensor.type.bytes()));
    copies.emplace_back(static_cast<int32_t>(b), state.data.data());
  }
  PIPER_TRY(executor.copy_out(copies));
  for (const StateTransfer::Move& move : transfer_.moves) {
    if (move.from != rank) continue;
    auto& buffer = out.try_emplace(move.to, std::make_shared<Bytes8>()).first->second;
    const size_t at = buffer->size();
    buffer->resize(at + static_cast<size_t>(transfer_.bytes_of(move)));
    std::byte* to = buffer->data() + at;
    for (const StateTransfer::Run& run : move.runs) to = copy_run(held.at(move.state), run, to);
  }
  return ok_status();
}

// Returns what has come to a rank, by whom it came from, each run as a piece of its own.
CheckpointReader Switching::unpack(int64_t rank, const Buffers& in) const {
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
    const auto& buffer = in.at(move.from);
    for (const StateTransfer::Run& run : move.runs) {
      const int64_t bytes = run.count * info(whole.dtype).bytes;
      pieces[name].push_back(
          {Held{whole, {}, run.first, run.count},
           Bytes{buffer, buffer->data() + at[move.from], static_cast<size_t>(bytes)}});
      at[move.from] += bytes;
    }
  }
  return CheckpointReader::of_memory(from_.directory, {}, std::move(types), std::move(pieces));
}

Status Switching::move(Executor& executor, Transport& transport) {
  const auto began = std::chrono::steady_clock::now();
  Control& control = transport.control();
  Fabric& fabric = transport.fabric();
  const int64_t rank = control.rank();
  control.set_timeout(timeout_s_);
  control.activity().store("the switch to other plans", std::memory_order_release);
  Buffers out, in;
  PIPER_TRY(pack(executor, rank, out));
  if (out.contains(rank)) in[rank] = out[rank];
  std::map<int64_t, int64_t> awaited;  // bytes, by rank
  for (const StateTransfer::Move& move : transfer_.moves)
    if (move.to == rank && move.from != rank) awaited[move.from] += transfer_.bytes_of(move);
  for (const auto& [to, buffer] : out) {
    if (to == rank) continue;
    PIPER_ASSIGN(const int32_t route, fabric.add_send(to, 0, 1));
    PIPER_TRY(fabric.send(route, buffer->data(), std::ssize(*buffer)));
  }
  for (const auto& [from, bytes] : awaited) {
    in[from] = std::make_shared<Bytes8>(static_cast<size_t>(bytes));
    PIPER_ASSIGN(const int32_t route, fabric.add_recv(from, 0));
    PIPER_TRY(fabric.recv(route, in[from]->data(), bytes));
  }
  PIPER_TRY(fabric.wait_sends());
  Moved& moved = ranks_[static_cast<size_t>(rank)];
  moved.reader = std::make_unique<CheckpointReader>(unpack(rank, in));
  moved.states = std::make_unique<CheckpointStates>(*moved.reader, false);
  PIPER_TRY(control.barrier());
  if (rank == 0)
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return ok_status();
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
