// Looking at a graph from a value upwards.
#pragma once

#include "piper/frontend/patterns.h"

namespace piper::patterns {

class Matcher {
 public:
  explicit Matcher(const Graph& graph);
  const Node* producer(ValueId id) const;
  // Returns the producer if it is `op` and nothing but the pattern reads its value.
  const Node* sole(ValueId id, std::string_view op) const;
  int64_t reader_count(ValueId id) const { return readers_[id.index()]; }
  // Returns the one node that reads it, if nothing else does; invalid otherwise.
  NodeId sole_reader(ValueId id) const {
    return readers_[id.index()] == 1 ? last_reader_[id.index()] : NodeId();
  }
  std::optional<double> scalar(ValueId id) const;  // a constant of one element
  std::optional<double> number(ValueId id) const;  // a constant all of whose elements are that
  // Returns the elements of a constant of floats or booleans; none when it is no constant.
  std::optional<std::vector<double>> elements(ValueId id) const;
  // Describes value = factor × the product of atoms, seen through products and divisions by
  // constants that nothing else reads.
  struct Product {
    double factor = 1;
    std::vector<ValueId> atoms;
  };
  Product product(ValueId id) const;
  // Returns the terms that are added to the value, through sums that nothing else reads.
  std::vector<ValueId> sum(ValueId id) const;

 private:
  void add_factors(ValueId id, bool root, int& opened, Product& product) const;
  void add_terms(ValueId id, bool root, int& opened, std::vector<ValueId>& terms) const;
  const Graph& graph_;
  std::vector<int64_t> readers_;
  std::vector<NodeId> last_reader_;
};

// Returns the value whose last two dims `id` has swapped: through one Transpose, or Reshape,
// Transpose, Reshape of the leading dims.
std::optional<ValueId> swapped_of(const Graph& graph, const Matcher& match, ValueId id);

// The node at `index` becomes the composite, just built, that made these values: it keeps its first
// output and takes over the further ones.
void become(Graph& graph, size_t index, const std::vector<ValueId>& made);

using Count = int64_t;
Count recognise_layer_norm(Graph& graph);
Count recognise_rms_norm(Graph& graph);
Count recognise_group_norm(Graph& graph);
Count recognise_rotary(Graph& graph);
Count recognise_silu(Graph& graph);
Count recognise_swiglu(Graph& graph);
Count recognise_picked_cross_entropy(Graph& graph);
Count recognise_cross_entropy(Graph& graph);
Count recognise_attention(Graph& graph);
std::vector<LeftAttention> left_attentions(const Graph& graph);
void raise_hiding_terms(Graph& graph);
void guard_before_softmax(Graph& graph);
Count recognise_gelu(Graph& graph);
Count recognise_grouped(Graph& graph);
Count fold_transposes(Graph& graph);
Count join_padded_parts(Graph& graph);

}  // namespace piper::patterns
