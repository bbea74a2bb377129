// Attention over tokens in blocks, as a strategy says it: by all keys, by heads, or by the keys of
// each rank in turn.
//
// In turn, over n ranks (Liu et al., 2023, Ring Attention with Blockwise Transformers):
//
//   k', v'     := k, v                     the rank's own
//   y, lse     := Attention(q, k', v')
//   n-1 times:  k', v' := Rotate(k'), Rotate(v')
//               y, lse := AttentionMerge(y, lse, Attention(q, k', v'))
//
// and backwards, with y and lse of all keys, terms of dq stay, and those of dk and dv go on with
// their keys until they are at home, where what its own queries make of them is added last. What
// travels next is sent before what is there is worked on, which does not wait for it.
#include <algorithm>

#include "axis_rewriter.h"
#include "parts.h"

namespace piper::axis {
namespace {

bool is_attention(const Node& node) { return node.op == "Attention" || node.op == "AttentionGrad"; }
bool is_gradient(const Node& node) { return node.op == "AttentionGrad"; }
// Returns where a mask is among the inputs; after it the numbers of first query and first key.
size_t mask_of(const Node& node) { return is_gradient(node) ? 6 : 3; }

const LoopRule::Dim& letters(const Loops& loops, const Node& node, size_t input, bool tokens) {
  const bool first = node.attrs.integers("tokens_first")[input] != 0;
  return loops.rule.inputs[input][first == tokens ? 1 : 2];
}

Error refusal(const State& state, const Node& node, const AttentionCut& how,
              const std::string& why) {
  std::vector<std::string> types;
  for (size_t i = 0; i < 3; ++i) types.push_back(to_string(state.type_of(node.inputs[i])));
  return fail(how.at, "shard: attention in {} {}", quote_control(node.scope), why)
      .with_note("its queries, keys and values are " + join(types, ", "));
}

// Names an op whose results every rank has whole, although it reads a value in blocks.
struct EndOfBlocks {
  NodeId node;
  ValueId value;
};

// Finds the last such op of those that a value follows from.
std::optional<EndOfBlocks> find_end_of_blocks(const State& state, ValueId from) {
  const auto in_blocks = [&](ValueId id) {
    return state.layout(id).kind == kCut ||
           std::ranges::any_of(state.cut.seeds, [&](const ShardSeed& seed) {
             return seed.value == id && seed.dim >= 0 &&
                    state.graph.value(id).kind == ValueKind::kInput;
           });
  };
  std::optional<EndOfBlocks> last;
  std::vector<bool> seen(state.graph.values.size());
  for (std::vector<ValueId> open{from}; !open.empty();) {
    const ValueId id = open.back();
    open.pop_back();
    if (seen[id.index()]) continue;
    seen[id.index()] = true;
    if (state.graph.value(id).kind != ValueKind::kNode) continue;
    const NodeId producer = state.graph.value(id).producer;
    for (const ValueId input : state.graph.node(producer).inputs) {
      if (!input.valid()) continue;
      open.push_back(input);
      if (in_blocks(input) && state.layout(id).kind == kWhole &&
          (!last || last->node.index() < producer.index()))
        last = EndOfBlocks{producer, input};
    }
  }
  return last;
}

// Returns whether one device works on tokens in parts: of what ops make, one takes some of dim 1.
bool has_tokens_in_parts(const Graph& graph) {
  const int region = graph.tag_index(kRegionOfParts);
  return region >= 0 && std::ranges::any_of(graph.nodes, [&](const Node& node) {
           if (node.op != "Slice" || graph.tag(node, region) == kNoTag) return false;
           const Value &from = graph.value(node.inputs[0]), &made = graph.value(node.outputs[0]);
           return from.kind == ValueKind::kNode && made.type.shape.size() > 2 &&
                  made.type.shape[1] < from.type.shape[1];
         });
}

// Says why the queries have no tokens in blocks.
Error no_tokens(const Rewriter& rewriter, const Node& node, const AttentionCut& how) {
  const State& state = rewriter.state();
  const std::string& axis = state.cut.name;
  const Layout& layout = state.layout(node.inputs[0]);
  Error error = refusal(state, node, how, fmt::format("has no tokens in blocks over '{}'", axis));
  error.notes.push_back(layout.kind == kCut
                            ? fmt::format("its queries are cut at dim {} over it", layout.dim)
                            : "its queries are whole on each of its ranks");
  bool cuts_tokens = false, places_weights = false;
  for (const ShardSeed& seed : state.cut.seeds) {
    places_weights = places_weights || state.graph.value(seed.value).kind == ValueKind::kState;
    if (const Value& value = state.graph.value(input_of(state.graph, seed.value));
        value.kind == ValueKind::kInput) {
      cuts_tokens = cuts_tokens || seed.dim == 1;
      std::string cut = fmt::format("'{}' is cut at dim {} over it at line {}",
                                    quote_control(value.name), seed.dim, seed.at.line);
      if (std::ranges::count(error.notes, cut) == 0) error.notes.push_back(std::move(cut));
    }
  }
  if (cuts_tokens && has_tokens_in_parts(state.graph))
    return std::move(error).with_note(
        fmt::format("help: a 'split' of tokens in parts names all axes that cut these, so that a "
                    "part has its share of each rank's block: `within: {}`",
                    axis));
  const bool is_due_to_others = cuts_tokens && places_weights;
  if (const auto end = find_end_of_blocks(state, node.inputs[0]); is_due_to_others && end) {
    const Node& reader = state.graph.node(end->node);
    error.notes.push_back(fmt::format(
        "they follow from '{}', whose blocks end at {} in {}, which needs all of it",
        quote_control(state.graph.value(end->value).name), reader.op, quote_control(reader.scope)));
    error.notes.push_back(fmt::format(
        "help: let such tokens be an input of the model, as the ids of a decoder beside its "
        "labels; "
        "or cut those that the model makes, in place of inputs, as by `shard: {{scope: \"{}\", "
        "dim: "
        "1, over: {}}}`; or name those attentions alone that have tokens in blocks, as by "
        "`attention: \"**/encoder/**\"`; the others gather keys and values",
        quote_control(reader.scope), axis));
    return error;
  }
  error.notes.push_back(
      cuts_tokens
          ? fmt::format(
                "help: `shard: {{match: \"**\", dim: none, over: {}}}` keeps weights whole, "
                "and tokens in blocks",
                axis)
          : fmt::format("help: `shard: {{input: \"*\", dim: 1, over: {}}}` cuts those of inputs",
                        axis));
  return error;
}

// What attention makes has tokens in blocks again for all others; its gradient has it as it was.
void lower_by_heads(Rewriter& rewriter, NodeId id, const Choice& choice, const Layout& tokens) {
  rewriter.rewrite(id, choice);
  const Node& node = rewriter.state().graph.node(id);
  const ValueId y = node.outputs[0];
  if (is_gradient(node) || rewriter.state().at(y).current != y) return;
  rewriter.convert_for_all(y, tokens, id);
  rewriter.add_converted(y, choice.makes[0], id, y);
}

// Rewrites attention to go over the keys of each rank in turn.
class Ring {
 public:
  Ring(Rewriter& rewriter, NodeId id, const Loops& loops, Choice choice, const LoopCut& keys)
      : rewriter_(rewriter),
        ranks_(rewriter.state().cut.ranks),
        id_(id),
        node_(rewriter.state().graph.node(id)),
        keys_(keys),
        choice_(std::move(choice)),
        placed_(node_) {
    for (const size_t i : {1, 2}) choice_.needs[i] = *layout_of(loops.input(i), keys);
    if (is_gradient(node_))
      for (const size_t o : {1, 2}) choice_.makes[o] = *layout_of(loops.output(o), keys);
    for (size_t i = 0; i < node_.inputs.size(); ++i)
      if (node_.inputs[i].valid())
        placed_.inputs[i] = rewriter_.read(node_.inputs[i], choice_.needs[i], id);
    rewriter_.place_first(placed_, loops.rule, *choice_.cut);
  }

