// Groups of ops that the op table has one op for: found by their form, whatever the exporter called
// them, and replaced. Fewer passes over memory forward, and backward the composite's own gradient
// instead of one per op. Values change by rounding only.
//
// The patterns are in a table (known_patterns()), which also makes their list in the
// documentation.
#pragma once

#include "piper/ir/graph.h"

namespace piper {

struct PatternForm {
  std::string_view op;     // the composite
  std::string_view forms;  // what it is found in, a sentence or two
};
// Returns the patterns in the order in which they are looked for.
std::vector<PatternForm> known_patterns();

// Describes a softmax of products of which no attention was made: its scores are stored whole.
struct LeftAttention {
  std::string node, scope;  // of the softmax
  std::string why;          // the first thing that did not fit
  int64_t bytes = 0;        // of its weights in a step, and of each value of their size before them
};
// Returns a line for each reason, with the first softmax that it is said of.
std::vector<std::string> lines_of(const std::vector<LeftAttention>& left);

struct Recognised {
  Graph graph;
  std::vector<LeftAttention> left;
  // Composite op -> how many were found; only those found.
  std::vector<std::pair<std::string, int64_t>> counts;
};
// Requires and ensures a graph that check_graph accepts; loss and outputs keep their meaning.
Result<Recognised> recognise(Graph graph);

// Of 16-bit floats, ops that would round between them become ones that round once, whatever chunks
// are cut later: a product with its bias, and a Gelu after it, becomes Linear; a cross-entropy
// reads logits, and makes their gradient, without casts.
//
//   y = Gelu (Add (MatMul x w) b)   ->   y, pre = Linear x w b {activation=gelu}
//
// After sharding, which cuts the ops apart; requires and ensures what sharding ensures.
Graph round_once(Graph step);

}  // namespace piper
