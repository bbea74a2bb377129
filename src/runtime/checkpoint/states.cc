// Which states the plans of a set have, and what kind each is. Called when a job prepares its
// checkpoints.
#include <algorithm>
#include <set>

#include "piper/plan/sites.h"
#include "piper/plan/trained_parts.h"
#include "piper/runtime/checkpoint.h"

namespace piper {
namespace {

StateKind kind_of(const RoleProgram& role, const Tensor& tensor) {
  if (tensor.previous_of >= 0) return StateKind::kPrevious;
  if (!role.original(tensor).param.empty()) return StateKind::kParameter;
  // What the model brings has an initial value; states of an optimizer are filled.
  return tensor.init.empty() ? StateKind::kOptimizer : StateKind::kBuffer;
}

}  // namespace

const char* name_of(StateKind kind) {
  constexpr const char* kNames[kStateKinds] = {"parameter", "buffer", "optimizer", "previous"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<CheckpointState> states_of(const PlanSet& set) {
  std::vector<CheckpointState> states;
  std::set<std::string> known;
  for (const RoleProgram& role : set.roles)
    for (const Buffer& buffer : role.buffers) {
      const Tensor& tensor = role.tensor(buffer);
      if (!is_stored(tensor)) continue;
      std::string name = names_of_state(role, tensor)[0];
      if (!known.insert(name).second) continue;
      const StateKind kind = kind_of(role, tensor);
      std::vector<std::string> aliases;
      if (kind == StateKind::kParameter)
        for (const std::string& alias : role.original(tensor).aliases)
          aliases.push_back(name_of_whole(role.original(tensor), alias));
      states.push_back({std::move(name), tensor.whole_type(), kind, std::move(aliases)});
    }
  // The model's parameters are the outer ones, so those of sites count as states of an optimizer.
  const bool has_sites = std::ranges::any_of(
      set.roles, [](const RoleProgram& role) { return !role.outer_updates.empty(); });
  for (CheckpointState& state : states)
    if (has_sites && site_of(state.name)) state.kind = StateKind::kOptimizer, state.aliases.clear();
  for (NamedTensor& tensor : untouched_of(set))
    if (known.insert(tensor.name).second)
      states.push_back({std::move(tensor.name), std::move(tensor.type), StateKind::kBuffer, {}});
  return states;
}

std::vector<NamedTensor> untouched_of(const PlanSet& set) {
  std::vector<NamedTensor> found;
  for (size_t t = 0; t < set.tensor_types.size(); ++t) {
    const auto& [stored, type] = set.tensor_types[t];
    if (!stored.starts_with(kUntouched)) continue;
    const Bytes data = t < set.tensors.size() ? set.tensors[t].second : Bytes{};
    found.push_back({stored.substr(kUntouched.size()), type, data});
  }
  return found;
}

}  // namespace piper