  void lower() {
    is_gradient(node_) ? add_turns() : merge_turns();
    rewriter_.record_layouts(id_, choice_);
  }

 private:
  // Returns where the keys begin, among those that axes before have left.
  ValueId begin_of_keys(ValueId before, int64_t keys, int64_t turn) {
    Attrs attrs = rewriter_.own_numbers(keys_, keys, before);
    attrs.set("ranks", ranks_);
    attrs.set("turn", turn);
    ValueId number = rewriter_.own_number(placed_, std::move(attrs));
    if (before.valid())
      number = rewriter_.add(rewriter_.beside(placed_, "Add", {before, number}, {}), {});
    return number;
  }

  // Returns the op on the rank's own queries and the keys of the rank `turn` before.
  Node with_keys(ValueId k, ValueId v, int64_t turn) {
    Node node = rewriter_.beside(placed_, placed_.op, placed_.inputs, placed_.attrs);
    node.inputs[1] = k, node.inputs[2] = v;
    const size_t mask = mask_of(node), first = mask + 2;
    const bool is_masked = node.inputs.size() > mask && node.inputs[mask].valid() &&
                           rewriter_.type_here(node.inputs[mask]).shape[3] != 1;
    if (!is_masked && node.attrs.integer("causal") == 0) return node;
    const size_t dim = node.attrs.integers("tokens_first")[1] ? 1 : 2;
    const int64_t keys = rewriter_.type_here(k).shape[dim] * ranks_;
    node.inputs.resize(std::max(node.inputs.size(), first + 1));
    const ValueId before = node.inputs[first];
    node.inputs[first] = begin_of_keys(before, keys, turn);
    // Rings over axes before have found out how many keys there are.
    const bool has_others = !before.valid() && node.attrs.integer("whole", keys) != keys;
    if ((is_masked || has_others) && !node.attrs.find("keys")) node.attrs.set("keys", keys);
    return node;
  }

