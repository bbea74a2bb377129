// Puts the summary of a plan set together from its roles.
#include <algorithm>
#include <map>
#include <set>

#include "piper/base/parallel.h"
#include "role.h"

namespace piper {
namespace {

// Counts as one device the ranks that run one role at the same coordinates of the axes on which
// roles depend.
void add_devices(const std::vector<int32_t>& role_of_rank, Summary& summary) {
  const auto& mesh = summary.manifest.mesh;
  std::vector<size_t> axes;
  int64_t stride = 1;
  for (size_t a = mesh.size(); a-- > 0; stride *= mesh[a].second)
    for (size_t rank = 0; rank < role_of_rank.size(); ++rank)
      if (static_cast<int64_t>(rank) / stride % mesh[a].second != 0 &&
          role_of_rank[rank] != role_of_rank[rank - static_cast<size_t>(stride)]) {
        axes.insert(axes.begin(), a);
        break;
      }
  for (size_t a : axes) summary.device_axes.push_back(mesh[a].first);
  std::map<std::vector<int64_t>, size_t> known;
  for (size_t rank = 0; rank < role_of_rank.size(); ++rank) {
    const std::vector<int64_t> all = coordinates_of(mesh, static_cast<int64_t>(rank));
    std::vector<int64_t> here;
    for (size_t a : axes) here.push_back(all[a]);
    const auto [found, is_new] = known.try_emplace(here, summary.devices.size());
    if (!is_new) {
      ++summary.devices[found->second].ranks;
      continue;
    }
    std::string where;
    for (size_t a : axes)
      where += fmt::format("{}{}={}", where.empty() ? "" : " ", mesh[a].first, all[a]);
    summary.devices.push_back({where.empty() ? "all" : where, here, 1, role_of_rank[rank]});
  }
}

// Adds to an ascending list what another one has, so that it ascends.
template <class T>
void add_sorted(const std::vector<T>& from, std::vector<T>& to) {
  std::vector<T> both;
  std::set_union(to.begin(), to.end(), from.begin(), from.end(), std::back_inserter(both));
  to = std::move(both);
}

void merge(const StageSummary& from, StageSummary& to) {
  to.runs += from.runs;
  to.ops = std::max(to.ops, from.ops);
  to.forward_flops += from.forward_flops;
  to.backward_flops += from.backward_flops;
  if (to.products.empty()) to.products = from.products;
  to.recomputed += from.recomputed;
  to.kept_bytes += from.kept_bytes;
  to.sent_bytes += from.sent_bytes;
  to.weight_bytes = std::max(to.weight_bytes, from.weight_bytes);
  to.state_bytes = std::max(to.state_bytes, from.state_bytes);
  add_sorted(from.parameters, to.parameters);
  add_sorted(from.programs, to.programs);
}

// Compares texts with numbers in them by these: "stage=2 dir=10" before "stage=10 dir=2".
bool is_before(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  // Returns what comes first, up to where digits begin or end.
  const auto take = [&](std::string_view& text) {
    size_t end = 1;
    while (end < text.size() && is_digit(text[end]) == is_digit(text[0])) ++end;
    const std::string_view part = text.substr(0, end);
    text.remove_prefix(end);
    return part;
  };
  while (!a.empty() && !b.empty()) {
    const std::string_view one = take(a), other = take(b);
    if (one == other) continue;
    if (is_digit(one[0]) && is_digit(other[0]) && one.size() != other.size())
      return one.size() < other.size();
    return one < other;
  }
  return a.size() < b.size();
}

void add_stages(Summary& summary) {
  std::map<std::string, size_t> known;
  for (size_t d = 0; d < summary.devices.size(); ++d)
    for (const StageSummary& stage : summary.role(summary.devices[d]).stages) {
      const auto [found, is_new] = known.try_emplace(stage.name, summary.stages.size());
      if (is_new) summary.stages.push_back({.name = stage.name});
      merge(stage, summary.stages[found->second]);
      summary.stages[found->second].devices.push_back(static_cast<int32_t>(d));
    }
  std::ranges::sort(summary.stages,
                    [](const auto& a, const auto& b) { return is_before(a.name, b.name); });
  for (StageSummary& stage : summary.stages) {
    const auto runs = static_cast<double>(std::max<int64_t>(stage.runs, 1));
    for (double StageSummary::*sum :
         {&StageSummary::forward_flops, &StageSummary::backward_flops, &StageSummary::recomputed,
          &StageSummary::kept_bytes, &StageSummary::sent_bytes})
      stage.*sum /= runs;
  }
}

void add_parameters(Summary& summary) {
  std::map<std::string, size_t> known;
  for (const RoleSummary& role : summary.roles)
    for (const ParameterSummary& parameter : role.parameters) {
      const auto [found, is_new] = known.try_emplace(parameter.name, summary.parameters.size());
      if (is_new) summary.parameters.push_back(parameter);
      ParameterSummary& one = summary.parameters[found->second];
      if (one.kind == ParameterSummary::Kind::kFrozen) one = parameter;
    }
}

bool has(const Settings& settings, const std::string& name) {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const auto& one) { return one.first == name; });
}

