// Sections about what is trained: model, settings, parameters.
#include <algorithm>
#include <set>

#include "match.h"

namespace piper {
namespace {

using Kind = ParameterSummary::Kind;

DiffValue find_setting(const Settings& settings, const std::string& name) {
  for (const auto& [known, value] : settings)
    if (known == name) return value;
  return {};
}

// Returns names of either, in order.
std::vector<std::string> setting_names(const Settings& before, const Settings& after) {
  std::vector<std::string> names;
  for (const Settings* settings : {&before, &after})
    for (const auto& [name, value] : *settings)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  return names;
}

struct ParameterPair {
  const ParameterSummary *before = nullptr, *after = nullptr;
};
std::vector<ParameterPair> parameter_pairs(const SetMatch& match) {
  std::vector<ParameterPair> pairs;
  std::map<std::string, size_t> known;
  for (const ParameterSummary& one : match.before.parameters) {
    known[one.name] = pairs.size();
    pairs.push_back({&one, nullptr});
  }
  for (const ParameterSummary& one : match.after.parameters) {
    const auto found = known.find(match.old_parameter(one.name));
    if (found == known.end())
      pairs.push_back({nullptr, &one});
    else
      pairs[found->second].after = &one;
  }
  return pairs;
}

bool is_trained(const ParameterSummary* parameter) {
  return parameter && parameter->kind == Kind::kTrained;
}

// Compares settings of the optimizer, for parameters that change alike; parameters are not named
// where all of them change.
void compare_updates(const SetMatch& match, SectionChanges& section) {
  SectionChanges found;
  size_t trained = 0;
  for (const ParameterPair& pair : parameter_pairs(match)) {
    if (!is_trained(pair.before) || !is_trained(pair.after)) continue;
    ++trained;
    for (const std::string& name : setting_names(pair.before->settings, pair.after->settings))
      add_text(found, pair.before->name, name, find_setting(pair.before->settings, name),
               find_setting(pair.after->settings, name));
  }
  for (Change& change : found.changes) {
    if (change.where.size() == trained) change.where.clear();
    section.changes.push_back(std::move(change));
  }
}

// Returns the matrix products of a forward, such as "33 bf16, 1 f32".
std::string products_text(const Summary& set) {
  std::map<DType, int64_t> counts;
  for (const StageSummary& stage : set.stages)
    for (const auto& [dtype, count] : stage.products) counts[dtype] += count;
  std::string text;
  for (const auto& [dtype, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, info(dtype).name);
  return text;
}

const char* kind_text(Kind kind) {
  return kind == Kind::kTrained  ? "trained"
         : kind == Kind::kFrozen ? "frozen"
                                 : "running statistics";
}

// Returns "a" and "b" of "a.h.weight" and "b.h.weight".
std::pair<std::string, std::string> renamed_part(std::string was, std::string is) {
  const auto last = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  const auto cut = [](std::string& name) {
    name.resize(name.rfind('.') == name.npos ? 0 : name.rfind('.'));
  };
  while (!was.empty() && !is.empty() && last(was) == last(is)) {
    cut(was);
    cut(is);
  }
  return {was, is};
}

// Where a module is called otherwise, its parameters are.
void compare_names(const std::vector<ParameterPair>& pairs, SectionChanges& section) {
  std::map<std::pair<std::string, std::string>, size_t> counts;
  const auto is_renamed = [](const ParameterPair& pair) {
    return pair.before && pair.after && pair.before->name != pair.after->name;
  };
  for (const ParameterPair& pair : pairs)
    if (is_renamed(pair)) ++counts[renamed_part(pair.before->name, pair.after->name)];
  const auto all_below = [](const std::string& part) { return part.empty() ? "…" : part + ".…"; };
  for (const ParameterPair& pair : pairs) {
    if (!is_renamed(pair)) continue;
    const auto part = renamed_part(pair.before->name, pair.after->name);
    if (counts[part] == 1)
      add_text(section, pair.before->name, "name", pair.before->name, pair.after->name);
    else
      add_text(section, pair.before->name, "name", all_below(part.first), all_below(part.second));
  }
}

bool has_alias(const ParameterSummary& parameter, const std::string& name) {
  return std::find(parameter.aliases.begin(), parameter.aliases.end(), name) !=
         parameter.aliases.end();
}

// Returns the names under which it is saved, except those of parameters of their own in the other
// set.
DiffValue other_names(const ParameterSummary& parameter, const Summary& other) {
  std::vector<std::string> names;
  for (const std::string& name : parameter.aliases)
    if (std::none_of(other.parameters.begin(), other.parameters.end(),
                     [&](const ParameterSummary& one) { return one.name == name; }))
      names.push_back(name);
  std::sort(names.begin(), names.end());
  return names.empty() ? DiffValue() : DiffValue(join(names, ", "));
}

// Compares a parameter that only one of the sets has; in the other it may be tied to another one.
void compare_presence(const SetMatch& match, const std::string& name, const ParameterSummary* was,
                      const ParameterSummary* is, SectionChanges& section) {
  for (const ParameterSummary& one : (was ? match.after : match.before).parameters)
    if (has_alias(one, name)) {
      const std::string own = "its own", tied = "tied to " + one.name;
      return add_text(section, name, "now", was ? own : tied, was ? tied : own);
    }
  add_text(section, name, was ? "gone" : "added",
           was ? DiffValue(to_string(was->type)) : DiffValue(),
           is ? DiffValue(to_string(is->type)) : DiffValue());
}

}  // namespace

void compare_model(const SetMatch& match, SectionChanges& section) {
  const Manifest &was = match.before.manifest, &is = match.after.manifest;
  const bool other_file = was.model_digest != is.model_digest && !match.same_model();
  if (other_file)
    add_text(section, "", "file", fmt::format("{} ({:.8})", was.model, was.model_digest),
             fmt::format("{} ({:.8})", is.model, is.model_digest));
  // Of other parameters the values are others.
  if (match.same_tensors() && !match.same_values())
    add_text(section, "", "initial values", std::string("those of before"), std::string("others"));
  section.summary = other_file ? "the models differ" : "it begins with other values";
}

void compare_train(const SetMatch& match, SectionChanges& section) {
  compare_updates(match, section);
  const Settings &was = match.before.train, &is = match.after.train;
  for (const std::string& name : setting_names(was, is))
    add_text(section, "", name, find_setting(was, name), find_setting(is, name));
  add_text(section, "", "products of the forward", products_text(match.before),
           products_text(match.after));
  std::vector<std::string> names;
  for (const Change& change : section.changes)
    if (std::find(names.begin(), names.end(), change.what) == names.end())
      names.push_back(change.what);
  section.summary = list_text(names, 60);
}

void compare_parameters(const SetMatch& match, SectionChanges& section) {
  const std::vector<ParameterPair> pairs = parameter_pairs(match);
  compare_names(pairs, section);
  for (const ParameterPair& pair : pairs) {
    const auto *was = pair.before, *is = pair.after;
    const std::string name = was ? was->name : is->name;
    if (!was || !is) {
      compare_presence(match, name, was, is, section);
      continue;
    }
    add_text(section, name, "type", to_string(was->type), to_string(is->type));
    const auto layout = [](const ParameterSummary& one) {
      return one.layout.empty() ? "whole" : one.layout;
    };
    add_text(section, name, "along dims", layout(*was), layout(*is));
    add_text(section, name, "now", std::string(kind_text(was->kind)),
             std::string(kind_text(is->kind)));
    add_text(section, name, "other names", other_names(*was, match.after),
             other_names(*is, match.before));
  }
  std::set<std::string> names;
  for (const Change& change : section.changes)
    names.insert(change.where.begin(), change.where.end());
  section.summary = fmt::format("{} of {}", names.size(), pairs.size());
}

}  // namespace piper
