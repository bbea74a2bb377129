// Values whose layout is not the one that a reader wants.
#include "axis_walk.h"

namespace piper {

double AxisWalk::cost_of(const TensorType& type, const Layout& from, const Layout& to) const {
  const double all = static_cast<double>(type.bytes()), n = static_cast<double>(ranks_);
  const double most = all * (n - 1) / n;
  if (from == to || from.kind == kWhole) return 0;
  if (is_partial(from)) return to.kind == kWhole ? 2 * most : most;
  if (from.kind == kRouted && to.kind == kWhole) return most / n + most;  // in blocks, then whole
  return is_exchange(from, to) ? most / n : most;  // of one dim: put together, then cut
}

double AxisWalk::cost(ValueId id, const Layout& to) const {
  const Value& value = graph_.value(id);
  if (value.kind == ValueKind::kState && may_adopt(id)) return 0;
  if (is_there(id, to, NodeId(visited_))) return 0;
  return cost_of(value.type, layout_[id.index()], to);
}

ValueId AxisWalk::read(ValueId id, const Layout& need, NodeId reader) {
  if (is_loaded_whole(id)) return read_input(id, need, reader);
  if (need.kind == kCut && !need.mirrored && may_adopt(id)) layout_[id.index()] = need;
  if (layout_[id.index()] == need) {
    if (need.kind == kWhole) read_whole_[id.index()] = true;
    return current_value_[id.index()];
  }
  return convert(id, need, reader);
}

ValueId AxisWalk::read_input(ValueId id, const Layout& need, NodeId reader) {
  if (need.kind == kWhole || need.kind == kRouted) return id;  // all rows are there
  const Key key = key_of(id, need, reader);
  if (const auto known = converted_.find(key); known != converted_.end()) return known->second;
  const Node near = graph_.node(reader);
  return converted_[key] = emit("OwnBlock", id, id, need, need, near, reader);
}

NodeId AxisWalk::converted_at(ValueId id, NodeId reader) const {
  const Value& value = graph_.value(id);
  const bool is_sum = is_partial(layout_[id.index()]) || is_step_sum(graph_.node(reader));
  return is_sum && value.kind == ValueKind::kNode ? value.producer : reader;
}

AxisWalk::Key AxisWalk::key_of(ValueId id, const Layout& to, NodeId reader) const {
  Region region = region_of(graph_.node(converted_at(id, reader)));
  const Value& value = graph_.value(id);
  // Blocks of another dim are no more than those that they are made of: they are kept for the
  // backward pass. So are rows that have been sent, and the numbers by which they were.
  const bool is_index = to.kind == kWhole && routes_.count(source_index(id).value) > 0;
  if (value.kind == ValueKind::kNode && (is_exchange(layout_[id.index()], to) || is_index))
    region.first = region_of(graph_.node(value.producer)).first;
  const int of = to.kind == kRouted ? to.by.value : to.dim;
  return {id.value, static_cast<int>(to.kind), of, to.outer, to.mirrored, std::move(region)};
}

ValueId AxisWalk::convert(ValueId id, const Layout& to, NodeId reader) {
  const Key key = key_of(id, to, reader);
  if (const auto known = converted_.find(key); known != converted_.end()) return known->second;
  const Layout from = layout_[id.index()];
  const Node near = graph_.node(converted_at(id, reader));
  ValueId made = current_value_[id.index()];
  if (const std::optional<ValueId> moved = convert_source(id, to, reader))
    return converted_[key] = *moved;
  if (from.kind == kRouted || to.kind == kRouted) {
    made = convert_rows(id, to, reader);
  } else if (is_exchange(from, to)) {
    made = emit("AllToAll", made, id, from, to, near, reader);
  } else if (from.kind == kTerms && to.kind == kCut) {
    made = emit("ReduceScatter", made, id, to, to, near, reader);
  } else {
    const char* op = from.kind == kCut     ? "AllGather"
                     : from.kind == kTerms ? "AllReduce"
                                           : "AllReduceMax";
    if (from.kind != kWhole) made = emit(op, made, id, from, {}, near, reader);
    if (to.kind == kCut) made = emit("OwnBlock", made, id, to, to, near, reader);
  }
  return converted_[key] = made;
}

bool AxisWalk::widens(const Node& node) const {
  return node.op == "Cast" && !is_partial(layout_[node.inputs[0].index()]) &&
         info(type_of(node.inputs[0]).dtype).is_float &&
         type_of(node.inputs[0]).bytes() < type_of(node.outputs[0]).bytes();
}

std::optional<Layout> AxisWalk::layout_of_source(ValueId id, const Layout& to) const {
  const Value& value = graph_.value(id);
  if (value.kind != ValueKind::kNode || fixed_layout_.count(id.value)) return std::nullopt;
  const Node& node = graph_.node(value.producer);
  const Loops loops = loops_of(graph_, node);
  if (!only_moves(loops, node) && !widens(node)) return std::nullopt;
  if (to.kind == kRouted)
    return passes_rows(loops, num_elements(type_of(to.by).shape)) ? std::optional(to)
                                                                  : std::nullopt;
  if (to.kind != kCut) return to;
  const std::optional<LoopCut> cut = cut_of(loops.output(0), to, ranks_);
  if (!cut || !is_legal(loops, *cut)) return std::nullopt;
  return layout_of(loops.input(0), *cut);
}

bool AxisWalk::is_there(ValueId id, const Layout& to, NodeId reader) const {
  if (layout_[id.index()] == to || known(id, to, reader)) return true;
  const std::optional<Layout> source = layout_of_source(id, to);
  return source && is_there(graph_.node(graph_.value(id).producer).inputs[0], *source, reader);
}

std::optional<ValueId> AxisWalk::convert_source(ValueId id, const Layout& to, NodeId reader) {
  const std::optional<Layout> source = layout_of_source(id, to);
  if (!source) return std::nullopt;
  const Value value = graph_.value(id);
  const Node node = graph_.node(value.producer);
  const Loops loops = loops_of(graph_, node);
  const ValueId from = node.inputs[0];
  const ValueId read = is_loaded_whole(from)              ? read_input(from, *source, reader)
                       : layout_[from.index()] == *source ? current_value_[from.index()]
                                                          : convert(from, *source, reader);
  Attrs attrs = node.attrs;
  const Shape shape = local(value.type.shape, to);
  if (loops.def->localise && shape != value.type.shape)
    attrs = loops.def->localise(loops.types, {shape});
  Node near = graph_.node(converted_at(id, reader));
  near.name = value.name;
  near.pass = pass_of(id, near);
  const ValueId made = add(node.op, {read}, std::move(attrs), near, to);
  Value& instead = graph_.values[made.index()];  // over the axes before as what it stands for
  instead.layout = value.layout;
  instead.over = value.over;
  std::erase_if(instead.over, [&](const AxisLayout& lies) { return lies.axis == cut_.axis; });
  add_layout(instead, to);
  return made;
}

Pass AxisWalk::pass_of(ValueId origin, const Node& near) const {
  const Value& source = graph_.value(origin);
  const bool made_in_bw =
      source.kind == ValueKind::kNode && graph_.node(source.producer).pass == Pass::kBW;
  return near.pass == Pass::kBW && !made_in_bw ? Pass::kBI : near.pass;
}

ValueId AxisWalk::emit(std::string_view op, ValueId from, ValueId origin, const Layout& blocks,
                       const Layout& to, const Node& near, NodeId reader) {
  Node node = node_beside(near, cut_.name, op, {from}, {{"over", int64_t{cut_.axis}}});
  if (blocks.kind == kCut) {
    node.attrs.set("ranks", ranks_);
    node.attrs.set("dim", int64_t{blocks.dim});
    node.attrs.set("outer", blocks.outer);
    if (blocks.mirrored) node.attrs.set("mirrored", int64_t{1});
  }
  if (op == "AllToAll") {
    node.attrs.set("to_dim", int64_t{to.dim});
    node.attrs.set("to_outer", to.outer);
    if (to.mirrored) node.attrs.set("to_mirrored", int64_t{1});
  }
  const Value source = graph_.value(origin);
  node.name = fmt::format("{}/{}.{}", source.name, cut_.name, op);
  node.pass = pass_of(origin, near);
  if (const Layout& rows = op == "Dispatch" ? to : layout_[origin.index()];
      op == "Dispatch" || op == "Combine") {
    node.attrs.set("owned", routes_.at(rows.by.value).owned);
    node.inputs.push_back(read(rows.by, Layout{}, reader));
  }
  Value value{.name = node.name,
              .type = {source.type.dtype, local(source.type.shape, to)},
              .layout = source.layout,
              .over = source.over};
  add_layout(value, to);
  const ValueId made = graph_.add_value(std::move(value));
  node.outputs = {made};
  const bool of_blocks = op == "AllGather" || op == "AllToAll" || op == "Dispatch";
  const Layout& lies = of_blocks ? blocks : layout_[origin.index()];
  const int64_t bytes = static_cast<int64_t>(cost_of(source.type, lies, to));
  conversions_.push_back({NodeId(nodes_.size()), origin, reader, bytes});
  nodes_.push_back(std::move(node));
  source_node_.emplace_back();
  return made;
}

}  // namespace piper
