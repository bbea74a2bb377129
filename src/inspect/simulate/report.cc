// What a step takes and why, summed up by what people call it.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "piper/base/parallel.h"
#include "piper/inspect/analysis.h"
#include "piper/plan/outer_updates.h"
#include "rows.h"

namespace piper {
namespace {

using timeline::at;

constexpr int32_t kSteps = 4;  // until steps repeat

// Names what runs: tasks without their microbatch.
std::string task_of(const TimedRow& row, const TimedStep& step) {
  const Instruction& one = *step.one;
  if (one.kind != InstructionKind::kCompute) return what_of(*row.role, one);
  if (!is_ordered(one.pass)) return name_of(TaskPass::kU);
  return one.stage < 0 ? name_of(one.pass)
                       : fmt::format("{} stage={}", name_of(one.pass), one.stage);
}

bool is_transfer(const TimedStep& step) {
  return step.one->kind == InstructionKind::kRecv || is_collective(step.one->kind);
}

// Sums up a timeline of several steps over its last one.
class Steady {
 public:
  Steady(const Timeline& timeline, int32_t steps_ahead)
      : timeline_(timeline), section_(kSteps - 1 + steps_ahead) {}

  double period() const {
    double end = 0, begin = 0;
    for (const TimedRow& row : timeline_.rows) {
      end = std::max(end, row.sections[at(section_)].end);
      begin = std::max(begin, row.sections[at(section_) - 1].end);
    }
    return end - begin;
  }
  void run(StepReport& report) {
    report.step = period();
    double busy = 0, ranks = 0;
    for (size_t r = 0; r < timeline_.rows.size(); ++r) {
      add_row(r, report);
      const auto count = static_cast<double>(timeline_.rows[r].ranks.size());
      busy += report.rows.back().busy * count;
      ranks += count;
    }
    report.idle = report.step > 0 ? std::max(0.0, 1 - busy / (report.step * ranks)) : 0;
    for (auto& [key, kind] : moved_) {
      kind.count /= ranks;
      report.moved.push_back(std::move(kind));
    }
    std::stable_sort(report.moved.begin(), report.moved.end(),
                     [](const auto& a, const auto& b) { return a.exposed > b.exposed; });
    add_path(report);
    double all = 0;
    for (const double share : report.origins) all += share;
    for (double& share : report.origins) share = all > 0 ? share / all : 0;
  }

 private:
  void add_row(size_t index, StepReport& report) {
    const TimedRow& row = timeline_.rows[index];
    const TimedSection& section = row.sections[at(section_)];
    RowTimes& times = report.rows.emplace_back();
    times.ranks = row.ranks;
    const auto count = static_cast<double>(row.ranks.size());
    std::map<std::pair<std::string, std::string>, MovedKind> own;
    const auto own_of = [&](const TimedStep& step) -> MovedKind& {
      const auto stream = at(step.one->stream);
      const std::string name =
          stream < row.role->streams.size() ? row.role->streams[stream].name : "";
      return own[{what_of(*row.role, *step.one), name}];
    };
    double work = 0;
    for (int32_t s = section.first; s < section.first + section.count; ++s) {
      const TimedStep& step = row.steps[at(s)];
      const StepCost& cost = step.cost;
      work += cost.device;
      report.origins[static_cast<size_t>(cost.origin)] +=
          count * (cost.device + cost.lane + cost.latency + cost.wire);
      if (!is_transfer(step)) continue;
      MovedKind& kind = own_of(step);
      kind.count += 1;
      kind.moving += step.end - step.start;
    }
    report.bound = std::max(report.bound, work);
    const double from = row.sections[at(section_) - 1].end, to = section.end;
    double idle = 0;
    for (const IdlePiece& piece : idle_pieces(timeline_, index, from, to)) {
      const double time = piece.to - piece.from;
      times.idle[static_cast<size_t>(piece.reason)] += time;
      idle += time;
      if (piece.reason == IdleReason::kMoving) own_of(row.steps[at(piece.step)]).exposed += time;
    }
    times.busy = std::max(0.0, to - from - idle);
    for (const auto& [key, kind] : own) {
      MovedKind& all = moved_[key];
      all.what = key.first;
      all.stream = key.second;
      all.count += kind.count * count;
      if (std::tie(kind.exposed, kind.moving) > std::tie(all.exposed, all.moving))
        all.exposed = kind.exposed, all.moving = kind.moving;
    }
  }

