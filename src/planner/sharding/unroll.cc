// Plays the ranks of an axis in time one after the other, on one device.
#include <algorithm>
#include <numeric>

#include "parts.h"
#include "rewrite.h"

namespace piper {
namespace {

class Unroller {
 public:
  Unroller(Graph graph, const PartCut& cut, const std::set<ValueId>& doors)
      : graph_(std::move(graph)),
        cut_(cut),
        doors_(doors),
        count_(static_cast<size_t>(cut.into)),
        ranks_(cut.ranks()),
        part_tag_(graph_.add_tag(cut.name)),
        region_tag_(graph_.add_tag(kRegionOfParts)),
        regions_(cut.region.begin(), cut.region.end()) {
    for (const Value& value : graph_.values) {
      differs_.push_back(layout_in(value) != nullptr);
      even_.push_back(value.type);
    }
    unit_ = std::accumulate(cut.sizes.begin(), cut.sizes.end(), int64_t{0}) / ranks_;
    of_.resize(graph_.values.size());
    for (const Node& node : graph_.nodes)
      if (cut.in_order && reads_in_order(graph_, node))
        in_order_.insert({node.inputs[1], node.inputs[2]});
  }

  Parts run() {
    const std::vector<Node> old = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (const Node& node : old) visit(node);
    graph_.nodes = std::move(nodes_);
    for (Value& value : graph_.values)
      std::erase_if(value.over, [](const AxisLayout& over) { return over.axis == kAxisInTime; });
    end_step();
    return {without_dead_nodes(std::move(graph_), true), ops_, joined_, summed_, carried_};
  }

 private:
  static const AxisLayout* layout_in(const Value& value) {
    for (const AxisLayout& over : value.over)
      if (over.axis == kAxisInTime) return &over;
    return nullptr;
  }
  bool differs(ValueId id) const { return id.valid() && differs_[id.index()]; }
  // Returns what a part reads of a value.
  ValueId of(ValueId id, size_t part) const {
    if (!id.valid() || of_[id.index()].empty()) return id;
    return of_[id.index()].size() == 1 ? of_[id.index()][0] : of_[id.index()][part];
  }

  bool is_in_parts(const Node& node) const {
    return std::ranges::any_of(node.inputs, [&](ValueId id) { return differs(id); }) ||
           std::ranges::any_of(node.outputs, [&](ValueId id) { return differs(id); });
  }

  void visit(const Node& node) {
    if (node.attrs.integer("over", 0) == kAxisInTime && find_op(node.op)->collective)
      return play(node);
    if (doors_.contains(node.outputs[0])) return skip(node);
    const bool in_parts = is_in_parts(node);
    if (is_step_sum(node) && in_parts) return add_to_step(node);
    if (!in_parts) return add_whole(node);
    ++ops_;
    for (ValueId output : node.outputs) name_parts(output);
    const bool in_reverse = cut_.in_order && !cut_.of_samples && is_backward(node);
    for (size_t i = 0; i < count_; ++i) {  // in the order in which they run
      const size_t p = in_reverse ? count_ - 1 - i : i;
      Node part = of_part(node, p);
      for (ValueId& input : part.inputs) input = of(input, p);
      for (ValueId& output : part.outputs) output = of(output, p);
      if (!cut_.sizes.empty()) give_attrs(node, part, p);
      if (cut_.in_order) own_attention(part);
      put(std::move(part));
    }
  }
  // ---- Parts of different sizes: the cut made all ranks alike ----

