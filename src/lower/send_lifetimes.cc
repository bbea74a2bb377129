#include "send_lifetimes.h"

#include <algorithm>
#include <map>

namespace piper {
namespace {

// What a cell knows from one of its instructions on: by cell, the last instruction known complete.
struct Row {
  int64_t since = 0;
  std::vector<int32_t> complete;
};

bool on_streams_of_their_own(const std::vector<RoleProgram>& roles) {
  for (const RoleProgram& role : roles)
    for (const Instruction& one : role.body)
      if (one.stream != 0 &&
          (one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv))
        return true;
  return false;
}

}  // namespace

bool crosses_cells(const RoleProgram& role, const Instruction& instruction,
                   const std::vector<RoleProgram>& roles) {
  if (instruction.kind != InstructionKind::kAllReduce || roles.size() == 1) return false;
  // A group whose axes tell cells apart joins all cells.
  const auto& axes = role.groups[static_cast<size_t>(instruction.group)].axes;
  for (const RoleProgram& other : roles)
    for (const Instruction& i : other.body)
      for (int32_t axis : axes)
        if (!i.peer.empty() && i.peer[static_cast<size_t>(axis)] >= 0) return true;
  return false;
}

std::vector<std::vector<int64_t>> send_lifetimes(const std::vector<RoleProgram>& roles,
                                                 const std::vector<Transfer>& transfers) {
  if (on_streams_of_their_own(roles)) return lifetimes_by_stream(roles, transfers);
  const size_t cells = roles.size();
  std::vector<std::vector<int64_t>> held(cells);
  for (size_t c = 0; c < cells; ++c) held[c].assign(roles[c].body.size(), -1);
  if (transfers.empty()) return held;

  // By cell and instruction: of receives the transfer, of sends what was known when it ran.
  std::vector<std::vector<const Transfer*>> received(cells);
  std::vector<std::vector<size_t>> known(cells);
  // A cell's knowledge changes when it receives, or joins the others.
  std::vector<std::vector<Row>> rows(cells, {{0, std::vector<int32_t>(cells, -1)}});
  std::vector<size_t> next(cells);
  for (size_t c = 0; c < cells; ++c) {
    received[c].resize(roles[c].body.size());
    known[c].resize(roles[c].body.size());
  }
  for (const Transfer& t : transfers)
    received[static_cast<size_t>(t.to_cell)][static_cast<size_t>(t.recv_position)] = &t;
  std::vector<std::map<int32_t, bool>> joins(cells);
  const auto is_join = [&](size_t c, const Instruction& instruction) {
    if (instruction.kind != InstructionKind::kAllReduce) return false;
    auto [it, is_new] = joins[c].try_emplace(instruction.group, false);
    if (is_new) it->second = crosses_cells(roles[c], instruction, roles);
    return it->second;
  };
  // Whether the next instruction of `c` could run; notes what is known from then on.
  const auto receive = [&](size_t c, const Transfer& t) {
    const auto from = static_cast<size_t>(t.from_cell);
    if (next[from] <= static_cast<size_t>(t.send_position)) return false;
    const Row& sent = rows[from][known[from][static_cast<size_t>(t.send_position)]];
    Row now{static_cast<int64_t>(next[c]), rows[c].back().complete};
    for (size_t k = 0; k < cells; ++k)
      now.complete[k] = std::max(now.complete[k], sent.complete[k]);
    now.complete[from] = std::max(now.complete[from], t.send_position);
    rows[c].push_back(std::move(now));
    return true;
  };
  // Joins every cell: all must have arrived. Each then knows what all knew.
  const auto join = [&] {
    std::vector<int32_t> all(cells);
    for (size_t k = 0; k < cells; ++k) {
      if (next[k] == roles[k].body.size() || !is_join(k, roles[k].body[next[k]])) return false;
      all[k] = static_cast<int32_t>(next[k]) - 1;
    }
    for (size_t k = 0; k < cells; ++k) {
      rows[k].push_back({static_cast<int64_t>(next[k]), all});
      known[k][next[k]++] = rows[k].size() - 1;
    }
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t c = 0; c < cells; ++c)
      for (; next[c] < roles[c].body.size(); progress = true) {
        if (is_join(c, roles[c].body[next[c]])) {
          if (!join()) break;
          continue;
        }
        const Transfer* transfer = received[c][next[c]];
        if (transfer && !receive(c, *transfer)) break;
        known[c][next[c]++] = rows[c].size() - 1;
      }
  }
  for (const Transfer& t : transfers) {
    const auto from = static_cast<size_t>(t.from_cell), to = static_cast<size_t>(t.to_cell);
    const auto told = std::partition_point(rows[from].begin(), rows[from].end(), [&](const Row& r) {
      return r.complete[to] < t.recv_position;
    });
    held[from][static_cast<size_t>(t.send_position)] =
        told == rows[from].end() ? static_cast<int64_t>(roles[from].body.size()) : told->since - 1;
  }
  return held;
}

}  // namespace piper
