#include <algorithm>

#include "model.h"

namespace piper {
namespace {

class Clockwork {
 public:
  Clockwork(const Model& model, const Section& section) : section_(section) {
    for (const Cell& cell : model.cells) {
      clocks_.first_slot.push_back(clocks_.slots);
      clocks_.slots += static_cast<int32_t>(cell.role->streams.size());
    }
    last_.assign(static_cast<size_t>(clocks_.slots), -1);
    for (const auto* list : section.lists)
      clocks_.known.emplace_back(list->size() * static_cast<size_t>(clocks_.slots), -1);
  }

  Clocks run() {
    for (Spot place : section_.order) {
      const int32_t joint = section_.joint[place.cell][place.index];
      if (joint < 0) {
        std::vector<int32_t> now = start(place);
        if (section_.at(place).kind == InstructionKind::kRecv)
          learn(now, section_.partner[place.cell][place.index]);
        finish(place, std::move(now));
        continue;
      }
      std::vector<int32_t> all(static_cast<size_t>(clocks_.slots), -1);
      for (Spot member : section_.joints[joint]) {
        const std::vector<int32_t> now = start(member);
        for (size_t s = 0; s < all.size(); ++s) all[s] = std::max(all[s], now[s]);
      }
      for (Spot member : section_.joints[joint]) finish(member, all);
    }
    return std::move(clocks_);
  }

 private:
  int32_t slot(Spot place) const {
    return clocks_.first_slot[place.cell] + section_.at(place).stream;
  }
  void learn(std::vector<int32_t>& now, Spot from) const {
    const int32_t* known = &clocks_.known[from.cell][static_cast<size_t>(from.index) * now.size()];
    for (size_t s = 0; s < now.size(); ++s) now[s] = std::max(now[s], known[s]);
  }
  // Known when all that the instruction itself waits for is complete.
  std::vector<int32_t> start(Spot place) const {
    std::vector<int32_t> now(static_cast<size_t>(clocks_.slots), -1);
    if (const int32_t previous = last_[slot(place)]; previous >= 0)
      learn(now, {place.cell, previous});
    for (int32_t wait : section_.at(place).waits) learn(now, {place.cell, wait});
    return now;
  }
  void finish(Spot place, std::vector<int32_t> now) {
    now[slot(place)] = last_[slot(place)] = place.index;
    std::copy(
        now.begin(), now.end(),
        clocks_.known[place.cell].begin() + static_cast<ptrdiff_t>(place.index) * clocks_.slots);
  }

  const Section& section_;
  Clocks clocks_;
  std::vector<int32_t> last_;  // by slot: the last instruction
};

}  // namespace

bool Clocks::before(const Section& section, Spot earlier, Spot later) const {
  const int32_t slot = first_slot[earlier.cell] + section.at(earlier).stream;
  return known[later.cell][static_cast<size_t>(later.index) * static_cast<size_t>(slots) +
                           static_cast<size_t>(slot)] >= earlier.index;
}

Clocks make_clocks(const Model& model, const Section& section) {
  return Clockwork(model, section).run();
}

}  // namespace piper
