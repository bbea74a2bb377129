// Follows what every buffer holds of the step's sums: which uses and samples of which target.
#include <algorithm>
#include <map>
#include <set>

#include "cells.h"

namespace piper::verify {
namespace {

// Samples [first + sum of coordinate × stride, + count) of one use; strides on axes of SPMD peers
// alone, the others are resolved. Different peers hold different terms until a collective brings
// them together.
struct Term {
  int32_t use = 0;
  int64_t first = 0, count = 0;
  std::vector<int64_t> stride;
  bool operator==(const Term&) const = default;
};
struct Content {
  int32_t target = -1;
  std::vector<Term> terms;
};

bool term_order(const Term& a, const Term& b) {
  return std::tie(a.use, a.stride, a.first, a.count) < std::tie(b.use, b.stride, b.first, b.count);
}

// Joins neighbours, so that a whole accumulation window is one term.
void normalise(std::vector<Term>& terms) {
  std::sort(terms.begin(), terms.end(), term_order);
  std::vector<Term> joined;
  for (Term& term : terms) {
    if (!joined.empty() && joined.back().use == term.use && joined.back().stride == term.stride &&
        joined.back().first + joined.back().count == term.first)
      joined.back().count += term.count;
    else
      joined.push_back(std::move(term));
  }
  terms = std::move(joined);
}

// The sum over `size` peers along an axis: every coordinate's samples.
std::vector<Term> over_axis(std::vector<Term> terms, size_t axis, int64_t size) {
  normalise(terms);
  std::vector<Term> result;
  for (Term& term : terms) {
    const int64_t stride = std::exchange(term.stride[axis], 0);
    if (stride == term.count) {
      term.count *= size;
      result.push_back(term);
      continue;
    }
    for (int64_t i = 0; i < size; ++i) {
      result.push_back(term);
      result.back().first += i * stride;
    }
  }
  normalise(result);
  return result;
}

class Follower {
 public:
  Follower(const Model& model, Report& report)
      : model_(model), report_(report), held_(model.cells.size()), updates_(model.cells.size()) {}

  void run() {
    for (const Place& place : model_.order) step(place);
    for (size_t c = 0; c < model_.cells.size(); ++c) check_updates(c);
    check_copies();
  }

 private:
  using Held = std::map<int32_t, Content>;  // by buffer

  const RoleProgram& role(Place place) const {
    return *model_.cells[static_cast<size_t>(place.cell)].role;
  }

  void step(Place place) {
    const Instruction& instruction = model_.at(place);
    Held& held = held_[static_cast<size_t>(place.cell)];
    switch (instruction.kind) {
      case InstructionKind::kCompute:
        return compute(place);
      case InstructionKind::kAllReduce:
        return all_reduce(place);
      case InstructionKind::kSend: {
        const auto it = held.find(instruction.args[0]);
        if (it != held.end()) in_flight_[place] = it->second;
        return;
      }
      case InstructionKind::kRecv: {
        const auto sent = in_flight_.find(
            model_.cells[static_cast<size_t>(place.cell)].partner[static_cast<size_t>(place.at)]);
        held.erase(instruction.args[0]);
        if (sent != in_flight_.end()) held[instruction.args[0]] = sent->second;
        return;
      }
      case InstructionKind::kCopy: {
        const auto from = held.find(instruction.args[0]);
        if (from == held.end())
          held.erase(instruction.args[1]);
        else
          held[instruction.args[1]] = from->second;
        return;
      }
      default:
        for (int32_t arg : instruction.args) held.erase(arg);
    }
  }

  Term term_of(const Contribution& contribution, Place place) const {
    const Cell& cell = model_.cells[static_cast<size_t>(place.cell)];
    Term term{contribution.use, contribution.samples.first, contribution.samples.count,
              contribution.samples.stride};
    term.stride.resize(model_.mesh.size());
    for (size_t a = 0; a < term.stride.size(); ++a)
      if (!model_.shared_axis[a] || model_.mesh[a].second == 1)
        term.first += std::exchange(term.stride[a], 0) * cell.coordinates[a];
    return term;
  }

  void compute(Place place) {
    const Instruction& instruction = model_.at(place);
    const Program& program = role(place).programs[static_cast<size_t>(instruction.program)];
    Held& held = held_[static_cast<size_t>(place.cell)];
    for (const SumRead& read : instruction.sum_reads) check_read(place, read);
    std::map<int32_t, Content> next;
    for (const Contribution& contribution : instruction.contributions) {
      const int32_t buffer = instruction.args[static_cast<size_t>(contribution.arg)];
      Content content{contribution.target, {}};
      const auto before = held.find(buffer);
      if (contribution.accumulates &&
          (before == held.end() || before->second.target != contribution.target)) {
        report_.find("sum", "{} adds to {}, which holds no part of {}", model_.name(place),
                     name(place, buffer), target(place, contribution.target));
        continue;
      }
      if (contribution.accumulates) content = before->second;
      content.terms.push_back(term_of(contribution, place));
      normalise(content.terms);
      next[buffer] = std::move(content);
    }
    for (const SumCombine& combine : instruction.combines) {
      Content content;
      for (int32_t from : combine.from) {
        const auto part = held.find(instruction.args[static_cast<size_t>(from)]);
        if (part == held.end()) {
          report_.find("sum", "{} adds {}, which holds no part of a sum", model_.name(place),
                       name(place, instruction.args[static_cast<size_t>(from)]));
          continue;
        }
        content.target = part->second.target;
        content.terms.insert(content.terms.end(), part->second.terms.begin(),
                             part->second.terms.end());
      }
      normalise(content.terms);
      next[instruction.args[static_cast<size_t>(combine.arg)]] = std::move(content);
    }
    for (size_t a = 0; a < instruction.args.size(); ++a)
      if (program.arg_written[a]) {
        held.erase(instruction.args[a]);
        note_update(place, a);
      }
    for (auto& [buffer, content] : next) held[buffer] = std::move(content);
  }

