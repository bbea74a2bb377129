// Rule sum: versions and shards of parameters, from the start of the step to its end.
#include "sum.h"

namespace piper {

void SumCheck::check_parameter_read(Spot place, int32_t arg, const Content& content,
                                    int32_t source) {
  const int32_t wanted = version_read(place, content.param);
  if (content.version == section_.training_step(place) + 1)
    findings_.add("sum", "{} computes with parameter '{}', which {} has already updated",
                  name(place), param_name(content.param),
                  name_of(section_.at(updates_[content.updated_by])));
  else if (content.version != wanted)
    findings_.add("sum", "{} computes with parameter '{}' as it is before step {}, not step {}",
                  name(place), param_name(content.param), content.version, wanted);
  // What is computed from no samples, as in an outer update, is cut as its parameters.
  if (content.cut.any() && source != IdSets::kEmpty)
    findings_.add("sum", "{} computes with parameter '{}', of which {} holds only a part",
                  name(place), param_name(content.param), buffer_name(place, arg));
}

void SumCheck::check_parameters_read(Spot place, const Instruction& one,
                                     const ProgramFacts& program, int32_t source) {
  if (source == IdSets::kEmpty && one.contributions.empty()) return;
  for (size_t a = 0; a < one.args.size(); ++a) {
    if (!(program.access[a] & kReads)) continue;
    const Content& content = held(place, one.args[a]);
    if (flows_[a].param < 0) {
      check_number_read(place, one.args[a]);
      if (content.cut.any() && source != IdSets::kEmpty && flows_[a].sum < 0 &&
          !flows_[a].declared && !content.is_part())
        findings_.add("sum", "{} computes with {}, of which a rank holds only a part", name(place),
                      buffer_name(place, one.args[a]));
      continue;
    }
    check_parameter_read(place, one.args[a], content, source);
  }
}

void SumCheck::check_number_read(Spot place, int32_t buffer) {
  if (numbers_[place.cell].empty() || !numbers_[place.cell][buffer]) return;
  if (held(place, buffer).version + 1 != section_.training_step(place))
    findings_.add("sum", "{} computes with {}, which is not the number of step {}", name(place),
                  buffer_name(place, buffer), section_.training_step(place));
}

Content SumCheck::copied(Spot place) {
  const Instruction& one = section_.at(place);
  const Content& from = held(place, one.args[0]);
  const Tensor& to = role(place).tensor(one.args[1]);
  if (to.previous_of >= 0 &&
      (one.args[0] != to.previous_of ||
       from.version != section_.training_step(place) - role(place).age(to) + 1))
    findings_.add("sum", "{} copies {} to {}, which must get {} before its update", name(place),
                  buffer_name(place, one.args[0]), buffer_name(place, one.args[1]),
                  role(place).age(to) == 1 ? "the newest version" : "the next newer version");
  return from;
}

void SumCheck::check_update(Spot place, const Instruction& one, const Content& result, int32_t arg,
                            const std::vector<int32_t>& sources) {
  const Content& before = held(place, one.args[arg]);
  const std::string shown = param_name(before.param);
  if (!trained(place.cell, before.param))
    return findings_.add("sum", "{} writes parameter '{}', which has no gradient", name(place),
                         shown);
  const int32_t step = section_.training_step(place);
  if (before.version > step)
    return findings_.add("sum", "{} updates parameter '{}', which {} has already updated",
                         name(place), shown, name_of(section_.at(updates_[before.updated_by])));
  if (before.version < step)
    return findings_.add("sum", "{} updates parameter '{}' as it is before step {}, not step {}",
                         name(place), shown, before.version, step);
  const int32_t gradient = model_.gradient_of[before.param] + step * sum_names();
  // An update that reads gradients must read that of its parameter. Gradients of others reach it
  // also through the norm, which counts as a number and not as a gradient.
  bool own = false, other = false;
  for (int32_t a : sources) {
    const int32_t sum = flows_[a].sum;
    own = own || sum == gradient;
    other = other || (sum >= 0 && sum != gradient && model_.is_gradient[name_of_sum(sum)]);
  }
  if (!sets_.contains(result.finished, gradient) || (other && !own))
    findings_.add("sum", "{} updates parameter '{}' without its finished {}", name(place), shown,
                  model_.is_gradient[model_.gradient_of[before.param]] ? "gradient" : "sum");
  const auto elements = [&](int32_t a) {
    return num_elements(role(place).tensor(one.args[a]).type.shape);
  };
  for (int32_t a : sources) {
    if (!flows_[a].cut.any()) continue;
    if (flows_[a].cut != before.cut || elements(a) != elements(arg) * held(place, one.args[a]).rows)
      findings_.add("sum", "{} updates parameter '{}' with {}, which differs between ranks",
                    name(place), shown, buffer_name(place, one.args[a]));
  }
}

// Requires that copies of parameters in other types are written with them, once.
void SumCheck::check_copies(Spot place, const Instruction& one, const ProgramFacts& program) {
  const int32_t next = section_.training_step(place) + 1;
  for (int32_t arg : program.written) {
    const Content& before = held(place, one.args[arg]);
    const bool kept = facts(place).buffers[one.args[arg]].kind == BufferKind::kState;
    if (!kept || !is_copy(before.param)) continue;
    if (results_[arg].param != before.param)
      findings_.add("sum", "{} writes to '{}' something else than '{}' after its update",
                    name(place), param_name(before.param),
                    param_name(model_.master_of[before.param]));
    else if (before.version == next)
      findings_.add("sum", "{} writes '{}', which {} has already written", name(place),
                    param_name(before.param), name_of(section_.at(updates_[before.updated_by])));
  }
}

void SumCheck::round_copies(Spot place, const Instruction& one, const ProgramFacts& program) {
  const int32_t next = section_.training_step(place) + 1;
  for (const auto& [to, from] : program.rounded) {
    const bool written = program.access[from] & kWrites;
    const Content& master = written ? results_[from] : held(place, one.args[from]);
    const DType dtype = role(place).tensor(one.args[to]).type.dtype;
    const auto copy = model_.copies.find({master.param, dtype});
    if (copy == model_.copies.end() || master.version != next) continue;
    results_[to].param = copy->second;
    results_[to].cut = master.cut;
    results_[to].updated_by = static_cast<int32_t>(updates_.size());
    updates_.push_back(place);
  }
  check_copies(place, one, program);
}

void SumCheck::check_end(int32_t c) {
  const RoleProgram& own = *model_.cells[c].role;
  for (int32_t b : model_.cells[c].facts->kept) {
    const BufferFacts& facts = model_.cells[c].facts->buffers[b];
    if (facts.kind != BufferKind::kState) continue;
    const int32_t param = facts.param;
    const Tensor& tensor = own.tensor(b);
    const Content& content = held_[c][b];
    if (model_.trains && tensor.previous_of >= 0 &&
        (content.version != section_.training_steps() - own.age(tensor) ||
         content.param != param_of_version(model_.cells[c], tensor)))
      findings_.add("sum", "'{}' on {} does not hold the version before {} at the end of the step",
                    quote_control(tensor.name), model_.who(c),
                    own.age(tensor) == 1 ? "the update"
                                         : fmt::format("the last {} updates", own.age(tensor)));
    if (param < 0) continue;
    if (content.param != param) {
      findings_.add("sum", "parameter '{}' on {} holds something else at the end of the step",
                    param_name(param), model_.who(c));
      continue;
    }
    report_.parameters += trained(c, param) && !is_copy(param) ? 1 : 0;
    if (trained(c, param) && content.version != section_.training_steps())
      findings_.add("sum", "nothing updates parameter '{}' on {}", param_name(param),
                    model_.who(c));
    const RunAxes kept = tensor.part_of < 0 ? RunAxes() : RunAxes(own.groups[tensor.part_of]);
    if (content.cut != kept)
      findings_.add("sum",
                    "parameter '{}' on {} is cut in another way at the end of the step than at "
                    "its start",
                    param_name(param), model_.who(c));
  }
}

}  // namespace piper
