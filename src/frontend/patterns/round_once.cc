// Groups of ops on 16-bit floats that round between them -> ops that round once.
#include <algorithm>

#include "match.h"
#include "piper/base/float16.h"
#include "piper/frontend/patterns.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

using patterns::Matcher;

class OnceRounder {
 public:
  explicit OnceRounder(Graph& graph) : graph_(graph), match_(graph), readers_(readers(graph)) {}

  // Returns whether there was anything to join.
  bool run() {
    for (size_t i = 0, count = graph_.nodes.size(); i < count; ++i) {
      join_product(NodeId(i));
      read_logits(NodeId(i));
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) keep_shape(NodeId(i));
    return joined_;
  }

 private:
  const TensorType& type(ValueId id) const { return graph_.value(id).type; }
  void makes(NodeId id, std::vector<ValueId> outputs) {
    for (size_t o = 0; o < outputs.size(); ++o) {
      graph_.value(outputs[o]).producer = id;
      graph_.value(outputs[o]).output_index = static_cast<int>(o);
    }
    graph_.node(id).outputs = std::move(outputs);
  }
  // What the node has made is made elsewhere; its own result is one that nobody reads.
  ValueId taken_from(NodeId id) {
    const ValueId taken = graph_.node(id).outputs[0];
    makes(id, {another(taken)});
    return taken;
  }
  ValueId another(ValueId like) {
    Value value = graph_.value(like);
    value.name += "/made";
    return graph_.add_value(std::move(value));
  }

  // ---- Products ----

  // Returns the product of rows with one matrix of which the sum takes a row as its bias.
  const Node* product_of(const Node& sum, size_t side) const {
    const Node* product = match_.sole(sum.inputs[side], "MatMul");
    if (!product || product->pass != sum.pass || product->attrs.integer("trans_a") != 0 ||
        product->inputs.size() != 2)
      return nullptr;
    const TensorType &w = type(product->inputs[1]), &with = type(sum.inputs[1 - side]),
                     &made = type(sum.outputs[0]);
    const bool is_row = with.shape == Shape{made.shape.back()};
    return w.shape.size() == 2 && is_row && made == type(product->outputs[0]) ? product : nullptr;
  }

