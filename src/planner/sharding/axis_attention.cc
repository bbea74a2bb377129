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
#include "axis_walk.h"

namespace piper {

namespace {

bool is_attention(const Node& node) { return node.op == "Attention" || node.op == "AttentionGrad"; }
bool is_gradient(const Node& node) { return node.op == "AttentionGrad"; }
// Returns where a mask is among the inputs; after it the numbers of first query and first key.
size_t mask_of(const Node& node) { return is_gradient(node) ? 6 : 3; }

const LoopRule::Dim& letters(const Loops& loops, const Node& node, size_t input, bool tokens) {
  const bool first = node.attrs.integers("tokens_first")[input] != 0;
  return loops.rule.inputs[input][first == tokens ? 1 : 2];
}

}  // namespace

const AttentionCut* AxisWalk::attention_of(const Node& node) const {
  if (!is_attention(node)) return nullptr;
  for (const AttentionCut& how : cut_.attention)
    if (std::any_of(how.scope.begin(), how.scope.end(),
                    [&](const Glob& glob) { return glob.match(node.scope).has_value(); }))
      return &how;
  return nullptr;
}

void AxisWalk::lower_attention(NodeId id, const Node& node, const Loops& loops,
                               const AttentionCut& how) {
  const std::optional<LoopCut> tokens = tokens_of(node, loops, how);
  if (!tokens) return;
  const LoopCut queries = *tokens, heads{letters(loops, node, 0, false)[0], 1};
  LoopCut keys = queries;
  keys.letter = letters(loops, node, 1, true)[0];
  if (how.by == AttentionBy::kGather) return rewrite(id, node, choose(node, loops, queries));
  const bool in_turn = how.by == AttentionBy::kRing;
  const Layout k = layout_of(loops.input(1), in_turn ? keys : heads).value_or(Layout{});
  const int64_t extent =
      k.kind == kCut ? type_of(node.inputs[1]).shape[static_cast<size_t>(k.dim)] : 0;
  if (extent == 0 || extent % (k.outer * ranks_) != 0)
    return refuse(node, how,
                  fmt::format("has {} {}, which {} ranks of '{}' do not divide", extent,
                              in_turn ? "keys" : "heads of keys", ranks_, cut_.name));
  if (in_turn && node.outputs.size() > 3 && type_of(node.inputs[mask_of(node)]).shape[2] == 1)
    return refuse(node, how, "trains a mask that all queries share, which is not done by ring");
  if (in_turn) return lower_in_turn(id, node, loops, choose(node, loops, queries), keys);
  lower_by_heads(id, node, choose(node, loops, heads), *layout_of(loops.output(0), queries));
}

void AxisWalk::refuse(const Node& node, const AttentionCut& how, const std::string& why) {
  std::vector<std::string> types;
  for (size_t i = 0; i < 3; ++i) types.push_back(to_string(type_of(node.inputs[i])));
  error_ = fail(how.at, "shard: attention in {} {}", quote_control(node.scope), why)
               .with_note("its queries, keys and values are " + join(types, ", "));
}

// Returns how the queries' tokens are cut.
std::optional<LoopCut> AxisWalk::tokens_of(const Node& node, const Loops& loops,
                                           const AttentionCut& how) {
  const Layout& lies = layout_[node.inputs[0].index()];
  const auto cut =
      lies.kind == kCut ? cut_of(loops.input(0), lies, ranks_) : std::optional<LoopCut>();
  if (cut && cut->letter == letters(loops, node, 0, true)[0] && is_legal(loops, *cut)) return cut;
  refuse(node, how, fmt::format("has no tokens in blocks over '{}'", cut_.name));
  error_->notes.push_back(lies.kind == kCut
                              ? fmt::format("its queries are cut at dim {} over it", lies.dim)
                              : "its queries are whole on each of its ranks");
  bool cuts_tokens = false;
  for (const ShardSeed& seed : cut_.seeds)
    if (const Value& value = graph_.value(seed.value); value.kind == ValueKind::kInput) {
      cuts_tokens = cuts_tokens || seed.dim == 1;
      error_->notes.push_back(fmt::format("'{}' is cut at dim {} over it at line {}",
                                          quote_control(value.name), seed.dim, seed.at.line));
    }
  const auto together =
      std::find_if(conversions_.begin(), conversions_.end(), [&](const Conversion& one) {
        return one.reader.valid() && nodes_[one.node.index()].op == "AllGather";
      });
  if (cuts_tokens && together != conversions_.end()) {
    const Node& reader = graph_.node(together->reader);
    error_->notes.push_back(fmt::format("'{}' is put together for {} in {}",
                                        quote_control(graph_.value(together->value).name),
                                        reader.op, quote_control(reader.scope)));
  }
  error_->notes.push_back(
      cuts_tokens
          ? fmt::format(
                "help: `shard: {{match: \"**\", dim: none, over: {}}}` keeps weights whole, "
                "and tokens in blocks",
                cut_.name)
          : fmt::format("help: `shard: {{input: \"*\", dim: 1, over: {}}}` cuts those of inputs",
                        cut_.name));
  return std::nullopt;
}

// What attention makes has tokens in blocks again for all others; its gradient has it as it was.
void AxisWalk::lower_by_heads(NodeId id, const Node& node, const Choice& choice,
                              const Layout& tokens) {
  rewrite(id, node, choice);
  const ValueId y = node.outputs[0];
  if (is_gradient(node) || current_value_[y.index()] != y) return;
  current_value_[y.index()] = convert(y, tokens, id);
  layout_[y.index()] = tokens;
  converted_[key_of(y, choice.makes[0], id)] = y;
}

void AxisWalk::lower_in_turn(NodeId id, const Node& node, const Loops& loops, Choice choice,
                             const LoopCut& keys) {
  for (const size_t i : {1, 2}) choice.needs[i] = *layout_of(loops.input(i), keys);
  if (is_gradient(node))
    for (const size_t o : {1, 2}) choice.makes[o] = *layout_of(loops.output(o), keys);
  Node placed = node;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i].valid()) placed.inputs[i] = read(node.inputs[i], choice.needs[i], id);
  place_first(placed, loops.rule, *choice.cut);
  const size_t before = nodes_.size();
  if (is_gradient(node))
    add_turns(node, placed, choice, keys);
  else
    merge_turns(node, placed, choice, keys);
  const auto first = std::find_if(nodes_.begin() + static_cast<std::ptrdiff_t>(before),
                                  nodes_.end(), is_attention);
  const auto at = static_cast<size_t>(first - nodes_.begin());
  source_node_[at] = id;
  for (Conversion& one : conversions_)
    if (one.node.index() >= before) one.reader = id;
  record_layouts(id, node, choice);
}