  std::vector<ValueId> add_turn(Node step, int64_t turn) {
    return rewriter_.add(std::move(step), node_.outputs, choice_.makes, turn == 0 ? id_ : NodeId());
  }

  // Returns what the rank before has in place of `from`.
  ValueId rotated(ValueId from, ValueId origin, const Layout& layout) {
    const Attrs attrs{
        {"over", int64_t{rewriter_.state().cut.axis}}, {"ranks", ranks_}, {"turn", int64_t{1}}};
    const ValueId made =
        rewriter_.add(rewriter_.beside(placed_, "Rotate", {from}, attrs), layout, origin);
    rewriter_.add_conversion(origin, id_, static_cast<double>(rewriter_.type_here(made).bytes()));
    return made;
  }

  void merge_turns() {
    std::vector<ValueId> made;
    ValueId k = placed_.inputs[1], v = placed_.inputs[2];
    for (int64_t turn = 0; turn < ranks_; ++turn) {
      Node step = with_keys(k, v, turn);
      const bool is_last = turn + 1 == ranks_;
      if (!is_last) k = rotated(k, node_.inputs[1], choice_.needs[1]);
      if (!is_last) v = rotated(v, node_.inputs[2], choice_.needs[2]);
      const std::vector<ValueId> part = add_turn(std::move(step), turn);
      Attrs attrs{{"tokens_first", placed_.attrs.integers("tokens_first")[3]}};
      if (const AttrValue* score = placed_.attrs.find("hidden_score")) {
        attrs.set("hidden_score", *score);
        attrs.set("parts", turn);
      }
      if (turn == 0) {
        made = part;
        continue;
      }
      Node merge = rewriter_.beside(placed_, "AttentionMerge", {made[0], made[1], part[0], part[1]},
                                    std::move(attrs));
      merge.outputs = node_.outputs;
      if (is_last)
        rewriter_.append(std::move(merge));
      else
        made = rewriter_.add(std::move(merge), node_.outputs, choice_.makes);
    }
  }

