// The end of a step as chunks: which cell computes what of clipping, optimizer and reports.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "piper/planner/dag.h"

namespace piper {

// Returns what the nodes read from outside, ascending.
std::vector<ValueId> outside_reads(const Graph& graph, const std::vector<NodeId>& nodes);
Chunk end_chunk(const Dag& dag, int32_t cell, std::string name);  // of pass U, without nodes
// Makes a chunk of the nodes from `first` on; it writes what the last one makes.
Chunk chunk_of_new_nodes(const Dag& dag, size_t first, int32_t cell, std::string name);

// The squares of a gradient are summed in as many runs of its elements as its first round has
// replicas, and the sums of these added in order: by the rank that has all runs, or, where each
// rank has one, by their reduction. So plans with the same rounds agree, whatever they cut. What
// further axes cut is summed over these then.
void square_by_runs(Dag& dag);

// Describes scalars that every cell needs and one cell knows: squares of the gradients in canonical
// parameter order, then the loss and, of an evaluation, its weight.
struct ScalarVector {
  std::vector<ValueId> sources;  // gradients, or the own parts of them, then loss and weight
  std::vector<Attrs> squares;    // by gradient: how its squares are summed
  ValueId shared;                // f64[sources]: after the sum over cells
};
// Adds the nodes that take norm, loss and weight from the shared vector, and lets the graph read
// those.
ScalarVector scalar_vector(Dag& dag);
// Returns the chunk in which `cell` writes its part of the vector; `here[i]`: this cell contributes
// source i, else zero.
Chunk scalar_chunk(Dag& dag, const ScalarVector& scalars, const std::vector<bool>& here,
                   int32_t cell);

// Returns the chunk in which the first cell adds two vectors.
Chunk sum_chunk(Dag& dag, ValueId a, ValueId b, const std::string& name);

using Reports = std::vector<std::pair<std::string, ValueId>>;
Reports report_values(const Dag& dag);

// Indexes what the updates of all cells look up in the graph.
struct UpdateIndex {
  explicit UpdateIndex(const Dag& dag);
  std::vector<ValueId> param_of;             // by value: of parameters, copies and their parts
  std::vector<ValueId> state_of;             // by value: the state that it replaces
  std::vector<std::vector<NodeId>> readers;  // by value
  // Returns whether the node makes of a sum what travels in its place: it is its only reader, and
  // makes fewer bytes.
  bool travels_for_sum(const Graph& graph, NodeId node) const;
  // By value: the cells in which a chunk reads it, or, of parameters that none reads, in which
  // those sums are begun that they take their next value from.
  std::vector<std::set<int32_t>> held;
  // By update: the parameters that it reads, or the copy that it makes.
  std::vector<std::vector<ValueId>> params;
};
// Finds the region that parameters belong to, where updates are tasks of regions: that of the only
// chunks which read them, or of several in one cell that whose backward ends the gradient.
class UpdateRegions {
 public:
  explicit UpdateRegions(const Dag& dag);
  size_t size() const { return tags_.size(); }
  const std::vector<int32_t>& tags(size_t region) const { return tags_[region]; }
  ChunkId chunk(size_t region) const { return chunks_[region]; }  // one of the region's
  // Return the region that reads a parameter or its copy, or whose parameter a gradient or its part
  // is of; none where several cells read it.
  std::optional<size_t> of_param(ValueId param) const { return find(of_param_, param); }
  std::optional<size_t> of_gradient(ValueId sum) const { return find(of_gradient_, sum); }
  // Returns the region of the only gradients that a node reads.
  std::optional<size_t> of_reads(const Node& node) const;
  // Takes the nodes that read gradients of one region only out of a chunk of the update: by region,
  // what is left last. What a node reads is in its own chunk or in those before it.
  std::vector<Chunk> taken_apart(const Dag& dag, Chunk chunk) const;

 private:
  using Table = std::map<ValueId, std::optional<size_t>>;
  static std::optional<size_t> find(const Table& table, ValueId value) {
    const auto known = table.find(value);
    return known == table.end() ? std::nullopt : known->second;
  }
  void settle_shared(const Dag& dag, ValueId param, const Sum& gradient);

  std::vector<std::vector<int32_t>> tags_;
  std::vector<ChunkId> chunks_;
  Table of_param_, of_gradient_;
};

// Makes the chunks that update all state that `cell` holds, and compute what reports need: what
// regions share, each region's, the rest. Between two of them are exchanges, of what the first one
// makes.
std::vector<Chunk> update_chunks(const Dag& dag, int32_t cell, const UpdateIndex& index,
                                 const UpdateRegions& regions, const Reports& reports);

// Returns whether an exchange gathers; else it takes the own run.
inline bool gathers(const Part& exchange) { return exchange.gather == Gather::kUpdate; }

// Cuts, over the axes of a parameter's part, what an optimizer computes before it updates that:
// element by element on own runs, and on whole tensors between exchanges. Returns the states of
// which ranks then have their own runs.
struct CutUpdate {
  ValueId param, part;              // the parameter, and its part
  ValueId gradient, gradient_part;  // likewise
  NodeId optimizer;
  bool is_kept = false;         // the parameter itself stays, too
  std::vector<size_t> updates;  // of Graph::updates: those beside the parameter
  struct Level {
    Shape run;  // of a part by this level; the last one's is the own
    std::vector<int32_t> over;
    int32_t stream = 0;  // of what is gathered
  };
  std::vector<Level> levels;
  const Shape& own() const { return levels.back().run; }
};
// `readers`: by value; nodes that are added are added there, too.
std::vector<ValueId> cut_direction(Dag& dag, const CutUpdate& cut,
                                   std::vector<std::vector<NodeId>>& readers);
// Spreads directions that ranks compute of whole matrices: of as many equal matrices as ranks, each
// rank computes the direction of one.
void spread_directions(Dag& dag);

}  // namespace piper
