// What the passes of a program compute, and how profiles write it.
#pragma once

#include "piper/devices/program.h"
#include "piper/plan/flops.h"

namespace piper {

// Says what a pass computes, and how many bytes it moves in all.
struct PassWork {
  std::vector<OpWork> products;  // and attentions
  double flops = 0;              // of all else
  double bytes = 0;              // read and written
  // Says whether a row of each operand and result of its products is a multiple of 16 bytes.
  bool aligned = true;
  bool operator==(const PassWork&) const = default;
};
// Returns the work by pass. Error: an op whose FLOPs are not known.
Result<std::vector<PassWork>> passes_of(const FusedProgram& program);
// A text for each different pass: "2 product:f32:1:512:384:128:50331648 9216 1310720" is how often
// it runs, its products with their type, count, m, n, k and FLOPs, the other FLOPs and the bytes.
// Profiles say so what programs do; Piper runs those, and aligns all rows.
std::vector<std::string> print_passes(std::span<const PassWork> passes);
// Reads one such text. Nothing: it is none.
std::optional<std::pair<int64_t, PassWork>> parse_pass(std::string_view text);

}  // namespace piper