  ValueId passed_on(size_t o, ValueId id) {
    return o == 1 || o == 2 ? rotated(id, node_.inputs[o], choice_.makes[o]) : id;
  }

  Node sum_of(ValueId a, ValueId b) { return rewriter_.beside(placed_, "Add", {a, b}, {}); }

  // Terms of dk and dv travel with their keys; what the rank's own queries make is added last.
  void add_turns() {
    std::vector<ValueId> own, others;
    ValueId k = placed_.inputs[1], v = placed_.inputs[2];
    for (int64_t turn = 0; turn < ranks_; ++turn) {
      Node step = with_keys(k, v, turn);
      if (turn + 1 < ranks_) k = passed_on(1, k), v = passed_on(2, v);
      for (size_t o = 0; o < others.size(); ++o) others[o] = passed_on(o, others[o]);
      const std::vector<ValueId> part = add_turn(std::move(step), turn);
      if (turn < 2) (turn == 0 ? own : others) = part;
      for (size_t o = 0; turn > 1 && o < part.size(); ++o)
        others[o] = rewriter_.add(sum_of(others[o], part[o]), choice_.makes[o], node_.outputs[o]);
    }
    for (size_t o = 0; o < own.size(); ++o) {
      Node last = sum_of(own[o], passed_on(o, others[o]));
      last.outputs = {node_.outputs[o]};
      rewriter_.append(std::move(last));
    }
  }

