// Reads a plan set from its folder, file by file.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "bad.h"
#include "files.h"
#include "piper/base/data.h"
#include "piper/plan/trained_parts.h"

namespace piper {
namespace {

// What is wrong with a file is wrong with the plans; what the system refuses is not.
template <class T>
Result<T> as_plan_error(Result<T> result) {
  if (!result && result.error().code != ExitCode::kStorage) result.error().code = ExitCode::kPlan;
  return result;
}

Result<Manifest> read_manifest(const std::string& directory) {
  const std::string path = directory + "/manifest.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    PIPER_ASSIGN(const PlanFolder folder, read_plan_folder(directory));
    if (folder.kind == PlanFolder::Kind::kOne)
      return bad_at(directory, "{}",
                    "this is no plan set: it has no manifest.json; expected a folder that piperc "
                    "-o wrote");
    std::vector<std::string> names;
    for (const PlanFolder::Set& set : folder.sets) names.push_back(set.directory);
    return bad_at(directory, "it has {} plan sets: name one of them, {}", names.size(),
                  join(names, ", "));
  }
  PIPER_ASSIGN(const std::string text, as_plan_error(read_text_file(path, int64_t{64} << 20)));
  return parse_manifest(text, path);
}

Result<RoleProgram> read_role(const std::string& directory, const Manifest& manifest,
                              const std::string& id) {
  const std::string name = role_file(id), path = directory + "/" + name;
  const auto listed = manifest.files.find(name);
  if (listed == manifest.files.end())
    return bad_at(path, "the manifest does not list this role program");
  PIPER_ASSIGN(const Bytes file, as_plan_error(map_file(path)));
  PIPER_ASSIGN(const std::string_view payload, unwrap(kRoleMagic, as_text(file.span()), path));
  if (digest(as_text(file.span())) != listed->second || digest(payload) != id)
    return bad_at(
        path, "the role program is of another compilation: its digest is {}, the manifest names {}",
        digest(payload), id);
  PIPER_ASSIGN(RoleProgram role, decode_role(payload, path));
  if (role.mesh != manifest.mesh)
    return bad_at(path, "the role program is for another mesh than the manifest");
  return role;
}

Result<RankHeader> read_header(const std::string& path) {
  PIPER_ASSIGN(const Bytes file, as_plan_error(map_file(path)));
  PIPER_ASSIGN(const std::string_view payload, unwrap(kRankMagic, as_text(file.span()), path));
  return decode_header(payload, path);
}

// Everything that a header says follows from the manifest.
Status check_header(const std::string& path, const RankHeader& header, int64_t rank,
                    const PlanSet& set, const PlanOutline& outline) {
  if (header.set_id != set.manifest.set_id)
    return bad_at(path,
                  "this plan is of another compilation: its plan set is {}, the manifest's is {}",
                  quote_control(header.set_id), set.manifest.set_id);
  if (header.rank < 0 || header.rank >= set.world())
    return bad_at(path, "rank {} is outside the world of {}", header.rank, set.world());
  if (rank >= 0 && header.rank != rank)
    return bad_at(path, "this is the plan of rank {}", header.rank);
  if (header.coordinates != coordinates_of(set.manifest.mesh, header.rank))
    return bad_at(path, "the coordinates are not those of rank {}", header.rank);
  const std::string& role = outline.roles[set.role_of_rank[header.rank]];
  if (header.role != role)
    return bad_at(path, "rank {} binds role {}, the manifest says {}", header.rank,
                  quote_control(header.role), role);
  return ok_status();
}

std::string init_path(const PlanSet& set) {
  const std::string own = kInitFile, shared = "../" + own;
  return set.directory + "/" + (set.manifest.files.contains(shared) ? shared : own);
}

Status check_initial(const std::string& path, const RoleProgram& role, const Tensor& tensor,
                     const TensorType* stored) {
  if (stored == nullptr)
    return bad_at(path, "buffer '{}' wants the initial value '{}', which is not there",
                  quote_control(tensor.name), quote_control(tensor.init));
  const TensorType type = by_itself(tensor).whole_type();
  if (stored->dtype != role.original(tensor).type.dtype || stored->shape != type.shape)
    return bad_at(path, "'{}' is {}, but buffer '{}' is {}", quote_control(tensor.init),
                  to_string(*stored), quote_control(tensor.name), to_string(type));
  return ok_status();
}

// Reads names and types of the initial values, and checks that each one that a role names is there.
Status read_tensor_types(PlanSet& set) {
  const std::string path = init_path(set);
  PIPER_ASSIGN(const std::vector<NamedTensor> tensors, as_plan_error(read_safetensors(path)));
  std::map<std::string_view, const TensorType*> by_name;
  for (const NamedTensor& stored : tensors) {
    set.tensor_types.emplace_back(stored.name, stored.type);
    by_name[stored.name] = &stored.type;
  }
  for (const RoleProgram& role : set.roles)
    for (const Tensor& tensor : role.tensors) {
      if (tensor.init.empty()) continue;
      const auto found = by_name.find(tensor.init);
      PIPER_TRY(
          check_initial(path, role, tensor, found == by_name.end() ? nullptr : found->second));
    }
  return ok_status();
}

// Returns a set without its roles.
PlanSet opened(const PlanOutline& outline) {
  PlanSet set;
  set.directory = outline.directory;
  set.manifest = outline.manifest;
  set.role_of_rank = outline.role_of_rank;
  set.roles.resize(outline.roles.size());
  return set;
}

// Returns a window of a mapped file whose pages leave memory with the last reader: initial values
// are read once, and would otherwise stay beside the buffers they were copied to.
Bytes passing(Bytes mapped) {
  const auto forget = [mapped](const void*) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<uintptr_t>(mapped.data);
    const uintptr_t begin = first / page * page;
    madvise(reinterpret_cast<void*>(begin), first + mapped.size - begin, MADV_DONTNEED);
  };
  return Bytes::deferred(mapped.size, [mapped, forget] {
    return Bytes{std::shared_ptr<const void>(mapped.data, forget), mapped.data, mapped.size};
  });
}

}  // namespace

