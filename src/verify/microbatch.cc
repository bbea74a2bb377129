// Rule microbatch: every microbatch runs the same computation, on whichever devices. Instructions
// whose labels differ in "mb=N" alone are compared with the first ones: arg by arg, parameters and
// other kept buffers are the same ones, sums are the same sums (rule sum says where they lie:
// microbatches may form their own parts), and the others correspond one to one; and their programs
// do the same, but that one may add to what another sets. What a copy brings counts as what it was
// copied from: microbatches may keep their values in different places. Where microbatches cut a
// task differently, as where some keep what others make again, those that cut it alike are compared
// so, and all must add the same to the sums of the step.
#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "model.h"

namespace piper {
namespace {

// The label without its microbatch, or nothing for a task that belongs to none.
std::string_view without(std::string_view label, std::string_view end) {
  return label.ends_with(end) ? label.substr(0, label.size() - end.size()) : std::string_view();
}
std::string_view task_of(const Instruction& one) {
  if (one.micros > 1)
    return without(one.label, fmt::format(" mb={}..{}", one.micro, one.micro + one.micros));
  std::array<char, 16> suffix = {' ', 'm', 'b', '='};
  const char* end = std::to_chars(suffix.data() + 4, suffix.data() + suffix.size(), one.micro).ptr;
  return without(one.label, std::string_view(suffix.data(), end));
}

// The parts that buffers play: one in each microbatch of a cell, which all microbatches and cells
// know by one number.
class Parts {
 public:
  void begin(size_t buffers) {  // the next microbatch
    ++turn_;
    if (part_.size() < buffers) part_.resize(buffers);
  }
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
  Comparison(const Model& model, const Section& section, const Section& run, Findings& findings)
      : model_(model), section_(section), run_(run), findings_(findings) {}

  void run() {
    taken_.resize(model_.cells.size());
    for (int32_t c = 0; c < static_cast<int32_t>(model_.cells.size()); ++c) {
      follow_copies(c);
      check_cell(c);
    }
    const bool differ =
        std::any_of(tasks_.begin(), tasks_.end(), [](const Task& task) { return task.like >= 0; });
    if (differ && !microbatches_add_the_same(model_, run_)) report_cuts();
  }

 private:
  // What an instruction does for one of its microbatches, the `share`-th.
  struct Share {
    int32_t index = 0, share = 0;
  };
  struct Use {
    int32_t micro = 0;
    Share at;
    int32_t task = 0;
  };
  // Where a task was met first: the parts that the arguments play (in parts_of_first_), and the
  // last one that does the same.
  struct First {
    Share at;
    size_t parts = 0;
    Spot like;
  };
  // Its instructions where it was met first; and how many the microbatch at hand has, from where.
  struct Task {
    int32_t cell = -1, first_micro = -1;
    std::vector<First> first;
    bool is_message = false;  // sent to as many cells as read it
    int32_t like = -1;        // the same task of microbatches that are cut differently
    Spot from;
    int32_t micro = -1;
    size_t count = 0;
    uint64_t cut = 0, others = 0;  // of the first: how it is cut, and how its microbatch is
    uint64_t own_cut = 0;          // of the microbatch at hand
    bool is_first(int32_t c, int32_t m) const { return cell == c && first_micro == m; }
  };

