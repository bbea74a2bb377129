// Cuts regions of ops over an axis in time: each region has doors, at which values are cut and put
// together, so that what is outside of it stays whole.
#include "parts.h"

#include <algorithm>
#include <optional>

#include "axis_rewriter.h"

namespace piper {
namespace {

using namespace axis;

// Puts ops that change nothing where values enter a region, or leave it.
class Doors {
 public:
  struct Entry {
    ValueId value, inside;
    int32_t region = 0, seed = -1;
    Pass pass = Pass::kF;
  };

  Doors(Graph graph, const PartCut& cut)
      : graph_(std::move(graph)), cut_(cut), region_tag_(graph_.add_tag(kRegionOfParts)) {
    made_in_.assign(graph_.values.size(), -1);
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (ValueId output : graph_.nodes[n].outputs)
        if (output.valid()) made_in_[output.index()] = cut.region[n];
  }

  Graph build() {
    find_entries();
    find_exits();
    std::vector<Node> old = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (size_t n = 0; n < old.size(); ++n) {
      for (const size_t e : entries_at_[n]) enter(old[n], e);
      Node node = old[n];
      for (ValueId& input : node.inputs) input = read_by(old[n], cut_.region[n], input);
      if (cut_.region[n] >= 0) graph_.set_tag(node, region_tag_, cut_.region[n]);
      append(graph_, nodes_, std::move(node));
      for (ValueId output : old[n].outputs)
        if (const auto exit = exits_.find(output.value); exit != exits_.end())
          exit->second = put(old[n], old[n].pass, output, cut_.region[n], "out");
    }
    graph_.nodes = std::move(nodes_);
    for (ValueId* id : {&graph_.loss, &graph_.weight, &graph_.grad_norm}) *id = outside(*id);
    for (StateUpdate& update : graph_.updates) update.next = outside(update.next);
    return std::move(graph_);
  }

  // Returns doors by what they make: the number of an entry, or -1 for an exit.
  const std::map<ValueId, int32_t>& doors() const { return doors_; }
  const Entry& entry(int32_t e) const { return entries_[static_cast<size_t>(e)]; }

 private:
  using Key = std::tuple<int32_t, int32_t, bool>;  // value, region, backward

  int32_t seed_of(ValueId id, int32_t in) const {
    for (size_t s = 0; s < cut_.seeds.size(); ++s)
      if (cut_.seeds[s].region == in && cut_.seeds[s].value == id) return static_cast<int32_t>(s);
    return -1;
  }
  bool is_gradient(const Node& reader, ValueId id) const {
    const Value& value = graph_.value(id);
    return is_backward(reader) && value.kind == ValueKind::kNode &&
           is_backward(graph_.node(value.producer)) && info(value.type.dtype).is_float &&
           !value.type.shape.empty();
  }

  // Finds where tensors that are cut come in, and gradients of those that have left.
  void find_entries() {
    entries_at_.resize(graph_.nodes.size());
    std::map<int32_t, size_t> first_backward;  // by region
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const int32_t in = cut_.region[n];
      const Node& node = graph_.nodes[n];
      if (is_backward(node)) first_backward.try_emplace(in, n);
      for (ValueId input : node.inputs) {
        if (in < 0 || !input.valid() || made_in_[input.index()] == in) continue;
        const int32_t seed = seed_of(input, in);
        if (seed < 0 && !is_gradient(node, input)) continue;
        const auto [known, is_new] =
            entry_of_.try_emplace(Key{input.value, in, is_backward(node)}, entries_.size());
        if (is_new) {
          entries_.push_back({input, {}, in, seed, node.pass});
          const bool is_early = seed >= 0 && is_backward(node);
          entries_at_[is_early ? first_backward.at(in) : n].push_back(known->second);
        } else if (Entry& entry = entries_[known->second]; entry.pass == Pass::kBW) {
          entry.pass = node.pass;
        }
      }
    }
    for (std::vector<size_t>& before : entries_at_)
      std::ranges::stable_partition(before, [&](size_t e) { return entries_[e].seed >= 0; });
  }