  // Follows causes back from what ends last.
  void add_path(StepReport& report) {
    int32_t row = 0, step = -1;
    double begin = 0;
    for (size_t r = 0; r < timeline_.rows.size(); ++r) {
      const TimedRow& one = timeline_.rows[r];
      if (one.sections[at(section_)].end > timeline_.rows[at(row)].sections[at(section_)].end)
        row = static_cast<int32_t>(r);
      begin = std::max(begin, one.sections[at(section_) - 1].end);
    }
    step = last_of(row, section_);
    double time = timeline_.rows[at(row)].sections[at(section_)].end;
    std::map<std::string, PathKind> path;
    const auto add = [&](const std::string& what, double until, bool counts) {
      until = std::max(until, begin);
      if (until >= time) return;
      PathKind& kind = path[what];
      kind.what = what;
      kind.time += time - until;
      kind.count += counts ? 1 : 0;
      time = until;
    };
    for (size_t links = 0; time > begin && step >= 0 && links < kMostLinks; ++links) {
      const TimedRow& at_row = timeline_.rows[at(row)];
      const TimedStep& one = at_row.steps[at(step)];
      add("(waiting)", one.end, false);
      add(task_of(at_row, one), one.start, true);
      // A message may have been under way before its receiver came to it.
      if (one.cause == Cause::kMessage)
        add(task_of(at_row, one), timeline_.rows[at(one.cause_row)].steps[at(one.cause_step)].end,
            false);
      if (one.cause == Cause::kHost) add("the host", begin, false);
      if (one.cause == Cause::kSection) {
        step = last_of(row, one.section - 1);
      } else {
        step = one.cause_step;
        row = one.cause_row < 0 ? row : one.cause_row;
      }
    }
    add("(waiting)", begin, false);
    for (auto& [what, kind] : path) report.path.push_back(std::move(kind));
    std::stable_sort(report.path.begin(), report.path.end(),
                     [](const auto& a, const auto& b) { return a.time > b.time; });
  }
  int32_t last_of(int32_t row, int32_t section) const {
    const TimedRow& one = timeline_.rows[at(row)];
    const TimedSection& of = one.sections[at(section)];
    int32_t last = -1;
    for (int32_t s = of.first; s < of.first + of.count; ++s)
      if (last < 0 || one.steps[at(s)].end > one.steps[at(last)].end) last = s;
    return last;
  }

  static constexpr size_t kMostLinks = 10'000'000;
  const Timeline& timeline_;
  int32_t section_ = 0;
  std::map<std::pair<std::string, std::string>, MovedKind> moved_;
};

void add_alone(const Timeline& timeline, StepReport& report) {
  report.alone = timeline.length;
  for (const TimedRow& row : timeline.rows) {
    double first = -1, last = 0;
    for (const TimedStep& step : row.steps) {
      if (step.cost.device <= 0) continue;
      first = first < 0 ? step.start : std::min(first, step.start);
      last = std::max(last, step.end);
    }
    report.rows[static_cast<size_t>(&row - timeline.rows.data())].span =
        last - std::max(first, 0.0);
    report.span = std::max(report.span, last - std::max(first, 0.0));
  }
}

// Returns how long a section beside the steps takes that is then all there is to run; 0: there is
// none.
template <class Section>
Result<double> time_of(const PlanSet& set, const Machine& machine, Section section) {
  PlanSet alone = set;
  for (RoleProgram& role : alone.roles) {
    role.body = std::move(section(role));
    for (auto* other : role.sections())
      if (other != &role.body) other->clear();
    role.steps_ahead = 0;
  }
  PIPER_ASSIGN(const Timeline timeline, simulate(alone, machine, 1));
  return timeline.length;
}

// Returns how much longer steps take that have the outer update beside them.
Result<double> exposed_of(const PlanSet& set, const Machine& machine, size_t update, double step) {
  PlanSet joined = set;
  for (RoleProgram& role : joined.roles)
    if (const OuterUpdate& one = role.outer_updates[update]; runs_beside(role, one))
      role.body = instructions_beside(role, one);
  PIPER_ASSIGN(const Timeline steps, simulate(joined, machine, kSteps));
  return std::max(0.0, Steady(steps, 0).period() - step);
}

// Stands for a machine, of which costs of one kind are larger or smaller.
class ScaledMachine : public Machine {
 public:
  ScaledMachine(const Machine& machine, CostKind kind, double factor)
      : Machine(machine), machine_(machine), kind_(kind), factor_(factor) {}
  int64_t place_of(const PlanSet& set, int64_t rank) const override {
    return machine_.place_of(set, rank);
  }
  Result<RankCosts> costs_of(const PlanSet& set, int64_t rank) const override {
    const RoleProgram& role = set.roles[at(set.role_of_rank[at(rank)])];
    PIPER_ASSIGN(RankCosts costs, machine_.costs_of(set, rank));
    scale(role.prologue, costs.prologue);
    scale(role.body, costs.body);
    scale(role.epilogue, costs.epilogue);
    if (kind_ == CostKind::kHost) costs.between_steps *= factor_;
    return costs;
  }

