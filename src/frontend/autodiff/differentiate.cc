// Makes a training graph of a forward graph: checks, backward pass, update.
#include "backward.h"
#include "groups.h"
#include "piper/frontend/autodiff.h"
#include "update.h"

namespace piper {
namespace {

Status check_loss(const Graph& graph) {
  if (!graph.loss.valid()) {
    return fail("the model has no loss")
        .with_note(
            "help: name one in the strategy, such as loss: {cross_entropy: {logits: …, labels: "
            "…}}");
  }
  const Value& loss = graph.value(graph.loss);
  if (!loss.type.shape.empty() || !info(loss.type.dtype).is_float) {
    return fail("the loss '{}' must be a floating-point scalar, but is {}",
                quote_control(loss.name), to_string(loss.type));
  }
  return ok_status();
}

Status check_trainable(const Graph& graph) {
  for (const Param& param : graph.params) {
    if (!param.frozen) return ok_status();
  }
  if (graph.params.empty())
    return fail("the model has no parameters")
        .with_note(
            "help: 'include' under 'parameters' makes parameters of constants; piperc MODEL "
            "--describe lists them");
  return fail("every parameter is frozen: there is nothing to train");
}

Status check_schedule(const LrSchedule& schedule) {
  if (!schedule.cosine || schedule.total > schedule.warmup) return ok_status();
  return fail("the cosine over {} steps ends before the warm-up of {}", schedule.total,
              schedule.warmup);
}

}  // namespace

Result<Differentiated> differentiate(Graph forward, const TrainSpec& train) {
  PIPER_TRY(check_loss(forward));
  PIPER_TRY(check_trainable(forward));
  PIPER_TRY(check_schedule(train.schedule));
  PIPER_ASSIGN(const std::vector<const ParamGroup*> groups,
               groups_of(forward.params, train.groups));
  PIPER_ASSIGN(BackwardPass backward, append_backward(std::move(forward), train.loss_scale));
  Differentiated result;
  for (size_t i = 0; i < backward.graph.params.size(); ++i) {
    const Param& param = backward.graph.params[i];
    if (!param.frozen && backward.contributions[i].empty()) {
      result.without_gradient.push_back(param.name);
    }
  }
  size_t trained = 0;
  for (const auto& uses : backward.contributions) trained += uses.empty() ? 0 : 1;
  if (trained == 0) {
    return fail("the loss '{}' depends on no trained parameter",
                quote_control(backward.graph.value(backward.graph.loss).name));
  }
  Graph graph = append_update(std::move(backward), train, groups);
  graph.outputs.clear();  // what a step reports is loss and grad_norm
  result.graph = without_dead_nodes(std::move(graph), false);
  return result;
}

}  // namespace piper
