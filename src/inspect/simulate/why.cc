// What a rank does at a time, and along which chain it waits.
#include <algorithm>

#include "piper/inspect/analysis.h"
#include "rows.h"
#include "strategy_lines.h"

namespace piper {
namespace {

using timeline::at;
using timeline::strategy_line_of;

std::string label_of(const TimedRow& row, const TimedStep& step) {
  const std::string label = quote_control(step.one->label);
  if (step.one->kind == InstructionKind::kCompute || label.empty())
    return fmt::format("'{}'", label.empty() ? to_string(step.one->kind) : label);
  return fmt::format("'{}' ({})", label, what_of(*row.role, *step.one));
}

// Of ranks that do the same `asked` is named, if it is one of them.
std::string rank_of(const TimedRow& row, int64_t asked) {
  const bool is_asked = std::find(row.ranks.begin(), row.ranks.end(), asked) != row.ranks.end();
  return fmt::format("rank {}", is_asked ? asked : row.ranks.front());
}

std::string stream_of(const TimedRow& row, const TimedStep& step) {
  const size_t stream = at(step.one->stream);
  return stream < row.role->streams.size()
             ? fmt::format(" on stream '{}'", quote_control(row.role->streams[stream].name))
             : "";
}

// Says what the step of another row did until then.
std::string did(const Timeline& timeline, int32_t row, int32_t step, int64_t asked) {
  const TimedRow& of = timeline.rows[at(row)];
  const TimedStep& one = of.steps[at(step)];
  return fmt::format("{} comes to {} at {}", rank_of(of, asked), label_of(of, one),
                     human_seconds(one.ready));
}

std::string idle_line(const TimedRow& row, const IdlePiece& piece, int64_t asked) {
  const std::string who = fmt::format("{} computes nothing from {} to {}: ", rank_of(row, asked),
                                      human_seconds(piece.from), human_seconds(piece.to));
  const TimedStep* step = piece.step < 0 ? nullptr : &row.steps[at(piece.step)];
  switch (piece.reason) {
    case IdleReason::kMoving:
      return fmt::format("{}the bytes of {} are under way{}", who, label_of(row, *step),
                         stream_of(row, *step));
    case IdleReason::kOthers:
      return fmt::format("{}it waits in {}{}", who, label_of(row, *step), stream_of(row, *step));
    case IdleReason::kLocal:
      return fmt::format("{}it waits for {}{}", who, label_of(row, *step), stream_of(row, *step));
    case IdleReason::kHost:
      return fmt::format("{}the host has not issued {} yet", who, label_of(row, *step));
    case IdleReason::kOrder:
      return fmt::format("{}{} waits for the operation before it on its communicator", who,
                         label_of(row, *step));
    case IdleReason::kStepEnds:
      return who +
             "the step has not ended: what it sent has not arrived, or the host is at work between "
             "steps";
    case IdleReason::kNothing:
      return who + "nothing is left to compute";
  }
  PIPER_CHECK(false, "a reason of the list");
  return {};
}

const TimedStep* computing_at(const TimedRow& row, double time) {
  for (const TimedStep& step : row.steps)
    if (step.cost.device > 0 && step.start <= time && time < step.end) return &step;
  return nullptr;
}

}  // namespace

Result<std::vector<std::string>> explain_time(const Timeline& timeline, int64_t rank, double time,
                                              const std::string& strategy_text) {
  if (rank < 0 || rank >= std::ssize(timeline.row_of_rank))
    return fail("there is no rank {}: the plans are for {} ranks", rank,
                timeline.row_of_rank.size())
        .with_code(ExitCode::kUsage);
  if (time < 0 || time > timeline.length)
    return fail("{} is not within the {} that are simulated", human_seconds(time),
                human_seconds(timeline.length))
        .with_code(ExitCode::kUsage);
  constexpr size_t kMostLines = 12;
  std::vector<std::string> lines;
  auto row = at(timeline.row_of_rank[at(rank)]);
  const auto add_directive = [&](const TimedRow& of, const TimedStep& step) {
    const std::string line = strategy_line_of(strategy_text, *of.role, *step.one);
    if (!line.empty()) lines.push_back("  by this line of the strategy: " + quote_control(line));
  };
  while (lines.size() < kMostLines) {
    const TimedRow& at_row = timeline.rows[row];
    if (const TimedStep* step = computing_at(at_row, time)) {
      lines.push_back(fmt::format("{} computes {} from {} to {} ({})", rank_of(at_row, rank),
                                  label_of(at_row, *step), human_seconds(step->start),
                                  human_seconds(step->end),
                                  kCostOrigins[static_cast<size_t>(step->cost.origin)]));
      add_directive(at_row, *step);
      break;
    }
    const std::vector<IdlePiece> pieces = idle_pieces(timeline, row, 0, timeline.length);
    const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const IdlePiece& one) {
      return one.from <= time && time < one.to;
    });
    if (piece == pieces.end()) {
      lines.push_back(fmt::format("{} computes nothing at {}, and never again",
                                  rank_of(at_row, rank), human_seconds(time)));
      break;
    }
    lines.push_back(idle_line(at_row, *piece, rank));
    if (piece->step >= 0) add_directive(at_row, at_row.steps[at(piece->step)]);
    // Goes on with what held up the other side at that time.
    if (piece->reason != IdleReason::kOthers || piece->cause_row < 0 || at(piece->cause_row) == row)
      break;
    lines.push_back("  " + did(timeline, piece->cause_row, piece->cause_step, rank));
    row = at(piece->cause_row);
  }
  return lines;
}

}  // namespace piper
