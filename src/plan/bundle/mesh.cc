#include "fields.h"
#include "files.h"

namespace piper {

std::vector<int64_t> coordinates_of(const Mesh& mesh, int64_t rank) {
  std::vector<int64_t> coordinates(mesh.size());
  for (size_t a = mesh.size(); a-- > 0;) {
    coordinates[a] = rank % mesh[a].second;
    rank /= mesh[a].second;
  }
  return coordinates;
}

int64_t rank_of(const Mesh& mesh, const std::vector<int64_t>& coordinates) {
  int64_t rank = 0;
  for (size_t a = 0; a < mesh.size(); ++a) rank = rank * mesh[a].second + coordinates[a];
  return rank;
}

std::vector<int64_t> group_ranks(const RoleProgram& role, const Group& group,
                                 const std::vector<int64_t>& coordinates) {
  std::vector<int64_t> at = coordinates, ranks;
  for (int32_t axis : group.axes) at[axis] = 0;
  while (true) {
    ranks.push_back(rank_of(role.mesh, at));
    size_t i = group.axes.size();
    while (i > 0 && ++at[group.axes[i - 1]] == role.mesh[group.axes[i - 1]].second)
      at[group.axes[--i]] = 0;
    if (i == 0) return ranks;
  }
}

int64_t group_position(const RoleProgram& role, const Group& group,
                       const std::vector<int64_t>& coordinates) {
  int64_t position = 0;
  for (int32_t axis : group.axes) position = position * role.mesh[axis].second + coordinates[axis];
  return position;
}

int64_t peer_rank(const RoleProgram& role, const std::vector<int32_t>& peer,
                  const std::vector<int64_t>& coordinates) {
  std::vector<int64_t> at = coordinates;
  for (size_t a = 0; a < peer.size(); ++a)
    if (peer[a] >= 0) at[a] = peer[a];
  return rank_of(role.mesh, at);
}

const char* to_string(InstructionKind kind) { return kInstructionKinds[static_cast<size_t>(kind)]; }

bool takes_pairs(InstructionKind kind) {
  return (kind >= InstructionKind::kReduceScatter && kind <= InstructionKind::kRotate) ||
         kind == InstructionKind::kOwnPart || takes_index(kind);
}

bool takes_index(InstructionKind kind) {
  return kind == InstructionKind::kDispatch || kind == InstructionKind::kCombine;
}

bool is_collective(InstructionKind kind) {
  return (kind >= InstructionKind::kAllReduce && kind <= InstructionKind::kRotate) ||
         takes_index(kind);
}

std::string RoleProgram::name(const Buffer& buffer) const {
  const std::string& name = tensor(buffer).name;
  return buffer.micro < 0 ? name : fmt::format("{}@{}", name, buffer.micro);
}

int32_t RoleProgram::add_buffer(Tensor tensor, int32_t micro) {
  buffers.push_back({static_cast<int32_t>(tensors.size()), micro});
  tensors.push_back(std::move(tensor));
  return static_cast<int32_t>(buffers.size() - 1);
}

int64_t RoleProgram::peak_bytes() const {
  int64_t bytes = arena_bytes + packed_bytes + transport_bytes + scratch_bytes;
  for (int64_t workspace : workspace_bytes) bytes += workspace;
  return bytes;
}

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

// Whether every rank runs the same role as its neighbour one further along `axis`.
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
