// Rule structure: what is kept, and whether roles agree on names, initial values, batch and
// reports.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "model.h"

namespace piper {
namespace {

// Checks the initial values of a role: a number that is kept in two versions starts one step apart,
// and versions and copies of parameters start with the values of the parameter.
void check_versions(const Model& model, int32_t cell, Findings& findings) {
  const RoleProgram& role = *model.cells[cell].role;
  for (const Tensor& tensor : role.tensors) {
    const Tensor& original = role.original(tensor);
    if (tensor.kind != BufferKind::kState || &original == &tensor) continue;
    if (original.param.empty() && original.fill != tensor.fill + 1)
      findings.add("structure", "'{}' on {} does not start one step before '{}'",
                   quote_control(tensor.name), model.who(cell), quote_control(original.name));
    if (!original.param.empty() && (tensor.init != original.init || tensor.fill != original.fill))
      findings.add("structure", "'{}' on {} does not start with the values of parameter '{}'",
                   quote_control(tensor.name), model.who(cell), quote_control(original.param));
  }
}

// Checks that constants are never written, that states change once a step, and that each state is
// used. (Rule sum checks parameters.)
void check_writes(const Model& model, std::span<const Section> sections, int32_t cell,
                  Findings& findings) {
  const RoleProgram& role = *model.cells[cell].role;
  const RoleFacts& facts = *model.cells[cell].facts;
  std::vector<bool> used(facts.buffers.size()), written(facts.buffers.size());
  for (const Section& section : sections) {
    std::vector<int32_t> writer(facts.buffers.size(), -1);
    for (int32_t i = 0; i < static_cast<int32_t>(section.steps[cell].size()); ++i) {
      const Step& step = section.steps[cell][i];
      const std::span<const int32_t> args = section.args_of(cell, step);
      for (size_t a = 0; a < args.size(); ++a) {
        const int32_t b = args[a];
        if (facts.buffers[b].kind == BufferKind::kStep) continue;
        used[b] = true;
        if (!(access_of(facts, step, a) & kWrites)) continue;
        written[b] = true;
        if (!model.trains && facts.buffers[b].kind == BufferKind::kState)
          findings.add("structure", "{} writes the state '{}'", name_of(model, section, {cell, i}),
                       quote_control(role.name(b)));
        const int32_t before = std::exchange(writer[b], i);
        if (facts.buffers[b].kind == BufferKind::kConstant)
          findings.add("structure", "{} writes the constant '{}'",
                       name_of(model, section, {cell, i}), quote_control(role.name(b)));
        else if (section.parts[0].ends_step && before >= 0 && before != i &&
                 facts.buffers[b].param < 0)
          findings.add("structure",
                       "{} writes the state '{}', which {} has already written in this step",
                       name_of(model, section, {cell, i}), quote_control(role.name(b)),
                       name_of(section.at({cell, before})));
      }
    }
  }
  for (int32_t b : facts.kept) {
    if (facts.buffers[b].kind != BufferKind::kState || !model.trains || model.is_apart) continue;
    const char* why = !used[b]                                    ? "is used by nothing"
                      : !written[b] && facts.buffers[b].param < 0 ? "never changes"
                                                                  : nullptr;
    if (why)
      findings.add("structure", "the state '{}' on {} {}", quote_control(role.name(b)),
                   model.who(cell), why);
  }
}

// Returns whether two slices may be of one sum: only the last is followed, for all of them.
bool add_up_alike(const Instruction& a, const Instruction& b) {
  const auto way = [](const Instruction& one) {
    return std::tuple(one.kind, one.group, one.reduction, one.fast, one.scaled, one.block);
  };
  return way(a) == way(b);
}

// Checks that a tensor that is summed in slices is summed from its first element to its last, each
// once and alike, and that nothing else uses it meanwhile.
void check_slices(const Model& model, std::span<const Section> sections, int32_t cell,
                  Findings& findings) {
  const RoleProgram& role = *model.cells[cell].role;
  for (const Section& section : sections) {
    struct Summed {
      int64_t elements = 0;
      int32_t last = 0;  // the slice that ends there
    };
    std::map<int32_t, Summed> summed;  // by buffer
    for (int32_t i = 0; i < static_cast<int32_t>(section.steps[cell].size()); ++i) {
      const Instruction& one = section.at({cell, i});
      if (one.count == 0 && summed.empty()) continue;  // most plans have no slices
      for (const int32_t b : one.args) {
        const auto known = summed.find(b);
        const int64_t before = known == summed.end() ? 0 : known->second.elements;
        const int64_t all =  // of a part, if it leaves such
            num_elements(role.tensor(one.count > 0 ? one.args.back() : b).type.shape);
        if (one.count == 0 ? before != 0 : one.first != before)
          findings.add("structure", "{} uses '{}' of which {} of {} elements are summed",
                       name_of(model, section, {cell, i}), quote_control(role.name(b)), before,
                       all);
        else if (known != summed.end() &&
                 !add_up_alike(section.at({cell, known->second.last}), one))
          findings.add("structure", "{} sums its slice of '{}' otherwise than {} the one before",
                       name_of(model, section, {cell, i}), quote_control(role.name(b)),
                       name_of(section.at({cell, known->second.last})));
        if (known != summed.end()) summed.erase(known);
        if (one.count > 0 && one.first + one.count < all) summed[b] = {one.first + one.count, i};
      }
    }
    for (const auto& [b, one] : summed)
      findings.add("structure", "'{}' on {} ends with {} of {} elements summed",
                   quote_control(role.name(b)), model.who(cell), one.elements,
                   num_elements(role.tensor(b).type.shape));
  }
}

// Checks that a buffer of a step has the name of a parameter only if that is gathered into it.
void check_gathered(const Model& model, std::span<const Section> sections, int32_t cell,
                    Findings& findings) {
  const RoleFacts& facts = *model.cells[cell].facts;
  std::vector<bool> gathered(facts.buffers.size());
  for (const Section& section : sections)
    for (const Step& step : section.steps[cell]) {
      if (step.kind != InstructionKind::kAllGather) continue;
      const std::span<const int32_t> args = section.args_of(cell, step);
      for (size_t a = 1; a < args.size(); a += 2) gathered[args[a]] = true;
    }
  for (int32_t b = 0; b < static_cast<int32_t>(gathered.size()); ++b)
    if (facts.buffers[b].kind == BufferKind::kStep && facts.buffers[b].param >= 0 && !gathered[b])
      findings.add("structure", "'{}' on {} has the name of '{}', which nothing gathers into it",
                   quote_control(model.cells[cell].role->name(b)), model.who(cell),
                   quote_control(model.params[facts.buffers[b].param]));
}

// Checks that no two parameters start with the same stored values.
void check_starts(const Model& model, Findings& findings) {
  struct First {
    const Tensor* tensor = nullptr;
    int32_t cell = -1;
  };
  std::unordered_map<std::string_view, First> of_values;
  std::vector<bool> known(model.params.size());
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    const RoleFacts& facts = *model.cells[c].facts;
    for (int32_t b : facts.kept) {
      const int32_t param = facts.buffers[b].param;
      if (param >= 0 && known[param]) continue;
      if (param >= 0) known[param] = true;
      const RoleProgram& role = *model.cells[c].role;
      const Tensor& tensor = role.tensor(role.buffers[b]);
      if (tensor.init.empty() || &role.original(tensor) != &tensor) continue;
      const First own{&tensor, c};
      const First& first = of_values.emplace(tensor.init, own).first->second;
      const bool both_constant =
          tensor.kind == BufferKind::kConstant && first.tensor->kind == BufferKind::kConstant;
      if (first.tensor->param != tensor.param ||
          (both_constant && first.tensor->name != tensor.name))
        findings.add("structure", "'{}' on {} and '{}' on {} both start with the values of '{}'",
                     quote_control(first.tensor->name), model.who(first.cell),
                     quote_control(tensor.name), model.who(c), quote_control(tensor.init));
    }
  }
}

// Returns whether a kept tensor begins as another one does that has the same name.
bool starts_as(const Tensor& tensor, const Tensor& other) {
  const auto layout = [](const Tensor& t) { return std::tie(t.type, t.whole, t.cuts); };
  const bool is_original = tensor.copy_of < 0 && tensor.previous_of < 0;
  return other.init == tensor.init && other.fill == tensor.fill &&
         (!is_original || layout(other) == layout(tensor));
}

// Checks that states and constants with one name start with the same values in all roles, and that
// states with one name have the same type and cuts. (Copies and versions have those of their
// parameter, or fewer.)
void check_kept(const Model& model, Findings& findings) {
  std::map<std::pair<bool, std::string_view>, std::pair<const Tensor*, int32_t>> known;
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    for (int32_t b : model.cells[c].facts->kept) {
      const Tensor& tensor = model.cells[c].role->tensor(b);
      const bool is_param = !tensor.param.empty();
      if (is_param && tensor.kind != BufferKind::kState) continue;
      const std::string& name = is_param ? tensor.param : tensor.name;
      const auto [first, is_new] =
          known.try_emplace({is_param, std::string_view(name)}, &tensor, c);
      const auto& [other, cell] = first->second;
      if (is_new || starts_as(tensor, *other)) continue;
      findings.add("structure", "{}'{}' starts differently on {} and {}",
                   is_param ? "parameter " : "", quote_control(name), model.who(cell),
                   model.who(c));
    }
}

// Checks that all roles have the same batch, and read the same data under one name.
void check_inputs(const Model& model, Findings& findings) {
  std::unordered_map<std::string_view, std::pair<const DataInput*, int32_t>> known;
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    const RoleProgram& role = *model.cells[c].role;
    if (role.batch != model.cells[0].role->batch)
      findings.add("structure", "the batch has {} samples on {}, {} on {}", role.batch,
                   model.who(c), model.cells[0].role->batch, model.who(0));
    for (const DataInput& input : role.inputs) {
      const auto [first, is_new] = known.try_emplace(input.name, &input, c);
      if (!is_new && !(*first->second.first == input))
        findings.add("structure", "data input '{}' is another on {} than on {}",
                     quote_control(input.name), model.who(c), model.who(first->second.second));
    }
  }
}

