// Random plan sets that hold the same states in different layouts, and checkpoints of them: for
// checkpoint_test and checkpoint_tools_test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "piper/runtime/checkpoint.h"

namespace piper {

// A state of a model, whatever plan holds it.
struct ModelState {
  std::string name;
  TensorType type;
  std::vector<std::byte> values;
};

template <class Value>
std::vector<std::byte> bytes_of(const std::vector<Value>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Returns states of several sizes and types, each element another value.
inline std::vector<ModelState> make_states(std::mt19937_64& random, int count) {
  std::vector<ModelState> states;
  for (int s = 0; s < count; ++s) {
    Shape shape;
    for (int64_t d = static_cast<int64_t>(random() % 4); d > 0; --d)
      shape.push_back(static_cast<int64_t>(random() % 12 + 1));
    const auto elements = static_cast<size_t>(num_elements(shape));
    if (s % 4 == 3) {
      std::vector<int64_t> values(elements);
      for (int64_t& value : values) value = static_cast<int64_t>(random());
      states.push_back({fmt::format("layer.{}.count", s), {DType::kI64, shape}, bytes_of(values)});
      continue;
    }
    std::vector<float> values(elements);
    for (float& value : values) value = static_cast<float>(random() % 2000003) / 977.0F - 1000.0F;
    states.push_back({fmt::format("layer.{}.weight", s), {DType::kF32, shape}, bytes_of(values)});
  }
  return states;
}

// Cuts a tensor over random axes of the mesh but the first, which tells roles apart.
inline void cut_randomly(std::mt19937_64& random, const RoleProgram& role, Tensor& tensor) {
  Shape left = tensor.whole;
  std::vector<int32_t> free;
  for (int32_t axis = 1; axis < static_cast<int32_t>(role.mesh.size()); ++axis)
    free.push_back(axis);
  std::shuffle(free.begin(), free.end(), random);
  while (!free.empty() && !left.empty() && random() % 3 > 0) {
    TensorCut cut{free.back(), static_cast<int32_t>(random() % left.size())};
    int64_t& extent = left[static_cast<size_t>(cut.dim)];
    const int64_t parts = role.mesh[static_cast<size_t>(cut.axis)].second;
    if (extent % 2 == 0 && random() % 2 == 0) cut.outer = 2;
    if (extent / cut.outer < 1) break;
    if (extent / cut.outer % parts != 0) cut.block = (extent / cut.outer + parts - 1) / parts;
    extent = cut.block > 0 ? cut.outer * cut.block : extent / parts;
    tensor.cuts.push_back(cut);
    free.pop_back();
  }
  tensor.type.shape = left;
  if (free.empty() || random() % 3 == 0) return;
  for (size_t g = 0; g < role.groups.size(); ++g) {
    if (role.groups[g].axes[0] != free.back()) continue;
    const int64_t members = role.mesh[static_cast<size_t>(free.back())].second;
    tensor.part_of = static_cast<int32_t>(g);
    tensor.type.shape = {(num_elements(left) + members - 1) / members};
  }
}

// Returns a set of two roles, by the first axis of a random mesh; each state is in one or in both.
inline PlanSet make_set(std::mt19937_64& random, const std::vector<ModelState>& states) {
  PlanSet set;
  RoleProgram role;
  role.mesh = {{"pp", static_cast<int64_t>(random() % 2 + 1)}};
  for (const char* axis : {"dp", "tp", "ep"})
    if (random() % 4 > 0) role.mesh.emplace_back(axis, static_cast<int64_t>(random() % 3 + 1));
  for (int32_t axis = 1; axis < static_cast<int32_t>(role.mesh.size()); ++axis)
    role.groups.push_back({role.mesh[static_cast<size_t>(axis)].first, {axis}});
  set.roles.assign(static_cast<size_t>(role.mesh[0].second), role);
  for (const ModelState& state : states) {
    Tensor tensor;
    tensor.name = state.name;
    tensor.type = state.type;
    tensor.whole = state.type.shape;
    tensor.kind = BufferKind::kState;
    tensor.init = tensor.param = state.name;
    cut_randomly(random, role, tensor);
    const size_t only = random() % (set.roles.size() + 1);
    for (size_t r = 0; r < set.roles.size(); ++r) {
      if (only < set.roles.size() && only != r) continue;
      Buffer buffer;
      buffer.tensor = static_cast<int32_t>(set.roles[r].tensors.size());
      set.roles[r].tensors.push_back(tensor);
      set.roles[r].buffers.push_back(buffer);
    }
  }
  int64_t world = 1;
  for (const auto& [axis, size] : role.mesh) world *= size;
  for (int64_t rank = 0; rank < world; ++rank)
    set.role_of_rank.push_back(static_cast<int32_t>(coordinates_of(role.mesh, rank)[0]));
  return set;
}

inline const RoleProgram& role_of(const PlanSet& set, int64_t rank) {
  return set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])];
}

