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

// Names of either, in order.
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

// Settings of the optimizer, by parameters that change alike; of all of them: without their names.
void compare_updates(const SetMatch& match, DiffSection& section) {
  DiffSection found;
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

// Matrix products of a forward: "33 bf16, 1 f32".
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

}  // namespace

void compare_model(const SetMatch& match, DiffSection& section) {
  const Manifest &was = match.before.manifest, &is = match.after.manifest;
  if (was.model_digest == is.model_digest) return;
  add_text(section, "", "file", fmt::format("{} ({:.8})", was.model, was.model_digest),
           fmt::format("{} ({:.8})", is.model, is.model_digest));
  section.summary = "the models differ";
}

void compare_train(const SetMatch& match, DiffSection& section) {
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

void compare_parameters(const SetMatch& match, DiffSection& section) {
  for (const ParameterPair& pair : parameter_pairs(match)) {
    const auto *was = pair.before, *is = pair.after;
    const std::string name = was ? was->name : is->name;
    if (!was || !is) {
      add_text(section, name, was ? "gone" : "added",
               was ? DiffValue(to_string(was->type)) : DiffValue(),
               is ? DiffValue(to_string(is->type)) : DiffValue());
      continue;
    }
    add_text(section, name, "name", was->name, is->name);
    add_text(section, name, "type", to_string(was->type), to_string(is->type));
    const auto layout = [](const ParameterSummary& one) {
      return one.layout.empty() ? "whole" : one.layout;
    };
    add_text(section, name, "along dims", layout(*was), layout(*is));
    add_text(section, name, "now", std::string(kind_text(was->kind)),
             std::string(kind_text(is->kind)));
  }
  size_t count = 0;
  for (const Change& change : section.changes) count += change.where.size();
  section.summary = fmt::format("{} of {}", count, match.before.parameters.size());
}

}  // namespace piper