// Checks that all roles state the same number of uses for a sum.
void check_uses(const Model& model, Findings& findings) {
  std::vector<bool> said(model.targets.size());
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    const std::vector<int32_t>& targets = model.cells[c].facts->targets;
    for (size_t t = 0; t < targets.size(); ++t) {
      const SumTarget& sum = model.cells[c].role->sum_targets[t];
      if (sum.uses == model.uses[targets[t]] || said[targets[t]]) continue;
      said[targets[t]] = true;
      findings.add("structure", "the sum '{}' has {} uses on {}, {} elsewhere",
                   quote_control(sum.name), sum.uses, model.who(c), model.uses[targets[t]]);
    }
  }
}

// Checks that each gradient belongs to a parameter that some rank keeps.
void check_trained(const Model& model, Findings& findings) {
  std::vector<bool> kept(model.targets.size());
  for (const Cell& cell : model.cells)
    for (const int32_t b : cell.facts->kept) {
      const BufferFacts& buffer = cell.facts->buffers[b];
      if (buffer.kind != BufferKind::kState || buffer.param < 0) continue;
      if (const int32_t sum = model.gradient_of[buffer.param]; sum >= 0) kept[sum] = true;
    }
  for (int32_t t = 0; t < static_cast<int32_t>(kept.size()); ++t)
    if (model.is_gradient[t] && !kept[t])
      findings.add("structure", "the sum '{}' is the gradient of no parameter that is kept",
                   quote_control(model.targets[t]));
}

