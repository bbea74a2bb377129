// Rules communicator, transfer and collective: sends match receives, and members of collectives
// agree.
#include <algorithm>
#include <map>
#include <tuple>

#include "model.h"

namespace piper {
namespace {

const Tensor& tensor_of(const Model& model, const Section& section, Spot place, size_t arg = 0) {
  return model.cells[place.cell].role->tensor(section.at(place).args[arg]);
}

// Holds the messages from one cell to another on one communicator.
struct Route {
  std::vector<Spot> sends, recvs;
};
using Routes = std::map<std::tuple<int32_t, int32_t, int32_t>, Route>;  // by from, to, communicator

Routes find_routes(const Model& model, const Section& section) {
  Routes routes;
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    for (int32_t i = 0; i < static_cast<int32_t>(section.steps[c].size()); ++i) {
      const bool send = section.steps[c][i].kind == InstructionKind::kSend;
      if (!send && section.steps[c][i].kind != InstructionKind::kRecv) continue;
      const Instruction& one = section.at({c, i});
      const Cell& own = model.cells[c];
      const int32_t peer = model.cell_of_rank[peer_rank(*own.role, one.peer, own.coordinates)];
      Route& route = routes[{send ? c : peer, send ? peer : c, one.communicator}];
      (send ? route.sends : route.recvs).push_back({c, i});
    }
  return routes;
}

// Collectives of one set of ranks on one communicator, by member cell.
using Ranks = std::pair<int32_t, std::vector<int64_t>>;  // the fixed coordinates, -1 on its axes

std::map<Ranks, std::map<int32_t, std::vector<Spot>>> find_groups(const Model& model,
                                                                  const Section& section) {
  std::map<Ranks, std::map<int32_t, std::vector<Spot>>> groups;
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    for (int32_t i = 0; i < static_cast<int32_t>(section.lists[c].size()); ++i) {
      if (!is_collective(section.steps[c][i].kind)) continue;
      const Instruction& one = section.at({c, i});
      const RoleProgram& role = *model.cells[c].role;
      Ranks key{one.communicator, model.cells[c].coordinates};
      for (int32_t axis : role.groups[one.group].axes) key.second[axis] = -1;
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
  const auto form = [](const Instruction& each) {
    return std::tuple(each.kind, each.fast, each.args.size(), each.reduction, each.dim, each.outer,
                      each.to_dim, each.to_outer, each.turn, each.owned, each.mirrored,
                      each.to_mirrored, each.scaled, each.block, each.first, each.count);
  };
  if (form(one) != form(other)) return false;
  for (size_t k = 0; k < one.args.size(); ++k) {
    const TensorType& type = model.cells[a.cell].role->tensor(one.args[k]).type;
    const TensorType& other_type = model.cells[b.cell].role->tensor(other.args[k]).type;
    if (type.dtype != other_type.dtype ||
        num_elements(type.shape) != num_elements(other_type.shape))
      return false;
  }
  return true;
}

std::string describe(const Model& model, const Section& section, Spot place) {
  const Instruction& one = section.at(place);
  std::string text = fmt::format("{} ({}{} of", name_of(model, section, place),
                                 one.fast ? "fast " : "", to_string(one.kind));
  for (size_t k = 0; k < one.args.size() && k < 3; ++k)
    text += " " + to_string(tensor_of(model, section, place, k).type);
  if (one.args.size() > 3) text += fmt::format(" and {} more", one.args.size() - 3);
  return text + ")";
}

// Compares the tensors of a message: a value of a microbatch has the same name on both ranks. (Rule
// sum follows partial sums.)
void compare_types(const Model& model, const Section& section, Spot send, Spot recv,
                   Findings& findings) {
  const size_t sends = section.at(send).args.size(), takes = section.at(recv).args.size();
  if (sends != takes)
    return findings.add("transfer", "{} sends {} tensors, but {} takes {}",
                        name_of(model, section, send), sends, name_of(model, section, recv), takes);
  const bool of_microbatch = section.step(send).micro >= 0;
  for (size_t a = 0; a < sends; ++a) {
    const Tensor &sent = tensor_of(model, section, send, a),
                 &received = tensor_of(model, section, recv, a);
    if (sent.type != received.type)
      findings.add("transfer", "{} sends {}, but {} takes {}", name_of(model, section, send),
                   to_string(sent.type), name_of(model, section, recv), to_string(received.type));
    else if (of_microbatch && sent.name != received.name)
      findings.add("transfer", "{} sends '{}', but {} takes '{}'", name_of(model, section, send),
                   quote_control(sent.name), name_of(model, section, recv),
                   quote_control(received.name));
  }
}

void check_peer(const Model& model, int32_t c, const Instruction& one, Findings& findings) {
  const Cell& cell = model.cells[c];
  const Communicator& of = cell.role->communicators[one.communicator];
  const auto& own = one.kind == InstructionKind::kSend ? of.from : of.to;
  if (!std::equal(own.begin(), own.end(), cell.coordinates.begin(),
                  [](int32_t at, int64_t rank) { return at < 0 || at == rank; }))
    findings.add("communicator", "{} on {} uses communicator {}, which belongs to other ranks",
                 name_of(one), model.who(c), one.communicator);
}

void join_transfer(const Model& model, Spot send, Spot recv, Section& section, Findings& findings) {
  section.partner[send.cell][send.index] = recv;
  section.partner[recv.cell][recv.index] = send;
  if (section.part_of(send) != section.part_of(recv))
    findings.add("transfer", "{} is received by {} in another part of the plan",
                 name_of(model, section, send), name_of(model, section, recv));
  compare_types(model, section, send, recv, findings);
}

void join_members(const std::map<int32_t, std::vector<Spot>>& members, size_t count,
                  Section& section) {
  for (size_t k = 0; k < count; ++k) {
    std::vector<Spot> joint;
    for (const auto& [cell, places] : members)
      if (k < places.size()) joint.push_back(places[k]);
    for (Spot place : joint)
      section.joint[place.cell][place.index] = static_cast<int32_t>(section.joints.size());
    section.joints.push_back(std::move(joint));
  }
}

void compare_collectives(const Model& model, const Section& section, const std::vector<Spot>& first,
                         const std::vector<Spot>& places, Findings& findings) {
  for (size_t k = 0; k < std::min(first.size(), places.size()); ++k)
    if (section.part_of(first[k]) != section.part_of(places[k]) ||
        !same_collective(model, section, first[k], places[k])) {
      findings.add("collective", "{} meets {}: they are not the same collective",
                   describe(model, section, first[k]), describe(model, section, places[k]));
      break;
    }
}

}  // namespace

void check_communicators(const Model& model, Findings& findings) {
  const std::vector<Communicator>& all = model.cells[0].role->communicators;
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    const Cell& cell = model.cells[c];
    if (cell.role->communicators != all) {
      findings.add("communicator", "{} does not list the communicators that {} does", model.who(c),
                   model.who(0));
      continue;
    }
    for (const auto* list : cell.role->sections())
      for (const Instruction& one : *list) {
        if (!one.peer.empty()) check_peer(model, c, one, findings);
      }
  }
}

void check_transfers(const Model& model, Section& section, Findings& findings,
                     VerifyReport& report) {
  for (const auto& [of, route] : find_routes(model, section)) {
    const auto& [from, to, communicator] = of;
    const auto& [sends, recvs] = route;
    for (size_t k = 0; k < std::max(sends.size(), recvs.size()); ++k) {
      if (k >= recvs.size()) {
        findings.add("transfer", "{} is never received by {}", name_of(model, section, sends[k]),
                     model.who(to));
      } else if (k >= sends.size()) {
        findings.add("transfer", "{} waits for a message that {} never sends",
                     name_of(model, section, recvs[k]), model.who(from));
      } else {
        ++report.transfers;
        join_transfer(model, sends[k], recvs[k], section, findings);
      }
    }
  }
}

void check_collectives(const Model& model, Section& section, Findings& findings,
                       VerifyReport& report) {
  for (const auto& [ranks, members] : find_groups(model, section)) {
    const auto& [first_cell, first] = *members.begin();
    report.collectives += static_cast<int64_t>(first.size());
    if (members.size() == 1)
      continue;  // all ranks belong to one cell, so they run the same instructions
    for (const auto& [cell, places] : members) {
      compare_collectives(model, section, first, places, findings);
      if (first.size() == places.size()) continue;
      const bool more = places.size() > first.size();
      const Spot extra = more ? places[first.size()] : first[places.size()];
      findings.add("collective", "{} is never joined by {}", name_of(model, section, extra),
                   model.who(more ? first_cell : cell));
    }
    join_members(members, first.size(), section);
  }
}

}  // namespace piper