  Rewriter& rewriter_;
  const int64_t ranks_;
  const NodeId id_;
  const Node& node_;
  const LoopCut& keys_;
  Choice choice_;
  Node placed_;  // the op on converted operands
};

// Queries of one chunk see keys of the same sequence that come no later.
Status check_in_order(const State& state, const Node& node, const SourceSpan& at) {
  const auto tokens = [&](size_t input) {
    return state.type_of(node.inputs[input])
        .shape[node.attrs.integers("tokens_first")[input] != 0 ? 1 : 2];
  };
  const size_t mask = mask_of(node);
  const auto has = [&](size_t input) {
    return node.inputs.size() > input && node.inputs[input].valid();
  };
  std::string why;
  if (node.attrs.integer("causal") == 0)
    why = "is not causal: its tokens see later ones, of chunks that come later";
  else if (has(mask + 1) || tokens(0) != tokens(1))
    why = "has other numbers of queries and keys";
  else if (state.layout(node.inputs[1]).kind != kCut || state.layout(node.inputs[2]).kind != kCut)
    why = "has keys or values that are not in chunks";
  else if (has(mask) && state.type_of(node.inputs[mask]).shape[3] != 1)
    why = "has a mask over its keys, which is not supported";
  else
    return ok_status();
  std::vector<std::string> types;
  for (size_t i = 0; i < 3; ++i) types.push_back(to_string(state.type_of(node.inputs[i])));
  return fail(at, "split: {} '{}' of {} {}", node.op, quote_control(node.name),
              quote_control(node.scope), why)
      .with_note("its queries, keys and values are " + join(types, ", "))
      .with_note("help: `shard: {input: \"*\", dim: 1, over: …}` cuts tokens over devices instead");
}

// Returns how keys are cut: like queries, unless keys of several chunks are, each by itself.
LoopCut keys_of(const State& state, const Node& node, const Loops& loops, LoopCut queries) {
  queries.letter = letters(loops, node, 1, true)[0];
  const Layout& k = state.layout(node.inputs[1]);
  const auto keys = k.kind == kCut ? cut_of(loops.input(1), k, state.cut.ranks) : std::nullopt;
  return keys && keys->letter == queries.letter ? *keys : queries;
}

}  // namespace

const AttentionCut* attention_of(const AxisCut& cut, const Node& node) {
  if (!is_attention(node)) return nullptr;
  for (const AttentionCut& how : cut.attention)
    if (how.scope.match(node.scope)) return &how;
  return nullptr;
}

Status lower_attention(Rewriter& rewriter, NodeId id, const Loops& loops, const AttentionCut& how) {
  const State& state = rewriter.state();
  const Node& node = state.graph.node(id);
  const int64_t ranks = state.cut.ranks;
  const Layout& layout = state.layout(node.inputs[0]);
  const auto queries =
      layout.kind == kCut ? legal_cut(loops, loops.input(0), layout, ranks) : std::nullopt;
  if (!queries || queries->letter != letters(loops, node, 0, true)[0])
    return no_tokens(rewriter, node, how);
  const auto choice = [&](const LoopCut& cut) { return loop_choice(state, node, loops, cut); };
  if (how.by == AttentionBy::kGather) return rewriter.rewrite(id, choice(*queries)), ok_status();
  const bool in_turn = how.by == AttentionBy::kRing;
  const LoopCut keys = keys_of(state, node, loops, *queries);
  const LoopCut heads{letters(loops, node, 0, false)[0], 1};
  const Layout k = layout_of(loops.input(1), in_turn ? keys : heads).value_or(Layout{});
  const int64_t extent =
      k.kind == kCut ? state.type_of(node.inputs[1]).shape[static_cast<size_t>(k.dim)] : 0;
  if (extent == 0 || extent % (k.outer * ranks) != 0)
    return refusal(state, node, how,
                   fmt::format("has {} {}, which cannot be cut into {} equal blocks over '{}'",
                               extent, in_turn ? "keys" : "heads of keys", ranks, state.cut.name))
        .with_note(in_turn
                       ? "help: `by: gather` cuts the queries alone"
                       : "help: `by: ring` or `by: gather` cuts no heads; <context/usp> goes by "
                         "heads over some of the ranks, and by ring over the others");
  if (in_turn && node.outputs.size() > 3 && state.type_of(node.inputs[mask_of(node)]).shape[2] == 1)
    return refusal(state, node, how,
                   "trains a mask that all queries share, which is not done by ring");
  if (in_turn)
    Ring(rewriter, id, loops, choice(*queries), keys).lower();
  else
    lower_by_heads(rewriter, id, choice(heads), *layout_of(loops.output(0), *queries));
  return ok_status();
}

Status lower_in_order(Rewriter& rewriter, NodeId id, const Loops& loops, const SourceSpan& at) {
  const State& state = rewriter.state();
  const Node& node = state.graph.node(id);
  const Layout& q = state.layout(node.inputs[0]);
  const auto queries =
      q.kind == kCut ? legal_cut(loops, loops.input(0), q, state.cut.ranks) : std::nullopt;
  const bool in_chunks = queries && queries->letter == letters(loops, node, 0, true)[0];
  const bool others = std::any_of(node.inputs.begin() + 1, node.inputs.begin() + 3,
                                  [&](ValueId id) { return state.layout(id).kind == kCut; });
  if (!in_chunks || !others) {
    rewriter.prepare(node, loops);
    rewriter.rewrite(id, choose(state, node, loops));
    return ok_status();
  }
  PIPER_TRY(check_in_order(state, node, at));
  LoopCut keys = *queries;
  keys.letter = letters(loops, node, 1, true)[0];
  for (const size_t i :
       {1, 2}) {  // what is read of other chunks is keys, not what they are made of
    rewriter.fix(node.inputs[i], state.layout(node.inputs[i]));
    if (is_gradient(node)) rewriter.fix(node.outputs[i], *layout_of(loops.output(i), keys));
  }
  rewriter.rewrite(id, loop_choice(state, node, loops, queries));
  return ok_status();
}

}  // namespace piper::axis
