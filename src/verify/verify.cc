#include "piper/verify.h"

#include "cells.h"

namespace piper {

Result<VerifyReport> verify_plan_set(const PlanSet& set) {
  VerifyReport result;
  verify::Report report(result);
  PIPER_ASSIGN(verify::Model model, verify::make_model(set));
  result.ranks = set.world();
  result.cells = static_cast<int64_t>(model.cells.size());
  for (const verify::Cell& cell : model.cells)
    result.instructions += static_cast<int64_t>(cell.role->body.size());
  // Each rule builds on those before it: without sound structure or partners the later ones would
  // only add noise.
  verify::check_structure(model, report);
  if (report.clean()) verify::check_transfers(model, report);
  if (report.clean()) verify::check_collectives(model, report);
  if (report.clean()) verify::check_deadlock(model, report);
  if (!report.clean()) return result;
  verify::check_order(model, report);
  verify::check_memory(model, report);
  verify::check_sums(model, report);
  return result;
}

namespace verify {

std::string Model::name(Place place) const {
  const Cell& cell = cells[static_cast<size_t>(place.cell)];
  return fmt::format("rank {} '{}' (#{})", cell.rank, at(place).label, place.at);
}

namespace {

// Axes along which peers differ and nothing else: no peer names them, and roles are equal along
// them.
std::vector<bool> find_shared_axes(const PlanSet& set,
                                   const std::vector<std::pair<std::string, int64_t>>& mesh) {
  std::vector<bool> shared(mesh.size(), true);
  for (const RoleProgram& role : set.roles)
    for (const Instruction& instruction : role.body)
      for (size_t a = 0; a < instruction.peer.size() && a < mesh.size(); ++a)
        if (instruction.peer[a] >= 0) shared[a] = false;
  int64_t stride = 1;
  for (size_t a = mesh.size(); a-- > 0;) {
    for (int64_t rank = 0; rank < set.world() && shared[a]; ++rank) {
      const int64_t coordinate = rank / stride % mesh[a].second;
      const int64_t first = rank - coordinate * stride;
      if (set.role_of_rank[static_cast<size_t>(rank)] !=
          set.role_of_rank[static_cast<size_t>(first)])
        shared[a] = false;
    }
    stride *= mesh[a].second;
  }
  return shared;
}

}  // namespace

Result<Model> make_model(const PlanSet& set) {
  Model model;
  model.mesh = set.manifest.mesh;
  int64_t world = 1;
  for (const auto& [name, size] : model.mesh) world *= size;
  if (world != set.world())
    return fail("the mesh has {} devices, but {} ranks have plans", world, set.world())
        .with_code(ExitCode::kPlan);
  for (int32_t role : set.role_of_rank)
    if (role < 0 || static_cast<size_t>(role) >= set.roles.size())
      return fail("a rank has no role program").with_code(ExitCode::kPlan);
  for (const RoleProgram& role : set.roles)
    if (role.mesh != model.mesh)
      return fail("a role program is for another mesh").with_code(ExitCode::kPlan);
  model.shared_axis = find_shared_axes(set, model.mesh);
  for (int64_t rank = 0; rank < world; ++rank) {
    const auto coordinates = coordinates_of(model.mesh, rank);
    bool lowest = true;
    for (size_t a = 0; a < coordinates.size(); ++a)
      lowest = lowest && (!model.shared_axis[a] || coordinates[a] == 0);
    if (!lowest) continue;
    Cell cell;
    cell.role = &set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])];
    cell.rank = rank;
    cell.coordinates = coordinates;
    cell.partner.resize(cell.role->body.size());
    cell.meeting.assign(cell.role->body.size(), -1);
    model.cells.push_back(std::move(cell));
  }
  return model;
}

}  // namespace verify
}  // namespace piper