// Returns its own queries with the keys of the rank `turn` before.
Node AxisWalk::with_keys_of(const Node& placed, ValueId k, ValueId v, const LoopCut& cut,
                            int64_t turn) {
  Node node = placed;
  node.inputs[1] = k, node.inputs[2] = v;
  const size_t mask = mask_of(node), first = mask + 2;
  const bool is_masked = node.inputs.size() > mask && node.inputs[mask].valid() &&
                         type_here(node.inputs[mask]).shape[3] != 1;
  if (!is_masked && node.attrs.integer("causal") == 0) return node;
  const int64_t keys = type_here(k).shape[node.attrs.integers("tokens_first")[1] ? 1 : 2];
  node.inputs.resize(std::max(node.inputs.size(), first + 1));
  Attrs attrs = first_of(cut, keys * ranks_, node.inputs[first]);
  attrs.set("ranks", ranks_);
  attrs.set("turn", turn);
  ValueId number = own_first(node, std::move(attrs));
  if (node.inputs[first].valid())  // among the keys that axes before have left
    number = add("Add", {node.inputs[first], number}, {}, node, {});
  node.inputs[first] = number;
  if (is_masked && !node.attrs.find("keys")) node.attrs.set("keys", keys * ranks_);
  return node;
}

void AxisWalk::merge_turns(const Node& whole, const Node& placed, const Choice& choice,
                           const LoopCut& keys) {
  std::vector<ValueId> made;
  ValueId k = placed.inputs[1], v = placed.inputs[2];
  for (int64_t turn = 0; turn < ranks_; ++turn) {
    const Node step = with_keys_of(placed, k, v, keys, turn);
    const bool is_last = turn + 1 == ranks_;
    if (!is_last) k = rotated(k, whole.inputs[1], choice.needs[1], placed);
    if (!is_last) v = rotated(v, whole.inputs[2], choice.needs[2], placed);
    const std::vector<ValueId> part = put(step, whole.outputs, choice.makes);
    Node merge = placed;
    merge.op = "AttentionMerge";
    merge.attrs = {{"tokens_first", placed.attrs.integers("tokens_first")[3]}};
    if (const AttrValue* score = placed.attrs.find("hidden_score")) {
      merge.attrs.set("hidden_score", *score);
      merge.attrs.set("parts", turn);
    }
    if (turn > 0) merge.inputs = {made[0], made[1], part[0], part[1]};
    made = turn == 0 ? part : put(merge, whole.outputs, choice.makes, is_last);
  }
}

