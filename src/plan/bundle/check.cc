// What a role program must be before anything walks it. The first fault is reported.
#include <algorithm>
#include <set>

#include "bad.h"
#include "check_instruction.h"
#include "files.h"
#include "piper/plan/outer_updates.h"
#include "piper/plan/windows.h"

namespace piper {
namespace {

constexpr int32_t kMostPriority = 100;
constexpr int64_t kMostShares = 1 << 20;
constexpr int64_t kMostHostBytes = int64_t{1} << 56;

Status check_names(const RoleProgram& role) {
  std::set<std::string_view> names;
  for (const auto& [name, size] : role.mesh)
    if (name.empty() || !names.insert(name).second)
      return bad("the mesh has two axes '{}'", quote_control(name));
  if (!world_of(role.mesh)) return bad("the mesh has an axis that is no size, or too many ranks");
  if (role.streams.empty() || role.streams.size() > 1024)
    return bad("a plan has 1 to 1024 streams, not {}", role.streams.size());
  for (const Stream& stream : role.streams)
    if (stream.priority < -kMostPriority || stream.priority > kMostPriority)
      return bad("stream '{}' has the priority {}", quote_control(stream.name), stream.priority);
  if (role.workspace_bytes.size() != role.streams.size())
    return bad("{} workspaces are stated for {} streams", role.workspace_bytes.size(),
               role.streams.size());
  for (size_t g = 0; g < role.groups.size(); ++g) {
    const std::vector<int32_t>& axes = role.groups[g].axes;
    if (std::set(axes.begin(), axes.end()).size() != axes.size())
      return bad("group {} names a mesh axis twice", g);
  }
  for (const SumTarget& target : role.sum_targets)
    if (target.uses < 1)
      return bad("sum '{}' has {} uses", quote_control(target.name), target.uses);
  return ok_status();
}

Status check_communicators(const RoleProgram& role) {
  for (size_t c = 0; c < role.communicators.size(); ++c) {
    const Communicator& one = role.communicators[c];
    const size_t axes = one.is_pair() ? role.mesh.size() : 0;
    bool fits = one.from.size() == axes && one.to.size() == axes &&
                one.streams.size() == (one.is_pair() ? 2 : 1) &&
                !(one.is_pair() && !one.axes.empty());
    for (size_t a = 0; fits && a < axes; ++a)
      fits = one.from[a] < role.mesh[a].second && one.to[a] < role.mesh[a].second &&
             (one.from[a] < 0) == (one.to[a] < 0);
    if (!fits || (one.is_pair() && one.from == one.to))
      return bad("communicator {} is of no group, and of no two ranks", c);
  }
  return ok_status();
}

// Checks that the ranges of an input are for all elements of a sample.
Status check_ranges(const DataInput& input, const std::string& name) {
  if (input.ranges.empty()) return ok_status();
  int64_t left = num_elements(input.type.shape);
  if (input.batch_dim >= 0) left /= std::max<int64_t>(input.type.shape[input.batch_dim], 1);
  bool fits = input.ranges.size() % 4 == 0;
  for (size_t i = 0; fits && i < input.ranges.size(); i += 4) {
    fits = input.ranges[i] > 0 && input.ranges[i] <= left;
    left -= input.ranges[i];
  }
  if (fits && left == 0) return ok_status();
  return bad("the ranges of data input '{}' are not those of a sample's elements", name);
}

Status check_inputs(const RoleProgram& role) {
  std::set<std::string_view> names;
  for (const DataInput& input : role.inputs) {
    const std::string name = quote_control(input.name);
    if (input.name.empty()) return bad("a data input has no name");
    if (input.shares < 1 || input.share >= input.shares || input.shares > kMostShares)
      return bad("data input '{}' is share {} of {}", name, input.share, input.shares);
    if (!names.insert(input.name).second) return bad("there are two data inputs '{}'", name);
    if (!bytes_of(input.type)) return bad("data input '{}' has no possible type", name);
    const auto rank = static_cast<int32_t>(input.type.shape.size());
    if (input.batch_dim >= rank) return bad("data input '{}' has no dim {}", name, input.batch_dim);
    if (input.batch_dim >= 0 && input.type.shape[input.batch_dim] != role.batch)
      return bad("data input '{}' is {}, not a batch of {}", name, to_string(input.type),
                 role.batch);
    PIPER_TRY(check_ranges(input, name));
    if (int64_t samples; __builtin_mul_overflow(role.batch, input.shares, &samples))
      return bad("a step has {} shares of {} samples", input.shares, role.batch);
  }
  return ok_status();
}

Status check_memory(const RoleProgram& role) {
  int64_t total = 0;
  bool overflow = role.host_bytes > kMostHostBytes || role.staging_bytes > kMostHostBytes ||
                  __builtin_add_overflow(role.arena_bytes, role.transport_bytes, &total) ||
                  __builtin_add_overflow(total, role.scratch_bytes, &total) ||
                  __builtin_add_overflow(total, role.packed_bytes, &total);
  for (int64_t bytes : role.workspace_bytes)
    overflow = overflow || __builtin_add_overflow(total, bytes, &total);
  if (overflow) return bad("the stated memory overflows");
  return check_buffers(role);
}

// Only where steps overlap do bodies reach into later ones, and prologues and epilogues one less
// far.
Status check_ahead(const RoleProgram& role) {
  if (role.steps_ahead < 0 || role.steps_ahead > kMostStepsAhead)
    return bad("steps overlap by {}, not by 0 to {}", role.steps_ahead, kMostStepsAhead);
  if (role.steps_ahead > 1 && most_in_windows(role) > kMostInWindows)
    return bad("steps overlap by {}, which is too many for {} instructions", role.steps_ahead,
               role.body.size());
  const auto most_in = [&](const std::vector<Instruction>* list) {
    if (list == &role.body) return role.steps_ahead;
    const bool is_part = list == &role.prologue || list == &role.epilogue;
    return is_part ? std::max(role.steps_ahead - 1, 0) : 0;
  };
  for (const auto* list : role.sections())
    for (const Instruction& one : *list)
      if (one.ahead < 0 || one.ahead > most_in(list))
        return bad("instruction '{}' is {} steps ahead", quote_control(one.label), one.ahead);
  return ok_status();
}

Status check_report(const RoleProgram& role, const Report& report) {
  if (role.tensor(report.buffer).host)
    return bad("report '{}' is of a buffer on the host", quote_control(report.name));
  const TensorType& type = role.tensor(report.buffer).type;
  const bool number = info(type.dtype).is_float || type.dtype == DType::kBool;
  if (num_elements(type.shape) == 1 && number) return ok_status();
  return bad("report '{}' is {}, not one float or bool", quote_control(report.name),
             to_string(type));
}

}  // namespace

Status check_role(const RoleProgram& role) {
  PIPER_TRY(check_fields(role));
  PIPER_TRY(check_names(role));
  PIPER_TRY(check_communicators(role));
  PIPER_TRY(check_inputs(role));
  PIPER_TRY(check_memory(role));
  for (size_t p = 0; p < role.programs.size(); ++p)
    if (auto checked = check_program(role.programs[p]); !checked)
      return bad("program {} '{}': {}", p, quote_control(role.programs[p].label),
                 checked.error().message);
  const ArgSizes sizes(role);
  for (const auto* list : role.sections())
    for (size_t i = 0; i < list->size(); ++i) PIPER_TRY(check_instruction(role, sizes, *list, i));
  PIPER_TRY(check_ahead(role));
  for (const auto* reports : {&role.reports, &role.evaluation_reports})
    for (const Report& report : *reports) PIPER_TRY(check_report(role, report));
  if (role.evaluation.empty() != role.evaluation_reports.empty())
    return bad("an evaluation reports something, and nothing else does");
  for (const OuterUpdate& update : role.outer_updates)
    if (update.every < 1 || update.offset < 0 || update.offset - update.every >= update.every)
      return bad("an outer update begins at step {} of each {}", update.offset, update.every);
  if (role.steps_ahead > 0 && std::ranges::any_of(role.outer_updates, [&](const OuterUpdate& one) {
        return runs_beside(role, one);
      }))
    return bad("steps overlap, and an outer update runs beside one of them");
  return check_sizes(role);
}

}  // namespace piper
