// The text form of role programs: print_text.cc writes it, parse_text.cc reads it. Private to the
// bundle room.
//
// A line is a keyword, words in fixed places, then key=value in any order; what is left out has its
// default. Numbers in front are positions in their table, there for people: they must be right.
#pragma once

#include "piper/bundle.h"

namespace piper {

inline constexpr const char* kBufferKinds[] = {"state", "constant", "step"};

// "text" with \", \\ and \xNN.
std::string quote(std::string_view text);

}  // namespace piper