void AxisWalk::add_turns(const Node& whole, const Node& placed, const Choice& choice,
                         const LoopCut& keys) {
  const auto travels = [](size_t o) { return o == 1 || o == 2; };  // dk and dv
  const auto sum = [&](size_t o, ValueId a, ValueId b, bool is_last) {
    Node node = placed;
    node.op = "Add";
    node.attrs = {};
    node.inputs = {a, b};
    return put(node, {&whole.outputs[o], 1}, {&choice.makes[o], 1}, is_last)[0];
  };
  const auto on = [&](size_t o, ValueId id) {
    return travels(o) ? rotated(id, whole.inputs[o], choice.makes[o], placed) : id;
  };
  std::vector<ValueId> own, others;
  ValueId k = placed.inputs[1], v = placed.inputs[2];
  for (int64_t turn = 0; turn < ranks_; ++turn) {
    const Node step = with_keys_of(placed, k, v, keys, turn);
    if (turn + 1 < ranks_) k = on(1, k), v = on(2, v);
    for (size_t o = 0; o < others.size(); ++o) others[o] = on(o, others[o]);
    const std::vector<ValueId> part = put(step, whole.outputs, choice.makes);
    if (turn < 2) (turn == 0 ? own : others) = part;
    for (size_t o = 0; turn > 1 && o < part.size(); ++o)
      others[o] = sum(o, others[o], part[o], false);
  }
  for (size_t o = 0; o < own.size(); ++o) sum(o, own[o], on(o, others[o]), true);
}

ValueId AxisWalk::own_first(const Node& near, Attrs attrs) {
  ValueId& first = first_[{region_of(near), print_attrs(attrs)}];
  if (!first.valid()) first = add("OwnFirst", {}, std::move(attrs), near, {});
  return first;
}

ValueId AxisWalk::rotated(ValueId from, ValueId origin, const Layout& lies, const Node& near) {
  Node node = near;
  node.op = "Rotate";
  node.attrs = {{"over", int64_t{cut_.axis}}, {"ranks", ranks_}, {"turn", int64_t{1}}};
  node.inputs = {from};
  const ValueId made = put(std::move(node), {&origin, 1}, {&lies, 1})[0];
  conversions_.push_back({NodeId(nodes_.size() - 1), origin, {}, type_of(made).bytes()});
  return made;
}

std::vector<ValueId> AxisWalk::put(Node node, std::span<const ValueId> like,
                                   std::span<const Layout> lie, bool is_last) {
  node.name = fmt::format("{}/{}.{}", node.name, cut_.name, node.op);
  const std::vector<TensorType> types = types_here(node);
  node.outputs.assign(like.begin(), like.end());
  for (size_t o = 0; o < types.size() && !is_last; ++o) {
    Value value{.name = fmt::format("{}{}", node.name, graph_.values.size()),
                .type = types[o],
                .output_index = static_cast<int>(o),
                .layout = graph_.value(like[o]).layout,
                .over = graph_.value(like[o]).over};
    if (lie[o].kind != kWhole) value.over.push_back({cut_.axis, lie[o]});
    node.outputs[o] = graph_.add_value(std::move(value));
  }
  std::vector<ValueId> made = node.outputs;
  nodes_.push_back(std::move(node));
  source_node_.emplace_back();
  return made;
}

}  // namespace piper
