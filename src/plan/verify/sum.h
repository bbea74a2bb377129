// Rule sum: what every buffer of the body holds of each sum, followed through programs, messages
// and reductions. Private to the verify room.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_map>

#include "mail.h"
#include "model.h"
#include "samples.h"
#include "scalars.h"
#include "sets.h"

namespace piper {

// Holds a part of a sum: the samples that one use has given so far.
struct SumPart {
  int32_t target = 0, use = 0;  // the sum's name, by id
  std::vector<SampleRun> runs;
  bool operator==(const SumPart&) const = default;
};

// Says what a buffer holds.
struct Content {
  std::vector<SumPart> parts;  // ascending by target and use
  // Mesh axes along which each rank holds another run of the elements; none: it holds all of them.
  uint32_t cut = 0;
  // Not part of a sum: which samples it was computed from; none: finished sums only, or nothing.
  int32_t from = IdSets::kEmpty;
  int32_t finished = IdSets::kEmpty;  // finished sums that it was computed from
  // The parameter that it is, and who has given it its value of the next step (an id).
  int32_t param = -1;
  int32_t updated_by = -1;
  // Not a parameter: the one that it was computed from, or that none was, or several.
  static constexpr int32_t kNone = -1, kSeveral = -2;
  int32_t of_param = kNone;
  int16_t version = 0;   // of a state: before this training step; the first is 0
  bool foreign = false;  // something else was added to a part, or parts do not belong together

