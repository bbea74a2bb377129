// Makes the rows of plans, and matches what they send with what others receive.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "wires.h"

namespace piper::timeline {
namespace {

class Matcher {
 public:
  Matcher(const PlanSet& set, const Machine& machine, Timeline& out, Matched& all)
      : set_(set), machine_(machine), out_(out), rows_(all.rows), transfers_(all.transfers) {}

  Status run(int32_t steps) {
    PIPER_TRY(check_roles());
    return make_rows(steps);
  }
  size_t ports() const { return port_of_.size(); }

 private:
  // Checks what no reader of a single role can see, as the verifier does not run here.
  Status check_roles() const {
    const RoleProgram& first = set_.roles[0];
    for (const RoleProgram& role : set_.roles)
      if (role.steps_ahead != first.steps_ahead ||
          role.outer_updates.size() != first.outer_updates.size())
        return fail(
                   "the plans do not belong together: some overlap {} steps and have {} outer "
                   "updates, others {} and {}",
                   first.steps_ahead, first.outer_updates.size(), role.steps_ahead,
                   role.outer_updates.size())
            .with_note("help: piper-verify says what is wrong with the plans")
            .with_code(ExitCode::kPlan);
    return ok_status();
  }

  // ---- Rows: a rank of those that do the same ----
  Status make_rows(int32_t steps) {
    PIPER_ASSIGN(const std::vector<int64_t> same, same_ranks());
    out_.row_of_rank.resize(same.size());
    for (size_t rank = 0; rank < same.size(); ++rank) {
      if (at(same[rank]) == rank) {
        out_.row_of_rank[rank] = static_cast<int32_t>(out_.rows.size());
        out_.rows.emplace_back();
      } else {
        out_.row_of_rank[rank] = out_.row_of_rank[at(same[rank])];
      }
      out_.rows[at(out_.row_of_rank[rank])].ranks.push_back(static_cast<int64_t>(rank));
    }
    rows_.resize(out_.rows.size());
    for (size_t r = 0; r < rows_.size(); ++r) {
      Row& row = rows_[r];
      row.out = &out_.rows[r];
      row.rank = row.out->ranks.front();
      row.out->role = &set_.roles[at(set_.role_of_rank[at(row.rank)])];
      PIPER_ASSIGN(const RankCosts costs, machine_.costs_of(set_, row.rank));
      fill_row(row, costs, steps);
    }
    for (size_t row = 0; row < rows_.size(); ++row) match(static_cast<int32_t>(row));
    return ok_status();
  }
  // Returns by rank the first rank that differs only on axes along which all ranks have one role
  // and are at places of one kind.
  Result<std::vector<int64_t>> same_ranks() const {
    const auto& mesh = set_.roles[at(set_.role_of_rank[0])].mesh;
    for (const int32_t role : set_.role_of_rank)
      if (set_.roles[at(role)].mesh != mesh)
        return fail("the plans of other ranks are not at hand: name their folder");
    std::vector<int64_t> same(at(set_.world())), places(same.size());
    for (size_t rank = 0; rank < same.size(); ++rank) {
      same[rank] = static_cast<int64_t>(rank);
      places[rank] = machine_.place_of(set_, same[rank]);
    }
    int64_t stride = 1;
    for (size_t a = mesh.size(); a-- > 0; stride *= mesh[a].second) {
      const auto first = [&](int64_t rank) {
        return rank - rank / stride % mesh[a].second * stride;
      };
      bool alike = true;
      for (int64_t rank = 0; rank < set_.world() && alike; ++rank)
        alike = set_.role_of_rank[at(rank)] == set_.role_of_rank[at(first(rank))] &&
                places[at(rank)] == places[at(first(rank))];
      for (int64_t& rank : same)
        if (alike) rank = first(rank);
    }
    return same;
  }

