// One walk over the nodes. Each op either works on the part that a loop gives it, or on the whole,
// or passes terms of a sum on; what its operands lack for that is converted in front of it.
//
// Which of its loops an op is cut by is decided where it is, by the bytes that its operands and
// results would have to travel. What comes later is known as a hint: which layout a result must
// have in the end, carried back to what it is made of element by element.
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "letters.h"
#include "piper/ir/ops.h"
#include "piper/planner/sharding.h"
#include "rewrite.h"

namespace piper {

class AxisWalk {
 public:
  AxisWalk(Graph graph, const AxisCut& cut)
      : graph_(std::move(graph)),
        cut_(cut),
        ranks_(cut.ranks),
        global_count_(graph_.values.size()),
        layout_(graph_.values.size()),
        made_layout_(graph_.values.size()),
        hints_(graph_.values.size()),
        is_seed_(graph_.values.size()),
        read_whole_(graph_.values.size()),
        current_value_(graph_.values.size()) {
    for (size_t i = 0; i < global_count_; ++i) current_value_[i] = ValueId(i);
    readers_ = readers(graph_);
  }
  // Finds the ops whose operands would have to be gathered although others can work on parts.
  std::vector<NodeId> find_gathered();
  Result<ShardedGraph> run();

 private:
  static constexpr LayoutKind kWhole = LayoutKind::kReplicated;
  static constexpr LayoutKind kCut = LayoutKind::kSharded;
  static constexpr LayoutKind kTerms = LayoutKind::kPartial;
  static constexpr LayoutKind kGreatest = LayoutKind::kGreatest;
  static constexpr LayoutKind kRouted = LayoutKind::kRouted;
  using Region = std::pair<Pass, std::vector<int32_t>>;  // F, U or BI for both, and its tags
  using Key = std::tuple<int32_t, int, int, int64_t, bool, Region>;  // value, layout and where

  // Describes what an op could do: how it wants its operands, and which layout its results have
  // then.
  struct Choice {
    std::optional<LoopCut> cut;
    std::vector<Layout> needs, makes;
    // States whose layout is not what the strategy says: only where nothing else is left is put
    // together what it cuts, is a product or update cut by what it keeps whole, or made in terms
    // the gradient of what it cuts.
    int against = 0;
    double bytes = 0;
    bool before(const Choice& other) const {
      return std::pair(against, bytes) < std::pair(other.against, other.bytes);
    }
  };

  static bool is_partial(const Layout& layout) {
    return layout.kind == kTerms || layout.kind == kGreatest;
  }
  const TensorType& type_of(ValueId id) const { return graph_.value(id).type; }

  // ---- Seeds and hints (axis_hints.cc) ----------------------------------------------------------

  Status seed_layout_of(const ShardSeed& seed);
  // The parts of a dim that its readers take apart are cut alike: the fewest that let most of the
  // readers, and those of what these make, work on their part. 0: none is beside blocks of others.
  int64_t outer_of(const ShardSeed& seed) const;
  // Blocks are inside those of axes before, or have several of them.
  bool is_beside(const ShardSeed& seed, int64_t outer) const;
  // How many of the later ops do not get past the cut, up to where it is summed over; `outers`
  // are those into which dims are decomposed on the way.
  int follow(ValueId from, const Layout& layout, std::set<int64_t>* outers) const;
  static void note_outers(const Loops& loops, size_t input, const Layout& lies,
                          std::set<int64_t>& outers);
  // Hints at the layout that a value needs in the end, and gives the hint to what it is made of
  // element by element.
  void hint(ValueId at, const Layout& layout);
  // Returns whether some loop of the op is not one of this result's.
  static bool sums(const Operand& output);
  // Returns how a reader wants a sum or product that meets there what is cut already: a gradient
  // beside the value that it is multiplied with. Before that a bias may be added to it.
  std::optional<Layout> preferred_layout(ValueId value, int further = 3) const;
  // Predicts the layout, also of what is still to come where that only moves elements.
  Layout predicted_layout(ValueId id) const;
  // Returns elements of one value in another shape or order.
  static bool only_moves(const Loops& loops, const Node& node);

  // ---- One op -----------------------------------------------------------------------------------