  // Returns what a part has of a dim of which each rank of the axis has so much.
  int64_t share(int64_t alike, size_t part) const {
    return cut_.sizes.empty() ? alike : alike / unit_ * cut_.sizes[part];
  }
  int64_t before(int64_t alike, size_t part) const {
    int64_t first = 0;
    for (size_t p = 0; p < part; ++p) first += share(alike, p);
    return first;
  }
  const TensorType& alike(ValueId id) const {
    return id.index() < even_.size() ? even_[id.index()] : graph_.value(id).type;
  }
  void give_attrs(const Node& node, Node& part, size_t p) {
    const OpDef* def = find_op(node.op);
    if (!def->localise) return;
    OpTypes use{.attrs = node.attrs};
    for (ValueId id : node.inputs) use.inputs.push_back(id.valid() ? alike(id) : TensorType());
    std::vector<Shape> shapes;
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      use.outputs.push_back(alike(node.outputs[o]));
      shapes.push_back(graph_.value(of(node.outputs[o], p)).type.shape);
    }
    part.attrs = def->localise(use, shapes);
    if (const auto* whole = node.attrs.find("whole")) part.attrs.set("whole", *whole);
  }
  // Attention of a part in order is an op of its own, whose first number is known. With the keys of
  // the parts up to this one come gradients of as many.
  void own_attention(Node& part) {
    if (part.op != "Attention" && part.op != "AttentionGrad") return;
    Attrs attrs;
    for (const auto& [name, value] : part.attrs.items())
      if (name != "whole") attrs.set(name, value);
    part.attrs = std::move(attrs);
    if (part.op == "Attention") return;
    const Result<std::vector<TensorType>> types = find_op(part.op)->types(use_of(graph_, part));
    PIPER_CHECK(types.ok(), "{} '{}': {}", part.op, part.name, types.error().message);
    for (size_t o = 0; o < part.outputs.size(); ++o)
      if (part.outputs[o].valid()) graph_.value(part.outputs[o]).type = (*types)[o];
  }

  // The value itself is the first part; the others are like it.
  void name_parts(ValueId id) {
    if (!id.valid()) return;
    std::vector<ValueId> parts{id};
    const AxisLayout* const in = layout_in(graph_.value(id));
    const int dim = in && in->layout.kind == LayoutKind::kSharded ? in->layout.dim : -1;
    for (size_t p = 1; p < count_; ++p) {
      Value part = graph_.value(id);
      part.name = fmt::format("{}/{}.{}", part.name, cut_.name, p);
      parts.push_back(graph_.add_value(std::move(part)));
    }
    for (size_t p = 0; p < count_ && dim >= 0; ++p) {
      int64_t& extent = graph_.value(parts[p]).type.shape[static_cast<size_t>(dim)];
      extent = share(extent, p);
    }
    set_parts(id, std::move(parts));
  }
  void set_parts(ValueId id, std::vector<ValueId> parts) {
    of_.resize(graph_.values.size());
    differs_.resize(graph_.values.size());
    of_[id.index()] = std::move(parts);
  }
  Node of_part(Node node, size_t part) {
    graph_.set_tag(node, part_tag_, static_cast<int32_t>(part));
    return node;
  }
  // Regions of other splits stay what they are.
  Node without_part(Node node) {
    if (regions_.contains(graph_.tag(node, region_tag_))) graph_.set_tag(node, region_tag_, kNoTag);
    while (!node.tags.empty() && node.tags.back() == kNoTag) node.tags.pop_back();
    return node;
  }
  void put(Node node) { append(graph_, nodes_, std::move(node)); }

  // Adds an op that works on the same in all parts, so that it runs once.
  void add_whole(Node node) {
    for (ValueId& input : node.inputs) input = of(input, 0);
    put(without_part(std::move(node)));
  }
  void skip(const Node& node) {
    std::vector<ValueId> parts;
    for (size_t p = 0; p < (differs(node.outputs[0]) ? count_ : 1); ++p)
      parts.push_back(of(node.inputs[0], p));
    set_parts(node.outputs[0], std::move(parts));
  }
  // Terms of a contribution to a sum over the step are added up before. But chunks of tokens each
  // add theirs of a gradient to one accumulator, as microbatches do: none is kept for the next.
  // Shares of samples, which may be on several devices, have one each.
  void add_to_step(Node node) {
    const std::vector<ValueId> contributions = std::exchange(node.inputs, {});
    std::vector<int64_t> into;  // by input: the one whose accumulator it adds to
    for (ValueId input : contributions) {
      const auto first = static_cast<int64_t>(node.inputs.size());
      const Node* const maker =
          differs(input) ? &nodes_[graph_.value(of(input, 0)).producer.index()] : nullptr;
      if (!maker) {
        node.inputs.push_back(of(input, 0));
      } else if (cut_.of_samples) {
        for (size_t p = 0; p < count_; ++p) node.inputs.push_back(of(input, p));
        into.resize(node.inputs.size());
        std::iota(into.begin() + first, into.end(), first);
      } else if (cut_.in_order && is_backward(*maker)) {
        for (size_t p = count_; p-- > 0;) node.inputs.push_back(of(input, p));
      } else {
        const Node near = nodes_[graph_.value(of(input, count_ - 1)).producer.index()];
        node.inputs.push_back(sum(near, input, {}));
      }
      into.resize(node.inputs.size(), first);
    }
    if (node.inputs.size() > contributions.size()) node.attrs.set("into", std::move(into));
    put(without_part(std::move(node)));
  }