  // ---- Messages and collectives: the n-th of a sender is the n-th of its receiver ----
  using ChainKey = std::tuple<bool, int32_t, std::vector<int32_t>>;  // message, communicator, rows
  int32_t transfer_of(size_t chain, size_t turn) {
    std::vector<int32_t>& known = chains_[chain];
    while (known.size() <= turn) {
      const auto added = static_cast<int32_t>(transfers_.size());
      transfers_.emplace_back();
      if (!known.empty()) {
        transfers_.back().previous = known.back();
        transfers_[at(known.back())].next = added;
      }
      known.push_back(added);
    }
    return known[turn];
  }
  size_t chain_of(ChainKey key) {
    const auto [chain, is_new] = chain_numbers_.try_emplace(std::move(key), chains_.size());
    if (is_new) chains_.emplace_back();
    return chain->second;
  }
  void match(int32_t index) {
    Row& row = rows_[at(index)];
    const RoleProgram& role = *row.out->role;
    const std::vector<int64_t> own = coordinates_of(role.mesh, row.rank);
    std::vector<std::vector<int32_t>> members;  // rows, by group
    for (const Group& group : role.groups) {
      std::set<int32_t> rows;
      for (const int64_t rank : group_ranks(role, group, own))
        rows.insert(out_.row_of_rank[at(rank)]);
      members.emplace_back(rows.begin(), rows.end());
    }
    // By kind of end, communicator, and peer or group: the chain, and how many are matched.
    std::map<std::tuple<int, int32_t, int32_t>, std::pair<size_t, size_t>> turns;
    for (size_t s = 0; s < row.steps.size(); ++s) {
      const Instruction& one = *row.out->steps[s].one;
      const bool sends = one.kind == InstructionKind::kSend;
      const bool is_message = sends || one.kind == InstructionKind::kRecv;
      if (!is_message && !is_collective(one.kind)) continue;
      const int32_t with =
          is_message ? out_.row_of_rank[at(peer_rank(role, one.peer, own))] : one.group;
      const auto [turn, is_new] = turns.try_emplace(std::tuple(sends        ? 0
                                                               : is_message ? 1
                                                                            : 2,
                                                               one.communicator, with));
      if (is_new)
        turn->second.first = chain_of({is_message, one.communicator,
                                       !is_message ? members[at(one.group)]
                                       : sends     ? std::vector{index, with}
                                                   : std::vector{with, index}});
      const int32_t transfer = transfer_of(turn->second.first, turn->second.second++);
      row.steps[s].transfer = transfer;
      is_message ? join_message(index, static_cast<int32_t>(s), sends)
                 : join_collective(index, static_cast<int32_t>(s), members[at(one.group)].size());
    }
  }
  void join_message(int32_t index, int32_t number, bool sends) {
    const TimedStep& step = out_.rows[at(index)].steps[at(number)];
    Transfer& message = transfers_[at(rows_[at(index)].steps[at(number)].transfer)];
    message.needed = machine_.sends_wait ? 2 : 1;
    message.rows.insert(index);
    occupy(message, index, step.cost, sends ? 0 : 1);
    if (!sends) return;
    message.latency = step.cost.latency;
    message.wire = step.cost.wire;
    message.sender_row = index;
    message.sender_section = step.section;
    ++rows_[at(index)].sections[at(step.section)].left;
  }
  void join_collective(int32_t index, int32_t number, size_t members) {
    const TimedStep& step = out_.rows[at(index)].steps[at(number)];
    Transfer& meeting = transfers_[at(rows_[at(index)].steps[at(number)].transfer)];
    meeting.needed = static_cast<int32_t>(members);
    meeting.rows.insert(index);
    meeting.latency = std::max(meeting.latency, step.cost.latency);
    meeting.wire = std::max(meeting.wire, step.cost.wire);
    for (const int direction : {0, 1}) occupy(meeting, index, step.cost, direction);
  }
  void occupy(Transfer& transfer, int32_t row, const StepCost& cost, int direction) {
    for (const auto& [link, share] : cost.links) {
      const auto [port, is_new] = port_of_.try_emplace(std::tuple(row, link, direction), 0);
      if (is_new) port->second = static_cast<int32_t>(port_of_.size()) - 1;
      transfer.ports.push_back({port->second, share});
    }
  }

  const PlanSet& set_;
  const Machine& machine_;
  Timeline& out_;
  std::vector<Row>& rows_;
  std::vector<Transfer>& transfers_;
  std::map<ChainKey, size_t> chain_numbers_;
  std::vector<std::vector<int32_t>> chains_;  // transfers of one communicator, in order
  std::map<std::tuple<int32_t, int32_t, int>, int32_t> port_of_;  // row, link, direction
};

}  // namespace

Status match_rows(const PlanSet& set, const Machine& machine, int32_t steps, Timeline& out,
                  Matched& all) {
  Matcher matcher(set, machine, out, all);
  PIPER_TRY(matcher.run(steps));
  all.ports = matcher.ports();
  return ok_status();
}

}  // namespace piper::timeline
