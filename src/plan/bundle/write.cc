// Writing a plan set: built beside the target, then exchanged with it in one step.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "files.h"
#include "piper/base/data.h"
#include "piper/base/folders.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

// Writes without flushing to the disk: a set that was cut off by a power failure shows in its
// digests.
Status write_small(const std::string& path, std::string_view bytes) {
  const int handle = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (handle < 0) return cannot_store("write", path, errno);
  while (!bytes.empty()) {
    const ssize_t count = write(handle, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int problem = errno;
      close(handle);
      return cannot_store("write", path, problem);
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  if (close(handle) != 0) return cannot_store("write", path, errno);
  return ok_status();
}

Status make_directory(const std::string& path) {
  std::error_code problem;
  fs::create_directories(path, problem);
  if (problem) return cannot_store("create", path, problem.value());
  return ok_status();
}

// Writes roles and ranks below `directory` and returns the digest of the manifest. `files` are
// those that exist already.
Result<std::string> write_roles(const PlanSet& set, const std::string& directory,
                                std::map<std::string, std::string> files) {
  PIPER_TRY(make_directory(directory + "/roles"));
  std::vector<std::string> digests;
  for (const RoleProgram& role : set.roles) {
    const std::string payload = encode_role(role);
    digests.push_back(digest(payload));
    const std::string name = role_file(digests.back()), file = wrap(kRoleMagic, payload);
    if (files.contains(name)) continue;  // two equal roles
    PIPER_TRY(write_small(directory + "/" + name, file));
    files[name] = digest(file);
  }
  Manifest manifest = set.manifest;
  manifest.format_version = kPlanFormatVersion;
  manifest.mesh = set.roles.at(0).mesh;
  manifest.files = std::move(files);
  std::vector<std::string> role_of_rank;
  for (int32_t role : set.role_of_rank)
    role_of_rank.push_back(digests.at(static_cast<size_t>(role)));
  RoleTable table = fold_roles(manifest.mesh, role_of_rank);
  manifest.role_axes = std::move(table.axes);
  manifest.role_of_rank = std::move(table.roles);
  manifest.set_id = set_id_of(manifest);
  for (int64_t rank = 0; rank < set.world(); ++rank) {
    const RankHeader header{static_cast<int32_t>(rank), coordinates_of(manifest.mesh, rank),
                            role_of_rank[rank], manifest.set_id};
    PIPER_TRY(
        write_small(directory + "/" + rank_file(rank), wrap(kRankMagic, encode_header(header))));
  }
  const std::string text = print_manifest(manifest);
  PIPER_TRY(write_small(directory + "/manifest.json", text));
  return digest(text);
}

// Returns the initial values of all sets, each name once.
Result<std::string> write_params(std::span<const PlanSet* const> sets,
                                 const std::string& directory) {
  std::vector<NamedTensor> tensors;
  std::map<std::string_view, size_t> place;
  for (const PlanSet* set : sets) {
    PIPER_CHECK(set->tensors.size() == set->tensor_types.size());
    for (size_t t = 0; t < set->tensors.size(); ++t) {
      const auto& [name, data] = set->tensors[t];
      const auto [found, is_new] = place.emplace(name, tensors.size());
      if (is_new)
        tensors.push_back({name, set->tensor_types[t].second, data});
      else
        PIPER_CHECK(tensors[found->second].type == set->tensor_types[t].second,
                    "two initial values named {}", name);
    }
  }
  PIPER_TRY(make_directory(directory + "/params"));
  const std::string path = directory + "/" + kInitFile;
  return write_safetensors_part(path, tensors);
}

}  // namespace

Result<std::string> write_sets(const SetWithOracles& sets, const std::string& directory) {
  std::vector<const PlanSet*> all{sets.set};
  for (const PlanSet* oracle : {sets.single, sets.uncut})
    if (oracle) all.push_back(oracle);
  PIPER_ASSIGN(const std::string params, write_params(all, directory));
  std::map<std::string, std::string> files{{kInitFile, params}};
  const std::pair<const char*, const PlanSet*> oracles[] = {{"single", sets.single},
                                                            {"uncut", sets.uncut}};
  for (const auto& [name, oracle] : oracles) {
    if (!oracle) continue;
    const std::string below = directory + "/" + name;
    PIPER_ASSIGN(const std::string manifest,
                 write_roles(*oracle, below, {{"../" + std::string(kInitFile), params}}));
    files[std::string(name) + "/manifest.json"] = manifest;
  }
  return write_roles(*sets.set, directory, std::move(files));
}

namespace {

// Lists all files that a set's manifest, of whatever version, accounts for, relative to its
// directory; the manifest itself comes last.
void list_set(const std::string& directory, const std::string& below,
              std::vector<std::string>& files) {
  const auto text = read_text_file(directory + "/" + below + "manifest.json", int64_t{64} << 20);
  if (!text || !is_manifest(*text)) return;
  if (const auto manifest = manifest_outline(*text); manifest) {
    for (const auto& [name, hash] : manifest->files) {
      const size_t slash = name.find("/manifest.json");
      if (slash != name.npos)
        list_set(directory, below + name.substr(0, slash) + "/", files);
      else if (!name.starts_with("../"))
        files.push_back(below + name);
    }
    for (int64_t rank = 0; rank < *world_of(manifest->mesh); ++rank)
      files.push_back(below + rank_file(rank));
  }
  files.push_back(below + "manifest.json");
}

// The files of the plan set in `directory`, or why it must not be replaced.
Result<std::vector<std::string>> check_replaceable(const std::string& directory, bool force) {
  std::error_code problem;
  if (!fs::is_directory(directory, problem))
    return fail("'{}' exists and is no directory", directory);
  std::vector<std::string> found, own;
  for (fs::recursive_directory_iterator it(directory, problem), end; !problem && it != end;
       it.increment(problem))
    if (!it->is_directory(problem) || it->is_symlink(problem))
      found.push_back(it->path().lexically_relative(directory).string());
  if (problem) return cannot_store("read", directory, problem.value());
  std::sort(found.begin(), found.end());
  list_set(directory, "", own);
  const SeveralSets several = several_sets_in(directory);
  own.insert(own.end(), several.indices.begin(), several.indices.end());
  for (const std::string& folder : several.folders) list_set(directory, folder + "/", own);
  std::vector<std::string> sorted = own;
  std::sort(sorted.begin(), sorted.end());
  for (const std::string& name : found)
    if (!std::binary_search(sorted.begin(), sorted.end(), name))
      return fail("'{}' holds '{}', which belongs to no plan set; nothing was written", directory,
                  quote_control(name))
          .with_note("help: choose another directory, or move that file away");
  if (!own.empty() && !force)
    return fail("'{}' already holds a plan set", directory).with_note("help: --force replaces it");
  return own;
}

// Deletes the named files and then the directories that this leaves empty.
void remove_set(const std::string& directory, const std::vector<std::string>& files) {
  std::error_code ignored;
  std::set<fs::path, std::greater<>> folders{directory};  // those below others first
  for (const std::string& name : files) {
    const fs::path file = fs::path(directory) / name;
    fs::remove(file, ignored);
    for (fs::path above = file.parent_path(); above != directory; above = above.parent_path())
      folders.insert(above);
  }
  // It fails, as it should, where something is left.
  for (const fs::path& folder : folders) fs::remove(folder, ignored);
}

Status exchange(const std::string& built, const std::string& target,
                const std::vector<std::string>& old) {
  if (old.empty()) {
    // The target is an empty directory or none: rename replaces either.
    if (rename(built.c_str(), target.c_str()) != 0) return cannot_store("write", target, errno);
    return ok_status();
  }
  PIPER_ASSIGN(const std::string aside, replace_folder(built, target));
  remove_set(aside, old);
  return ok_status();
}

struct PlanTarget {
  fs::path path;
  std::vector<std::string> old;  // files of plans that are there
};

Result<PlanTarget> target_of(const std::string& directory, const WriteOptions& options) {
  std::error_code problem;
  PlanTarget target{fs::weakly_canonical(fs::absolute(directory, problem), problem), {}};
  if (problem || directory.empty()) return fail("cannot write to '{}'", directory);
  if (!target.path.has_filename()) target.path = target.path.parent_path();
  if (fs::exists(target.path, problem)) {
    PIPER_ASSIGN(target.old, check_replaceable(target.path.string(), options.force));
  }
  return target;
}

}  // namespace

Status check_plan_folder(const std::string& directory, const WriteOptions& options) {
  PIPER_ASSIGN(const PlanTarget target, target_of(directory, options));
  fs::path above = target.path.parent_path();
  std::error_code problem;
  while (!fs::exists(above, problem) && above.has_relative_path()) above = above.parent_path();
  if (fs::is_directory(above, problem) && access(above.c_str(), W_OK) == 0) return ok_status();
  return fail("cannot write '{}': {} is not a directory one can write to", directory,
              above.string())
      .with_code(ExitCode::kStorage);
}

Status replace_plans(const std::string& directory, const WriteOptions& options,
                     const std::function<Status(const std::string& built)>& fill) {
  PIPER_ASSIGN(const PlanTarget found, target_of(directory, options));
  const auto& [target, old] = found;
  std::error_code problem;
  PIPER_TRY(make_directory(target.parent_path().string()));
  std::string built = target.string() + ".XXXXXX";
  if (!mkdtemp(built.data())) return cannot_store("create", built, errno);
  fs::permissions(built, fs::perms(0755), problem);
  Status done = fill(built);
  if (done) done = exchange(built, target.string(), old);
  if (!done) fs::remove_all(built, problem);
  return done;
}

Status write_plan_set(const PlanSet& set, const PlanSet* single, const PlanSet* uncut,
                      const std::string& directory, const WriteOptions& options) {
  return replace_plans(directory, options, [&](const std::string& built) -> Status {
    PIPER_TRY(write_sets({&set, single, uncut}, built));
    return ok_status();
  });
}

}  // namespace piper
