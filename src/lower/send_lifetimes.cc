#include "send_lifetimes.h"

#include <algorithm>
#include <map>

namespace piper {
namespace {

// clock[cell][i][other]: instructions of `other` known complete when instruction i of `cell` has
// run.
using Clock = std::vector<int32_t>;

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

}  // namespace

std::vector<std::vector<int64_t>> send_lifetimes(const std::vector<RoleProgram>& roles,
                                                 const std::vector<Transfer>& transfers) {
  const size_t cells = roles.size();
  std::vector<std::vector<int64_t>> held(cells);
  for (size_t c = 0; c < cells; ++c) held[c].assign(roles[c].body.size(), -1);
  if (transfers.empty()) return held;

  std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int32_t>> send_of;  // receive -> send
  for (const Transfer& t : transfers)
    send_of[{t.to_cell, t.recv_position}] = {t.from_cell, t.send_position};
  std::vector<std::vector<Clock>> clock(cells);
  std::vector<Clock> now(cells, Clock(cells, -1));
  std::vector<size_t> next(cells);
  for (size_t c = 0; c < cells; ++c) clock[c].resize(roles[c].body.size());
  std::vector<std::map<int32_t, bool>> joins(cells);
  const auto is_join = [&](size_t c, const Instruction& instruction) {
    auto [it, is_new] = joins[c].try_emplace(instruction.group, false);
    if (is_new) it->second = crosses_cells(roles[c], instruction, roles);
    return it->second;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t c = 0; c < cells; ++c) {
      for (; next[c] < roles[c].body.size(); ++next[c], progress = true) {
        const Instruction& instruction = roles[c].body[next[c]];
        if (instruction.kind == InstructionKind::kRecv) {
          const auto [from, position] =
              send_of.at({static_cast<int32_t>(c), static_cast<int32_t>(next[c])});
          if (next[static_cast<size_t>(from)] <= static_cast<size_t>(position)) break;
          const Clock& sent = clock[static_cast<size_t>(from)][static_cast<size_t>(position)];
          for (size_t k = 0; k < cells; ++k) now[c][k] = std::max(now[c][k], sent[k]);
        } else if (instruction.kind == InstructionKind::kAllReduce && is_join(c, instruction)) {
          // Joins every cell: all must have arrived. Each then knows what all knew.
          const bool all_here =
              std::all_of(roles.begin(), roles.end(), [&](const RoleProgram& role) {
                const size_t k = static_cast<size_t>(&role - roles.data());
                return next[k] < role.body.size() &&
                       role.body[next[k]].kind == InstructionKind::kAllReduce &&
                       is_join(k, role.body[next[k]]);
              });
          if (!all_here) break;
          Clock all(cells, -1);
          for (size_t k = 0; k < cells; ++k) {
            now[k][k] = static_cast<int32_t>(next[k]) - 1;
            for (size_t j = 0; j < cells; ++j) all[j] = std::max(all[j], now[k][j]);
          }
          for (size_t k = 0; k < cells; ++k) {
            now[k] = all;
            now[k][k] = static_cast<int32_t>(next[k]);
            clock[k][next[k]] = now[k];
            if (k != c) ++next[k];
          }
          continue;
        }
        now[c][c] = static_cast<int32_t>(next[c]);
        clock[c][next[c]] = now[c];
      }
    }
  }
  for (const Transfer& t : transfers) {
    const auto& known = clock[static_cast<size_t>(t.from_cell)];
    const auto to = static_cast<size_t>(t.to_cell);
    int64_t last = t.send_position;
    while (last + 1 < static_cast<int64_t>(known.size()) &&
           (known[static_cast<size_t>(last + 1)].empty() ||
            known[static_cast<size_t>(last + 1)][to] < t.recv_position))
      ++last;
    if (last + 1 == static_cast<int64_t>(known.size())) last = static_cast<int64_t>(known.size());
    held[static_cast<size_t>(t.from_cell)][static_cast<size_t>(t.send_position)] = last;
  }
  return held;
}

}  // namespace piper
