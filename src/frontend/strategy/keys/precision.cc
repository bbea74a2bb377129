// Reads the directive `precision`.
#include "directives.h"

namespace piper::fields {
namespace {

// ---- loss_scale ---------------------------------------------------------------------------------

constexpr double kMost = 3e38;
constexpr RealRange kScale{0, kMost, true, true};
constexpr Field kLossScale[] = {
    {"static", real(kScale), kOptional, "A constant scale.", member<&LossScale::init>},
    {"init_scale", real(kScale), kOptional, "The scale of the first step. Default 65536.",
     member<&LossScale::init>},
    {"growth_factor", real({1, kMost, true, true}), kOptional,
     "Factor after growth_interval steps without a skip. Default 2.", member<&LossScale::growth>},
    {"backoff_factor", real({0, 1, true, true}), kOptional,
     "Factor after a skipped step. Default 0.5.", member<&LossScale::backoff>},
    {"growth_interval", integer(1, int64_t{1} << 53), kOptional, "Default 2000.",
     member<&LossScale::interval>},
};

Status check_scale(const Fields& map, const Reading&, LossScale& scale) {
  scale.dynamic = map["static"] == nullptr;
  for (const Field& field : kLossScale)
    if (!scale.dynamic && field.name != "static" && map[field.name])
      return fail(map.key_at(field.name),
                  "'{}' cannot be combined with 'static', which is never changed", field.name);
  return ok_status();
}

Status read_scale(const Field& field, const yaml::Entry& entry, const Reading& reading,
                  Precision& precision) {
  LossScale& scale = precision.loss_scale.emplace();
  scale.at = entry.key.at;
  if (entry.value.is(yaml::Node::Kind::kMap)) return read_inside(field, entry, reading, &scale);
  PIPER_ASSIGN(const std::string text, read_text(entry.value, reading.scope));
  if (text == field.form.words[0].name) return ok_status();
  return fail(entry.value.at, "'loss_scale' is {}, neither 'dynamic' nor a map", yaml::shown(text))
      .with_note("help: a number that stays is written 'loss_scale: {static: 1024}'");
}

std::string print_scale(const Field&, const Precision& precision) {
  const std::optional<LossScale>& scale = precision.loss_scale;
  if (!scale) return "";
  if (!scale->dynamic) return fmt::format("{{static: {}}}", scale->init);
  return fmt::format(
      "{{init_scale: {}, growth_factor: {}, backoff_factor: {}, growth_interval: {}}}", scale->init,
      scale->growth, scale->backoff, scale->interval);
}

// ---- Checks -------------------------------------------------------------------------------------

Status check_precision(const Fields& map, const Reading& reading, Precision& precision) {
  if (precision.compute == DType::kF64)
    for (const char* key : {"match", "where", "keep", "accumulate", "master"})
      if (map[key])
        return fail(map.key_at(key),
                    "'{}' cannot be combined with 'compute: f64', which is for the whole model",
                    key);
  const Split* split = reading.strategy.batch_split();
  const std::string micro = split ? split->as : "pass";
  PIPER_TRY(check_where_of_ops(precision.where, "precision", {"pass", micro}));
  for (const Precision& other : reading.strategy.precisions)
    if (precision.loss_scale && other.loss_scale)
      return fail(precision.loss_scale->at, "the loss is scaled twice")
          .with_note(fmt::format("first at {}", yaml::place(other.loss_scale->at)));
  return ok_status();
}

// ---- Keys ---------------------------------------------------------------------------------------

constexpr Word kTypes[] = {word("bf16", DType::kBF16), word("f16", DType::kF16),
                           word("f32", DType::kF32), word("f64", DType::kF64)};
constexpr Word kMasters[] = {word("f32", true), word("none", false)};
constexpr Word kDynamic[] = {{"dynamic"}};
constexpr Field kPrecisionKeys[] = {
    {"compute", one_of(kTypes), kRequired, "Type of products and attention; f64: of all.",
     member<&Precision::compute>},
    {"match", kPaths, kOptional, "Ops by scope path. Default: all.", member<&Precision::match>},
    {"where", kWhere, kOptional, "Ops by their tags. Default: all.", member<&Precision::where>},
    {"keep", kPaths, kOptional, "Names of further ops that compute in f32.",
     member<&Precision::keep>},
    {"accumulate", one_of(kGradientTypes), kOptional, "Type in which gradients are added up.",
     located<&Precision::accumulate, &Precision::accumulate_at>},
    {"reduce", one_of(kGradientTypes), kOptional,
     "Type in which gradients are sent, over all axes.",
     located<&Precision::reduce, &Precision::reduce_at>},
    {"master", one_of(kMasters), kOptional,
     "none: parameters that are stored in 16 bits stay so. Default f32.",
     member<&Precision::masters>},
    {"loss_scale", text_or("loss_scale", kDynamic), kOptional,
     "dynamic, or its settings. Default: none.", custom<read_scale, print_scale>},
};
constexpr Object kPrecisionParts[] = {{"loss_scale", kLossScale, checked<check_scale>}};

}  // namespace

Directive precision_directive() {
  return directive<&Strategy::precisions>({"precision", kPrecisionKeys, checked<check_precision>},
                                          "In which types ops compute.", kPrecisionParts);
}

}  // namespace piper::fields

namespace piper {

Status share_precision(Strategy& out) {
  const Precision *sums = nullptr, *messages = nullptr;
  const auto agree = [](const Precision*& first, const Precision& one, auto type, auto at,
                        std::string_view what) -> Status {
    if (first && first->*type != one.*type)
      return fail(one.*at, "gradients {} in {} and in {}", what, info(*(first->*type)).name,
                  info(*(one.*type)).name)
          .with_note(fmt::format("first at {}", yaml::place(first->*at)));
    first = &one;
    return ok_status();
  };
  for (const Precision& one : out.precisions) {
    if (one.loss_scale) out.train.loss_scale = one.loss_scale;
    if (one.accumulate)
      PIPER_TRY(
          agree(sums, one, &Precision::accumulate, &Precision::accumulate_at, "are added up"));
    if (one.reduce)
      PIPER_TRY(agree(messages, one, &Precision::reduce, &Precision::reduce_at, "travel"));
  }
  if (!messages) return ok_status();
  if (out.replicates.empty())
    return fail(messages->reduce_at, "'reduce' without 'replicate' changes nothing");
  for (Replicate& replicate : out.replicates) {
    const InBlocks& blocks = replicate.reduce_in;
    if (blocks.any() || (replicate.dtype && replicate.dtype != messages->reduce))
      return fail(replicate.dtype_at, "gradients travel in {} and in {}",
                  info(*messages->reduce).name,
                  blocks.any() ? kScaledNames[static_cast<size_t>(blocks.type)]
                               : info(*replicate.dtype).name)
          .with_note(fmt::format("first at {}", yaml::place(messages->reduce_at)));
    replicate.dtype = messages->reduce;
    replicate.dtype_at = {};  // it is said there
  }
  return ok_status();
}

}  // namespace piper
