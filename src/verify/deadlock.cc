// Runs a section: every cell issues its instructions one by one, receives wait for their sends,
// collectives for all members. Each cell's order contains the order of its streams and waits, so
// what is free of cycles here is so with concurrent streams too.
#include <algorithm>

#include "circle.h"

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
    const auto waits_of = [this](size_t cell) {
      std::vector<Wait> waits;
      const auto c = static_cast<int32_t>(cell);
      if (next_[cell] == size(c)) return waits;
      for (Spot other : blockers({c, next_[cell]})) waits.push_back({{c, next_[cell]}, other});
      return waits;
    };
    const auto cell_of = [](Spot spot) { return static_cast<size_t>(spot.cell); };
    std::string text;
    for (const Wait& wait : shortest_circle(next_.size(), waits_of, cell_of))
      text +=
          fmt::format("{}{} waits for {}", text.empty() ? "" : "; ",
                      name_of(model_, section_, wait.head), name_of(model_, section_, wait.block));
    return text;
  }

 private:
  int32_t size(int32_t cell) const { return static_cast<int32_t>(section_.lists[cell].size()); }
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
