// Reads the text form of graphs, for tests that write theirs as text.
#pragma once

#include "piper/ir/graph.h"

namespace piper {

// Returns the graph that print_graph prints as this text. Constants of which the text has only a
// digest have no data.
Result<Graph> parse_graph(std::string_view text);

}  // namespace piper
