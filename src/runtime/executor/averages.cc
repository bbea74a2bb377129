// Exchanges averages of parameters between ranks, and lets evaluations see them.
#include "averages.h"

#include <algorithm>

#include "piper/ir/optimizers.h"
#include "piper/plan/trained_parts.h"

namespace piper {
namespace {

// Returns the name under which the average of a parameter is held; "": there is none.
std::string average_of(const std::map<std::string, TensorType>& states, const Tensor& param) {
  std::vector<std::string> names{param.param};
  names.insert(names.end(), param.aliases.begin(), param.aliases.end());
  for (const std::string& name : names)
    if (states.contains(piper::average_of(name_of_whole(param, name))))
      return piper::average_of(name);
  return {};
}

// Returns the buffers of a role with averages in the places of parameters that have some; all else
// is no state.
RoleProgram wanted_of(const RoleProgram& role, const std::map<std::string, TensorType>& states) {
  RoleProgram wanted;
  wanted.mesh = role.mesh;
  wanted.tensors = role.tensors;
  wanted.groups = role.groups;
  wanted.buffers = role.buffers;
  for (Tensor& tensor : wanted.tensors) {
    if (tensor.param.empty()) continue;
    tensor.param = average_of(states, tensor);
    tensor.aliases.clear();
  }
  for (Tensor& tensor : wanted.tensors)
    if (wanted.original(tensor).param.empty()) tensor.kind = BufferKind::kStep;
  return wanted;
}

}  // namespace

int64_t count_averages(const PlanSet& set) {
  const std::map<std::string, TensorType> states = held_states(set);
  return std::ranges::count_if(states,
                               [](const auto& state) { return state.first.ends_with(kAverage); });
}

Averages::Averages(const PlanSet& set) : set_(set), own_(static_cast<size_t>(set.world())) {
  const std::map<std::string, TensorType> states = held_states(set);
  wanted_.directory = set.directory;
  wanted_.role_of_rank = set.role_of_rank;
  for (const RoleProgram& role : set.roles) wanted_.roles.push_back(wanted_of(role, states));
}

Result<std::unique_ptr<Averages>> Averages::plan(const PlanSet& set, double timeout_s) {
  std::unique_ptr<Averages> made(new Averages(set));
  PIPER_ASSIGN(made->moving_, Switching::plan(set, made->wanted_, timeout_s, /*averages=*/true));
  return made;
}

Status Averages::begin(Executor& executor, Transport& transport) {
  const int64_t rank = transport.control().rank();
  PIPER_TRY(moving_->move(executor, transport));
  const StateSource& averages = moving_->of_rank(rank);
  const RoleProgram& role = executor.role();
  const std::vector<int64_t> coordinates = coordinates_of(role.mesh, rank);
  const RoleProgram& wanted =
      wanted_.roles[static_cast<size_t>(set_.role_of_rank[static_cast<size_t>(rank)])];
  auto& own = own_[static_cast<size_t>(rank)];
  std::vector<std::pair<int32_t, std::byte*>> out;
  std::vector<std::vector<std::byte>> values;
  std::vector<std::pair<int32_t, const std::byte*>> in;
  for (size_t b = 0; b < role.buffers.size(); ++b) {
    if (wanted.tensor(wanted.buffers[b]).kind != BufferKind::kState) continue;
    const Tensor& tensor = role.tensor(role.buffers[b]);
    const auto buffer = static_cast<int32_t>(b);
    const auto bytes = static_cast<size_t>(tensor.type.bytes());
    std::vector<std::byte>& kept = own[buffer];
    kept.resize(bytes);
    out.emplace_back(buffer, kept.data());
    std::vector<std::byte>& value = values.emplace_back(bytes);
    PIPER_ASSIGN(const bool has, averages.fill(tensor, names_of_state(role, tensor),
                                               held_of(role, tensor, coordinates), value.data()));
    PIPER_CHECK(has, "no average for {}", role.name(role.buffers[b]));
    in.emplace_back(buffer, value.data());
  }
  PIPER_TRY(executor.copy_out(out));
  PIPER_TRY(executor.copy_in(in));
  moving_->forget(rank);
  return ok_status();
}

Status Averages::end(Executor& executor, int64_t rank) {
  auto& own = own_[static_cast<size_t>(rank)];
  std::vector<std::pair<int32_t, const std::byte*>> in;
  for (const auto& [buffer, kept] : own) in.emplace_back(buffer, kept.data());
  PIPER_TRY(executor.copy_in(in));
  own.clear();
  return ok_status();
}

}  // namespace piper