  // Contributions to sums over the step leave as they are, but for the loss.
  void find_exits() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (is_step_sum(node) && node.outputs[0] != graph_.loss) continue;
      for (ValueId input : node.inputs) leaves(input, cut_.region[n]);
    }
    for (ValueId id : {graph_.loss, graph_.weight, graph_.grad_norm}) leaves(id, -1);
    for (const StateUpdate& update : graph_.updates) leaves(update.next, -1);
  }
  void leaves(ValueId id, int32_t to) {
    if (id.valid() && made_in_[id.index()] >= 0 && made_in_[id.index()] != to)
      exits_.try_emplace(id.value);
  }

  void enter(const Node& reader, size_t e) {
    Entry& entry = entries_[e];
    entry.inside = put(reader, entry.pass, outside(entry.value), entry.region, "in");
    doors_[entry.inside] = static_cast<int32_t>(e);
  }
  ValueId put(const Node& near, Pass pass, ValueId of, int32_t in, const char* which) {
    const Value value = graph_.value(of);
    const ValueId made =
        graph_.add_value({.name = fmt::format("{}/{}.{}", value.name, cut_.name, which),
                          .type = value.type,
                          .layout = value.layout});
    Node node = node_beside(near, cut_.name, "Reshape", {of}, {{"shape", value.type.shape}});
    node.name = graph_.value(made).name;
    node.pass = pass;
    node.outputs = {made};
    graph_.set_tag(node, region_tag_, in);
    append(graph_, nodes_, std::move(node));
    doors_.emplace(made, -1);
    return made;
  }

  ValueId outside(ValueId id) const {
    const auto exit = exits_.find(id.value);
    return exit == exits_.end() || !exit->second.valid() ? id : exit->second;
  }
  ValueId read_by(const Node& node, int32_t in, ValueId input) const {
    if (!input.valid()) return input;
    const auto entry = entry_of_.find(Key{input.value, in, is_backward(node)});
    if (entry != entry_of_.end()) return entries_[entry->second].inside;
    const bool stays = (in >= 0 && made_in_[input.index()] == in) ||
                       (is_step_sum(node) && node.outputs[0] != graph_.loss);
    return stays ? input : outside(input);
  }

  Graph graph_;
  const PartCut& cut_;
  const int region_tag_;
  std::vector<int32_t> made_in_;  // by value: the region, or -1
  std::vector<Entry> entries_;
  std::map<Key, size_t> entry_of_;
  // By node: the entries before it. Before the first one of a backward the cut values come first:
  // they tell how its gradients can be cut.
  std::vector<std::vector<size_t>> entries_at_;
  std::map<int32_t, ValueId> exits_;             // by value: what others read
  std::map<ValueId, int32_t> doors_;
  std::vector<Node> nodes_;
};

// Returns the layout in which the readers of a gradient can work on their parts, given what they
// read beside it; none: in no other than the whole.
std::optional<Layout> wanted(const State& state, ValueId value, int further) {
  if (const auto layout = preferred_layout(state, value)) return layout;
  for (NodeId reader : state.readers[value.index()]) {
    const Node& node = state.graph.node(reader);
    const Loops& loops = state.loops(node);
    for (size_t o = 0; further > 0 && o < node.outputs.size(); ++o) {
      const auto after = wanted(state, node.outputs[o], further - 1);
      const auto cut = after && after->kind == kCut
                           ? legal_cut(loops, loops.output(o), *after, state.cut.ranks)
                           : std::nullopt;
      for (size_t i = 0; cut && i < node.inputs.size(); ++i)
        if (node.inputs[i] == value)
          if (const auto layout = layout_of(loops.input(i), *cut)) return layout;
    }
  }
  return std::nullopt;
}

