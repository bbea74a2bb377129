// Values whose layout is not the one that a reader needs.
#include "axis_rewriter.h"

namespace piper::axis {

ValueId Rewriter::read(ValueId id, const Layout& need, NodeId reader) {
  ValueState& value = state_.at(id);
  if (need.kind == kCut && !need.mirrored && state_.may_adopt(id)) value.layout = need;
  if (need.kind == kWhole && value.layout == need) value.is_read_whole = true;
  return fetch(id, need, reader);
}

ValueId Rewriter::fetch(ValueId id, const Layout& need, NodeId reader) {
  const bool is_there = state_.is_loaded_whole(id) ? need.kind == kWhole || need.kind == kRouted
                                                   : need == state_.layout(id);
  return is_there ? state_.at(id).current : convert(id, need, reader);
}

ValueId Rewriter::convert(ValueId id, const Layout& to, NodeId reader) {
  const State::Key key = state_.key_of(id, to, reader);
  if (const auto known = state_.converted.find(key); known != state_.converted.end())
    return known->second;
  const Layout from = state_.is_loaded_whole(id) ? Layout{} : state_.layout(id);
  ValueId made = state_.at(id).current;
  if (const std::optional<ValueId> moved = convert_source(id, to, reader)) {
    made = *moved;
  } else if (from.kind == kRouted || to.kind == kRouted) {
    made = convert_rows(id, to, reader);
  } else if (is_exchange(from, to)) {
    made = emit("AllToAll", made, id, from, to, reader);
  } else if (from.kind == kTerms && to.kind == kCut) {
    made = emit("ReduceScatter", made, id, to, to, reader);
  } else {
    const char* op = from.kind == kCut     ? "AllGather"
                     : from.kind == kTerms ? "AllReduce"
                                           : "AllReduceMax";
    if (from.kind != kWhole) made = emit(op, made, id, from, {}, reader);
    if (to.kind == kCut) made = emit("OwnBlock", made, id, to, to, reader);
  }
  return state_.converted[key] = made;
}

ValueId Rewriter::convert_rows(ValueId id, const Layout& to, NodeId reader) {
  const Layout from = state_.layout(id);
  const ValueId current = state_.at(id).current;
  if (from.kind == kWhole) return current;
  const Layout blocks = state_.blocks_of_rows(id, to.kind == kRouted ? to : from);
  if (to == blocks) return emit("Combine", current, id, blocks, to, reader);
  const ValueId part = from == blocks ? current : convert(id, blocks, reader);
  if (to.kind == kRouted) return emit("Dispatch", part, id, blocks, to, reader);
  if (is_exchange(blocks, to)) return emit("AllToAll", part, id, blocks, to, reader);
  const ValueId whole = emit("AllGather", part, id, blocks, Layout{}, reader);
  return to.kind == kWhole ? whole : emit("OwnBlock", whole, id, to, to, reader);
}

// Repeats what only moves elements on its converted source: one collective serves all that differ
// only in shape.
std::optional<ValueId> Rewriter::convert_source(ValueId id, const Layout& to, NodeId reader) {
  const std::optional<Layout> source = state_.layout_of_source(id, to);
  if (!source) return std::nullopt;
  const Value value = state_.graph.value(id);
  const Node& node = state_.graph.node(value.producer);
  const Loops& loops = state_.loops(node);
  const ValueId from = fetch(node.inputs[0], *source, reader);
  const Shape shape = state_.local(value.type.shape, to);
  Node near = state_.graph.node(state_.converted_at(id, reader));
  near.name = value.name;
  near.pass = pass_of(id, near);
  Node made = beside(near, node.op, {from}, node.attrs);
  if (loops.def->localise && shape != value.type.shape)
    made.attrs = loops.def->localise(loops.types, {shape});
  return add(std::move(made), to, id);
}

// What the weights' gradients share with those of inputs belongs to the latter.
Pass Rewriter::pass_of(ValueId origin, const Node& near) const {
  const Value& source = state_.graph.value(origin);
  const bool made_in_bw =
      source.kind == ValueKind::kNode && state_.graph.node(source.producer).pass == Pass::kBW;
  return near.pass == Pass::kBW && !made_in_bw ? Pass::kBI : near.pass;
}

// Adds a collective on `from`, which is what has become of `origin`; `blocks`: the dim that it cuts
// or gathers, or that counts its rows.
ValueId Rewriter::emit(std::string_view op, ValueId from, ValueId origin, const Layout& blocks,
                       const Layout& to, NodeId reader) {
  const Node& near = state_.graph.node(state_.converted_at(origin, reader));
  const Layout layout = state_.layout(origin);
  const Value source = state_.graph.value(origin);
  Node node = beside(near, op, {from}, {{"over", int64_t{state_.cut.axis}}});
  const auto set_blocks = [&](const std::string& prefix, const Layout& layout) {
    node.attrs.set(prefix + "dim", int64_t{layout.dim});
    node.attrs.set(prefix + "outer", layout.outer);
    if (layout.mirrored) node.attrs.set(prefix + "mirrored", int64_t{1});
  };
  if (blocks.kind == kCut) node.attrs.set("ranks", state_.cut.ranks), set_blocks("", blocks);
  if (op == "AllToAll") set_blocks("to_", to);
  node.name = fmt::format("{}/{}.{}", source.name, state_.cut.name, op);
  node.pass = pass_of(origin, near);
  if (op == "Dispatch" || op == "Combine") {
    const ValueId by = op == "Dispatch" ? to.by : layout.by;
    node.attrs.set("owned", state_.routes.at(by.value).owned);
    node.inputs.push_back(read(by, Layout{}, reader));
  }
  const TensorType type{source.type.dtype, state_.local(source.type.shape, to)};
  const ValueId made = state_.graph.add_value(value_like(origin, node.name, type, to));
  node.outputs = {made};
  append(std::move(node));
  const bool of_blocks = op == "AllGather" || op == "AllToAll" || op == "Dispatch";
  add_conversion(origin, reader, state_.cost_of(source.type, of_blocks ? blocks : layout, to));
  return made;
}

void Rewriter::add_conversion(ValueId value, NodeId reader, double bytes) {
  conversions_.push_back({NodeId(nodes_.size() - 1), value, reader, static_cast<int64_t>(bytes)});
}

}  // namespace piper::axis
