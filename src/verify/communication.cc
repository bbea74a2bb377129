// Rules transfer and collective: what belongs together across cells.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "model.h"

namespace piper {
namespace {

const Tensor& tensor_of(const Model& model, const Section& section, Spot place, size_t arg = 0) {
  return model.cells[place.cell].role->tensor(section.at(place).args[arg]);
}

// What one cell sends another through one channel.
struct Route {
  std::vector<Spot> sends, recvs;
};
using Routes = std::map<std::tuple<int32_t, int32_t, int32_t>, Route>;  // by from, to and channel

Routes find_routes(const Model& model, const Section& section) {
  Routes routes;
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    for (int32_t i = 0; i < static_cast<int32_t>(section.steps[c].size()); ++i) {
      const bool send = section.steps[c][i].kind == InstructionKind::kSend;
      if (!send && section.steps[c][i].kind != InstructionKind::kRecv) continue;
      const Instruction& one = section.at({c, i});
      const Cell& own = model.cells[c];
      const int32_t peer = model.cell_of_rank[peer_rank(*own.role, one.peer, own.coordinates)];
      Route& route = routes[{send ? c : peer, send ? peer : c, one.channel}];
      (send ? route.sends : route.recvs).push_back({c, i});
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
    for (int32_t i = 0; i < static_cast<int32_t>(section.lists[c].size()); ++i) {
      if (!is_collective(section.steps[c][i].kind)) continue;
      const Instruction& one = section.at({c, i});
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
  const auto form = [](const Instruction& each) {
    return std::tuple(each.kind, each.root, each.args.size(), each.reduction, each.dim, each.outer,
                      each.to_dim, each.to_outer, each.turn, each.owned, each.mirrored,
                      each.to_mirrored);
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
  std::string text = fmt::format("{} ({} of", name_of(model, section, place), to_string(one.kind));
  for (size_t k = 0; k < one.args.size() && k < 3; ++k)
    text += " " + to_string(tensor_of(model, section, place, k).type);
  if (one.args.size() > 3) text += fmt::format(" and {} more", one.args.size() - 3);
  return text +
         (one.kind == InstructionKind::kBroadcast ? fmt::format(" from {})", one.root) : ")");
}

// Of a message, tensor by tensor: values of a microbatch have one name everywhere. (Parts of sums
// are followed by rule sum.)
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

}  // namespace

void check_transfers(const Model& model, Section& section, Findings& findings,
                     VerifyReport& report) {
  for (const auto& [of, route] : find_routes(model, section)) {
    const auto& [from, to, channel] = of;
    const auto& [sends, recvs] = route;
    for (size_t k = 0; k < std::max(sends.size(), recvs.size()); ++k) {
      if (k >= recvs.size()) {
        findings.add("transfer", "{} is never received by {}", name_of(model, section, sends[k]),
                     model.who(to));
      } else if (k >= sends.size()) {
        findings.add("transfer", "{} waits for a message that {} never sends",
                     name_of(model, section, recvs[k]), model.who(from));
      } else {
        section.partner[sends[k].cell][sends[k].index] = recvs[k];
        section.partner[recvs[k].cell][recvs[k].index] = sends[k];
        ++report.transfers;
        if (section.part_of(sends[k]) != section.part_of(recvs[k]))
          findings.add("transfer", "{} is received by {} in another part of the plan",
                       name_of(model, section, sends[k]), name_of(model, section, recvs[k]));
        compare_types(model, section, sends[k], recvs[k], findings);
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
        if (section.part_of(first[k]) != section.part_of(places[k]) ||
            !same_collective(model, section, first[k], places[k])) {
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

namespace {

// Whether the earlier message is complete before the later one begins, whatever that receives.
bool in_order(const Section& section, const Clocks& clocks, Spot earlier, Spot later) {
  for (int32_t i = later.index; i-- > 0;)
    if (section.steps[later.cell][i].slot == section.step(later).slot) {
      if (clocks.before(section, earlier, Spot{later.cell, i})) return true;
      break;
    }
  const auto waits = section.waits_of(later);
  return std::any_of(waits.begin(), waits.end(), [&](int32_t wait) {
    return clocks.before(section, earlier, Spot{later.cell, wait});
  });
}

}  // namespace

// Messages of one channel are told apart by their order alone: their sends, and their receives, may
// not overtake each other on several streams.
void check_channels(const Model& model, const Section& section, const Clocks& clocks,
                    Findings& findings) {
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    const auto& steps = section.steps[c];
    const auto is_message = [](const Step& step) {
      return step.kind == InstructionKind::kSend || step.kind == InstructionKind::kRecv;
    };
    const auto first = std::find_if(steps.begin(), steps.end(), is_message);
    if (std::all_of(first, steps.end(), [&](const Step& step) {
          return !is_message(step) || step.slot == first->slot;
        }))
      continue;
    std::map<std::tuple<InstructionKind, int32_t, int32_t>, int32_t> last;
    for (int32_t i = 0; i < static_cast<int32_t>(steps.size()); ++i) {
      if (!is_message(steps[i])) continue;
      const Instruction& one = section.at({c, i});
      const auto [known, is_new] =
          last.try_emplace({one.kind, section.partner[c][i].cell, one.channel}, i);
      const int32_t before = std::exchange(known->second, i);
      if (!is_new && !in_order(section, clocks, Spot{c, before}, Spot{c, i}))
        findings.add("transfer", "{} may overtake {}, a message of the same channel",
                     name_of(model, section, {c, i}), name_of(section.at({c, before})));
    }
  }
}

}  // namespace piper