  void all_reduce(Place place) {
    const Instruction& instruction = model_.at(place);
    const Cell& cell = model_.cells[static_cast<size_t>(place.cell)];
    const Group& group = cell.role->groups[static_cast<size_t>(instruction.group)];
    Held& held = held_[static_cast<size_t>(place.cell)];
    const bool joins_cells = cell.meeting[static_cast<size_t>(place.at)] >= 0;
    for (int32_t arg : instruction.args) {
      const auto it = held.find(arg);
      if (it == held.end()) continue;
      // Between cells only scalars that are no sums travel: each knows of its own parts alone.
      if (joins_cells) {
        held.erase(it);
        continue;
      }
      for (int32_t axis : group.axes)
        it->second.terms = over_axis(std::move(it->second.terms), static_cast<size_t>(axis),
                                     model_.mesh[static_cast<size_t>(axis)].second);
    }
  }

  void check_read(Place place, const SumRead& read) {
    const Instruction& instruction = model_.at(place);
    const int32_t buffer = instruction.args[static_cast<size_t>(read.arg)];
    const Held& held = held_[static_cast<size_t>(place.cell)];
    const std::string sum = target(place, read.target);
    ++report_.counts().sums;
    const auto it = held.find(buffer);
    if (it == held.end() || it->second.target != read.target)
      return report_.find("sum", "{} reads {} as {}, which it does not hold", model_.name(place),
                          name(place, buffer), sum);
    const int32_t uses = role(place).sum_targets[static_cast<size_t>(read.target)].uses;
    std::vector<Term> whole;
    for (int32_t use = 0; use < uses; ++use)
      whole.push_back({use, 0, role(place).batch, std::vector<int64_t>(model_.mesh.size())});
    if (it->second.terms != whole)
      report_.find("sum", "{} reads {}: {}", model_.name(place), sum,
                   difference(it->second.terms, uses, role(place).batch));
  }

  // The first use whose samples are not the whole batch once.
  static std::string difference(const std::vector<Term>& terms, int32_t uses, int64_t batch) {
    for (int32_t use = 0; use < uses; ++use) {
      int64_t next = 0;
      for (const Term& term : terms) {
        if (term.use != use) continue;
        if (std::any_of(term.stride.begin(), term.stride.end(), [](int64_t s) { return s != 0; }))
          return fmt::format("use {} is not summed over all replicas", use);
        if (term.first > next)
          return fmt::format("use {} lacks samples {} to {}", use, next, term.first - 1);
        if (term.first < next)
          return fmt::format("use {} holds samples from {} twice", use, term.first);
        next = term.first + term.count;
      }
      if (next != batch)
        return fmt::format("use {} {} samples from {}", use,
                           next < batch ? "lacks" : "has too many", std::min(next, batch));
    }
    return "it holds uses that do not exist";
  }

  void note_update(Place place, size_t arg) {
    const Instruction& instruction = model_.at(place);
    const Buffer& buffer = role(place).buffers[static_cast<size_t>(instruction.args[arg])];
    if (buffer.kind != BufferKind::kState) return;
    auto& count = updates_[static_cast<size_t>(place.cell)][instruction.args[arg]];
    if (++count > 1)
      report_.find("sum", "{} writes {} a second time in one step", model_.name(place),
                   buffer.name);
    if (buffer.param.empty()) return;
    const std::string wanted = buffer.param + ".grad";
    for (const SumRead& read : instruction.sum_reads)
      if (role(place).sum_targets[static_cast<size_t>(read.target)].name == wanted) return;
    report_.find("sum", "{} updates {} without its gradient", model_.name(place), buffer.param);
  }

  // A parameter with a gradient must be updated wherever it is held.
  void check_updates(size_t c) {
    const RoleProgram& role = *model_.cells[c].role;
    std::set<std::string> targets;
    for (const SumTarget& target : role.sum_targets) targets.insert(target.name);
    for (size_t b = 0; b < role.buffers.size(); ++b) {
      const Buffer& buffer = role.buffers[b];
      if (buffer.param.empty() || !targets.count(buffer.param + ".grad")) continue;
      if (!updates_[c].count(static_cast<int32_t>(b)))
        report_.find("sum", "rank {} never updates its copy of {}", model_.cells[c].rank,
                     buffer.param);
    }
  }

  // All copies of a parameter start equal.
  void check_copies() {
    std::map<std::string, std::pair<const Buffer*, int64_t>> seen;
    for (const Cell& cell : model_.cells)
      for (const Buffer& buffer : cell.role->buffers) {
        if (buffer.param.empty()) continue;
        const auto [it, is_new] = seen.try_emplace(buffer.param, &buffer, cell.rank);
        if (!is_new &&
            (it->second.first->init != buffer.init || it->second.first->type != buffer.type ||
             it->second.first->fill != buffer.fill))
          report_.find("sum", "ranks {} and {} start with different copies of {}",
                       it->second.second, cell.rank, buffer.param);
      }
  }

  std::string name(Place place, int32_t buffer) const {
    return role(place).buffers[static_cast<size_t>(buffer)].name;
  }
  std::string target(Place place, int32_t index) const {
    return "'" + role(place).sum_targets[static_cast<size_t>(index)].name + "'";
  }

  const Model& model_;
  Report& report_;
  std::vector<Held> held_;
  std::map<Place, Content> in_flight_;
  std::vector<std::map<int32_t, int32_t>> updates_;
};

}  // namespace

void check_sums(const Model& model, Report& report) { Follower(model, report).run(); }

}  // namespace piper::verify
