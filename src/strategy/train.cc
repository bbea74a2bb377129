// train: optimizer, parameter groups, clipping, learning rate, batch.
#include <algorithm>

#include "sections.h"

namespace piper {
namespace {

using fields::Fields;

struct RealRange {
  double least = 0, most = 1e30;
  bool open_least = false;  // the bound itself is not allowed
};
constexpr RealRange kNotNegative{}, kPositive{0, 1e30, true}, kUnit{0, 1};

// Sets `out` when the key is there.
Status real(const Fields& map, std::string_view key, const Scope& scope, const RealRange& range,
            double& out) {
  const yaml::Node* node = map[key];
  if (node == nullptr) return ok_status();
  PIPER_ASSIGN(out, read_real(*node, scope));
  if (out < range.least || (range.open_least && out == range.least)) {
    return fail(node->at, "'{}' must be {} {}, not {}", key,
                range.open_least ? "above" : "at least", range.least, node->text);
  }
  if (out > range.most) {
    return fail(node->at, "'{}' must be at most {}, not {}", key, range.most, node->text);
  }
  return ok_status();
}

Status read_betas(const Fields& map, const Scope& scope, OptimizerSpec& out) {
  const yaml::Node* betas = map["betas"];
  if (betas == nullptr) return ok_status();
  if (!betas->is(yaml::Node::Kind::kList) || betas->items.size() != 2) {
    return fail(betas->at, "expected a list of two numbers, such as [0.9, 0.999]");
  }
  double* const targets[] = {&out.beta1, &out.beta2};
  for (size_t i = 0; i < 2; ++i) {
    const yaml::Node& node = betas->items[i];
    PIPER_ASSIGN(*targets[i], read_real(node, scope));
    if (*targets[i] < 0 || *targets[i] >= 1) {
      return fail(node.at, "a beta must be at least 0 and below 1, not {}", node.text);
    }
  }
  return ok_status();
}

Status read_sgd(const Fields& map, const Scope& scope, OptimizerSpec& out) {
  PIPER_TRY(real(map, "momentum", scope, kNotNegative, out.momentum));
  PIPER_TRY(real(map, "dampening", scope, kUnit, out.dampening));
  const yaml::Node* nesterov = map["nesterov"];
  if (nesterov == nullptr) return ok_status();
  PIPER_ASSIGN(out.nesterov, read_bool(*nesterov, scope));
  if (out.nesterov && (out.momentum <= 0 || out.dampening != 0)) {
    return fail(nesterov->at, "nesterov needs a momentum above 0 and no dampening");
  }
  return ok_status();
}

constexpr std::pair<std::string_view, OptimizerKind> kOptimizers[] = {
    {"sgd", OptimizerKind::kSgd},
    {"adam", OptimizerKind::kAdam},
    {"adamw", OptimizerKind::kAdamW},
    {"adagrad", OptimizerKind::kAdagrad},
    {"onnx_adam", OptimizerKind::kOnnxAdam},
};

// The optimizer, and in `defaults` what groups inherit.
Status read_optimizer(const Fields& map, const Scope& scope, OptimizerSpec& out,
                      ParamGroup& defaults) {
  const yaml::Entry& given = map.only();
  const auto& [name, kind] =
      *std::find_if(std::begin(kOptimizers), std::end(kOptimizers),
                    [&](const auto& known) { return known.first == given.key.text; });
  out.kind = kind;
  PIPER_ASSIGN(const Fields parts, fields::read(given.value, given.key.at, name));
  defaults.at = given.key.at;
  if (out.kind == OptimizerKind::kAdamW) defaults.weight_decay = 1e-2;
  if (out.kind == OptimizerKind::kAdagrad) defaults.lr = 1e-2, out.eps = 1e-10;
  if (out.kind == OptimizerKind::kOnnxAdam) out.eps = 1e-6;
  PIPER_TRY(real(parts, "lr", scope, kNotNegative, defaults.lr));
  PIPER_TRY(real(parts, "weight_decay", scope, kNotNegative, defaults.weight_decay));
  if (out.kind == OptimizerKind::kSgd) return read_sgd(parts, scope, out);
  PIPER_TRY(real(parts, "eps", scope, kPositive, out.eps));
  PIPER_TRY(real(parts, "lr_decay", scope, kNotNegative, out.lr_decay));
  PIPER_TRY(real(parts, "initial_accumulator_value", scope, kNotNegative, out.accumulator));
  PIPER_TRY(real(parts, "weight_decay_after", scope, kUnit, out.weight_decay_after));
  return read_betas(parts, scope, out);
}

Status read_groups(const yaml::Node& list, const Scope& scope, const ParamGroup& defaults,
                   std::vector<ParamGroup>& out) {
  if (!list.is(yaml::Node::Kind::kList)) return no_list(list, "a list of groups");
  for (const yaml::Node& item : list.items) {
    PIPER_ASSIGN(const Fields map, fields::read(item, item.at, "group"));
    ParamGroup group = defaults;
    PIPER_ASSIGN(const Glob glob, read_glob(*map["match"], scope));
    group.match = glob.pattern();
    group.at = map["match"]->at;
    PIPER_TRY(real(map, "lr", scope, kNotNegative, group.lr));
    PIPER_TRY(real(map, "weight_decay", scope, kNotNegative, group.weight_decay));
    out.push_back(std::move(group));
  }
  return ok_status();
}

Status read_schedule(const Fields& map, const Scope& scope, LrSchedule& out) {
  constexpr int64_t kMaxSteps = int64_t{1} << 53;
  if (const yaml::Node* warmup = map["warmup"]) {
    PIPER_ASSIGN(out.warmup, read_integer(*warmup, scope, {0, kMaxSteps}));
  }
  const yaml::Node* cosine = map["cosine"];
  if (cosine == nullptr) return ok_status();
  PIPER_ASSIGN(const Fields parts, fields::read(*cosine, map.key_at("cosine"), "cosine"));
  out.cosine = true;
  PIPER_ASSIGN(out.total, read_integer(*parts["total"], scope, {1, kMaxSteps}));
  if (out.total <= out.warmup) {
    return fail(parts["total"]->at, "'total' ({}) must be larger than 'warmup' ({})", out.total,
                out.warmup);
  }
  return real(parts, "min_ratio", scope, kUnit, out.min_ratio);
}

Status read_batch(const Fields& map, const Scope& scope, Strategy& out) {
  constexpr int64_t kMaxBatch = int64_t{1} << 40;
  if (const yaml::Node* batch = map["global_batch"]) {
    PIPER_ASSIGN(out.global_batch, read_integer(*batch, scope, {1, kMaxBatch}));
    out.global_batch_at = batch->at;
  }
  if (const yaml::Node* size = map["microbatch_size"]) {
    PIPER_ASSIGN(out.microbatch_size, read_integer(*size, scope, {1, kMaxBatch}));
    out.microbatch_size_at = size->at;
  }
  if (const yaml::Node* seed = map["seed"]) {
    PIPER_ASSIGN(const int64_t number, read_integer(*seed, scope, {0}));
    out.seed = static_cast<uint64_t>(number);
  }
  return ok_status();
}

// A child map, read as `object`, handed to `reader`; nothing when the key is absent.
template <class Reader>
Status child(const Fields& map, std::string_view key, std::string_view object, Reader reader) {
  const yaml::Node* node = map[key];
  if (node == nullptr) return ok_status();
  PIPER_ASSIGN(const Fields parts, fields::read(*node, map.key_at(key), object));
  return reader(parts);
}

}  // namespace

Status read_train(const yaml::Entry* entry, const Scope& scope, Strategy& out) {
  ParamGroup defaults;
  defaults.match = "**";
  defaults.at = entry != nullptr ? entry->key.at : SourceSpan{out.path};
  TrainSpec& train = out.train;
  if (entry != nullptr) {
    PIPER_ASSIGN(const Fields map, fields::read(entry->value, entry->key.at, "train"));
    out.has_optimizer = map["optimizer"] != nullptr;
    PIPER_TRY(child(map, "optimizer", "optimizer", [&](const Fields& parts) {
      return read_optimizer(parts, scope, train.optimizer, defaults);
    }));
    if (const yaml::Node* groups = map["groups"]) {
      PIPER_TRY(read_groups(*groups, scope, defaults, train.groups));
    }
    if (map["clip_norm"] != nullptr) {
      double norm = 0;
      PIPER_TRY(real(map, "clip_norm", scope, kPositive, norm));
      train.clip_norm = norm;
    }
    PIPER_TRY(child(map, "schedule", "schedule", [&](const Fields& parts) {
      return read_schedule(parts, scope, train.schedule);
    }));
    PIPER_TRY(read_batch(map, scope, out));
  }
  train.groups.push_back(std::move(defaults));
  return ok_status();
}

}  // namespace piper
