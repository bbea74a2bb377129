#include "piper/autodiff.h"
#include "piper/ops.h"

namespace piper {
namespace {

Result<ValueId> find_logits(const Graph& graph, const CrossEntropyLoss& loss) {
  const ValueId logits = graph.find_value(loss.logits);
  if (!logits.valid()) {
    std::vector<std::string> names;
    for (ValueId id : graph.outputs) names.push_back(graph.value(id).name);
    return fail(loss.at, "the model has no value '{}' to take as logits{}",
                quote_control(loss.logits), did_you_mean(loss.logits, names))
        .with_note(fmt::format("the model's outputs are: {}", quote_control(join(names, ", "))));
  }
  const TensorType& type = graph.value(logits).type;
  if (!info(type.dtype).is_float || type.shape.size() < 2 || type.shape.back() == 0) {
    return fail(loss.at,
                "logits must be floating point of shape [samples, …, classes], but '{}' is {}",
                quote_control(loss.logits), to_string(type));
  }
  return logits;
}

// The input of that name, made when the model has none.
Result<ValueId> find_labels(Graph& graph, const CrossEntropyLoss& loss, ValueId logits) {
  TensorType type{DType::kI64, graph.value(logits).type.shape};
  type.shape.pop_back();
  const ValueId known = graph.find_value(loss.labels);
  if (known.valid()) {
    if (graph.value(known).type == type) return known;
    return fail(loss.at, "labels for the logits '{}' must be {}, but '{}' is {}",
                quote_control(loss.logits), to_string(type), quote_control(loss.labels),
                to_string(graph.value(known).type));
  }
  if (graph.inputs.empty()) return fail(loss.at, "the model has no inputs");
  Value labels;
  labels.name = loss.labels;
  labels.type = std::move(type);
  labels.kind = ValueKind::kInput;
  labels.batch_dim = graph.value(graph.inputs[0]).batch_dim;
  const int batch_dim = labels.batch_dim;
  if (batch_dim >= static_cast<int>(labels.type.shape.size())) {
    return fail(loss.at, "labels {} have no dim {}, which counts samples in '{}'",
                to_string(labels.type), batch_dim,
                quote_control(graph.value(graph.inputs[0]).name));
  }
  graph.inputs.push_back(graph.add_value(std::move(labels)));
  return graph.inputs.back();
}

}  // namespace

Result<Graph> add_cross_entropy(Graph forward, const CrossEntropyLoss& loss) {
  PIPER_ASSIGN(const ValueId logits, find_logits(forward, loss));
  PIPER_ASSIGN(const ValueId labels, find_labels(forward, loss, logits));
  Builder build(forward);
  build.scope = "loss";
  build.name_prefix = "loss_";
  const Attrs ignore{{"ignore_index", loss.ignore_index}};
  const ValueId sum = build.op1("CrossEntropySum", {logits, labels}, ignore);
  ValueId count = build.op1("LabelCount", {labels}, ignore);
  const DType dtype = build.type(sum).dtype;
  if (dtype != DType::kF32) count = build.cast(count, dtype);
  forward.loss = build.div(sum, count);
  forward.outputs.push_back(forward.loss);
  return forward;
}

}  // namespace piper
