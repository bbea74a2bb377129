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
  const bool is_there =
      state_.is_loaded_whole(id)
          ? need.kind == kWhole || (need.kind == kRouted && !state_.is_packed(need))
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
  if (state_.is_packed(to)) return pack(id, to, reader);
  const Layout from = state_.layout(id);
  const ValueId current = state_.at(id).current;
  if (from.kind == kWhole) return current;
  const Layout blocks = state_.blocks_of_rows(id, to.kind == kRouted ? to : from);
  if (to == blocks && state_.is_packed(from)) return unpack(id, blocks, reader);
  if (to == blocks) return emit("Combine", current, id, blocks, to, reader);
  const ValueId part = from == blocks ? current : convert(id, blocks, reader);
  if (to.kind == kRouted) return emit("Dispatch", part, id, blocks, to, reader);
  if (is_exchange(blocks, to)) return emit("AllToAll", part, id, blocks, to, reader);
  const ValueId whole = emit("AllGather", part, id, blocks, Layout{}, reader);
  return to.kind == kWhole ? whole : emit("OwnBlock", whole, id, to, to, reader);
}

// ---- Packed rows --------------------------------------------------------------------------------
//
// Each rank has room for as many rows of every other rank. What it sends to one of them it puts
// together, by places that follow from the index, and an exchange of equal blocks moves that. Rows
// beyond the room come back as NaN, so that no step takes what lacks them.

namespace {

// Returns how many of the first dims count the rows.
std::ptrdiff_t row_dims(const Shape& shape, int64_t rows) {
  std::ptrdiff_t dims = 0;
  for (int64_t count = 1; count < rows; ++dims) count *= shape[static_cast<size_t>(dims)];
  return dims;
}

// Returns the dims `first`, and those of the shape after its first `count`.
Shape with_rest(Shape first, const Shape& all, int64_t count) {
  first.insert(first.end(), all.begin() + count, all.end());
  return first;
}

}  // namespace

// Adds an exchange of packed rows: of [1, ranks x room, ...], which joins dim 0, or of
// [ranks, room, ...], which joins dim 1.
ValueId Rewriter::exchange(ValueId from, size_t joins, ValueId origin, const Node& near,
                           NodeId reader) {
  const Node node = beside(near, "AllToAll", {from},
                           {{"over", int64_t{state_.cut.axis}},
                            {"ranks", state_.cut.ranks},
                            {"dim", static_cast<int64_t>(joins)},
                            {"outer", int64_t{1}},
                            {"to_dim", static_cast<int64_t>(1 - joins)},
                            {"to_outer", int64_t{1}}});
  const ValueId made = add(node, Layout{kRouted}, origin);
  const auto ranks = static_cast<double>(state_.cut.ranks);
  add_conversion(origin, reader,
                 static_cast<double>(state_.type_of(made).bytes()) * (ranks - 1) / ranks);
  return made;
}

ValueId Rewriter::in_shape(ValueId from, const Shape& shape, const Layout& layout,
                           const Node& near) {
  if (type_here(from).shape == shape) return from;
  return add(beside(near, "Reshape", {from}, {{"shape", shape}}), layout, from);
}

Rewriter::Places Rewriter::places_of(const Layout& routed, NodeId reader) {
  const ValueId by = routed.by;
  const Route& route = state_.routes.at(by.value);
  Region region = region_of(state_.graph.node(reader));
  const Value& index = state_.graph.value(by);
  if (index.kind == ValueKind::kNode)  // the backward pass takes those of the forward pass
    region.first = region_of(state_.graph.node(index.producer)).first;
  if (const auto known = places_.find({region, by}); known != places_.end()) return known->second;
  Node near = state_.graph.node(reader);
  near.name = index.name;
  near.pass = region.first;
  const Layout blocks = state_.blocks_of_rows(by, routed);
  const ValueId own = in_shape(fetch(by, blocks, reader), {route.rows / state_.cut.ranks},
                               {kCut, 0, route.outer, {}, route.mirrored}, near);
  const Layout layouts[] = {{kCut, 0, route.outer, {}, route.mirrored}, {kRouted}};
  const ValueId like[] = {by, by};
  const std::vector<ValueId> made = add(beside(near, "RowPlaces", {own},
                                               {{"over", int64_t{state_.cut.axis}},
                                                {"ranks", state_.cut.ranks},
                                                {"owned", route.owned},
                                                {"rows", route.room}}),
                                        like, layouts);
  const ValueId come = exchange(made[1], 1, by, near, reader);
  const Places places{
      made[0], in_shape(come, state_.local(state_.type_of(by).shape, routed), {kRouted}, near)};
  places_[{region, by}] = places;
  return places;
}

// Returns the node beside which ops are put that convert the value for the reader.
Node Rewriter::node_for(ValueId id, NodeId reader) {
  Node near = state_.graph.node(state_.converted_at(id, reader));
  near.name = state_.graph.value(id).name;
  near.pass = pass_of(id, near);
  return near;
}

ValueId Rewriter::pack(ValueId id, const Layout& routed, NodeId reader) {
  const Places places = places_of(routed, reader);
  if (id == routed.by) return places.index;
  const Route& route = state_.routes.at(routed.by.value);
  const Layout blocks = state_.blocks_of_rows(id, routed);
  const ValueId own = fetch(id, blocks, reader);
  Node near = node_for(id, reader);
  const Shape all = state_.local(state_.type_of(id).shape, routed);
  const int64_t dims = row_dims(state_.type_of(id).shape, route.rows);
  const auto with = [&](Shape first) { return with_rest(std::move(first), all, dims); };
  const int64_t ranks = state_.cut.ranks;
  const ValueId rows = in_shape(own, with({route.rows / ranks}), blocks, near);
  const ValueId placed = add(beside(near, "GatherGrad", {rows, places.of_rows},
                                    {{"axis", int64_t{0}}, {"size", ranks * route.room}}),
                             {kRouted}, id);
  const ValueId packed = in_shape(placed, with({ranks, route.room}), {kRouted}, near);
  return in_shape(exchange(packed, 1, id, near, reader), all, {kRouted}, near);
}

ValueId Rewriter::unpack(ValueId id, const Layout& blocks, NodeId reader) {
  const Layout routed = state_.layout(id);
  const Places places = places_of(routed, reader);
  const Route& route = state_.routes.at(routed.by.value);
  Node near = node_for(id, reader);
  const Shape all = state_.type_of(id).shape;
  const int64_t dims = row_dims(all, route.rows);
  const auto with = [&](Shape first) { return with_rest(std::move(first), all, dims); };
  const int64_t ranks = state_.cut.ranks;
  const ValueId rows =
      in_shape(state_.at(id).current, with({1, ranks * route.room}), {kRouted}, near);
  const ValueId back = exchange(rows, 0, id, near, reader);
  const ValueId packed = in_shape(back, with({ranks * route.room}), {kRouted}, near);
  const Layout flat{kCut, 0, route.outer, {}, route.mirrored};
  const ValueId own =
      add(beside(near, "Gather", {packed, places.of_rows}, {{"axis", int64_t{0}}}), flat, id);
  return in_shape(own, state_.local(all, blocks), blocks, near);
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