// Lets parts read what was put together of theirs, and the other way round: a slice of a
// concatenation that is all of one operand is that. Casts of what is of one part belong to it.
Graph with_own_parts(Graph graph, const std::string& name) {
  std::map<ValueId, ValueId> own;
  for (Node& node : graph.nodes) {
    for (ValueId& input : node.inputs)
      if (const auto known = own.find(input); known != own.end()) input = known->second;
    if (node.op != "Slice" || graph.value(node.inputs[0]).kind != ValueKind::kNode) continue;
    const Node* cast = &graph.node(graph.value(node.inputs[0]).producer);
    const bool casts = cast->op == "Cast" && graph.value(cast->inputs[0]).kind == ValueKind::kNode;
    const Node& join = casts ? graph.node(graph.value(cast->inputs[0]).producer) : *cast;
    if (join.op != "Concat") continue;
    const auto dim = static_cast<size_t>(join.attrs.integer("axis"));
    const auto starts = node.attrs.integers("starts"), steps = node.attrs.integers("steps");
    const TensorType& type = graph.value(node.outputs[0]).type;
    int64_t begin = 0;
    for (const ValueId part : join.inputs) {
      if (begin == starts[dim] && steps[dim] == 1 && graph.value(part).type.shape == type.shape) {
        if (!casts) own.emplace(node.outputs[0], part);
        if (casts) node.attrs = cast->attrs, node.op = "Cast", node.inputs = {part};
        break;
      }
      begin += graph.value(part).type.shape[dim];
    }
  }
  graph = without_dead_nodes(std::move(graph), true);
  const int tag = graph.tag_index(name);
  const auto all_readers = readers(graph);
  for (Node& node : graph.nodes) {
    if (tag < 0 || node.op != "Cast" || graph.tag(node, tag) != kNoTag) continue;
    const Value& from = graph.value(node.inputs[0]);
    const bool is_made = from.kind == ValueKind::kNode;
    const auto& read_by = all_readers[node.outputs[0].index()];
    const Node* const beside = is_made && is_backward(node)   ? &graph.node(from.producer)
                               : !is_made && !read_by.empty() ? &graph.node(read_by[0])
                                                              : nullptr;
    if (beside == nullptr) continue;
    const int32_t part = graph.tag(*beside, tag);
    const bool is_of_one = is_made || std::ranges::all_of(read_by, [&](NodeId id) {
                             return graph.tag(graph.node(id), tag) == part;
                           });
    if (part != kNoTag && is_of_one) graph.set_tag(node, tag, part);
  }
  return graph;
}

class PartCutter {
 public:
  PartCutter(Graph graph, const PartCut& cut)
      : cut_(cut),
        axis_{kAxisInTime, cut.name, cut.into, {}},
        doors_(std::move(graph), cut),
        graph_(doors_.build()) {}

  Result<Parts> run() {
    if (cut_.is_placed) {
      PIPER_TRY(visit_all());
      const size_t values = graph_.values.size();
      if (!gathered_.empty())
        graph_ = without_repeats(taken_apart(std::move(graph_), gathered_), values);
    }
    PIPER_TRY(visit_all());
    ShardedGraph made = rewriter_->finish();
    PIPER_TRY(check(made));
    std::set<ValueId> doors;
    for (const auto& [door, entry] : doors_.doors()) doors.insert(door);
    Parts parts = unroll(std::move(made.graph), cut_, doors);
    if (cut_.is_placed) parts.graph = with_own_parts(std::move(parts.graph), cut_.name);
    return parts;
  }

 private:
  Status visit_all() {
    rewriter_.emplace(graph_, axis_);
    of_seed_.clear();
    for (size_t v = 0; v < graph_.values.size(); ++v)
      if (graph_.values[v].kind == ValueKind::kState)
        PIPER_TRY(rewriter_->seed({ValueId(v), -1, cut_.at}));
    for (size_t n = 0; n < graph_.nodes.size(); ++n) PIPER_TRY(visit(NodeId(n)));
    return ok_status();
  }

  Status visit(NodeId id) {
    const State& state = rewriter_->state();
    const Node& node = state.graph.node(id);
    rewriter_->begin(id);
    if (const auto door = doors_.doors().find(node.outputs[0]); door != doors_.doors().end()) {
      PIPER_ASSIGN(const Layout layout, layout_at(door->first, door->second));
      rewriter_->fix(door->first, layout);
    }
    const Loops& loops = state.loops(node);
    rewriter_->prepare(node, loops);
    const Choice choice = choose(state, node, loops);
    if (gathers(state, node, loops, choice)) gathered_.push_back(id);
    rewriter_->rewrite(id, choice);
    return ok_status();
  }

