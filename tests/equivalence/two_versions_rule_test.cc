// Two versions of the weights on chains of one number: the rule written by hand, the order of a
// steady step and what it idles.
#include "equivalence/commands.h"
#include "piper/base/data.h"
#include "piper/plan/verify.h"
#include "piper/planner/lower.h"
#include "piper/runtime/data.h"
#include "unit/chain.h"

namespace piper::two_versions_rule_test {
namespace {

using namespace jobs;

// ---- The rule itself, written by hand ----------------------------------------------------------

constexpr double kRate = 0.05, kMomentum = 0.9;
constexpr int64_t kSteps = 7;

double input(int64_t step, int64_t sample) {
  return 0.1 + 0.07 * static_cast<double>((step * 31 + sample * 7) % 13);
}

class Inputs final : public BatchSource {
 public:
  Status read(int64_t step, int, int64_t first, int64_t count, std::byte* to) const override {
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(input(step, first + i));
      std::memcpy(to + i * 4, &value, 4);
    }
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }
};

struct Training {
  std::vector<double> losses, weights;
};

// tanh(w tanh(w …)), summed over the samples; `delays`: by stage, at which version gradients are
// taken.
Training by_hand(const std::vector<int64_t>& delays, int64_t samples) {
  const size_t n = delays.size();
  std::vector<std::vector<double>> versions{std::vector<double>(n, 1)};
  std::vector<double> moment(n);
  Training run;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<double> at;
    for (size_t s = 0; s < n; ++s)
      at.push_back(versions[static_cast<size_t>(std::max<int64_t>(0, step - delays[s]))][s]);
    std::vector<double> gradient(n), next = versions.back();
    double loss = 0;
    for (int64_t m = 0; m < samples; ++m) {
      std::vector<double> h{static_cast<float>(input(step, m))};
      for (double w : at) h.push_back(std::tanh(w * h.back()));
      loss += h.back();
      double d = 1;
      for (size_t s = n; s-- > 0;) {
        d *= 1 - h[s + 1] * h[s + 1];
        gradient[s] += d * h[s];
        d *= at[s];
      }
    }
    for (size_t s = 0; s < n; ++s) {
      moment[s] = step == 0 ? gradient[s] : kMomentum * moment[s] + gradient[s];
      next[s] -= kRate * moment[s];
    }
    run.losses.push_back(loss);
    versions.push_back(std::move(next));
  }
  run.weights = versions.back();
  return run;
}

Training by_hand(int64_t stages, int64_t samples, int64_t delay) {
  return by_hand(std::vector<int64_t>(static_cast<size_t>(stages), delay), samples);
}

Strategy chain_strategy(const std::string& order, int64_t stages, int64_t microbatches,
                        const std::string& more = "") {
  const Folder folder;
  const std::string text = fmt::format(
      "piper: 1\ninclude: {}\n"
      "train: {{optimizer: {{sgd: {{lr: {}, momentum: {}}}}}}}\n{}",
      chain::library_file(order), kRate, kMomentum, more);
  auto strategy = parse_strategy(
      folder.write("strategy.yaml", text),
      {{"stages", std::to_string(stages)}, {"microbatches", std::to_string(microbatches)}});
  EXPECT_TRUE(strategy) << print_error(strategy.error());
  return *std::move(strategy);
}

Result<PlanSet> chain_plans(const chain::Made& made) {
  PIPER_ASSIGN(Lowered lowered, lower(made.dag, made.schedule));
  PlanSet set;
  set.roles = std::move(lowered.roles);
  for (RoleProgram& role : set.roles) {
    role.workspace_bytes.assign(role.streams.size(), int64_t{1} << 20);  // enough
    role.staging_bytes = staging_of(role);
  }
  set.manifest.mesh = set.roles[0].mesh;
  for (size_t rank = 0; rank < set.roles.size(); ++rank)
    set.role_of_rank.push_back(static_cast<int32_t>(rank));
  return set;
}

