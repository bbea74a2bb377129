// Rule deadlock. Runs the cells: each issues its instructions in order, a receive waits for its
// send, a collective for all members. The order of a cell respects its streams and waits, so if
// this run ends, one with concurrent streams ends, too.
//
// But a send on a stream without computations may block until its receive is reached. If there are
// such streams, a second run has all streams concurrent, and such sends wait for their receives.
#include <algorithm>
#include <array>

#include "model.h"

namespace piper {
namespace {

// Runs lanes (cells or streams) one after the other, each as far as it can.
class Run {
 public:
  // `may_wait` says for each stream whether its sends wait for their receives; empty: lanes are
  // cells.
  Run(const Model& model, const Section& section, std::vector<bool> may_wait)
      : model_(model),
        section_(section),
        may_wait_(std::move(may_wait)),
        lists_(may_wait_.empty() ? section.steps.size() : may_wait_.size()),
        next_(lists_.size()) {
    for (int32_t c = 0; c < static_cast<int32_t>(section.steps.size()); ++c) {
      done_.emplace_back(section.steps[c].size());
      for (int32_t i = 0; i < static_cast<int32_t>(section.steps[c].size()); ++i)
        lists_[lane_of({c, i})].push_back({c, i});
    }
  }

  // Returns whether all instructions run; if not, `order` has those that do.
  bool finish() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t lane = 0; lane < lists_.size(); ++lane)
        while (!is_over(lane) && blockers(head(lane)).empty()) {
          order.push_back(head(lane));
          for (Spot member : meeting(order.back())) {
            done_[member.cell][member.index] = true;
            ++next_[lane_of(member)];
          }
          progress = true;
        }
    }
    for (size_t lane = 0; lane < lists_.size(); ++lane)
      if (!is_over(lane)) return false;
    return true;
  }

  // Describes the shortest cycle of lanes that wait for each other; of several, the one through the
  // lane with the lowest number.
  std::string circle() {
    std::vector<std::pair<Spot, Spot>> best;
    for (size_t start = 0; start < lists_.size(); ++start) {
      const std::vector<std::pair<Spot, Spot>> found = circle_through(start);
      if (!found.empty() && (best.empty() || found.size() < best.size())) best = found;
    }
    std::string text;
    for (const auto& [waiting, block] : best) {
      text += fmt::format("{}{} waits for {}", text.empty() ? "" : "; ",
                          name_of(model_, section_, waiting), name_of(model_, section_, block));
      if (const Spot front = head(lane_of(block)); front != block)
        text += fmt::format(", which comes after {}", name_of(section_.at(front)));
    }
    return text;
  }

  std::vector<Spot> order;  // a collective is listed as the member that came last

 private:
  size_t lane_of(Spot spot) const {
    return static_cast<size_t>(may_wait_.empty() ? spot.cell : section_.step(spot).slot);
  }
  bool is_over(size_t lane) const { return next_[lane] == lists_[lane].size(); }
  Spot head(size_t lane) const { return lists_[lane][next_[lane]]; }
  bool is_next(Spot spot) const {
    const size_t lane = lane_of(spot);
    return !is_over(lane) && head(lane) == spot;
  }
  bool is_done(Spot spot) const { return done_[spot.cell][spot.index]; }

  // Returns the instructions that end together with this one.
  std::span<const Spot> meeting(const Spot& spot) {
    if (const int32_t joint = section_.joint[spot.cell][spot.index]; joint >= 0)
      return section_.joints[joint];
    pair_ = {spot, section_.partner[spot.cell][spot.index]};
    const Spot send = section_.step(spot).kind == InstructionKind::kSend ? pair_[0] : pair_[1];
    const bool waits = pair_[1].valid() && !may_wait_.empty() && may_wait_[lane_of(send)];
    return std::span(pair_).first(waits ? 2 : 1);
  }
  // Returns the instructions that the next one of a lane waits for; valid until the next call.
  const std::vector<Spot>& blockers(Spot waiting) {
    blockers_.clear();
    const std::span<const Spot> together = meeting(waiting);
    for (Spot member : together) {
      if (!is_next(member)) blockers_.push_back(member);
      for (int32_t wait : section_.waits_of(member))
        if (const Spot awaited{member.cell, wait}; !is_done(awaited)) blockers_.push_back(awaited);
    }
    if (section_.step(waiting).kind == InstructionKind::kRecv && together.size() == 1)
      if (const Spot send = section_.partner[waiting.cell][waiting.index]; !is_done(send))
        blockers_.push_back(send);
    return blockers_;
  }

  // Returns the shortest cycle through a lane as pairs (waiting, awaited), by breadth-first search;
  // empty: there is none.
  std::vector<std::pair<Spot, Spot>> circle_through(size_t start) {
    constexpr size_t kNone = SIZE_MAX;
    std::vector<size_t> from(lists_.size(), kNone), open{start};
    std::vector<Spot> block(lists_.size());
    for (size_t i = 0; i < open.size() && from[start] == kNone; ++i)
      for (Spot spot : is_over(open[i]) ? std::vector<Spot>() : blockers(head(open[i]))) {
        const size_t to = lane_of(spot);
        if (from[to] != kNone) continue;
        from[to] = open[i], block[to] = spot;
        open.push_back(to);
      }
    std::vector<std::pair<Spot, Spot>> circle;
    for (size_t at = start; from[start] != kNone && (circle.empty() || at != start); at = from[at])
      circle.insert(circle.begin(), {head(from[at]), block[at]});
    return circle;
  }

  const Model& model_;
  const Section& section_;
  const std::vector<bool> may_wait_;      // by stream
  std::vector<std::vector<Spot>> lists_;  // by lane
  std::vector<size_t> next_;              // by lane
  std::vector<std::vector<bool>> done_;   // by cell and instruction
  std::array<Spot, 2> pair_;
  std::vector<Spot> blockers_;
};

// Returns for each stream whether its sends may wait for their receives.
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

void check_deadlock(const Model& model, Section& section, Findings& findings) {
  Run cells(model, section, {});
  const bool finished = cells.finish();
  section.order = std::move(cells.order);
  if (!finished)
    return findings.add("deadlock", "the ranks wait for each other: {}", cells.circle());
  std::vector<bool> may_wait = find_waiting(section);
  if (std::find(may_wait.begin(), may_wait.end(), true) == may_wait.end()) return;
  if (Run streams(model, section, std::move(may_wait)); !streams.finish())
    findings.add("deadlock", "messages that wait for their receives block each other: {}",
                 streams.circle());
}

}  // namespace piper