 private:
  static CostKind kind_of(InstructionKind kind) {
    if (kind == InstructionKind::kCompute) return CostKind::kPrograms;
    if (is_collective(kind)) return CostKind::kCollectives;
    return kind == InstructionKind::kSend || kind == InstructionKind::kRecv ? CostKind::kMessages
                                                                            : CostKind::kCopies;
  }
  void scale(const std::vector<Instruction>& section, std::vector<StepCost>& costs) const {
    for (size_t i = 0; i < section.size(); ++i) {
      if (kind_ == CostKind::kHost) costs[i].host *= factor_;
      if (kind_of(section[i].kind) != kind_) continue;
      for (double StepCost::*part :
           {&StepCost::device, &StepCost::lane, &StepCost::latency, &StepCost::wire})
        costs[i].*part *= factor_;
    }
  }

  const Machine& machine_;
  const CostKind kind_;
  const double factor_;
};

}  // namespace

Result<StepReport> report_step(const PlanSet& set, const Machine& machine) {
  StepReport report;
  const int32_t ahead = set.roles[at(set.role_of_rank[0])].steps_ahead;
  PIPER_ASSIGN(const Timeline steps, simulate(set, machine, kSteps));
  Steady(steps, ahead).run(report);
  for (const TimedRow& row : steps.rows)
    report.first = std::max(report.first, row.sections[at(ahead)].end);
  PIPER_ASSIGN(const Timeline alone, simulate(set, machine, 1));
  add_alone(alone, report);
  const auto evaluates = [](const RoleProgram& role) { return !role.evaluation.empty(); };
  if (std::ranges::any_of(set.roles, evaluates)) {
    PIPER_ASSIGN(report.evaluation,
                 time_of(
                     set, machine, [](RoleProgram & role) -> auto& { return role.evaluation; }));
  }
  for (size_t u = 0; u < set.roles[0].outer_updates.size(); ++u) {
    PIPER_ASSIGN(report.outer.emplace_back(), time_of(
                                                  set, machine, [&](RoleProgram & role) -> auto& {
                                                    return role.outer_updates[u].instructions;
                                                  }));
    report.exposed.push_back(report.outer[u]);
    const auto is_beside = [&](const RoleProgram& role) {
      return runs_beside(role, role.outer_updates[u]);
    };
    if (std::ranges::none_of(set.roles, is_beside)) continue;
    PIPER_ASSIGN(report.exposed[u], exposed_of(set, machine, u, report.step));
  }
  report.average = report.step;
  for (size_t u = 0; u < report.exposed.size(); ++u)
    report.average += report.exposed[u] / static_cast<double>(set.roles[0].outer_updates[u].every);
  return report;
}

std::unique_ptr<Machine> scaled_machine(const Machine& machine, CostKind kind, double factor) {
  return std::make_unique<ScaledMachine>(machine, kind, factor);
}

Result<std::vector<Sensitivity>> sensitivity(const PlanSet& set, const Machine& machine,
                                             const StepReport& report, double share) {
  const int32_t ahead = set.roles[at(set.role_of_rank[0])].steps_ahead;
  std::vector<Sensitivity> all;
  if (report.step <= 0) return all;
  constexpr size_t kThreads = 2;  // each holds a timeline of all rows
  std::vector<Result<double>> periods(2 * kCostKinds.size(), 0.0);
  const auto simulate_one = [&](size_t i) -> Result<double> {
    const auto scaled =
        scaled_machine(machine, static_cast<CostKind>(i / 2), i % 2 == 0 ? 1 - share : 1 + share);
    PIPER_ASSIGN(const Timeline steps, simulate(set, *scaled, kSteps));
    return Steady(steps, ahead).period();
  };
  in_parallel(
      periods.size(), [&](size_t i) { periods[i] = simulate_one(i); }, kThreads);
  for (size_t k = 0; k < kCostKinds.size(); ++k) {
    PIPER_ASSIGN(const double less, periods[2 * k]);
    PIPER_ASSIGN(const double more, periods[2 * k + 1]);
    const Sensitivity one{static_cast<CostKind>(k), less / report.step - 1, more / report.step - 1};
    constexpr double kNothing = 5e-5;
    if (std::max(std::abs(one.less), std::abs(one.more)) > kNothing) all.push_back(one);
  }
  return all;
}

std::string what_of(const RoleProgram& role, const Instruction& one) {
  const auto axis = [&](size_t a) { return role.mesh[a].first; };
  if (one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv) {
    for (size_t a = 0; a < one.peer.size(); ++a)
      if (one.peer[a] >= 0) return "messages over " + axis(a);
    return "messages";
  }
  if (!is_collective(one.kind)) return to_string(one.kind);
  std::vector<std::string> axes;
  for (const int32_t a : role.groups[at(one.group)].axes) axes.push_back(axis(at(a)));
  return fmt::format("{} over {}", to_string(one.kind), join(axes, ", "));
}

std::string human_seconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.4g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.4g} ms", seconds * 1e3);
  return fmt::format("{:.4g} us", seconds * 1e6);
}

}  // namespace piper
