#include <algorithm>
#include <map>

#include "cells.h"

namespace piper::verify {
namespace {

// The cell of the peer that an instruction names: the lowest rank of its class.
int32_t peer_cell(const Model& model, const Cell& cell, const Instruction& instruction) {
  std::vector<int64_t> coordinates = cell.coordinates;
  for (size_t a = 0; a < coordinates.size(); ++a)
    if (instruction.peer[a] >= 0) coordinates[a] = instruction.peer[a];
  for (size_t c = 0; c < model.cells.size(); ++c)
    if (model.cells[c].coordinates == coordinates) return static_cast<int32_t>(c);
  return -1;
}

struct Channel {
  int32_t from, to, number;
  auto operator<=>(const Channel&) const = default;
};

const Buffer& arg_buffer(const Model& model, Place place, size_t arg) {
  return model.cells[static_cast<size_t>(place.cell)].role->buffers[static_cast<size_t>(model.at(place).args[arg])];
}

// Cells that a group joins, seen from one: they differ on the group's axes only.
std::vector<int32_t> joined_cells(const Model& model, int32_t cell, const Group& group) {
  std::vector<int32_t> joined;
  for (size_t c = 0; c < model.cells.size(); ++c) {
    bool member = true;
    for (size_t a = 0; a < model.mesh.size(); ++a) {
      const bool free = std::find(group.axes.begin(), group.axes.end(), static_cast<int32_t>(a)) != group.axes.end();
      member = member && (free || model.cells[c].coordinates[a] == model.cells[static_cast<size_t>(cell)].coordinates[a]);
    }
    if (member) joined.push_back(static_cast<int32_t>(c));
  }
  return joined;
}

bool is_collective(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kAllReduce:
    case InstructionKind::kReduceScatter:
    case InstructionKind::kAllGather:
    case InstructionKind::kAllToAll:
    case InstructionKind::kBroadcast: return true;
    default: return false;
  }
}

std::string signature(const Model& model, Place place) {
  const Instruction& instruction = model.at(place);
  std::string text = fmt::format("{} root={}", to_string(instruction.kind), instruction.root);
  for (size_t a = 0; a < instruction.args.size(); ++a) text += " " + to_string(arg_buffer(model, place, a).type);
  return text;
}

}  // namespace

void check_transfers(Model& model, Report& report) {
  std::map<Channel, std::vector<Place>> sends, recvs;
  for (size_t c = 0; c < model.cells.size(); ++c)
    for (size_t i = 0; i < model.cells[c].role->body.size(); ++i) {
      const Place place{static_cast<int32_t>(c), static_cast<int32_t>(i)};
      const Instruction& instruction = model.at(place);
      const bool send = instruction.kind == InstructionKind::kSend;
      if (!send && instruction.kind != InstructionKind::kRecv) continue;
      const int32_t peer = peer_cell(model, model.cells[c], instruction);
      if (peer < 0 || peer == place.cell) {
        report.find("transfer", "{}: its peer is no other rank", model.name(place));
        continue;
      }
      if (send) sends[{place.cell, peer, instruction.channel}].push_back(place);
      else recvs[{peer, place.cell, instruction.channel}].push_back(place);
    }
  for (const auto& [channel, list] : sends) {
    auto& others = recvs[channel];
    for (size_t k = 0; k < std::max(list.size(), others.size()); ++k) {
      if (k >= others.size()) {
        report.find("transfer", "{} is never received by rank {}", model.name(list[k]), model.cells[static_cast<size_t>(channel.to)].rank);
        break;
      }
      if (k >= list.size()) {
        report.find("transfer", "{} waits for a message that rank {} never sends", model.name(others[k]),
                    model.cells[static_cast<size_t>(channel.from)].rank);
        break;
      }
      const TensorType &from = arg_buffer(model, list[k], 0).type, &to = arg_buffer(model, others[k], 0).type;
      if (from != to) report.find("transfer", "{} sends {}, {} expects {}", model.name(list[k]), to_string(from), model.name(others[k]), to_string(to));
      // The same microbatch on both sides: messages of one channel are told apart by nothing else.
      if (model.at(list[k]).micro != model.at(others[k]).micro)
        report.find("transfer", "{} is microbatch {}, {} expects microbatch {}", model.name(list[k]), model.at(list[k]).micro,
                    model.name(others[k]), model.at(others[k]).micro);
      model.cells[static_cast<size_t>(list[k].cell)].partner[static_cast<size_t>(list[k].at)] = others[k];
      model.cells[static_cast<size_t>(others[k].cell)].partner[static_cast<size_t>(others[k].at)] = list[k];
      ++report.counts().transfers;
    }
  }
  for (const auto& [channel, list] : recvs)
    if (!list.empty() && !sends.count(channel))
      report.find("transfer", "{} waits for a message that rank {} never sends", model.name(list.front()),
                  model.cells[static_cast<size_t>(channel.from)].rank);
}

