// A strategy's training as ONNX's own training form.
#include <algorithm>
#include <charconv>

#include "model.h"
#include "piper/ir/optimizers.h"

namespace piper {
namespace {

// Attributes of ONNX are floats: a number that would be read back as another is refused.
Status check_float(std::string_view what, double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, static_cast<float>(value)).ptr;
  double back = 0;
  std::from_chars(text, end, back);
  if (back == value) return ok_status();
  return fail("{} {} has more digits than an attribute of ONNX holds: {} would be read", what,
              value, back);
}

// Returns the update that a node of the U pass makes.
Result<TrainingUpdate> update_of(const Graph& graph, const Param& param, const Node& node) {
  using Kind = TrainingUpdate::Kind;
  const Attrs& attrs = node.attrs;
  TrainingUpdate out;
  out.parameter = param.name;
  out.count = attrs.integer("count");
  out.norm_coefficient = attrs.real("weight_decay");
  out.epsilon = attrs.real("eps", out.epsilon);
  if (node.op == "Sgd") {
    out.kind = Kind::kMomentum;
    out.alpha = attrs.real("momentum");
    out.beta = 1 - attrs.real("dampening");
    out.nesterov = attrs.integer("nesterov") != 0;
  } else if (node.op == "OnnxAdam") {
    out.kind = Kind::kAdam;
    out.alpha = attrs.real("beta1");
    out.beta = attrs.real("beta2");
    out.norm_coefficient_post = attrs.real("weight_decay_after");
  } else if (node.op == "Adagrad") {
    out.kind = Kind::kAdagrad;
    out.decay_factor = attrs.real("lr_decay");
    out.accumulator = graph.value(node.inputs[2]).fill;
  } else {
    return fail("{} is no optimizer of ai.onnx.preview.training",
                node.op == "AdamW" ? "PyTorch's Adam" : node.op)
        .with_note("help: sgd, adagrad and onnx_adam are");
  }
  if (attrs.find("ema")) return fail("ema cannot be said in training_info");
  const size_t rate = 2 + count_states(*find_op(node.op), attrs), skip = rate + 3;
  if (node.inputs[rate + 1].valid()) return fail("clip_norm cannot be said in training_info");
  if (skip < node.inputs.size()) return fail("skip_nonfinite cannot be said in training_info");
  const Node& schedule = graph.node(graph.value(node.inputs[rate]).producer);
  if (schedule.attrs.text("rate") != "lr")
    return fail("a schedule of the learning rate cannot be said in training_info");
  out.rate = schedule.attrs.real("base");
  for (const auto& [what, value] : {std::pair("weight_decay", out.norm_coefficient),
                                    {"eps", out.epsilon},
                                    {"momentum or beta", out.alpha},
                                    {"dampening or beta", out.beta},
                                    {"lr_decay", out.decay_factor},
                                    {"weight_decay_after", out.norm_coefficient_post}})
    PIPER_TRY(check_float(what, value));
  return out;
}

Result<TrainingInfo> updates_of(const Graph& step) {
  TrainingInfo out;
  for (const Param& param : step.params) {
    const auto update = std::find_if(step.updates.begin(), step.updates.end(),
                                     [&](const StateUpdate& u) { return u.state == param.value; });
    if (update == step.updates.end() || !param.gradient.valid()) continue;
    PIPER_ASSIGN(TrainingUpdate made,
                 update_of(step, param, step.node(step.value(update->next).producer)));
    out.updates.push_back(std::move(made));
  }
  return out;
}

// Exports the loss: an output of the model as it is, or a mean cross-entropy over classes that are
// last.
Status export_loss(const Strategy& strategy, const Graph& graph, TrainingExport& out) {
  const LossTerm term = strategy.loss.empty() ? LossTerm{} : strategy.loss[0];
  const bool plain = strategy.loss.size() < 2 && term.weight == 1 && term.dim == -1 &&
                     term.label_smoothing == 0 && term.reduction == LossTerm::Reduction::kMean;
  if (plain && term.kind == LossTerm::Kind::kCrossEntropy)
    out.cross_entropy = CrossEntropyExport{term.output, term.target, term.ignore_index};
  else if (plain && term.kind == LossTerm::Kind::kOutput)
    out.output = term.output.empty() ? graph.value(graph.loss).name : term.output;
  else
    return fail(strategy.loss_at, "this loss cannot be written into training_info")
        .with_note("help: an output of the model and a plain cross_entropy can");
  return ok_status();
}

Status check_sayable(const Strategy& strategy) {
  if (!strategy.precisions.empty())
    return fail(strategy.precisions[0].at, "precision cannot be said in training_info");
  if (!strategy.weight_versions.empty())
    return fail(strategy.weight_versions[0].at, "weight_versions cannot be said in training_info");
  return ok_status();
}

}  // namespace

Status emit_onnx_training(const CompileOptions& options, const std::string& path) {
  PIPER_ASSIGN(Strategy strategy,
               parse_strategy(options.strategy, options.defines, options.library));
  PIPER_TRY(check_sayable(strategy));
  PIPER_ASSIGN(Imported imported, import_onnx(options.model, import_options(strategy, options)));
  Explanations ignored;
  PIPER_TRY(use_training(imported, strategy, ignored));
  PIPER_ASSIGN(Graph graph, with_loss(std::move(imported.graph), strategy));
  TrainingExport out;
  PIPER_TRY(export_loss(strategy, graph, out));
  PIPER_ASSIGN(const Differentiated step, differentiate(std::move(graph), strategy.train));
  Result<TrainingInfo> updates = updates_of(step.graph);
  if (!updates) {
    if (updates.error().at.file.empty()) updates.error().at = strategy.train.groups.back().at;
    return std::move(updates).error();
  }
  out.training = *std::move(updates);
  return write_onnx_training(options.model, import_options(strategy, options), out, path);
}

}  // namespace piper
