// Reads and prints an optimizer: the keys that the table of optimizers says.
#include "chosen_optimizer.h"

#include <algorithm>
#include <deque>

#include "members.h"
#include "piper/ir/optimizers.h"
#include "print.h"

namespace piper::fields {
namespace {

Status read_betas(const Field&, const yaml::Entry& entry, const Reading& reading, Chosen& chosen) {
  const yaml::Node& betas = entry.value;
  if (!betas.is(yaml::Node::Kind::kList) || betas.items.size() != 2)
    return fail(betas.at, "expected a list of two numbers, such as [0.9, 0.999]");
  for (size_t i = 0; i < 2; ++i) {
    const yaml::Node& node = betas.items[i];
    PIPER_ASSIGN(const double beta, read_real(node, reading.scope));
    if (beta < 0 || beta >= 1)
      return fail(node.at, "a beta must be at least 0 and below 1, not {}", node.text);
    chosen.spec.settings.set(i == 0 ? "beta1" : "beta2", beta);
  }
  return ok_status();
}
Attrs settings_of(const OptimizerSpec& spec) {
  return with_defaults(find_optimizer(spec.name), spec.settings);
}
std::string print_betas(const Field&, const Chosen& chosen) {
  const Attrs settings = settings_of(chosen.spec);
  return fmt::format("[{}, {}]", settings.real("beta1"), settings.real("beta2"));
}

// Rate and weight decay are the group's.
Status read_setting(const Field& field, const yaml::Entry& entry, const Reading& reading,
                    Chosen& chosen) {
  const std::string name(field.name);
  Attrs& settings = chosen.spec.settings;
  if (field.form.type == Type::kBool) {
    bool value = false;
    PIPER_TRY(read_value(field, entry.value, reading, value));
    settings.set(name, int64_t{value});
    return ok_status();
  }
  if (field.form.type == Type::kInteger || field.form.type == Type::kWord) {
    int64_t value = 0;
    PIPER_TRY(read_value(field, entry.value, reading, value));
    if (field.form.type == Type::kInteger)
      settings.set(name, value);
    else
      settings.set(name, std::string(field.form.words[static_cast<size_t>(value)].name));
    return ok_status();
  }
  double value = 0;
  PIPER_TRY(read_value(field, entry.value, reading, value));
  if (field.name == "lr")
    chosen.group.lr = value;
  else if (field.name == "weight_decay")
    chosen.group.weight_decay = value;
  else
    settings.set(name, value);
  return ok_status();
}
std::string print_setting(const Field& field, const Chosen& chosen) {
  if (field.name == "lr") return print_value(field, chosen.group.lr);
  if (field.name == "weight_decay") return print_value(field, chosen.group.weight_decay);
  const Attrs settings = settings_of(chosen.spec);
  if (field.form.type == Type::kBool) return print_value(field, settings.integer(field.name) != 0);
  if (field.form.type == Type::kInteger) return print_value(field, settings.integer(field.name));
  if (field.form.type == Type::kWord) return settings.text(field.name);
  return print_value(field, settings.real(field.name));
}

Status check_settings(const Fields& map, const Reading&, Chosen& chosen) {
  const auto& need = find_optimizer(chosen.spec.name).need;
  if (!need || need->holds(settings_of(chosen.spec))) return ok_status();
  return fail(map[need->key]->at, "{}", need->text);
}

constexpr Form kTo1 = real(kUnit);

constexpr Word kStateTypes[] = {word("f32", DType::kF32), word("bf16", DType::kBF16)};

Status read_states(const Field& field, const yaml::Entry& entry, const Reading& reading,
                   Chosen& chosen) {
  std::vector<std::string> names;
  PIPER_TRY(read_value(field, entry.value, reading, names));
  const size_t states = find_optimizer(chosen.spec.name).states.size();
  if (names.size() != 1 && names.size() != states)
    return fail(entry.value.at, "{} types for the {} of '{}'", names.size(),
                states == 1 ? "state" : fmt::format("{} states", states), chosen.spec.name)
        .with_note("help: name one for all, or one for each");
  for (const std::string& name : names) chosen.spec.states.push_back(*parse_dtype(name));
  return ok_status();
}
std::string print_states(const Field&, const Chosen& chosen) {
  std::vector<std::string> names;
  for (const DType type : chosen.spec.states) names.emplace_back(info(type).name);
  return names.empty() ? "" : fmt::format("[{}]", join(names, ", "));
}

constexpr Form kBelow1 = real({0, 1, false, true});

// Returns how a setting is written; `words` keeps what it names.
Form form_of(const OptimizerSetting& setting, std::deque<std::vector<Word>>& words) {
  using Written = OptimizerSetting::Form;
  switch (setting.form) {
    case Written::kBool:
      return kBool;
    case Written::kAbove0:
      return kAbove0;
    case Written::kUnit:
      return kTo1;
    case Written::kAtMost0:
      return real({-1e30, 0});
    case Written::kBelow1:
      return kBelow1;
    case Written::kCount:
      return kCount;
    case Written::kAtLeast0:
      return kAtLeast0;
    case Written::kWord:
      break;
  }
  std::vector<Word>& own = words.emplace_back();
  for (const std::string_view name : setting.words) own.push_back({name, std::ssize(own)});
  return one_of(own);
}

Field field_of(const OptimizerSetting& setting, std::deque<std::vector<Word>>& words) {
  if (setting.key == "beta1")
    return {"betas", kReals, kStated, setting.doc, custom<read_betas, print_betas>};
  const Form form = form_of(setting, words);
  return {setting.key, form, kStated, setting.doc, custom<read_setting, print_setting>};
}

// Holds the keys of all optimizers, and those of each.
struct OptimizerKeys {
  std::vector<Field> names;
  std::vector<std::vector<Field>> settings;
  std::deque<std::vector<Word>> words;
};
const OptimizerKeys& optimizer_keys() {
  static const OptimizerKeys made = [] {
    OptimizerKeys keys;
    for (const OptimizerDef& def : optimizers()) {
      keys.names.push_back({def.name, one(def.name), kOptional, def.doc});
      std::vector<Field>& settings = keys.settings.emplace_back();
      for (const OptimizerSetting& setting : def.settings)
        if (setting.key != "beta2") settings.push_back(field_of(setting, keys.words));
      if (!def.states.empty())
        settings.push_back({"states", some_of(kStateTypes), kOptional,
                            "Type in which the optimizer's states are stored: one for all, or a "
                            "list. Default f32.",
                            custom<read_states, print_states>});
    }
    return keys;
  }();
  return made;
}

}  // namespace

Result<Chosen> read_chosen(const yaml::Entry& entry, const Reading& reading) {
  PIPER_ASSIGN(const Fields map, read(entry.value, entry.key.at, "optimizer"));
  const yaml::Entry& given = map.only();
  const OptimizerDef& def = find_optimizer(given.key.text);
  Chosen chosen{
      {.name = given.key.text},
      {"**", given.key.at, def.find("lr")->otherwise, def.find("weight_decay")->otherwise}};
  PIPER_TRY(read_map(fields::object(def.name), given.value, given.key.at, reading, &chosen));
  return chosen;
}
std::string print_chosen(const Chosen& chosen) {
  const std::string& name = chosen.spec.name;
  return fmt::format("{{{}: {}}}", name, print_map(fields::object(name), &chosen));
}

std::span<const Object> optimizer_objects() {
  static const std::vector<Object> made = [] {
    const OptimizerKeys& keys = optimizer_keys();
    std::vector<Object> objects = {single("optimizer", keys.names)};
    for (size_t o = 0; o < keys.settings.size(); ++o)
      objects.push_back({keys.names[o].name, keys.settings[o], checked<check_settings>});
    return objects;
  }();
  return made;
}

}  // namespace piper::fields
