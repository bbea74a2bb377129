#include "optimizer.h"

#include <map>

#include "piper/ops.h"

namespace piper {
namespace {

// By parameter the group it belongs to: the first whose glob matches its scope or name.
Result<std::vector<size_t>> assign_groups(const Graph& graph,
                                          const std::vector<ParamGroup>& groups) {
  PIPER_CHECK(!groups.empty(), "a train section has at least its default group");
  std::vector<Glob> globs;
  for (const ParamGroup& group : groups) {
    PIPER_ASSIGN(Glob glob, Glob::parse(group.match, group.at));
    globs.push_back(std::move(glob));
  }
  std::vector<size_t> group_of(graph.params.size(), groups.size() - 1), count(groups.size());
  std::vector<std::string> scopes;
  for (size_t p = 0; p < graph.params.size(); ++p) {
    const Param& param = graph.params[p];
    scopes.push_back(param.scope);
    size_t g = 0;
    while (g + 1 < groups.size() && !globs[g].match(param.scope) && !globs[g].match(param.name))
      ++g;
    group_of[p] = g;
    ++count[g];
  }
  for (size_t g = 0; g + 1 < groups.size(); ++g)
    if (count[g] == 0)
      return fail(groups[g].at, "train: no parameter that an earlier group leaves matches '{}'{}",
                  groups[g].match, did_you_mean(groups[g].match, scopes));
  return group_of;
}

class Updater {
 public:
  Updater(Graph& graph, const TrainSpec& train) : graph_(graph), train_(train), build_(graph) {
    build_.pass = Pass::kU;
    build_.name_prefix = "update/";
  }

  Status run() {
    PIPER_ASSIGN(const auto group_of, assign_groups(graph_, train_.groups));
    graph_.step = add_state("step", {DType::kI64, {}});
    add_norm();
    for (size_t p = 0; p < graph_.params.size(); ++p)
      if (graph_.params[p].gradient.valid()) add_optimizer(p, train_.groups[group_of[p]]);
    build_.scope.clear();
    graph_.updates.push_back({graph_.step, build_.op1("NextStep", {graph_.step})});
    return ok_status();
  }

 private:
  ValueId add_state(std::string name, TensorType type) {
    Value value;
    value.name = std::move(name);
    value.type = std::move(type);
    value.kind = ValueKind::kState;
    return graph_.add_value(std::move(value));
  }

  void add_norm() {
    std::vector<ValueId> squares;
    for (const Param& param : std::vector<Param>(graph_.params)) {
      if (!param.gradient.valid()) continue;
      build_.scope = param.scope;
      squares.push_back(build_.op1("SumSquares", {param.gradient}));
    }
    build_.scope.clear();
    graph_.grad_norm = build_.op1("GlobalNorm", squares);
    if (!train_.clip_norm) return;
    Attrs attrs;
    attrs.set("max_norm", *train_.clip_norm);
    clip_ = build_.op1("ClipFactor", {graph_.grad_norm}, attrs);
  }

  ValueId learning_rate(double base) {
    const auto known = rates_.find(base);
    if (known != rates_.end()) return known->second;
    Attrs attrs;
    attrs.set("base", base);
    attrs.set("warmup", train_.schedule.warmup);
    attrs.set("cosine", int64_t{train_.schedule.cosine});
    attrs.set("total", train_.schedule.total);
    attrs.set("min_ratio", train_.schedule.min_ratio);
    const std::string scope = std::exchange(build_.scope, "");
    const ValueId rate = build_.op1("LearningRate", {graph_.step}, attrs);
    build_.scope = scope;
    return rates_[base] = rate;
  }

  void add_optimizer(size_t p, const ParamGroup& group) {
    const Param param = graph_.params[p];
    const TensorType type = graph_.value(param.value).type;
    const OptimizerSpec& spec = train_.optimizer;
    const ValueId rate = learning_rate(group.lr);
    build_.scope = param.scope;
    Attrs attrs;
    attrs.set("weight_decay", group.weight_decay);
    std::vector<ValueId> state;
    if (spec.kind == OptimizerKind::kSgd) {
      attrs.set("momentum", spec.momentum);
      attrs.set("dampening", spec.dampening);
      attrs.set("nesterov", int64_t{spec.nesterov});
      ValueId momentum;
      if (spec.momentum != 0) state.push_back(momentum = add_state(param.name + ".momentum", type));
      update(param.value, state,
             build_.op("Sgd", {param.value, param.gradient, momentum, rate, clip_, graph_.step},
                       attrs));
      return;
    }
    attrs.set("beta1", spec.beta1);
    attrs.set("beta2", spec.beta2);
    attrs.set("eps", spec.eps);
    attrs.set("decoupled", int64_t{spec.kind == OptimizerKind::kAdamW});
    state = {add_state(param.name + ".exp_avg", type), add_state(param.name + ".exp_avg_sq", type)};
    update(param.value, state,
           build_.op("AdamW",
                     {param.value, param.gradient, state[0], state[1], rate, clip_, graph_.step},
                     attrs));
  }

  void update(ValueId param, const std::vector<ValueId>& state, const std::vector<ValueId>& next) {
    graph_.updates.push_back({param, next[0]});
    for (size_t i = 0; i < state.size(); ++i) graph_.updates.push_back({state[i], next[i + 1]});
  }

  Graph& graph_;
  const TrainSpec& train_;
  Builder build_;
  ValueId clip_;
  std::map<double, ValueId> rates_;
};

}  // namespace

Status add_update(Graph& graph, const TrainSpec& train) { return Updater(graph, train).run(); }

}  // namespace piper
