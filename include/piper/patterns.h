// Groups of ops that the op table has one op for: found by their form, whatever the exporter called
// them, and replaced. Fewer passes over memory forward, and backward the composite's own gradient
// instead of one per op. Values change by rounding alone.
//
//   Attention  softmax of the scaled products of q and k, times v: scaled on q, k or the product,
//              soft-capped, masked by added terms or Where, guarded against rows of NaN; heads
//              transposed and repeated. A constant mask is looked at: where it hides exactly the
//              keys behind each query's, the composite is causal and skips them
//   Gelu       x · ½(1 + erf(x/√2)), and the tanh form; factors and terms in any order
//   MatMul     of a transposed operand: the transposition becomes a flag, also through
//              reshapes of the leading dims and through a scalar factor
//   Concat     a sum of zero-padded parts that tile one dim (the gradient of a split)
#pragma once

#include "piper/graph.h"

namespace piper {

struct Recognised {
  Graph graph;
  std::vector<std::pair<std::string, int64_t>>
      counts;  // composite op -> how many were found; only those found
};
// Requires and ensures a graph that check_graph accepts; loss and outputs keep their meaning.
Result<Recognised> recognise(Graph graph);

}  // namespace piper
