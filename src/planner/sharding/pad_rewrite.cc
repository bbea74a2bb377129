// The graph in which dims go on into zeros: types, and what is put after the ends.
#include "pad_rewrite.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rewrite.h"

namespace piper {
namespace {

// Returns the number of the type that is nearest: no infinity, of which differences are no numbers.
double finite(double number, DType dtype) {
  if (!std::isinf(number)) return number;
  const double greatest = dtype == DType::kF64   ? std::numeric_limits<double>::max()
                          : dtype == DType::kF16 ? 65504
                                                 : 0x1.fep127;  // of bf16, which f32 holds
  return std::copysign(greatest, number);
}

class PadRewrite {
 public:
  PadRewrite(Graph graph, const std::string& axis, Padded found)
      : graph_(std::move(graph)),
        axis_(axis),
        found_(std::move(found)),
        readers_(readers(graph_)) {}

  Graph run() {
    make_room();
    put_zeros();
    return std::move(graph_);
  }

 private:
  // Makes room, attributes first: they need all types as they were.
  void make_room() {
    const auto padded = [&](ValueId id) {
      Shape shape = graph_.value(id).type.shape;
      if (const PadMark* mark = found_.mark_of(id))
        shape[static_cast<size_t>(mark->dim)] = mark->padded();
      return shape;
    };
    for (Node& node : graph_.nodes) localise(graph_, node, node, padded);
    for (const auto& [id, mark] : found_.marks) {
      Value& value = graph_.value(ValueId(id));
      const auto dim = static_cast<size_t>(mark.dim);
      if (value.kind == ValueKind::kState) {
        value.unpadded.resize(value.type.shape.size());
        value.unpadded[dim] = value.type.shape[dim];
      }
      value.type.shape = padded(ValueId(id));
    }
  }

  // Zeros are put past the end, or what counts as none, once for all that read the value so.
  void put_zeros() {
    std::map<int32_t, ValueId> zeros;                       // by value
    std::map<std::pair<int32_t, double>, ValueId> absents;  // by value and number
    const auto replace = [&](ValueId& id) {
      if (const auto made = zeros.find(id.value); made != zeros.end()) id = made->second;
    };
    const std::vector<Node> before = std::exchange(graph_.nodes, {});
    for (size_t n = 0; n < before.size(); ++n) {
      Node node = before[n];
      for (const ValueId input : node.inputs) add_end(input, node);
      for (ValueId& input : node.inputs) replace(input);
      if (found_.masked.count(static_cast<int32_t>(n))) {
        const OpDef& def = *find_op(node.op);
        const auto at = static_cast<size_t>(def.absent_in);
        ValueId& masked = absents[{node.inputs[at].value, *def.absent}];
        if (!masked.valid())
          masked = add_absent(node.inputs[at], *found_.mark_of(before[n].inputs[at]), node);
        node.inputs[at] = masked;
      }
      append(graph_, graph_.nodes, node);
      for (ValueId output : node.outputs)
        if (found_.nonzero.count(output.value) && is_used(output))
          zeros[output.value] = add_zeros(output, *found_.mark_of(output), node);
    }
    for (StateUpdate& update : graph_.updates) replace(update.next);
    for (Param& param : graph_.params) replace(param.gradient);
  }
  bool is_used(ValueId id) const {
    return !readers_[id.index()].empty() ||
           std::any_of(graph_.updates.begin(), graph_.updates.end(),
                       [&](const StateUpdate& update) { return update.next == id; });
  }

  ValueId add(std::string_view op, std::vector<ValueId> inputs, Attrs attrs, TensorType type,
              const Node& near, ValueId like = {}) {
    Node node = node_beside(near, axis_, op, std::move(inputs), std::move(attrs));
    Value value{.name = fmt::format("{}{}", node.name, graph_.values.size()),
                .type = std::move(type)};
    if (like.valid())
      value.layout = graph_.value(like).layout, value.over = graph_.value(like).over;
    const ValueId made = graph_.add_value(std::move(value));
    node.outputs = {made};
    append(graph_, graph_.nodes, std::move(node));
    return made;
  }

