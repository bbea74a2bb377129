// mesh, inputs, dims, parameters, loss: what the file says of the devices and the model.
#include <algorithm>

#include "members.h"
#include "print.h"

namespace piper {
namespace {

constexpr int64_t kMaxDevices = int64_t{1} << 20;
constexpr int64_t kMaxDim = int64_t{1} << 40;

Status check_map(const yaml::Entry& entry) {
  if (entry.value.is(yaml::Node::Kind::kMap)) return ok_status();
  return wrong_type(entry.value, fmt::format("a map for '{}'", entry.key.text));
}

// An axis and a param of one name are welcome when they agree: expressions cannot tell them apart.
Status check_axis_name(const yaml::Entry& axis, int64_t size, const Scope& scope) {
  PIPER_TRY(check_new_name(axis.key, "a mesh axis"));
  const Scope::Text* const text = scope.text(axis.key.text);
  const auto other = std::ranges::find_if(
      scope.integers, [&](const auto& p) { return p.first == axis.key.text && p.second != size; });
  if (text == nullptr && other == scope.integers.end()) return ok_status();
  const std::string is = text != nullptr ? yaml::shown(text->value) : std::to_string(other->second);
  return fail(axis.key.at, "the axis '{}' has size {}, but the param '{}' is {}", axis.key.text,
              size, axis.key.text, is)
      .with_note(fmt::format("help: params: {{{}: {}}} makes them agree, as -D {}={} does",
                             axis.key.text, size, axis.key.text, size));
}

// Returns the size of an axis, of a mesh with so many devices before it.
Result<int64_t> read_axis(const yaml::Entry& axis, int64_t devices, const Scope& scope) {
  PIPER_ASSIGN(const int64_t size, read_integer(axis.value, scope, {1, kMaxDevices}));
  PIPER_TRY(check_axis_name(axis, size, scope));
  if (devices * size > kMaxDevices)
    return fail(axis.value.at, "the mesh has more than {} devices", kMaxDevices);
  return size;
}

Result<int64_t> read_size(const yaml::Node& node, const Scope& scope) {
  PIPER_ASSIGN(const int64_t size, read_integer(node, scope));
  if (size != 0) return read_integer(node, scope, {1, kMaxDim});
  return fail(node.at, "a dim of size 0 leaves nothing to train on")
      .with_note(
          "help: a past of length 0 is asked for by files for text generation (past_key_values); "
          "export the model without its cache");
}

}  // namespace

std::vector<MeshAxis> read_mesh(const yaml::Entry& entry, Scope& scope, ErrorList& errors) {
  std::vector<MeshAxis> out;
  errors.add(check_map(entry));
  Scope with_axes = scope;
  int64_t devices = 1;
  for (const yaml::Entry& axis : entry.value.entries) {
    const bool cut = axis.value.is(yaml::Node::Kind::kNull) && !errors.empty();  // min(2, 3)
    if (cut) continue;
    Result<int64_t> size = read_axis(axis, devices, scope);
    if (size) {
      devices *= *size;
      with_axes.integers.emplace_back(axis.key.text, *size);
    } else {
      with_axes.failed.push_back(axis.key.text);
      errors.add(std::move(size).error());
    }
    constexpr size_t kMostAxes = 31;  // plans have 32: 'replicate' may add one
    if (out.size() == kMostAxes)
      errors.add(fail(axis.key.at, "not supported: a mesh of more than {} axes", kMostAxes));
    out.push_back({axis.key.text, size ? *size : 1, axis.key.at});
  }
  with_axes.used = std::move(scope.used);
  scope = std::move(with_axes);
  return out;
}

Result<std::vector<InputBinding>> read_inputs(const yaml::Entry& entry, const Scope& scope) {
  PIPER_TRY(check_map(entry));
  std::vector<InputBinding> out;
  for (const yaml::Entry& input : entry.value.entries) {
    InputBinding binding{.name = input.key.text, .at = input.key.at};
    PIPER_TRY(
        fields::read_map(fields::object("input"), input.value, input.key.at, {scope}, &binding));
    out.push_back(std::move(binding));
  }
  return out;
}

Result<std::vector<DimSize>> read_dims(const yaml::Entry& entry, const Scope& scope) {
  PIPER_TRY(check_map(entry));
  std::vector<DimSize> out;
  for (const yaml::Entry& dim : entry.value.entries) {
    PIPER_ASSIGN(const int64_t size, read_size(dim.value, scope));
    out.push_back({dim.key.text, size, dim.key.at});
  }
  return out;
}

Result<std::vector<ParamRule>> read_parameters(const std::vector<Sections::Item>& entries,
                                               const Scope& scope) {
  std::vector<ParamRule> out;
  for (const auto& [file, item] : entries) {
    ParamRule rule;
    PIPER_TRY(fields::read_map(fields::object("parameter"), item, item.at, {scope}, &rule));
    out.push_back(std::move(rule));
  }
  return out;
}

Status read_loss(const yaml::Entry& entry, const Scope& scope, Strategy& out) {
  const yaml::Node& value = entry.value;
  out.loss_at = value.at;
  const auto read_term = [&](const yaml::Node& node, const SourceSpan& at) {
    return fields::read_map(fields::object("loss"), node, at, {scope}, &out.loss.emplace_back());
  };
  if (value.is(yaml::Node::Kind::kMap)) return read_term(value, entry.key.at);
  if (value.is(yaml::Node::Kind::kList)) {
    if (value.items.empty()) return fail(value.at, "'loss' is a list without terms");
    for (const yaml::Node& item : value.items) PIPER_TRY(read_term(item, item.at));
    return ok_status();
  }
  LossTerm& term = out.loss.emplace_back();
  term.at = term.output_at = value.at;
  PIPER_ASSIGN(term.output, read_text(value, scope));
  return ok_status();
}

// ---- Their keys ---------------------------------------------------------------------------------

namespace fields {
namespace {

// ---- inputs ----

Status read_shape(const Field&, const yaml::Entry& entry, const Reading& reading,
                  InputBinding& input) {
  Shape& shape = input.shape.emplace();
  if (!entry.value.is(yaml::Node::Kind::kList))
    return wrong_type(entry.value, "a list of integers");
  for (const yaml::Node& dim : entry.value.items) {
    PIPER_ASSIGN(const int64_t size, read_size(dim, reading.scope));
    shape.push_back(size);
  }
  return ok_status();
}
constexpr Word kNoDim[] = {{"none"}};

Status read_batch_dim(const Field& field, const yaml::Entry& entry, const Reading& reading,
                      InputBinding& input) {
  PIPER_ASSIGN(const yaml::Node dim, with_texts(entry.value, reading.scope));
  if (dim.text == "none") {
    input.batch_dim = -1;
    return ok_status();
  }
  Field of_rank = field;
  const int64_t rank = input.shape ? static_cast<int64_t>(input.shape->size()) : 16;
  of_rank.form.integers = {0, std::max<int64_t>(rank - 1, 0)};
  return read_value(of_rank, dim, reading, input.batch_dim);
}
std::string print_batch_dim(const Field& field, const InputBinding& input) {
  if (!input.batch_dim) return "";
  return *input.batch_dim < 0 ? "none" : print_value(field, *input.batch_dim);
}

constexpr Word kElementTypes[] = {word("f32", DType::kF32),   word("f64", DType::kF64),
                                  word("bf16", DType::kBF16), word("f16", DType::kF16),
                                  word("i64", DType::kI64),   word("i32", DType::kI32),
                                  word("bool", DType::kBool)};
constexpr Field kInput[] = {
    {"shape", kIntegers, kOptional, "The whole shape, batch included.",
     custom<read_shape, print_member<&InputBinding::shape>>},
    {"dtype", one_of(kElementTypes), kOptional, "Element type.", member<&InputBinding::dtype>},
    {"batch_dim", integer_or(kNoDim, {0, 63}), kOptional,
     "Which dim is the batch; none: all samples share the input.",
     custom<read_batch_dim, print_batch_dim>},
};

// ---- parameters ----

using Kind = ParamRule::Kind;
constexpr Member kMatch = located<&ParamRule::match, &ParamRule::at>;
constexpr Member kTo = located<&ParamRule::to, &ParamRule::to_at>;

template <Kind kind>
Status read_rule(const Field& field, const yaml::Entry& entry, const Reading& reading,
                 ParamRule& rule) {
  rule.kind = kind;
  if (!field.form.object.empty() &&
      (field.form.type == Type::kOne || entry.value.is(yaml::Node::Kind::kMap)))
    return read_inside(field, entry, reading, &rule);
  Field pattern = field;
  pattern.form = kPaths;
  return kMatch.read(pattern, entry, reading, &rule);
}
template <Kind kind>
std::string print_rule(const Field& field, const ParamRule& rule) {
  if (rule.kind != kind) return "";
  const bool whole = field.form.type == Type::kOne || (kind == Kind::kInclude && !rule.to.empty());
  return whole ? print_inside(field, &rule) : print_value(field, rule.match);
}
template <Kind kind>
constexpr Member rule = custom<read_rule<kind>, print_rule<kind>>;

Status read_tie(const Field&, const yaml::Entry& entry, const Reading& reading, ParamRule& rule) {
  const yaml::Node& node = entry.value;
  rule.kind = Kind::kTie;
  rule.at = node.at;
  if (!node.is(yaml::Node::Kind::kList) || node.items.size() < 2)
    return fail(node.at, "'tie' needs a list of two or more names; the first is the tensor's own");
  for (const yaml::Node& name : node.items) {
    PIPER_ASSIGN(std::string text, read_text(name, reading.scope));
    rule.names.push_back(std::move(text));
  }
  rule.match = join(rule.names, ", ");
  return ok_status();
}

constexpr Field kParameter[] = {
    {"include", text_or("include"), kOptional,
     "Float constants of the model that are parameters: a pattern, or what they are.",
     rule<Kind::kInclude>},
    {"exclude", kPaths, kOptional, "Parameters that are constants.", rule<Kind::kExclude>},
    {"freeze", kPaths, kOptional, "Parameters that keep their values.", rule<Kind::kFreeze>},
    {"thaw", kPaths, kOptional, "Parameters that the importer freezes and that are trained.",
     rule<Kind::kThaw>},
    {"rename", one("rename"), kOptional, "New names for parameters.", rule<Kind::kRename>},
    {"tie", kPaths, kOptional, "Names of one tensor; the first is the parameter's name.",
     custom<read_tie, print_member<&ParamRule::names>>},
    {"stored", one("stored"), kOptional, "Parameters that the file stores plus a number.",
     rule<Kind::kStored>},
    kWhen,
};
constexpr Field kIncluded[] = {
    {"match", kPaths, kRequired, "A pattern over names of constants.", kMatch},
    {"as", kText, kRequired, "Path of the parameter that the matching constants become.", kTo},
    {"transposed", kBool, kOptional, "The file has the transpose of it. Default false.",
     member<&ParamRule::transposed>},
};
constexpr Field kRename[] = {
    {"from", kPaths, kRequired, "A pattern over paths of parameters.", kMatch},
    {"to", kText, kRequired, "The new path; {name} and ** insert what the pattern matched.", kTo},
};
constexpr Field kStored[] = {
    {"match", kPaths, kRequired, "A pattern over paths of parameters.", kMatch},
    {"plus", kReal, kRequired, "The number that the file's values have more than the parameter.",
     member<&ParamRule::plus>},
};

// ---- loss ----

using Loss = LossTerm::Kind;
using Reduction = LossTerm::Reduction;

// Reads a key that says which loss it is: the name of an output, or a map.
template <Loss kind>
Status read_loss_kind(const Field& field, const yaml::Entry& entry, const Reading& reading,
                      LossTerm& term) {
  term.kind = kind;
  term.at = entry.key.at;
  if (field.form.type == Type::kOne) return read_inside(field, entry, reading, &term);
  term.output_at = entry.value.at;
  PIPER_ASSIGN(term.output, read_text(entry.value, reading.scope));
  return ok_status();
}
template <Loss kind>
std::string print_loss_kind(const Field& field, const LossTerm& term) {
  if (term.kind != kind) return "";
  return field.form.type == Type::kOne ? print_inside(field, &term)
                                       : print_value(field, term.output);
}
template <Loss kind>
constexpr Field loss_row(std::string_view name, Form form, std::string_view doc) {
  return {name, form, kOptional, doc, custom<read_loss_kind<kind>, print_loss_kind<kind>>};
}

constexpr Field kLoss[] = {
    loss_row<Loss::kOutput>("output", kText, "A scalar output of the model."),
    loss_row<Loss::kMean>("mean", kText, "The mean of an output."),
    loss_row<Loss::kSum>("sum", kText, "The sum of an output."),
    loss_row<Loss::kCrossEntropy>("cross_entropy", one("cross_entropy"),
                                  "Cross-entropy of logits, over labels."),
    loss_row<Loss::kMse>("mse", one("mse"), "The squared error."),
    loss_row<Loss::kL1>("l1", one("l1"), "The absolute error."),
    loss_row<Loss::kSmoothL1>(
        "smooth_l1", one("smooth_l1"),
        "The squared error over 2 beta below beta, above it the absolute error."),
    loss_row<Loss::kHuber>("huber", one("huber"),
                           "Half the squared error below delta, then delta times the absolute."),
    loss_row<Loss::kBce>("bce", one("bce"), "Binary cross-entropy of probabilities."),
    loss_row<Loss::kBceWithLogits>("bce_with_logits", one("bce_with_logits"),
                                   "Binary cross-entropy of logits."),
    loss_row<Loss::kKl>("kl", one("kl"), "Kullback-Leibler divergence of log-probabilities."),
    {"weight", kReal, kBeside, "Its factor in the sum of all terms. Default 1.",
     member<&LossTerm::weight>},
};

constexpr Member kOfOutput = located<&LossTerm::output, &LossTerm::output_at>;
constexpr Member kOfTarget = located<&LossTerm::target, &LossTerm::target_at>;
constexpr Word kReductions[] = {word("mean", Reduction::kMean), word("sum", Reduction::kSum)};
constexpr Word kKlReductions[] = {word("mean", Reduction::kMean),
                                  word("batchmean", Reduction::kBatchMean),
                                  word("sum", Reduction::kSum)};
constexpr Field kOutput = {"output", kText, kRequired, "A value of the model.", kOfOutput};
constexpr Field kTarget = {"target", kText, kRequired,
                           "The target: an input, which is added if the model has none.",
                           kOfTarget};
constexpr Field kReduction = {"reduction", one_of(kReductions), kOptional,
                              "mean or sum over all elements. Default mean.",
                              member<&LossTerm::reduction>};
constexpr Field kCrossEntropy[] = {
    {"logits", kText, kRequired, "A value of the model, [..., classes].", kOfOutput},
    {"labels", kText, kRequired, "An input of class numbers; it is added if the model has none.",
     kOfTarget},
    {"dim", kInteger, kOptional,
     "The dim of the logits that holds the classes. Default -1, the last.", member<&LossTerm::dim>},
    {"ignore_index", kInteger, kStated, "The label that the loss ignores. Default -100.",
     member<&LossTerm::ignore_index>},
    {"label_smoothing", real(kUnit), kOptional,
     "The share of the target that all classes get equally. Default 0.",
     member<&LossTerm::label_smoothing>},
    {"reduction", one_of(kReductions), kOptional,
     "mean or sum over all labels that are not ignored. Default mean.",
     member<&LossTerm::reduction>},
};
constexpr Field kElementwise[] = {kOutput, kTarget, kReduction};
constexpr Field kSmoothL1[] = {
    kOutput,
    kTarget,
    {"beta", real(kPositive), kOptional, "The error above which the loss is linear. Default 1.",
     member<&LossTerm::beta>},
    kReduction};
constexpr Field kHuber[] = {
    kOutput,
    kTarget,
    {"delta", real(kPositive), kOptional, "The error above which the loss is linear. Default 1.",
     member<&LossTerm::beta>},
    kReduction};
constexpr Field kBceWithLogits[] = {
    {"logits", kText, kRequired, "A value of the model.", kOfOutput},
    kTarget,
    {"pos_weight", real(kNotNegative), kOptional,
     "Factor of the loss where the target is 1. Default 1.", member<&LossTerm::pos_weight>},
    kReduction};
constexpr Field kKl[] = {
    kOutput,
    kTarget,
    {"log_target", kBool, kOptional, "Whether the target is log-probabilities. Default false.",
     member<&LossTerm::log_target>},
    {"reduction", one_of(kKlReductions), kOptional,
     "mean or sum over all elements; batchmean: the sum over the number of samples. Default mean.",
     member<&LossTerm::reduction>}};

constexpr Object kModelObjects[] = {
    {"input", kInput},
    single("parameter", kParameter),
    {"include", kIncluded},
    {"rename", kRename},
    {"stored", kStored},
    single("loss", kLoss),
    {"cross_entropy", kCrossEntropy},
    {"mse", kElementwise},
    {"l1", kElementwise},
    {"bce", kElementwise},
    {"smooth_l1", kSmoothL1},
    {"huber", kHuber},
    {"bce_with_logits", kBceWithLogits},
    {"kl", kKl},
};

}  // namespace

std::span<const Object> model_objects() { return kModelObjects; }

}  // namespace fields
}  // namespace piper
