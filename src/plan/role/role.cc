// Ranks, coordinates and groups of a mesh; names and sizes of a role's buffers.
#include "piper/plan/role.h"

#include <algorithm>

namespace piper {

int64_t ranks_of(const Mesh& mesh) {
  int64_t ranks = 1;
  for (const auto& [name, size] : mesh) ranks *= size;
  return ranks;
}

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

std::string RoleProgram::name(const Buffer& buffer) const {
  const std::string& name = tensor(buffer).name;
  return buffer.micro < 0 ? name : fmt::format("{}@{}", name, buffer.micro);
}

const Tensor& RoleProgram::original(const Tensor& tensor) const {
  const Tensor& newest = this->newest(tensor);
  return newest.copy_of < 0 ? newest : this->tensor(newest.copy_of);
}

const Tensor& RoleProgram::newest(const Tensor& tensor) const {
  const Tensor* newest = &tensor;
  while (newest->previous_of >= 0) newest = &this->tensor(newest->previous_of);
  return *newest;
}

int32_t RoleProgram::age(const Tensor& tensor) const {
  int32_t age = 0;
  for (int32_t of = tensor.previous_of; of >= 0; of = this->tensor(of).previous_of) ++age;
  return age;
}

int32_t RoleProgram::add_buffer(Tensor tensor, int32_t micro) {
  buffers.push_back({static_cast<int32_t>(tensors.size()), micro});
  tensors.push_back(std::move(tensor));
  return static_cast<int32_t>(buffers.size() - 1);
}

std::vector<const std::vector<Instruction>*> RoleProgram::sections() const {
  std::vector<const std::vector<Instruction>*> all = {&prologue, &body, &epilogue, &evaluation};
  for (const OuterUpdate& update : outer_updates) all.push_back(&update.instructions);
  return all;
}
std::vector<std::vector<Instruction>*> RoleProgram::sections() {
  std::vector<std::vector<Instruction>*> all = {&prologue, &body, &epilogue, &evaluation};
  for (OuterUpdate& update : outer_updates) all.push_back(&update.instructions);
  return all;
}

int64_t RoleProgram::samples() const {
  int64_t shares = 1;
  for (const DataInput& input : inputs) shares = std::max(shares, input.shares);
  return batch * shares;
}

int64_t RoleProgram::peak_bytes() const {
  int64_t bytes = arena_bytes + packed_bytes + transport_bytes + scratch_bytes;
  for (int64_t workspace : workspace_bytes) bytes += workspace;
  return bytes;
}

}  // namespace piper
