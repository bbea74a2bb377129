// Appends clipping, loss scale, learning rate and the optimizer's update of each parameter.
#include "update.h"

#include <algorithm>
#include <map>

#include "piper/ir/ops.h"
#include "piper/ir/optimizers.h"
#include "piper/ir/rate.h"
#include "piper/plan/sites.h"

namespace piper {
namespace {

class Update {
 public:
  Update(Graph& graph, const TrainSpec& train, ValueId loss_scale)
      : graph_(graph), train_(train), loss_scale_(loss_scale) {}

  void sum_loss() {
    if (!graph_.loss.valid()) return;
    if (train_.sites > 1) return sum_losses();
    const DType dtype = graph_.value(graph_.loss).type.dtype;
    if (info(dtype).bytes < 4) {  // the last op of the forward
      graph_.loss = emit("Cast", "loss_f32", "", {graph_.loss}, {{"to", "f32"}})[0];
      Node& cast = graph_.node(graph_.value(graph_.loss).producer);
      const Node& last = graph_.node(graph_.value(cast.inputs[0]).producer);
      cast.pass = Pass::kF, cast.scope = last.scope, cast.tags = last.tags;
    }
    graph_.loss = emit("StepSum", "step_loss", "", {graph_.loss})[0];
    if (graph_.weight.valid())
      graph_.weight = emit("StepSum", "step_weight", "", {graph_.weight})[0];
  }

  void sum_gradient(Param& param, const std::vector<ParamContribution>& uses) {
    std::vector<ValueId> values;
    for (const ParamContribution& use : uses) values.push_back(use.value);
    param.gradient = emit("StepSum", param.name + ".grad", param.scope, std::move(values))[0];
  }

  void norm_and_clip() {
    std::vector<ValueId> squares;
    std::vector<std::vector<ValueId>> of_sites(static_cast<size_t>(train_.sites));
    for (const Param& param : graph_.params) {
      if (!param.gradient.valid()) continue;
      squares.push_back(
          emit("SumSquares", param.name + ".grad_squares", param.scope, {param.gradient})[0]);
      of_sites[site(param)].push_back(squares.back());
    }
    graph_.grad_norm = emit("GlobalNorm", "grad_norm", "", std::move(squares))[0];
    if (skips_nonfinite(train_)) skip_ = emit("NotFinite", "skipped", "", {graph_.grad_norm})[0];
    ValueId scale;
    if (loss_scale_.valid()) {
      scale = emit("LossScale", "step_loss_scale", "", {loss_scale_})[0];
      graph_.grad_norm = unscaled(graph_.grad_norm, scale, "");
    }
    clips_.resize(of_sites.size());
    if (!train_.clip_norm) {
      if (scale.valid()) std::ranges::fill(clips_, emit("Reciprocal", "unscale", "", {scale})[0]);
      return;
    }
    if (of_sites.size() == 1) return void(clips_[0] = clip_factor(graph_.grad_norm, scale, ""));
    for (size_t k = 0; k < of_sites.size(); ++k) {
      const std::string prefix = fmt::format("site.{}.", k);
      if (of_sites[k].empty()) continue;  // in an evaluation sites have no parameters
      ValueId norm = emit("GlobalNorm", prefix + "grad_norm", "", std::move(of_sites[k]))[0];
      if (scale.valid()) norm = unscaled(norm, scale, prefix);
      clips_[k] = clip_factor(norm, scale, prefix);
    }
  }

  // A step that is skipped is no update, but random ops draw again in it.
  void add_step() {
    const bool drawn = graph_.step.valid();
    if (!drawn) graph_.step = add_state("step", {DType::kI64, {}});
    count_ = drawn && skip_.valid() ? add_state("updates", {DType::kI64, {}}) : graph_.step;
  }

