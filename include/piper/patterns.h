// Groups of ops that the op table has one op for: found by their form, whatever the exporter called
// them, and replaced. Fewer passes over memory forward, and backward the composite's own gradient
// instead of one per op. Values change by rounding alone.
//
//   Gelu       x · ½(1 + erf(x/√2)), factors and terms in any order. The tanh form stays
//              written out: as one op, twenty AdamW steps of the sample left the bound of the
//              reference values (1.3e-4 to 1.9e-4 against 1e-4); why is not known
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
