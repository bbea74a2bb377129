// Mutations of what ranks hold of states that are cut over axes of replicas: over another axis, by
// axes in another order, or put together along another one.
#include "mutation/places.h"

namespace piper::mutation {
namespace {

int64_t ranks_of(const RoleProgram& role, const std::vector<int32_t>& axes) {
  int64_t ranks = 1;
  for (const int32_t axis : axes) ranks *= role.mesh[static_cast<size_t>(axis)].second;
  return ranks;
}

// Returns the groups of as many ranks as this one, over other axes or in another order.
std::vector<std::vector<int32_t>> others_of(const RoleProgram& role, int32_t group) {
  const std::vector<int32_t>& own = role.groups[static_cast<size_t>(group)].axes;
  std::vector<std::vector<int32_t>> others;
  std::vector<int32_t> turned = own;
  std::ranges::reverse(turned);
  if (turned != own) others.push_back(turned);
  for (const auto& [name, axes] : role.groups)
    if (axes != own && axes != turned && ranks_of(role, axes) == ranks_of(role, own))
      others.push_back(axes);
  for (int32_t axis = 0; axis < static_cast<int32_t>(role.mesh.size()); ++axis)
    if (own != std::vector{axis} && ranks_of(role, {axis}) == ranks_of(role, own))
      others.push_back({axis});
  return others;
}

int32_t group_over(RoleProgram& role, const std::vector<int32_t>& axes) {
  for (size_t g = 0; g < role.groups.size(); ++g)
    if (role.groups[g].axes == axes) return static_cast<int32_t>(g);
  role.groups.push_back({"other", axes});
  return static_cast<int32_t>(role.groups.size() - 1);
}

// Changes what every role says of a state of this name, as one wrong compiler would.
Done change_state_axes(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  std::vector<const Tensor*> cut;
  for (const Tensor& tensor : role.tensors)
    if (tensor.part_of >= 0 && !others_of(role, tensor.part_of).empty()) cut.push_back(&tensor);
  if (cut.empty()) return std::nullopt;
  const Tensor& chosen = *cut[below(random, cut.size())];
  const auto others = others_of(role, chosen.part_of);
  const std::vector<int32_t> axes = others[below(random, others.size())];
  const std::string name = chosen.name;
  for (RoleProgram& each : set.roles)
    for (Tensor& tensor : each.tensors)
      if (tensor.part_of >= 0 && tensor.name == name) tensor.part_of = group_over(each, axes);
  return fmt::format("'{}' over [{}]", name, fmt::join(axes, ", "));
}

// A gather, a reduction or a cut into runs is over another axis of as many ranks.
Done change_axis_of_runs(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& one) {
    return takes_pairs(one.kind) && one.dim < 0 && one.group >= 0;
  });
  if (!spot) return std::nullopt;
  std::vector<std::vector<int32_t>> others = others_of(*spot->role, spot->at().group);
  std::erase_if(others, [](const auto& axes) { return !std::ranges::is_sorted(axes); });
  if (others.empty()) return std::nullopt;
  const std::vector<int32_t> axes = others[below(random, others.size())];
  const std::string label = spot->at().label;
  for (RoleProgram& each : set.roles)
    for (Instruction& one : each.body) {
      if (one.label != label || !takes_pairs(one.kind)) continue;
      one.group = group_over(each, axes);
    }
  return fmt::format("'{}' over [{}]", label, fmt::join(axes, ", "));
}

// A run of a run is that of another level: the pair's part is read where its whole was meant.
Done leave_out_level(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& one) {
    return one.kind == InstructionKind::kOwnPart || one.kind == InstructionKind::kReduceScatter;
  });
  if (!spot || spot->at().dim >= 0) return std::nullopt;
  const std::string name = spot->name();
  std::vector<size_t> order = positions(*spot->role);
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(spot->index));
  reorder(*spot->role, order);
  return name;
}

constexpr auto kOfStates = std::to_array<Mutation>({
    {"a state over another axis", change_state_axes},
    {"runs over another axis", change_axis_of_runs},
    {"leave out a cut into runs", leave_out_level},
});

}  // namespace

std::span<const Mutation> state_mutations() { return kOfStates; }

}  // namespace piper::mutation