// Checks reports. They are read from the first rank, so it must have all of them. A rank that
// reports the loss must also report whether the step is skipped, as the loss of such a step may be
// infinite.
void check_reports(const Model& model, Findings& findings) {
  const auto reports = [](const RoleProgram& role, std::string_view name) {
    return std::any_of(role.reports.begin(), role.reports.end(),
                       [&](const Report& report) { return report.name == name; });
  };
  const int32_t first = model.cell_of_rank[0];
  const RoleProgram& all = *model.cells[first].role;
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    const RoleProgram& role = *model.cells[c].role;
    for (const Report& report : role.reports)
      if (!reports(all, report.name))
        findings.add("structure", "{} reports '{}', which {} does not", model.who(c),
                     quote_control(report.name), model.who(first));
    if (reports(role, "loss") && reports(all, "skipped") && !reports(role, "skipped"))
      findings.add("structure", "{} reports 'loss' without 'skipped'", model.who(c));
  }
}

}  // namespace

void check_structure(const Model& model, std::span<const Section> sections, Findings& findings) {
  std::vector<uint8_t> seen(model.facts.size());
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    const auto role = static_cast<size_t>(model.cells[c].facts - model.facts.data());
    if (std::exchange(seen[role], true)) continue;
    check_writes(model, sections, c, findings);
    check_gathered(model, sections, c, findings);
    check_slices(model, sections, c, findings);
    check_versions(model, c, findings);
  }
  check_communicators(model, findings);
  check_starts(model, findings);
  check_kept(model, findings);
  check_inputs(model, findings);
  check_uses(model, findings);
  check_trained(model, findings);
  check_reports(model, findings);
}

}  // namespace piper
