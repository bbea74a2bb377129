// Groups of ops that the op table has one op for: found by their form, whatever the exporter called
// them, and replaced. Fewer passes over memory forward, and backward the composite's own gradient
// instead of one per op. Values change by rounding alone.
//
//   Gelu       x · ½(1 + erf(x/√2)), factors and terms in any order. The tanh form stays
//              written out: its kernel rounds more than the ops one by one, and twenty AdamW
//              steps of the sample then leave the bound of the reference values
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
