// train: optimizer, parameter groups, clipping, learning rate, batch.
#include <algorithm>
#include <cmath>

#include "chosen_optimizer.h"
#include "errors.h"
#include "members.h"
#include "piper/ir/rate.h"
#include "print.h"

namespace piper::fields {
namespace {

Status read_optimizer(const Field&, const yaml::Entry& entry, const Reading& reading,
                      Strategy& out) {
  PIPER_ASSIGN(Chosen chosen, read_chosen(entry, reading));
  out.has_optimizer = true;
  out.train.optimizer = chosen.spec;
  out.train.groups.back() = std::move(chosen.group);
  return ok_status();
}
std::string print_optimizer(const Field&, const Strategy& from) {
  if (!from.has_optimizer) return "";
  return print_chosen({from.train.optimizer, from.train.groups.back()});
}

// ---- schedule: phases one after the other, or a formula ----------------------------------------

constexpr int64_t kMaxSteps = int64_t{1} << 53, kMaxBatch = int64_t{1} << 40;

// Holds one entry of a list of phases. Rates are parts of `lr`.
struct Phase {
  enum class Kind { kWarmup, kConstant, kLinear, kCosine, kInverseSqrt } kind = Kind::kWarmup;
  int64_t steps = 0;
  double to = 0;  // kLinear, kCosine: where it ends
};

template <Phase::Kind kKind>
Status read_steps(const Field& field, const yaml::Entry& entry, const Reading& reading,
                  Phase& phase) {
  phase.kind = kKind;
  return read_value(field, entry.value, reading, phase.steps);
}
template <Phase::Kind kKind>
Status read_decay(const Field& field, const yaml::Entry& entry, const Reading& reading,
                  Phase& phase) {
  phase.kind = kKind;
  return read_inside(field, entry, reading, &phase);
}

constexpr Form kSteps = integer(1, kMaxSteps);
constexpr Field kDecay[] = {
    {"steps", kSteps, kRequired, "Number of steps.", member<&Phase::steps>},
    {"to", kAtLeast0, kStated,
     "The rate at its end, as a fraction of the learning rate. Default 0.", member<&Phase::to>},
};
constexpr Field kPhase[] = {
    {"warmup", kSteps, kOptional,
     "Number of steps of a linear rise to the learning rate, from the end of the phase before, or "
     "from 0.",
     custom<read_steps<Phase::Kind::kWarmup>>},
    {"constant", kSteps, kOptional, "Steps at which the rate stays.",
     custom<read_steps<Phase::Kind::kConstant>>},
    {"linear", one("decay"), kOptional,
     "Linear decay from the rate at which the phase before ends.",
     custom<read_decay<Phase::Kind::kLinear>>},
    {"cosine", one("decay"), kOptional,
     "Cosine decay from the rate at which the phase before ends.",
     custom<read_decay<Phase::Kind::kCosine>>},
    {"inverse_sqrt", kSteps, kOptional,
     "Steps of a decay by sqrt(s / (step + 1)), s being the steps before the phase.",
     custom<read_steps<Phase::Kind::kInverseSqrt>>},
};

// Makes one formula of phases: each is a choice by the step, and the last rate stays.
class Phases {
 public:
  // Adds a phase; false: it ends after more steps than there are.
  bool add(const Phase& phase) {
    const double before = words_.empty() && phase.kind == Phase::Kind::kWarmup ? 0 : rate_;
    const int64_t end = begin_ + phase.steps;
    if (end > kMaxSteps) return false;
    words_ += fmt::format("step {} < {} ", end, factor(phase, before));
    ++choices_;
    begin_ = end;
    return true;
  }
  std::string formula() const {
    std::string out = fmt::format("lr {}{}", words_, rate_);
    for (int i = 0; i < choices_; ++i) out += " ?";
    return out + " *";
  }

