// Rule sum: follows which part of each sum every buffer holds, through programs, messages and
// collectives. Private to the verify room.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>

#include "model.h"
#include "samples.h"
#include "scalars.h"
#include "sets.h"
#include "walk.h"

namespace piper {

// Holds a partial sum: the samples that one use of a parameter has contributed so far.
struct SumPart {
  int32_t target = 0, use = 0;  // the sum's name, by id
  std::vector<SampleRun> runs;
  bool operator==(const SumPart&) const = default;
};

// Names mesh axes along which each rank holds another run of the elements, in the order in which
// the runs follow one another: those of the last axis are side by side.
class RunAxes {
 public:
  RunAxes() = default;
  explicit RunAxes(const Group& group) {
    for (const int32_t axis : group.axes) add(static_cast<uint64_t>(axis) + 1);
  }
  bool any() const { return code_ != 0; }
  uint32_t mask() const {
    uint32_t axes = 0;
    if (code_ == kMany) return ~axes;
    for (uint64_t rest = code_; rest != 0; rest >>= kBits)
      axes |= uint32_t{1} << ((rest & kOne) - 1);
    return axes;
  }
  // Returns the axes of the runs of such runs.
  RunAxes then(const RunAxes& last) const {
    RunAxes all = *this;
    for (uint64_t shift = kMost; shift > 0; shift -= kBits)
      if (const uint64_t axis = last.code_ >> (shift - kBits) & kOne; axis != 0) all.add(axis);
    return last.code_ == kMany && any() ? many() : all;
  }
  // Returns the axes of the runs whose runs are over `last`; nothing: it has others.
  std::optional<RunAxes> without(const RunAxes& last) const {
    if (*this == last) return RunAxes();
    uint64_t bits = 0;
    while (bits < kMost && last.code_ >> bits != 0) bits += kBits;
    if (code_ == kMany || bits == 0 || bits >= kMost || ((code_ ^ last.code_) << (64 - bits)) != 0)
      return std::nullopt;
    RunAxes rest;
    rest.code_ = code_ >> bits;
    return rest;
  }
  bool operator==(const RunAxes&) const = default;

 private:
  static constexpr uint64_t kBits = 6, kOne = 63, kMost = 60, kMany = ~uint64_t{0};
  static RunAxes many() {
    RunAxes all;
    all.code_ = kMany;
    return all;
  }
  // Appends an axis. Lists of more axes than fit all have the code kMany, as no shorter one has.
  void add(uint64_t axis) { code_ = code_ >> (kMost - kBits) != 0 ? kMany : code_ << kBits | axis; }
  uint64_t code_ = 0;  // axis + 1 of each, the last one lowest
};

// Says what a buffer holds: parts of sums, a parameter, or another value with what it was computed
// from.
struct Content {
  std::vector<SumPart> parts;  // ascending by target and use
  RunAxes cut;                 // none: each rank holds all elements
  int64_t rows = 1;            // of which each is a run of another value
  // If it is no partial sum: the samples that it was computed from, a set of ids in
  // SumCheck::sets_.
  int32_t from = IdSets::kEmpty;
  int32_t finished = IdSets::kEmpty;  // finished sums that it was computed from
  // Which parameter it is (-1: none), and which instruction updated it (index in updates_).
  int32_t param = -1;
  int32_t updated_by = -1;
  // If it is no parameter: the only one that it was computed from, kNone or kSeveral.
  static constexpr int32_t kNone = -1, kSeveral = -2;
  int32_t of_param = kNone;
  int16_t version = 0;   // of a state: before this training step; the first is 0
  bool foreign = false;  // a partial sum to which something was added that does not belong to it

