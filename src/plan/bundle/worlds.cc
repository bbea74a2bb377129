// Writes and reads the indices of folders of several plan sets.
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "files.h"
#include "piper/base/folders.h"

namespace piper {
namespace {

namespace fs = std::filesystem;
using WorldsJson = nlohmann::ordered_json;
constexpr std::string_view kWorldPrefix = "world-";

constexpr std::string_view kStagePrefix = "stage-";

// Returns the number behind the prefix in a folder's name; nothing of other names.
std::optional<int64_t> number_of_folder(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t number = 0;
  const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
  if (read.ec != std::errc() || read.ptr != name.data() + name.size()) return std::nullopt;
  return number;
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

std::string world_folder(int64_t ranks) { return fmt::format("{}{}", kWorldPrefix, ranks); }
std::string stage_folder(size_t stage) { return fmt::format("{}{}", kStagePrefix, stage); }

bool take_digest(const WorldsJson& json, std::string& to) {
  if (!json.contains("manifest") || !json["manifest"].is_string()) return false;
  to = json["manifest"].get<std::string>();
  return true;
}

bool take_ranks(const WorldsJson& json, int64_t& ranks) {
  if (!json.is_object() || !json.contains("ranks") || !json["ranks"].is_number_unsigned())
    return false;
  ranks = json["ranks"].get<int64_t>();
  return ranks > 0;
}

// Folders have the names that piperc gives them: nothing in an index leads to another place.
bool take_sets(const WorldsJson& json, const std::string& directory, PlanFolder& out) {
  for (const WorldsJson& one : json) {
    PlanFolder::Set set;
    if (!take_ranks(one, set.ranks)) return false;
    const std::string folder = world_folder(set.ranks);
    if (one.value("folder", WorldsJson()) != folder || !take_digest(one, set.manifest))
      return false;
    set.directory = directory + "/" + folder;
    out.sets.push_back(std::move(set));
  }
  return !out.sets.empty();
}

bool take_missing(const WorldsJson& json, PlanFolder& out) {
  for (const WorldsJson& one : json) {
    PlanFolder::Missing missing;
    if (!take_ranks(one, missing.ranks) || !one.contains("why") || !one["why"].is_string())
      return false;
    missing.why = one["why"].get<std::string>();
    out.missing.push_back(std::move(missing));
  }
  return true;
}

bool take_worlds(const WorldsJson& json, const std::string& directory, PlanFolder& out) {
  out.kind = PlanFolder::Kind::kWorlds;
  const auto is_list = [&](const char* key) { return json.contains(key) && json[key].is_array(); };
  return is_list("sets") && is_list("missing") && take_sets(json["sets"], directory, out) &&
         take_missing(json["missing"], out);
}

bool take_stages(const WorldsJson& json, const std::string& directory, PlanFolder& out) {
  out.kind = PlanFolder::Kind::kStages;
  if (!json.contains("stages") || !json["stages"].is_array()) return false;
  for (const WorldsJson& one : json["stages"]) {
    const std::string folder = stage_folder(out.sets.size());
    if (!one.is_object() || one.value("folder", WorldsJson()) != folder ||
        !one.contains("first_step") || !one["first_step"].is_number_unsigned())
      return false;
    const auto first = one["first_step"].get<int64_t>();
    if (out.sets.empty() ? first != 0 : first <= out.sets.back().first_step) return false;
    PlanFolder::Set set{.directory = directory + "/" + folder, .first_step = first};
    if (!take_digest(one, set.manifest)) return false;
    out.sets.push_back(std::move(set));
  }
  return !out.sets.empty();
}

// Describes one kind of folder with several sets.
struct KindOfFolder {
  const char* file;
  std::string_view prefix;
  const char* format;
  int version;
  const char* what;
  bool (*take)(const WorldsJson&, const std::string& directory, PlanFolder&);
};
constexpr KindOfFolder kFolders[] = {
    {"worlds.json", kWorldPrefix, "piper worlds", 2,
     "index of plan sets that 'piperc --tolerate' wrote", take_worlds},
    {"stages.json", kStagePrefix, "piper stages", 2,
     "index of plan sets that piperc wrote for 'rampup'", take_stages}};

std::string print_index(const WorldsJson& json) {
  return json.dump(1, ' ', false, WorldsJson::error_handler_t::replace) + "\n";
}

// Returns whether an index is as it was written: steps and folders are no plans, whose digests
// would tell.
bool is_unchanged(WorldsJson json) {
  const WorldsJson stated = json.value("digest", WorldsJson());
  json.erase("digest");
  return stated == digest(print_index(json));
}

// Returns whether a set is the one that was written with the index. One that cannot be read is:
// whoever reads it says why not.
bool is_own_set(const PlanFolder::Set& set) {
  const auto text = read_text_file(set.directory + "/manifest.json", int64_t{64} << 20);
  return !text || digest(*text) == set.manifest;
}

bool is_of(const WorldsJson& json, const KindOfFolder& kind) {
  return json.is_object() && json.value("format", WorldsJson()) == kind.format;
}

Status write_index(const std::string& directory, const KindOfFolder& kind, WorldsJson contents) {
  WorldsJson json = WorldsJson::object();
  json["format"] = kind.format;
  json["format_version"] = kind.version;
  json.update(contents);
  json["digest"] = digest(print_index(json));
  return write_file(directory + "/" + kind.file, print_index(json));
}

}  // namespace

Result<PlanFolder> read_plan_folder(const std::string& directory) {
  for (const KindOfFolder& kind : kFolders) {
    const std::string path = directory + "/" + kind.file;
    PIPER_ASSIGN(const std::optional<WorldsJson> json, read_index(path));
    if (!json) continue;
    const auto bad = [&](const std::string& why) {
      return fail(SourceSpan{path}, "{}", why)
          .with_code(ExitCode::kPlan)
          .with_note("help: write the folder anew with piperc");
    };
    if (is_of(*json, kind) && json->value("format_version", WorldsJson()) != kind.version)
      return bad(fmt::format("it is of another version than {}", kind.version));
    PlanFolder folder;
    if (!is_of(*json, kind) || !kind.take(*json, directory, folder))
      return bad(fmt::format("it is no {}", kind.what));
    if (!is_unchanged(*json)) return bad("the file was modified: it does not match its digest");
    for (const PlanFolder::Set& set : folder.sets)
      if (!is_own_set(set))
        return bad(fmt::format("{} is not the plan set that was written there with it",
                               name_in_folder(set)));
    return folder;
  }
  PlanFolder one;
  one.sets.push_back({.directory = directory});
  return one;
}

std::vector<std::string> files_of_plans(const std::string& directory) {
  std::vector<std::string> files;
  const auto add = [&](const std::string& folder, bool is_own) {
    for (const std::string& file : files_in(folder))
      if (is_own || file.ends_with(".plan") || file == "manifest.json")
        files.push_back(folder + "/" + file);
  };
  for (const char* set : {"", "/single", "/uncut"}) {
    add(directory + set, false);
    for (const char* folder : {"/roles", "/params"}) add(directory + set + folder, true);
  }
  return files;
}

std::string name_in_folder(const PlanFolder::Set& set) {
  return set.directory.substr(set.directory.rfind('/') + 1);
}

SeveralSets several_sets_in(const std::string& directory) {
  SeveralSets found;
  std::error_code problem;
  for (fs::directory_iterator it(directory, problem), end; !problem && it != end;
       it.increment(problem)) {
    const std::string name = it->path().filename().string();
    for (const KindOfFolder& kind : kFolders) {
      if (number_of_folder(name, kind.prefix)) found.folders.push_back(name);
      if (name != kind.file) continue;
      const Result<std::optional<WorldsJson>> json = read_index(it->path().string());
      if (json && *json && is_of(**json, kind)) found.indices.push_back(name);
    }
  }
  return found;
}

Status write_worlds(std::span<const SetWithOracles> sets,
                    std::span<const PlanFolder::Missing> missing, const std::string& directory,
                    const WriteOptions& options) {
  return replace_plans(directory, options, [&](const std::string& built) -> Status {
    WorldsJson json;
    json["sets"] = json["missing"] = WorldsJson::array();
    for (const SetWithOracles& one : sets) {
      const std::string folder = world_folder(one.set->world());
      PIPER_ASSIGN(const std::string manifest, write_sets(one, built + "/" + folder));
      json["sets"].push_back(
          {{"ranks", one.set->world()}, {"folder", folder}, {"manifest", manifest}});
    }
    for (const PlanFolder::Missing& one : missing)
      json["missing"].push_back({{"ranks", one.ranks}, {"why", one.why}});
    return write_index(built, kFolders[0], std::move(json));
  });
}

Status write_stages(std::span<const SetWithOracles> sets, std::span<const int64_t> first_steps,
                    const std::string& directory, const WriteOptions& options) {
  PIPER_CHECK(sets.size() == first_steps.size());
  return replace_plans(directory, options, [&](const std::string& built) -> Status {
    WorldsJson json;
    json["stages"] = WorldsJson::array();
    for (size_t stage = 0; stage < sets.size(); ++stage) {
      const std::string folder = stage_folder(stage);
      PIPER_ASSIGN(const std::string manifest, write_sets(sets[stage], built + "/" + folder));
      json["stages"].push_back(
          {{"first_step", first_steps[stage]}, {"folder", folder}, {"manifest", manifest}});
    }
    return write_index(built, kFolders[1], std::move(json));
  });
}

}  // namespace piper