  void join_product(NodeId id) {
    const Node sum = graph_.node(id);
    if (sum.op != "Add" || sum.pass != Pass::kF || !is_half(type(sum.outputs[0]).dtype) ||
        type(sum.outputs[0]).shape.empty())
      return;
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const Node* product = product_of(sum, side);
      if (!product) continue;
      if (product->tags != sum.tags && !bring(sum.inputs[1 - side], id, product->tags)) return;
      joined_ = true;
      const int64_t trans_b = product->attrs.integer("trans_b");
      Node& node = graph_.node(id);
      node.op = "Linear";
      node.scope = product->scope;
      node.tags = product->tags;
      node.attrs = Attrs{{"trans_b", trans_b}};
      node.inputs = {product->inputs[0], product->inputs[1], sum.inputs[1 - side]};
      const std::vector<int32_t> here = node.tags;
      const NodeId activation = activation_of(sum.outputs[0]);
      const std::vector<int32_t> of_activation =
          activation.valid() ? graph_.node(activation).tags : sum.tags;
      if (activation.valid()) join_activation(id, activation);
      if (sum.tags != here && is_empty(sum.tags)) pass_on(id, sum.tags);
      if (of_activation != here && of_activation != sum.tags && is_empty(of_activation))
        pass_on(id, of_activation);
      return;
    }
  }
  // A stage of which nothing is left is where it was, between what makes the result and those
  // who read it.
  void pass_on(NodeId id, const std::vector<int32_t>& stage) {
    Node view = graph_.node(id);
    const ValueId result = view.outputs[0];
    view.op = "Reshape";
    view.tags = stage;
    view.inputs = view.outputs = {result};
    view.attrs = Attrs{{"shape", Shape(type(result).shape)}};
    const ValueId passed = graph_.node(graph_.add_copy(view)).outputs[0];
    for (Node& node : graph_.nodes)
      if (node.pass == Pass::kF && node.outputs[0] != passed)
        std::replace(node.inputs.begin(), node.inputs.end(), result, passed);
  }

  // Moves the bias, a parameter, and what makes its gradient into the stage of the product, if the
  // stage ends after the product: rounding then depends on no stage. Whether it can.
  bool bring(ValueId bias, NodeId id, const std::vector<int32_t>& to) {
    const std::vector<int32_t> from = graph_.node(id).tags;
    std::vector<NodeId> nodes{id};
    if (const Node* cast = match_.sole(bias, "Cast")) {
      nodes.push_back(graph_.value(bias).producer);
      bias = cast->inputs[0];
    }
    const auto param = std::find_if(graph_.params.begin(), graph_.params.end(),
                                    [&](const Param& each) { return each.value == bias; });
    if (param == graph_.params.end()) return false;
    if (param->gradient.valid()) {
      const Node& sum = graph_.node(graph_.value(param->gradient).producer);
      if (!is_step_sum(sum) || sum.inputs.size() != 1 || !gather(sum.inputs[0], from, nodes))
        return false;
    }
    for (const NodeId node : nodes) graph_.node(node).tags = to;
    return true;
  }
  // Returns whether the stage has no forward node but such of which all has been taken.
  bool is_empty(const std::vector<int32_t>& stage) const {
    const auto is_taken = [&](ValueId made) { return made.index() >= readers_.size(); };
    return std::all_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
      return node.pass != Pass::kF || node.tags != stage ||
             (node.op != "Linear" && is_taken(node.outputs[0]));
    });
  }
  // Returns the nodes of the stage that make a parameter's gradient and nothing else.
  bool gather(ValueId made, const std::vector<int32_t>& stage, std::vector<NodeId>& nodes) const {
    const NodeId id = made.valid() ? graph_.value(made).producer : NodeId();
    if (!id.valid() || graph_.node(id).pass != Pass::kBW || graph_.node(id).tags != stage)
      return true;
    if (!only_reader(made).valid()) return false;
    nodes.push_back(id);
    const auto& inputs = graph_.node(id).inputs;
    return std::all_of(inputs.begin(), inputs.end(),
                       [&](ValueId input) { return gather(input, stage, nodes); });
  }

  // Joins a Gelu, in another shape too, which is then given to its result.
  void join_activation(NodeId id, NodeId activation) {
    const ValueId sum = graph_.node(id).outputs[0];
    const Node gelu = graph_.node(activation);
    const bool is_tanh = gelu.attrs.text("approximate") == "tanh";
    graph_.node(id).attrs.set("activation", std::string(is_tanh ? "gelu_tanh" : "gelu"));
    if (gelu.inputs[0] == sum) return makes(id, {taken_from(activation), sum});
    const ValueId made = another(sum);
    makes(id, {made, sum});
    Node& reshape = graph_.node(activation);
    reshape.op = "Reshape";
    reshape.attrs = Attrs{{"shape", Shape(type(gelu.outputs[0]).shape)}};
    reshape.inputs = {made};
  }
  NodeId activation_of(ValueId sum) const {
    for (const NodeId id : readers_[sum.index()]) {
      const Node& reader = graph_.node(id);
      if (reader.pass != Pass::kF) continue;
      if (reader.op == "Gelu") return id;
      if (reader.op != "Reshape") continue;
      for (const NodeId next : readers_[reader.outputs[0].index()])
        if (graph_.node(next).op == "Gelu" && graph_.node(next).pass == Pass::kF) return next;
    }
    return {};
  }

  // ---- Logits ----

  void read_logits(NodeId id) {
    const std::string_view op = graph_.node(id).op;
    if (!op.starts_with("CrossEntropy") || op == "CrossEntropyOfTerms") return;
    const Node* wide = match_.producer(graph_.node(id).inputs[0]);
    if (!wide || wide->op != "Cast" || !is_half(type(wide->inputs[0]).dtype) ||
        type(wide->outputs[0]).dtype != DType::kF32)
      return;
    const ValueId logits = wide->inputs[0];
    if (op == "CrossEntropyGrad") {
      const NodeId reader = match_.sole_reader(graph_.node(id).outputs[0]);
      if (!reader.valid() || graph_.node(reader).op != "Cast" ||
          type(graph_.node(reader).outputs[0]) != type(logits))
        return;
      makes(id, {taken_from(reader)});
    }
    joined_ = true;
    graph_.node(id).inputs[0] = logits;
  }

  // Returns what the Reshape that makes a value reads.
  std::optional<ValueId> before_reshape(ValueId id) const {
    const Node* node = match_.producer(id);
    return node && node->op == "Reshape" ? std::optional(node->inputs[0]) : std::nullopt;
  }
  NodeId only_reader(ValueId id) const {
    const auto& by = readers_[id.index()];
    return by.size() == 1 ? by[0] : NodeId();
  }

  // Logits and labels that a Reshape makes rows of are read as they were, and the gradient is made
  // of the logits' shape, in which it can take their place.
  void keep_shape(NodeId id) {
    Node& sum = graph_.node(id);
    if (sum.op != "CrossEntropySum" || !is_half(type(sum.inputs[0]).dtype)) return;
    const auto logits = before_reshape(sum.inputs[0]), labels = before_reshape(sum.inputs[1]);
    const NodeId by = only_reader(sum.outputs[1]);
    if (!logits || !labels || !by.valid()) return;
    Node& gradient = graph_.node(by);
    const NodeId back = only_reader(gradient.outputs[0]);
    Shape rows = type(*logits).shape;
    const bool same_classes = !rows.empty() && rows.back() == type(sum.inputs[0]).shape.back();
    if (rows.size() > 1) rows.pop_back();
    if (!same_classes || type(*labels).shape != rows || gradient.op != "CrossEntropyGrad" ||
        gradient.inputs.size() != 4 || gradient.inputs[0] != sum.inputs[0] ||
        gradient.inputs[1] != sum.inputs[1] || !back.valid() || graph_.node(back).op != "Reshape" ||
        type(graph_.node(back).outputs[0]) != type(*logits))
      return;
    for (Node* node : {&sum, &gradient}) node->inputs[0] = *logits, node->inputs[1] = *labels;
    Value& share = graph_.value(sum.outputs[1]);
    share.type.shape = rows;
    share.layout = graph_.value(*labels).layout, share.over = graph_.value(*labels).over;
    makes(by, {taken_from(back)});
  }

  Graph& graph_;
  const Matcher match_;
  const std::vector<std::vector<NodeId>> readers_;
  bool joined_ = false;
};

}  // namespace

Graph round_once(Graph step) {
  if (!OnceRounder(step).run()) return step;
  Result<Graph> ordered = in_topological_order(without_dead_nodes(std::move(step), true));
  PIPER_CHECK(ordered.ok(), "{}", ordered.error().message);
  return *std::move(ordered);
}

}  // namespace piper