  bool is_part() const { return foreign || !parts.empty(); }
  // Returns the samples of a partial sum; inserts an empty one if it is missing.
  std::vector<SampleRun>& runs_of(int32_t target, int32_t use) {
    const auto at = std::lower_bound(
        parts.begin(), parts.end(), std::pair(target, use),
        [](const SumPart& part, auto key) { return std::pair(part.target, part.use) < key; });
    if (at != parts.end() && at->target == target && at->use == use) return at->runs;
    return parts.insert(at, {target, use, {}})->runs;
  }
  // Says that elements are no longer those that the rank should hold: a partial sum, a parameter or
  // a run of any value may not be used.
  void scramble() {
    foreign = is_part() || param >= 0 || cut.any();
    param = -1;
    of_param = kSeveral;
  }
  void add(const Content& other) {
    if (is_part() && cut != other.cut) foreign = true;
    cut = other.cut;
    for (const SumPart& part : other.parts) {
      std::vector<SampleRun>& runs = runs_of(part.target, part.use);
      for (const SampleRun& run : part.runs) add_run(runs, run);
    }
    foreign = foreign || other.foreign;
  }
};

class SumCheck : public BufferWalk<Content> {
 public:
  SumCheck(const Model& model, const Section& section, Findings& findings, VerifyReport& report)
      : BufferWalk(section),
        model_(model),
        findings_(findings),
        report_(report),
        scalars_(model, section, findings,
                 [this](Spot place, int32_t buffer) {
                   const Content& content = held(place, buffer);
                   return StepScalars::Known{content.param, content.cut.mask()};
                 }),
        oldest_(model.master_of.size()) {
    for (const Cell& cell : model.cells) {
      held_.emplace_back(cell.role->buffers.size());
      numbers_.emplace_back();
      for (int32_t b : cell.facts->kept) {
        const BufferFacts& facts = cell.facts->buffers[b];
        if (facts.kind != BufferKind::kState) continue;
        const Tensor& tensor = cell.role->tensor(cell.role->buffers[b]);
        held_.back()[b].param = facts.param;
        if (tensor.part_of >= 0) held_.back()[b].cut = RunAxes(cell.role->groups[tensor.part_of]);
        if (tensor.previous_of < 0) continue;
        const auto age = static_cast<int16_t>(cell.role->age(tensor));
        held_.back()[b].param = param_of_version(cell, tensor);
        held_.back()[b].version = static_cast<int16_t>(-age);
        if (const int32_t param = held_.back()[b].param; param >= 0) {
          int32_t& oldest = oldest_[master(param)];
          oldest = std::max<int32_t>(oldest, age);
          continue;
        }
        numbers_.back().resize(cell.role->buffers.size());
        numbers_.back()[b] = numbers_.back()[tensor.previous_of] = true;
      }
    }
  }

  void run() {
    for (size_t i = 0; i < section_.order.size(); ++i) {
      const Spot place = section_.order[i];
      if (i + kAhead < section_.order.size()) fetch(section_.order[i + kAhead]);
      scalars_.follow(place);
      follow(place);
      if (section_.parts.size() == 1) continue;
      for (Spot member : section_.members(place))
        if (section_.ends_step(member))
          check_reports(member.cell, section_.parts[section_.part_of(member)].step);
    }
    for (int32_t c = 0; c < static_cast<int32_t>(model_.cells.size()); ++c) {
      if (section_.parts.size() == 1) check_reports(c, 0);
      check_end(c);
    }
    scalars_.check_end();
  }

 private:
  // The contents of buffers are spread over memory, so they are prefetched kAhead instructions
  // before they are needed.
  static constexpr size_t kAhead = 4;
  void fetch(Spot place) const {
    const Step& step = section_.step(place);
    const Content* held = held_[place.cell].data();
    for (int32_t arg : section_.args_of(place.cell, step)) __builtin_prefetch(held + arg);
    if (step.sums) __builtin_prefetch(&section_.at(place).contributions);
  }