void add_train(Summary& summary) {
  std::set<int32_t> micros;
  std::map<std::string, std::string> inputs;
  std::set<int32_t> versions;
  for (const RoleSummary& role : summary.roles) {
    for (const OrderedTask& item : role.order) micros.insert(item.micro);
    for (const auto& [name, value] : role.train)
      if (!has(summary.train, name)) summary.train.emplace_back(name, value);
    inputs.insert(role.inputs.begin(), role.inputs.end());
    versions.insert(role.kept_times.begin(), role.kept_times.end());
  }
  summary.train.insert(summary.train.begin() + std::min<ptrdiff_t>(1, std::ssize(summary.train)),
                       {"microbatches", std::to_string(micros.size())});
  double evaluation = 0;
  bool evaluates = false;
  for (const DeviceSummary& device : summary.devices) {
    const std::optional<double>& flops = summary.role(device).evaluation_flops;
    evaluates |= flops.has_value();
    evaluation += flops.value_or(0) * static_cast<double>(device.ranks);
  }
  if (evaluates)
    summary.train.emplace_back("evaluation",
                               fmt::format("{} a batch over all ranks", human_flops(evaluation)));
  for (size_t u = 0; u < summary.roles[0].outer.size(); ++u) {
    int64_t sent = 0;
    for (const DeviceSummary& device : summary.devices)
      sent += summary.role(device).outer[u].bytes * device.ranks;
    const auto& [every, offset, bytes] = summary.roles[0].outer[u];
    summary.train.emplace_back(u == 0 ? "local_steps" : fmt::format("local_steps.{}", u),
                               fmt::format("{}{}, then {} sent over all ranks ({} a step)", every,
                                           offset == 0 ? "" : fmt::format(", from {} on", offset),
                                           human_bytes(sent), human_bytes(sent / every)));
  }
  if (!versions.empty() && *versions.rbegin() > 1)
    summary.train.emplace_back(
        "weight_versions", versions.size() == 1
                               ? std::to_string(*versions.begin())
                               : fmt::format("{} to {}", *versions.begin(), *versions.rbegin()));
  for (const auto& [name, text] : inputs) summary.train.emplace_back("input " + name, text);
  summary.train.emplace_back("seed", std::to_string(summary.manifest.seed));
}

Summary assemble(Manifest manifest, const std::vector<int32_t>& role_of_rank,
                 std::vector<RoleSummary> roles) {
  Summary summary;
  for (const char* init : {"params/init.safetensors", "../params/init.safetensors"})
    if (const auto found = manifest.files.find(init); found != manifest.files.end())
      summary.initial_values = found->second;
  manifest.files.clear();
  manifest.role_of_rank.clear();
  summary.manifest = std::move(manifest);
  summary.roles = std::move(roles);
  for (const auto& axis : summary.manifest.mesh)
    if (axis.second > 1)
      summary.mesh.push_back(axis);
    else
      summary.idle_axes.push_back(axis.first);
  add_devices(role_of_rank, summary);
  add_stages(summary);
  add_parameters(summary);
  add_train(summary);
  return summary;
}

const RoleSummary* find_role(const Summary* known, const std::string& digest) {
  if (!known) return nullptr;
  for (const RoleSummary& role : known->roles)
    if (role.digest == digest) return &role;
  return nullptr;
}

Status summarise_file(const PlanOutline& outline, size_t r, const Summary* known,
                      RoleSummary& summary) {
  if (const RoleSummary* equal = find_role(known, outline.roles[r])) {
    summary = *equal;
    return ok_status();
  }
  PIPER_ASSIGN(const RoleProgram role, read_role(outline, r));
  PIPER_ASSIGN(summary, summarise_role(role));
  summary.digest = outline.roles[r];
  return ok_status();
}

}  // namespace

int64_t Summary::ranks() const { return ranks_of(mesh); }

Summary summarise(const PlanSet& set, bool digests) {
  std::vector<RoleSummary> roles(set.roles.size());
  in_parallel(roles.size(), [&](size_t r) {
    Result<RoleSummary> summary = summarise_role(set.roles[r]);
    PIPER_CHECK(summary.ok(), "{}", summary.ok() ? "" : summary.error().message);
    roles[r] = *std::move(summary);
    if (digests) roles[r].digest = role_digest(set.roles[r]);
  });
  return assemble(set.manifest, set.role_of_rank, std::move(roles));
}

Result<Summary> summarise(const std::string& directory, const Summary* known) {
  PIPER_ASSIGN(const PlanOutline outline, read_plan_outline(directory));
  std::vector<RoleSummary> roles(outline.roles.size());
  std::vector<Status> statuses(roles.size(), ok_status());
  in_parallel(roles.size(),
              [&](size_t r) { statuses[r] = summarise_file(outline, r, known, roles[r]); });
  for (Status& status : statuses) PIPER_TRY(std::move(status));
  return assemble(outline.manifest, outline.role_of_rank, std::move(roles));
}

}  // namespace piper
