// Builds the graph of a rank over one mesh axis: ops in their order, on values in the layouts that
// were chosen, and the collectives that convert these. Records the layouts of results.
#pragma once

#include "axis_choice.h"

namespace piper::axis {

class Rewriter {
 public:
  Rewriter(Graph graph, const AxisCut& cut) : state_(std::move(graph), cut) {}
  const State& state() const { return state_; }

  // ---- What is known before an op ---------------------------------------------------------------

  // Cuts a tensor as the strategy says. Error: it does not divide.
  Status seed(const ShardSeed& seed);
  // Gives all readers of what a node will make another layout.
  void fix(ValueId at, const Layout& layout) { state_.at(at).fixed = layout; }
  // Says that a value needs a layout in the end.
  void hint(ValueId at, const Layout& layout);
  void begin(NodeId id) { state_.visited = id; }
  // Hints at layouts of results that their readers prefer, and notes how the op's rows are sent.
  void prepare(const Node& node, const Loops& loops);

  // ---- An op ------------------------------------------------------------------------------------

  void set_rows(const Node& node, const Choice& choice, Node& made);
  // Adds an op as it was chosen to be cut, on converted operands.
  void rewrite(NodeId id, const Choice& choice);
  void record_layouts(NodeId id, const Choice& choice);
  // Gives a result to all its readers in another layout.
  void convert_for_all(ValueId output, const Layout& to, NodeId id);
  // Says that a value of another layout is there already.
  void add_converted(ValueId id, const Layout& layout, NodeId reader, ValueId made);
  // Returns a value in the layout that a reader needs; a state without one gets it.
  ValueId read(ValueId id, const Layout& need, NodeId reader);

  // ---- Ops that stand for one -------------------------------------------------------------------

  // Returns an op of the region of another, for this axis.
  Node beside(const Node& near, std::string_view op, std::vector<ValueId> inputs,
              Attrs attrs) const;
  // Adds an op and returns its results, which lie over other axes as those that they are like.
  std::vector<ValueId> add(Node node, std::span<const ValueId> like,
                           std::span<const Layout> layouts, NodeId source = {});
  // Adds an op of one result; it is like `like`, or else like the first input.
  ValueId add(Node node, const Layout& layout, ValueId like = {});
  // Adds a node; it is localised as its source, the op of the graph that it stands for, if any.
  void append(Node node, NodeId source = {});
  // Records that the op added last converts a value for a reader; each rank sends `bytes`.
  void add_conversion(ValueId value, NodeId reader, double bytes);
  // Returns the number of the rank's first part; one op serves a region.
  ValueId own_number(const Node& near, Attrs attrs);
  // Returns attributes of the rank's numbers of a letter's parts, to be added to those that axes
  // before have left.
  Attrs own_numbers(const LoopCut& cut, int64_t extent, ValueId before) const;
  // Tells a part where it begins, among the parts of axes before it too.
  void place_first(Node& node, const LoopRule& rule, const LoopCut& cut);
  // Returns the type of a value as a rank has it.
  TensorType type_here(ValueId id) const;
  // Ends the step: its results get the layouts of what they become. Requires that all ops are in.
  ShardedGraph finish();

 private:
  ValueId fetch(ValueId id, const Layout& need, NodeId reader);
  ValueId convert(ValueId id, const Layout& to, NodeId reader);
  ValueId convert_rows(ValueId id, const Layout& to, NodeId reader);
  Node node_for(ValueId id, NodeId reader);
  // Returns packed rows: those of the own block, or of the ranks that own what the index names.
  ValueId pack(ValueId id, const Layout& routed, NodeId reader);
  ValueId unpack(ValueId id, const Layout& blocks, NodeId reader);
  struct Places {
    ValueId of_rows, index;  // of the rows of the own block; the numbers of the rows that come
  };
  Places places_of(const Layout& routed, NodeId reader);
  ValueId exchange(ValueId from, size_t joins, ValueId origin, const Node& near, NodeId reader);
  ValueId in_shape(ValueId from, const Shape& shape, const Layout& layout, const Node& near);
  std::optional<ValueId> convert_source(ValueId id, const Layout& to, NodeId reader);
  ValueId emit(std::string_view op, ValueId from, ValueId origin, const Layout& blocks,
               const Layout& to, NodeId reader);
  Pass pass_of(ValueId origin, const Node& near) const;
  void sum_numbers(NodeId id, const Choice& choice);
  void place_draw(Node& node, const Layout& layout);
  Value value_like(ValueId of, std::string name, TensorType type, const Layout& layout) const;
  void set_layout(Value& value, const Layout& layout) const;
  void end_step();
  void localise_all();

  State state_;
  std::vector<Node> nodes_;
  std::vector<NodeId> sources_;  // by position in nodes_; invalid: an op that was added
  std::vector<Conversion> conversions_;
  std::map<std::pair<Region, std::string>, ValueId> own_numbers_;  // by attributes
  std::map<std::pair<Region, ValueId>, Places> places_;            // by index
};

// ---- Attention over tokens in blocks (axis_attention.cc) ----------------------------------------

// Returns what the strategy says of the op; null: nothing.
const AttentionCut* attention_of(const AxisCut& cut, const Node& node);

// Adds attention, or its gradient, so cut. Error: its tokens are not in blocks over the axis, or
// ranks do not divide its heads or keys.
Status lower_attention(Rewriter& rewriter, NodeId id, const Loops& loops, const AttentionCut& how);

// Adds attention, or its gradient, over chunks of tokens that come in order: each has its queries,
// and its own terms of the gradients of keys and values are sums over the chunks. Error: it is not
// causal, naming the split at `at`.
Status lower_in_order(Rewriter& rewriter, NodeId id, const Loops& loops, const SourceSpan& at);

}  // namespace piper::axis