  // ---- Collectives ----

  void play(const Node& node) {
    const ValueId from = node.inputs.empty() ? ValueId() : node.inputs[0], to = node.outputs[0];
    if (node.op == "OwnFirst") return number(node);
    if (node.op == "OwnBlock") return slice(node, of(from, 0), to, "");
    if (cut_.in_order && node.op == "AllGather" && is_read_in_order(to))
      return gather(node, from, to);
    if (cut_.in_order && node.op == "ReduceScatter") return carry_back(node, from, to);
    if (node.op == "AllGather") return set_parts(to, {join(node, from, to)});
    if (node.op == "AllReduce" || node.op == "AllReduceMax")
      return set_parts(to, {sum(node, from, to)});
    if (node.op == "ReduceScatter") return slice(node, sum(node, from, {}), to, "");
    if (node.op == "AllToAll") return slice(node, join(node, from, {}), to, "to_");
    PIPER_CHECK(false, "{} '{}' in parts", node.op, node.name);
  }

  // Adds an op; its result is `to`, if that is a value.
  ValueId emit(const Node& near, std::string_view op, std::vector<ValueId> inputs, Attrs attrs,
               ValueId to, int part) {
    Node node = node_beside(near, cut_.name, op, std::move(inputs), std::move(attrs));
    const Result<std::vector<TensorType>> types = find_op(op)->types(use_of(graph_, node));
    PIPER_CHECK(types.ok(), "{} '{}': {}", op, node.name, types.error().message);
    if (!to.valid()) {
      Value value{.name = fmt::format("{}{}", node.name, graph_.values.size()),
                  .type = (*types)[0]};
      if (!node.inputs.empty()) value.layout = graph_.value(node.inputs[0]).layout;
      to = graph_.add_value(std::move(value));
      of_.resize(graph_.values.size()), differs_.resize(graph_.values.size());
    }
    PIPER_CHECK(graph_.value(to).type == (*types)[0], "'{}' is {}, not {}", graph_.value(to).name,
                to_string((*types)[0]), to_string(graph_.value(to).type));
    node.outputs = {to};
    put(part < 0 ? without_part(std::move(node))
                 : of_part(std::move(node), static_cast<size_t>(part)));
    return to;
  }

  // Makes a constant of the place where a part begins: the number of the part is known now.
  void number(const Node& node) {
    const int64_t size = node.attrs.integer("size"), outer = node.attrs.integer("outer", 0);
    PIPER_CHECK(node.attrs.integer("turn") == 0 && node.attrs.integer("mirrored") == 0);
    std::vector<ValueId> parts;
    for (size_t p = 0; p < count_; ++p) {
      std::vector<int64_t> firsts;
      for (int64_t o = 0; o < std::max<int64_t>(outer, 1); ++o)
        firsts.push_back(o * ranks_ * size + before(size, p));
      const TensorType type = graph_.value(node.outputs[0]).type;
      parts.push_back(
          graph_.add_constant(fmt::format("{}.{}", node.name, p), type,
                              Bytes::copy_of(firsts.data(), firsts.size() * sizeof(int64_t))));
    }
    set_parts(node.outputs[0], std::move(parts));
  }

