// The keys of a strategy file, and the list of all tables.
#include <algorithm>

#include "directives.h"

namespace piper::fields {
namespace {

constexpr Form kRules{.type = Type::kManyOrOne, .object = "rule", .other = "annotate"};

constexpr Field kStrategy[] = {
    {"piper", kInteger, kRequired, "Version of the language: 1."},
    {"include", kPaths, kOptional,
     "Strategy files to read first: paths relative to this file, or names of the library such as "
     "<numerics/bf16>; $name inserts a param of it."},
    {"params", kParams, kOptional,
     "Named integers, numbers and texts; piperc -D name=value overrides them."},
    {"require", many("requirement"), kOptional, "Conditions on the params, with an error message."},
    {"mesh", kCounts, kOptional, "Device axes and their sizes; ranks are row-major."},
    {"inputs",
     {.type = Type::kNamed, .object = "input"},
     kOptional,
     "What the model file leaves open about its inputs."},
    {"dims", kCounts, kOptional, "Sizes of other dynamic dims, by their name in the model."},
    {"parameters", many("parameter"), kOptional,
     "What is trained, where the file does not say or you know better."},
    {"loss",
     {.type = Type::kTextOneOrMany, .object = "loss"},
     kOptional,
     "The output that is the loss, or how to form it; a list: the sum of its terms."},
    {"train", one("train"), kOptional, "Optimizer, schedule, batch."},
    {"weight_versions",
     {.type = Type::kIntegerOneOrMany, .object = "weight_versions"},
     kOptional,
     "k, up to 64: gradients are taken at the weights before the last k - 1 updates. Default 1. A "
     "list: a k for each stage."},
    {"annotate", kRules, kOptional, "Rules that give ops their tags."},
    {"directives", many("directive"), kOptional, "What to do to the training step."},
};
constexpr Field kRequirement[] = {
    {"that", kInteger, kRequired, "An expression over params and mesh axes that must not be 0."},
    {"why", kText, kRequired, "The error message if it is 0."},
    kWhen,
};
constexpr Object kFileObjects[] = {{"strategy", kStrategy}, {"requirement", kRequirement}};

std::vector<Field> directive_keys() {
  std::vector<Field> keys;
  for (const Directive& one : directives())
    keys.push_back({one.keys.name, fields::one(one.keys.name), kOptional, one.doc});
  keys.push_back(
      {"drop", kPaths, kOptional, "Leave out directives of included files, by their names."});
  keys.push_back({"name", kText, kBeside,
                  "Name by which an including file overrides or drops this directive."});
  keys.push_back(kWhen);
  return keys;
}

std::vector<Object> all_objects() {
  static const std::vector<Field> kDirective = directive_keys();
  std::vector<Object> all(std::begin(kFileObjects), std::end(kFileObjects));
  for (const auto some : {model_objects(), train_objects(), annotate_objects(), versions_objects()})
    all.insert(all.end(), some.begin(), some.end());
  all.push_back(single("directive", kDirective));
  for (const Directive& one : directives()) {
    all.push_back(one.keys);
    all.insert(all.end(), one.parts.begin(), one.parts.end());
  }
  return all;
}

}  // namespace

const Object& object(std::string_view name) {
  const std::span<const Object> all = objects();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Object& o) { return o.name == name; });
  PIPER_CHECK(found != all.end(), "no object {}", name);
  return *found;
}

std::span<const Object> objects() {
  static const std::vector<Object> kAll = all_objects();
  return kAll;
}

const Field* find_field(const Object& object, std::string_view name) {
  const auto field = std::find_if(object.fields.begin(), object.fields.end(),
                                  [&](const Field& f) { return f.name == name; });
  return field == object.fields.end() ? nullptr : &*field;
}

}  // namespace piper::fields