Training on_devices(const std::string& order, int64_t stages, int64_t microbatches,
                    const std::string& more = "") {
  const auto made = chain::schedule(chain_strategy(order, stages, microbatches, more), stages);
  EXPECT_TRUE(made) << print_error(made.error());
  const auto set = chain_plans(*made);
  EXPECT_TRUE(set) << print_error(set.error());
  const auto report = verify_plan_set(*set);
  EXPECT_TRUE(report && report->findings.empty())
      << (report ? report->findings[0].text : report.error().message);
  JobOptions options;
  options.steps = kSteps;
  options.threads = 1;
  const Inputs inputs;
  const auto job = run_job(*set, &inputs, nullptr, nullptr, options);
  EXPECT_TRUE(job) << print_error(job.error());
  Training run;
  for (const StepMetrics& step : job->steps) run.losses.push_back(step.loss.value_or(NAN));
  for (const NamedTensor& tensor : job->parameters) {
    float value = 0;
    std::memcpy(&value, tensor.data.data, 4);
    run.weights.push_back(value);
  }
  return run;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST(TwoVersions, FollowTheRuleWrittenByHand) {
  for (const int64_t stages : {1, 2, 4}) {
    const int64_t microbatches = 5;
    const Training delayed = by_hand(stages, microbatches, 1),
                   plain = by_hand(stages, microbatches, 0);
    const Training got = on_devices("pipedream-2bw", stages, microbatches);
    EXPECT_LT(largest_difference(got.losses, delayed.losses), 1e-5) << stages;
    EXPECT_LT(largest_difference(got.weights, delayed.weights), 1e-5) << stages;
    // The other rule is told apart, and the plain plan follows that one.
    EXPECT_GT(largest_difference(got.losses, plain.losses), 1e-3) << stages;
    EXPECT_GT(largest_difference(got.weights, plain.weights), 1e-3) << stages;
    const Training flushed = on_devices("1f1b", stages, microbatches);
    EXPECT_LT(largest_difference(flushed.losses, plain.losses), 1e-5) << stages;
    EXPECT_LT(largest_difference(flushed.weights, plain.weights), 1e-5) << stages;
  }
}

// Each stage has the delay that its own number of versions gives it, and no other.
TEST(StageDelays, FollowTheRuleWrittenByHand) {
  const std::string falling = "weight_versions: {where: {stage: s}, versions: pp - s}\n";
  const struct {
    const char* order;
    std::string more;
    std::vector<int64_t> delays;
  } cases[] = {{"pipedream", "", {1, 0}},       {"pipedream", "", {1, 1, 0}},
               {"pipedream", "", {1, 1, 1, 0}}, {"1f1b", falling, {1, 0}},
               {"1f1b", falling, {2, 1, 0}},    {"1f1b", falling, {3, 2, 1, 0}}};
  for (const auto& [order, more, delays] : cases) {
    const auto stages = std::ssize(delays);
    const Training got = on_devices(order, stages, 5, more);
    for (const std::vector<int64_t>& other :
         {delays, std::vector<int64_t>(delays.rbegin(), delays.rend()),
          std::vector<int64_t>(delays.size(), 0), std::vector<int64_t>(delays.size(), delays[0])}) {
      const Training wanted = by_hand(other, 5);
      const double losses = largest_difference(got.losses, wanted.losses),
                   weights = largest_difference(got.weights, wanted.weights);
      if (other == delays) {
        EXPECT_LT(std::max(losses, weights), 1e-5) << order << " " << stages;
      } else {
        EXPECT_GT(std::min(losses, weights), 1e-4) << order << " " << stages;
      }
    }
  }
}

// ---- Order, idle time, activations -------------------------------------------------------------

// "F2 B0 F0' B1": a steady step of a device, a prime for the next one's.
std::string steady_row(const chain::Made& made, size_t cell) {
  const ComputeOrder& order = made.compute[cell];
  std::string text;
  for (int32_t at : order.body) {
    const Task& task = made.dag.tasks[order.tasks[static_cast<size_t>(at)].index()];
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", name_of(task.pass), task.micro,
                        order.ahead_of(at) > 0 ? "'" : "");
  }
  return text;
}
// The rule: after w = P-r-1 forwards, one forward and one backward for ever.
std::string published_row(int64_t P, int64_t M, int64_t r) {
  std::string text;
  for (int64_t k = 0; k < M; ++k) {
    const int64_t f = k + P - r - 1;
    text += fmt::format("{}F{}{} B{}", k == 0 ? "" : " ", f % M, f < M ? "" : "'", k);
  }
  return text;
}

