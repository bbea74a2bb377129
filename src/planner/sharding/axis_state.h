// What is known of values while a graph is cut over one mesh axis, in the order of its nodes.
// Choices (axis_choice.h) read it; only the Rewriter (axis_rewriter.h) changes it.
#pragma once

#include <map>

#include "letters.h"
#include "piper/planner/sharding.h"
#include "rewrite.h"

namespace piper::axis {

inline constexpr LayoutKind kWhole = LayoutKind::kReplicated, kCut = LayoutKind::kSharded,
                            kTerms = LayoutKind::kPartial, kGreatest = LayoutKind::kGreatest,
                            kRouted = LayoutKind::kRouted;

inline bool is_partial(const Layout& layout) {
  return layout.kind == kTerms || layout.kind == kGreatest;
}
// Returns whether the values of one layout become those of the other by an exchange of blocks.
bool is_exchange(const Layout& from, const Layout& to);

// ---- Ops ----------------------------------------------------------------------------------------

// Returns whether the op can work on parts of the loop.
bool is_legal(const Loops& loops, const LoopCut& cut);
// Returns the loop that an operand's layout cuts; none where the op cannot work on parts of it.
std::optional<LoopCut> legal_cut(const Loops& loops, const Operand& operand, const Layout& layout,
                                 int64_t ranks);
// Returns whether the result has the elements of one value in another shape or order.
bool only_moves(const Loops& loops, const Node& node);
// Returns whether the op puts parts together that one device has made in turn: their sums travel
// part by part, beside the work of the next.
bool joins_parts(const Graph& graph, const Node& node);
// Returns the letters of the leading dims that count so many rows; empty: dims and rows do not line
// up.
std::string row_letters(const Operand& operand, int64_t rows);

// Returns the input of which the value is a block, over axes before this one, or a chunk.
ValueId input_of(const Graph& graph, ValueId id);

// F, U, or BI for both passes of the backward; and tags.
using Region = std::pair<Pass, std::vector<int32_t>>;
Region region_of(const Node& node);

// ---- Values -------------------------------------------------------------------------------------

struct ValueState {
  Layout layout;               // of `current`
  Layout made;                 // of what its node makes
  std::optional<Layout> hint;  // the layout that its readers need or prefer
  // Of a result that the strategy cuts: the layout in which all readers get it.
  std::optional<Layout> fixed;
  ValueId current;  // the value of the new graph that stands for it
  bool is_seed = false, is_read_whole = false;
};

// Describes rows that an index sends: by flat rows, so many stretches; a rank owns so many of the
// numbers. With a capacity a rank has room for `room` rows of each rank, and not for all `rows`.
struct Route {
  int64_t outer = 1, owned = 0;
  bool mirrored = false;
  int64_t rows = 0, room = 0;  // room 0: without a capacity
};

struct State {
  State(Graph whole, const AxisCut& axis);

  // Returns the loops of one of the graph's nodes, which are found once: hints ask for them often.
  const Loops& loops(const Node& node) const;
  const TensorType& type_of(ValueId id) const { return graph.value(id).type; }
  ValueState& at(ValueId id) { return values[id.index()]; }
  const ValueState& at(ValueId id) const { return values[id.index()]; }
  const Layout& layout(ValueId id) const { return at(id).layout; }
  const std::optional<Layout>& hint(ValueId id) const { return at(id).hint; }
  Shape local(Shape shape, const Layout& layout) const;
  // Returns whether rows of this layout are packed: those that a rank has, without others between.
  bool is_packed(const Layout& layout) const {
    return layout.kind == kRouted && routes.at(layout.by.value).room > 0;
  }

  // Returns whether only sums over the step read it, whole or in stretches.
  bool adds_up(ValueId id) const;
  bool is_hinted_cut(ValueId id) const { return hint(id) && hint(id)->kind == kCut; }
  // A contribution to a sum over the step is reduced with that, unless the sum is kept in blocks:
  // then terms would be reduced in every microbatch.
  bool is_contribution(ValueId id) const { return adds_up(id) && !is_hinted_cut(id); }
  // A state without a layout gets the one that its first reader prefers.
  bool may_adopt(ValueId id) const;
  // Every rank loads all of an input, and each region takes the blocks that it works on.
  bool is_loaded_whole(ValueId id) const;
  // Returns an index before it was given other shapes.
  ValueId source_index(ValueId id) const;
  // Returns how the rows are laid out that are sent from where they are in blocks.
  Layout blocks_of_rows(ValueId id, const Layout& routed) const;

  // ---- Conversions ----

  using Key = std::tuple<int32_t, int, int, int64_t, bool, Region>;  // value, layout and where

  // Returns how many bytes a rank sends for a conversion.
  double cost_of(const TensorType& type, const Layout& from, const Layout& to) const;
  // Returns what it costs to read a value in a layout; 0 where it has been converted already.
  double cost(ValueId id, const Layout& to) const;
  // Returns the node beside which a value is converted: a sum is finished where its terms are made,
  // as is what adds to a sum over the step; the rest where it is read.
  NodeId converted_at(ValueId id, NodeId reader) const;
  Key key_of(ValueId id, const Layout& to, NodeId reader) const;
  // Returns whether it has the layout already, or has been converted for another reader.
  bool is_there(ValueId id, const Layout& to, NodeId reader) const;
  // Returns the layout that the source of what only moves elements, or widens them, must have for
  // the result to have this one. Terms are added up as wider floats.
  std::optional<Layout> layout_of_source(ValueId id, const Layout& to) const;

  const AxisCut& cut;
  Graph graph;                               // nodes and types as they were; values are added
  std::vector<std::vector<NodeId>> readers;  // by value
  std::vector<ValueState> values;            // those that were there before
  NodeId visited{0};                         // the op that is being cut; all before it have been
  std::map<Key, ValueId> converted;
  std::map<int32_t, Route> routes;  // by index, before it was given other shapes

 private:
  mutable LoopTable loops_;
};

}  // namespace piper::axis
