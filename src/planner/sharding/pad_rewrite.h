// What goes on into zeros, found in a graph, and the graph in which it does.
#pragma once

#include <set>

#include "pad_marks.h"

namespace piper {

struct Padded {
  PadMarks marks;
  std::set<int32_t> masked;          // nodes that read what counts as none
  std::set<int32_t> nonzero;         // values that are made of zeros, and are none
  const PadMark* mark_of(ValueId id) const {  // null: nothing is put behind it
    const auto at = marks.find(id.value);
    return at == marks.end() ? nullptr : &at->second;
  }
  std::map<int32_t, ValueId> given;  // values without a producer: what is given, with zeros behind
};

// `axis`: its name.
Graph rewrite_padded(Graph graph, const std::string& axis, Padded found);

}  // namespace piper
