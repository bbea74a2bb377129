// Why a device computes nothing: from each computation back along what it waited for.
#include <algorithm>

#include "piper/inspect/analysis.h"
#include "rows.h"

namespace piper {
namespace {

using timeline::at;

bool moves(const TimedStep& step) {
  const InstructionKind kind = step.one->kind;
  return kind == InstructionKind::kRecv || is_collective(kind);
}

// Explains one gap, from its end back to its begin.
class Gap {
 public:
  Gap(const Timeline& timeline, size_t row, double from, double to)
      : row_(timeline.rows[row]), index_(static_cast<int32_t>(row)), from_(from), time_(to) {}

  // Explains the gap, which the computation `next` ends; -1: none does.
  std::vector<IdlePiece> run(int32_t next) {
    if (next < 0 && !row_.sections.empty()) {
      const auto last = static_cast<int32_t>(row_.sections.size()) - 1;
      add(row_.sections.back().end, IdleReason::kNothing, -1, -1, -1);
      next = behind_section(last, -1);
    }
    // A chain within a row has no more links than it has steps.
    for (size_t links = 0; time_ > from_ && next >= 0 && links <= row_.steps.size(); ++links)
      next = explain(next);
    if (time_ > from_) add(from_, IdleReason::kNothing, -1, -1, -1);
    std::reverse(pieces_.begin(), pieces_.end());
    return std::move(pieces_);
  }

 private:
  void add(double begin, IdleReason reason, int32_t step, int32_t cause_row, int32_t cause_step) {
    begin = std::max(begin, from_);
    if (begin >= time_) return;
    pieces_.push_back({begin, time_, reason, step, cause_row, cause_step});
    time_ = begin;
  }
  // Explains what the step had to do with the time before it ended, or before it began if it
  // computes. Returns the step that it waited for; -1: there is none.
  int32_t explain(int32_t number) {
    const TimedStep& step = row_.steps[at(number)];
    if (step.one->kind == InstructionKind::kCompute) {
      if (step.cause == Cause::kPair && step.start >= time_) return step.cause_step;
    } else if (moves(step)) {
      add(step.start, IdleReason::kMoving, number, step.cause_row, step.cause_step);
      const bool in_order = step.cause == Cause::kOrder;
      add(step.ready, in_order ? IdleReason::kOrder : IdleReason::kOthers, number, step.cause_row,
          step.cause_step);
    } else {
      add(step.start, IdleReason::kLocal, number, -1, -1);
    }
    if (time_ <= from_) return -1;
    switch (step.ready_cause) {
      case Cause::kSection:
        return behind_section(step.section - 1, number);
      case Cause::kHost:
        add(from_, IdleReason::kHost, number, -1, -1);
        return -1;
      case Cause::kStart:
        return -1;
      default:
        return step.ready_step;
    }
  }
  // Returns the step that ended the section before. Sent messages that end later are not looked at.
  int32_t behind_section(int32_t section, int32_t number) {
    const TimedSection& before = row_.sections[at(section)];
    int32_t last = -1;
    for (int32_t s = before.first; s < before.first + before.count; ++s)
      if (last < 0 || row_.steps[at(s)].end > row_.steps[at(last)].end) last = s;
    if (last < 0) return -1;
    add(row_.steps[at(last)].end, IdleReason::kStepEnds, number, index_, last);
    return last;
  }

  const TimedRow& row_;
  const int32_t index_;
  const double from_;
  double time_;  // all behind it is explained
  std::vector<IdlePiece> pieces_;
};

}  // namespace

std::vector<IdlePiece> idle_pieces(const Timeline& timeline, size_t row, double from, double to) {
  std::vector<int32_t> computing;
  const std::vector<TimedStep>& steps = timeline.rows[row].steps;
  for (size_t s = 0; s < steps.size(); ++s)
    if (steps[s].end > steps[s].start && steps[s].cost.device > 0)
      computing.push_back(static_cast<int32_t>(s));
  std::stable_sort(computing.begin(), computing.end(),
                   [&](int32_t a, int32_t b) { return steps[at(a)].start < steps[at(b)].start; });
  std::vector<IdlePiece> pieces;
  // Gaps of rounding are none.
  const double least = 1e-9 * timeline.length;
  const auto explain = [&](double begin, double end, int32_t next) {
    if (end - begin <= least || end <= from || begin >= to) return;
    for (IdlePiece piece : Gap(timeline, row, begin, end).run(next)) {
      piece.from = std::max(piece.from, from);
      piece.to = std::min(piece.to, to);
      if (piece.to > piece.from) pieces.push_back(piece);
    }
  };
  double busy = 0;  // until then
  for (const int32_t s : computing) {
    explain(busy, steps[at(s)].start, s);
    busy = std::max(busy, steps[at(s)].end);
  }
  explain(busy, std::max(busy, to), -1);
  return pieces;
}

}  // namespace piper
