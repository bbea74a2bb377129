#include <algorithm>

#include "model.h"

namespace piper {

// Follows a run with one clock per slot. What somebody waits for or receives later is copied and
// kept until the last has seen it.
class Clockwork {
 public:
  explicit Clockwork(const Section& section)
      : section_(section),
        width_((static_cast<size_t>(section.slots) + kStride - 1) / kStride * kStride),
        now_(static_cast<size_t>(section.slots) * width_, -1),
        row_of_slot_(static_cast<size_t>(section.slots), -1) {
    for (int32_t c = 0; c < static_cast<int32_t>(section.steps.size()); ++c) {
      const auto& steps = section.steps[c];
      Clocks::Cell& cell = clocks_.cells_.emplace_back();
      cell.row_of.assign(steps.size(), -1);
      cell.column_of.assign(static_cast<size_t>(section.slots), -1);
      copies_.emplace_back(steps.size());
      for (size_t i = 0; i < steps.size(); ++i) {
        ask_for(cell, steps[i].slot);
        if (steps[i].kind == InstructionKind::kSend) {
          ask_for(cell, section.step(section.partner[c][i]).slot);
          ++copies_[c][i].uses;
        }
        const Spot place{c, static_cast<int32_t>(i)};
        for (int32_t wait : section.at(place).waits)
          ++copies_[c][section.awaited(place, wait).index].uses;
      }
    }
  }

  Clocks run() {
    std::vector<int32_t> all(width_);
    for (Spot place : section_.order) {
      const int32_t joint = section_.joint[place.cell][place.index];
      if (joint < 0) {
        finish(place, start(place));
        continue;
      }
      std::fill(all.begin(), all.end(), -1);
      for (Spot member : section_.joints[joint]) {
        start(member);
        raise(all.data(), clock(section_.step(member).slot));
      }
      for (Spot member : section_.joints[joint]) {
        raise(clock(section_.step(member).slot), all.data());
        finish(member, true);
      }
    }
    return std::move(clocks_);
  }

 private:
  static constexpr size_t kStride = 16;
  struct Copy {
    int32_t uses = 0;
    size_t at = 0;
  };

  static void ask_for(Clocks::Cell& cell, int32_t slot) {
    if (cell.column_of[slot] >= 0) return;
    cell.column_of[slot] = static_cast<int32_t>(cell.asked.size());
    cell.asked.push_back(slot);
  }
  int32_t* clock(int32_t slot) { return now_.data() + static_cast<size_t>(slot) * width_; }
  void raise(int32_t* clock, const int32_t* to) const {
    for (size_t at = 0; at < width_; at += kStride)
      for (size_t k = at; k < at + kStride; ++k) clock[k] = std::max(clock[k], to[k]);
  }

  // What the instruction itself waits for is complete. Whether that is news for its stream.
  bool start(Spot place) {
    const Step& step = section_.step(place);
    int32_t* now = clock(step.slot);
    const auto& waits = section_.at(place).waits;
    for (int32_t wait : waits) learn(now, section_.awaited(place, wait));
    if (step.kind == InstructionKind::kRecv) learn(now, section_.partner[place.cell][place.index]);
    return !waits.empty() || step.kind == InstructionKind::kRecv;
  }
  void learn(int32_t* now, Spot from) {
    Copy& copy = copies_[from.cell][from.index];
    // Who knows that it is complete knows what it knew.
    if (now[section_.step(from).slot] < from.index) raise(now, kept_.data() + copy.at);
    if (--copy.uses == 0) free_.push_back(copy.at);
  }
  void finish(Spot place, bool news) {
    const int32_t slot = section_.step(place).slot;
    const int32_t* now = clock(slot);
    clock(slot)[slot] = place.index;
    Clocks::Cell& cell = clocks_.cells_[place.cell];
    if (news) {
      row_of_slot_[slot] = static_cast<int32_t>(cell.known.size() / cell.asked.size());
      for (int32_t asked : cell.asked) cell.known.push_back(now[asked]);
    }
    cell.row_of[place.index] = row_of_slot_[slot];
    Copy& copy = copies_[place.cell][place.index];
    if (copy.uses == 0) return;
    if (free_.empty()) {
      free_.push_back(kept_.size());
      kept_.resize(kept_.size() + width_);
    }
    copy.at = free_.back();
    free_.pop_back();
    std::copy(now, now + width_, kept_.data() + copy.at);
  }

  const Section& section_;
  size_t width_;
  Clocks clocks_;
  std::vector<int32_t> now_;               // by slot: its clock
  std::vector<int32_t> row_of_slot_;       // by slot: its last row
  std::vector<std::vector<Copy>> copies_;  // by cell and instruction
  std::vector<int32_t> kept_;              // copies
  std::vector<size_t> free_;               // where there is place for one
};

Clocks make_clocks(const Section& section) { return Clockwork(section).run(); }

}  // namespace piper