  static bool may_begin(const Loops& loops, size_t first, const LoopCut& cut);
  bool is_legal(const Loops& loops, const LoopCut& cut) const;
  void visit(NodeId id);
  // A gradient has its parameter's layout, so that what updates one by the other converts nothing;
  // terms of a whole one are summed up with the step.
  std::optional<Choice> gradient_choice(const Node& node) const;
  bool is_touched(const Node& node) const;
  // Returns the loops that operands, or what is known of the results, cut.
  std::vector<LoopCut> cuts_of(const Node& node, const Loops& loops) const;
  // Returns the state that it is, or was rounded from; invalid: none.
  ValueId state_of(ValueId id) const;
  // Chooses how the op is cut: by the loop, or, without one, not at all.
  Choice choose(const Node& node, const Loops& loops, const std::optional<LoopCut>& cut) const;
  // Whether only sums over the step read it. It is reduced with them, unless they are kept in
  // blocks: then terms of it would be reduced in every microbatch.
  bool adds_up(ValueId id) const;
  bool is_contribution(ValueId id) const { return adds_up(id) && !is_kept_cut(id); }
  // Terms of a sum stay so where several become one, and where an op moves or scales one: it costs
  // nothing later. (Where else an op is linear, its results would be sums as well, and more bytes.)
  // A sum over the step ends them, unless its result is kept in blocks.
  std::optional<Choice> terms_choice(const Node& node, const Loops& loops) const;
  bool is_kept_cut(ValueId id) const {
    const auto& wanted = hints_[id.index()];
    return wanted && wanted->kind == kCut;
  }
  void rewrite(NodeId id, const Node& node, const Choice& choice);
  // Records the layout of the results.
  void record_layouts(NodeId id, const Node& node, const Choice& choice);
  // Returns the rank's numbers of a letter's parts, to be added to those that axes before have
  // left.
  Attrs first_of(const LoopCut& cut, int64_t extent, ValueId before) const;
  // Tells a part where it begins, among the parts of axes before it too.
  void place_first(Node& node, const LoopRule& rule, const LoopCut& cut);
  // Tells an op which part of the random numbers it draws (ops/random.cc).
  void place_draw(Node& node, const Layout& lies);
  // Returns what an op makes of values as a rank has them.
  std::vector<TensorType> types_here(const Node& node) const;
  TensorType type_here(ValueId id) const;
  // Numbers of which the op needs the sums travel together, as one vector.
  void sum_numbers(NodeId id, const Node& node, const Choice& choice);
  // Returns an op beside `near`, on values as they are now.
  ValueId add(std::string_view op, const std::vector<ValueId>& inputs, Attrs attrs,
              const Node& near, const Layout& layout);

  // ---- Attention as a strategy says (axis_attention.cc) -----------------------------------------

  const AttentionCut* attention_of(const Node& node) const;
  void lower_attention(NodeId id, const Node& node, const Loops& loops, const AttentionCut& how);
  void refuse(const Node& node, const AttentionCut& how, const std::string& why);
  std::optional<LoopCut> tokens_of(const Node& node, const Loops& loops, const AttentionCut& how);
  void lower_by_heads(NodeId id, const Node& node, const Choice& choice, const Layout& tokens);
  void lower_in_turn(NodeId id, const Node& node, const Loops& loops, Choice choice,
                     const LoopCut& keys);
  Node with_keys_of(const Node& placed, ValueId k, ValueId v, const LoopCut& keys, int64_t turn);
  void merge_turns(const Node& whole, const Node& placed, const Choice& choice,
                   const LoopCut& keys);
  void add_turns(const Node& whole, const Node& placed, const Choice& choice, const LoopCut& keys);
  ValueId own_first(const Node& near, Attrs attrs);
  ValueId rotated(ValueId from, ValueId origin, const Layout& lies, const Node& near);
  // Returns one of the ops that stand for another. Its results are like those of that, or, where
  // they are the last, take their place.
  std::vector<ValueId> put(Node node, std::span<const ValueId> like, std::span<const Layout> lie,
                           bool is_last = false);

  // ---- Rows that an index sends (axis_rows.cc) --------------------------------------------------

  // Describes rows in blocks: by flat rows, so many stretches; a rank owns so many of the numbers.
  struct Route {
    int64_t outer = 1, owned = 0;
    bool mirrored = false;
  };
  // Returns an index before it was given other shapes.
  ValueId source_index(ValueId id) const;
  // Returns how the rows are laid out that are sent from where they are in blocks.
  Layout blocks_of_rows(ValueId id, const Layout& routed) const;
  // Returns the cut of what an op looks up, or adds to, by an index.
  std::optional<LoopCut> looked_up(const Loops& loops) const;
  // Notes where rows that are looked up are in blocks, as are the rows that they are looked up for.
  void note_route(const Node& node, const Loops& loops);
  std::optional<Layout> route_of(const Node& node, const Loops& loops) const;
  // Returns whether what only moves elements leaves the rows as they are.
  static bool passes_rows(const Loops& loops, int64_t rows);
  // Looks up each row by itself, where its rank has what it is looked up for.
  std::optional<Choice> routed_choice(const Node& node, const Loops& loops) const;
  ValueId convert_rows(ValueId id, const Layout& to, NodeId reader);

