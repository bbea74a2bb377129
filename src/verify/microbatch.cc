// Rule microbatch: every microbatch runs the same computation. Instructions whose labels
// differ in "mb=N" alone are compared with those of the first microbatch: arg by arg, parameters
// and other kept buffers are the same ones, sums are the same sums (rule sum says where they lie:
// microbatches may form their own parts), and the others correspond one to one; and their programs
// do the same, but that one may add to what another sets.
#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "model.h"

namespace piper {
namespace {

// The label without its microbatch, or nothing for a task that belongs to none.
std::string_view task_of(const Instruction& one) {
  std::array<char, 16> suffix = {' ', 'm', 'b', '='};
  const char* end = std::to_chars(suffix.data() + 4, suffix.data() + suffix.size(), one.micro).ptr;
  const std::string_view label = one.label, own(suffix.data(), end);
  return label.ends_with(own) ? label.substr(0, label.size() - own.size()) : std::string_view();
}

// Buffers of one microbatch by those of another, for one pair of microbatches after the other.
class Renaming {
 public:
  explicit Renaming(size_t buffers) : to_(buffers), from_(buffers) {}
  void begin() { ++turn_; }
  // Whether `one` stands for `other` and for no other.
  bool pair(int32_t other, int32_t one) { return own(to_[other], one) && own(from_[one], other); }

 private:
  struct Entry {
    int32_t turn = 0, buffer = -1;
  };
  bool own(Entry& entry, int32_t buffer) const {
    if (entry.turn != turn_) entry = {turn_, buffer};
    return entry.buffer == buffer;
  }
  int32_t turn_ = 0;
  std::vector<Entry> to_, from_;
};

class Comparison {
 public:
  Comparison(const Model& model, const Section& section, int32_t cell, Findings& findings)
      : model_(model),
        section_(section),
        findings_(findings),
        cell_(cell),
        role_(*model.cells[cell].role),
        facts_(*model.cells[cell].facts),
        renaming_(facts_.buffers.size()),
        meanings_(facts_.programs.size()),
        compared_(section.steps[cell].size(), -1) {}

  void run() {
    find_tasks();
    for (size_t i = 0; i < parts_.size();) {
      renaming_.begin();
      const size_t first = i;
      for (; i < parts_.size() && parts_[i].micro == parts_[first].micro; ++i) visit(parts_[i]);
      for (size_t k = first; k < i; ++k) check_count(tasks_[parts_[k].task], parts_[k].micro);
    }
  }

 private:
  struct Part {
    int32_t micro = 0, index = 0, task = 0;
  };
  // Its instructions in its first microbatch; and how many the microbatch at hand has, from where.
  struct Task {
    int32_t first_micro = -1, micro = -1, from = -1;
    std::vector<int32_t> first;
    size_t count = 0;
  };

  // What belongs to a microbatch, one microbatch after the other, in issue order.
  void find_tasks() {
    std::unordered_map<std::string_view, int32_t> known;
    const auto& steps = section_.steps[cell_];
    for (int32_t i = 0; i < static_cast<int32_t>(steps.size()); ++i) {
      if (steps[i].micro < 0) continue;
      const std::string_view task = task_of(section_.at({cell_, i}));
      if (task.empty()) continue;
      const auto [found, is_new] = known.emplace(task, static_cast<int32_t>(tasks_.size()));
      if (is_new) tasks_.emplace_back();
      parts_.push_back({steps[i].micro, i, found->second});
    }
    std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
      return std::pair(a.micro, a.index) < std::pair(b.micro, b.index);
    });
  }

  void visit(const Part& part) {
    Task& task = tasks_[part.task];
    if (task.first_micro < 0) task.first_micro = part.micro;
    if (task.first_micro == part.micro) return task.first.push_back(part.index);
    if (task.micro != part.micro) task.micro = part.micro, task.from = part.index, task.count = 0;
    if (task.count < task.first.size())
      compare({cell_, task.first[task.count]}, {cell_, part.index});
    ++task.count;
  }
  void check_count(Task& task, int32_t micro) {
    if (task.micro != micro || task.count == task.first.size()) return;
    findings_.add("microbatch", "{} has {} parts, {} has {}", name({cell_, task.from}), task.count,
                  name({cell_, task.first[0]}), task.first.size());
    task.count = task.first.size();
  }

  std::string name(Spot place) const { return name_of(model_, section_, place); }
  std::string buffer_name(int32_t b) const {
    return fmt::format("'{}'", quote_control(role_.buffers[b].name));
  }

