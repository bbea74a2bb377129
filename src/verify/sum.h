// Rule sum: what every buffer of the body holds of each sum, followed through programs, messages
// and reductions. Private to the verify room.
#pragma once

#include <algorithm>
#include <map>
#include <unordered_map>

#include "model.h"
#include "samples.h"

namespace piper {

// What a buffer holds.
struct Content {
  // Parts of sums: by (target, use).
  std::map<std::pair<int32_t, int32_t>, std::vector<SampleSet>> parts;
  bool foreign = false;  // something else was added to a part
  // Mesh axes along which each rank holds another run of the elements, ascending; nothing: all of
  // them.
  std::vector<int32_t> cut;
  // The parameter that it is, and who has given it its value of the next step.
  std::string_view param;
  Spot updated_by;
  // Not part of a sum: which samples it was computed from; nothing: none, or finished sums alone.
  std::vector<SampleSet> computed_from;
  std::vector<int32_t> finished;  // finished sums that it was computed from, ascending

  bool is_part() const { return foreign || !parts.empty(); }
  void add(const Content& other) {
    if (is_part() && cut != other.cut) foreign = true;
    cut = other.cut;
    for (const auto& [key, sets] : other.parts)
      parts[key].insert(parts[key].end(), sets.begin(), sets.end());
    foreign = foreign || other.foreign;
  }
};

inline void add_unique(std::vector<int32_t>& values, int32_t value) {
  const auto at = std::lower_bound(values.begin(), values.end(), value);
  if (at == values.end() || *at != value) values.insert(at, value);
}

// The sums of parameters' gradients in each role, by parameter.
using GradientSums = std::unordered_map<std::string_view, int32_t>;
inline GradientSums gradient_sums(const RoleProgram& role) {
  constexpr std::string_view kEnd = ".grad";
  GradientSums sums;
  for (size_t t = 0; t < role.sum_targets.size(); ++t) {
    const std::string_view name = role.sum_targets[t].name;
    if (name.ends_with(kEnd))
      sums[name.substr(0, name.size() - kEnd.size())] = static_cast<int32_t>(t);
  }
  return sums;
}

// Both ascending.
inline void add_all(std::vector<int32_t>& values, const std::vector<int32_t>& more) {
  if (std::includes(values.begin(), values.end(), more.begin(), more.end())) return;
  std::vector<int32_t> both;
  std::set_union(values.begin(), values.end(), more.begin(), more.end(), std::back_inserter(both));
  values = std::move(both);
}

class SumCheck {
 public:
  SumCheck(const Model& model, const Section& section, Findings& findings, VerifyReport& report)
      : model_(model), section_(section), findings_(findings), report_(report) {
    for (const Cell& cell : model.cells) {
      held_.emplace_back(cell.role->buffers.size());
      sent_.emplace_back();
      gradients_.push_back(gradient_sums(*cell.role));
      for (size_t b = 0; b < cell.role->buffers.size(); ++b) {
        const Buffer& buffer = cell.role->buffers[b];
        if (buffer.kind != BufferKind::kState) continue;
        held_.back()[b].param = buffer.param;
        if (buffer.part_of >= 0) held_.back()[b].cut = cell.role->groups[buffer.part_of].axes;
      }
    }
  }

  void run() {
    for (Spot place : section_.order) {
      const int32_t joint = section_.joint[place.cell][place.index];
      const Instruction& one = section_.at(place);
      if (is_collective(one.kind))
        collective(joint < 0 ? std::vector<Spot>{place} : section_.joints[joint]);
      else
        step(place, one);
    }
    check_reports();
    for (int32_t c = 0; c < static_cast<int32_t>(model_.cells.size()); ++c) check_end(c);
  }