  bool is_part() const { return foreign || !parts.empty(); }
  // Returns the runs of a part, made where it is missing.
  std::vector<SampleRun>& runs_of(int32_t target, int32_t use) {
    const auto at = std::lower_bound(
        parts.begin(), parts.end(), std::pair(target, use),
        [](const SumPart& part, auto key) { return std::pair(part.target, part.use) < key; });
    if (at != parts.end() && at->target == target && at->use == use) return at->runs;
    return parts.insert(at, {target, use, {}})->runs;
  }
  // Elements are not where whoever holds them looks for them: nobody may read them as what they
  // were.
  void scramble() {
    foreign = is_part() || param >= 0;
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

class SumCheck {
 public:
  SumCheck(const Model& model, const Section& section, Findings& findings, VerifyReport& report)
      : model_(model),
        section_(section),
        findings_(findings),
        report_(report),
        scalars_(model, section, findings, [this](Spot place, int32_t buffer) {
          const Content& content = held(place, buffer);
          return StepScalars::Known{content.param, content.cut};
        }) {
    for (const Cell& cell : model.cells) {
      held_.emplace_back(cell.role->buffers.size());
      numbers_.emplace_back();
      for (int32_t b : cell.facts->kept) {
        const BufferFacts& facts = cell.facts->buffers[b];
        if (facts.kind != BufferKind::kState) continue;
        const Tensor& tensor = cell.role->tensor(cell.role->buffers[b]);
        held_.back()[b].param = facts.param;
        if (tensor.part_of >= 0) held_.back()[b].cut = axes_of(cell.role->groups[tensor.part_of]);
        if (tensor.previous_of < 0) continue;
        held_.back()[b].param = cell.facts->buffers[tensor.previous_of].param;
        held_.back()[b].version = -1;
        two_versions_ = true;
        if (held_.back()[b].param >= 0) continue;
        numbers_.back().resize(cell.role->buffers.size());
        numbers_.back()[b] = numbers_.back()[tensor.previous_of] = true;
      }
    }
  }

  void run() {
    for (size_t i = 0; i < section_.order.size(); ++i) {
      const Spot place = section_.order[i];
      if (i + kAhead < section_.order.size()) fetch(section_.order[i + kAhead]);
      const Step& one = section_.step(place);
      if (is_collective(one.kind)) {
        collective(section_.members(place));
      } else {
        scalars_.follow(place, section_.at(place));
        step(place, section_.at(place));
      }
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
  // What is held is all over memory: asked for some instructions before it is needed.
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
  // Sums are numbered again in each training step: step × names + name.
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

  // Returns whether the buffer is a state from an earlier step, which says nothing about this one.
  bool from_earlier_step(Spot place, int32_t buffer) {
    return facts(place).buffers[buffer].kind == BufferKind::kState &&
           held(place, buffer).version <= section_.training_step(place);
  }

  void step(Spot place, const Instruction& one);
  void receive(Spot place, const Instruction& one);
  int32_t samples(Spot place, const SampleRange& range);
  std::string print(int32_t samples) const {
    return print_samples(samples_.set_of(samples_.run(samples)), model_.mesh);
  }

  // ---- Compute ----
  void compute(Spot place, const Instruction& one);
  // Fills flows_ and says which samples the results come from: those of all that the program reads
  // and does not sum.
  int32_t find_sources(Spot place, const Instruction& one, const ProgramFacts& program);
  void check_contributions(Spot place, const Instruction& one, const ProgramFacts& program,
                           int32_t source);
  // Fills results_: by written arg what it holds then.
  void find_results(Spot place, const Instruction& one, const ProgramFacts& program);
  void check_use(Spot place, const Instruction& one, int32_t arg, int32_t part);
  const std::vector<std::optional<uint64_t>>& meaning(Spot place, const Instruction& one);
  void combine(Spot place, const Instruction& one, const ProgramFacts& program);
  void contribute(Spot place, const Instruction& one, const ProgramFacts& program);

  // `what()` takes the content for the finished sum.
  void check_finished(int32_t cell, const Content& content, int32_t target,
                      const std::function<std::string()>& what);
  // Says in which way the samples of a use are not those of the batch; empty: they are.
  std::string wrong_samples(int32_t cell, const Content& content, int32_t use,
                            const std::string& of_use) const;

  // ---- Reports ----
  // What is reported is no part of a sum but a finished one, or a number of the step.
  void check_reports(int32_t cell, int32_t step);

  // ---- Parameters ----
  // What is computed from samples takes whole parameters, as they were before the update.
  void check_parameters_read(Spot place, const Instruction& one, const ProgramFacts& program,
                             int32_t source);

  // Checks that the number by which a step draws is its own, and not yet that of the next.
  void check_number_read(Spot place, int32_t buffer);

  // A previous version becomes the newest before that is updated.
  void copy(Spot place, const Instruction& one);

  // Returns the version of what is computed from samples: the weights before this step, or before
  // the one before.
  int32_t version_read(Spot place, int32_t param) const {
    if (!trained(place.cell, param)) return 0;  // it stays as it was
    const bool previous = two_versions_ && model_.is_gradient[model_.gradient_of[param]];
    return section_.training_step(place) - (previous ? 1 : 0);
  }
  // Whoever writes a parameter has its finished gradient, is the first, and takes from what ranks
  // hold differently only the same part.
  void check_update(Spot place, const Instruction& one, const Content& result, int32_t arg,
                    const std::vector<int32_t>& sources);

  // What is a parameter after its update, rounded, is its copy; nothing else is put into one.
  bool is_copy(int32_t param) const { return param >= 0 && model_.master_of[param] >= 0; }
  void round_copies(Spot place, const Instruction& one, const ProgramFacts& program);

  // Every trained parameter has its next value, in the form in which it is kept.
  void check_end(int32_t c);

  // ---- Collectives ----
  void collective(std::span<const Spot> members);
  uint32_t axes(Spot place) const { return axes_of(role(place).groups[section_.at(place).group]); }
  // Sums over all members: the cells named here, and in each the ranks along the group's free axes.
  void reduce(std::span<const Spot> members, bool scatter);
  void check_added(Spot place, size_t arg, uint32_t over);

  // Along an axis that is followed each rank has terms of one sum: its samples count once.
  SampleRun summed_over(uint32_t axes, const SampleRun& run);
  // Returns what is computed from all members' samples.
  int32_t known_to_all(uint32_t axes, int32_t sets);

  // Parts that belong together become what they are parts of.
  void gather(std::span<const Spot> members);
  bool has_own_terms(Spot place, const Content& content, const Content& first);
  void name_next_value(Spot place, int32_t to, Content& content);
  bool is_next_value(Spot place, int32_t to, const Content& content) const;
  void check_gathered(Spot place, int32_t to, const Content& content);

  void take_part(Spot place, int32_t from, int32_t to);

  const Model& model_;
  const Section& section_;
  Findings& findings_;
  VerifyReport& report_;
  StepScalars scalars_;
  std::vector<std::vector<Content>> held_;  // by cell and buffer
  Mail<Content> sent_;
  bool two_versions_ = false;               // of every trained parameter
  std::vector<std::vector<bool>> numbers_;  // by cell and buffer: a version of the step's number
  SampleTable samples_;
  IdSets sets_;                // of samples' ids, and of sums
  std::vector<Spot> updates_;  // by id
  // Says for the instruction that is followed, by argument, what flows on to the results, and the
  // results.
  struct Flow {
    uint32_t cut = 0;
    int32_t from = IdSets::kEmpty, finished = IdSets::kEmpty;
    int32_t sum = -1;  // read as this finished sum
    int32_t param = -1;
    bool declared = false, part = false;  // may hold a part of a sum; does so
    bool begun = false;                   // the first contribution is in
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