  // What each instruction takes, where copies move values.
  void follow_copies(int32_t c) {
    const auto& steps = section_.steps[c];
    if (std::none_of(steps.begin(), steps.end(),
                     [](const Step& step) { return step.kind == InstructionKind::kCopy; }))
      return;
    std::vector<int32_t> holds(facts(c).buffers.size());
    for (size_t b = 0; b < holds.size(); ++b) holds[b] = static_cast<int32_t>(b);
    for (const Step& step : steps) {
      const auto args = section_.args_of(c, step);
      for (int32_t arg : args) taken_[c].push_back(holds[arg]);
      if (step.kind == InstructionKind::kCopy) {
        holds[args[1]] = holds[args[0]];
        continue;
      }
      const Access access = access_of(facts(c), step);
      for (size_t a = 0; a < args.size(); ++a)
        if (access[a] & kWrites) holds[args[a]] = args[a];
    }
  }
  size_t num_args(int32_t c, Share at) const {
    const Step& step = section_.steps[c][at.index];
    return static_cast<size_t>(step.micros == 1 ? step.num_args : step.num_args / step.micros);
  }
  size_t first_arg(int32_t c, Share at) const {
    return static_cast<size_t>(section_.steps[c][at.index].first_arg) +
           static_cast<size_t>(at.share) * num_args(c, at);
  }
  std::span<const int32_t> taken(int32_t c, Share at) const {
    const std::vector<int32_t>& args = taken_[c].empty() ? section_.args[c] : taken_[c];
    return {args.data() + first_arg(c, at), num_args(c, at)};
  }

  const RoleFacts& facts(int32_t cell) const { return *model_.cells[cell].facts; }
  const RoleProgram& role(int32_t cell) const { return *model_.cells[cell].role; }

  void check_cell(int32_t c) {
    find_tasks(c);
    tell_cuts_apart(c);
    const std::vector<Use>& uses = uses_;
    for (size_t i = 0; i < uses.size();) {
      parts_.begin(facts(c).buffers.size());
      const size_t first = i;
      const int32_t micro = uses[i].micro;
      for (; i < uses.size() && uses[i].micro == micro; ++i) visit(c, uses[i]);
      // What has been compared knows its parts; what this microbatch is the first to do learns
      // them.
      for (size_t k = first; k < i; ++k) end(c, tasks_[uses[k].task], uses[k]);
    }
  }