 private:
  const RoleProgram& role(Spot place) const { return *model_.cells[place.cell].role; }
  Content& held(Spot place, int32_t buffer) { return held_[place.cell][buffer]; }
  std::string name(Spot place) const { return name_of(model_, section_, place); }
  std::string buffer_name(Spot place, int32_t buffer) const {
    return fmt::format("'{}'", quote_control(role(place).buffers[buffer].name));
  }
  const std::vector<std::vector<int32_t>>& flow(const Program& program) {
    const auto [known, is_new] = sources_.try_emplace(&program);
    if (is_new) known->second = sources_of(program);
    return known->second;
  }
  std::string target_name(Spot place, int32_t target) const {
    return fmt::format("'{}'", quote_control(role(place).sum_targets[target].name));
  }

  void step(Spot place, const Instruction& one) {
    switch (one.kind) {
      case InstructionKind::kInput: {
        Content content;
        const auto& inputs = role(place).inputs;
        const auto input = std::find_if(inputs.begin(), inputs.end(), [&](const DataInput& each) {
          return each.name == one.input;
        });
        const bool numbers = input == inputs.end();  // of the samples
        if (numbers || input->batch_dim >= 0) content.computed_from = {samples(place, one.samples)};
        held(place, one.args[0]) = std::move(content);
        return;
      }
      case InstructionKind::kSend:
        sent_[place.cell][place.index] = held(place, one.args[0]);
        return;
      case InstructionKind::kRecv: {
        const Spot send = section_.partner[place.cell][place.index];
        auto message = sent_[send.cell].extract(send.index);
        held(place, one.args[0]) = std::move(message.mapped());
        rename_targets(send, place, held(place, one.args[0]));
        return;
      }
      case InstructionKind::kCopy:
        held(place, one.args[1]) = Content(held(place, one.args[0]));
        return;
      case InstructionKind::kOwnPart:
        for (size_t a = 0; a < one.args.size(); a += 2)
          take_part(place, one.args[a], one.args[a + 1]);
        return;
      default:
        compute(place, one);
    }
  }
  SampleSet samples(Spot place, const SampleRange& range) const {
    return samples_of(range, model_.cells[place.cell].coordinates, model_.free_axis);
  }

  // Sums go by name: roles may number them differently.
  void rename_targets(Spot from, Spot to, Content& content) const {
    const auto &targets = role(from).sum_targets, &own = role(to).sum_targets;
    const auto id_of = [&](int32_t target) {
      if (static_cast<size_t>(target) < own.size() && own[target].name == targets[target].name)
        return target;
      for (size_t t = 0; t < own.size(); ++t)
        if (own[t].name == targets[target].name) return static_cast<int32_t>(t);
      return int32_t{-1};
    };
    Content renamed;
    for (auto& [key, sets] : content.parts) {
      const int32_t id = id_of(key.first);
      if (id < 0)
        renamed.foreign = true;
      else
        renamed.parts[{id, key.second}] = std::move(sets);
    }
    for (int32_t target : content.finished)
      if (const int32_t id = id_of(target); id >= 0) add_unique(renamed.finished, id);
    content.parts = std::move(renamed.parts);
    content.foreign = content.foreign || renamed.foreign;
    content.finished = std::move(renamed.finished);
  }

  // ---- Compute ----
  void compute(Spot place, const Instruction& one) {
    const Program& program = role(place).programs[one.program];
    for (const SumRead& read : one.sum_reads) check_read(place, one, read);
    const Content source = sources(place, one, program);
    check_contributions(place, one, program, source);
    check_parameters_read(place, one, program, source);
    std::map<int32_t, Content> results = results_of(place, one, program);
    for (const SumCombine& combine : one.combines) {
      Content& sum = results[combine.arg] = {};
      if (!program.arg_written[combine.arg])
        findings_.add("sum", "{} says that it adds to {}, which it does not write", name(place),
                      buffer_name(place, one.args[combine.arg]));
      for (int32_t from : combine.from) sum.add(held(place, one.args[from]));
    }
    std::vector<bool> begun(one.args.size());
    for (const Contribution& part : one.contributions) {
      Content& sum = results[part.arg];
      // What was held is replaced below: to copy it would cost the square of the microbatches.
      if (!begun[part.arg])
        sum = part.accumulates ? std::move(held(place, one.args[part.arg])) : Content{};
      if (!begun[part.arg] && part.accumulates && !sum.is_part()) sum.foreign = true;
      begun[part.arg] = true;
      sum.computed_from.clear();
      sum.cut.clear();
      sum.parts[{part.target, part.use}].push_back(samples(place, part.samples));
    }
    for (auto& [arg, content] : results) {
      const Content& before = held(place, one.args[arg]);
      if (before.param.empty()) continue;
      check_update(place, one, program, content, arg);
      content.param = before.param;
      content.cut = before.cut;
      content.updated_by = place;
    }
    for (auto& [arg, content] : results) held(place, one.args[arg]) = std::move(content);
  }

