// Where a plan is changed, for the kinds of mutations.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "mutation/mutations.h"

namespace piper::mutation {

using Done = std::optional<std::string>;
using Filter = bool (*)(const Instruction&);

inline size_t below(Random& random, size_t count) { return static_cast<size_t>(random() % count); }

inline RoleProgram& any_role(PlanSet& set, Random& random) {
  return set.roles[below(random, set.roles.size())];
}

inline bool is_compute(const Instruction& i) { return i.kind == InstructionKind::kCompute; }
inline bool is_collective(const Instruction& i) { return piper::is_collective(i.kind); }
inline bool is_optimizer(const ProgramOp& op) {
  return op.op == "Sgd" || op.op == "AdamW" || op.op == "Adagrad" || op.op == "OnnxAdam";
}
// The ranks of a group.
inline int64_t members_of(const RoleProgram& role, int32_t group) {
  int64_t members = 1;
  for (const int32_t axis : role.groups[static_cast<size_t>(group)].axes)
    members *= role.mesh[static_cast<size_t>(axis)].second;
  return members;
}

// A place in the body of a role.
struct Spot {
  RoleProgram* role = nullptr;
  size_t index = 0;
  Instruction& at() const { return role->body[index]; }
  std::string name() const { return fmt::format("{} '{}'", index, at().label); }
};
inline std::optional<Spot> any_spot(PlanSet& set, Random& random, Filter filter) {
  std::vector<Spot> spots;
  for (RoleProgram& role : set.roles)
    for (size_t i = 0; i < role.body.size(); ++i)
      if (filter(role.body[i])) spots.push_back({&role, i});
  if (spots.empty()) return std::nullopt;
  return spots[below(random, spots.size())];
}
// One of the instruction's arguments, of which there are some, is another buffer of the same type.
inline Done take_another(PlanSet& set, Random& random, Filter filter) {
  const auto spot = any_spot(set, random, filter);
  if (!spot) return std::nullopt;
  const RoleProgram& role = *spot->role;
  int32_t& arg = spot->at().args[below(random, spot->at().args.size())];
  std::vector<int32_t> others;
  for (size_t b = 0; b < role.buffers.size(); ++b)
    if (static_cast<int32_t>(b) != arg && role.tensor(b).type == role.tensor(arg).type)
      others.push_back(static_cast<int32_t>(b));
  if (others.empty()) return std::nullopt;
  const int32_t other = others[below(random, others.size())];
  const std::string text =
      fmt::format("{}: '{}' instead of '{}'", spot->name(), role.name(other), role.name(arg));
  arg = other;
  return text;
}
// The body in a new order: `order` lists old positions, and may leave some out or name some twice.
inline void reorder(RoleProgram& role, const std::vector<size_t>& order) {
  std::vector<int32_t> place(role.body.size(), -1);
  for (size_t i = 0; i < order.size(); ++i)
    if (place[order[i]] < 0) place[order[i]] = static_cast<int32_t>(i);
  std::vector<Instruction> body;
  for (size_t old : order) {
    Instruction one = role.body[old];
    std::vector<int32_t> waits;
    for (int32_t wait : one.waits)
      if (place[static_cast<size_t>(wait)] >= 0) waits.push_back(place[static_cast<size_t>(wait)]);
    std::sort(waits.begin(), waits.end());
    one.waits = std::move(waits);
    body.push_back(std::move(one));
  }
  role.body = std::move(body);
}
inline std::vector<size_t> positions(const RoleProgram& role) {
  std::vector<size_t> order(role.body.size());
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

}  // namespace piper::mutation
