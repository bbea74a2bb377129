// Finds which elements of states travel between which ranks: the intersections of what ranks hold
// before and after. Called before a job begins that will switch to other plans.
#include "piper/plan/transfer.h"

#include <algorithm>

namespace piper {
namespace {

using Runs = std::vector<StateTransfer::Run>;

// Sorts runs, and joins those that touch or overlap.
Runs joined(Runs runs) {
  if (!std::ranges::is_sorted(runs, {}, &StateTransfer::Run::first))
    std::ranges::sort(runs, {}, &StateTransfer::Run::first);
  Runs out;
  for (const StateTransfer::Run& run : runs) {
    if (out.empty() || run.first > out.back().end())
      out.push_back(run);
    else
      out.back().count = std::max(out.back().end(), run.end()) - out.back().first;
  }
  return out;
}

Runs runs_of_held(const Held& held) {
  Runs runs;
  held.for_each_run([&](const Held::Run& run) { runs.push_back({run.whole, run.count}); });
  return joined(std::move(runs));
}

// Splits runs into those that `by` has and those that it has not. Both are joined.
struct SplitRuns {
  Runs inside, outside;
};
SplitRuns split(const Runs& runs, const Runs& by) {
  SplitRuns split;
  auto other = by.begin();
  for (const StateTransfer::Run& run : runs) {
    int64_t at = run.first;
    while (other != by.end() && other->end() <= at) ++other;
    for (auto next = other; at < run.end(); ++next) {
      const int64_t begin = next == by.end() ? run.end() : std::clamp(next->first, at, run.end());
      if (begin > at) split.outside.push_back({at, begin - at});
      at = begin;
      if (at == run.end()) break;
      const int64_t end = std::min(next->end(), run.end());
      split.inside.push_back({at, end - at});
      at = end;
    }
  }
  return split;
}

int64_t count(const Runs& runs) {
  int64_t elements = 0;
  for (const StateTransfer::Run& run : runs) elements += run.count;
  return elements;
}

// Holds the elements of a state that several ranks have alike.
struct Share {
  Runs runs;
  std::vector<int64_t> ranks;
};
// By what is held, as text: ranks with the same are told apart only where one of them sends.
using Shares = std::map<std::string, Share>;

// Visits what ranks have of states: visit(rank, role, tensor, held).
template <class Visit>
void for_each_state(const PlanSet& set, Visit visit) {
  for (int64_t rank = 0; rank < set.world(); ++rank) {
    const RoleProgram& role =
        set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])];
    const std::vector<int64_t> coordinates = coordinates_of(role.mesh, rank);
    for (const Buffer& buffer : role.buffers) {
      const Tensor& tensor = role.tensor(buffer);
      if (tensor.kind == BufferKind::kState)
        visit(rank, role, tensor, held_of(role, tensor, coordinates));
    }
  }
}

void add_share(Shares& shares, const Held& held, int64_t rank) {
  const auto [place, is_new] = shares.try_emplace(to_string(held));
  if (is_new) place->second.runs = runs_of_held(held);
  std::vector<int64_t>& ranks = place->second.ranks;
  if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
}

// Holds the elements of a state that a rank needs, in one type or in several.
struct Need {
  Runs runs;
  int64_t bytes = 0;  // of the widest type of an element
};

class Planner {
 public:
  Planner(const PlanSet& from, const PlanSet& to) : types_(held_states(from)) {
    for_each_state(
        from, [&](int64_t rank, const RoleProgram& role, const Tensor& tensor, const Held& held) {
          if (is_stored(tensor)) add_share(before_[names_of_state(role, tensor)[0]], held, rank);
        });
    for_each_state(
        to, [&](int64_t rank, const RoleProgram& role, const Tensor& tensor, const Held& held) {
          const auto name = name_held(types_, names_of_state(role, tensor));
          if (!name) return;
          Need& need = needs_[*name][rank];
          const Runs& more = runs_of(held);
          need.runs.insert(need.runs.end(), more.begin(), more.end());
          need.bytes = std::max<int64_t>(need.bytes, info(held.whole.dtype).bytes);
        });
  }

  Result<StateTransfer> plan() {
    for (auto& [name, by_rank] : needs_) {
      state_ = static_cast<int32_t>(transfer_.states.size());
      transfer_.states.push_back({name, types_.at(name)});
      for (auto& [rank, need] : by_rank) {
        need.runs = joined(std::move(need.runs));
        PIPER_TRY(give(before_.at(name), rank, need));
      }
    }
    std::ranges::sort(transfer_.moves, {}, [](const StateTransfer::Move& move) {
      return std::tuple(move.from, move.to, move.state);
    });
    return std::move(transfer_);
  }

