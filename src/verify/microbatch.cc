// Rule microbatch: every microbatch runs the same computation. Instructions whose labels
// differ in "mb=N" alone are compared with those of the first microbatch: arg by arg, parameters
// and other kept buffers are the same ones, sums are the same sums (rule sum says where they lie:
// microbatches may form their own parts), and the others correspond one to one; and their programs
// do the same, but that one may add to what another sets.
#include <algorithm>
#include <map>

#include "model.h"

namespace piper {
namespace {

// The label without its microbatch, or nothing for a task that belongs to none.
std::optional<std::string> task_of(const Instruction& one) {
  if (one.micro < 0) return std::nullopt;
  const std::string suffix = fmt::format(" mb={}", one.micro);
  if (!one.label.ends_with(suffix)) return std::nullopt;
  return one.label.substr(0, one.label.size() - suffix.size());
}

class Comparison {
 public:
  Comparison(const Model& model, const Section& section, int32_t cell, Findings& findings)
      : model_(model),
        section_(section),
        findings_(findings),
        cell_(cell),
        role_(*model.cells[cell].role) {}

  void run() {
    std::map<std::string, size_t> known;
    std::vector<std::map<int32_t, std::vector<Spot>>> tasks;  // in order; by microbatch
    for (int32_t i = 0; i < static_cast<int32_t>(section_.lists[cell_]->size()); ++i) {
      const Instruction& one = section_.at({cell_, i});
      const auto task = task_of(one);
      if (!task) continue;
      const auto [found, is_new] = known.emplace(*task, tasks.size());
      if (is_new) tasks.emplace_back();
      tasks[found->second][one.micro].push_back({cell_, i});
    }
    for (const auto& micros : tasks) {
      const auto& first = micros.begin()->second;
      for (const auto& [micro, places] : micros) {
        if (places.size() != first.size()) {
          findings_.add("microbatch", "{} has {} parts, {} has {}", name(places[0]), places.size(),
                        name(first[0]), first.size());
          continue;
        }
        for (size_t k = 0; k < places.size(); ++k) compare(micro, first[k], places[k]);
      }
    }
  }

 private:
  std::string name(Spot place) const { return name_of(model_, section_, place); }
  std::string buffer_name(int32_t b) const {
    return fmt::format("'{}'", quote_control(role_.buffers[b].name));
  }

  void compare(int32_t micro, Spot reference, Spot place) {
    const Instruction &first = section_.at(reference), &one = section_.at(place);
    if (first.args.size() != one.args.size())
      return findings_.add("microbatch", "{} has {} args, {} has {}", name(place), one.args.size(),
                           name(reference), first.args.size());
    auto& to = renamed_[micro];
    auto& from = origin_[micro];
    const std::vector<SumUse> first_sums = sums_of(first), sums = sums_of(one);
    for (size_t a = 0; a < one.args.size(); ++a) {
      const int32_t expected = first.args[a], actual = one.args[a];
      if (first_sums[a].target >= 0 && first_sums[a] == sums[a]) continue;
      const bool kept = role_.buffers[expected].kind != BufferKind::kStep ||
                        role_.buffers[actual].kind != BufferKind::kStep;
      const std::string &param = role_.buffers[expected].param,
                        &other_param = role_.buffers[actual].param;
      const bool gathered = !kept && !(param.empty() && other_param.empty());
      const bool fits = gathered ? param == other_param
                        : kept   ? expected == actual
                                 : to.try_emplace(expected, actual).first->second == actual &&
                                     from.try_emplace(actual, expected).first->second == expected;
      if (!fits)
        findings_.add("microbatch", "{} takes {} as arg {}, where {} takes {}", name(place),
                      buffer_name(actual), a, name_of(first), buffer_name(expected));
    }
    if (one.kind == InstructionKind::kCompute && first.kind == one.kind)
      compare_programs(reference, place);
  }

  // What an arg is declared to be: the part of a sum by one use, or the finished sum.
  struct SumUse {
    int32_t target = -1, use = -1;
    bool operator==(const SumUse&) const = default;
  };
  static std::vector<SumUse> sums_of(const Instruction& one) {
    std::vector<SumUse> sums(one.args.size());
    for (const Contribution& part : one.contributions) sums[part.arg] = {part.target, part.use};
    for (const SumRead& read : one.sum_reads) sums[read.arg] = {read.target, -1};
    return sums;
  }

  void compare_programs(Spot reference, Spot place) {
    const Instruction &first = section_.at(reference), &one = section_.at(place);
    if (first.program == one.program) return;
    const std::vector<uint64_t> expected = added_by(first), actual = added_by(one);
    for (size_t a = 0; a < actual.size(); ++a) {
      if (expected[a] != actual[a])
        return findings_.add("microbatch", "{} computes {} otherwise than {} does", name(place),
                             buffer_name(one.args[a]), name_of(first));
    }
  }
  // By argument: what the program makes, without what an accumulator held before.
  std::vector<uint64_t> added_by(const Instruction& one) {
    const auto [known, is_new] = meanings_.try_emplace(one.program);
    if (is_new) known->second = meaning_of(role_.programs[one.program]);
    std::vector<uint64_t> meaning = known->second;
    std::vector<bool> adds(meaning.size());
    for (const Contribution& part : one.contributions)
      if (part.accumulates) adds[part.arg] = true;
    for (const SumCombine& sum : one.combines)
      if (std::find(sum.from.begin(), sum.from.end(), sum.arg) != sum.from.end())
        adds[sum.arg] = true;
    for (size_t a = 0; a < adds.size(); ++a)
      if (adds[a]) meaning[a] -= initial_symbol(a);
    return meaning;
  }

  const Model& model_;
  const Section& section_;
  Findings& findings_;
  int32_t cell_;
  const RoleProgram& role_;
  std::map<int32_t, std::vector<uint64_t>> meanings_;  // by program
  std::map<int32_t, std::map<int32_t, int32_t>> renamed_,
      origin_;  // by microbatch: buffer of the first <-> own
};

}  // namespace

void check_microbatches(const Model& model, const Section& section, Findings& findings) {
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    Comparison(model, section, c, findings).run();
}

}  // namespace piper
