// What every rank has to do, in the order of its plan. Private to the room.
#pragma once

#include "piper/inspect/picture.h"
#include "sharing.h"

namespace piper::timeline {

inline size_t at(int64_t index) { return static_cast<size_t>(index); }

// Returns the pass of a forward or a backward, and kU for everything else.
TaskPass pass_of(const Instruction& one);

// Describes an instruction in one of the sections that a rank runs one after the other.
struct Step {
  const Instruction* one = nullptr;
  int32_t number = 0;   // of the training step
  int32_t section = 0;  // position among those of the row
  double cost = 0;      // of the device
  int32_t pair = -1;    // of the row's
  bool second = false;  // in its second half
  int64_t turn = 0;     // of its message or collective, among those that match
  size_t peer = 0;      // sends and receives: a row
  size_t meeting = 0;   // collectives: of all rows
  bool queued = false, arrived = false;
  double finish = -1;
};
struct Pair {
  int32_t begins[2] = {-1, -1};  // the first step of each half
  double work[2] = {0, 0};
  double ready[2] = {-1, -1};
  bool started = false, apart = false;
};
struct Section {
  int32_t first = 0, left = 0;  // steps; those that have not run
  double end = 0, computed = 0;
};
struct Row {
  int64_t rank = 0;
  const RoleProgram* role = nullptr;
  std::vector<Step> steps;
  std::vector<Pair> pairs;
  std::vector<Section> sections;
  std::vector<std::vector<int32_t>> streams;  // steps
  std::vector<size_t> next;                   // by stream
  std::vector<double> clock;                  // by stream
  std::vector<int32_t> open_cell;             // by stream: the cell that its next may lengthen
  double device = 0;                          // computes until then, if nothing shares it
  Sharing sharing;                            // of it by the halves of a pair
  std::vector<int32_t> held;                  // steps that wait until nothing shares it
  std::vector<PictureCell> cells;
};

// Fills the steps of a row whose role is set. `flops` by program; where steps overlap, so many
// bodies between prologue and epilogue.
void fill_row(Row& row, PictureCosts costs, const std::vector<double>& flops, int32_t bodies);

}  // namespace piper::timeline