  void optimize(const Param& param, const ParamGroup& group, bool is_stack) {
    const ValueId rate = learning_rate(group);
    const TensorType type = graph_.value(param.gradient).type;
    const OptimizerSpec& spec = optimizer_of(group, train_);
    const OptimizerDef& def = find_optimizer(spec.name);
    const Attrs settings = with_defaults(def, spec.settings);
    std::vector<ValueId> inputs{param.value, param.gradient}, states;
    if (def.direction) inputs[1] = direction(param, def, settings, rate, is_stack);
    const bool has_states = def.states_need.empty() || settings.real(def.states_need) != 0;
    for (size_t s = 0; s < def.states.size(); ++s) {
      inputs.emplace_back();
      if (!has_states) continue;
      TensorType kept = type;
      if (!spec.states.empty()) kept.dtype = spec.states[std::min(s, spec.states.size() - 1)];
      const std::string name = fmt::format("{}.{}", param.name, def.states[s]);
      inputs.back() = states.emplace_back(add_state(name, std::move(kept)));
      for (const OptimizerSetting& setting : def.settings)
        if (setting.fills) graph_.value(states.back()).fill = settings.real(setting.key);
    }
    if (train_.ema) inputs.push_back(states.emplace_back(add_state(average_of(param.name), type)));
    inputs.insert(inputs.end(), {rate, clips_[site(param)], count_});
    if (skip_.valid()) inputs.push_back(skip_);
    Attrs attrs = attrs_of(def, settings, spec.count, group.weight_decay);
    if (def.of_shape) {
      const Attrs more = def.of_shape(settings, graph_.value(param.value).type.shape, is_stack);
      for (const auto& [name, value] : more.items()) attrs.set(name, value);
    }
    const std::vector<ValueId> next =
        emit(def.op, param.name + ".next", param.scope, std::move(inputs), std::move(attrs));
    graph_.updates.push_back({param.value, next[0]});
    for (size_t i = 0; i < states.size(); ++i) graph_.updates.push_back({states[i], next[i + 1]});
  }

  void next_step() {
    std::vector<ValueId> inputs{count_};
    if (skip_.valid()) inputs.push_back(skip_);
    const std::string name = graph_.value(count_).name + ".next";
    graph_.updates.push_back({count_, emit("NextStep", name, "", inputs)[0]});
    if (count_ != graph_.step)
      graph_.updates.push_back({graph_.step, emit("NextStep", "step.next", "", {graph_.step})[0]});
  }

  void next_loss_scale() {
    if (!loss_scale_.valid() || !train_.loss_scale->dynamic) return;
    const LossScale& scale = *train_.loss_scale;
    const ValueId good = add_state("loss_scale.good", {DType::kI64, {}});
    const auto next =
        emit("NextLossScale", "loss_scale.next", "", {loss_scale_, good, skip_},
             {{"growth", scale.growth}, {"backoff", scale.backoff}, {"interval", scale.interval}});
    graph_.updates.push_back({loss_scale_, next[0]});
    graph_.updates.push_back({good, next[1]});
  }

 private:
  size_t site(const Param& param) const {
    const auto own = train_.sites > 1 ? site_of(param.name) : std::nullopt;
    return own ? static_cast<size_t>(own->site) : 0;
  }
  ValueId unscaled(ValueId norm, ValueId scale, const std::string& prefix) {
    return emit("Div", prefix + "grad_norm_unscaled", "", {norm, scale})[0];
  }
  // Returns the factor of gradients that have this norm once they are scaled back.
  ValueId clip_factor(ValueId norm, ValueId scale, const std::string& prefix) {
    const ValueId clip = emit("ClipFactor", prefix + "clip_factor", "", {norm},
                              {{"max_norm", *train_.clip_norm}})[0];
    return scale.valid() ? emit("Div", prefix + "unscale", "", {clip, scale})[0] : clip;
  }
  // Returns by site what a sum over the sites adds up.
  std::vector<ValueId> at_sites(ValueId sum) const {
    std::vector<ValueId> terms;
    for (int64_t site = train_.sites; site > 1; --site) {
      const Node& add = graph_.node(graph_.value(sum).producer);
      terms.push_back(add.inputs[1]);
      sum = add.inputs[0];
    }
    terms.push_back(sum);
    std::reverse(terms.begin(), terms.end());
    return terms;
  }
  // Sums the mean over the sites, where each computes its own share: by the weights of their
  // samples, if an evaluation has such.
  void sum_losses() {
    std::vector<ValueId> losses = at_sites(graph_.loss), weights;
    if (graph_.weight.valid()) weights = at_sites(graph_.weight);
    for (size_t k = 0; k < losses.size(); ++k) {
      ValueId& loss = losses[k];
      Builder build(graph_);
      build.tags = graph_.node(graph_.value(loss).producer).tags;
      build.scope = graph_.node(graph_.value(loss).producer).scope;
      if (info(build.type(loss).dtype).bytes < 4) loss = build.cast(loss, DType::kF32);
      const DType type = build.type(loss).dtype;
      const ValueId share = weights.empty()
                                ? build.scalar(1 / static_cast<double>(train_.sites), type)
                                : build.reshape(build.cast(weights[k], type), {});
      loss = build.mul(loss, share);
    }
    graph_.loss = emit("StepSum", "step_loss", "", std::move(losses))[0];
    if (weights.empty()) return;
    graph_.weight = emit("StepSum", "step_weight", "", std::move(weights))[0];
    const auto exact = [&](ValueId sum, const char* name) {
      return emit("Cast", name, "", {sum}, {{"to", "f64"}})[0];
    };
    graph_.loss =
        emit("Div", "step_mean", "",
             {exact(graph_.loss, "step_loss_f64"), exact(graph_.weight, "step_weight_f64")})[0];
  }
  std::vector<ValueId> emit(std::string_view op, std::string name, std::string scope,
                            std::vector<ValueId> inputs, Attrs attrs = {}) {
    Node node;
    node.op = op;
    node.name = std::move(name);
    node.scope = std::move(scope);
    node.attrs = std::move(attrs);
    node.inputs = std::move(inputs);
    node.pass = Pass::kU;
    const Result<std::vector<TensorType>> types = find_op(op)->types(use_of(graph_, node));
    PIPER_CHECK(types.ok(), "{} '{}': {}", op, node.name, types.error().message);
    return graph_.node(graph_.add_node(std::move(node), *types)).outputs;
  }

