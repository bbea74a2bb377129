// The end of a step as chunks: which cell computes what of clipping, optimizer and reports.
#pragma once

#include <set>

#include "piper/dag.h"

namespace piper {

// Lets every SumSquares sum run by run; those of gradients that mesh axes cut are summed over
// these.
void square_by_runs(Dag& dag);

// Scalars that every cell needs and one cell knows: squares of the gradients in canonical parameter
// order, then the loss.
struct ScalarVector {
  std::vector<ValueId> sources;  // StepSum values: gradients, then the loss
  ValueId shared;                // f64[sources]: after the sum over cells
};
// Adds the nodes that take norm and loss from the shared vector, and lets the graph read those.
ScalarVector scalar_vector(Dag& dag);
// Squares of gradients that are cut: each rank sums the runs it holds, then all are gathered.
struct GatheredSquares {
  std::vector<int32_t> position;  // by source: which of them; -1: not among them
  int64_t sources = 0, shards = 1, runs = 1;
  ValueId own;  // f64[sources × runs]
  ValueId all;  // f64[shards × sources × runs]
};
// The chunk that makes `own` from the parts of the gradients (by source; invalid: not among them).
Chunk squares_chunk(Dag& dag, const std::vector<ValueId>& gradient_parts, int32_t cell,
                    GatheredSquares& squares);
// The chunk in which `cell` writes its part of the vector; `here[i]`: this cell contributes source
// i, else zero.
Chunk scalar_chunk(Dag& dag, const ScalarVector& scalars, const std::vector<bool>& here,
                   const GatheredSquares& squares, int32_t cell);

// The chunk in which the first cell adds two vectors.
Chunk sum_chunk(Dag& dag, ValueId a, ValueId b, const std::string& name);

using Reports = std::vector<std::pair<std::string, ValueId>>;
Reports report_values(const Dag& dag);

// What the updates of all cells look up in the graph.
struct UpdateIndex {
  explicit UpdateIndex(const Dag& dag);
  std::vector<ValueId> param_of;             // by value: of parameters and their parts
  std::vector<ValueId> state_of;             // by value: the state that it replaces
  std::vector<std::vector<NodeId>> readers;  // by value
  // By value: the cells in which a chunk reads it, or, of parameters that none reads, in which
  // those sums are begun that they take their next value from.
  std::vector<std::set<int32_t>> held;
  std::vector<std::vector<ValueId>> params;  // by update: the parameters that it reads
};
// Updates of all state that `cell` holds, and what reports need.
Chunk update_chunk(const Dag& dag, int32_t cell, const UpdateIndex& index, const Reports& reports);

}  // namespace piper
