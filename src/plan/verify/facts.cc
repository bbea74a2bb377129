// Computes facts of roles and programs that the rules often ask.
#include <algorithm>

#include "model.h"
#include "piper/plan/access.h"
#include "piper/plan/sites.h"
#include "sets.h"

namespace piper {
namespace {

// Names of the sums from which parameters get their next values: gradients, the batch statistics of
// running statistics, and what distances for a delayed outer update are made of.
constexpr std::string_view kGradientSuffix = ".grad", kStatisticSuffix = ".batch",
                           kDistanceSuffix = ".sum";

// Finds of which site each gradient is, where there are several.
void find_sites_of_gradients(Model& model) {
  bool several = false;
  int32_t first = -1;
  for (int32_t t = 0; t < static_cast<int32_t>(model.targets.size()); ++t) {
    const auto of = site_of(model.targets[t]);
    if (!model.is_gradient[t] || !of) continue;
    model.site_of[t] = of->site;
    if (first < 0) first = of->site;
    several = several || of->site != first;
  }
  if (!several) model.site_of.assign(model.targets.size(), -1);
}

// Returns the facts of a role that do not depend on other roles.
RoleFacts facts_of(const RoleProgram& role) {
  RoleFacts facts;
  facts.buffers.reserve(role.buffers.size());
  std::vector<int64_t> bytes_of;  // by tensor
  for (const Tensor& tensor : role.tensors) bytes_of.push_back(tensor.type.bytes());
  for (const Buffer& buffer : role.buffers) {
    const Tensor& tensor = role.tensor(buffer);
    // Offsets in the host's arena are counted after those in the device's arena.
    const int64_t begin = buffer.offset + (tensor.host ? int64_t{1} << 60 : 0);
    const int64_t bytes = bytes_of[buffer.tensor];
    if (tensor.kind != BufferKind::kStep)
      facts.kept.push_back(static_cast<int32_t>(facts.buffers.size()));
    facts.buffers.push_back({begin, begin + bytes, -1, tensor.kind});
  }
  for (const Program& program : role.programs) facts.programs.push_back(facts_of(program));
  return facts;
}

int32_t copy_of(int32_t param, DType dtype, Model& model) {
  const auto [known, is_new] = model.copies.try_emplace({param, dtype});
  if (is_new) {
    model.copy_names.push_back(fmt::format("{} in {}", model.params[param], info(dtype).name));
    known->second = model.params.add(model.copy_names.back());
  }
  return known->second;
}

void name(const RoleProgram& role, Model& model, RoleFacts& facts) {
  for (size_t b = 0; b < role.buffers.size(); ++b) {
    const Tensor& tensor = role.tensor(role.buffers[b]);
    const std::string& param =
        tensor.copy_of < 0 ? tensor.param : role.tensor(tensor.copy_of).param;
    if (param.empty()) continue;
    const int32_t id = model.params.id_of(param);
    facts.buffers[b].param = tensor.copy_of < 0 ? id : copy_of(id, tensor.type.dtype, model);
  }
  for (size_t t = 0; t < role.sum_targets.size(); ++t) {
    const std::string_view name = role.sum_targets[t].name;
    // Most roles list the same sums in the same order, so ids are looked up only where they differ.
    const bool same = t < model.targets.size() && model.targets[static_cast<int32_t>(t)] == name;
    facts.targets.push_back(same ? static_cast<int32_t>(t) : model.targets.id_of(name));
  }
}

}  // namespace

ProgramFacts facts_of(const Program& program) {
  ProgramFacts facts;
  const auto args = static_cast<size_t>(program.num_args);
  const auto is_arg = [&](int32_t value) { return value >= 0 && value < program.num_args; };
  IdSets sets;                                                       // of arguments
  std::vector<int32_t> from(program.values.size(), IdSets::kEmpty);  // by value
  for (size_t a = 0; a < args; ++a) {
    facts.access.push_back((program.arg_read[a] ? kReads : 0) |
                           (program.arg_written[a] ? kWrites : 0));
    if (program.arg_read[a]) from[a] = sets.single(static_cast<int32_t>(a));
  }
  for (const ProgramOp& op : program.ops) {
    int32_t all = IdSets::kEmpty;
    for (int32_t input : op.inputs)
      if (input >= 0) all = sets.unite(all, from[input]);
    for (int32_t output : op.outputs) {
      if (output < 0) continue;
      from[output] = all;
      std::erase_if(facts.rounded, [&](const auto& pair) {
        return pair.first == output || pair.second == output;
      });
    }
    if (op.op == "Cast" && op.inputs.size() == 1 && is_arg(op.inputs[0]) && is_arg(op.outputs[0]))
      facts.rounded.emplace_back(op.outputs[0], op.inputs[0]);
  }
  for (size_t a = 0; a < args; ++a)
    if (program.arg_written[a]) {
      facts.written.push_back(static_cast<int32_t>(a));
      facts.sources.push_back(sets.at(from[a]));
    }
  return facts;
}

Status find_facts(const PlanSet& set, bool has_sites, Model& model) {
  model.facts.resize(set.roles.size());
  std::vector<Status> checked(set.roles.size(), ok_status());
  for_each(set.roles[0], set.roles.size(), [&](size_t r) {
    checked[r] = check_role(set.roles[r]);
    if (checked[r]) model.facts[r] = facts_of(set.roles[r]);
  });
  for (const Status& each : checked) PIPER_TRY(each);
  for (size_t r = 0; r < set.roles.size(); ++r) name(set.roles[r], model, model.facts[r]);
  model.uses.assign(model.targets.size(), 0);
  for (size_t r = 0; r < set.roles.size(); ++r) {
    RoleFacts& facts = model.facts[r];
    // A gradient of an outer update may come in blocks, to roles that add nothing to it.
    facts.has_target.assign(model.targets.size(), has_sites);
    for (size_t t = 0; t < facts.targets.size(); ++t) {
      const int32_t target = facts.targets[t];
      facts.has_target[target] = true;
      model.uses[target] = std::max(model.uses[target], set.roles[r].sum_targets[t].uses);
    }
  }
  model.gradient_of.assign(model.params.size(), -1);
  model.is_gradient.assign(model.targets.size(), false);
  for (int32_t t = 0; t < static_cast<int32_t>(model.targets.size()); ++t) {
    const std::string_view name = model.targets[t];
    model.is_gradient[t] = name.ends_with(kGradientSuffix);
    if (!model.is_gradient[t] && !name.ends_with(kStatisticSuffix) &&
        !name.ends_with(kDistanceSuffix))
      continue;
    const int32_t param = model.params.find(name.substr(0, name.rfind('.')));
    if (param >= 0 && (model.is_gradient[t] || model.gradient_of[param] < 0))
      model.gradient_of[param] = t;
  }
  model.site_of.assign(model.targets.size(), -1);
  // In an outer update a site's parameter becomes what the outer one becomes. Without outer updates
  // "site.0.weight" is a name as any other.
  if (has_sites) find_sites_of_gradients(model);
  for (int32_t p = 0; has_sites && p < static_cast<int32_t>(model.params.size()); ++p) {
    if (model.gradient_of[p] >= 0) continue;
    // A site gets a delayed outer update later, in an update of its own.
    if (model.params.find(taken_of(model.params[p])) >= 0) continue;
    const auto of = site_of(model.params[p]);
    if (!of) continue;
    const int32_t outer = model.params.find(of->name);
    if (outer >= 0) model.gradient_of[p] = model.gradient_of[outer];
  }
  model.master_of.assign(model.params.size(), -1);
  for (const auto& [of, copy] : model.copies) {
    model.master_of[copy] = of.first;
    model.gradient_of[copy] = model.gradient_of[of.first];
  }
  return ok_status();
}

uint8_t access_of(const RoleFacts& facts, const Step& step, size_t arg) {
  if (step.kind == InstructionKind::kCompute) return facts.programs[step.program].access[arg];
  const ArgAccess access = piper::access_of(step.kind, arg);
  return static_cast<uint8_t>((access.reads ? kReads : 0) | (access.writes ? kWrites : 0));
}

bool writes(const RoleFacts& facts, const Step& step, std::span<const int32_t> args,
            int32_t buffer) {
  for (size_t a = 0; a < args.size(); ++a)
    if (args[a] == buffer && access_of(facts, step, a) & kWrites) return true;
  return false;
}

}  // namespace piper