// Returns what a rank holds of a state: zeros past the end of a dim.
inline std::vector<std::byte> local_values(const Held& held, std::span<const std::byte> whole) {
  const auto size = static_cast<size_t>(info(held.whole.dtype).bytes);
  std::vector<std::byte> local(static_cast<size_t>(held.count) * size);
  held.for_each_run([&](const Held::Run& run) {
    std::memcpy(local.data() + static_cast<size_t>(run.held) * size,
                whole.data() + static_cast<size_t>(run.whole) * size,
                static_cast<size_t>(run.count) * size);
  });
  return local;
}

// Calls visit(rank, buffer, held) for all that ranks are to write.
template <class Visit>
void for_each_written(const PlanSet& set, Visit visit) {
  for (int64_t rank = 0; rank < set.world(); ++rank) {
    const RoleProgram& role = role_of(set, rank);
    const std::vector<bool> writes = states_to_write(set, rank);
    for (size_t b = 0; b < writes.size(); ++b) {
      if (!writes[b]) continue;
      visit(rank, b, held_of(role, role.tensor(role.buffers[b]), coordinates_of(role.mesh, rank)));
    }
  }
}

inline const ModelState& state_named(const std::vector<ModelState>& states,
                                     const std::string& name) {
  return *std::find_if(states.begin(), states.end(),
                       [&](const ModelState& state) { return state.name == name; });
}

// Writes what the ranks of a set hold as a job does; `about` has the rest.
inline Status save(Storage& storage, const std::string& folder, const PlanSet& set,
                   const std::vector<ModelState>& states, Checkpoint about) {
  const std::string name = checkpoint_name(about.step),
                    built = fmt::format("{}/.{}.partial", folder, name);
  std::map<int64_t, std::vector<OwnPiece>> pieces;
  std::vector<std::vector<std::byte>> kept;
  for_each_written(set, [&](int64_t rank, size_t b, const Held& held) {
    const RoleProgram& role = role_of(set, rank);
    const std::string state = names_of_state(role, role.tensor(role.buffers[b]))[0];
    const int64_t elements = stored_elements(held);
    if (elements == 0) return;
    kept.push_back(local_values(held, state_named(states, state).values));
    pack_held(held, kept.back().data(), kept.back().data());
    pieces[rank].push_back({state, held, kept.back().data(), elements});
  });
  about.ranks = set.world();
  about.states = states_of(set);
  for (const auto& [rank, own] : pieces) {
    PIPER_ASSIGN(const CheckpointFile file, write_rank_file(storage, built, rank, own));
    about.files.push_back(file);
  }
  const std::string text = print_checkpoint(about);
  const std::string_view parts[] = {text};
  PIPER_TRY(storage.write(built + "/checkpoint.json", parts));
  return storage.publish(built, folder + "/" + name);
}

inline Checkpoint at_step(int64_t step) {
  Checkpoint about;
  about.step = step;
  about.samples = step * 8;
  about.loss = 2.5;
  about.strategy_text = "train: {global_batch: 8, optimizer: {adamw: {lr: 0.001}}}\n";
  return about;
}

}  // namespace piper