struct Steady {
  std::vector<int64_t> idle;  // by device, from the end of one step to the end of the next
  std::vector<int64_t> held;  // by device: microbatches whose forward has run and backward has not
};

// A forward takes one unit, a backward two, messages none.
Steady run_steps(const chain::Made& made, int64_t P) {
  constexpr int64_t kAll = 6, kFrom = 3;  // steps that are followed, and which one is measured
  std::vector<std::vector<std::pair<int64_t, const Task*>>> rows(static_cast<size_t>(P));
  for (size_t d = 0; d < rows.size(); ++d) {
    const ComputeOrder& order = made.compute[d];
    const auto add = [&](int32_t at, int64_t step) {
      rows[d].emplace_back(step, &made.dag.tasks[order.tasks[static_cast<size_t>(at)].index()]);
    };
    for (int32_t at = 0; order.ahead_of(at) > 0; ++at) add(at, 0);
    for (int64_t step = 0; step < kAll; ++step)
      for (size_t i = 0; i < order.tasks.size(); ++i) {
        const int32_t at = order.body.empty() ? static_cast<int32_t>(i) : order.body[i];
        add(at, step + order.ahead_of(at));
      }
  }
  std::map<std::tuple<TaskPass, int64_t, int64_t, int64_t>, int64_t> done;  // pass, stage, mb, step
  std::vector<size_t> next(rows.size());
  std::vector<int64_t> clock(rows.size()), held(rows.size());
  std::vector<std::map<int64_t, int64_t>> ends(rows.size());
  Steady out{std::vector<int64_t>(rows.size()), std::vector<int64_t>(rows.size())};
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t d = 0; d < P; ++d) {
      const auto i = static_cast<size_t>(d);
      for (; next[i] < rows[i].size(); ++next[i], moved = true) {
        const auto& [step, task] = rows[i][next[i]];
        const bool forward = task->pass == TaskPass::kF;
        const int64_t from = forward ? d - 1 : d + 1;
        int64_t start = clock[i];
        if (from >= 0 && from < P) {
          const auto other = done.find({task->pass, from, task->micro, step});
          if (other == done.end()) break;
          start = std::max(start, other->second);
        }
        clock[i] = done[{task->pass, d, task->micro, step}] = start + (forward ? 1 : 2);
        held[i] += forward ? 1 : -1;
        out.held[i] = std::max(out.held[i], held[i]);
        if (!forward) ends[i][step] = clock[i];
      }
    }
  }
  const int64_t M = made.dag.microbatches;
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_GE(next[i] + static_cast<size_t>(P), rows[i].size());
    out.idle[i] = ends[i][kFrom] - ends[i][kFrom - 1] - 3 * M;
  }
  return out;
}

TEST(TwoVersions, LeaveNoDeviceIdleOnceThePipelineIsFull) {
  for (const int64_t P : {2, 3, 4, 8})
    for (const int64_t M : {P, P + 1, 2 * P}) {
      const auto made = chain::schedule(chain_strategy("pipedream-2bw", P, M), P);
      const auto flushed = chain::schedule(chain_strategy("1f1b", P, M), P);
      ASSERT_TRUE(made && flushed) << P << " " << M;
      const Steady steady = run_steps(*made, P);
      for (int64_t r = 0; r < P; ++r) {
        const auto i = static_cast<size_t>(r);
        if (r + 1 < P) {
          EXPECT_EQ(steady_row(*made, i), published_row(P, M, r));
        }
        EXPECT_EQ(std::ranges::count(made->compute[i].ahead, 1), P - r - 1);
        EXPECT_EQ(steady.idle[i], 0) << "P=" << P << " M=" << M << " r=" << r;
        EXPECT_EQ(steady.held[i], P - r) << "P=" << P << " M=" << M << " r=" << r;
      }
      // With a pause between steps the devices are idle in every one.
      const Steady paused = run_steps(*flushed, P);
      EXPECT_GT(paused.idle[0], 0) << P << " " << M;
    }
}

}  // namespace
}  // namespace piper::two_versions_rule_test
