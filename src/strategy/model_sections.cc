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
  const bool is_text = scope.text(axis.key.text) != nullptr;
  const bool differs =
      std::any_of(scope.integers.begin(), scope.integers.end(),
                  [&](const auto& p) { return p.first == axis.key.text && p.second != size; });
  if (!is_text && !differs) return ok_status();
  return fail(axis.key.at, "the axis '{}' has size {}, but a param of that name is something else",
              axis.key.text, size)
      .with_note("help: rename one of them");
}

// The size of an axis, of a mesh with so many devices before it.
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

Result<std::vector<std::pair<std::string, int64_t>>> read_dims(const yaml::Entry& entry,
                                                               const Scope& scope) {
  PIPER_TRY(check_map(entry));
  std::vector<std::pair<std::string, int64_t>> out;
  for (const yaml::Entry& dim : entry.value.entries) {
    PIPER_ASSIGN(const int64_t size, read_size(dim.value, scope));
    out.emplace_back(dim.key.text, size);
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
  out.loss_at = entry.value.at;
  if (entry.value.is(yaml::Node::Kind::kMap))
    return fields::read_map(fields::object("loss"), entry.value, entry.key.at, {scope}, &out);
  PIPER_ASSIGN(out.loss, read_text(entry.value, scope));
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
  pattern.form = kGlob;
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
    {"exclude", kGlob, kOptional, "Parameters that are constants.", rule<Kind::kExclude>},
    {"freeze", kGlob, kOptional, "Parameters that keep their values.", rule<Kind::kFreeze>},
    {"thaw", kGlob, kOptional, "Parameters that the importer freezes and that are trained.",
     rule<Kind::kThaw>},
    {"rename", one("rename"), kOptional, "New names for parameters.", rule<Kind::kRename>},
    {"tie", kPaths, kOptional, "Names of one tensor; the first is its own.",
     custom<read_tie, print_member<&ParamRule::names>>},
    {"stored", one("stored"), kOptional, "What the file has in place of parameters.",
     rule<Kind::kStored>},
    kWhen,
};
constexpr Field kIncluded[] = {
    {"match", kGlob, kRequired, "A pattern over names of constants.", kMatch},
    {"as", kText, kRequired, "The parameter that they are.", kTo},
    {"transposed", kBool, kOptional, "The file has the transpose of it. Default false.",
     member<&ParamRule::transposed>},
};
constexpr Field kRename[] = {
    {"from", kGlob, kRequired, "A pattern over paths of parameters.", kMatch},
    {"to", kText, kRequired, "The new path; {name} and ** are what the pattern found.", kTo},
};
constexpr Field kStored[] = {
    {"match", kGlob, kRequired, "A pattern over paths of parameters.", kMatch},
    {"plus", kReal, kRequired, "What the file has added to their values.",
     member<&ParamRule::plus>},
};

// ---- loss ----

Status read_output(const Field&, const yaml::Entry& entry, const Reading& reading, Strategy& out) {
  out.loss_at = entry.value.at;
  PIPER_ASSIGN(out.loss, read_text(entry.value, reading.scope));
  return ok_status();
}
Status read_cross_entropy(const Field& field, const yaml::Entry& entry, const Reading& reading,
                          Strategy& out) {
  CrossEntropyLoss& loss = out.loss.emplace<CrossEntropyLoss>();
  out.loss_at = loss.at = entry.key.at;
  return read_inside(field, entry, reading, &loss);
}
std::string print_output(const Field& field, const Strategy& from) {
  const auto* output = std::get_if<std::string>(&from.loss);
  return output ? print_value(field, *output) : "";
}
std::string print_cross_entropy(const Field& field, const Strategy& from) {
  const auto* loss = std::get_if<CrossEntropyLoss>(&from.loss);
  return loss ? print_inside(field, loss) : "";
}

constexpr Field kLoss[] = {
    {"output", kText, kOptional, "A scalar output of the model.",
     custom<read_output, print_output>},
    {"cross_entropy", one("cross_entropy"), kOptional, "Mean cross-entropy over labels.",
     custom<read_cross_entropy, print_cross_entropy>},
};
constexpr Field kCrossEntropy[] = {
    {"logits", kText, kRequired, "An output [..., classes].", member<&CrossEntropyLoss::logits>},
    {"labels", kText, kRequired, "An input of class numbers.", member<&CrossEntropyLoss::labels>},
    {"ignore_index", kInteger, kStated, "The label that does not count. Default -100.",
     member<&CrossEntropyLoss::ignore_index>},
};

constexpr Object kModelObjects[] = {
    {"input", kInput},
    single("parameter", kParameter),
    {"include", kIncluded},
    {"rename", kRename},
    {"stored", kStored},
    single("loss", kLoss),
    {"cross_entropy", kCrossEntropy},
};

}  // namespace

std::span<const Object> model_objects() { return kModelObjects; }

}  // namespace fields
}  // namespace piper
