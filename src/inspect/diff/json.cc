// Prints a diff as JSON, for other programs.
#include <nlohmann/json.hpp>

#include "match.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr const char* kUnits[] = {"count", "bytes", "flops", "seconds"};

const char* unit_text(DiffUnit unit) { return kUnits[static_cast<size_t>(unit)]; }

Json json_of(const DiffValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return nullptr;
}

Json json_of(const Change& change) {
  Json json = {{"where", change.where},
               {"what", change.what},
               {"before", json_of(change.before)},
               {"after", json_of(change.after)}};
  for (const DiffValue* value : {&change.before, &change.after})
    if (std::holds_alternative<double>(*value)) json["unit"] = unit_text(change.unit);
  return json;
}

Json json_of(const DiffSection& section) {
  Json json = {{"name", section.name}, {"summary", section.summary}};
  if (section.measure)
    json["measure"] = {{"before", section.measure->before},
                       {"after", section.measure->after},
                       {"unit", unit_text(section.measure->unit)}};
  json["changes"] = Json::array();
  for (const Change& change : section.changes) json["changes"].push_back(json_of(change));
  return json;
}

}  // namespace

std::string print_diff_json(const Diff& diff) {
  Json json = {{"format", "piper diff"}, {"format_version", kVersion}, {"before", diff.before},
               {"after", diff.after},    {"same", diff.same()},        {"summary", headline(diff)},
               {"failed", diff.failed},  {"notes", diff.notes}};
  json["sections"] = Json::array();
  for (const DiffSection& section : diff.sections) json["sections"].push_back(json_of(section));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace piper
