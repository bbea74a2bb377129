// Makes a training graph of a forward graph: checks, backward pass, update.
#include <algorithm>
#include <cmath>

#include "backward.h"
#include "piper/frontend/autodiff.h"
#include "piper/ir/optimizers.h"
#include "piper/ir/rate.h"
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

// Checks that optimizers of matrices have no vectors, and that states are no narrower than is done.
Status check_types(const Graph& graph, const TrainSpec& train,
                   const std::vector<const ParamGroup*>& groups) {
  const std::vector<bool> parts = trained_parts(graph);
  for (size_t p = 0; p < graph.params.size(); ++p) {
    const Param& param = graph.params[p];
    if (param.frozen) continue;
    const OptimizerDef& def = find_optimizer(optimizer_of(*groups[p], train).name);
    const TensorType& type = graph.value(param.value).type;
    if ((def.direction || def.of_shape) && parts[p])
      return fail(groups[p]->at, "not supported: {} of a part of a matrix, '{}'", def.name,
                  quote_control(param.name))
          .with_note(
              "a 'split' whose parts 'place' puts on devices cuts it, and this optimizer "
              "works on whole matrices")
          .with_note("help: groups: [{of: [embeddings, heads], optimizer: {adamw: {lr: 3e-4}}}]");
    if (std::ranges::count(optimizer_of(*groups[p], train).states, DType::kBF16) > 0 &&
        type.dtype == DType::kF64)
      return fail(groups[p]->at, "states in bf16 of '{}', which is {}", quote_control(param.name),
                  to_string(type))
          .with_note("help: only what is trained in f32 or 16 bits has them");
    if (type.shape.size() >= def.least_rank) continue;
    return fail(groups[p]->at, "{} updates matrices, and '{}' is {}", def.name,
                quote_control(param.name), to_string(type))
        .with_note(
            "help: give what is no matrix another optimizer: groups: [{of: [vectors, embeddings, "
            "heads], "
            "optimizer: {adamw: {lr: 3e-4}}}]");
  }
  return ok_status();
}

// Returns the steps whose rates are tried: the first ones, those around borders, powers of 2.
std::vector<int64_t> tried_steps(const Rate& rate) {
  constexpr int64_t kFirst = 1024;
  std::vector<int64_t> steps;
  for (int64_t step = 0; step < kFirst; ++step) steps.push_back(step);
  for (int64_t step = kFirst; step < int64_t{1} << 40; step *= 2) steps.push_back(step);
  for (const int64_t border : rate.borders())
    for (const int64_t step : {border - 1, border, border + 1})
      if (step >= 0) steps.push_back(step);
  return steps;
}

Status check_rates(const std::vector<ParamGroup>& groups, int64_t tokens) {
  for (const ParamGroup& group : groups) {
    PIPER_ASSIGN(Rate rate, Rate::parse(group.rate));
    rate = rate.with_tokens(tokens);
    for (const int64_t step : tried_steps(rate)) {
      const double value = rate.at(group.lr, step);
      if (std::isfinite(value) && value >= 0) continue;
      return fail(group.rate_at, "the learning rate of step {} is {}", step, value)
          .with_note("help: step counts from 0; max(…, 0) keeps a rate from below 0");
    }
  }
  return ok_status();
}

}  // namespace

Result<Differentiated> differentiate(Graph forward, const TrainSpec& train) {
  PIPER_TRY(check_loss(forward));
  PIPER_TRY(check_trainable(forward));
  PIPER_TRY(check_rates(train.groups, tokens_of_step(forward) * train.sites));
  PIPER_ASSIGN(const std::vector<const ParamGroup*> groups, groups_of(forward, train.groups));
  PIPER_TRY(check_types(forward, train, groups));
  const std::vector<bool> stacks = stacks_of(forward);
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
  Graph graph = append_update(std::move(backward), train, groups, stacks);
  graph.outputs.clear();  // what a step reports is loss and grad_norm
  result.graph = without_dead_nodes(std::move(graph), false);
  return result;
}

}  // namespace piper
