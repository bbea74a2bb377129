// Happens-before by vector clocks: which instructions are complete when another one is.
#include <algorithm>
#include <utility>

#include "model.h"

namespace piper {

// Follows a run with one clock for each slot (stream of a cell). If others wait for an instruction
// later, its clock is kept in a row until the last of them has read it. Instructions of a slot
// share a row until the clock changes.
class Clockwork {
 public:
  // Asks for the clocks of what a cell sends and waits for.
  void begin_cell(int32_t c) {
    const auto& steps = section_.steps[c];
    Clocks::Cell& cell = clocks_.cells_.emplace_back();
    cell.row_of.assign(steps.size(), -1);
    cell.column_of.assign(static_cast<size_t>(section_.slots), -1);
    copies_.emplace_back(steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      ask_for(cell, steps[i].slot);
      if (steps[i].kind == InstructionKind::kSend) {
        ask_for(cell, section_.step(section_.partner[c][i]).slot);
        ++copies_[c][i].uses;
      }
      for (int32_t wait : section_.waits_of({c, static_cast<int32_t>(i)})) ++copies_[c][wait].uses;
    }
  }

  Clockwork(const Model& model, const Section& section)
      : model_(model),
        section_(section),
        width_((static_cast<size_t>(section.slots) + kStride - 1) / kStride * kStride),
        now_(static_cast<size_t>(section.slots) * width_, -1),
        learned_(now_.size(), -1),
        slots_(static_cast<size_t>(section.slots)) {
    for (int32_t c = 0; c < static_cast<int32_t>(section.steps.size()); ++c) begin_cell(c);
  }

  Clocks run() {
    for (Spot place : section_.order) {
      const int32_t joint = section_.joint[place.cell][place.index];
      if (joint < 0) {
        start(place);
        finish(place);
        continue;
      }
      meet(section_.joints[joint]);
    }
    return std::move(clocks_);
  }

 private:
  static constexpr size_t kStride = 16;
  // A member has what others send it once these have begun: in a rotation, the member before it. Of
  // rows, some may send none.
  void meet(std::span<const Spot> members) {
    const Instruction& one = section_.at(members[0]);
    const bool rotates = one.kind == InstructionKind::kRotate;
    met_.assign(rotates ? members.size() * width_ : width_, -1);
    for (size_t m = 0; m < members.size(); ++m) {
      start(members[m]);
      raise(met_.data() + (rotates ? m * width_ : 0), clock(section_.step(members[m]).slot));
    }
    for (const Spot member : members) {
      const int32_t slot = section_.step(member).slot;
      const size_t before = rotates ? before_in_turn(members, member) : 0;
      if (!takes_index(one.kind) && before < members.size()) {
        raise(clock(slot), met_.data() + before * width_);
        slots_[slot].news = true;
      }
      finish(member);
    }
  }
  // Returns from which of the members another one gets what a rotation moves; how many there are:
  // from several, where a cell has several ranks of the ring.
  size_t before_in_turn(std::span<const Spot> members, Spot member) const {
    const Instruction& one = section_.at(member);
    const Group& group = model_.cells[member.cell].role->groups[one.group];
    int64_t ranks = 1;
    for (const int32_t axis : group.axes) {
      if (model_.free_axis[axis] && model_.mesh[axis].second > 1) return members.size();
      ranks *= model_.mesh[axis].second;
    }
    const auto position = [&](Spot of) {
      int64_t at = 0;
      for (const int32_t axis : group.axes)
        at = at * model_.mesh[axis].second + model_.cells[of.cell].coordinates[axis];
      return at;
    };
    const int64_t before = ((position(member) - one.turn) % ranks + ranks) % ranks;
    return static_cast<size_t>(std::ranges::find(members, before, position) - members.begin());
  }
  struct Copy {
    int32_t uses = 0, row = -1;
  };
  struct Slot {
    bool news = false;       // its clock changed after its last instruction
    int32_t known_row = -1;  // its last row in Clocks
    int32_t row = -1;        // its last row in kept_
  };
  struct Row {
    int32_t users = 0;    // instructions that will read it, and its slot while it is the last row
    int32_t version = 0;  // later rows of a slot have higher numbers
  };

