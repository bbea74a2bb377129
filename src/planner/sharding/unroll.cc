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
        part_tag_(graph_.add_tag(cut.name)),
        region_tag_(graph_.add_tag(kRegionOfParts)) {
    for (const Value& value : graph_.values) differs_.push_back(layout_in(value) != nullptr);
    of_.resize(graph_.values.size());
  }

  Parts run() {
    const std::vector<Node> old = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (const Node& node : old) visit(node);
    graph_.nodes = std::move(nodes_);
    for (Value& value : graph_.values)
      std::erase_if(value.over, [](const AxisLayout& over) { return over.axis == kAxisInTime; });
    end_step();
    return {without_dead_nodes(std::move(graph_), true), ops_, joined_, summed_};
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

  void visit(const Node& node) {
    if (node.attrs.integer("over", 0) == kAxisInTime && find_op(node.op)->collective)
      return play(node);
    if (doors_.contains(node.outputs[0])) return skip(node);
    const bool in_parts =
        std::ranges::any_of(node.inputs, [&](ValueId id) { return differs(id); }) ||
        std::ranges::any_of(node.outputs, [&](ValueId id) { return differs(id); });
    if (is_step_sum(node) && in_parts) return add_to_step(node);
    if (!in_parts) return add_whole(node);
    ++ops_;
    for (ValueId output : node.outputs) name_parts(output);
    for (size_t p = 0; p < count_; ++p) {
      Node part = of_part(node, p);
      for (ValueId& input : part.inputs) input = of(input, p);
      for (ValueId& output : part.outputs) output = of(output, p);
      put(std::move(part));
    }
  }

  // The value itself is the first part; the others are like it.
  void name_parts(ValueId id) {
    if (!id.valid()) return;
    std::vector<ValueId> parts{id};
    for (size_t p = 1; p < count_; ++p) {
      Value part = graph_.value(id);
      part.name = fmt::format("{}/{}.{}", part.name, cut_.name, p);
      parts.push_back(graph_.add_value(std::move(part)));
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
  Node without_part(Node node) {
    graph_.set_tag(node, region_tag_, kNoTag);
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
  // Terms of a contribution to a sum over the step are added up before.
  void add_to_step(Node node) {
    for (ValueId& input : node.inputs) {
      if (!differs(input)) {
        input = of(input, 0);
        continue;
      }
      const Node maker = nodes_[graph_.value(of(input, count_ - 1)).producer.index()];
      input = sum(maker, input, {});
    }
    put(without_part(std::move(node)));
  }

  // ---- Collectives ----

  void play(const Node& node) {
    const ValueId from = node.inputs.empty() ? ValueId() : node.inputs[0], to = node.outputs[0];
    if (node.op == "OwnFirst") return number(node);
    if (node.op == "OwnBlock") return slice(node, of(from, 0), to, "");
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
        firsts.push_back((o * cut_.into + static_cast<int64_t>(p)) * size);
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
    const Shape own = graph_.value(to).type.shape;
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
      starts[dim] = shape[dim] / cut_.into * static_cast<int64_t>(p);
      ends[dim] = starts[dim] + shape[dim] / cut_.into;
      const Attrs attrs{{"starts", starts}, {"ends", ends}, {"steps", steps}};
      const int part = static_cast<int>(p);
      if (blocks.outer == 1) {
        emit(node, "Slice", {whole}, attrs, made[p], part);
        continue;
      }
      const ValueId block = emit(node, "Slice", {whole}, attrs, {}, part);
      emit(node, "Reshape", {block}, {{"shape", own}}, made[p], part);
    }
  }

  ValueId join(const Node& node, ValueId from, ValueId to) {
    ++joined_;
    const Blocks blocks = blocks_of(node, "");
    std::vector<ValueId> parts;
    Shape shape = graph_.value(from).type.shape;
    const auto dim = static_cast<int64_t>(blocks.dim);
    if (blocks.outer > 1) {
      shape[blocks.dim] /= blocks.outer;
      shape.insert(shape.begin() + dim, blocks.outer);
    }
    for (size_t p = 0; p < count_; ++p) {
      const ValueId part = of(from, p);
      parts.push_back(blocks.outer == 1 ? part
                                        : emit(node, "Reshape", {part}, {{"shape", shape}}, {},
                                               static_cast<int>(p)));
    }
    if (blocks.outer == 1) return emit(node, "Concat", parts, {{"axis", dim}}, to, -1);
    const ValueId all = emit(node, "Concat", parts, {{"axis", dim + 1}}, {}, -1);
    Shape whole = graph_.value(from).type.shape;
    whole[blocks.dim] *= cut_.into;
    return emit(node, "Reshape", {all}, {{"shape", whole}}, to, -1);
  }

  // Adds up what parts have, in their order.
  ValueId sum(const Node& near, ValueId from, ValueId to) {
    ++summed_;
    const char* op = near.op == "AllReduceMax" ? "Max" : "Add";
    ValueId all = of(from, 0);
    for (size_t p = 1; p < count_; ++p)
      all = emit(near, op, {all, of(from, p)}, {}, p + 1 == count_ ? to : ValueId(),
                 static_cast<int>(p));
    return all;
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
  const int part_tag_, region_tag_;
  std::vector<bool> differs_;  // by value: it is not the same for all parts
  std::vector<std::vector<ValueId>>
      of_;  // by value: what has become of it, by part or of the whole
  std::vector<Node> nodes_;
  int64_t ops_ = 0, joined_ = 0, summed_ = 0;
};

}  // namespace

Parts unroll(Graph graph, const PartCut& cut, const std::set<ValueId>& doors) {
  return Unroller(std::move(graph), cut, doors).run();
}

}  // namespace piper
