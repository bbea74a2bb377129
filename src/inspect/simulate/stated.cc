// Machines whose times are stated: units for pictures, FLOPs, or a user's own times of passes.
#include <algorithm>
#include <tuple>

#include "piper/inspect/simulate.h"
#include "piper/plan/flops.h"

namespace piper {
namespace {

// Says what a task takes: its first instruction takes all of it. A task may begin in one section
// and go on in the next. Where a pass of a microbatch is several tasks, as of chunks of tokens or
// of parts on other ranks, they share its time by their FLOPs.
class StatedMachine : public Machine {
 public:
  StatedMachine(const StatedCosts& costs, RankLanes lanes) : costs_(costs), lanes_(lanes) {}

  Result<RankCosts> costs_of(const PlanSet& set, int64_t rank) const override {
    const RoleProgram& role =
        set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])];
    PIPER_ASSIGN(const Shares shares, shares_of(set, role));
    Seen seen;
    RankCosts result;
    result.lanes = lanes_;
    // A body goes on with what the one before it has begun of its step.
    for (const Instruction& one : role.body)
      if (one.ahead > 0) seen.emplace(task_of(one), nullptr);
    Seen of_body = seen;
    result.body = costs_in(role.body, shares, of_body);
    result.epilogue = costs_in(role.epilogue, shares, seen);
    Seen of_prologue;
    result.prologue = costs_in(role.prologue, shares, of_prologue);
    return result;
  }

 private:
  using Task = std::tuple<TaskPass, int32_t, int32_t, std::string_view>;
  using Seen = std::map<Task, const Instruction*>;  // by task that has begun: its first, if known
  static Task task_of(const Instruction& one) {
    if (one.pass == TaskPass::kU) return {one.pass, -1, -1, ""};
    return {one.pass, one.stage, one.micro, one.label};
  }

  using Shares = std::map<Task, double>;  // of the pass; a task that is not there is all of it
  static bool is_of_pass(const Instruction& one) {
    return one.kind == InstructionKind::kCompute && one.micro >= 0 && is_ordered(one.pass);
  }
  static Result<Shares> shares_of(const PlanSet& set, const RoleProgram& own) {
    std::vector<bool> has;  // by stage: the rank has tasks of it
    const auto stage_of = [](const Instruction& one) { return static_cast<size_t>(one.stage + 1); };
    for (const Instruction& one : own.body) {
      if (!is_of_pass(one)) continue;
      has.resize(std::max(has.size(), stage_of(one) + 1));
      has[stage_of(one)] = true;
    }
    struct OfTask {
      const RoleProgram* role = nullptr;  // one that runs it
      std::vector<int32_t> programs = {};
    };
    struct Pass {
      double flops = 0;
      int64_t tasks = 0;
    };
    std::map<Task, OfTask> tasks;
    std::map<std::tuple<TaskPass, int32_t, int32_t>, Pass> passes;
    bool any = false;
    const auto add = [&](const RoleProgram& role) {
      for (const Instruction& one : role.body) {
        if (!is_of_pass(one) || stage_of(one) >= has.size() || !has[stage_of(one)]) continue;
        const auto [at, is_new] = tasks.try_emplace(task_of(one), OfTask{&role});
        if (is_new) any |= ++passes[{one.pass, one.stage, one.micro}].tasks > 1;
        if (at->second.role == &role) at->second.programs.push_back(one.program);
      }
    };
    add(own);
    for (const RoleProgram& other : set.roles)
      if (&other != &own) add(other);
    if (!any) return Shares();
    std::map<const RoleProgram*, std::vector<double>> flops;
    Shares shares;
    for (const auto& [task, of] : tasks) {
      std::vector<double>& known = flops[of.role];
      if (known.empty()) {
        PIPER_ASSIGN(known, program_flops(*of.role));
      }
      double& sum = shares[task];
      for (const int32_t program : of.programs) sum += known[static_cast<size_t>(program)];
      passes[{std::get<0>(task), std::get<1>(task), std::get<2>(task)}].flops += sum;
    }
    for (auto& [task, share] : shares) {
      const Pass& of = passes[{std::get<0>(task), std::get<1>(task), std::get<2>(task)}];
      share = of.flops > 0 ? share / of.flops : 1 / static_cast<double>(of.tasks);
    }
    return shares;
  }

  std::vector<StepCost> costs_in(const std::vector<Instruction>& section, const Shares& shares,
                                 Seen& seen) const {
    std::vector<StepCost> costs;
    for (const Instruction& one : section) {
      StepCost& cost = costs.emplace_back();
      cost.origin = CostOrigin::kStated;
      if (one.kind == InstructionKind::kSend) cost.latency = costs_.send;
      if (one.kind != InstructionKind::kCompute) continue;
      const auto [at, is_new] = seen.try_emplace(task_of(one), &one);
      const bool begins_ahead = !is_new && !at->second && one.ahead > 0;
      if (begins_ahead) at->second = &one;
      if (!is_new && !begins_ahead) continue;
      const auto share = shares.find(task_of(one));
      cost.device = of_pass(one) * (share == shares.end() ? 1 : share->second);
    }
    return costs;
  }
  double of_pass(const Instruction& one) const {
    if (one.micro < 0 || !is_ordered(one.pass)) return one.pass == TaskPass::kU ? costs_.update : 0;
    std::array<double, 4> own{costs_.forward, costs_.backward, costs_.input_half,
                              costs_.weight_half};
    if (const auto found = costs_.of_stage.find(one.stage); found != costs_.of_stage.end())
      own = found->second;
    if (one.pass == TaskPass::kR) return own[0];
    return one.pass == TaskPass::kF ? own[0]
                                    : own[one.pass == TaskPass::kB    ? 1
                                          : one.pass == TaskPass::kBI ? 2
                                                                      : 3];
  }

  const StatedCosts costs_;
  const RankLanes lanes_;
};

class FlopsMachine : public Machine {
 public:
  Result<RankCosts> costs_of(const PlanSet& set, int64_t rank) const override {
    const RoleProgram& role =
        set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])];
    PIPER_ASSIGN(const std::vector<double> flops, program_flops(role));
    const auto in = [&](const std::vector<Instruction>& section) {
      std::vector<StepCost> costs(section.size());
      for (size_t i = 0; i < section.size(); ++i)
        if (section[i].kind == InstructionKind::kCompute)
          costs[i].device = flops[static_cast<size_t>(section[i].program)];
      return costs;
    };
    return RankCosts{in(role.prologue), in(role.body), in(role.epilogue)};
  }
};

}  // namespace

std::unique_ptr<Machine> stated_machine(const StatedCosts& costs, RankLanes lanes) {
  return std::make_unique<StatedMachine>(costs, lanes);
}
std::unique_ptr<Machine> flops_machine() { return std::make_unique<FlopsMachine>(); }

}  // namespace piper