  void emit(std::string_view op, std::vector<ValueId> inputs, Attrs attrs, ValueId made,
            const Node& near) {
    Node node = node_beside(near, axis_, op, std::move(inputs), std::move(attrs));
    node.outputs = {made};
    append(graph_, graph_.nodes, std::move(node));
  }

  // Adds a row along the dim: one number in what is there, and another one after it.
  ValueId add_row(const PadMark& mark, DType dtype, double there, double behind, size_t rank,
                  const Node& near) {
    Shape shape{mark.outer, mark.there, mark.unit};
    const ValueId filled = add(
        "Fill", {}, {{"shape", shape}, {"value", there}, {"dtype", std::string(info(dtype).name)}},
        {dtype, shape}, near);
    shape[1] = mark.extent;
    const ValueId padded =
        add("Pad", {filled},
            {{"before", std::vector<int64_t>(3)},
             {"after", std::vector{int64_t{0}, mark.extent - mark.there, int64_t{0}}},
             {"value", behind}},
            {dtype, shape}, near);
    Shape row(rank - static_cast<size_t>(mark.dim), 1);
    row[0] = mark.padded();
    return add("Reshape", {padded}, {{"shape", row}}, {dtype, row}, near);
  }
  static void shift_layouts(Value& value, int behind) {
    if (value.layout.dim > behind) ++value.layout.dim;
    for (AxisLayout& lies : value.over)
      if (lies.layout.dim > behind) ++lies.layout.dim;
  }
  // Of what is given, see with_zeros().
  void add_end(ValueId made, const Node& near) {
    const auto at = found_.given.find(made.value);
    if (at == found_.given.end()) return;
    const PadMark& mark = *found_.mark_of(made);
    const auto dim = static_cast<size_t>(mark.dim);
    const TensorType type = graph_.value(made).type;
    Shape stretches = type.shape, none(stretches.size() + 1), behind = none;
    stretches[dim] = mark.outer;
    stretches.insert(stretches.begin() + mark.dim + 1, mark.there * mark.unit);
    behind[dim + 1] = (mark.extent - mark.there) * mark.unit;
    const ValueId apart =
        add("Reshape", {at->second}, {{"shape", stretches}}, {type.dtype, stretches}, near, made);
    shift_layouts(graph_.value(apart), mark.dim);
    stretches[dim + 1] += behind[dim + 1];
    const ValueId padded =
        add("Pad", {apart}, {{"before", none}, {"after", behind}, {"value", 0.0}},
            {type.dtype, stretches}, near, apart);
    emit("Reshape", {padded}, {{"shape", type.shape}}, made, near);
    found_.given.erase(at);
  }
  ValueId add_absent(ValueId read, const PadMark& mark, const Node& near) {
    const TensorType type = graph_.value(read).type;
    const double none = finite(*find_op(near.op)->absent, type.dtype);
    const ValueId row = add_row(mark, type.dtype, 0, none, type.shape.size(), near);
    return add("Add", {read, row}, {}, type, near, read);
  }
  ValueId add_zeros(ValueId made, const PadMark& mark, const Node& near) {
    const TensorType type = graph_.value(made).type;
    const ValueId row = add_row(mark, DType::kF32, 1, 0, type.shape.size(), near);
    const ValueId is_there = add("Cast", {row}, {{"to", std::string(info(DType::kBool).name)}},
                                 {DType::kBool, graph_.value(row).type.shape}, near);
    const ValueId zero =
        add("Fill", {},
            {{"shape", Shape{}}, {"value", 0.0}, {"dtype", std::string(info(type.dtype).name)}},
            {type.dtype, {}}, near);
    return add("Where", {is_there, made, zero}, {}, type, near, made);
  }

  Graph graph_;
  const std::string& axis_;
  Padded found_;
  std::vector<std::vector<NodeId>> readers_;
};

}  // namespace

Graph rewrite_padded(Graph graph, const std::string& axis, Padded found) {
  return PadRewrite(std::move(graph), axis, std::move(found)).run();
}

}  // namespace piper
