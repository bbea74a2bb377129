#include "piper/autodiff.h"
#include "piper/ops.h"

namespace piper {
namespace {

// The labels: an input of the model, or a new one with the logits' shape without the classes.
Result<ValueId> labels_input(Graph& graph, const CrossEntropyLoss& loss, const TensorType& logits) {
  const ValueId known = graph.find_value(loss.labels);
  TensorType type{DType::kI64, logits.shape};
  type.shape.pop_back();
  if (known.valid()) {
    const TensorType& have = graph.value(known).type;
    if (have.shape != type.shape || info(have.dtype).is_float)
      return fail(loss.at, "loss: labels '{}' are {}; logits {} need integers {}", loss.labels, to_string(have),
                  to_string(logits), to_string(type.shape));
    return known;
  }
  Value value;
  value.name = loss.labels;
  value.type = type;
  value.kind = ValueKind::kInput;
  value.batch_dim = 0;
  const ValueId id = graph.add_value(std::move(value));
  graph.inputs.push_back(id);
  return id;
}

}  // namespace

Result<Graph> add_cross_entropy(Graph graph, const CrossEntropyLoss& loss) {
  const ValueId logits = graph.find_value(loss.logits);
  if (!logits.valid()) {
    std::vector<std::string> names;
    for (ValueId output : graph.outputs) names.push_back(graph.value(output).name);
    return fail(loss.at, "loss: the model has no value '{}'{}", loss.logits, did_you_mean(loss.logits, names))
        .with_note("outputs of the model: " + join(names, ", "));
  }
  const TensorType type = graph.value(logits).type;
  if (!info(type.dtype).is_float || type.shape.size() < 2)
    return fail(loss.at, "loss: logits '{}' are {}; cross-entropy needs floats [..., classes]", loss.logits, to_string(type));
  PIPER_ASSIGN(const ValueId labels, labels_input(graph, loss, type));
  Builder build(graph);
  build.name_prefix = "loss/";
  const NodeId producer = graph.value(logits).producer;
  if (producer.valid()) {
    build.tags = graph.node(producer).tags;
    build.scope = "";
  }
  Attrs attrs;
  attrs.set("ignore_index", loss.ignore_index);
  const ValueId sum = build.op1("CrossEntropySum", {logits, labels}, attrs);
  ValueId count = build.op1("LabelCount", {labels}, attrs);
  if (type.dtype != DType::kF32) {
    Attrs to;
    to.set("to", std::string(info(type.dtype).name));
    count = build.op1("Cast", {count}, to);
  }
  graph.loss = build.div(sum, count);
  return graph;
}

}  // namespace piper