  // By written arg: what it was computed from.
  std::map<int32_t, Content> results_of(Spot place, const Instruction& one,
                                        const Program& program) {
    std::vector<int32_t> sum_of(one.args.size(), -1);
    for (const SumRead& read : one.sum_reads) sum_of[read.arg] = read.target;
    std::map<int32_t, Content> results;
    for (size_t a = 0; a < one.args.size(); ++a) {
      if (!program.arg_written[a]) continue;
      Content& content = results[static_cast<int32_t>(a)];
      for (int32_t from : flow(program)[a]) {
        add_all(content.cut, held(place, one.args[from]).cut);
        if (sum_of[from] >= 0)
          add_unique(content.finished, sum_of[from]);
        else
          add_sources(content, held(place, one.args[from]));
      }
    }
    return results;
  }
  static void add_sources(Content& content, const Content& from) {
    for (const SampleSet& set : from.computed_from)
      if (std::find(content.computed_from.begin(), content.computed_from.end(), set) ==
          content.computed_from.end())
        content.computed_from.push_back(set);
    add_all(content.finished, from.finished);
  }

  // What the results come from: samples and finished sums of all that the program reads and does
  // not sum.
  Content sources(Spot place, const Instruction& one, const Program& program) {
    Content source;
    std::vector<bool> declared(one.args.size());
    for (const SumRead& read : one.sum_reads) {
      declared[read.arg] = true;
      add_unique(source.finished, read.target);
    }
    for (const SumCombine& combine : one.combines)
      for (int32_t from : combine.from) declared[from] = true;
    for (const Contribution& part : one.contributions) declared[part.arg] = true;
    for (size_t a = 0; a < one.args.size(); ++a) {
      if (!program.arg_read[a]) continue;
      const Content& content = held(place, one.args[a]);
      if (declared[a]) continue;
      if (content.is_part())
        findings_.add("sum", "{} reads {}, which holds a part of a sum, without saying so",
                      name(place), buffer_name(place, one.args[a]));
      add_sources(source, content);
    }
    return source;
  }

  void check_contributions(Spot place, const Instruction& one, const Program& program,
                           const Content& source) {
    for (const Contribution& part : one.contributions) {
      const std::string target = target_name(place, part.target);
      if (!program.arg_written[part.arg] || program.arg_read[part.arg] != part.accumulates)
        findings_.add("sum", "{} says that it {} {} for {}, but its program {}", name(place),
                      part.accumulates ? "adds to" : "sets", buffer_name(place, one.args[part.arg]),
                      target,
                      !program.arg_written[part.arg] ? "does not write it"
                      : part.accumulates             ? "overwrites it"
                                                     : "reads it first");
      const SampleSet declared = samples(place, part.samples);
      for (const SampleSet& set : source.computed_from)
        if (set != declared) {
          findings_.add("sum", "{} adds to {} for samples {}, but computes from samples {}",
                        name(place), target, print_samples(declared, model_.mesh),
                        print_samples(set, model_.mesh));
          break;
        }
    }
  }