  // What belongs to a microbatch, one microbatch after the other, in issue order.
  void find_tasks(int32_t c) {
    own_.clear();
    last_.assign(kLast, {});
    uses_.clear();
    const auto& steps = section_.steps[c];
    int64_t most = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      fetch(section_.lists[c], i);
      if (steps[i].micro < 0 || steps[i].kind == InstructionKind::kCopy) continue;
      const int32_t task = task_of(steps[i], *section_.lists[c][i]);
      for (int32_t share = 0; task >= 0 && share < steps[i].micros; ++share)
        uses_.push_back({steps[i].micro + share, {static_cast<int32_t>(i), share}, task});
      most = std::max(most, int64_t{steps[i].micro} + steps[i].micros);
    }
    sort_uses(static_cast<size_t>(most));
  }
  // Instructions and their labels lie all over memory: asked for before they are needed.
  static void fetch(const std::vector<const Instruction*>& list, size_t i) {
    if (i + 8 < list.size()) __builtin_prefetch(&list[i + 8]->label);
    if (i + 4 < list.size()) __builtin_prefetch(list[i + 4]->label.data());
  }
  // By microbatch; in each as they are.
  void sort_uses(size_t micros) {
    if (micros > 4 * uses_.size() + 64) {
      std::stable_sort(uses_.begin(), uses_.end(),
                       [](const Use& a, const Use& b) { return a.micro < b.micro; });
      return;
    }
    std::vector<size_t> begin(micros + 1);
    for (const Use& use : uses_) ++begin[use.micro + 1];
    for (size_t m = 0; m < micros; ++m) begin[m + 1] += begin[m];
    sorted_.resize(uses_.size());
    for (const Use& use : uses_) sorted_[begin[use.micro]++] = use;
    std::swap(uses_, sorted_);
  }
  // -1: none.
  int32_t task_of(const Step& step, const Instruction& one) {
    std::string_view label = piper::task_of(one);
    if (label.empty()) return -1;
    const bool is_message =
        step.kind == InstructionKind::kSend || step.kind == InstructionKind::kRecv;
    if (is_message) label.remove_prefix(std::min<size_t>(label.size(), 5));  // "send ", "recv "
    // All cells have inputs, messages and computations in common; each has its sums of gradients.
    const bool common = is_message || step.kind == InstructionKind::kInput ||
                        (step.kind == InstructionKind::kCompute && one.pass != 'U');
    // Most have been met lately, with the same program or channel.
    const size_t like = static_cast<size_t>(step.program) + 3 * static_cast<size_t>(one.channel) +
                        static_cast<size_t>(step.kind);
    auto& [last_label, last_of, last_task] = last_[like % kLast];
    auto& known = is_message ? messages_ : common ? known_ : own_;
    if (last_of == &known && last_label == label) return last_task;
    const auto [found, is_new] = known.emplace(label, static_cast<int32_t>(tasks_.size()));
    if (is_new) tasks_.emplace_back().is_message = is_message;
    last_label = label, last_of = &known, last_task = found->second;
    return last_task;
  }
  // Where a microbatch cuts some of a cell's tasks into other parts, or parts of other args or ops,
  // all of its tasks there are tasks of their own: what one keeps another may find elsewhere.
  void tell_cuts_apart(int32_t c) {
    ops_.assign(role(c).programs.size(), 0);
    std::vector<int32_t> cut;  // tasks of the microbatch at hand
    for (size_t i = 0; i < uses_.size();) {
      const size_t first = i;
      cut.clear();
      for (; i < uses_.size() && uses_[i].micro == uses_[first].micro; ++i) {
        Task& task = tasks_[uses_[i].task];
        if (task.is_message) continue;
        if (task.own_cut == 0) cut.push_back(uses_[i].task);
        const Step& step = section_.steps[c][uses_[i].at.index];
        task.own_cut = join_symbols(task.own_cut, num_args(c, uses_[i].at) + 1);
        if (step.kind == InstructionKind::kCompute)
          task.own_cut = join_symbols(task.own_cut, ops_of(c, step.program));
      }
      uint64_t others = 0;         // 0: all tasks are cut as where they were met first
      for (const int32_t t : cut)  // added up in whatever order
        if (tasks_[t].cut != 0 && tasks_[t].cut != tasks_[t].own_cut)
          others += join_symbols(tasks_[t].own_cut, static_cast<uint64_t>(t));
      for (size_t k = first; k < i; ++k)
        if (const uint64_t own = tasks_[uses_[k].task].own_cut; own != 0)
          uses_[k].task = cut_of(uses_[k].task, own, others);
      for (const int32_t t : cut) tasks_[t].own_cut = 0;
    }
  }
  // Which ops; sums may be set or added to.
  uint64_t ops_of(int32_t c, int32_t program) {
    uint64_t& known = ops_[program];
    if (known != 0) return known;
    known = 1;
    for (const ProgramOp& op : role(c).programs[program].ops)
      if (op.op != "Add" && op.op != "Fused") known = join_symbols(known, symbol_of(op.op));
    return known;
  }
  int32_t cut_of(int32_t task, uint64_t cut, uint64_t others) {
    Task& first = tasks_[task];
    if (first.cut == 0) first.cut = cut, first.others = others;
    if (first.cut == cut && first.others == others) return task;
    const auto [known, is_new] = cuts_.try_emplace(
        join_symbols(join_symbols(cut, others), static_cast<uint64_t>(task)), tasks_.size());
    if (is_new) {
      Task& other = tasks_.emplace_back();
      other.like = task;
      other.cut = cut;
    }
    return static_cast<int32_t>(known->second);
  }
  void report_cuts() {
    for (const Task& task : tasks_) {
      if (task.like < 0 || task.cut == tasks_[task.like].cut) continue;
      const Task& other = tasks_[task.like];
      const Spot here{task.cell, task.first[0].at.index},
          there{other.cell, other.first[0].at.index};
      if (task.first.size() != other.first.size()) {
        findings_.add("microbatch", "{} has {} parts, {} has {}", name(here), task.first.size(),
                      name(there), other.first.size());
        continue;
      }
      size_t i = 0;
      const auto args_of = [&](const Task& of) { return num_args(of.cell, of.first[i].at); };
      while (i + 1 < task.first.size() && args_of(task) == args_of(other)) ++i;
      const Spot one{task.cell, task.first[i].at.index}, first{other.cell, other.first[i].at.index};
      if (args_of(task) != args_of(other))
        findings_.add("microbatch", "{} has {} args, {} has {}", name(one), args_of(task),
                      name(first), args_of(other));
      else
        findings_.add("microbatch", "{} has other ops than {}, and adds other sums", name(here),
                      name(there));
    }
  }