  // ---- Conversions (axis_conversions.cc) --------------------------------------------------------

  double cost_of(const TensorType& type, const Layout& from, const Layout& to) const;
  double cost(ValueId id, const Layout& to) const;
  // A state that has no other layout gets the one that its first reader prefers.
  bool may_adopt(ValueId id) const {
    return graph_.value(id).kind == ValueKind::kState && !is_seed_[id.index()] &&
           layout_[id.index()].kind == kWhole && !read_whole_[id.index()];
  }
  ValueId read(ValueId id, const Layout& need, NodeId reader);
  bool is_loaded_whole(ValueId id) const {
    return is_seed_[id.index()] && graph_.value(id).kind == ValueKind::kInput;
  }
  // Every rank loads all of an input, and each region takes the blocks that it works on.
  ValueId read_input(ValueId id, const Layout& need, NodeId reader);
  static Region region_of(const Node& node) {
    return {is_backward(node) ? Pass::kBI : node.pass, node.tags};
  }
  // A sum is finished where its terms are made, and what adds to a sum over the step is converted
  // there; the rest happens where it is wanted.
  NodeId converted_at(ValueId id, NodeId reader) const;
  Key key_of(ValueId id, const Layout& to, NodeId reader) const;
  static bool is_exchange(const Layout& from, const Layout& to) {
    if (from.kind == kCut && to.kind == kCut) return from.dim != to.dim;
    return (from.kind == kRouted && to.kind == kCut) || (from.kind == kCut && to.kind == kRouted);
  }
  bool known(ValueId id, const Layout& to, NodeId reader) const {
    return converted_.count(key_of(id, to, reader)) > 0;
  }
  ValueId convert(ValueId id, const Layout& to, NodeId reader);
  // Returns whether it makes wider floats of the same numbers; terms are added up as those.
  bool widens(const Node& node) const;
  // Returns how the source of what only moves elements, or widens them, must be laid out, for that
  // to have this layout.
  std::optional<Layout> layout_of_source(ValueId id, const Layout& to) const;
  // Returns whether it has the layout already, or has been converted for another reader.
  bool is_there(ValueId id, const Layout& to, NodeId reader) const;
  // Repeats what only moves elements on its converted source: one collective serves all that differ
  // only in shape.
  std::optional<ValueId> convert_source(ValueId id, const Layout& to, NodeId reader);
  // What the weights' gradients share with those of inputs belongs to the latter.
  Pass pass_of(ValueId origin, const Node& near) const;
  // Adds a collective on `from`, which is what has become of `origin`; `blocks`: the dim that it
  // cuts or gathers, or that counts its rows.
  ValueId emit(std::string_view op, ValueId from, ValueId origin, const Layout& blocks,
               const Layout& to, const Node& near, NodeId reader);

  // ---- The end ----------------------------------------------------------------------------------

  void end_step();
  Shape local(Shape shape, const Layout& layout) const {
    if (layout.kind == kCut) shape[static_cast<size_t>(layout.dim)] /= ranks_;
    return shape;
  }
  void add_layout(Value& value, const Layout& layout) const {
    if (layout.kind != kWhole)
      value.over.push_back({cut_.axis, layout.kind == kRouted ? Layout{kRouted} : layout});
  }
  void localise_all();

  Graph graph_;
  const AxisCut& cut_;
  int64_t ranks_;
  size_t global_count_;  // so many values are there before
  std::vector<std::vector<NodeId>> readers_;
  std::vector<Layout> layout_;       // by value, of what current_value_ has
  std::vector<Layout> made_layout_;  // by value, of what its node makes
  std::vector<std::optional<Layout>> hints_;
  std::vector<bool> is_seed_, read_whole_;
  int32_t visited_ = 0;                     // nodes before this one
  std::vector<ValueId> current_value_;      // what stands for a value
  std::map<int32_t, Layout> fixed_layout_;  // by value that a node makes: what its readers get
  std::map<Key, ValueId> converted_;
  std::map<std::pair<Region, std::string>, ValueId> first_;  // own numbers, by attributes
  std::optional<Error> error_;
  std::map<int32_t, Route> routes_;  // by index, before it was given other shapes
  std::vector<NodeId> gathered_;
  std::vector<Node> nodes_;
  std::vector<NodeId> source_node_;  // by position in nodes_; invalid: a conversion
  std::vector<Conversion> conversions_;
};

}  // namespace piper