 private:
  // Returns what the phase multiplies with, from `before` on, and notes where it ends.
  std::string factor(const Phase& phase, double before) {
    const std::string from = begin_ == 0 ? "step" : fmt::format("step {} -", begin_);
    switch (phase.kind) {
      case Phase::Kind::kWarmup:
        rate_ = 1;
        return before == 0
                   ? fmt::format("{} 1 + {} /", from, phase.steps)
                   : fmt::format("{} {} {} 1 + * {} / +", before, 1 - before, from, phase.steps);
      case Phase::Kind::kConstant:
        return fmt::format("{}", before);
      case Phase::Kind::kLinear:
        rate_ = phase.to;
        return fmt::format("{} {} {} * {} / +", before, phase.to - before, from, phase.steps);
      case Phase::Kind::kCosine:
        rate_ = phase.to;
        return fmt::format("{} {} 1 3.141592653589793 {} {} / * cos + * 2 / +", phase.to,
                           before - phase.to, from, phase.steps);
      case Phase::Kind::kInverseSqrt: {
        const auto steps = static_cast<double>(std::max<int64_t>(begin_, 1));
        rate_ = before * std::sqrt(steps / (static_cast<double>(begin_ + phase.steps)));
        return fmt::format("{} {} step 1 + / sqrt *", before, steps);
      }
    }
    PIPER_CHECK(false, "a phase without a kind");
  }

