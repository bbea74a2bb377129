// Writes and reads the indices of folders of several plan sets.
#include "piper/plan/worlds.h"

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace piper {
namespace {

namespace fs = std::filesystem;
using WorldsJson = nlohmann::ordered_json;
constexpr const char* kWorldsFile = "worlds.json";
constexpr const char* kWorldsFormat = "piper worlds";
constexpr int kWorldsVersion = 1;
constexpr std::string_view kWorldPrefix = "world-";

constexpr const char* kStagesFile = "stages.json";
constexpr const char* kStagesFormat = "piper stages";
constexpr int kStagesVersion = 1;
constexpr std::string_view kStagePrefix = "stage-";

// Returns the number behind the prefix in a folder's name; nothing of other names.
std::optional<int64_t> number_of_folder(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t ranks = 0;
  const auto read = std::from_chars(name.data(), name.data() + name.size(), ranks);
  if (read.ec != std::errc() || read.ptr != name.data() + name.size()) return std::nullopt;
  return ranks;
}

// Returns the index in the file; nothing: there is no file. What is no JSON is discarded().
Result<std::optional<WorldsJson>> read_index(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::optional<WorldsJson>();
  PIPER_ASSIGN(const std::string text, read_text_file(path, int64_t{1} << 20));
  constexpr int kMaxDepth = 4;
  return std::optional(WorldsJson::parse(
      text.begin(), text.end(),
      [](int depth, WorldsJson::parse_event_t, const WorldsJson&) { return depth <= kMaxDepth; },
      false));
}

bool take_ranks(const WorldsJson& json, int64_t& ranks) {
  if (!json.is_object() || !json.contains("ranks") || !json["ranks"].is_number_unsigned())
    return false;
  ranks = json["ranks"].get<int64_t>();
  return ranks > 0;
}

bool take_worlds(const WorldsJson& json, Worlds& worlds) {
  const auto text = [](const WorldsJson& one, const char* key) {
    return one.contains(key) && one[key].is_string();
  };
  if (!json.is_object() || !json.contains("sets") || !json["sets"].is_array()) return false;
  for (const WorldsJson& one : json["sets"]) {
    Worlds::Set set;
    if (!take_ranks(one, set.ranks) || !text(one, "folder")) return false;
    set.folder = one["folder"].get<std::string>();
    if (set.folder != world_folder(set.ranks)) return false;  // no other place
    worlds.sets.push_back(std::move(set));
  }
  if (!json.contains("missing") || !json["missing"].is_array()) return false;
  for (const WorldsJson& one : json["missing"]) {
    Worlds::Missing missing;
    if (!take_ranks(one, missing.ranks) || !text(one, "why")) return false;
    missing.why = one["why"].get<std::string>();
    worlds.missing.push_back(std::move(missing));
  }
  return !worlds.sets.empty();
}

}  // namespace

std::string world_folder(int64_t ranks) { return fmt::format("{}{}", kWorldPrefix, ranks); }

Result<std::optional<Worlds>> read_worlds(const std::string& directory) {
  const std::string path = directory + "/" + kWorldsFile;
  PIPER_ASSIGN(const std::optional<WorldsJson> index, read_index(path));
  if (!index) return std::optional<Worlds>();
  const WorldsJson& json = *index;
  const bool known = json.is_object() && json.value("format", WorldsJson()) == kWorldsFormat;
  if (known && json.value("format_version", WorldsJson()) != kWorldsVersion)
    return fail(SourceSpan{path}, "it is of another version than {}", kWorldsVersion)
        .with_code(ExitCode::kPlan)
        .with_note("help: write the folder anew with 'piperc --tolerate'");
  Worlds worlds;
  if (!known || !take_worlds(json, worlds))
    return fail(SourceSpan{path}, "it is no index of plan sets that 'piperc --tolerate' wrote")
        .with_code(ExitCode::kPlan);
  return std::optional(std::move(worlds));
}

Status write_worlds(const Worlds& worlds, const std::string& directory) {
  WorldsJson json = WorldsJson::object();
  json["format"] = kWorldsFormat;
  json["format_version"] = kWorldsVersion;
  json["sets"] = WorldsJson::array();
  for (const Worlds::Set& set : worlds.sets)
    json["sets"].push_back({{"ranks", set.ranks}, {"folder", set.folder}});
  json["missing"] = WorldsJson::array();
  for (const Worlds::Missing& missing : worlds.missing)
    json["missing"].push_back({{"ranks", missing.ranks}, {"why", missing.why}});
  return write_file(directory + "/" + kWorldsFile,
                    json.dump(1, ' ', false, WorldsJson::error_handler_t::replace) + "\n");
}

namespace {

// Fails where the folder holds what is not ours. `index` is the file that says what the folders
// are, `flag` what writes them.
Status make_room_for_sets(const std::string& directory, bool force, std::string_view prefix,
                          const std::string& index, const char* flag) {
  std::error_code problem;
  if (!fs::exists(directory, problem)) return ok_status();
  if (!fs::is_directory(directory, problem))
    return fail("'{}' exists and is no directory", directory);
  bool is_empty = true;
  for (fs::directory_iterator it(directory, problem), end; !problem && it != end;
       it.increment(problem)) {
    const std::string name = it->path().filename().string();
    if (!number_of_folder(name, prefix) && name != index)
      return fail("'{}' holds '{}', which '{}' did not write; nothing was written", directory,
                  quote_control(name), flag)
          .with_note("help: choose another directory, or move that away");
    is_empty = false;
  }
  if (!problem && !is_empty && !force)
    return fail("'{}' already holds plan sets", directory).with_note("help: --force replaces them");
  // Nobody takes a folder whose sets are of two compilations: it has no index meanwhile.
  if (!problem) fs::remove(directory + "/" + index, problem);
  if (!problem) return ok_status();
  return fail("cannot replace what is in '{}': {}", directory, problem.message())
      .with_code(ExitCode::kStorage);
}

}  // namespace

Status make_room_for_worlds(const std::string& directory, bool force) {
  return make_room_for_sets(directory, force, kWorldPrefix, kWorldsFile, "piperc --tolerate");
}

// ---- Stages -------------------------------------------------------------------------------------

std::string stage_folder(size_t stage) { return fmt::format("{}{}", kStagePrefix, stage); }

Result<std::vector<PlanStage>> read_stages(const std::string& directory) {
  const std::string path = directory + "/" + kStagesFile;
  PIPER_ASSIGN(const std::optional<WorldsJson> index, read_index(path));
  if (!index) return std::vector<PlanStage>();
  const WorldsJson& json = *index;
  const auto bad = [&] {
    return fail(SourceSpan{path}, "it is no index of stages that piperc wrote")
        .with_code(ExitCode::kPlan)
        .with_note("help: write the folder anew with piperc");
  };
  if (!json.is_object() || json.value("format", WorldsJson()) != kStagesFormat ||
      json.value("format_version", WorldsJson()) != kStagesVersion || !json.contains("stages") ||
      !json["stages"].is_array() || json["stages"].empty())
    return bad();
  std::vector<PlanStage> stages;
  for (const WorldsJson& one : json["stages"]) {
    const std::string folder = stage_folder(stages.size());  // no other place
    if (!one.is_object() || one.value("folder", WorldsJson()) != folder ||
        !one.contains("first_step") || !one["first_step"].is_number_unsigned())
      return bad();
    const auto first = one["first_step"].get<int64_t>();
    if (stages.empty() ? first != 0 : first <= stages.back().first_step) return bad();
    stages.push_back({first, folder});
  }
  return stages;
}

Status write_stages(const std::vector<PlanStage>& stages, const std::string& directory) {
  WorldsJson json = WorldsJson::object();
  json["format"] = kStagesFormat;
  json["format_version"] = kStagesVersion;
  json["stages"] = WorldsJson::array();
  for (const PlanStage& stage : stages)
    json["stages"].push_back({{"first_step", stage.first_step}, {"folder", stage.folder}});
  return write_file(directory + "/" + kStagesFile, json.dump(1) + "\n");
}

Status make_room_for_stages(const std::string& directory, bool force) {
  return make_room_for_sets(directory, force, kStagePrefix, kStagesFile, "piperc");
}

}  // namespace piper
