// Pictures of the schedule that a plan set asks for, from its files only: a simulation of all ranks
// (simulate.h), then text or SVG.
#pragma once

#include <cstdio>
#include <optional>

#include "piper/inspect/simulate.h"

namespace piper {

// Says what the length of a cell is. In FLOPs and units messages, collectives, copies and inputs
// take no time of their own: a receive ends when its send does, a collective when all of its
// members have come to it.
enum class PictureCosts {
  kFlops,    // what each program runs; what a backward recomputes is part of it
  kUnits,    // a forward 1, a backward 2, its input part and its weight part 1 each, all else 0
  kSeconds,  // of a machine
};

// Covers what runs without a pause of one task, from the picture's start.
struct PictureCell {
  double start = 0, length = 0;
  double work = 0;                  // less than the length where halves of a pair share the device
  TaskPass pass = TaskPass::kNone;  // kU for all but forwards and backwards
  int32_t stage = -1, micro = -1;
  int32_t step = 0;
  bool paired = false, second = false;  // in a pair; in its second half
  std::string task;                     // "F stage=1 mb=3"
  // "F3", "F3b" on the second of a rank's stages, "F3'" of the second step, "U".
  std::string label;
};
// Groups the ranks that do the same, whatever their other coordinates.
struct PictureRow {
  std::vector<int64_t> ranks;
  std::vector<PictureCell> cells;  // by start
  double idle = 0;                 // share of the picture's length
};
struct Picture {
  PictureCosts costs = PictureCosts::kFlops;
  std::vector<PictureRow> rows;
  double length = 0;
  double idle = 0;  // share of all rows
  // Where steps overlap the picture shows two of them; this is the share of a step in the middle.
  std::optional<double> steady_idle;
};

// Error: a plan that cannot be followed to its end, with the instruction that waits; roles that are
// not at hand; programs whose FLOPs are unknown.
Result<Picture> make_picture(const PlanSet& set, PictureCosts costs);  // FLOPs or units
Result<Picture> make_picture(const PlanSet& set, const Machine& machine, PictureCosts costs);

struct PictureText {
  size_t width = 0;  // columns of a line, at least 40; rows that are longer go on below; 0: any
  bool colour = false;
};
// Returns the width and colours of the file: any width and no colour where it is no terminal.
PictureText text_for(std::FILE* file);
std::string draw_text(const Picture& picture, const PictureText& form);
// One self-contained image; hovering over a cell names its task.
std::string draw_svg(const Picture& picture, const std::string& title);

}  // namespace piper
