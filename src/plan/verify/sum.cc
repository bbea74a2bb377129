// Rule sum: what buffers hold after computations and messages.
#include "sum.h"

namespace piper {

Content SumCheck::input(Spot place) {
  const Instruction& one = section_.at(place);
  Content content;
  const auto& inputs = role(place).inputs;
  const auto input = std::find_if(inputs.begin(), inputs.end(),
                                  [&](const DataInput& each) { return each.name == one.input; });
  const bool numbers = input == inputs.end();  // sample numbers
  if (numbers || input->batch_dim >= 0) content.from = sets_.single(samples(place, one.samples));
  return content;
}

// A value that is sharded over an axis must come from a rank with the same coordinate there: others
// have other elements.
Content SumCheck::arrived(Spot place, Spot send, size_t, Content&& content) {
  const std::vector<int64_t>&from = model_.cells[send.cell].coordinates,
        &to = model_.cells[place.cell].coordinates;
  uint32_t apart = 0;
  for (size_t axis = 0; axis < from.size(); ++axis)
    if (from[axis] != to[axis]) apart |= uint32_t{1} << axis;
  if ((content.cut.mask() & apart) != 0) content.scramble();
  return std::move(content);
}

int32_t SumCheck::samples(Spot place, const SampleRange& in_step) {
  // Samples are counted on from one training step to the next.
  const int64_t first = in_step.first + section_.training_step(place) * role(place).batch;
  // Most instructions have the same samples as the one before.
  const SampleRange& last = last_samples_.range;
  if (place.cell == last_samples_.cell && first == last.first && in_step.count == last.count &&
      in_step.stride == last.stride)
    return last_samples_.id;
  last_samples_.cell = place.cell;
  last_samples_.range = in_step;
  last_samples_.range.first = first;
  return last_samples_.id = samples_.id_of(samples_of(
             last_samples_.range, model_.cells[place.cell].coordinates, model_.free_axis));
}

void SumCheck::compute(Spot place) {
  const Instruction& one = section_.at(place);
  const ProgramFacts& program = facts(place).programs[one.program];
  for (const SumRead& read : one.sum_reads) {
    ++report_.sums;
    const int32_t target = sum_of(place, read.target);
    check_finished(place.cell, held(place, one.args[read.arg]), target, [&] {
      return fmt::format("{} reads the sum {} from {}", name(place), target_name(target),
                         buffer_name(place, one.args[read.arg]));
    });
  }
  const int32_t source = find_sources(place, one, program);
  check_contributions(place, one, program, source);
  check_parameters_read(place, one, program, source);
  find_results(place, one, program);
  combine(place, one, program);
  contribute(place, one, program);
  for (size_t w = 0; w < program.written.size(); ++w) {
    const int32_t arg = program.written[w];
    Content& before = held(place, one.args[arg]);
    Content& result = results_[arg];
    if (before.param >= 0 && !is_copy(before.param)) {
      check_update(place, one, result, arg, program.sources[w]);
      result.param = before.param;
      result.cut = before.cut;
      result.updated_by = static_cast<int32_t>(updates_.size());
      updates_.push_back(place);
    }
    // A state of an optimizer is no parameter, whatever it was computed from.
    const BufferFacts& buffer = facts(place).buffers[one.args[arg]];
    if (buffer.kind == BufferKind::kState && buffer.param < 0) result.of_param = Content::kSeveral;
    result.version = static_cast<int16_t>(section_.training_step(place) + 1);
  }
  round_copies(place, one, program);
  for (int32_t arg : program.written) held(place, one.args[arg]) = std::move(results_[arg]);
}

int32_t SumCheck::find_sources(Spot place, const Instruction& one, const ProgramFacts& program) {
  flows_.assign(one.args.size(), {});
  for (const SumRead& read : one.sum_reads) flows_[read.arg].sum = sum_of(place, read.target);
  for (const SumCombine& combine : one.combines)
    for (int32_t from : combine.from) flows_[from].declared = true;
  for (const Contribution& part : one.contributions) flows_[part.arg].declared = true;
  int32_t source = IdSets::kEmpty;
  for (size_t a = 0; a < one.args.size(); ++a) {
    if (!(program.access[a] & kReads)) continue;
    Flow& flow = flows_[a];
    const Content& content = held(place, one.args[a]);
    flow.cut = content.cut;
    flow.param = content.param;
    if (flow.sum >= 0) {
      flow.finished = sets_.single(flow.sum);
      continue;
    }
    flow.of_param = content.param >= 0 ? content.param : content.of_param;
    if (!from_earlier_step(place, one.args[a])) {
      flow.from = content.from;
      flow.finished = content.finished;
    }
    if (flow.declared) {
      flow.part = content.is_part();
      continue;
    }
    source = sets_.unite(source, flow.from);
    if (content.is_part())
      findings_.add("sum", "{} reads {}, which holds {}", name(place),
                    buffer_name(place, one.args[a]),
                    content.parts.empty() ? "partial sums that do not belong together"
                                          : "a part of a sum, without saying so");
  }
  return source;
}

void SumCheck::check_contributions(Spot place, const Instruction& one, const ProgramFacts& program,
                                   int32_t source) {
  if (one.contributions.empty()) return;
  const int32_t declared = samples(place, one.samples);
  for (const Contribution& part : one.contributions) {
    const uint8_t access = program.access[part.arg];
    const bool written = access & kWrites, read = access & kReads;
    const auto target = [&] { return target_name(sum_of(place, part.target)); };
    if (!written || read != part.accumulates)
      findings_.add("sum", "{} says that it {} {} for {}, but its program {}", name(place),
                    part.accumulates ? "adds to" : "sets", buffer_name(place, one.args[part.arg]),
                    target(),
                    !written           ? "does not write it"
                    : part.accumulates ? "overwrites it"
                                       : "reads it first");
    const std::vector<int32_t> sets = sets_.at(source);
    const auto other = std::ranges::find_if(sets, [&](int32_t set) { return set != declared; });
    if (other != sets.end())
      findings_.add("sum", "{} adds to {} for samples {}, but computes from samples {}",
                    name(place), target(), print(declared), print(*other));
  }
}

// Checks that results are computed from a partial sum only if they are declared sums of it.
void SumCheck::check_use(Spot place, const Instruction& one, int32_t arg, int32_t part) {
  for (const SumCombine& sum : one.combines)
    if (sum.arg == arg && std::count(sum.from.begin(), sum.from.end(), part) > 0) return;
  findings_.add("sum", "{} computes {} from {}, which holds a part of a sum", name(place),
                buffer_name(place, one.args[arg]), buffer_name(place, one.args[part]));
}

void SumCheck::find_results(Spot place, const Instruction& one, const ProgramFacts& program) {
  if (results_.size() < flows_.size()) results_.resize(flows_.size());
  for (size_t w = 0; w < program.written.size(); ++w) {
    Content& result = results_[program.written[w]] = {};
    for (int32_t a : program.sources[w]) {
      const Flow& flow = flows_[a];
      if (flow.part && a != program.written[w]) check_use(place, one, program.written[w], a);
      if (flow.of_param >= 0)
        result.of_param = result.of_param == Content::kNone || result.of_param == flow.of_param
                              ? flow.of_param
                              : Content::kSeveral;
      if (flow.cut.any())
        result.cut =
            result.cut.any() && result.cut != flow.cut ? result.cut.then(flow.cut) : flow.cut;
      result.from = sets_.unite(result.from, flow.from);
      result.finished = sets_.unite(result.finished, flow.finished);
    }
  }
}

const std::vector<std::optional<uint64_t>>& SumCheck::meaning(Spot place, const Instruction& one) {
  const Program& program = role(place).programs[one.program];
  const auto [known, is_new] = meanings_.try_emplace(&program);
  if (!is_new) return known->second;
  const bool alone = std::all_of(model_.mesh.begin(), model_.mesh.end(),
                                 [](const auto& axis) { return axis.second == 1; });
  known->second = sums_of(program, alone ? Roundings::kAny : Roundings::kToResults);
  return known->second;
}

// Requires that a sum has a type in which parts of it are kept, or a wide one.
void SumCheck::check_rounding(Spot place, const Instruction& one, const SumCombine& combine) {
  const DType type = role(place).tensor(one.args[combine.arg]).type.dtype;
  const bool kept = std::any_of(combine.from.begin(), combine.from.end(), [&](int32_t from) {
    return role(place).tensor(one.args[from]).type.dtype == type;
  });
  if (combine.from.size() > 1 && !kept && info(type).is_float && info(type).bytes < 4)
    findings_.add("sum", "{} adds up in {}, in {}: parts of a sum are rounded only to travel",
                  name(place), info(type).name, buffer_name(place, one.args[combine.arg]));
}

void SumCheck::combine(Spot place, const Instruction& one, const ProgramFacts& program) {
  for (const SumCombine& combine : one.combines) {
    if (!(program.access[combine.arg] & kWrites)) {
      findings_.add("sum", "{} says that it adds to {}, which it does not write", name(place),
                    buffer_name(place, one.args[combine.arg]));
      continue;
    }
    Content sum;
    uint64_t meant = 0;
    for (int32_t from : combine.from) {
      sum.add(held(place, one.args[from]));
      meant += initial_symbol(static_cast<size_t>(from));
    }
    check_rounding(place, one, combine);
    if (meaning(place, one)[combine.arg] != meant)
      findings_.add("sum", "{} says that {} becomes a sum, but its program computes something else",
                    name(place), buffer_name(place, one.args[combine.arg]));
    results_[combine.arg] = std::move(sum);
  }
}

void SumCheck::contribute(Spot place, const Instruction& one, const ProgramFacts& program) {
  for (const Contribution& part : one.contributions) {
    if (!(program.access[part.arg] & kWrites)) continue;  // reported by check_contributions()
    Content& sum = results_[part.arg];
    Flow& flow = flows_[part.arg];
    if (!flow.begun) {
      flow.begun = true;
      const RunAxes cut = sum.from == IdSets::kEmpty ? sum.cut : RunAxes();
      // The old content is moved, as it is replaced below: a copy for each microbatch would cost
      // time that grows with the square of their number.
      sum = part.accumulates ? std::move(held(place, one.args[part.arg])) : Content{};
      if (part.accumulates && (!sum.is_part() || sum.cut.any())) sum.foreign = true;
      sum.from = IdSets::kEmpty;
      sum.cut = cut;
    }
    add_run(sum.runs_of(sum_of(place, part.target), part.use),
            samples_.run(samples(place, one.samples)));
  }
}

void SumCheck::check_finished(int32_t cell, const Content& content, int32_t target,
                              const std::function<std::string()>& what) {
  if (content.foreign)
    return findings_.add("sum", "{}, which also holds something that is no part of it", what());
  for (const SumPart& part : content.parts)
    if (part.target != target)
      return findings_.add("sum", "{}, which holds a part of {}", what(), target_name(part.target));
  const int32_t uses = model_.uses[name_of_sum(target)];
  for (int32_t use = 0; use < uses; ++use) {
    const std::string of_use = uses > 1 ? fmt::format(" of use {}", use) : "";
    const std::string wrong = wrong_samples(cell, content, use, of_use);
    if (!wrong.empty()) return findings_.add("sum", "{}: {}", what(), wrong);
  }
}

std::string SumCheck::wrong_samples(int32_t cell, const Content& content, int32_t use,
                                    const std::string& of_use) const {
  const auto part = std::find_if(content.parts.begin(), content.parts.end(),
                                 [&](const SumPart& each) { return each.use == use; });
  if (part == content.parts.end()) return fmt::format("nothing{} is in it", of_use);
  std::vector<SampleSet> sets;
  for (const SampleRun& run : part->runs) {
    sets.push_back(samples_.set_of(run));
    sets.back().first -= part->target / sum_names() * model_.cells[cell].role->batch;
    for (size_t a = 0; a < sets.back().stride.size(); ++a)
      if (sets.back().stride[a] != 0 && model_.mesh[a].second > 1)
        return fmt::format("it was not summed over the replicas along '{}'{}",
                           quote_control(model_.mesh[a].first), of_use);
  }
  const auto wrong = find_miscount(std::move(sets), model_.cells[cell].role->batch);
  if (!wrong) return "";
  const std::string range = fmt::format("samples [{}, {}){}", wrong->first, wrong->end, of_use);
  return wrong->times == 0 ? range + " are missing"
                           : fmt::format("{} are in it {} times", range, wrong->times);
}

void SumCheck::check_reports(int32_t cell, int32_t step) {
  for (const Report& report : model_.cells[cell].role->reports) {
    const Content& content = held_[cell][report.buffer];
    Number number;
    if (content.is_part()) {
      const int32_t target = content.parts.empty() ? -1 : content.parts[0].target;
      check_finished(cell, content, target, [&] {
        return fmt::format("{} reports '{}'", model_.who(cell), quote_control(report.name));
      });
      number.kind = NumberKind::kTerms;
      number.terms = {{.target = target < 0 ? Term::kOther : name_of_sum(target)}};
      number.step = target / sum_names();
    } else {
      number = scalars_.number_in(cell, report.buffer);
    }
    scalars_.check_report(cell, report.name, step, number);
  }
}

void check_sums(const Model& model, const Section& section, Findings& findings,
                VerifyReport& report) {
  SumCheck(model, section, findings, report).run();
}

}  // namespace piper
