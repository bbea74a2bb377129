// Communicators for plans that tests make or change: what stands in a plan's list follows from its
// groups, peers and streams.
#pragma once

#include <algorithm>
#include <map>

#include "piper/plan/bundle.h"

namespace piper {

// Lists in all roles what their messages and collectives need, and names it in these: one for each
// group and stream; for each ordered pair, one for each number that its messages had before.
inline void give_communicators(PlanSet& set) {
  std::vector<Communicator> all;
  std::map<std::tuple<std::vector<int32_t>, int32_t>, int32_t> groups;
  std::map<std::tuple<std::vector<int32_t>, std::vector<int32_t>, int32_t>, int32_t> pairs;
  const auto each = [&](auto visit) {
    for (size_t r = 0; r < set.roles.size(); ++r) {
      RoleProgram& role = set.roles[r];
      const auto rank = std::find(set.role_of_rank.begin(), set.role_of_rank.end(), r);
      const std::vector<int64_t> own = coordinates_of(role.mesh, rank - set.role_of_rank.begin());
      for (auto* section : {&role.prologue, &role.body, &role.epilogue})
        for (Instruction& one : *section) visit(role, own, one);
    }
  };
  each([&](RoleProgram& role, const std::vector<int64_t>& own, Instruction& one) {
    const bool sends = one.kind == InstructionKind::kSend;
    if (sends || one.kind == InstructionKind::kRecv) {
      std::vector<int32_t> here = one.peer;
      for (size_t a = 0; a < here.size() && a < own.size(); ++a)
        if (here[a] >= 0) here[a] = static_cast<int32_t>(own[a]);
      const auto& from = sends ? here : one.peer;
      const auto& to = sends ? one.peer : here;
      const auto [known, is_new] =
          pairs.try_emplace({from, to, one.communicator}, static_cast<int32_t>(all.size()));
      if (is_new) all.push_back({.from = from, .to = to, .streams = {0, 0}});
      one.communicator = known->second;
      all[static_cast<size_t>(known->second)].streams[sends ? 0 : 1] = one.stream;
    } else if (is_collective(one.kind)) {
      const std::vector<int32_t>& axes = role.groups[static_cast<size_t>(one.group)].axes;
      const auto [known, is_new] =
          groups.try_emplace({axes, one.stream}, static_cast<int32_t>(all.size()));
      if (is_new) all.push_back({.axes = axes, .streams = {one.stream}});
      one.communicator = known->second;
    } else {
      one.communicator = -1;
    }
  });
  for (RoleProgram& role : set.roles) role.communicators = all;
}

}  // namespace piper
