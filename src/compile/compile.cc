#include "piper/compile.h"

#include <algorithm>

#include "piper/autodiff.h"
#include "piper/lower.h"
#include "piper/patterns.h"
#include "piper/sharding.h"
#include "piper/verify.h"
#include "plan_set.h"
#include "steps.h"

namespace piper {
namespace {

constexpr std::string_view kSteps[] = {"import",   "patterns", "annotate", "autodiff",
                                       "sharding", "dag",      "schedule", "plan"};

ImportOptions import_options(const Strategy& strategy) {
  ImportOptions options;
  options.batch = strategy.global_batch;
  options.batch_at = strategy.global_batch_at;
  options.inputs = strategy.inputs;
  options.dims = strategy.dims;
  options.parameters = strategy.parameters;
  return options;
}

void explain_parameters(const Strategy& strategy, const Imported& imported, Explanations& out) {
  constexpr const char* kKinds[] = {"include", "exclude", "freeze", "rename", "tie"};
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

ParamGroup group_of(const TrainingUpdate& update, const SourceSpan& at) {
  ParamGroup group;
  group.at = at;
  group.lr = update.rate;
  group.weight_decay = update.norm_coefficient;
  OptimizerSpec& spec = group.optimizer.emplace();
  spec.count = update.count;
  spec.eps = update.epsilon;
  switch (update.kind) {
    case TrainingUpdate::Kind::kAdagrad:
      spec.kind = OptimizerKind::kAdagrad;
      spec.lr_decay = update.decay_factor;
      spec.accumulator = update.accumulator;
      break;
    case TrainingUpdate::Kind::kAdam:
      spec.kind = OptimizerKind::kOnnxAdam;
      spec.beta1 = update.alpha;
      spec.beta2 = update.beta;
      spec.weight_decay_after = update.norm_coefficient_post;
      break;
    case TrainingUpdate::Kind::kMomentum:
      spec.momentum = update.alpha;
      spec.dampening = 1 - update.beta;
      spec.nesterov = update.nesterov;
      break;
  }
  return group;
}

// The optimizers of the model's training_info, unless the strategy has one.
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

// The loss that the strategy names, or the file's sole scalar.
Result<Graph> with_loss(Graph graph, const Strategy& strategy) {
  if (const auto* loss = std::get_if<CrossEntropyLoss>(&strategy.loss))
    return add_cross_entropy(std::move(graph), *loss);
  std::vector<std::string> names;
  for (ValueId output : graph.outputs) names.push_back(graph.value(output).name);
  if (const auto* name = std::get_if<std::string>(&strategy.loss)) {
    const auto it = std::find(names.begin(), names.end(), *name);
    if (it == names.end())
      return fail(strategy.loss_at, "loss: the model has no output '{}'{}", *name,
                  did_you_mean(*name, names));
    graph.loss = graph.outputs[static_cast<size_t>(it - names.begin())];
  }
  if (!graph.loss.valid())
    return fail(SourceSpan{strategy.path},
                "the model has no scalar output to minimise, and the strategy names no loss")
        .with_note("outputs of the model: " + join(names, ", "))
        .with_note("help: loss: {cross_entropy: {logits: NAME, labels: labels}}, or loss: OUTPUT");
  const TensorType& type = graph.value(graph.loss).type;
  if (num_elements(type.shape) != 1 || !info(type.dtype).is_float)
    return fail(strategy.loss_at, "loss: '{}' is {}, not a scalar of floats",
                graph.value(graph.loss).name, to_string(type));
  return graph;
}

Result<Graph> find_patterns(Graph graph, Steps& steps, Compiled& compiled) {
  PIPER_ASSIGN(Recognised found, steps.run(
                                     "patterns", [&] { return recognise(std::move(graph)); },
                                     [](const Recognised& r) { return print_graph(r.graph); }));
  for (const auto& [op, count] : found.counts) compiled.patterns.emplace_back(op, count);
  return std::move(found.graph);
}

Variables scope_of(const Strategy& strategy) {
  Variables variables = strategy.params;
  for (const MeshAxis& axis : strategy.mesh) variables.emplace_back(axis.name, axis.size);
  return variables;
}

// Tags that tell regions apart: all that some place or order directive names.
std::vector<std::string> region_tags(const Strategy& strategy, const Graph& graph) {
  std::vector<std::string> tags;
  for (const Place& place : strategy.places)
    for (const Condition& condition : place.where)
      if (condition.tag != "pass" && condition.tag != "mb" && graph.tag_index(condition.tag) >= 0 &&
          std::find(tags.begin(), tags.end(), condition.tag) == tags.end())
        tags.push_back(condition.tag);
  return tags;
}

Result<Graph> annotated(Graph graph, const Strategy& strategy, Explanations& explain) {
  PIPER_ASSIGN(graph,
               apply_annotate(std::move(graph), strategy.annotate, scope_of(strategy), explain));
  const std::vector<std::string> tags = region_tags(strategy, graph);
  return clone_data_ops(std::move(graph), tags, strategy.annotate.at, explain);
}

Result<bool> splits_backward(const Strategy& strategy) {
  for (const Order& order : strategy.orders) {
    PIPER_ASSIGN(const auto passes, passes_named(order));
    for (const std::string& pass : passes)
      if (pass == "BI" || pass == "BW") return true;
  }
  return false;
}

// The scheduler knows tasks, not the strategy: its errors point at the order directive.
Result<Schedule> located(Result<Schedule> schedule, const Strategy& strategy) {
  if (!schedule && !strategy.orders.empty()) schedule.error().at = strategy.orders.front().at;
  return schedule;
}

// The plan that the strategy asks for, or one of the two oracles: one device that plays all
// replicas, with the same cut of the batch or with none.
enum class Target { kStrategy, kSingle, kUncut };

Result<PlanSet> make_plans(const Graph& step, const Strategy& strategy, Cut cut, Target target,
                           const LowerOptions& options, Steps& steps, Compiled& compiled) {
  const bool oracle = target != Target::kStrategy;
  Explanations ignored;
  Explanations& explain = oracle ? ignored : compiled.explanations;
  const Variables variables = scope_of(strategy);
  DagSpec spec;
  if (target == Target::kUncut) cut.microbatches = cut.replicas = 1;
  if (!oracle) spec.mesh = cut.mesh;
  if (!oracle) spec.region_tags = region_tags(strategy, step);
  spec.microbatches = cut.microbatches;
  spec.replicas = cut.replicas;
  spec.sequential_replicas = oracle;
  if (!oracle) {
    PIPER_ASSIGN(spec.split_backward, splits_backward(strategy));
  }
  PIPER_ASSIGN(Graph graph,
               steps.run(
                   "sharding",
                   [&] {
                     return shard_batch(step, {cut.replicas, cut.microbatches, cut.at});
                   },
                   print_graph));
  PIPER_ASSIGN(Dag dag, make_dag(std::move(graph), spec));
  if (!oracle) {
    PIPER_ASSIGN(dag, apply_place(std::move(dag), strategy.places, variables, explain));
    PIPER_ASSIGN(dag, apply_replicate(std::move(dag), strategy.replicates, explain));
  }
  PIPER_ASSIGN(dag, steps.run(
                        "dag", [&] { return expand_tasks(std::move(dag)); }, print_dag));
  std::vector<std::vector<TaskId>> order;
  if (!oracle) {
    PIPER_ASSIGN(order, apply_order(dag, strategy.orders, variables, explain));
  }
  PIPER_ASSIGN(const Schedule schedule,
               steps.run(
                   "schedule", [&] { return located(make_schedule(dag, order), strategy); },
                   [&](const Schedule& s) { return print_schedule(dag, s); }));
  PIPER_ASSIGN(Lowered lowered, steps.run(
                                    "plan", [&] { return lower(dag, schedule, options); },
                                    [](const Lowered& l) {
                                      std::string text;
                                      for (const RoleProgram& role : l.roles)
                                        text += print_plan(role);
                                      return text;
                                    }));
  if (!oracle) compiled.fused = lowered.fused;
  if (!oracle) compiled.roles = summarise(dag, lowered);
  PlanSet set = make_plan_set(dag, std::move(lowered));
  set.manifest.seed = strategy.seed;
  PIPER_TRY(steps.run(
      "verify", [&] { return check_plans(set); }, [](const Unit&) { return std::string(); }));
  return set;
}

}  // namespace

std::span<const std::string_view> dump_steps() { return kSteps; }

Result<Compiled> compile(const CompileOptions& options) {
  Compiled compiled;
  Steps steps(options, compiled);
  const auto no_text = [](const auto&) { return std::string(); };
  PIPER_ASSIGN(
      Strategy strategy,
      steps.run(
          "strategy", [&] { return parse_strategy(options.strategy, options.defines); }, no_text));
  PIPER_ASSIGN(Imported imported,
               steps.run(
                   "import", [&] { return import_onnx(options.model, import_options(strategy)); },
                   [](const Imported& i) { return print_graph(i.graph); }));
  explain_parameters(strategy, imported, compiled.explanations);
  PIPER_TRY(use_training(imported, strategy, compiled.explanations));
  compiled.parameters = std::move(imported.parameters);
  compiled.constants = std::move(imported.constants);
  compiled.separated = std::move(imported.separated);
  compiled.notes = std::move(imported.notes);
  PIPER_ASSIGN(Graph graph, with_loss(std::move(imported.graph), strategy));
  PIPER_ASSIGN(graph, find_patterns(std::move(graph), steps, compiled));
  PIPER_ASSIGN(const Cut cut, apply_split(strategy, graph.batch, compiled.explanations));
  PIPER_ASSIGN(
      graph,
      steps.run(
          "annotate", [&] { return annotated(std::move(graph), strategy, compiled.explanations); },
          print_graph));
  PIPER_ASSIGN(Differentiated step,
               steps.run(
                   "autodiff", [&] { return differentiate(std::move(graph), strategy.train); },
                   [](const Differentiated& d) { return print_graph(d.graph); }));
  PIPER_ASSIGN(step.graph, find_patterns(std::move(step.graph), steps, compiled));
  for (const std::string& name : step.without_gradient)
    compiled.notes.push_back(
        fmt::format("parameter '{}' gets no gradient and is not trained", name));

  const LowerOptions lowering{.fuse = options.fuse};
  PIPER_ASSIGN(compiled.set,
               make_plans(step.graph, strategy, cut, Target::kStrategy, lowering, steps, compiled));
  if (options.oracles) {
    steps.quiet = true;
    PIPER_ASSIGN(compiled.single,
                 make_plans(step.graph, strategy, cut, Target::kSingle, lowering, steps, compiled));
    PIPER_ASSIGN(compiled.uncut,
                 make_plans(step.graph, strategy, cut, Target::kUncut, lowering, steps, compiled));
  }
  PIPER_TRY(name_plan_sets(options, strategy, compiled));
  return compiled;
}

}  // namespace piper