  // A dim that is cut is [outer, parts x local].
  struct Blocks {
    size_t dim = 0;
    int64_t outer = 1;
  };
  static Blocks blocks_of(const Node& node, const std::string& to) {
    return {static_cast<size_t>(node.attrs.integer(to + "dim")),
            node.attrs.integer(to + "outer", 1)};
  }

  void slice(const Node& node, ValueId whole, ValueId to, const std::string& which) {
    const Blocks blocks = blocks_of(node, which);
    Shape shape = graph_.value(whole).type.shape;
    size_t dim = blocks.dim;
    if (blocks.outer > 1) {
      shape[dim] /= blocks.outer;
      shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(dim), blocks.outer);
      whole = emit(node, "Reshape", {whole}, {{"shape", shape}}, {}, -1);
      ++dim;
    }
    name_parts(to);
    const std::vector<ValueId> made = of_[to.index()];
    for (size_t p = 0; p < count_; ++p) {
      std::vector<int64_t> starts(shape.size()), ends = shape, steps(shape.size(), 1);
      starts[dim] = before(shape[dim] / ranks_, p);
      ends[dim] = before(shape[dim] / ranks_, p + 1);
      const Attrs attrs{{"starts", starts}, {"ends", ends}, {"steps", steps}};
      const int part = static_cast<int>(p);
      if (blocks.outer == 1) {
        emit(node, "Slice", {whole}, attrs, made[p], part);
        continue;
      }
      const ValueId block = emit(node, "Slice", {whole}, attrs, {}, part);
      const Shape own = graph_.value(made[p]).type.shape;
      emit(node, "Reshape", {block}, {{"shape", own}}, made[p], part);
    }
  }

  Shape shape_in_blocks(ValueId part, const Blocks& blocks) const {
    Shape shape = graph_.value(part).type.shape;
    if (blocks.outer > 1) {
      shape[blocks.dim] /= blocks.outer;
      shape.insert(shape.begin() + static_cast<int64_t>(blocks.dim), blocks.outer);
    }
    return shape;
  }

  ValueId join(const Node& node, ValueId from, ValueId to) {
    ++joined_;
    const Blocks blocks = blocks_of(node, "");
    std::vector<ValueId> parts;
    const auto dim = static_cast<int64_t>(blocks.dim);
    for (size_t p = 0; p < count_; ++p) {
      const ValueId part = of(from, p);
      const Shape shape = shape_in_blocks(part, blocks);
      parts.push_back(blocks.outer == 1 ? part
                                        : emit(node, "Reshape", {part}, {{"shape", shape}}, {},
                                               static_cast<int>(p)));
    }
    if (blocks.outer == 1) return emit(node, "Concat", parts, {{"axis", dim}}, to, -1);
    const ValueId all = emit(node, "Concat", parts, {{"axis", dim + 1}}, {}, -1);
    Shape whole = alike(from).shape;
    whole[blocks.dim] *= ranks_;
    return emit(node, "Reshape", {all}, {{"shape", whole}}, to, -1);
  }

  // Adds up what parts have, in the order in which they run. On devices of their own none waits for
  // the one before.
  ValueId sum(const Node& near, ValueId from, ValueId to) {
    ++summed_;
    const char* op = near.op == "AllReduceMax" ? "Max" : "Add";
    const bool in_reverse = cut_.in_order && is_backward(near);
    ValueId all;
    for (size_t i = 0; i < count_; ++i) {
      const size_t p = in_reverse ? count_ - 1 - i : i;
      all = i == 0 ? of(from, p)
                   : emit(near, op, {all, of(from, p)}, {}, i + 1 == count_ ? to : ValueId(),
                          cut_.is_placed ? -1 : static_cast<int>(p));
    }
    return all;
  }

  // ---- Tokens in order ----

  bool is_read_in_order(ValueId id) const { return in_order_.contains(id); }

