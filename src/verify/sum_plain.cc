// Rule sum: what most computations leave, in short.
#include "sum.h"

namespace piper {

bool SumCheck::compute_plainly(Spot place, const Step& step) {
  const ProgramFacts& program = facts(place).programs[step.program];
  if (program.source_bits.size() != program.written.size()) return false;  // too many
  const std::optional<uint64_t> sums = plain_sums(place, step, program);
  if (!sums) return false;
  const std::span<const int32_t> args = section_.args_of(place.cell, step);
  const std::optional<Plain> plain = plain_sources(place, args, program, *sums);
  if (!plain) return false;
  std::vector<Content>& held = held_[place.cell];
  for (size_t w = 0; w < program.written.size(); ++w) {
    const int32_t arg = program.written[w];
    const bool is_sum = *sums >> arg & 1;
    if (held[args[arg]].param >= 0 || (!is_sum && (program.source_bits[w] & *sums) != 0))
      return false;
  }
  const auto version = static_cast<int16_t>(step.training_step + 1);
  for (size_t w = 0; w < program.written.size(); ++w) {
    const int32_t arg = program.written[w];
    Content& result = held[args[arg]];
    result.version = version;
    if (*sums >> arg & 1) continue;
    if (result.is_part()) result.parts = {}, result.foreign = false;
    result.cut = 0;
    result.from = plain->from.of(program.source_bits[w]);
    result.finished = plain->finished.of(program.source_bits[w]);
    result.updated_by = -1;
  }
  if (*sums == 0) return true;
  uint64_t begun = 0;
  const Instruction& one = section_.at(place);
  const int32_t own = samples(place, one.samples);
  for (const Contribution& part : one.contributions) {
    Content& sum = held[args[part.arg]];
    const uint64_t bit = uint64_t{1} << part.arg;
    if (!part.accumulates && (begun & bit) == 0) sum = {.version = version};
    begun |= bit;
    sum.from = IdSets::kEmpty;
    add_run(sum.parts.runs_of(sum_of(place, part.target), part.use), samples_.run(own));
  }
  return true;
}

std::optional<uint64_t> SumCheck::plain_sums(Spot place, const Step& step,
                                             const ProgramFacts& program) {
  if (!step.sums) return 0;
  const Instruction& one = section_.at(place);
  if (!one.combines.empty() || !one.sum_reads.empty()) return std::nullopt;
  uint64_t sums = 0;
  for (const Contribution& part : one.contributions) {
    if (program.access[part.arg] != (part.accumulates ? kReads | kWrites : kWrites))
      return std::nullopt;
    sums |= uint64_t{1} << part.arg;
  }
  return sums;
}

std::optional<SumCheck::Plain> SumCheck::plain_sources(Spot place, std::span<const int32_t> args,
                                                       const ProgramFacts& program, uint64_t sums) {
  const std::vector<Content>& held = held_[place.cell];
  Plain plain;
  for (int32_t arg : program.read) {
    const Content& content = held[args[arg]];
    const bool is_sum = sums >> arg & 1;
    if (content.cut != 0 || content.foreign || content.parts.empty() == is_sum) return std::nullopt;
    if (content.param >= 0) {
      if (is_sum || content.version != version_read(place, content.param)) return std::nullopt;
      if (from_earlier_step(place, args[arg])) continue;
    } else if (!numbers_[place.cell].empty() && numbers_[place.cell][args[arg]]) {
      return std::nullopt;
    }
    if (is_sum) continue;
    const uint64_t bit = uint64_t{1} << arg;
    if (!plain.from.add(content.from, bit) || !plain.finished.add(content.finished, bit))
      return std::nullopt;
  }
  if (sums == 0 || plain.from.set == IdSets::kEmpty) return plain;
  if (sets_.single(samples(place, section_.at(place).samples)) != plain.from.set)
    return std::nullopt;
  return plain;
}

}  // namespace piper
