// mesh, inputs, dims, parameters, loss: what the file says of the devices and the model.
#include <algorithm>

#include "sections.h"

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

Result<InputBinding> read_input(const yaml::Entry& entry, const Scope& scope) {
  PIPER_ASSIGN(const fields::Fields map, fields::read(entry.value, entry.key.at, "input"));
  InputBinding out;
  out.name = entry.key.text;
  out.at = entry.key.at;
  if (const yaml::Node* shape = map["shape"]) {
    if (!shape->is(yaml::Node::Kind::kList)) return wrong_type(*shape, "a list of integers");
    out.shape.emplace();
    for (const yaml::Node& dim : shape->items) {
      PIPER_ASSIGN(const int64_t size, read_size(dim, scope));
      out.shape->push_back(size);
    }
  }
  if (const yaml::Node* dtype = map["dtype"]) {
    PIPER_ASSIGN(const std::string name, read_text(*dtype, scope));
    out.dtype = parse_dtype(name);
    if (!out.dtype) {
      std::vector<std::string> known;
      for (int i = 0; i < kNumDTypes; ++i) known.emplace_back(info(static_cast<DType>(i)).name);
      return fail(dtype->at, "unknown element type {}{}", yaml::shown(name),
                  did_you_mean(name, known))
          .with_note(fmt::format("the element types are {}", join(known, ", ")));
    }
  }
  if (const yaml::Node* dim = map["batch_dim"]) {
    const int64_t rank = out.shape ? static_cast<int64_t>(out.shape->size()) : 16;
    PIPER_ASSIGN(const int64_t number,
                 read_integer(*dim, scope, {0, std::max<int64_t>(rank - 1, 0)}));
    out.batch_dim = static_cast<int>(number);
  }
  return out;
}

Status read_tie(const yaml::Node& node, const Scope& scope, ParamRule& rule) {
  rule.at = node.at;
  if (!node.is(yaml::Node::Kind::kList) || node.items.size() < 2)
    return fail(node.at, "'tie' needs a list of two or more names; the first is the tensor's own");
  for (const yaml::Node& name : node.items) {
    PIPER_ASSIGN(std::string text, read_text(name, scope));
    rule.names.push_back(std::move(text));
  }
  rule.match = join(rule.names, ", ");
  return ok_status();
}

Result<ParamRule> read_param_rule(const yaml::Node& item, const Scope& scope) {
  constexpr std::pair<std::string_view, ParamRule::Kind> kKinds[] = {
      {"include", ParamRule::Kind::kInclude}, {"exclude", ParamRule::Kind::kExclude},
      {"freeze", ParamRule::Kind::kFreeze},   {"rename", ParamRule::Kind::kRename},
      {"tie", ParamRule::Kind::kTie},         {"thaw", ParamRule::Kind::kThaw},
      {"stored", ParamRule::Kind::kStored},
  };
  PIPER_ASSIGN(const fields::Fields map, fields::read(item, item.at, "parameter"));
  const yaml::Entry& given = map.only();
  ParamRule rule;
  for (const auto& [name, kind] : kKinds) {
    if (name == given.key.text) rule.kind = kind;
  }
  if (rule.kind == ParamRule::Kind::kTie) {
    PIPER_TRY(read_tie(given.value, scope, rule));
    return rule;
  }
  const yaml::Node* pattern = &given.value;
  if (rule.kind == ParamRule::Kind::kInclude && given.value.is(yaml::Node::Kind::kMap)) {
    PIPER_ASSIGN(const fields::Fields parts, fields::read(given.value, given.key.at, "include"));
    pattern = parts["match"];
    PIPER_ASSIGN(rule.to, read_text(*parts["as"], scope));
    rule.to_at = parts["as"]->at;
    if (const yaml::Node* transposed = parts["transposed"]) {
      PIPER_ASSIGN(rule.transposed, read_bool(*transposed, scope));
    }
  }
  if (rule.kind == ParamRule::Kind::kRename) {
    PIPER_ASSIGN(const fields::Fields parts, fields::read(given.value, given.key.at, "rename"));
    pattern = parts["from"];
    PIPER_ASSIGN(rule.to, read_text(*parts["to"], scope));
    rule.to_at = parts["to"]->at;
  }
  if (rule.kind == ParamRule::Kind::kStored) {
    PIPER_ASSIGN(const fields::Fields parts, fields::read(given.value, given.key.at, "stored"));
    pattern = parts["match"];
    PIPER_ASSIGN(rule.plus, read_real(*parts["plus"], scope));
  }
  PIPER_ASSIGN(const Glob glob, read_glob(*pattern, scope));
  rule.match = glob.pattern();
  rule.at = pattern->at;
  return rule;
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
    PIPER_ASSIGN(InputBinding binding, read_input(input, scope));
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
    PIPER_ASSIGN(ParamRule rule, read_param_rule(item, scope));
    out.push_back(std::move(rule));
  }
  return out;
}

Status read_loss(const yaml::Entry& entry, const Scope& scope, Strategy& out) {
  out.loss_at = entry.value.at;
  if (!entry.value.is(yaml::Node::Kind::kMap)) {
    PIPER_ASSIGN(out.loss, read_text(entry.value, scope));
    return ok_status();
  }
  PIPER_ASSIGN(const fields::Fields map, fields::read(entry.value, entry.key.at, "loss"));
  out.loss_at = map.only().value.at;
  if (const yaml::Node* output = map["output"]) {
    PIPER_ASSIGN(out.loss, read_text(*output, scope));
    return ok_status();
  }
  const yaml::Entry& given = map.only();
  out.loss_at = given.key.at;
  PIPER_ASSIGN(const fields::Fields parts,
               fields::read(given.value, given.key.at, "cross_entropy"));
  CrossEntropyLoss loss;
  loss.at = given.key.at;
  PIPER_ASSIGN(loss.logits, read_text(*parts["logits"], scope));
  PIPER_ASSIGN(loss.labels, read_text(*parts["labels"], scope));
  if (const yaml::Node* ignored = parts["ignore_index"]) {
    PIPER_ASSIGN(loss.ignore_index, read_integer(*ignored, scope));
  }
  out.loss = std::move(loss);
  return ok_status();
}

}  // namespace piper