  std::string words_;
  int choices_ = 0;
  int64_t begin_ = 0;
  double rate_ = 1;  // as a part of lr, where the last phase ends
};

Result<std::string> read_phases(const yaml::Node& list, const Reading& reading) {
  Phases phases;
  ErrorList errors;
  for (const yaml::Node& item : list.items) {
    Phase phase;
    const Status known = read_map(fields::object("phase"), item, item.at, reading, &phase);
    if (!known)
      errors.add(known);
    else if (!phases.add(phase))
      errors.add(fail(item.at, "the phase ends after more than {} steps", kMaxSteps));
  }
  PIPER_TRY(errors.status());
  if (list.items.empty()) return fail(list.at, "a schedule without phases");
  return phases.formula();
}

Status read_formula(const yaml::Node& value, const Reading& reading, ParamGroup& group) {
  static const std::vector<std::string> kFree = {"lr", "step", "tokens"};
  PIPER_ASSIGN(const yaml::Node text, with_texts(value, reading.scope));
  if (fields::find_field(fields::object("phase"), text.text))
    return fail(value.at, "a schedule of one phase, {}, is a list, too", yaml::shown(text.text))
        .with_note("help: schedule: [{warmup: 100}, {cosine: {steps: 900, to: 0.1}}]");
  PIPER_ASSIGN(group.rate, read_rate(text, reading.scope, kFree));
  return ok_status();
}

Status read_schedule(const Field&, const yaml::Entry& entry, const Reading& reading,
                     ParamGroup& group) {
  const yaml::Node& value = entry.value;
  group.rate_at = value.at;
  if (value.is(yaml::Node::Kind::kMap))
    return fail(value.at, "expected a list of phases or a formula, found a map")
        .with_note("help: schedule: [{warmup: 100}, {cosine: {steps: 900, to: 0.1}}]");
  if (value.is(yaml::Node::Kind::kList)) {
    PIPER_ASSIGN(group.rate, read_phases(value, reading));
  } else {
    PIPER_TRY(read_formula(value, reading, group));
  }
  const Result<Rate> rate = Rate::parse(group.rate);
  if (!rate) return fail(value.at, "{}", rate.error().message);
  return ok_status();
}
std::string print_schedule(const Field&, const ParamGroup& group) {
  const Result<Rate> rate = Rate::parse(group.rate);
  PIPER_CHECK(rate.ok(), "'{}' was read as a formula", group.rate);
  return group.rate == "lr" ? "" : fmt::format("\"{}\"", rate->spelled());
}
constexpr Form kSchedule = {.type = Type::kTextOrMany, .object = "phase"};

Status read_default_schedule(const Field& field, const yaml::Entry& entry, const Reading& reading,
                             Strategy& out) {
  return read_schedule(field, entry, reading, out.train.groups.back());
}
std::string print_default_schedule(const Field& field, const Strategy& from) {
  return print_schedule(field, from.train.groups.back());
}

// ---- groups: what they do not say is the optimizer's --------------------------------------------

// Holds one entry.
struct GroupEntry {
  ParamGroup group;
  std::optional<Glob> match = {};
  SourceSpan at = {};
  bool own_schedule = false;  // when it is printed
};

Status read_group_schedule(const Field& field, const yaml::Entry& entry, const Reading& reading,
                           GroupEntry& one) {
  return read_schedule(field, entry, reading, one.group);
}
std::string print_group_schedule(const Field& field, const GroupEntry& one) {
  if (!one.own_schedule) return "";
  const std::string text = print_schedule(field, one.group);
  return text.empty() ? "\"lr\"" : text;
}

// An optimizer of its own brings its own rate and weight decay.
Status read_group_optimizer(const Field&, const yaml::Entry& entry, const Reading& reading,
                            GroupEntry& one) {
  PIPER_ASSIGN(const Chosen chosen, read_chosen(entry, reading));
  one.group.optimizer = chosen.spec;
  one.group.lr = chosen.group.lr;
  one.group.weight_decay = chosen.group.weight_decay;
  return ok_status();
}
std::string print_group_optimizer(const Field&, const GroupEntry& one) {
  return one.group.optimizer ? print_chosen({*one.group.optimizer, one.group}) : "";
}
template <double ParamGroup::*kNumber>
std::string print_inherited(const Field& field, const GroupEntry& one) {
  return one.group.optimizer ? "" : print_value(field, one.group.*kNumber);
}

constexpr Word kKinds[] = {
    word(kParamKinds[0], ParamKind::kVector), word(kParamKinds[1], ParamKind::kNorm),
    word(kParamKinds[2], ParamKind::kBias), word(kParamKinds[3], ParamKind::kEmbedding),
    word(kParamKinds[4], ParamKind::kHead)};

Status read_kinds(const Field& field, const yaml::Entry& entry, const Reading& reading,
                  GroupEntry& one) {
  std::vector<std::string> names;
  PIPER_TRY(read_value(field, entry.value, reading, names));
  for (const std::string& name : names)
    for (const Word& known : kKinds)
      if (known.name == name) one.group.kinds.push_back(static_cast<ParamKind>(known.value));
  if (!one.match) one.at = entry.value.at;
  return ok_status();
}
std::string print_kinds(const Field&, const GroupEntry& one) {
  const ParamGroup only{.match = "**", .kinds = one.group.kinds};
  return only.kinds.empty() ? "" : fmt::format("[{}]", describe(only));
}

Status check_group(const Fields& map, const Reading&, GroupEntry& one) {
  if (!one.match && one.group.kinds.empty())
    return fail(map.at(), "'group' needs the key 'match' or 'of'");
  for (const char* key : {"lr", "weight_decay"})
    if (one.group.optimizer && map[key])
      return fail(map.key_at(key), "'{}' cannot be combined with an optimizer of the group's own",
                  key)
          .with_note(fmt::format("help: write 'optimizer: {{{}: {{{}: …}}}}'",
                                 one.group.optimizer->name, key));
  return ok_status();
}
std::string print_match(const Field& field, const GroupEntry& one) {
  return one.group.kinds.empty() || one.group.match != "**" ? print_value(field, one.match) : "";
}

constexpr Field kGroup[] = {
    {"match",
     kPaths,
     kOptional,
     "Parameters: patterns over their paths.",
     {read_located<&GroupEntry::match, &GroupEntry::at>, print_by<print_match>}},
    {"of", some_of(kKinds), kOptional, "Parameters by kind: any of those in the list.",
     custom<read_kinds, print_kinds>},
    {"optimizer", one("optimizer"), kOptional, "Default: that of train.",
     custom<read_group_optimizer, print_group_optimizer>},
    {"lr",
     kAtLeast0,
     kStated,
     "Default: the optimizer's.",
     {read_member<&GroupEntry::group, &ParamGroup::lr>,
      print_by<print_inherited<&ParamGroup::lr>>}},
    {"weight_decay",
     kAtLeast0,
     kStated,
     "Default: the optimizer's.",
     {read_member<&GroupEntry::group, &ParamGroup::weight_decay>,
      print_by<print_inherited<&ParamGroup::weight_decay>>}},
    {"schedule", kSchedule, kOptional, "Default: that of train.",
     custom<read_group_schedule, print_group_schedule>},
    kWhen,
};

Status read_groups(const Field&, const yaml::Entry& entry, const Reading& reading, Strategy& out) {
  std::vector<ParamGroup>& groups = out.train.groups;
  if (!entry.value.is(yaml::Node::Kind::kList)) return no_list(entry.value, "a list of groups");
  for (const yaml::Node& item : entry.value.items) {
    GroupEntry one{.group = groups.back()};
    PIPER_TRY(read_map(fields::object("group"), item, item.at, reading, &one));
    one.group.at = one.at;
    one.group.match = one.match ? one.match->pattern() : "**";
    groups.insert(groups.end() - 1, one.group);
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
    const GroupEntry one{groups[g], *pattern, {}, groups[g].rate != groups.back().rate};
    text += "\n    - " + print_map(fields::object("group"), &one);
  }
  return text;
}

// ---- ema: averages of the parameters ------------------------------------------------------------

constexpr Field kEma[] = {
    {"decay", real({0, 1, true, true}), kRequired,
     "Factor of the average in each step, such as 0.999.",
     member<&Strategy::train, &TrainSpec::ema>},
};

std::string print_ema(const Field& field, const Strategy& from) {
  return from.train.ema ? print_inside(field, &from) : "";
}

// ---- rampup: the batch of the first steps ------------------------------------------------------

constexpr Field kStage[] = {
    {"steps", kSteps, kRequired, "Number of steps of this stage.", member<&RampStage::steps>},
    {"global_batch", integer(1, kMaxBatch), kRequired, "Samples of each step of this stage.",
     located<&RampStage::global_batch, &RampStage::at>},
};

Status read_rampup(const Field&, const yaml::Entry& entry, const Reading& reading, Strategy& out) {
  if (!entry.value.is(yaml::Node::Kind::kList)) return no_list(entry.value, "a list of stages");
  out.rampup_at = entry.key.at;
  for (const yaml::Node& item : entry.value.items) {
    RampStage stage;
    PIPER_TRY(read_map(fields::object("stage"), item, item.at, reading, &stage));
    out.rampup.push_back(std::move(stage));
  }
  return ok_status();
}
std::string print_rampup(const Field&, const Strategy& from) {
  std::string text;
  for (const RampStage& stage : from.rampup)
    text += "\n    - " + print_map(fields::object("stage"), &stage);
  return text;
}

// ---- The section --------------------------------------------------------------------------------

constexpr Field kTrain[] = {
    {"optimizer", one("optimizer"), kOptional, "Default: sgd.",
     custom<read_optimizer, print_optimizer>},
    {"ema",
     one("ema"),
     kOptional,
     "Averages of the parameters over the steps.",
     {read_inside, print_by<print_ema>}},
    {"schedule", kSchedule, kOptional,
     "How the learning rate changes: phases, or a formula of lr, step and tokens.",
     custom<read_default_schedule, print_default_schedule>},
    {"groups", many("group"), kOptional,
     "Other settings for some parameters; the first matching group applies.",
     custom<read_groups, print_groups>},
    {"clip_norm", kAbove0, kOptional, "Clip gradients to this global norm.",
     member<&Strategy::train, &TrainSpec::clip_norm>},
    {"skip_nonfinite", kBool, kOptional,
     "Skip the update if a gradient is not finite, as with clip_norm. Default false.",
     member<&Strategy::train, &TrainSpec::skip_nonfinite>},
    {"global_batch", integer(1, kMaxBatch), kOptional,
     "Samples a step, over all replicas and microbatches.",
     located<&Strategy::global_batch, &Strategy::global_batch_at>},
    {"rampup", many("stage"), kOptional,
     "Smaller batches for the first steps, one stage after the other; global_batch applies after "
     "them.",
     custom<read_rampup, print_rampup>},
    {"microbatch_size", integer(1, kMaxBatch), kOptional,
     "Samples of one microbatch on one replica.",
     located<&Strategy::microbatch_size, &Strategy::microbatch_size_at>},
    {"seed", integer(0), kOptional, "Seed of random ops. Default 0.", member<&Strategy::seed>},
};
}  // namespace

std::span<const Object> train_objects() {
  static const std::vector<Object> made = [] {
    std::vector<Object> objects = {block("train", kTrain)};
    objects.insert(objects.end(), optimizer_objects().begin(), optimizer_objects().end());
    objects.insert(objects.end(), {{"group", kGroup, checked<check_group>},
                                   single("phase", kPhase),
                                   {"decay", kDecay},
                                   {"stage", kStage},
                                   {"ema", kEma}});
    return objects;
  }();
  return made;
}

}  // namespace piper::fields

namespace piper {

Status read_train(const yaml::Entry* entry, const Scope& scope, Strategy& out) {
  out.train.groups = {{"**", entry ? entry->key.at : SourceSpan{out.path}}};
  if (!entry) return ok_status();
  PIPER_TRY(fields::read_map(fields::object("train"), entry->value, entry->key.at, {scope}, &out));
  if (out.rampup.empty() || out.global_batch > 0) return ok_status();
  return fail(out.rampup_at,
              "'rampup' says how the batch grows to global_batch, which is not given")
      .with_note("help: train: {global_batch: 256, rampup: [{steps: 100, global_batch: 64}]}");
}

}  // namespace piper