  const RoleProgram& role(Spot place) const { return *model_.cells[place.cell].role; }
  const RoleFacts& facts(Spot place) const { return *model_.cells[place.cell].facts; }
  Content& held(Spot place, int32_t buffer) { return held_[place.cell][buffer]; }
  std::string name(Spot place) const { return name_of(model_, section_, place); }
  std::string buffer_name(Spot place, int32_t buffer) const {
    return fmt::format("'{}'", quote_control(role(place).name(buffer)));
  }
  std::string target_name(int32_t target) const {
    const std::string name =
        fmt::format("'{}'", quote_control(model_.targets[name_of_sum(target)]));
    if (section_.parts.size() == 1) return name;
    return fmt::format("{} of step {}", name, target / sum_names());
  }
  // A sum has another number in each training step: step × names + name.
  int32_t sum_names() const { return static_cast<int32_t>(model_.targets.size()); }
  int32_t name_of_sum(int32_t target) const { return target % sum_names(); }
  int32_t sum_of(Spot place, int32_t target) const {
    return facts(place).targets[target] + section_.training_step(place) * sum_names();
  }
  std::string param_name(int32_t param) const { return quote_control(model_.params[param]); }
  bool trained(int32_t cell, int32_t param) const {
    const int32_t target = model_.gradient_of[param];
    return target >= 0 && model_.cells[cell].facts->has_target[target];
  }

  // Returns whether the buffer is a state that this step has not written yet: its samples are those
  // of earlier steps.
  bool from_earlier_step(Spot place, int32_t buffer) {
    return facts(place).buffers[buffer].kind == BufferKind::kState &&
           held(place, buffer).version <= section_.training_step(place);
  }

  Content get(Spot place, int32_t buffer) override { return held(place, buffer); }
  void put(Spot place, int32_t buffer, Content content) override {
    held(place, buffer) = std::move(content);
  }
  Content input(Spot place) override;
  Content arrived(Spot place, Spot send, size_t a, Content&& content) override;
  int32_t samples(Spot place, const SampleRange& range);
  std::string print(int32_t samples) const {
    return print_samples(samples_.set_of(samples_.run(samples)), model_.mesh);
  }

  // ---- Compute ----
  void compute(Spot place) override;
  // Fills flows_. Returns the samples that the results depend on: those of all arguments that the
  // program reads, except declared partial sums.
  int32_t find_sources(Spot place, const Instruction& one, const ProgramFacts& program);
  void check_contributions(Spot place, const Instruction& one, const ProgramFacts& program,
                           int32_t source);
  // Fills results_: what each written argument holds afterwards.
  void find_results(Spot place, const Instruction& one, const ProgramFacts& program);
  void check_use(Spot place, const Instruction& one, int32_t arg, int32_t part);
  const std::vector<std::optional<uint64_t>>& meaning(Spot place, const Instruction& one);
  void check_rounding(Spot place, const Instruction& one, const SumCombine& combine);
  void combine(Spot place, const Instruction& one, const ProgramFacts& program);
  void contribute(Spot place, const Instruction& one, const ProgramFacts& program);

  // Checks that a content is the finished sum `target`; `what()` gives the begin of an error text.
  void check_finished(int32_t cell, const Content& content, int32_t target,
                      const std::function<std::string()>& what);
  // Returns how the samples of a use differ from those of the batch; empty: they do not.
  std::string wrong_samples(int32_t cell, const Content& content, int32_t use,
                            const std::string& of_use) const;

  // ---- Reports ----
  // Checks that a report is a finished sum, or another number that is complete, and no partial sum.
  void check_reports(int32_t cell, int32_t step);

  void check_parameter_read(Spot place, int32_t arg, const Content& content, int32_t source);
  // ---- Parameters ----
  // Checks that computations on samples read whole parameters, in the version before the update.
  void check_parameters_read(Spot place, const Instruction& one, const ProgramFacts& program,
                             int32_t source);

  // Checks that a step draws random numbers by its own number, not that of the next step.
  void check_number_read(Spot place, int32_t buffer);

  // Checks copies of each version to the next older one, which come before the update.
  Content copied(Spot place) override;