  static void ask_for(Clocks::Cell& cell, int32_t slot) {
    if (cell.column_of[slot] >= 0) return;
    cell.column_of[slot] = static_cast<int32_t>(cell.asked.size());
    cell.asked.push_back(slot);
  }
  int32_t* clock(int32_t slot) { return now_.data() + static_cast<size_t>(slot) * width_; }
  int32_t* row(int32_t row) { return kept_.data() + static_cast<size_t>(row) * width_; }
  void raise(int32_t* clock, const int32_t* to) const {
    for (size_t at = 0; at < width_; at += kStride)
      for (size_t k = at; k < at + kStride; ++k) clock[k] = std::max(clock[k], to[k]);
  }

  // Raises the clock by all that the instruction waits for.
  void start(Spot place) {
    const Step& step = section_.step(place);
    for (int32_t wait : section_.waits_of(place)) learn(step.slot, {place.cell, wait});
    if (step.kind == InstructionKind::kRecv)
      learn(step.slot, section_.partner[place.cell][place.index]);
  }
  void learn(int32_t slot, Spot from) {
    Copy& copy = copies_[from.cell][from.index];
    const int32_t other = section_.step(from).slot;
    int32_t* now = clock(slot);
    // A slot that knows an instruction to be complete already knows the clock of that instruction.
    if (now[other] < from.index) {
      int32_t& learned = learned_[static_cast<size_t>(slot) * width_ + static_cast<size_t>(other)];
      if (learned < rows_[copy.row].version) {
        raise(now, row(copy.row));
        learned = rows_[copy.row].version;
      }
      now[other] = from.index;
      slots_[slot].news = true;
    }
    if (--copy.uses == 0) leave(copy.row);
  }
  void finish(Spot place) {
    const int32_t own = section_.step(place).slot;
    Slot& slot = slots_[own];
    int32_t* now = clock(own);
    now[own] = place.index;
    Clocks::Cell& cell = clocks_.cells_[place.cell];
    if (slot.news) {
      slot.known_row = static_cast<int32_t>(cell.known.size() / cell.asked.size());
      for (int32_t asked : cell.asked) cell.known.push_back(now[asked]);
      if (slot.row >= 0) leave(std::exchange(slot.row, -1));
      slot.news = false;
    }
    cell.row_of[place.index] = slot.known_row;
    Copy& copy = copies_[place.cell][place.index];
    if (copy.uses == 0) return;
    if (slot.row < 0) slot.row = keep(now);
    copy.row = slot.row;
    ++rows_[copy.row].users;
  }

  int32_t keep(const int32_t* now) {
    if (free_.empty()) {
      free_.push_back(static_cast<int32_t>(rows_.size()));
      rows_.emplace_back();
      kept_.resize(kept_.size() + width_);
    }
    const int32_t at = free_.back();
    free_.pop_back();
    rows_[at] = {1, versions_++};
    std::copy(now, now + width_, row(at));
    return at;
  }
  void leave(int32_t row) {
    if (--rows_[row].users == 0) free_.push_back(row);
  }

  const Model& model_;
  const Section& section_;
  size_t width_;
  Clocks clocks_;
  std::vector<int32_t> now_;  // by slot: its current clock
  std::vector<int32_t>
      learned_;  // in the same form: of each other slot, the last version of a row that was read
  std::vector<int32_t> met_;  // of the members of a collective
  std::vector<Slot> slots_;
  std::vector<std::vector<Copy>> copies_;  // by cell and instruction
  std::vector<int32_t> kept_;              // rows
  std::vector<Row> rows_;
  std::vector<int32_t> free_;  // rows
  int32_t versions_ = 0;
};

Clocks make_clocks(const Model& model, const Section& section) {
  return Clockwork(model, section).run();
}

}  // namespace piper