  void check_read(Spot place, const Instruction& one, const SumRead& read) {
    ++report_.sums;
    check_finished(
        place, held(place, one.args[read.arg]), read.target,
        fmt::format("{} reads the sum {} from {}", name(place), target_name(place, read.target),
                    buffer_name(place, one.args[read.arg])));
  }
  // `what` reads the content as the finished sum.
  void check_finished(Spot place, const Content& content, int32_t of, const std::string& what) {
    const SumTarget& target = role(place).sum_targets[of];
    if (content.foreign)
      return findings_.add("sum", "{}, which also holds something that is no part of it", what);
    for (const auto& [key, sets] : content.parts)
      if (key.first != of)
        return findings_.add("sum", "{}, which holds a part of {}", what,
                             target_name(place, key.first));
    for (int32_t use = 0; use < target.uses; ++use) {
      const auto found = content.parts.find({of, use});
      const std::string of_use = target.uses > 1 ? fmt::format(" of use {}", use) : "";
      if (found == content.parts.end())
        return findings_.add("sum", "{}: nothing{} is in it", what, of_use);
      for (const SampleSet& set : found->second)
        for (size_t a = 0; a < set.stride.size(); ++a)
          if (set.stride[a] != 0 && model_.mesh[a].second > 1)
            return findings_.add("sum", "{}: it was not summed over the replicas along '{}'{}",
                                 what, quote_control(model_.mesh[a].first), of_use);
      const auto wrong = find_miscount(found->second, role(place).batch);
      if (!wrong) continue;
      const std::string range = fmt::format("samples [{}, {}){}", wrong->first, wrong->end, of_use);
      if (wrong->times == 0) return findings_.add("sum", "{}: {} are missing", what, range);
      return findings_.add("sum", "{}: {} are in it {} times", what, range, wrong->times);
    }
  }

  // ---- Reports ----
  // What is reported is no part of a sum but a finished one, and comes from the same sums
  // everywhere.
  void check_reports() {
    struct Known {
      int32_t cell = 0;
      std::vector<std::string> sums;
    };
    std::map<std::string_view, Known> known;
    for (int32_t c = 0; c < static_cast<int32_t>(model_.cells.size()); ++c)
      for (const Report& report : model_.cells[c].role->reports) {
        const Content& content = held_[c][report.buffer];
        const std::string what =
            fmt::format("{} reports '{}'", model_.who(c), quote_control(report.name));
        std::vector<int32_t> finished = content.finished;
        if (content.is_part()) {
          const int32_t target = content.parts.empty() ? 0 : content.parts.begin()->first.first;
          check_finished({c, -1}, content, target, what);
          finished = {target};
        }
        Known own{c, {}};
        for (int32_t target : finished)
          own.sums.push_back(model_.cells[c].role->sum_targets[target].name);
        std::sort(own.sums.begin(), own.sums.end());
        const auto [other, is_new] = known.emplace(report.name, own);
        if (!is_new && other->second.sums != own.sums)
          findings_.add("sum", "{}, which comes from other sums than on {}", what,
                        model_.who(other->second.cell));
      }
  }

  // ---- Parameters ----
  // What is computed from samples takes whole parameters, as they were before the update.
  void check_parameters_read(Spot place, const Instruction& one, const Program& program,
                             const Content& source);

  // Whoever writes a parameter has its finished gradient, is the first, and takes from what ranks
  // hold differently only the same part.
  void check_update(Spot place, const Instruction& one, const Program& program,
                    const Content& result, int32_t arg);

  // Every trained parameter has its next value, in the form in which it is kept.
  void check_end(int32_t c);

  // ---- Collectives ----
  void collective(const std::vector<Spot>& members);
  const std::vector<int32_t>& axes(Spot place) const;

  // The sum over all members: the cells named here, and in each the ranks along the group's free
  // axes.
  void reduce(const std::vector<Spot>& members, bool scatter);

  // Parts that belong together become what they are parts of.
  void gather(const std::vector<Spot>& members);
  void check_gathered(Spot place, int32_t to, const Content& content);

  void take_part(Spot place, int32_t from, int32_t to);

  void broadcast(const std::vector<Spot>& members);

  const Model& model_;
  const Section& section_;
  Findings& findings_;
  VerifyReport& report_;
  std::vector<std::vector<Content>> held_;        // by cell and buffer
  std::vector<std::map<int32_t, Content>> sent_;  // by cell and send: the message under way
  std::vector<GradientSums> gradients_;           // by cell
  std::unordered_map<const Program*, std::vector<std::vector<int32_t>>> sources_;
};

}  // namespace piper
