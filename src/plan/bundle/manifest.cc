// Writes and reads manifest.json.
#include <cmath>
#include <nlohmann/json.hpp>

#include "files.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kFormat = "piper plan set";

// Leaves out what is nested deeper than any manifest: copies go level by level, and would overflow
// the stack.
Json parse_text(std::string_view text) {
  constexpr int kMaxDepth = 8;
  return Json::parse(
      text.begin(), text.end(),
      [](int depth, Json::parse_event_t, const Json&) { return depth <= kMaxDepth; }, false);
}

Json to_json(const Manifest& manifest, bool with_id) {
  Json json = Json::object();
  json["format"] = kFormat;
  json["format_version"] = manifest.format_version;
  if (with_id) json["set_id"] = manifest.set_id;
  json["compiler"] = manifest.compiler;
  if (with_id) json["model"] = manifest.model;  // names say nothing of what is in the set
  json["model_digest"] = manifest.model_digest;
  if (with_id) json["strategy"] = manifest.strategy;
  json["strategy_digest"] = manifest.strategy_digest;
  json["strategy_text"] = manifest.strategy_text;
  json["seed"] = manifest.seed;
  json["mesh"] = Json::array();
  for (const auto& [name, size] : manifest.mesh) json["mesh"].push_back(Json::array({name, size}));
  json["role_axes"] = manifest.role_axes;
  json["roles"] = manifest.role_of_rank;
  json["files"] = Json::object();
  for (const auto& [path, hash] : manifest.files) json["files"][path] = hash;
  json["predictions"] = Json::object();
  for (const auto& [name, value] : manifest.predictions)
    if (std::isfinite(value)) json["predictions"][name] = value;
  return json;
}

std::string dump(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool is_digest(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// Returns the files that a set may have; a manifest cannot name any other place.
bool is_set_file(const std::string& path) {
  for (const char* known : {"params/init.safetensors", "../params/init.safetensors",
                            "single/manifest.json", "uncut/manifest.json"})
    if (path == known) return true;
  return path.size() == 6 + 32 + 3 && path.starts_with("roles/") && path.ends_with(".pb") &&
         is_digest(path.substr(6, 32));
}

bool fill_texts(const Json& json, Manifest& manifest) {
  const std::pair<const char*, std::string*> texts[] = {
      {"set_id", &manifest.set_id},
      {"compiler", &manifest.compiler},
      {"model", &manifest.model},
      {"model_digest", &manifest.model_digest},
      {"strategy", &manifest.strategy},
      {"strategy_digest", &manifest.strategy_digest},
      {"strategy_text", &manifest.strategy_text}};
  for (const auto& [key, text] : texts) {
    if (!json.contains(key) || !json[key].is_string()) return false;
    *text = json[key].get<std::string>();
  }
  if (!json.contains("seed") || !json["seed"].is_number_unsigned()) return false;
  manifest.seed = json["seed"].get<uint64_t>();
  return true;
}

bool fill_tables(const Json& json, Manifest& manifest) {
  for (const char* key : {"mesh", "role_axes", "roles"})
    if (!json.contains(key) || !json[key].is_array()) return false;
  for (const char* key : {"files", "predictions"})
    if (!json.contains(key) || !json[key].is_object()) return false;
  for (const Json& axis : json["mesh"]) {
    if (!axis.is_array() || axis.size() != 2 || !axis[0].is_string() ||
        !axis[1].is_number_unsigned())
      return false;
    manifest.mesh.emplace_back(axis[0].get<std::string>(), axis[1].get<int64_t>());
  }
  for (const Json& axis : json["role_axes"]) {
    if (!axis.is_string()) return false;
    manifest.role_axes.push_back(axis.get<std::string>());
  }
  for (const Json& role : json["roles"]) {
    if (!role.is_string() || !is_digest(role.get<std::string>())) return false;
    manifest.role_of_rank.push_back(role.get<std::string>());
  }
  for (const auto& [path, hash] : json["files"].items()) {
    if (!is_set_file(path) || !hash.is_string() || !is_digest(hash.get<std::string>()))
      return false;
    manifest.files[path] = hash.get<std::string>();
  }
  for (const auto& [name, value] : json["predictions"].items()) {
    if (!value.is_number()) return false;
    manifest.predictions[name] = value.get<double>();
  }
  return true;
}

}  // namespace

std::string print_manifest(const Manifest& manifest) { return dump(to_json(manifest, true)); }

std::string set_id_of(Manifest manifest) { return digest(dump(to_json(manifest, false))); }

bool is_manifest(std::string_view text) {
  const Json json = parse_text(text);
  return json.is_object() && json.contains("format") && json["format"] == kFormat;
}

std::optional<Manifest> manifest_outline(std::string_view text) {
  const Json json = parse_text(text);
  Manifest manifest;
  if (!json.is_object() || !fill_tables(json, manifest) || !world_of(manifest.mesh)) return {};
  return manifest;
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& path) {
  const auto bad = [&](std::string message) {
    return fail(SourceSpan{path}, "{}", message).with_code(ExitCode::kPlan);
  };
  const Json json = parse_text(text);
  if (json.is_discarded()) return bad("the manifest is truncated or no JSON");
  if (!json.is_object() || !json.contains("format") || json["format"] != kFormat)
    return bad("this is not the manifest of a plan set");
  Manifest manifest;
  if (!json.contains("format_version") || !json["format_version"].is_number_integer())
    return bad("the manifest has no format version");
  if (json["format_version"] != kPlanFormatVersion)
    return bad(fmt::format("the plan set has format version {}, this program reads version {}",
                           json["format_version"].dump(), kPlanFormatVersion));
  if (!fill_texts(json, manifest) || !fill_tables(json, manifest) || !world_of(manifest.mesh))
    return bad("the manifest was modified: its fields are not those of a plan set");
  if (manifest.set_id != set_id_of(manifest) || print_manifest(manifest) != text)
    return bad("the manifest was modified: its content does not match its set id");
  return manifest;
}

}  // namespace piper
