// Imports a model as the strategy asks: inputs, loss, optimizer, frozen parameters.
#include "model.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "piper/frontend/autodiff.h"
#include "piper/frontend/patterns.h"
#include "piper/planner/outer_steps.h"

namespace piper {

namespace {

// Returns the samples of a step where a strategy says those of a microbatch.
int64_t samples_of_step(const Strategy& strategy) {
  int64_t samples = strategy.microbatch_size * strategy.batch_split()->into;
  for (const MeshAxis& axis : strategy.mesh)
    if (std::ranges::any_of(strategy.replicates,
                            [&](const Replicate& one) { return one.is_over(axis.name); }))
      samples *= axis.size;
  return samples * sites_of(strategy);
}

}  // namespace

ImportOptions import_options(const Strategy& strategy, const CompileOptions& from) {
  ImportOptions options;
  options.initial_values = from.initial_values;
  options.absent_values = from.absent_values;
  options.batch = from.stage ? strategy.rampup[*from.stage].global_batch : strategy.global_batch;
  options.batch_at = from.stage ? strategy.rampup[*from.stage].at : strategy.global_batch_at;
  if (strategy.global_batch == 0 && strategy.microbatch_size > 0 && strategy.batch_split()) {
    options.batch = samples_of_step(strategy);
    options.batch_at = strategy.microbatch_size_at;
  }
  if (options.batch > 0) options.batch /= sites_of(strategy);
  options.inputs = strategy.inputs;
  options.dims = strategy.dims;
  options.parameters = strategy.parameters;
  options.seed = strategy.seed;
  return options;
}

void explain_parameters(const Strategy& strategy, const Imported& imported, Explanations& out) {
  constexpr const char* kKinds[] = {"include", "exclude", "freeze", "thaw",
                                    "rename",  "tie",     "stored"};
  constexpr size_t kShown = 4;
  for (size_t r = 0; r < imported.matched.size(); ++r) {
    const auto& [names, elements] = imported.matched[r];
    const std::span shown(names.data(), std::min(names.size(), kShown));
    const char* what = names.size() == 1 ? "name" : "names";
    std::string text = fmt::format("{} {}", names.size(), what);
    if (elements > 0) text += fmt::format(", {} elements", elements);
    text += fmt::format(": {}{}", join(shown, ", "), names.size() > kShown ? ", …" : "");
    const ParamRule& rule = strategy.parameters[r];
    out.push_back({rule.at, kKinds[static_cast<int>(rule.kind)], {std::move(text)}});
  }
}

void warn_without_modules(const Strategy& strategy, const Graph& graph,
                          std::vector<std::string>& warnings) {
  std::vector<std::string> what;
  if (!strategy.recomputes.empty()) what.emplace_back("recomputes all of a stage at once");
  if (std::ranges::any_of(strategy.replicates, &Replicate::shard_parameters))
    what.emplace_back("gathers all parameters of a stage at once");
  const auto is_named = [](const Node& node) { return !node.scope.empty(); };
  if (what.empty() || std::ranges::any_of(graph.nodes, is_named)) return;
  warnings.push_back(fmt::format(
      "the model names no modules, so it is one layer to this strategy, which {}; models of "
      "tools/export.py name them",
      list_with_and(what)));
}

void explain_directions(const Dag& dag, const Strategy& strategy, Explanations& out) {
  constexpr size_t kShown = 3;
  struct Found {
    std::set<std::string> shared, by_all;  // parameters
    int64_t ranks = 1;
  };
  std::set<std::string_view> params;
  for (const Param& param : dag.graph.params) params.insert(param.name);
  const auto param_of = [&](ValueId of) {  // values of a direction begin with its parameter's name
    const std::string_view name = dag.graph.value(of).name;
    for (size_t dot = name.rfind('.'); dot != name.npos && dot > 0; dot = name.rfind('.', dot - 1))
      if (params.contains(name.substr(0, dot))) return std::string(name.substr(0, dot));
    return std::string(name);
  };
  std::map<size_t, Found> found;  // by entry of `replicate`
  for (const Part& exchange : dag.exchanges) {
    const Value& made = dag.graph.value(exchange.param);
    if (exchange.gather != Gather::kUpdate || exchange.over.empty()) continue;
    if (!exchange.spreads && !std::string_view(made.name).ends_with(".whole")) continue;
    const auto entry = std::ranges::find_if(strategy.replicates, [&](const Replicate& one) {
      return one.shard_optimizer &&
             one.is_over(dag.mesh[static_cast<size_t>(exchange.over.front())].name);
    });
    if (entry == strategy.replicates.end()) continue;
    Found& of = found[static_cast<size_t>(entry - strategy.replicates.begin())];
    if (!exchange.spreads) {
      of.by_all.insert(param_of(exchange.param));
      continue;
    }
    of.ranks = 1;
    for (const int32_t axis : exchange.over) of.ranks *= dag.mesh[static_cast<size_t>(axis)].size;
    const auto maker = [&](ValueId of) -> const Node& {
      return dag.graph.node(dag.graph.value(of).producer);
    };
    for (const ValueId row : maker(exchange.value).inputs)
      of.shared.insert(param_of(maker(row).inputs[0]));
  }
  for (const auto& [line, of] : found) {
    Explanation report{strategy.replicates[line].at, "replicate", {}};
    if (!of.shared.empty())
      report.lines.push_back(
          fmt::format("the optimizer looks at whole tensors: {} parameters are shared out among {} "
                      "ranks, each of which computes the directions of its own",
                      of.shared.size(), of.ranks));
    if (!of.by_all.empty()) {
      const std::vector<std::string> names(of.by_all.begin(), of.by_all.end());
      report.lines.push_back(fmt::format(
          "note: every rank computes the direction of {} parameter{}, {}{}: ranks share "
          "out only those of equal matrices that Muon updates together and 'shard' does "
          "not cut",
          names.size(), names.size() == 1 ? "" : "s",
          join(std::span(names).first(std::min(names.size(), kShown)), ", "),
          names.size() > kShown ? ", …" : ""));
    }
    out.push_back(std::move(report));
  }
}

void explain_training(const Strategy& strategy, const Graph& graph, Explanations& out) {
  const TrainSpec& train = strategy.train;
  const auto groups = groups_of(graph, train.groups);
  // The last group is that of all others. What no group matches differentiate() refuses.
  for (size_t g = 0; g + 1 < train.groups.size() && strategy.has_optimizer && groups; ++g) {
    const ParamGroup& group = train.groups[g];
    int64_t count = 0, elements = 0;
    for (size_t p = 0; p < graph.params.size(); ++p) {
      if ((*groups)[p] != &group) continue;
      ++count;
      elements += num_elements(graph.value(graph.params[p].value).type.shape);
    }
    out.push_back(
        {group.at,
         "groups",
         {fmt::format("{}: {} parameter{}, {} elements, lr {}, weight_decay {}", describe(group),
                      count, count == 1 ? "" : "s", elements, group.lr, group.weight_decay)}});
  }
  if (!train.loss_scale) return;
  const LossScale& scale = *train.loss_scale;
  std::string text = fmt::format("the loss is scaled by {}", scale.init);
  if (scale.dynamic)
    text += fmt::format(
        " at first, times {} after a step that is skipped, times {} after {} that are not",
        scale.backoff, scale.growth, scale.interval);
  out.push_back({scale.at, "loss_scale", {std::move(text)}});
}

namespace {

ParamGroup group_of(const TrainingUpdate& update, const SourceSpan& at) {
  ParamGroup group;
  group.at = at;
  group.lr = update.rate;
  group.weight_decay = update.norm_coefficient;
  OptimizerSpec& spec = group.optimizer.emplace();
  spec.count = update.count;
  const auto set = [&](std::initializer_list<std::pair<std::string, AttrValue>> settings) {
    for (const auto& [key, value] : settings) spec.settings.set(key, value);
  };
  switch (update.kind) {
    case TrainingUpdate::Kind::kAdagrad:
      spec.name = "adagrad";
      set({{"lr_decay", update.decay_factor},
           {"initial_accumulator_value", update.accumulator},
           {"eps", update.epsilon}});
      break;
    case TrainingUpdate::Kind::kAdam:
      spec.name = "onnx_adam";
      set({{"beta1", update.alpha},
           {"beta2", update.beta},
           {"eps", update.epsilon},
           {"weight_decay_after", update.norm_coefficient_post}});
      break;
    case TrainingUpdate::Kind::kMomentum:
      set({{"momentum", update.alpha},
           {"dampening", 1 - update.beta},
           {"nesterov", int64_t{update.nesterov}}});
      break;
  }
  return group;
}

}  // namespace

Status use_training(const Imported& imported, Strategy& strategy, Explanations& out) {
  if (!imported.training) return ok_status();
  const std::vector<TrainingUpdate>& updates = imported.training->updates;
  TrainSpec& train = strategy.train;
  const SourceSpan at = train.groups.back().at;  // of the defaults
  if (strategy.has_optimizer) {
    out.push_back({at, "train", {"its optimizer replaces those of the model's training_info"}});
    return ok_status();
  }
  if (train.groups.size() > 1)
    return fail(train.groups[0].at, "groups without an optimizer: the model has its own")
        .with_note("help: name an optimizer under 'train', or leave out the groups");
  std::vector<ParamGroup> groups;
  for (const TrainingUpdate& update : updates) {
    ParamGroup group = group_of(update, at);
    group.rate = train.groups.back().rate;
    group.rate_at = train.groups.back().rate_at;
    auto same = std::find_if(groups.begin(), groups.end(), [&](const ParamGroup& known) {
      return known.lr == group.lr && known.weight_decay == group.weight_decay &&
             known.optimizer == group.optimizer;
    });
    if (same == groups.end()) same = groups.insert(groups.end(), std::move(group));
    same->names.push_back(update.parameter);
  }
  out.push_back({at,
                 "train",
                 {fmt::format("the model's training_info updates {} parameters in {} "
                              "group{}",
                              updates.size(), groups.size(), groups.size() == 1 ? "" : "s")}});
  groups.push_back(std::move(train.groups.back()));
  train.groups = std::move(groups);
  return ok_status();
}

namespace {

// Copies the model for sites that all read the outer parameters, as what is frozen.
Graph copy_with_outer_parameters(Graph forward, int64_t sites, const std::string& over) {
  std::vector<bool> frozen;
  for (Param& param : forward.params) frozen.push_back(std::exchange(param.frozen, true));
  forward.updates.clear();
  forward = copy_for_sites(forward, sites, over);
  for (size_t p = 0; p < frozen.size(); ++p) forward.params[p].frozen = frozen[p];
  return forward;
}

}  // namespace

Result<Graph> evaluation_step(Graph forward, const Strategy& strategy, Explanations& out) {
  PIPER_ASSIGN(forward, evaluated(std::move(forward)));
  const std::string by =
      forward.weight.valid()
          ? fmt::format("'{}'", quote_control(forward.value(forward.weight).name))
          : "their samples";
  out.push_back(
      {SourceSpan{strategy.path}, "evaluation", {"a batch counts in the loss of a set by " + by}});
  TrainSpec train = strategy.train;
  train.sites = sites_of(strategy);
  if (!strategy.local_steps.empty())
    forward =
        copy_with_outer_parameters(std::move(forward), train.sites, strategy.local_steps[0].over);
  PIPER_ASSIGN(Differentiated step, differentiate(std::move(forward), train));
  PIPER_ASSIGN(Recognised found, recognise(std::move(step.graph)));
  return accumulate_in_halves(std::move(found.graph), strategy.precisions);
}

Result<Graph> with_loss(Graph graph, const Strategy& strategy) {
  if (!strategy.loss.empty()) return add_loss(std::move(graph), strategy.loss);
  if (graph.loss.valid()) return graph;
  std::vector<std::string> names;
  for (ValueId output : graph.outputs) names.push_back(graph.value(output).name);
  return fail(SourceSpan{strategy.path},
              "the model has no scalar output to minimise, and the strategy names no loss")
      .with_note("outputs of the model: " + join(names, ", "))
      .with_note(
          "help: loss: OUTPUT, loss: {mean: OUTPUT}, loss: {mse: {output: NAME, target: target}}, "
          "loss: {cross_entropy: {logits: NAME, labels: labels}}, …");
}

}  // namespace piper