  // Returns how a value is cut behind a door; an exit puts it together.
  Result<Layout> layout_at(ValueId door, int32_t e) {
    if (e < 0) return Layout{};
    const Doors::Entry& entry = doors_.entry(e);
    if (entry.seed < 0) return wanted(rewriter_->state(), door, 2).value_or(Layout{});
    if (const auto known = of_seed_.find(entry.seed); known != of_seed_.end()) return known->second;
    const int dim = cut_.seeds[static_cast<size_t>(entry.seed)].dim;
    PIPER_ASSIGN(const Layout layout,
                 layout_of_seed(rewriter_->state(),
                                {.value = door, .dim = dim, .at = cut_.at, .outer = cut_.outer}));
    return of_seed_[entry.seed] = layout;
  }

  // Refuses regions in which parts are put together, or go on after a sum over all of them: the
  // next op would need all parts of the one before. Numbers may be sums, and so may all else where
  // parts are placed.
  Status check(const ShardedGraph& made) const {
    const Graph& graph = made.graph;
    std::map<ValueId, const Conversion*> sums[2];  // of pass F, and of others
    for (const Conversion& conversion : made.conversions) {
      const Node& node = graph.node(conversion.node);
      if (!conversion.reader.valid() || node.op == "OwnBlock") continue;
      const Node& reader = graph.node(conversion.reader);
      const bool is_number = num_elements(graph.value(node.outputs[0]).type.shape) == 1;
      if (is_number || leaves(reader)) continue;
      if (cut_.is_placed && (node.op == "AllReduce" || node.op == "AllReduceMax")) continue;
      if (node.op != "AllReduce") return needs_all(graph, conversion, reader);
      sums[is_backward(reader)].emplace(node.outputs[0], &conversion);
    }
    for (const Node& node : graph.nodes)
      for (ValueId input : node.inputs) {
        auto& in_pass = sums[is_backward(node)];
        const auto sum = in_pass.find(input);
        if (sum == in_pass.end() || leaves(node)) continue;
        if (is_in_parts(graph, node)) return needs_all(graph, *sum->second, node);
        for (ValueId output : node.outputs) in_pass.emplace(output, sum->second);
      }
    return ok_status();
  }
  bool leaves(const Node& node) const {
    return doors_.doors().contains(node.outputs[0]) || is_step_sum(node) || node.pass == Pass::kU;
  }
  static bool is_in_parts(const Graph& graph, const Node& node) {
    const auto differs = [&](ValueId id) {
      return id.valid() && std::ranges::any_of(graph.value(id).over, [](const AxisLayout& over) {
               return over.axis == kAxisInTime;
             });
    };
    return std::ranges::any_of(node.inputs, differs) || std::ranges::any_of(node.outputs, differs);
  }
  Error needs_all(const Graph& graph, const Conversion& conversion, const Node& reader) const {
    const Value& value = graph.value(conversion.value);
    const Node& how = graph.node(conversion.node);
    const TensorType& whole = graph.value(how.outputs[0]).type;
    const bool gathers = how.op == "AllGather" || how.op == "AllToAll";
    Error error =
        fail(cut_.at,
             "split: {} '{}'{} needs all of '{}' ({}){}, of which a part of the region "
             "has {}",
             reader.op, quote_control(reader.name),
             reader.scope.empty() ? "" : fmt::format(" of {}", quote_control(reader.scope)),
             quote_control(value.name), to_string(whole),
             is_backward(reader) ? ", a gradient or what is kept for it" : "",
             gathers ? fmt::format("only some of dim {}", how.attrs.integer("dim"))
                     : "one term of a sum");
    if (cut_.dim_at.line != cut_.at.line)
      error.notes.push_back(fmt::format("the dim is given at line {}", cut_.dim_at.line));
    error.notes.push_back(gathers ? "a softmax, a norm or an attention over the dim mixes all of it"
                                  : "a statistic over all of the dim is not one over a part of it");
    error.notes.push_back("help: another dim, or a region that ends before this op");
    return error;
  }

  const PartCut& cut_;
  const AxisCut axis_;
  Doors doors_;
  Graph graph_;  // with doors
  std::optional<Rewriter> rewriter_;
  std::vector<NodeId> gathered_;  // by the first visit: what needs the whole, but for its steps
  std::map<int32_t, Layout> of_seed_;
};

}  // namespace

Result<Parts> cut_in_parts(Graph graph, const PartCut& cut) {
  return PartCutter(std::move(graph), cut).run();
}

}  // namespace piper
