// Rule deadlock, for streams that run at once: a message on a stream without computations may wait
// there until its receive is reached. A stream then goes on when the receive does; a collective
// when all members have come. What each stream's next instruction waits for must not form a circle.
#include <algorithm>

#include "circle.h"

namespace piper {
namespace {

class Streams {
 public:
  Streams(const Model& model, const Section& section, std::vector<bool> may_wait)
      : model_(model),
        section_(section),
        lists_(may_wait.size()),
        next_(may_wait.size()),
        may_wait_(std::move(may_wait)) {
    for (int32_t c = 0; c < static_cast<int32_t>(section.steps.size()); ++c) {
      done_.emplace_back(section.steps[c].size());
      for (int32_t i = 0; i < static_cast<int32_t>(section.steps[c].size()); ++i)
        lists_[stream_of({c, i})].push_back({c, i});
    }
  }

  bool finish() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t s = 0; s < lists_.size(); ++s)
        while (next_[s] < lists_[s].size() && blockers(lists_[s][next_[s]]).empty()) {
          for (Spot member : meeting(lists_[s][next_[s]])) take(member);
          progress = true;
        }
    }
    for (size_t s = 0; s < lists_.size(); ++s)
      if (next_[s] < lists_[s].size()) return false;
    return true;
  }

  // The shortest circle of streams that wait for each other.
  std::string circle() const {
    const auto waits_of = [this](size_t s) {
      std::vector<Wait> waits;
      if (next_[s] == lists_[s].size()) return waits;
      const Spot head = lists_[s][next_[s]];
      for (Spot block : blockers(head)) waits.push_back({head, block});
      return waits;
    };
    std::string text;
    for (const Wait& wait :
         shortest_circle(lists_.size(), waits_of, [this](Spot spot) { return stream_of(spot); })) {
      text +=
          fmt::format("{}{} waits for {}", text.empty() ? "" : "; ",
                      name_of(model_, section_, wait.head), name_of(model_, section_, wait.block));
      const Spot front = lists_[stream_of(wait.block)][next_[stream_of(wait.block)]];
      if (front != wait.block)
        text += fmt::format(", which is behind {}", name_of(section_.at(front)));
    }
    return text;
  }

 private:
  size_t stream_of(Spot spot) const { return static_cast<size_t>(section_.step(spot).slot); }
  bool is_done(Spot spot) const { return done_[spot.cell][spot.index]; }
  bool is_next(Spot spot) const {
    const size_t s = stream_of(spot);
    return next_[s] < lists_[s].size() && lists_[s][next_[s]] == spot;
  }
  void take(Spot spot) {
    done_[spot.cell][spot.index] = true;
    ++next_[stream_of(spot)];
  }

  // What ends together with the instruction.
  std::vector<Spot> meeting(Spot spot) const {
    if (const int32_t joint = section_.joint[spot.cell][spot.index]; joint >= 0)
      return section_.joints[joint];
    const Spot partner = section_.partner[spot.cell][spot.index];
    if (!partner.valid()) return {spot};
    const bool is_send = section_.at(spot).kind == InstructionKind::kSend;
    if (!may_wait_[stream_of(is_send ? spot : partner)]) return {spot};
    return {spot, partner};
  }
  // What keeps the next instruction of a stream from ending.
  std::vector<Spot> blockers(Spot head) const {
    std::vector<Spot> found;
    for (Spot member : meeting(head)) {
      if (!is_next(member)) found.push_back(member);
      for (int32_t wait : section_.waits_of(member))
        if (const Spot awaited{member.cell, wait}; !is_done(awaited)) found.push_back(awaited);
    }
    const Spot partner = section_.partner[head.cell][head.index];
    const bool receives = section_.at(head).kind == InstructionKind::kRecv;
    if (receives && partner.valid() && !may_wait_[stream_of(partner)] && !is_done(partner))
      found.push_back(partner);
    return found;
  }

  const Model& model_;
  const Section& section_;
  std::vector<std::vector<Spot>> lists_;  // by stream
  std::vector<size_t> next_;              // by stream
  std::vector<bool> may_wait_;            // by stream: its messages wait for their receives
  std::vector<std::vector<bool>> done_;   // by cell and instruction
};

// By stream: its messages wait for their receives.
std::vector<bool> find_waiting(const Section& section) {
  std::vector<bool> sends(static_cast<size_t>(section.slots)), computes = sends;
  for (const auto& steps : section.steps)
    for (const Step& step : steps) {
      if (step.kind == InstructionKind::kSend) sends[static_cast<size_t>(step.slot)] = true;
      if (step.kind == InstructionKind::kCompute) computes[static_cast<size_t>(step.slot)] = true;
    }
  for (size_t s = 0; s < sends.size(); ++s) sends[s] = sends[s] && !computes[s];
  return sends;
}

}  // namespace

void check_rendezvous(const Model& model, const Section& section, Findings& findings) {
  std::vector<bool> may_wait = find_waiting(section);
  if (std::find(may_wait.begin(), may_wait.end(), true) == may_wait.end()) return;
  Streams streams(model, section, std::move(may_wait));
  if (streams.finish()) return;
  findings.add("deadlock", "messages that wait for their receives block each other: {}",
               streams.circle());
}

}  // namespace piper