void check_collectives(Model& model, Report& report) {
  // By joined cells: each member's collectives in issue order.
  std::map<std::pair<std::vector<int32_t>, std::vector<int32_t>>, std::map<int32_t, std::vector<Place>>> groups;
  for (size_t c = 0; c < model.cells.size(); ++c)
    for (size_t i = 0; i < model.cells[c].role->body.size(); ++i) {
      const Place place{static_cast<int32_t>(c), static_cast<int32_t>(i)};
      const Instruction& instruction = model.at(place);
      if (!is_collective(instruction.kind)) continue;
      ++report.counts().collectives;
      const Group& group = model.cells[c].role->groups[static_cast<size_t>(instruction.group)];
      const auto joined = joined_cells(model, place.cell, group);
      if (joined.size() > 1) groups[{joined, group.axes}][place.cell].push_back(place);
    }
  for (const auto& [key, lists] : groups) {
    size_t longest = 0;
    for (const auto& [cell, list] : lists) longest = std::max(longest, list.size());
    for (size_t k = 0; k < longest; ++k) {
      Meeting meeting;
      for (int32_t cell : key.first) {
        const auto it = lists.find(cell);
        if (it == lists.end() || k >= it->second.size()) {
          Place other;
          for (const auto& [c, list] : lists)
            if (k < list.size()) other = list[k];
          report.find("collective", "{} is never joined by rank {}", model.name(other), model.cells[static_cast<size_t>(cell)].rank);
          return;
        }
        meeting.members.push_back(it->second[k]);
      }
      for (const Place& member : meeting.members)
        if (signature(model, member) != signature(model, meeting.members[0])) {
          report.find("collective", "{} ({}) meets {} ({})", model.name(meeting.members[0]), signature(model, meeting.members[0]),
                      model.name(member), signature(model, member));
          return;
        }
      for (const Place& member : meeting.members)
        model.cells[static_cast<size_t>(member.cell)].meeting[static_cast<size_t>(member.at)] = static_cast<int32_t>(model.meetings.size());
      model.meetings.push_back(std::move(meeting));
    }
  }
}

namespace {

// Runs all cells side by side, an instruction at a time, as far as they get.
class Replay {
 public:
  explicit Replay(Model& model) : model_(model), next_(model.cells.size()), now_(model.cells.size()) {
    model.clock.resize(model.cells.size());
    for (size_t c = 0; c < model.cells.size(); ++c) {
      now_[c].assign(model.cells.size(), 0);
      model.clock[c].resize(model.cells[c].role->body.size());
    }
  }
  bool run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t c = 0; c < next_.size(); ++c)
        while (next_[c] < body(c).size() && step(c)) progress = true;
    }
    for (size_t c = 0; c < next_.size(); ++c)
      if (next_[c] < body(c).size()) return false;
    return true;
  }
  // "A waits for B; B's rank is at C, which waits for D; …" until a rank comes again.
  std::string chain() const {
    size_t c = 0;
    while (next_[c] >= body(c).size()) ++c;
    std::string text;
    std::vector<bool> seen(next_.size());
    while (!seen[c]) {
      seen[c] = true;
      const Place here{static_cast<int32_t>(c), static_cast<int32_t>(next_[c])};
      const Place awaited = waits_for(here);
      text += fmt::format("{}{} waits for {}", text.empty() ? "" : "; ", model_.name(here), model_.name(awaited));
      c = static_cast<size_t>(awaited.cell);
      if (next_[c] >= body(c).size()) break;
    }
    return text;
  }

 private:
  const std::vector<Instruction>& body(size_t c) const { return model_.cells[c].role->body; }
  bool done(Place place) const { return next_[static_cast<size_t>(place.cell)] > static_cast<size_t>(place.at); }
  void learn(size_t c, const std::vector<int32_t>& other) {
    for (size_t k = 0; k < other.size(); ++k) now_[c][k] = std::max(now_[c][k], other[k]);
  }
  void finish(size_t c) {
    const size_t i = next_[c]++;
    now_[c][c] = static_cast<int32_t>(i) + 1;
    model_.clock[c][i] = now_[c];
    model_.order.push_back({static_cast<int32_t>(c), static_cast<int32_t>(i)});
  }
  bool step(size_t c) {
    const size_t i = next_[c];
    const Cell& cell = model_.cells[c];
    if (body(c)[i].kind == InstructionKind::kRecv) {
      const Place send = cell.partner[i];
      if (!done(send)) return false;
      learn(c, model_.clock[static_cast<size_t>(send.cell)][static_cast<size_t>(send.at)]);
    }
    if (cell.meeting[i] < 0) {
      finish(c);
      return true;
    }
    const Meeting& meeting = model_.meetings[static_cast<size_t>(cell.meeting[i])];
    for (const Place& member : meeting.members)
      if (next_[static_cast<size_t>(member.cell)] != static_cast<size_t>(member.at)) return false;
    for (const Place& member : meeting.members) learn(c, now_[static_cast<size_t>(member.cell)]);
    const std::vector<int32_t> all = now_[c];
    for (const Place& member : meeting.members) {
      learn(static_cast<size_t>(member.cell), all);
      finish(static_cast<size_t>(member.cell));
    }
    return true;
  }
  Place waits_for(Place here) const {
    const Cell& cell = model_.cells[static_cast<size_t>(here.cell)];
    const auto i = static_cast<size_t>(here.at);
    if (cell.meeting[i] < 0) return cell.partner[i];
    for (const Place& member : model_.meetings[static_cast<size_t>(cell.meeting[i])].members)
      if (next_[static_cast<size_t>(member.cell)] != static_cast<size_t>(member.at)) return member;
    return here;
  }

  Model& model_;
  std::vector<size_t> next_;
  std::vector<std::vector<int32_t>> now_;
};

}  // namespace

void check_deadlock(Model& model, Report& report) {
  Replay replay(model);
  if (!replay.run()) report.find("deadlock", "ranks wait for each other: {}", replay.chain());
}

}  // namespace piper::verify