  // Returns the parameter that an older version is of; -1: a number.
  static int32_t param_of_version(const Cell& cell, const Tensor& tensor) {
    int32_t of = tensor.previous_of;
    while (cell.role->tensor(of).previous_of >= 0) of = cell.role->tensor(of).previous_of;
    return cell.facts->buffers[of].param;
  }
  // Returns the version of a parameter that computations on samples must read: that before this
  // step or, where some rank keeps k versions of it, before the step k - 1 steps ago.
  int32_t version_read(Spot place, int32_t param) const {
    if (!trained(place.cell, param)) return 0;  // never updated
    return section_.training_step(place) - oldest_[master(param)];
  }
  int32_t master(int32_t param) const { return is_copy(param) ? model_.master_of[param] : param; }
  // Checks an update: it is the first of the step, reads the finished gradient, and of sharded
  // values only the shard that the parameter has.
  void check_update(Spot place, const Instruction& one, const Content& result, int32_t arg,
                    const std::vector<int32_t>& sources);

  // Checks that a 16-bit copy of a parameter gets the rounded parameter after its update.
  bool is_copy(int32_t param) const { return param >= 0 && model_.master_of[param] >= 0; }
  void check_copies(Spot place, const Instruction& one, const ProgramFacts& program);
  void round_copies(Spot place, const Instruction& one, const ProgramFacts& program);

  // Checks that each trained parameter was updated, and is sharded as at the start of the step.
  void check_end(int32_t c);

  // ---- Collectives ----
  void collective(std::span<const Spot> members) override;
  // Returns the sum over all ranks of the group: those of the member cells, and in each cell the
  // ranks along the free axes of the group.
  Content reduced(std::span<const Spot> members, size_t a, size_t written);
  const Group& group(Spot place) const { return role(place).groups[section_.at(place).group]; }
  // Returns whether the runs of all members are together what they are runs of: then runs of runs
  // are runs of the whole.
  bool fill(Spot place, int32_t whole, int32_t part) const;
  void check_added(Spot place, size_t arg, uint32_t over);

  // Returns the samples after a sum over `axes`. Along an axis that rule layout follows, ranks may
  // have terms for the same samples, which then count once.
  SampleRun summed_over(uint32_t axes, const SampleRun& run);
  // Returns the samples of all ranks along `axes`, from those of one.
  int32_t known_to_all(uint32_t axes, int32_t sets);

  // An all-gather joins shards to the whole value.
  void gather(std::span<const Spot> members, size_t a);
  Content moved(Spot place, int32_t from);
  void check_exchanged(Spot place, int32_t from);
  bool has_own_terms(Spot place, const Content& content, const Content& first);
  void name_next_value(Spot place, int32_t to, Content& content);
  bool is_next_value(Spot place, int32_t to, const Content& content) const;
  void check_gathered(Spot place, int32_t to, const Content& content);

  Content part_of(Spot place, int32_t from, int32_t to);

  const Model& model_;
  Findings& findings_;
  VerifyReport& report_;
  StepScalars scalars_;
  std::vector<std::vector<Content>> held_;  // by cell and buffer
  std::vector<int32_t> oldest_;             // by parameter: in updates
  std::vector<std::vector<bool>> numbers_;  // by cell and buffer: a version of the step's number
  SampleTable samples_;
  IdSets sets_;                // sets of sample ids, and sets of sums
  std::vector<Spot> updates_;  // by id
  // Says for the current instruction, by argument, what the argument brings to the results.
  struct Flow {
    RunAxes cut;
    int32_t from = IdSets::kEmpty, finished = IdSets::kEmpty;
    int32_t sum = -1;  // the finished sum as which it is read; -1: none
    int32_t param = -1;
    int32_t of_param = Content::kNone;  // the parameter, or the only one that it was computed from
    bool declared = false, part = false;  // declared as a partial sum; is one
    bool begun = false;                   // a contribution was added before
  };
  std::vector<Flow> flows_;
  std::vector<Content> results_;
  std::unordered_map<const Program*, std::vector<std::optional<uint64_t>>> meanings_;
  struct {
    int32_t cell = -1;
    SampleRange range;
    int32_t id = 0;
  } last_samples_;
};

}  // namespace piper
