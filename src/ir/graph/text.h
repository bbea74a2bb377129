// How the graph's text form shows constants.
#pragma once

#include <string>

#include "piper/ir/graph.h"

namespace piper {

// Data of at most this many bytes is printed element by element.
inline constexpr int64_t kMaxPrintedBytes = 64;

// "[1,0.5]"; halves as their bits, "0x3f80".
std::string print_elements(const Value& value);

}  // namespace piper