Result<PlanOutline> read_plan_outline(const std::string& directory) {
  PlanOutline outline{directory, {}, {}, {}};
  PIPER_ASSIGN(outline.manifest, read_manifest(directory));
  const Manifest& manifest = outline.manifest;
  PIPER_ASSIGN(const std::vector<std::string> role_of_rank,
               unfold_roles(manifest.mesh, {manifest.role_axes, manifest.role_of_rank},
                            directory + "/manifest.json"));
  std::map<std::string_view, int32_t> known;
  for (const std::string& role : role_of_rank) {
    const auto [found, is_new] = known.try_emplace(role, static_cast<int32_t>(known.size()));
    if (is_new) outline.roles.push_back(role);
    outline.role_of_rank.push_back(found->second);
  }
  return outline;
}

Result<RoleProgram> read_role(const PlanOutline& outline, size_t role) {
  return read_role(outline.directory, outline.manifest, outline.roles[role]);
}

Result<PlanSet> read_plan_set(const std::string& directory) {
  PIPER_ASSIGN(const PlanOutline outline, read_plan_outline(directory));
  PlanSet set = opened(outline);
  std::vector<bool> read(set.roles.size());
  for (int64_t rank = 0; rank < set.world(); ++rank) {
    const std::string path = directory + "/" + rank_file(rank);
    PIPER_ASSIGN(const RankHeader header, read_header(path));
    PIPER_TRY(check_header(path, header, rank, set, outline));
    const auto role = static_cast<size_t>(set.role_of_rank[rank]);
    if (read[role]) continue;
    PIPER_ASSIGN(set.roles[role], read_role(outline, role));
    read[role] = true;
  }
  PIPER_TRY(read_tensor_types(set));
  for (const char* oracle : {"single", "uncut"}) {
    const std::string name = std::string(oracle) + "/manifest.json", path = directory + "/" + name;
    const auto listed = set.manifest.files.find(name);
    if (listed == set.manifest.files.end()) continue;
    PIPER_ASSIGN(const Bytes file, as_plan_error(map_file(path)));
    if (digest(as_text(file.span())) != listed->second)
      return bad_at(path, "the oracle's plan set is of another compilation, or was modified");
  }
  return set;
}

Result<RankPlan> read_rank_plan(const std::string& file) {
  PIPER_ASSIGN(RankHeader header, read_header(file));
  const std::filesystem::path path(file);
  const std::string parent = path.has_parent_path() ? path.parent_path().string() : ".";
  PIPER_ASSIGN(const PlanOutline outline, read_plan_outline(parent));
  PlanSet set = opened(outline);
  PIPER_TRY(check_header(file, header, -1, set, outline));
  if (path.filename() != rank_file(header.rank))
    return bad_at(file, "this is the plan of rank {}; its file is named {}", header.rank,
                  rank_file(header.rank));
  const auto role = static_cast<size_t>(set.role_of_rank[header.rank]);
  PIPER_ASSIGN(set.roles[role], read_role(outline, role));
  PIPER_TRY(read_tensor_types(set));
  return RankPlan{std::move(header), std::move(set)};
}

Status load_params(PlanSet& set) {
  const std::string path = init_path(set);
  for (const auto& [name, hash] : set.manifest.files) {
    if (!name.ends_with(kInitFile)) continue;
    PIPER_ASSIGN(const Bytes file, as_plan_error(map_file(path)));
    if (digest(as_text(file.span())) != hash)
      return bad_at(path, "the initial values are of another compilation, or were modified");
  }
  PIPER_ASSIGN(std::vector<NamedTensor> tensors, as_plan_error(read_safetensors(path)));
  set.tensors.clear();
  for (NamedTensor& tensor : tensors)
    set.tensors.emplace_back(std::move(tensor.name), passing(std::move(tensor.data)));
  return ok_status();
}

}  // namespace piper
