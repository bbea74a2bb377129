// A page that shows when each step of a simulated timeline runs, why devices idle, and what a run
// has measured of the same plans: one HTML file that needs nothing else.
#pragma once

#include <span>

#include "piper/inspect/simulate.h"

namespace piper {

// Describes an instruction as a run has timed it. Times are in seconds.
struct MeasuredStep {
  std::string label;
  InstructionKind kind = InstructionKind::kCompute;
  int32_t stream = 0, stage = -1, micro = -1;
  int32_t instruction = 0;  // of its body, as the backend ran it
  int32_t number = 0;       // of the training step, from 0: the first one that was traced
  double start = 0, end = 0;
  // The step of the row that it is compared with; -1: none has its label and kind.
  int32_t of = -1;
};
struct MeasuredRow {
  int64_t rank = -1;                // whose steps these are; -1: no rank of the row was traced
  std::vector<MeasuredStep> steps;  // by start
};
struct Measured {
  std::vector<MeasuredRow> rows;  // by row of the timeline
  int32_t steps = 0;              // training steps that the trace and the timeline both have
  int64_t first_step = 0;         // as the run has counted it, from 1
  double begin = 0;               // of them, in the timeline
  double length = 0;              // until the last of them ends
  double predicted = 0;           // what the timeline says of that
};
// Reads traces of `piper-run --trace` of the same plans: one of all ranks, or one of each. A row
// shows its lowest rank that was traced. Files are not believed; errors are located. Error: a rank
// ran other instructions, or these in another order.
Result<Measured> read_measured(const Timeline& timeline, const std::vector<std::string>& paths);

// Draws the page. Times are in seconds. `measured` may be null, and is of this timeline.
std::string draw_html(const Timeline& timeline, const std::string& title,
                      const Measured* measured = nullptr);

}  // namespace piper
