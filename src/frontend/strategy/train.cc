// train: optimizer, parameter groups, clipping, learning rate, batch.
#include <algorithm>

#include "members.h"
#include "print.h"

namespace piper::fields {
namespace {

// ---- optimizer ----------------------------------------------------------------------------------

// Holds an optimizer, and what groups inherit.
struct Chosen {
  OptimizerSpec spec;
  ParamGroup group;
};

Status read_betas(const Field&, const yaml::Entry& entry, const Reading& reading, Chosen& chosen) {
  const yaml::Node& betas = entry.value;
  if (!betas.is(yaml::Node::Kind::kList) || betas.items.size() != 2)
    return fail(betas.at, "expected a list of two numbers, such as [0.9, 0.999]");
  OptimizerSpec& spec = chosen.spec;
  double* const targets[] = {&spec.beta1, &spec.beta2};
  for (size_t i = 0; i < 2; ++i) {
    const yaml::Node& node = betas.items[i];
    PIPER_ASSIGN(*targets[i], read_real(node, reading.scope));
    if (*targets[i] < 0 || *targets[i] >= 1)
      return fail(node.at, "a beta must be at least 0 and below 1, not {}", node.text);
  }
  return ok_status();
}
std::string print_betas(const Field&, const Chosen& chosen) {
  return fmt::format("[{}, {}]", chosen.spec.beta1, chosen.spec.beta2);
}

Status check_sgd(const Fields& map, const Reading&, Chosen& chosen) {
  const OptimizerSpec& spec = chosen.spec;
  if (!spec.nesterov || (spec.momentum > 0 && spec.dampening == 0)) return ok_status();
  return fail(map["nesterov"]->at, "nesterov needs a momentum above 0 and no dampening");
}

template <auto Number>
inline constexpr Member spec = member<&Chosen::spec, Number>;
template <auto Number>
inline constexpr Member group = member<&Chosen::group, Number>;
constexpr Form kAtLeast0 = real(kNotNegative), kAbove0 = real(kPositive), kTo1 = real(kUnit);
constexpr Field rate(std::string_view doc) {
  return {"lr", kAtLeast0, kStated, doc, group<&ParamGroup::lr>};
}
constexpr Field decay(std::string_view doc) {
  return {"weight_decay", kAtLeast0, kStated, doc, group<&ParamGroup::weight_decay>};
}
constexpr Field eps(std::string_view doc) {
  return {"eps", kAbove0, kStated, doc, spec<&OptimizerSpec::eps>};
}
constexpr Field kBetas = {"betas", kReals, kStated, "Two decay rates. Default [0.9, 0.999].",
                          custom<read_betas, print_betas>};

constexpr Field kSgd[] = {
    rate("Learning rate. Default 1e-3."),
    {"momentum", kAtLeast0, kStated, "Default 0.", spec<&OptimizerSpec::momentum>},
    {"dampening", kTo1, kStated, "Default 0.", spec<&OptimizerSpec::dampening>},
    {"nesterov", kBool, kStated, "Default false.", spec<&OptimizerSpec::nesterov>},
    decay("Default 0."),
};
constexpr Field kAdam[] = {
    rate("Learning rate. Default 1e-3."),
    kBetas,
    eps("Default 1e-8."),
    decay("Default 0 for adam, 1e-2 for adamw."),
};
constexpr Field kAdagrad[] = {
    rate("Learning rate. Default 1e-2."),
    {"lr_decay", kAtLeast0, kStated, "Divides the rate by 1 + step * lr_decay. Default 0.",
     spec<&OptimizerSpec::lr_decay>},
    eps("Default 1e-10."),
    decay("Default 0."),
    {"initial_accumulator_value", kAtLeast0, kStated, "Default 0.",
     spec<&OptimizerSpec::accumulator>},
};
constexpr Field kOnnxAdam[] = {
    rate("Learning rate. Default 1e-3."),
    kBetas,
    eps("Joins the root as it is. Default 1e-6."),
    decay("norm_coefficient. Default 0."),
    {"weight_decay_after", kTo1, kStated, "norm_coefficient_post. Default 0.",
     spec<&OptimizerSpec::weight_decay_after>},
};

struct KnownOptimizer {
  OptimizerKind kind;
  Field key;
  double lr, eps, weight_decay;  // defaults
};
constexpr KnownOptimizer kOptimizers[] = {
    {OptimizerKind::kSgd,
     {"sgd", one("sgd"), kOptional, "Stochastic gradient descent."},
     1e-3,
     1e-8,
     0},
    {OptimizerKind::kAdam,
     {"adam", one("adam"), kOptional, "Adam; weight decay is added to the gradient."},
     1e-3,
     1e-8,
     0},
    {OptimizerKind::kAdamW,
     {"adamw", one("adamw"), kOptional, "Adam with decoupled weight decay."},
     1e-3,
     1e-8,
     1e-2},
    {OptimizerKind::kAdagrad, {"adagrad", one("adagrad"), kOptional, "Adagrad."}, 1e-2, 1e-10, 0},
    {OptimizerKind::kOnnxAdam,
     {"onnx_adam", one("onnx_adam"), kOptional, "Adam as ai.onnx.preview.training defines it."},
     1e-3,
     1e-6,
     0},
};
constexpr auto kOptimizer = [] {
  std::array<Field, std::size(kOptimizers)> keys;
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = kOptimizers[i].key;
  return keys;
}();

Status read_optimizer(const Field&, const yaml::Entry& entry, const Reading& reading,
                      Strategy& out) {
  PIPER_ASSIGN(const Fields map, read(entry.value, entry.key.at, "optimizer"));
  const yaml::Entry& given = map.only();
  const KnownOptimizer& known =
      *std::find_if(std::begin(kOptimizers), std::end(kOptimizers),
                    [&](const auto& one) { return one.key.name == given.key.text; });
  Chosen chosen{{.kind = known.kind, .eps = known.eps},
                {"**", given.key.at, known.lr, known.weight_decay}};
  PIPER_TRY(read_map(fields::object(known.key.name), given.value, given.key.at, reading, &chosen));
  out.has_optimizer = true;
  out.train.optimizer = chosen.spec;
  out.train.groups.back() = std::move(chosen.group);
  return ok_status();
}
std::string print_optimizer(const Field&, const Strategy& from) {
  if (!from.has_optimizer) return "";
  const Chosen chosen{from.train.optimizer, from.train.groups.back()};
  for (const auto& [kind, key, lr, eps, decay] : kOptimizers)
    if (kind == chosen.spec.kind)
      return fmt::format("{{{}: {}}}", key.name, print_map(fields::object(key.name), &chosen));
  PIPER_CHECK(false, "an optimizer without a name");
}

// ---- groups: what they do not say is the optimizer's --------------------------------------------

// Holds one entry: a group for each of its patterns.
struct GroupEntry {
  ParamGroup group;
  std::vector<Glob> match = {};
  SourceSpan at = {};
};

constexpr Field kGroup[] = {
    {"match", kPaths, kRequired, "Parameters: patterns over their paths.",
     located<&GroupEntry::match, &GroupEntry::at>},
    {"lr", kAtLeast0, kStated, "Default: the optimizer's.",
     member<&GroupEntry::group, &ParamGroup::lr>},
    {"weight_decay", kAtLeast0, kStated, "Default: the optimizer's.",
     member<&GroupEntry::group, &ParamGroup::weight_decay>},
    kWhen,
};

Status read_groups(const Field&, const yaml::Entry& entry, const Reading& reading, Strategy& out) {
  std::vector<ParamGroup>& groups = out.train.groups;
  if (!entry.value.is(yaml::Node::Kind::kList)) return no_list(entry.value, "a list of groups");
  for (const yaml::Node& item : entry.value.items) {
    GroupEntry one{.group = groups.back()};
    PIPER_TRY(read_map(fields::object("group"), item, item.at, reading, &one));
    one.group.at = one.at;
    for (const Glob& pattern : one.match) {
      one.group.match = pattern.pattern();
      groups.insert(groups.end() - 1, one.group);
    }
  }
  return ok_status();
}
std::string print_groups(const Field&, const Strategy& from) {
  const std::vector<ParamGroup>& groups = from.train.groups;
  std::string text;
  for (size_t g = 0; g + 1 < groups.size(); ++g) {
    if (!groups[g].names.empty()) continue;  // the model's own
    const Result<Glob> pattern = Glob::parse(groups[g].match, groups[g].at);
    PIPER_CHECK(pattern.ok(), "'{}' was read as a pattern", groups[g].match);
    const GroupEntry one{groups[g], {*pattern}};
    text += "\n    - " + print_map(fields::object("group"), &one);
  }
  return text;
}

// ---- schedule -----------------------------------------------------------------------------------

constexpr int64_t kMaxSteps = int64_t{1} << 53, kMaxBatch = int64_t{1} << 40;

Status check_cosine(const Fields& map, const Reading&, LrSchedule& rate) {
  rate.cosine = true;
  if (rate.total > rate.warmup) return ok_status();
  return fail(map["total"]->at, "'total' ({}) must be larger than 'warmup' ({})", rate.total,
              rate.warmup);
}
std::string print_cosine(const Field& field, const LrSchedule& rate) {
  return rate.cosine ? print_inside(field, &rate) : "";
}
std::string print_schedule(const Field& field, const Strategy& from) {
  const LrSchedule& rate = from.train.schedule;
  return rate.warmup != 0 || rate.cosine ? print_inside(field, &rate) : "";
}

constexpr Field kCosine[] = {
    {"total", integer(1, kMaxSteps), kRequired, "Step at which the decay ends.",
     member<&LrSchedule::total>},
    {"min_ratio", kTo1, kStated, "Last learning rate as a part of the first. Default 0.",
     member<&LrSchedule::min_ratio>},
};
constexpr Field kSchedule[] = {
    {"warmup", integer(0, kMaxSteps), kStated,
     "Steps over which the learning rate rises. Default 0.", member<&LrSchedule::warmup>},
    {"cosine",
     one("cosine"),
     kOptional,
     "Cosine decay after the warm-up.",
     {read_inside, print_by<print_cosine>}},
};

// ---- The section --------------------------------------------------------------------------------

constexpr Member kRate = {read_child<&Strategy::train, &TrainSpec::schedule>,
                          print_by<print_schedule>};
constexpr Field kTrain[] = {
    {"optimizer", one("optimizer"), kOptional, "Default: sgd.",
     custom<read_optimizer, print_optimizer>},
    {"groups", many("group"), kOptional,
     "Other settings for some parameters; the first match wins.",
     custom<read_groups, print_groups>},
    {"clip_norm", kAbove0, kOptional, "Clip gradients to this global norm.",
     member<&Strategy::train, &TrainSpec::clip_norm>},
    {"schedule", one("schedule"), kOptional, "How the learning rate changes.", kRate},
    {"global_batch", integer(1, kMaxBatch), kOptional,
     "Samples a step, over all replicas and microbatches.",
     located<&Strategy::global_batch, &Strategy::global_batch_at>},
    {"microbatch_size", integer(1, kMaxBatch), kOptional,
     "Samples of one microbatch on one replica.",
     located<&Strategy::microbatch_size, &Strategy::microbatch_size_at>},
    {"seed", integer(0), kOptional, "Seed of random ops. Default 0.", member<&Strategy::seed>},
};
constexpr Object kTrainObjects[] = {
    block("train", kTrain),
    single("optimizer", kOptimizer),
    {"sgd", kSgd, checked<check_sgd>},
    {"adam", kAdam},
    {"adamw", kAdam},
    {"adagrad", kAdagrad},
    {"onnx_adam", kOnnxAdam},
    {"group", kGroup},
    {"schedule", kSchedule},
    {"cosine", kCosine, checked<check_cosine>},
};

}  // namespace

std::span<const Object> train_objects() { return kTrainObjects; }

}  // namespace piper::fields

namespace piper {

Status read_train(const yaml::Entry* entry, const Scope& scope, Strategy& out) {
  out.train.groups = {{"**", entry ? entry->key.at : SourceSpan{out.path}}};
  if (!entry) return ok_status();
  return fields::read_map(fields::object("train"), entry->value, entry->key.at, {scope}, &out);
}

}  // namespace piper
