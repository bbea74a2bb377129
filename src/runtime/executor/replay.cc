// Compares the two runs of a step. The executor calls it where a step is to be replayed.
#include "replay.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "holders.h"

namespace piper {
namespace {

// Returns the first instruction of the update: the first that computes what is kept, of pass U.
size_t update_begins(const RoleProgram& role) {
  const auto updates = [&](const Instruction& one) {
    if (one.kind != InstructionKind::kCompute || one.pass != TaskPass::kU) return false;
    const std::vector<bool>& written = role.programs[static_cast<size_t>(one.program)].arg_written;
    for (size_t k = 0; k < one.args.size(); ++k)
      if (written[k] && role.tensor(one.args[k]).kind == BufferKind::kState) return true;
    return false;
  };
  return static_cast<size_t>(std::ranges::find_if(role.body, updates) - role.body.begin());
}

// Counts by what ranks do together, how often each of them does it within its part.
using Counts = std::map<std::pair<int32_t, std::vector<int64_t>>, std::map<int64_t, int64_t>>;

void count_part(const RoleProgram& role, int64_t rank, Counts& messages, Counts& collectives) {
  const std::vector<int64_t> own = coordinates_of(role.mesh, rank);
  const size_t end = update_begins(role);
  for (size_t i = 0; i < end; ++i) {
    const Instruction& one = role.body[i];
    if (is_collective(one.kind)) {
      const std::vector<int64_t> members =
          group_ranks(role, role.groups[static_cast<size_t>(one.group)], own);
      ++collectives[{one.communicator, members}][rank];
    } else if (one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv) {
      const int64_t peer = peer_rank(role, one.peer, own);
      const bool sends = one.kind == InstructionKind::kSend;
      const std::vector<int64_t> way = sends ? std::vector{rank, peer} : std::vector{peer, rank};
      ++messages[{one.communicator, way}][sends ? 0 : 1];
    }
  }
}

// Checks that what a rank waits for within its part is within the others', too.
Status check_closed(const PlanSet& set) {
  Counts messages, collectives;
  for (const auto role : set.role_of_rank)
    if (static_cast<size_t>(role) >= set.roles.size())
      return fail("--replay reads the plans of all ranks, and here is one of them alone")
          .with_code(ExitCode::kUsage);
  for (int64_t rank = 0; rank < set.world(); ++rank)
    count_part(set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])], rank,
               messages, collectives);
  const auto open = [](std::string what) {
    return fail("--replay is not supported for these plans: {}", what).with_code(ExitCode::kUsage);
  };
  for (const auto& [way, counts] : messages)
    if (counts.size() != 2 || counts.at(0) != counts.at(1))
      return open(
          fmt::format("rank {} sends to rank {} before one of them begins its update, and "
                      "after the other one has",
                      way.second[0], way.second[1]));
  for (const auto& [group, counts] : collectives) {
    const auto differs = [&, first = counts.begin()->second](int64_t member) {
      const auto found = counts.find(member);
      return found == counts.end() || found->second != first;
    };
    if (std::ranges::any_of(group.second, differs))
      return open(
          fmt::format("a collective of ranks {} is before the update of one of them, and "
                      "after that of another",
                      fmt::join(group.second, ", ")));
  }
  return ok_status();
}

bool writes(const RoleProgram& role, const Instruction& one, size_t arg) {
  if (one.kind == InstructionKind::kCompute)
    return role.programs[static_cast<size_t>(one.program)].arg_written[arg];
  switch (one.kind) {
    case InstructionKind::kSend:
      return false;
    case InstructionKind::kCopy:
      return arg == 1;
    default:
      return !takes_pairs(one.kind) || arg % 2 == 1;
  }
}

// Takes the least number that a rank has.
Status take_least(Control& control, uint64_t& least) {
  PIPER_TRY(control.merge(std::as_writable_bytes(std::span(&least, 1)),
                          "comparison of its two runs", [&](std::span<const std::byte> theirs) {
                            uint64_t other = 0;
                            std::memcpy(&other, theirs.data(), sizeof other);
                            least = std::min(least, other);
                          }));
  return ok_status();
}

}  // namespace

// Adds what an instruction writes, and which of it is kept for the next step.
void Replay::note_written(size_t i) {
  const Instruction& one = state_.role->body[i];
  for (size_t k = 0; k < one.args.size(); ++k) {
    if (!writes(*state_.role, one, k)) continue;
    const auto bytes = static_cast<size_t>(state_.type(one.args[k]).bytes());
    written_[i].push_back({state_.at(one.args[k]), bytes});
    const bool is_kept = state_.role->tensor(one.args[k]).kind == BufferKind::kState;
    if (is_kept) kept_.push_back({one.args[k], std::vector<std::byte>(bytes)});
  }
}

Result<std::unique_ptr<Replay>> Replay::open(Executor::State& state, int64_t every) {
  const auto refuse = [](const char* why) {
    return fail("--replay is not supported {}", why).with_code(ExitCode::kUsage);
  };
  if (state.backend.is_asynchronous()) return refuse("on a GPU");
  if (state.role->steps_ahead > 0) return refuse("where steps overlap (weight_versions)");
  PIPER_TRY(check_closed(*state.source.set));
  std::unique_ptr<Replay> made(new Replay(state));
  made->every_ = every;
  made->end_ = update_begins(*state.role);
  made->digests_.resize(made->end_);
  made->written_.resize(made->end_);
  for (size_t i = 0; i < made->end_; ++i) made->note_written(i);
  return made;
}

Status Replay::run_first(int64_t step) {
  for (auto& [buffer, before] : kept_) std::memcpy(before.data(), state_.at(buffer), before.size());
  compares_ = false;
  other_.reset();
  for (size_t i = 0; i < end_; ++i) {
    const Op& op = state_.body.ops[i];
    state_.activity.store(op.label, std::memory_order_release);
    state_.recorder.lines[0].note(op.label, step, now_us());
    if (Status status = run_op(state_, op); !status)
      return located(op, step, std::move(status).error());
    if (state_.fault_at == static_cast<int64_t>(i)) PIPER_TRY(do_fault(state_));
    note(i);
  }
  for (const auto& [buffer, before] : kept_)
    std::memcpy(state_.at(buffer), before.data(), before.size());
  compares_ = true;
  return wait_sends(state_, step);
}

void Replay::note(size_t instruction) {
  if (instruction >= end_) return;
  uint64_t all = instruction;
  for (const Run& run : written_[instruction])
    all = all * 0x9e3779b97f4a7c15 + number_of(as_text({run.data, run.bytes}));
  if (!compares_) digests_[instruction] = all;
  if (compares_ && all != digests_[instruction] && !other_) other_ = instruction;
}

Status Replay::compare(int64_t step) {
  compares_ = false;
  // What a rank computes itself counts before what it has from another one; then the lowest rank.
  uint64_t first = UINT64_MAX;
  if (other_) {
    const bool is_own = state_.body.ops[*other_].kind == InstructionKind::kCompute;
    first = (is_own ? 0 : uint64_t{1} << 62) + static_cast<uint64_t>(state_.source.rank);
  }
  const uint64_t own = first;
  PIPER_TRY(take_least(state_.control, first));
  if (first == UINT64_MAX) return ok_status();
  if (first != own) return state_.control.barrier();  // the one that has it says so
  return fail("step {}, rank {}, {}: it gave other bits when it ran again with the same inputs",
              step + 1, state_.source.rank, state_.body.ops[*other_].label)
      .with_code(ExitCode::kNumeric)
      .with_note(
          "the update of this step was not made; the device or its memory is not to be "
          "trusted");
}

}  // namespace piper
