// Cross-entropy written as the sum of the labels' log-probabilities.
//
//   p = GatherElements(LogSoftmax(x), y);  Neg(ReduceSum(p))        ->   CrossEntropySum(x, y)
//
// with factors and signs anywhere, and with rows left out where their label is one number: times a
// mask, or Where. Labels that no row may have are then replaced before they are looked up.
#include <cstring>

#include "match.h"
#include "piper/ir/index_range.h"
#include "piper/ir/ops.h"

namespace piper::patterns {
namespace {

std::optional<int64_t> integer(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  if (value.kind != ValueKind::kConstant || num_elements(value.type.shape) != 1 ||
      !value.data.data || value.type.dtype != DType::kI64)
    return std::nullopt;
  int64_t number = 0;
  std::memcpy(&number, value.data.data, sizeof number);
  return number;
}

// Finds the rows whose label is not `ignored`.
struct Mask {
  ValueId labels;
  int64_t ignored = 0;
};

class PickedLoss {
 public:
  PickedLoss(const Graph& graph, const Matcher& match, const IndexRange& range)
      : graph_(graph), match_(match), range_(range) {}

  // Returns whether the sum of `id` is `factor` × a cross-entropy of these logits and labels.
  bool find(ValueId id) {
    for (ValueId at = id; at.valid();) {
      const Node* node = match_.producer(at);
      if (!node || match_.reader_count(at) != 1) return false;
      if (node->op == "GatherElements") return picks(*node);
      at = below(*node);
    }
    return false;
  }
  ValueId logits, labels;
  double factor = 1;
  std::optional<int64_t> ignored;

 private:
  // Returns what is left when a sign, a factor, a shape or a mask is taken off; none when it is
  // none of these, or repeats what is left: a mask [n] times [n,1] is [n,n].
  ValueId below(const Node& node) {
    const ValueId left = operand_of(node);
    const bool repeats =
        left.valid() && num_elements(shape(left)) != num_elements(shape(node.outputs[0]));
    return repeats ? ValueId() : left;
  }
  ValueId operand_of(const Node& node) {
    if (node.op == "Neg") factor = -factor;
    if (node.op == "Neg" || node.op == "Reshape" || widens(node)) return node.inputs[0];
    if (node.op == "Mul")
      for (const size_t side : {size_t{0}, size_t{1}})
        if (is_factor(node.inputs[side], node.inputs[1 - side])) return node.inputs[1 - side];
    if (node.op == "Div" && match_.scalar(node.inputs[1]).value_or(0) != 0) {
      factor /= *match_.scalar(node.inputs[1]);
      return node.inputs[0];
    }
    if (node.op != "Where") return {};
    for (const size_t side : {size_t{1}, size_t{2}}) {
      if (match_.scalar(node.inputs[side]) != 0.0) continue;
      const ValueId rows = node.inputs[3 - side];
      return take_mask(node.inputs[0], rows, side == 2) ? rows : ValueId();
    }
    return {};
  }
  // A mean of f16 is summed in f32.
  bool widens(const Node& node) const {
    return node.op == "Cast" && graph_.value(node.inputs[0]).type.dtype == DType::kF16 &&
           graph_.value(node.outputs[0]).type.dtype == DType::kF32;
  }
  const Shape& shape(ValueId id) const { return graph_.value(id).type.shape; }

  bool is_factor(ValueId id, ValueId rows) {
    if (const auto constant = match_.scalar(id)) {
      factor *= *constant;
      return true;
    }
    const Node* cast = match_.producer(id);
    return cast && cast->op == "Cast" && take_mask(cast->inputs[0], rows, true);
  }

  // `id` is true (or false) for those of the rows that count.
  bool take_mask(ValueId id, ValueId rows, bool kept) {
    if (shape(id) != shape(rows)) return false;
    const Node* node = match_.producer(id);
    for (; node && node->op == "Not"; kept = !kept) node = match_.producer(node->inputs[0]);
    if (!node || node->op != "Equal" || kept || mask_) return false;
    for (const size_t side : {size_t{0}, size_t{1}})
      if (const auto number = integer(graph_, node->inputs[side]))
        mask_ = Mask{node->inputs[1 - side], *number};
    return mask_.has_value();
  }