  void compare(Spot reference, Spot place) {
    const Step &first = section_.step(reference), &one = section_.step(place);
    if (first.num_args != one.num_args)
      return findings_.add("microbatch", "{} has {} args, {} has {}", name(place), one.num_args,
                           name(reference), first.num_args);
    const auto expected = section_.args_of(cell_, first), actual = section_.args_of(cell_, one);
    for (size_t a = 0; a < actual.size(); ++a)
      if (!fits(expected[a], actual[a]) && !same_sum(reference, place, a))
        findings_.add("microbatch", "{} takes {} as arg {}, where {} takes {}", name(place),
                      buffer_name(actual[a]), a, name_of(section_.at(reference)),
                      buffer_name(expected[a]));
    if (one.kind == InstructionKind::kCompute && first.kind == one.kind)
      compare_programs(reference, place);
  }
  bool fits(int32_t expected, int32_t actual) {
    const BufferFacts &first = facts_.buffers[expected], &one = facts_.buffers[actual];
    if (first.kind != BufferKind::kStep || one.kind != BufferKind::kStep) return expected == actual;
    if (first.param >= 0 || one.param >= 0) return first.param == one.param;  // gathered
    return renaming_.pair(expected, actual);
  }

  // Whether an arg is declared to be the same in both: the part of a sum by one use, or the
  // finished sum.
  bool same_sum(Spot reference, Spot place, size_t arg) const {
    const auto sum = [arg](const Instruction& one) {
      std::pair<int32_t, int32_t> found{-1, -1};  // target and use
      for (const Contribution& part : one.contributions)
        if (static_cast<size_t>(part.arg) == arg) found = {part.target, part.use};
      for (const SumRead& read : one.sum_reads)
        if (static_cast<size_t>(read.arg) == arg) found = {read.target, -1};
      return found;
    };
    const auto first = sum(section_.at(reference));
    return first.first >= 0 && first == sum(section_.at(place));
  }

  void compare_programs(Spot reference, Spot place) {
    const Instruction &first = section_.at(reference), &one = section_.at(place);
    if (first.program == one.program) return;
    // Most are as the microbatch before.
    int32_t& like = compared_[reference.index];
    if (like >= 0 && same_sums(section_.at({cell_, like}), one)) return;
    const std::vector<uint64_t> expected = added_by(first), actual = added_by(one);
    for (size_t a = 0; a < actual.size(); ++a)
      if (expected[a] != actual[a])
        return findings_.add("microbatch", "{} computes {} otherwise than {} does", name(place),
                             buffer_name(one.args[a]), name_of(first));
    like = place.index;
  }
  // Whether two run one program and add to the same arguments.
  static bool same_sums(const Instruction& a, const Instruction& b) {
    const auto same_part = [](const Contribution& x, const Contribution& y) {
      return x.arg == y.arg && x.accumulates == y.accumulates;
    };
    const auto same_combine = [](const SumCombine& x, const SumCombine& y) {
      return x.arg == y.arg && x.from == y.from;
    };
    return a.program == b.program &&
           std::equal(a.contributions.begin(), a.contributions.end(), b.contributions.begin(),
                      b.contributions.end(), same_part) &&
           std::equal(a.combines.begin(), a.combines.end(), b.combines.begin(), b.combines.end(),
                      same_combine);
  }
  // By argument: what the program makes, without what an accumulator held before.
  std::vector<uint64_t> added_by(const Instruction& one) {
    std::vector<uint64_t> meaning = this->meaning(one.program);
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
  const std::vector<uint64_t>& meaning(int32_t program) {
    std::vector<uint64_t>& known = meanings_[program];
    if (known.empty()) known = meaning_of(role_.programs[program]);
    return known;
  }
  const Model& model_;
  const Section& section_;
  Findings& findings_;
  int32_t cell_;
  const RoleProgram& role_;
  const RoleFacts& facts_;
  std::vector<Part> parts_;
  std::vector<Task> tasks_;
  Renaming renaming_;                            // of the first microbatch's buffers
  std::vector<std::vector<uint64_t>> meanings_;  // by program
  std::vector<int32_t> compared_;                // by instruction: the last one that does the same
};

}  // namespace

void check_microbatches(const Model& model, const Section& section, Findings& findings) {
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    Comparison(model, section, c, findings).run();
}

}  // namespace piper
