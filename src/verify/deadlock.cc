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
        while (next_[c] < size(c) && !blocker({c, next_[c]}).valid()) {
          take({c, next_[c]});
          progress = true;
        }
    }
    for (int32_t c = 0; c < static_cast<int32_t>(next_.size()); ++c)
      if (next_[c] < size(c)) return false;
    return true;
  }

  // The circle of waits that the first cell that is stuck leads into.
  std::string chain() const {
    std::vector<int32_t> path;
    int32_t cell = 0;
    while (next_[cell] >= size(cell)) ++cell;
    while (std::find(path.begin(), path.end(), cell) == path.end()) {
      path.push_back(cell);
      cell = blocker({cell, next_[cell]}).cell;
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), cell));
    std::string text;
    for (int32_t c : path) {
      const Spot own{c, next_[c]}, other = blocker(own);
      if (!text.empty()) text += "; ";
      text += fmt::format("{} waits for {}", name_of(model_, section_, own),
                          name_of(model_, section_, other));
    }
    return text;
  }

 private:
  int32_t size(int32_t cell) const { return static_cast<int32_t>(section_.lists[cell]->size()); }
  bool reached(Spot place) const { return next_[place.cell] >= place.index; }
  bool passed(Spot place) const { return next_[place.cell] > place.index; }

  // What keeps an instruction that is next in its cell from running.
  Spot blocker(Spot place) const {
    if (section_.at(place).kind == InstructionKind::kRecv) {
      const Spot send = section_.partner[place.cell][place.index];
      return passed(send) ? Spot{} : send;
    }
    const int32_t joint = section_.joint[place.cell][place.index];
    if (joint < 0) return {};
    for (Spot member : section_.joints[joint])
      if (!reached(member)) return member;
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