 private:
  const Runs& runs_of(const Held& held) {
    const auto [place, is_new] = known_.try_emplace(to_string(held));
    if (is_new) place->second = runs_of_held(held);
    return place->second;
  }
  void move(int64_t from, int64_t to, Runs runs) {
    if (runs.empty()) return;
    StateTransfer::Move& move = transfer_.moves.emplace_back();
    move = {from, to, state_, std::move(runs)};
    (from == to ? transfer_.kept_bytes : transfer_.moved_bytes) += transfer_.bytes_of(move);
  }

  // A rank keeps what it has. Of those that hold the rest alike, different ranks ask different
  // ones.
  Status give(const Shares& shares, int64_t rank, const Need& need) {
    Runs own;
    for (const auto& [text, share] : shares)
      if (std::ranges::binary_search(share.ranks, rank))
        own.insert(own.end(), share.runs.begin(), share.runs.end());
    SplitRuns part = split(need.runs, joined(std::move(own)));
    move(rank, rank, std::move(part.inside));
    const StateTransfer::State& state = transfer_.states.back();
    transfer_.least_bytes +=
        count(part.outside) * std::min<int64_t>(need.bytes, info(state.whole.dtype).bytes);
    for (const auto& [text, share] : shares) {
      if (part.outside.empty()) break;
      part = split(part.outside, share.runs);
      const auto turn = static_cast<size_t>(rank) % share.ranks.size();
      move(share.ranks[turn], rank, std::move(part.inside));
    }
    if (part.outside.empty()) return ok_status();
    return fail("no rank holds element {} of '{}'", part.outside[0].first,
                quote_control(state.name))
        .with_code(ExitCode::kPlan);
  }

  const std::map<std::string, TensorType> types_;
  std::map<std::string, Shares> before_;                  // by state
  std::map<std::string, std::map<int64_t, Need>> needs_;  // by state and rank
  std::map<std::string, Runs> known_;                     // by what is held
  int32_t state_ = 0;
  StateTransfer transfer_;
};

// Returns a number of runs that what is held has at most.
int64_t most_runs(const Held& held) {
  int32_t last = 0;
  int64_t stretches = 1, lines = 1;  // of a line along the last dim that is cut; lines
  for (const Held::Block& block : held.blocks) last = std::max(last, block.dim);
  for (const Held::Block& block : held.blocks)
    if (block.dim == last) stretches += block.outer;
  for (int32_t d = 0; d < last; ++d) lines *= held.whole.shape[static_cast<size_t>(d)];
  return held.blocks.empty() ? 1 : std::min(lines, held.count) * stretches + 2;
}

// Lists of runs take memory and time by the runs, of which a small file may name any number.
Status check_runs(const PlanSet& set) {
  constexpr int64_t kMost = int64_t{1} << 26;
  int64_t runs = 0;
  std::string name;
  for_each_state(set, [&](int64_t, const RoleProgram&, const Tensor& tensor, const Held& held) {
    if (runs > kMost) return;
    runs += most_runs(held);
    name = tensor.name;
  });
  if (runs <= kMost) return ok_status();
  return fail(
             "the ranks of {} hold their states in more than {} runs, up to '{}': a job cannot "
             "switch with so many",
             set.directory, kMost, quote_control(name))
      .with_code(ExitCode::kPlan)
      .with_note("help: end it with a checkpoint, and start the other plans with --resume");
}

}  // namespace

int64_t StateTransfer::bytes_of(const Move& move) const {
  return count(move.runs) * info(states[static_cast<size_t>(move.state)].whole.dtype).bytes;
}

std::map<std::string, TensorType> held_states(const PlanSet& set) {
  std::map<std::string, TensorType> types;
  for (const RoleProgram& role : set.roles)
    for (const Buffer& buffer : role.buffers) {
      const Tensor& tensor = role.tensor(buffer);
      if (is_stored(tensor)) types.emplace(names_of_state(role, tensor)[0], tensor.whole_type());
    }
  return types;
}

std::optional<std::string> name_held(const std::map<std::string, TensorType>& held,
                                     std::span<const std::string> names) {
  for (const std::string& name : names)
    if (held.contains(name)) return name;
  return std::nullopt;
}

Result<StateTransfer> plan_transfer(const PlanSet& from, const PlanSet& to) {
  if (from.world() != to.world())
    return fail("{} is for {} rank{} and {} for {}: a job switches on the ranks that it has",
                from.directory, from.world(), from.world() == 1 ? "" : "s", to.directory,
                to.world())
        .with_code(ExitCode::kUsage)
        .with_note("help: end it with a checkpoint, and start the other plans with --resume");
  PIPER_TRY(check_runs(from));
  PIPER_TRY(check_runs(to));
  return Planner(from, to).plan();
}

}  // namespace piper