  void visit(int32_t c, const Use& use) {
    Task& task = tasks_[use.task];
    if (task.first_micro < 0) task.cell = c, task.first_micro = use.micro;
    if (task.is_first(c, use.micro)) return task.first.push_back({use.at, 0, {}});
    if (task.from.cell != c || task.micro != use.micro)
      task.from = {c, use.at.index}, task.micro = use.micro, task.count = 0;
    const size_t like = task.is_message ? 0 : task.count;
    if (like < task.first.size()) compare(task.cell, task.first[like], c, use.at);
    ++task.count;
  }
  void end(int32_t c, Task& task, const Use& use) {
    if (task.is_first(c, use.micro)) {
      task.first[task.count++].parts = parts_of_first_.size();
      for (int32_t arg : taken(c, use.at)) parts_of_first_.push_back(parts_.of(arg));
    } else if (task.count != task.first.size() && !task.is_message) {
      findings_.add("microbatch", "{} has {} parts, {} has {}", name(task.from), task.count,
                    name({task.cell, task.first[0].at.index}), task.first.size());
      task.count = task.first.size();
    }
  }

  std::string name(Spot place) const { return name_of(model_, section_, place); }
  // With the cell where it is another than that of `place`.
  std::string name_beside(Spot place, Spot reference) const {
    return reference.cell == place.cell ? name_of(section_.at(reference)) : name(reference);
  }
  std::string buffer_name(int32_t cell, int32_t b) const {
    return fmt::format("'{}'", quote_control(role(cell).name(b)));
  }

  void compare(int32_t first_cell, First& like, int32_t c, Share own) {
    const Spot reference{first_cell, like.at.index}, place{c, own.index};
    const Step &first = section_.step(reference), &one = section_.step(place);
    const auto expected = taken(first_cell, like.at), actual = taken(c, own);
    if (expected.size() != actual.size())
      return findings_.add("microbatch", "{} has {} args, {} has {}", name(place), actual.size(),
                           name(reference), expected.size());
    for (size_t a = 0; a < actual.size(); ++a) {
      const int32_t part = parts_of_first_[like.parts + a];
      if (!fits({first_cell, expected[a]}, {c, actual[a]}, part) && !same_sum(reference, place, a))
        findings_.add("microbatch", "{} takes {} as arg {}, where {} takes {}", name(place),
                      buffer_name(place.cell, actual[a]), a, name_beside(place, reference),
                      buffer_name(reference.cell, expected[a]));
    }
    if (one.kind == InstructionKind::kCompute && first.kind == one.kind)
      compare_programs(like, reference, place);
  }
  struct Held {
    int32_t cell = 0, buffer = 0;
  };
  bool fits(const Held& expected, const Held& actual, int32_t part) {
    const BufferFacts &first = facts(expected.cell).buffers[expected.buffer],
                      &one = facts(actual.cell).buffers[actual.buffer];
    if (first.kind != BufferKind::kStep || one.kind != BufferKind::kStep)
      return expected.cell == actual.cell ? expected.buffer == actual.buffer
                                          : is_copy(expected, actual);
    if (first.param >= 0 || one.param >= 0) return first.param == one.param;  // gathered
    if (first.packed || one.packed) {
      const Tensor &a = role(expected.cell).tensor(expected.buffer),
                   &b = role(actual.cell).tensor(actual.buffer);
      if (expected.cell == actual.cell) return expected.buffer == actual.buffer;
      return first.packed && one.packed && a.name == b.name &&
             is_copy({expected.cell, a.packed_of}, {actual.cell, b.packed_of});
    }
    return parts_.plays(actual.buffer, part);
  }
  // Of what is kept, on another cell.
  bool is_copy(const Held& expected, const Held& actual) const {
    const Tensor &a = role(expected.cell).tensor(expected.buffer),
                 &b = role(actual.cell).tensor(actual.buffer);
    return a.kind == b.kind && a.name == b.name && a.init == b.init && a.fill == b.fill &&
           a.param == b.param;
  }

