// What is found of an attention before it is written as one op. Indices into the scores go by
// [lead, queries, keys], where lead are the leading dims of the product in one.
#pragma once

#include <limits>
#include <map>
#include <set>

#include "views.h"

namespace piper::patterns {

constexpr double kVeryLow = -1e4;  // whose exponential is 0 beside that of any common score

// Describes a term or a condition of the scores.
struct MaskStep {
  enum Kind { kAdd, kKeep } kind = kAdd;
  ValueId value;
  Modes run;              // over its elements, by [lead, queries, keys]
  double number = 1;      // kAdd: its factor; kKeep: what a score becomes where it is hidden
  bool inverted = false;  // kKeep: a score is hidden where it is true
  ViewDims scores;        // the dims of the scores where it meets them
};

// Holds a factor of the scores that is the same for all keys: it is as well a factor of the
// queries.
struct QueryFactor {
  ValueId value;
  Modes run;
  bool divides = false;
};

// Describes what is between the product of q and k and the softmax: outer · tanh(scale · qk), or
// scale · qk, then the masks in their order.
struct Scores {
  double scale = 1, outer = 1;
  bool bent = false, causal = false;
  int64_t offset = 0;
  std::vector<QueryFactor> on_q;
  // A score beside those of the keys, of which no value is taken (Xiao et al., 2024, StreamingLLM):
  // by [lead, queries]; invalid: none.
  ValueId sink;
  Modes sink_run;
  std::vector<MaskStep> masks;
  ViewDims weights;  // the dims of the weights as the second product reads them
};

// Holds the scores of one product, as the softmax reads them.
struct ScorePath {
  struct Step {
    const Node* node;
    size_t at;  // the operand that the product is under
  };
  std::vector<Step> steps;  // from the softmax upwards
  const Node* product = nullptr;
  bool swapped = false;  // keys stand before queries in it
};

// Holds the weights that the softmax makes.
struct Weights {
  const Node* softmax = nullptr;
  std::vector<ScorePath::Step> steps;  // from the second product upwards
};

// Describes q, k or v as the op takes it.
struct Side {
  ValueId base;
  ViewDims dims;
  bool tokens_first = false;
  double factor = 1;  // what it was multiplied by on the way
  int cost = 0;       // of writing it out
};

struct AttentionFound {
  size_t node = 0;  // that makes what others read
  Side q, k, v;
  int64_t batch = 1, heads = 1, queries = 1, keys = 1, group = 1;
  Scores scores;
  bool y_tokens_first = false;
  ViewDims y;  // of what `node` makes, over y as [batch, heads, queries, width]
};

class ScoreReader {
 public:
  ScoreReader(const Graph& graph, const Matcher& match) : graph_(graph), match_(match) {}

  // Returns the number that all elements of a value are, a constant or one repeated.
  std::optional<double> number(ValueId id) const;
  // Returns all ways from the softmax to a product; none: see why().
  std::vector<ScorePath> paths(const Node& softmax);
  // Follows the operand of a product up to a softmax; its softmax is null where there is none.
  Weights weights(ValueId id) const;
  // Requires a path of paths(). False: see why().
  bool read(const ScorePath& path, const Weights& weights, Scores& scores);
  const std::string& why() const { return why_; }
  void forget() { why_.clear(); }

 private:
  template <class... Args>
  bool no(fmt::format_string<Args...> text, Args&&... args) {
    why_ = fmt::format(text, std::forward<Args>(args)...);
    return false;
  }
  const Shape& shape(ValueId id) const { return graph_.value(id).type.shape; }
  void climb(ValueId id, ScorePath& path, int& opened, std::vector<ScorePath>& found);
  std::vector<size_t> ways_up(const Node& node) const;
  bool is_max_of(ValueId id, ValueId scores) const;
  bool is_guard(const Node& node) const;
  bool drops_last(const Node& node) const;
  bool take_sink(const ScorePath::Step& step, const ViewDims& dims, Scores& scores);
  bool read_step(const ScorePath::Step& step, ViewDims& dims, Scores& scores);
  bool scale_by(double factor, const Node& node, Scores& scores);
  bool multiply(const Node& node, ValueId by, const ViewDims& dims, Scores& scores);
  bool replace(const Node& node, size_t at, const ViewDims& dims, Scores& scores);
  bool settle(const Scores& raw, const std::vector<MaskStep>& hidden, Scores& scores);
  std::optional<Modes> run_of(const ViewDims& dims, const ViewDims& scores) const;
  struct Lift;
  std::optional<Modes> lifted(ValueId value, const std::vector<Lift>& lifts,
                              const ViewDims& scores) const;
  std::vector<MaskStep> sources_of(const MaskStep& step) const;
  std::vector<MaskStep> sources_below(MaskStep step, std::vector<Lift> lifts, int& opened) const;
  std::vector<MaskStep> parts_of(const MaskStep& step, const Node& node, std::vector<Lift> lifts,
                                 int& opened) const;
  std::optional<double> hides(const MaskStep& term, const Node& where) const;
  bool is_hidden_by(const MaskStep& step, const MaskStep& hidden) const;
  bool hides_alike(const MaskStep& step, const MaskStep& hidden) const;
  const std::vector<double>* elements_of(ValueId id);
  std::optional<int64_t> counted(const MaskStep& step) const;
  bool read_constant(const MaskStep& step, Scores& scores);

  const Graph& graph_;
  const Matcher& match_;
  std::string why_;
  int64_t queries_ = 1, keys_ = 1;
  DType dtype_ = DType::kF32;  // of q and k
  ValueId last_constant_;
  std::optional<std::vector<double>> last_elements_;
};

// Views an operand of a product as part of a value that it comes from.
struct Operand {
  ValueId base;
  Modes lead, tokens, width;
  double factor = 1;  // what the base was multiplied by on the way
};
using Operands = std::vector<Operand>;  // the nearest value first

class AttentionFinder {
 public:
  explicit AttentionFinder(const Graph& graph)
      : graph_(graph), match_(graph), reader_(graph, match_) {}

  // Finds the attention at a product of weights and values.
  std::optional<AttentionFound> find(size_t index);
  // Returns what find() met: why the attention of a softmax is none, by the softmax's result.
  const std::map<ValueId, std::string>& why() const { return why_; }

 private:
  const Shape& shape(ValueId id) const { return graph_.value(id).type.shape; }
  std::optional<AttentionFound> find_along(size_t index, size_t of_weights, const Weights& weights,
                                           const ScorePath& path);
  bool reads_weights(const Node& last, size_t of_weights, const Scores& scores,
                     const AttentionFound& found);
  Operands operands(ValueId id, const Shape& lead, bool tokens_last, bool scaled) const;
  std::optional<ValueId> scaled_of(ValueId id, double& factor) const;
  std::optional<Side> best_side(const Operands& all, const AttentionFound& found, int64_t group,
                                bool of_keys) const;
  std::vector<int64_t> batches(const Shape& lead, const Operands& q) const;
  std::set<int64_t> groups(const Operands& all, int64_t batch, int64_t heads) const;
  bool choose_heads(const Shape& lead, const Operands& q, const Operands& k, const Operands& v,
                    AttentionFound& found) const;
  bool masks_divide(const AttentionFound& found) const;
  void take_views(size_t index, bool width_first, AttentionFound& found) const;

  const Graph& graph_;
  const Matcher match_;
  ScoreReader reader_;
  std::map<ValueId, std::string> why_;
  std::string reason_;
};

// Writes what was found in place of its last node.
void write_attention(Graph& graph, std::span<const AttentionFound> found);

}  // namespace piper::patterns
