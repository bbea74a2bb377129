// Rules transfer and collective: what belongs together across cells.
#include <algorithm>
#include <map>

#include "model.h"

namespace piper {
namespace {

std::string type_of(const Model& model, const Section& section, Spot place, size_t arg = 0) {
  return to_string(model.cells[place.cell].role->buffers[section.at(place).args[arg]].type);
}

// Sender cell, receiver cell, channel.
using Route = std::tuple<int32_t, int32_t, int32_t>;
struct Messages {
  std::vector<Spot> sends, recvs;
};

std::map<Route, Messages> find_routes(const Model& model, const Section& section) {
  std::map<Route, Messages> routes;
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    for (int32_t i = 0; i < static_cast<int32_t>(section.lists[c]->size()); ++i) {
      const Instruction& one = section.at({c, i});
      const bool send = one.kind == InstructionKind::kSend;
      if (!send && one.kind != InstructionKind::kRecv) continue;
      const int64_t rank = peer_rank(*model.cells[c].role, one.peer, model.cells[c].coordinates);
      const int32_t peer = model.cell_of_rank[rank];
      if (send)
        routes[{c, peer, one.channel}].sends.push_back({c, i});
      else
        routes[{peer, c, one.channel}].recvs.push_back({c, i});
    }
  return routes;
}

// Collectives of one set of ranks, by member cell. Two groups over the same axes are the same
// ranks.
using Ranks = std::pair<std::vector<int32_t>,
                        std::vector<int64_t>>;  // axes; the fixed coordinates, -1 on axes

std::map<Ranks, std::map<int32_t, std::vector<Spot>>> find_groups(const Model& model,
                                                                  const Section& section) {
  std::map<Ranks, std::map<int32_t, std::vector<Spot>>> groups;
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    for (int32_t i = 0; i < static_cast<int32_t>(section.lists[c]->size()); ++i) {
      const Instruction& one = section.at({c, i});
      if (!is_collective(one.kind)) continue;
      const RoleProgram& role = *model.cells[c].role;
      Ranks key{role.groups[one.group].axes, model.cells[c].coordinates};
      for (int32_t axis : key.first) key.second[axis] = -1;
      auto& members = groups[key];
      if (members.empty())
        for (int64_t rank : group_ranks(role, role.groups[one.group], model.cells[c].coordinates))
          members.try_emplace(model.cell_of_rank[rank]);
      members[c].push_back({c, i});
    }
  return groups;
}

bool same_collective(const Model& model, const Section& section, Spot a, Spot b) {
  const Instruction &one = section.at(a), &other = section.at(b);
  if (one.kind != other.kind || one.root != other.root || one.args.size() != other.args.size())
    return false;
  for (size_t k = 0; k < one.args.size(); ++k) {
    const TensorType& type = model.cells[a.cell].role->buffers[one.args[k]].type;
    const TensorType& other_type = model.cells[b.cell].role->buffers[other.args[k]].type;
    if (type.dtype != other_type.dtype ||
        num_elements(type.shape) != num_elements(other_type.shape))
      return false;
  }
  return true;
}

std::string describe(const Model& model, const Section& section, Spot place) {
  const Instruction& one = section.at(place);
  std::string text = fmt::format("{} ({} of", name_of(model, section, place), to_string(one.kind));
  for (size_t k = 0; k < one.args.size() && k < 3; ++k)
    text += " " + type_of(model, section, place, k);
  if (one.args.size() > 3) text += fmt::format(" and {} more", one.args.size() - 3);
  return text +
         (one.kind == InstructionKind::kBroadcast ? fmt::format(" from {})", one.root) : ")");
}

}  // namespace

void check_transfers(const Model& model, Section& section, Findings& findings,
                     VerifyReport& report) {
  for (const auto& [route, messages] : find_routes(model, section)) {
    const auto& [sends, recvs] = messages;
    for (size_t k = 0; k < std::max(sends.size(), recvs.size()); ++k) {
      if (k >= recvs.size()) {
        findings.add("transfer", "{} is never received by {}", name_of(model, section, sends[k]),
                     model.who(std::get<1>(route)));
      } else if (k >= sends.size()) {
        findings.add("transfer", "{} waits for a message that {} never sends",
                     name_of(model, section, recvs[k]), model.who(std::get<0>(route)));
      } else {
        section.partner[sends[k].cell][sends[k].index] = recvs[k];
        section.partner[recvs[k].cell][recvs[k].index] = sends[k];
        ++report.transfers;
        const std::string sent = type_of(model, section, sends[k]),
                          received = type_of(model, section, recvs[k]);
        if (sent != received)
          findings.add("transfer", "{} sends {}, but {} takes {}",
                       name_of(model, section, sends[k]), sent, name_of(model, section, recvs[k]),
                       received);
      }
    }
  }
}

void check_collectives(const Model& model, Section& section, Findings& findings,
                       VerifyReport& report) {
  for (const auto& [ranks, members] : find_groups(model, section)) {
    const auto& [first_cell, first] = *members.begin();
    report.collectives += static_cast<int64_t>(first.size());
    if (members.size() == 1) continue;  // SPMD peers alone: one program
    for (const auto& [cell, places] : members) {
      for (size_t k = 0; k < std::min(first.size(), places.size()); ++k)
        if (!same_collective(model, section, first[k], places[k])) {
          findings.add("collective", "{} meets {}: they are not the same collective",
                       describe(model, section, first[k]), describe(model, section, places[k]));
          break;
        }
      if (first.size() == places.size()) continue;
      const bool more = places.size() > first.size();
      const Spot extra = more ? places[first.size()] : first[places.size()];
      findings.add("collective", "{} is never joined by {}", name_of(model, section, extra),
                   model.who(more ? first_cell : cell));
    }
    for (size_t k = 0; k < first.size(); ++k) {
      std::vector<Spot> joint;
      for (const auto& [cell, places] : members)
        if (k < places.size()) joint.push_back(places[k]);
      for (Spot place : joint)
        section.joint[place.cell][place.index] = static_cast<int32_t>(section.joints.size());
      section.joints.push_back(std::move(joint));
    }
  }
}

}  // namespace piper