  // Whether an arg is declared to be the same in both: the part of a sum by one use, or the
  // finished sum.
  bool same_sum(Spot reference, Spot place, size_t arg) const {
    const auto sum = [&](Spot spot) {
      const Instruction& one = section_.at(spot);
      const std::vector<int32_t>& targets = facts(spot.cell).targets;
      std::pair<int32_t, int32_t> found{-1, -1};  // target and use
      for (const Contribution& part : one.contributions)
        if (static_cast<size_t>(part.arg) == arg) found = {targets[part.target], part.use};
      for (const SumRead& read : one.sum_reads)
        if (static_cast<size_t>(read.arg) == arg) found = {targets[read.target], -1};
      return found;
    };
    const auto first = sum(reference);
    return first.first >= 0 && first == sum(place);
  }

  const Program& program(Spot place) const {
    return role(place.cell).programs[section_.step(place).program];
  }
  void compare_programs(First& first, Spot reference, Spot place) {
    if (&program(reference) == &program(place)) return;
    // Most are as the microbatch before.
    Spot& like = first.like;
    const Instruction& one = section_.at(place);
    if (like.valid() && &program(like) == &program(place) && same_sums(section_.at(like), one))
      return;
    const std::vector<uint64_t> expected = added_by(reference), actual = added_by(place);
    for (size_t a = 0; a < std::min(expected.size(), actual.size()); ++a)
      if (expected[a] != actual[a])
        return findings_.add("microbatch", "{} computes {} otherwise than {} does", name(place),
                             buffer_name(place.cell, one.args[a]), name_beside(place, reference));
    like = place;
  }
  // Whether two add to the same arguments.
  static bool same_sums(const Instruction& a, const Instruction& b) {
    const auto same_part = [](const Contribution& x, const Contribution& y) {
      return x.arg == y.arg && x.accumulates == y.accumulates;
    };
    const auto same_combine = [](const SumCombine& x, const SumCombine& y) {
      return x.arg == y.arg && x.from == y.from;
    };
    return std::equal(a.contributions.begin(), a.contributions.end(), b.contributions.begin(),
                      b.contributions.end(), same_part) &&
           std::equal(a.combines.begin(), a.combines.end(), b.combines.begin(), b.combines.end(),
                      same_combine);
  }
  // By argument: what the program makes, without what an accumulator held before.
  std::vector<uint64_t> added_by(Spot place) {
    const Instruction& one = section_.at(place);
    std::vector<uint64_t> meaning = this->meaning(program(place));
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
  const std::vector<uint64_t>& meaning(const Program& program) {
    std::vector<uint64_t>& known = meanings_[&program];
    if (known.empty()) known = meaning_of(program);
    return known;
  }

  const Model& model_;
  const Section& section_;
  const Section& run_;  // a run that holds all of the section
  Findings& findings_;
  using Labels = std::unordered_map<std::string_view, int32_t>;
  Labels known_, messages_, own_;  // tasks; own_: of the cell at hand
  struct Last {
    std::string_view label;
    const Labels* of = nullptr;
    int32_t task = -1;
  };
  static constexpr size_t kLast = 256;
  std::vector<Last> last_;
  std::unordered_map<uint64_t, size_t> cuts_;
  std::vector<uint64_t> ops_;                // by program of the cell at hand
  std::vector<Use> uses_, sorted_;           // of the cell at hand
  std::vector<std::vector<int32_t>> taken_;  // by cell as Section::args, where copies move values
  std::vector<Task> tasks_;
  Parts parts_;
  std::vector<int32_t> parts_of_first_;
  std::unordered_map<const Program*, std::vector<uint64_t>> meanings_;
};

}  // namespace

void check_microbatches(const Model& model, const Section& section, const Section& run,
                        Findings& findings) {
  Comparison(model, section, run, findings).run();
}

}  // namespace piper