  ValueId add_state(std::string name, TensorType type) {
    Value value;
    value.name = std::move(name);
    value.type = std::move(type);
    value.kind = ValueKind::kState;
    return graph_.add_value(std::move(value));
  }

  ValueId direction(const Param& param, const OptimizerDef& def, const Attrs& settings,
                    ValueId rate, bool is_stack) {
    Builder build(graph_);
    build.pass = Pass::kU;
    build.scope = param.scope;
    build.name_prefix = param.name + ".direction/";
    const auto state = [&](std::string_view name, TensorType type) {
      return add_state(fmt::format("{}.{}", param.name, name), std::move(type));
    };
    const auto set = [&](ValueId of, ValueId next) {
      graph_.updates.push_back({of, next, param.value});
    };
    return def.direction(build, {param.value, param.gradient, rate, clips_[site(param)], count_,
                                 skip_, settings, is_stack, state, set});
  }

  ValueId learning_rate(const ParamGroup& group) {
    ValueId& known = rates_[{group.lr, group.rate}];
    if (known.valid()) return known;
    const Result<Rate> rate = Rate::parse(group.rate);
    PIPER_CHECK(rate.ok(), "'{}' was read as a formula", group.rate);
    const std::string words = rate->with_tokens(tokens_of_step(graph_) * train_.sites).words();
    known = emit("LearningRate", "learning_rate", "", {count_},
                 {{"base", group.lr}, {"rate", words}})[0];
    return known;
  }

  Attrs attrs_of(const OptimizerDef& def, const Attrs& settings, int64_t count,
                 double weight_decay) const {
    Attrs attrs = def.fixed;
    for (const OptimizerSetting& setting : def.settings)
      if (setting.key != "lr" && !setting.fills)
        attrs.set(std::string(setting.key), *settings.find(setting.key));
    attrs.set("weight_decay", weight_decay);
    if (count != 0) attrs.set("count", count);
    if (train_.ema) attrs.set("ema", *train_.ema);
    return attrs;
  }

  Graph& graph_;
  const TrainSpec& train_;
  const ValueId loss_scale_;
  ValueId skip_, count_;        // whether, and how often, an update is done
  std::vector<ValueId> clips_;  // by site: the factor of its gradients
  std::map<std::pair<double, std::string>, ValueId> rates_;  // by lr and formula
};

}  // namespace

bool skips_nonfinite(const TrainSpec& train) {
  return train.skip_nonfinite || train.clip_norm || train.loss_scale;
}

Graph append_update(BackwardPass backward, const TrainSpec& train,
                    const std::vector<const ParamGroup*>& groups, const std::vector<bool>& stacks) {
  Graph graph = std::move(backward.graph);
  Update update(graph, train, backward.loss_scale);
  update.sum_loss();
  for (size_t i = 0; i < graph.params.size(); ++i) {
    if (!backward.contributions[i].empty()) {
      update.sum_gradient(graph.params[i], backward.contributions[i]);
    }
  }
  update.norm_and_clip();
  update.add_step();
  for (size_t i = 0; i < graph.params.size(); ++i) {
    if (graph.params[i].gradient.valid())
      update.optimize(Param(graph.params[i]), *groups[i], stacks[i]);
  }
  update.next_step();
  update.next_loss_scale();
  return graph;
}

}  // namespace piper
