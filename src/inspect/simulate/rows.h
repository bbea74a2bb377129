// What every row has to do, in the order of its plan. Private to the room.
#pragma once

#include "device.h"
#include "piper/inspect/simulate.h"

namespace piper::timeline {

inline size_t at(int64_t index) { return static_cast<size_t>(index); }

// Holds what the engine knows of a step beside its times.
struct StepState {
  int32_t lane = 0;
  int32_t before = -1;    // the step before it on its stream, where that is on another lane
  int32_t pair = -1;      // of the row's
  int32_t transfer = -1;  // messages and collectives: of all rows
  bool asked = false;     // for the device, its message or its group: an event will end it
};
struct Pair {
  int32_t begins[2] = {-1, -1};  // the first step of each half
  double work[2] = {0, 0};
  double ready[2] = {-1, -1};
  bool started = false, apart = false;
};
struct SectionState {
  int32_t left = 0;              // steps that have not run, and messages that have not arrived
  double host = -1;              // when the host begins to issue it; -1: not known yet
  std::vector<int32_t> step_of;  // by position in its list; -1: of a step that it leaves out
};
struct Row {
  TimedRow* out = nullptr;
  int64_t rank = 0;
  std::vector<StepState> steps;
  std::vector<Pair> pairs;
  std::vector<SectionState> sections;
  std::vector<std::vector<int32_t>> lanes;  // steps
  std::vector<size_t> next;                 // by lane
  std::vector<int32_t> last;                // by lane: the step that ran last; -1: none
  std::vector<double> issued;               // by step: host time behind its section's begin
  Device device;
  double slowed = 0, between_steps = 0;  // as RankCosts has them, and
  RankLanes works = RankLanes::kStreams;
  int32_t alone = -1;                    // the step that has the device for itself; -1: none
  int32_t computed = -1;                 // the step that had the device last
  std::vector<int32_t> held;             // steps that wait for the device
  int32_t moving = 0;                    // messages and collectives under way
};

// Fills the steps of a row whose output names ranks and role. Where steps overlap, `steps` bodies
// are between prologue and epilogue.
void fill_row(Row& row, const RankCosts& costs, int32_t steps);

}  // namespace piper::timeline
