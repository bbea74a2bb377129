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

// The parts that buffers play: one in each microbatch, which all microbatches know by one number.
class Parts {
 public:
  explicit Parts(size_t buffers) : part_(buffers) {}
  void begin() { ++turn_; }  // the next microbatch
  // The part of a buffer; a new one where it has none yet.
  int32_t of(int32_t buffer) {
    if (part_[buffer].turn == turn_) return part_[buffer].id;
    buffer_.push_back({turn_, buffer});
    part_[buffer] = {turn_, static_cast<int32_t>(buffer_.size()) - 1};
    return part_[buffer].id;
  }
  // Whether the buffer, and no other, plays the part.
  bool plays(int32_t buffer, int32_t part) {
    return own(part_[buffer], part) && own(buffer_[part], buffer);
  }

 private:
  struct Entry {
    int32_t turn = 0, id = -1;
  };
  bool own(Entry& entry, int32_t id) const {
    if (entry.turn != turn_) entry = {turn_, id};
    return entry.id == id;
  }
  int32_t turn_ = 0;
  std::vector<Entry> part_, buffer_;  // by buffer and by part, of the microbatch at hand
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
        parts_(facts_.buffers.size()),
        part_of_arg_(section.args[cell].size(), -1),
        meanings_(facts_.programs.size()),
        compared_(section.steps[cell].size(), -1) {}

  void run() {
    find_tasks();
    for (size_t i = 0; i < uses_.size();) {
      parts_.begin();
      const size_t first = i;
      const int32_t micro = uses_[i].micro;
      for (; i < uses_.size() && uses_[i].micro == micro; ++i) visit(uses_[i]);
      // What has been compared knows its parts; what this microbatch is the first to do learns
      // them.
      for (size_t k = first; k < i; ++k) end(tasks_[uses_[k].task], uses_[k]);
    }
  }

 private:
  struct Use {
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
      uses_.push_back({steps[i].micro, i, found->second});
    }
    std::sort(uses_.begin(), uses_.end(), [](const Use& a, const Use& b) {
      return std::pair(a.micro, a.index) < std::pair(b.micro, b.index);
    });
  }

  void visit(const Use& use) {
    Task& task = tasks_[use.task];
    if (task.first_micro < 0) task.first_micro = use.micro;
    if (task.first_micro == use.micro) return task.first.push_back(use.index);
    if (task.micro != use.micro) task.micro = use.micro, task.from = use.index, task.count = 0;
    if (task.count < task.first.size())
      compare({cell_, task.first[task.count]}, {cell_, use.index});
    ++task.count;
  }
  void end(Task& task, const Use& use) {
    if (task.first_micro == use.micro) {
      const Step& step = section_.steps[cell_][use.index];
      const std::span<const int32_t> args = section_.args_of(cell_, step);
      for (size_t a = 0; a < args.size(); ++a)
        part_of_arg_[static_cast<size_t>(step.first_arg) + a] = parts_.of(args[a]);
    } else if (task.count != task.first.size()) {
      findings_.add("microbatch", "{} has {} parts, {} has {}", name({cell_, task.from}),
                    task.count, name({cell_, task.first[0]}), task.first.size());
      task.count = task.first.size();
    }
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
      if (!fits(expected[a], actual[a], static_cast<size_t>(first.first_arg) + a) &&
          !same_sum(reference, place, a))
        findings_.add("microbatch", "{} takes {} as arg {}, where {} takes {}", name(place),
                      buffer_name(actual[a]), a, name_of(section_.at(reference)),
                      buffer_name(expected[a]));
    if (one.kind == InstructionKind::kCompute && first.kind == one.kind)
      compare_programs(reference, place);
  }
  bool fits(int32_t expected, int32_t actual, size_t expected_arg) {
    const BufferFacts &first = facts_.buffers[expected], &one = facts_.buffers[actual];
    if (first.kind != BufferKind::kStep || one.kind != BufferKind::kStep) return expected == actual;
    if (first.param >= 0 || one.param >= 0) return first.param == one.param;  // gathered
    return parts_.plays(actual, part_of_arg_[expected_arg]);
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
  std::vector<Use> uses_;
  std::vector<Task> tasks_;
  Parts parts_;
  std::vector<int32_t> part_of_arg_;             // in Section::args, of the first microbatches
  std::vector<std::vector<uint64_t>> meanings_;  // by program
  std::vector<int32_t> compared_;                // by instruction: the last one that does the same
};

}  // namespace

void check_microbatches(const Model& model, const Section& section, Findings& findings) {
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    Comparison(model, section, c, findings).run();
}

}  // namespace piper