  bool picks(const Node& gather) {
    const Node* log = match_.sole(gather.inputs[0], "LogSoftmax");
    const TensorType& places = graph_.value(gather.inputs[1]).type;
    if (!log || places.dtype != DType::kI64 || places.shape.empty() || places.shape.back() != 1)
      return false;
    const auto last = static_cast<int64_t>(places.shape.size()) - 1;
    Shape lead = graph_.value(log->inputs[0]).type.shape;
    lead.pop_back();
    if (gather.attrs.integer("axis") != last || log->attrs.integer("axis") != last ||
        Shape(places.shape.begin(), places.shape.end() - 1) != lead)
      return false;
    const Node* reshape = match_.producer(gather.inputs[1]);
    if (!reshape || reshape->op != "Reshape") return false;
    logits = log->inputs[0];
    labels = reshape->inputs[0];
    if (mask_ && !replaces(labels)) return false;
    if (mask_) labels = mask_->labels, ignored = mask_->ignored;
    // GatherElements counts negative labels from the end, a cross-entropy knows none.
    return graph_.value(labels).type == TensorType{DType::kI64, lead} &&
           range_.is_within(labels, graph_.value(logits).type.shape.back(), ignored, true);
  }

  // Labels are kept wherever they count: themselves, or a number instead of the ignored or of
  // negative ones.
  bool replaces(ValueId id) const {
    if (id == mask_->labels) return true;
    const Node* where = match_.producer(id);
    if (!where || where->op != "Where") return false;
    const Node* condition = match_.producer(where->inputs[0]);
    bool instead = true;  // where the condition holds
    for (; condition && condition->op == "Not"; instead = !instead)
      condition = match_.producer(condition->inputs[0]);
    if (!condition || (condition->op != "Equal" && condition->op != "Less")) return false;
    const ValueId other = where->inputs[instead ? 1 : 2], kept = where->inputs[instead ? 2 : 1];
    const auto bound = integer(graph_, condition->inputs[1]);
    const bool of_labels = condition->inputs[0] == mask_->labels && kept == mask_->labels;
    return of_labels && integer(graph_, other) &&
           bound == (condition->op == "Equal" ? mask_->ignored : 0) && mask_->ignored < 0;
  }

  const Graph& graph_;
  const Matcher& match_;
  const IndexRange& range_;
  std::optional<Mask> mask_;
};

}  // namespace

Count recognise_picked_cross_entropy(Graph& graph) {
  const Matcher match(graph);
  const IndexRange range(graph);
  std::vector<std::pair<size_t, PickedLoss>> found;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.op != "ReduceSum" || num_elements(graph.value(node.outputs[0]).type.shape) != 1)
      continue;
    PickedLoss loss(graph, match, range);
    if (loss.find(node.inputs[0])) found.emplace_back(i, loss);
  }
  for (const auto& [i, loss] : found) {
    Builder build(graph);
    build.scope = graph.nodes[i].scope;
    build.tags = graph.nodes[i].tags;
    build.pass = graph.nodes[i].pass;
    build.name_prefix = graph.nodes[i].name + "/";
    // A number that no label is: nothing is ignored.
    const Attrs attrs{{"ignore_index", loss.ignored.value_or(INT64_MIN)}};
    ValueId sum = build.op1("CrossEntropySum", {loss.logits, loss.labels}, attrs);
    if (loss.factor == 1) {
      sum = build.neg(sum);
    } else if (loss.factor != -1) {
      sum = build.mul(sum, build.scalar(-loss.factor, build.type(sum).dtype));
    }
    const DType dtype = build.type(graph.nodes[i].outputs[0]).dtype;
    if (build.type(sum).dtype != dtype) sum = build.cast(sum, dtype);
    Node& node = graph.nodes[i];
    node.op = "Reshape";
    node.attrs = Attrs{{"shape", Shape(graph.value(node.outputs[0]).type.shape)}};
    node.inputs = {sum};
  }
  return static_cast<Count>(found.size());
}

}  // namespace piper::patterns
