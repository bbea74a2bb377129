// Runs a section: every cell issues its instructions one by one, receives wait for their sends,
// collectives for all members. Each cell's order contains the order of its streams and waits, so
// what is free of cycles here is so with concurrent streams too.
#include <algorithm>

#include "model.h"

namespace piper {
namespace {

class Run {
 public:
  Run(const Model& model, Section& section)
      : model_(model), section_(section), next_(model.cells.size()) {}

  bool finish() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int32_t c = 0; c < static_cast<int32_t>(next_.size()); ++c)
        while (next_[c] < size(c) && !blocked({c, next_[c]})) {
          take({c, next_[c]});
          progress = true;
        }
    }
    for (int32_t c = 0; c < static_cast<int32_t>(next_.size()); ++c)
      if (next_[c] < size(c)) return false;
    return true;
  }

  // The shortest circle of waits.
  std::string chain() const {
    std::vector<int32_t> circle;
    for (int32_t c = 0; c < static_cast<int32_t>(next_.size()) && circle.size() != 2; ++c) {
      if (next_[c] >= size(c)) continue;
      std::vector<int32_t> found = circle_through(c);
      if (circle.empty() || (!found.empty() && found.size() < circle.size()))
        circle = std::move(found);
    }
    std::string text;
    for (size_t i = 0; i < circle.size(); ++i) {
      const int32_t c = circle[i], to = circle[(i + 1) % circle.size()];
      const auto all = blockers({c, next_[c]});
      const Spot other =
          *std::find_if(all.begin(), all.end(), [&](Spot each) { return each.cell == to; });
      text +=
          fmt::format("{}{} waits for {}", text.empty() ? "" : "; ",
                      name_of(model_, section_, {c, next_[c]}), name_of(model_, section_, other));
    }
    return text;
  }

 private:
  int32_t size(int32_t cell) const { return static_cast<int32_t>(section_.lists[cell]->size()); }
  bool reached(Spot place) const { return next_[place.cell] >= place.index; }
  bool passed(Spot place) const { return next_[place.cell] > place.index; }

  // Whether an instruction that is next in its cell must wait.
  bool blocked(Spot place) const {
    if (section_.step(place).kind == InstructionKind::kRecv)
      return !passed(section_.partner[place.cell][place.index]);
    const int32_t joint = section_.joint[place.cell][place.index];
    return joint >= 0 && !std::all_of(section_.joints[joint].begin(), section_.joints[joint].end(),
                                      [&](Spot member) { return reached(member); });
  }
  // For what.
  std::vector<Spot> blockers(Spot place) const {
    if (section_.step(place).kind == InstructionKind::kRecv)
      return {section_.partner[place.cell][place.index]};
    std::vector<Spot> missing;
    const int32_t joint = section_.joint[place.cell][place.index];
    if (joint >= 0)
      std::copy_if(section_.joints[joint].begin(), section_.joints[joint].end(),
                   std::back_inserter(missing), [&](Spot member) { return !reached(member); });
    return missing;
  }
  // Cells, each waiting for the next and the last for the first; empty: none comes back to it.
  std::vector<int32_t> circle_through(int32_t cell) const {
    std::vector<int32_t> before(next_.size(), -1), queue{cell};
    for (size_t i = 0; i < queue.size(); ++i)
      for (Spot other : blockers({queue[i], next_[queue[i]]})) {
        if (other.cell == cell) {
          std::vector<int32_t> circle{queue[i]};
          while (circle.back() != cell) circle.push_back(before[circle.back()]);
          std::reverse(circle.begin(), circle.end());
          return circle;
        }
        if (before[other.cell] >= 0) continue;
        before[other.cell] = queue[i];
        queue.push_back(other.cell);
      }
    return {};
  }
  void take(Spot place) {
    section_.order.push_back(place);
    const int32_t joint = section_.joint[place.cell][place.index];
    if (joint < 0) {
      ++next_[place.cell];
      return;
    }
    for (Spot member : section_.joints[joint]) ++next_[member.cell];
  }

  const Model& model_;
  Section& section_;
  std::vector<int32_t> next_;
};

}  // namespace

void check_deadlock(const Model& model, Section& section, Findings& findings) {
  Run run(model, section);
  if (!run.finish()) findings.add("deadlock", "the ranks wait for each other: {}", run.chain());
}

}  // namespace piper
