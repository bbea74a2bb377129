// Which ranks of a mesh share a role, by axis; sizes that files state.
#include "fields.h"
#include "files.h"

namespace piper {

std::optional<int64_t> world_of(const Mesh& mesh) {
  int64_t world = 1;
  for (const auto& [name, size] : mesh) {
    if (size < 1 || size > kMaxWorld || world * size > kMaxWorld) return std::nullopt;
    world *= size;
  }
  return world;
}

std::optional<int64_t> bytes_of(const TensorType& type) {
  if (type.shape.size() > 16) return std::nullopt;
  // Without empty dims first: [0, huge, huge] must not overflow either.
  int64_t bytes = info(type.dtype).bytes;
  bool empty = false;
  for (int64_t dim : type.shape) {
    if (dim < 0) return std::nullopt;
    empty |= dim == 0;
    if (dim > 0 && __builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

namespace {

// Returns whether every rank runs the same role as its neighbour one further along `axis`.
bool independent_of(const std::vector<std::string>& roles, int64_t stride, int64_t size) {
  for (int64_t rank = 0; rank < static_cast<int64_t>(roles.size()); ++rank)
    if (rank / stride % size != 0 && roles[rank] != roles[rank - stride]) return false;
  return true;
}

}  // namespace

RoleTable fold_roles(const Mesh& mesh, const std::vector<std::string>& role_of_rank) {
  RoleTable table;
  std::vector<bool> kept(mesh.size());
  int64_t stride = 1;
  for (size_t a = mesh.size(); a-- > 0; stride *= mesh[a].second)
    kept[a] = !independent_of(role_of_rank, stride, mesh[a].second);
  for (size_t a = 0; a < mesh.size(); ++a)
    if (kept[a]) table.axes.push_back(mesh[a].first);
  for (int64_t rank = 0; rank < static_cast<int64_t>(role_of_rank.size()); ++rank) {
    const std::vector<int64_t> at = coordinates_of(mesh, rank);
    bool first = true;
    for (size_t a = 0; a < mesh.size(); ++a) first &= kept[a] || at[a] == 0;
    if (first) table.roles.push_back(role_of_rank[rank]);
  }
  return table;
}

Result<std::vector<std::string>> unfold_roles(const Mesh& mesh, const RoleTable& table,
                                              const std::string& path) {
  Mesh kept;
  std::vector<bool> is_kept(mesh.size());
  for (size_t a = 0; a < mesh.size(); ++a)
    if (kept.size() < table.axes.size() && mesh[a].first == table.axes[kept.size()]) {
      kept.push_back(mesh[a]);
      is_kept[a] = true;
    }
  const auto world = world_of(mesh), cells = world_of(kept);
  if (kept.size() != table.axes.size() || !world || !cells ||
      *cells != static_cast<int64_t>(table.roles.size()))
    return fail(SourceSpan{path}, "the roles do not cover the mesh").with_code(ExitCode::kPlan);
  std::vector<std::string> roles;
  for (int64_t rank = 0; rank < *world; ++rank) {
    const std::vector<int64_t> at = coordinates_of(mesh, rank);
    std::vector<int64_t> cell;
    for (size_t a = 0; a < mesh.size(); ++a)
      if (is_kept[a]) cell.push_back(at[a]);
    roles.push_back(table.roles[rank_of(kept, cell)]);
  }
  return roles;
}

std::string role_file(const std::string& digest) { return "roles/" + digest + ".pb"; }
std::string rank_file(int64_t rank) { return fmt::format("rank{}.plan", rank); }

}  // namespace piper