  // A part reads the keys of the parts up to its own.
  void gather(const Node& node, ValueId from, ValueId to) {
    ++carried_;
    const Blocks blocks = blocks_of(node, "");
    PIPER_CHECK(blocks.outer == 1, "'{}' has tokens beside another dim", node.name);
    std::vector<ValueId> before, parts;
    for (size_t p = 0; p < count_; ++p) {
      before.push_back(of(from, p));
      parts.push_back(p == 0 ? before[0]
                             : emit(node, "Concat", before,
                                    {{"axis", static_cast<int64_t>(blocks.dim)}}, {},
                                    static_cast<int>(p)));
    }
    set_parts(to, std::move(parts));
  }

  // Terms of the gradients of keys come from the last part on: each adds its own, keeps those of
  // its keys, and hands those of earlier keys on.
  void carry_back(const Node& node, ValueId from, ValueId to) {
    const Blocks blocks = blocks_of(node, "");
    PIPER_CHECK(blocks.outer == 1, "'{}' has tokens beside another dim", node.name);
    name_parts(to);
    const std::vector<ValueId> made = of_[to.index()];
    ValueId carried;
    for (size_t p = count_; p-- > 0;) {
      const int part = static_cast<int>(p);
      const ValueId own = of(from, p);
      if (p == 0) return static_cast<void>(emit(node, "Add", {carried, own}, {}, made[0], part));
      const ValueId all = carried.valid() ? emit(node, "Add", {carried, own}, {}, {}, part) : own;
      const int64_t keys = graph_.value(all).type.shape[blocks.dim],
                    first = keys - graph_.value(made[p]).type.shape[blocks.dim];
      emit(node, "Slice", {all}, stretch(all, blocks.dim, first, keys), made[p], part);
      carried = emit(node, "Slice", {all}, stretch(all, blocks.dim, 0, first), {}, part);
    }
  }
  Attrs stretch(ValueId of, size_t dim, int64_t first, int64_t end) const {
    const Shape& shape = graph_.value(of).type.shape;
    std::vector<int64_t> starts(shape.size()), ends = shape, steps(shape.size(), 1);
    starts[dim] = first, ends[dim] = end;
    return {{"starts", starts}, {"ends", ends}, {"steps", steps}};
  }

  void end_step() {
    const auto set = [&](ValueId& id) {
      PIPER_CHECK(!differs(id), "'{}' ends the step in parts", graph_.value(id).name);
      id = of(id, 0);
    };
    for (Param& param : graph_.params)
      if (param.gradient.valid()) set(param.gradient);
    for (StateUpdate& update : graph_.updates) set(update.next);
    for (ValueId* id : {&graph_.loss, &graph_.grad_norm, &graph_.weight})
      if (id->valid()) set(*id);
    for (ValueId& id : graph_.outputs)
      if (id.valid() && !differs(id)) id = of(id, 0);
  }

  Graph graph_;
  const PartCut& cut_;
  const std::set<ValueId>& doors_;
  const size_t count_;
  const int64_t ranks_;  // of the axis: parts, or more
  const int part_tag_, region_tag_;
  const std::set<int32_t> regions_;  // of this split
  int64_t unit_ = 0;              // of sizes: tokens of a rank of the axis
  std::vector<TensorType> even_;  // by value: its type there
  std::vector<bool> differs_;     // by value: it is not the same for all parts
  std::vector<std::vector<ValueId>>
      of_;  // by value: what has become of it, by part or of the whole
  std::vector<Node> nodes_;
  std::set<ValueId> in_order_;  // keys and values of causal attention
  int64_t ops_ = 0, joined_ = 0, summed_ = 0, carried_ = 0;
};

}  // namespace

int64_t PartCut::ranks() const {
  const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  if (all % into == 0) return into;
  int64_t unit = 0;
  for (const int64_t size : sizes) unit = std::gcd(unit, size);
  return all / unit;
}

Parts unroll(Graph graph, const PartCut& cut, const std::set<ValueId>& doors) {
  return Unroller(std::move(graph), cut, doors).run();
}

}  // namespace piper
