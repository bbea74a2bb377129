// directives: precision.
#include <algorithm>

#include "sections.h"

namespace piper {
namespace {

using fields::Fields;

Result<DType> read_type(const yaml::Node& node, const Scope& scope, std::string_view key,
                        std::initializer_list<DType> legal) {
  PIPER_ASSIGN(const std::string name, read_text(node, scope));
  const std::optional<DType> dtype = parse_dtype(name);
  if (dtype && std::find(legal.begin(), legal.end(), *dtype) != legal.end()) return *dtype;
  std::vector<std::string> names;
  for (const DType one : legal) names.emplace_back(info(one).name);
  return fail(node.at, "precision: {} is not supported as '{}'{}", yaml::shown(name), key,
              did_you_mean(name, names))
      .with_note(fmt::format("there {} {}", names.size() == 1 ? "is" : "are", join(names, ", ")));
}

Result<bool> read_masters(const yaml::Node& node, const Scope& scope) {
  PIPER_ASSIGN(const std::string text, read_text(node, scope));
  if (std::string_view(text) == "none") return false;
  PIPER_TRY(read_type(node, scope, "master", {DType::kF32}));
  return true;
}

Status read_factor(const Fields& map, std::string_view key, const Scope& scope, double least,
                   double most, double& out) {
  const yaml::Node* node = map[key];
  if (node == nullptr) return ok_status();
  PIPER_ASSIGN(out, read_real(*node, scope));
  if (out > least && out < most) return ok_status();
  return fail(node->at, "'{}' must be above {} and below {}, not {}", key, least, most, node->text);
}

Result<LossScale> read_loss_scale(const yaml::Node& node, const SourceSpan& at,
                                  const Scope& scope) {
  constexpr double kMost = 3e38;
  LossScale scale;
  scale.at = at;
  if (node.is(yaml::Node::Kind::kMap)) {
    PIPER_ASSIGN(const Fields map, fields::read(node, at, "loss_scale"));
    scale.dynamic = map["static"] == nullptr;
    for (const char* key : {"init_scale", "growth_factor", "backoff_factor", "growth_interval"})
      if (!scale.dynamic && map[key])
        return fail(map.key_at(key), "'{}' beside 'static', which is never changed", key);
    PIPER_TRY(read_factor(map, "static", scope, 0, kMost, scale.init));
    PIPER_TRY(read_factor(map, "init_scale", scope, 0, kMost, scale.init));
    PIPER_TRY(read_factor(map, "growth_factor", scope, 1, kMost, scale.growth));
    PIPER_TRY(read_factor(map, "backoff_factor", scope, 0, 1, scale.backoff));
    if (const yaml::Node* interval = map["growth_interval"]) {
      PIPER_ASSIGN(scale.interval, read_integer(*interval, scope, {1, int64_t{1} << 53}));
    }
    return scale;
  }
  PIPER_ASSIGN(const std::string text, read_text(node, scope));
  if (text != "dynamic")
    return fail(node.at, "'loss_scale' is {}, neither 'dynamic' nor a map", yaml::shown(text))
        .with_note("help: a number that stays is written 'loss_scale: {static: 1024}'");
  return scale;
}

}  // namespace

Status read_precision(const Fields& map, const Scope& scope, const Names& names, Strategy& out) {
  Precision precision;
  precision.at = map.at();
  PIPER_ASSIGN(precision.compute, read_type(*map["compute"], scope, "compute",
                                            {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}));
  if (precision.compute == DType::kF64)
    for (const char* key : {"match", "where", "keep", "accumulate", "master"})
      if (map[key])
        return fail(map.key_at(key), "'{}' beside 'compute: f64', which is for the whole model",
                    key);
  if (const yaml::Node* match = map["match"]) {
    PIPER_ASSIGN(precision.match, read_glob(*match, scope));
  }
  if (const yaml::Node* where = map["where"]) {
    PIPER_ASSIGN(precision.where, read_where(*where, scope, names));
    const std::string micro = out.splits.empty() ? "pass" : out.splits.front().as;
    PIPER_TRY(check_where_of_ops(precision.where, "precision", {"pass", micro}));
  }
  if (const yaml::Node* keep = map["keep"]) {
    PIPER_ASSIGN(precision.keep, read_ops(*keep, scope));
  }
  if (const yaml::Node* node = map["accumulate"]) {
    PIPER_ASSIGN(precision.accumulate,
                 read_type(*node, scope, "accumulate", {DType::kF32, DType::kBF16, DType::kF16}));
    precision.accumulate_at = node->at;
  }
  if (const yaml::Node* node = map["reduce"]) {
    PIPER_ASSIGN(precision.reduce,
                 read_type(*node, scope, "reduce", {DType::kF32, DType::kBF16, DType::kF16}));
    precision.reduce_at = node->at;
  }
  if (const yaml::Node* master = map["master"]) {
    PIPER_ASSIGN(precision.masters, read_masters(*master, scope));
  }
  if (const yaml::Node* given = map["loss_scale"]) {
    const SourceSpan& at = map.key_at("loss_scale");
    if (out.train.loss_scale)
      return fail(at, "the loss is scaled twice")
          .with_note(fmt::format("first at {}", yaml::place(out.train.loss_scale->at)));
    precision.scales_loss = true;
    PIPER_ASSIGN(out.train.loss_scale, read_loss_scale(*given, at, scope));
  }
  out.precisions.push_back(std::move(precision));
  return ok_status();
}

Status check_accumulate_types(const Strategy& strategy) {
  const Precision* first = nullptr;
  for (const Precision& precision : strategy.precisions) {
    if (!precision.accumulate) continue;
    if (first && *first->accumulate != *precision.accumulate)
      return fail(precision.accumulate_at, "gradients are added up in {} and in {}",
                  info(*first->accumulate).name, info(*precision.accumulate).name)
          .with_note(fmt::format("first at {}", yaml::place(first->accumulate_at)));
    first = &precision;
  }
  return ok_status();
}

Status share_reduce_type(Strategy& out) {
  std::optional<DType> type;
  SourceSpan first;
  for (const Precision& precision : out.precisions) {
    if (!precision.reduce) continue;
    if (type && *type != *precision.reduce)
      return fail(precision.reduce_at, "gradients travel in {} and in {}", info(*type).name,
                  info(*precision.reduce).name)
          .with_note(fmt::format("first at {}", yaml::place(first)));
    type = precision.reduce;
    first = precision.reduce_at;
  }
  if (!type) return ok_status();
  if (out.replicates.empty()) return fail(first, "'reduce' without 'replicate' changes nothing");
  for (Replicate& replicate : out.replicates) {
    if (replicate.dtype && *replicate.dtype != *type)
      return fail(replicate.dtype_at, "gradients travel in {} and in {}", info(*type).name,
                  info(*replicate.dtype).name)
          .with_note(fmt::format("first at {}", yaml::place(first)));
    replicate.dtype = type;
  }
  return ok_status();
}

}  // namespace piper
