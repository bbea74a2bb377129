// Writes and reads checkpoint.json, and compares the settings of two jobs. Called by who writes a
// checkpoint, resumes from it or inspects it.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "boxes.h"
#include "piper/base/yaml.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kFormat = "piper checkpoint";
constexpr int64_t kMostCounted = int64_t{1} << 60;  // steps and samples: sums of them are numbers

std::string dump(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json to_json(const Checkpoint& from) {
  Json json = Json::object();
  json["format"] = kFormat;
  json["format_version"] = kCheckpointFormatVersion;
  json["step"] = from.step;
  json["samples"] = from.samples;
  if (from.skipped > 0) json["steps_skipped"] = from.skipped;
  for (const auto& [key, counts] :
       {std::pair("sources", &from.sources), std::pair("epochs", &from.epochs)}) {
    json[key] = Json::object();
    for (const auto& [name, samples] : *counts) json[key][name] = samples;
  }
  json["loss"] = from.loss && std::isfinite(*from.loss) ? Json(*from.loss) : Json(nullptr);
  if (from.evaluation_loss && std::isfinite(*from.evaluation_loss))
    json["evaluation_loss"] = *from.evaluation_loss;
  json["data_seed"] = from.data_seed;
  json["shuffle"] = from.shuffle;
  json["data_digest"] = from.data_digest;
  json["data_files"] = Json::object();
  for (const auto& [path, content] : from.data_files) json["data_files"][path] = content;
  json["compiler"] = from.compiler;
  json["set_id"] = from.set_id;
  json["model_digest"] = from.model_digest;
  json["strategy_text"] = from.strategy_text;
  json["states"] = Json::array();
  for (const CheckpointState& state : from.states)
    json["states"].push_back(Json{{"name", state.name},
                                  {"dtype", info(state.type.dtype).name},
                                  {"shape", state.type.shape},
                                  {"kind", name_of(state.kind)},
                                  {"aliases", state.aliases}});
  json["ranks"] = from.ranks;
  json["files"] = Json::array();
  for (const CheckpointFile& file : from.files)
    json["files"].push_back(
        Json{{"name", file.name}, {"bytes", file.bytes}, {"digest", file.digest}});
  return json;
}

// Whether a rank's file has this name: no path, and nothing that another program wrote.
bool is_file_name(const std::string& name) {
  constexpr std::string_view kStart = "rank";
  if (!name.starts_with(kStart)) return false;
  int64_t rank = -1;
  std::from_chars(name.data() + kStart.size(), name.data() + name.size(), rank);
  return rank >= 0 && rank_file_name(rank) == name;
}

// Takes fields from a JSON object; `good` turns false at the first that is not what it should be.
struct Taker {
  const Json& json;
  bool good = true;

  const Json* find(const char* key) {
    const auto found = json.find(key);
    if (found != json.end()) return &*found;
    good = false;
    return nullptr;
  }
  void text(const char* key, std::string& to) {
    const Json* value = find(key);
    if (value != nullptr && value->is_string()) to = value->get<std::string>();
    good = good && value->is_string();
  }
  void number(const char* key, int64_t& to) {
    const Json* value = find(key);
    good = good && value->is_number_unsigned() && value->get<uint64_t>() <= uint64_t{INT64_MAX};
    if (good) to = value->get<int64_t>();
  }
};

bool take_type(const Json& json, TensorType& type) {
  std::string dtype;
  Taker take{json};
  take.text("dtype", dtype);
  const auto known = parse_dtype(dtype);
  if (!known || !json.contains("shape") || !json["shape"].is_array()) return false;
  type.dtype = *known;
  for (const Json& dim : json["shape"]) {
    if (!dim.is_number_unsigned()) return false;
    type.shape.push_back(dim.get<int64_t>());
  }
  return true;
}

bool take_aliases(const Json& list, std::vector<std::string>& aliases) {
  for (const Json& alias : list) {
    if (!alias.is_string()) return false;
    aliases.push_back(alias.get<std::string>());
  }
  return true;
}

bool take_states(const Json& list, std::vector<CheckpointState>& states) {
  if (!list.is_array()) return false;
  for (const Json& each : list) {
    if (!each.is_object()) return false;
    CheckpointState& state = states.emplace_back();
    std::string kind;
    Taker take{each};
    take.text("name", state.name);
    take.text("kind", kind);
    size_t k = 0;
    while (k < kStateKinds && name_of(static_cast<StateKind>(k)) != kind) ++k;
    if (!take.good || k == kStateKinds || !take_type(each, state.type) ||
        !each.contains("aliases") || !each["aliases"].is_array())
      return false;
    state.kind = static_cast<StateKind>(k);
    if (!take_aliases(each["aliases"], state.aliases)) return false;
  }
  return true;
}

bool take_files(const Json& list, std::vector<CheckpointFile>& files) {
  if (!list.is_array()) return false;
  for (const Json& each : list) {
    if (!each.is_object()) return false;
    CheckpointFile& file = files.emplace_back();
    Taker take{each};
    take.text("name", file.name);
    take.text("digest", file.digest);
    take.number("bytes", file.bytes);
    if (!take.good || !is_file_name(file.name)) return false;
  }
  return std::adjacent_find(files.begin(), files.end(), [](const auto& a, const auto& b) {
           return a.name >= b.name;
         }) == files.end();
}

bool take_counts(const Json& json, std::vector<std::pair<std::string, int64_t>>& to) {
  if (!json.is_object()) return false;
  for (const auto& [name, count] : json.items()) {
    if (!count.is_number_unsigned() || count.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
    to.emplace_back(name, count.get<int64_t>());
  }
  return true;
}

bool take_all(const Json& json, Checkpoint& to) {
  Taker take{json};
  take.number("step", to.step);
  take.number("samples", to.samples);
  if (json.contains("steps_skipped")) take.number("steps_skipped", to.skipped);
  take.good = take.good && to.step <= kMostCounted && to.samples <= kMostCounted &&
              to.skipped <= kMostCounted;
  take.number("ranks", to.ranks);
  take.text("data_digest", to.data_digest);
  take.text("compiler", to.compiler);
  take.text("set_id", to.set_id);
  take.text("model_digest", to.model_digest);
  take.text("strategy_text", to.strategy_text);
  for (const char* key :
       {"sources", "epochs", "data_files", "loss", "data_seed", "shuffle", "states", "files"})
    take.find(key);
  if (!take.good || !take_counts(json["sources"], to.sources) ||
      !take_counts(json["epochs"], to.epochs) || !json["data_files"].is_object() ||
      !json["data_seed"].is_number_unsigned() || !json["shuffle"].is_boolean())
    return false;
  for (const auto& [path, content] : json["data_files"].items()) {
    if (!content.is_string()) return false;
    to.data_files.emplace_back(path, content.get<std::string>());
  }
  if (json["loss"].is_number()) to.loss = json["loss"].get<double>();
  if (const auto found = json.find("evaluation_loss"); found != json.end()) {
    if (!found->is_number()) return false;
    to.evaluation_loss = found->get<double>();
  }
  to.data_seed = json["data_seed"].get<uint64_t>();
  to.shuffle = json["shuffle"].get<bool>();
  return take_states(json["states"], to.states) && take_files(json["files"], to.files);
}

}  // namespace

std::string print_checkpoint(const Checkpoint& checkpoint) {
  Json json = to_json(checkpoint);
  json["digest"] = digest(dump(json));
  return dump(json);
}

Result<Checkpoint> parse_checkpoint(std::string_view text, const std::string& path) {
  const auto bad = [&](std::string message) {
    return fail(SourceSpan{path}, "{}", message).with_code(ExitCode::kStorage);
  };
  const Json json = parse_json(text);
  if (json.is_discarded()) return bad("it is cut short, or no JSON");
  if (!json.is_object() || !json.contains("format") || json["format"] != kFormat)
    return bad("it does not describe a checkpoint");
  if (!json.contains("format_version") || json["format_version"] != kCheckpointFormatVersion)
    return bad(fmt::format("the checkpoint has format version {}, this program reads version {}",
                           json.contains("format_version") ? json["format_version"].dump() : "none",
                           kCheckpointFormatVersion))
        .with_code(ExitCode::kInput);
  Checkpoint checkpoint;
  if (!take_all(json, checkpoint)) return bad("its fields are not those of a checkpoint");
  if (print_checkpoint(checkpoint) != text) return bad("its content does not match its digest");
  return checkpoint;
}

// ---- Settings -----------------------------------------------------------------------------------

namespace {

// "[0.9, 0.95]": a value on one line.
std::string print_value(const yaml::Node& node) {
  if (node.is(yaml::Node::Kind::kScalar)) return node.text;
  std::vector<std::string> parts;
  for (const yaml::Node& item : node.items) parts.push_back(print_value(item));
  for (const yaml::Entry& entry : node.entries)
    parts.push_back(entry.key.text + ": " + print_value(entry.value));
  const std::string inside = join(parts, ", ");
  return node.is(yaml::Node::Kind::kMap) ? "{" + inside + "}" : "[" + inside + "]";
}

void flatten(const yaml::Node& node, const std::string& prefix,
             std::map<std::string, std::string>& settings) {
  const bool is_list = node.is(yaml::Node::Kind::kList) && !node.items.empty() &&
                       node.items[0].is(yaml::Node::Kind::kMap);
  for (size_t k = 0; is_list && k < node.items.size(); ++k)
    flatten(node.items[k], fmt::format("{}.{}", prefix, k), settings);
  for (const yaml::Entry& entry : node.entries)
    flatten(entry.value, prefix.empty() ? entry.key.text : prefix + "." + entry.key.text, settings);
  if (!is_list && !node.is(yaml::Node::Kind::kMap)) settings[prefix] = print_value(node);
}

// Adds the settings by which a directive rounds what it sends.
void add_lossy(const yaml::Node& node, std::string& to) {
  const yaml::Entry* const lossy = node.find("lossy");
  if (lossy != nullptr && lossy->value.text == "true")
    for (const char* key : {"dtype", "block", "when"})
      if (const yaml::Entry* entry = node.find(key))
        to += fmt::format("{}{}: {}", to.empty() ? "" : ", ", key, print_value(entry->value));
  for (const yaml::Entry& entry : node.entries) add_lossy(entry.value, to);
}

// Returns what `train` says, each setting with its path. A text that is no strategy has none.
std::map<std::string, std::string> settings_of(const std::string& strategy) {
  std::map<std::string, std::string> settings;
  const auto root = yaml::parse_yaml("strategy", strategy);
  const yaml::Entry* const train = root ? root->find("train") : nullptr;
  if (train != nullptr && train->value.is(yaml::Node::Kind::kMap))
    flatten(train->value, "", settings);
  // These sections change what is learned, too.
  for (const char* key : {"loss", "weight_versions"})
    if (const yaml::Entry* const entry = root ? root->find(key) : nullptr)
      settings[key] = print_value(entry->value);
  const yaml::Entry* const directives = root ? root->find("directives") : nullptr;
  for (const yaml::Node& one :
       directives != nullptr ? directives->value.items : std::vector<yaml::Node>()) {
    if (const yaml::Entry* precision = one.find("precision"))
      settings["precision"] += print_value(precision->value);
    std::string lossy;
    add_lossy(one, lossy);
    if (!lossy.empty()) settings["lossy"] += (settings["lossy"].empty() ? "" : "; ") + lossy;
  }
  return settings;
}

}  // namespace

std::vector<SettingChange> changed_settings(const std::string& before, const std::string& now) {
  const auto old = settings_of(before), fresh = settings_of(now);
  std::vector<SettingChange> changes;
  for (const auto& [setting, value] : old) {
    const auto found = fresh.find(setting);
    const std::string other = found == fresh.end() ? "" : found->second;
    if (other != value) changes.push_back({setting, value, other});
  }
  for (const auto& [setting, value] : fresh)
    if (!old.contains(setting)) changes.push_back({setting, "", value});
  return changes;
}

std::string print_change(const SettingChange& change) {
  const auto print = [](const std::string& value) { return value.empty() ? "none" : value; };
  return fmt::format("{}: {} before, {} now", change.setting, print(change.before),
                     print(change.now));
}

std::vector<std::string> setting_names(const std::string& strategy) {
  std::vector<std::string> names;
  for (const auto& [name, value] : settings_of(strategy)) names.push_back(name);
  return names;
}

bool covers_setting(std::string_view accepted, std::string_view setting) {
  return ("." + std::string(setting) + ".").find("." + std::string(accepted) + ".") !=
         std::string::npos;
}

}  // namespace piper
