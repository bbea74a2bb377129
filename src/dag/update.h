// The end of a step as chunks: which cell computes what of clipping, optimizer and reports.
#pragma once

#include <set>

#include "piper/dag.h"

namespace piper {

// Scalars that every cell needs and one cell knows: squares of the gradients in canonical parameter
// order, then the loss.
struct ScalarVector {
  std::vector<ValueId> sources;  // StepSum values: gradients, then the loss
  ValueId shared;                // f64[sources]: after the sum over cells
};
// Adds the nodes that take norm and loss from the shared vector, and lets the graph read those.
ScalarVector scalar_vector(Dag& dag);
// The chunk in which `cell` writes its part of the vector; `here[i]`: this cell contributes source
// i, else zero.
Chunk scalar_chunk(Dag& dag, const ScalarVector& scalars, const std::vector<bool>& here,
                   int32_t cell);

using Reports = std::vector<std::pair<std::string, ValueId>>;
Reports report_values(const Dag& dag);
// Updates of all state that `cell` holds (held: by value, the cells that read it), and what reports
// need.
Chunk update_chunk(const Dag& dag, int32_t cell, const std::vector<std::set<int32_t>>& held,
                   const Reports& reports);

}  // namespace piper
