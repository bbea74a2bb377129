// Plans of random strategies on random clusters: a simulation comes to its end, no step is shorter
// than the work of its busiest device, equal input gives equal times, and what gets faster makes no
// step longer. PIPER_SEED and PIPER_COUNT draw other cases, and more.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "folder.h"
#include "piper/inspect/cluster.h"
#include "piper/planner/compile.h"
#include "seed.h"

namespace piper {
namespace {

using Random = std::mt19937_64;

size_t below(Random& random, size_t count) { return static_cast<size_t>(random() % count); }
template <class T>
T one_of(Random& random, std::initializer_list<T> list) {
  return *(list.begin() + below(random, list.size()));
}
// A number of any size between the two.
double between(Random& random, double least, double most) {
  const double share = static_cast<double>(random() % 10001) / 10000;
  return least * std::pow(most / least, share);
}

// ---- Cases --------------------------------------------------------------------------------------

std::string random_strategy(Random& random) {
  const auto schedule = one_of<const char*>(
      random, {"1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-h2", "zbv", "v-half", "dualpipe",
               "dualpipev", "hanayo", "looped-bfs", "chimera"});
  const auto memory = one_of<const char*>(random, {"ddp", "zero1", "zero2", "zero3"});
  const size_t stages = 2 * (1 + below(random, 2)), dp = 1 + below(random, 2);
  const size_t microbatches = 2 * stages * (1 + below(random, 2));
  const std::string entries = one_of<const char*>(
      random, {"", "{stream: {where: {kind: recv}, name: in}}",
               "{stream: {where: {kind: [send, recv]}, name: messages}}",
               "{stream: {where: {kind: recv}, name: in}}, {prefetch: {where: {kind: recv}, "
               "distance: 1}}"});
  return fmt::format(
      "piper: 1\ninclude: [<schedules/{}>, <memory/{}>]\nparams: {{stages: {}, microbatches: {}, "
      "dp: {}}}\ntrain: {{global_batch: {}, optimizer: {{adam: {{lr: 0.1}}}}}}\n"
      "directives: [{}]\n",
      schedule, memory, stages, microbatches, dp, microbatches * dp, entries);
}

std::string random_device(Random& random, int number, const std::string& target) {
  std::string text = fmt::format(
      "  d{}:\n    target: {}\n    flops: {{f32: {:.0f} MFLOPS}}\n    memory: 80 GB\n"
      "    bandwidth: {:.0f} MB/s\n",
      number, target, between(random, 1, 1e9), between(random, 1, 1e7));
  for (const char* key : {"launch", "issue", "between_steps"})
    if (below(random, 2) == 0)
      text += fmt::format("    {}: {:.0f} ns\n", key, between(random, 1, 1e6));
  if (below(random, 2) == 0) text += fmt::format("    slowed: 0.{}\n", 1 + below(random, 9));
  if (below(random, 3) == 0) text += "    processors: 132\n    tiles: {128x256: 1, 64x64: 0.5}\n";
  if (below(random, 3) == 0) text += "    cache: 1 MB\n    cache_bandwidth: 100 TB/s\n";
  if (below(random, 4) == 0) text += "    per_op: 10 us\n";
  if (target == "cpu" && below(random, 2) == 0) text += "    helper: true\n";
  return text;
}

// Nodes of kinds that differ, in one or two levels, which may share a link, for `world` ranks.
std::string random_cluster(Random& random, int64_t world, const std::string& target) {
  const size_t devices = 1 + below(random, 3), links = 1 + below(random, 3);
  std::string text = "piper_cluster: 1\ndevices:\n";
  for (size_t d = 0; d < devices; ++d) text += random_device(random, static_cast<int>(d), target);
  text += "links:\n";
  for (size_t l = 0; l < links; ++l)
    text += fmt::format("  l{}: {{latency: {:.0f} ns, bandwidth: {:.0f} Mb/s}}\n", l,
                        between(random, 1, 1e7), between(random, 1, 1e7));
  text += "nodes:\n";
  size_t nodes = 0;
  for (int64_t ranks = 0; ranks < world;) {
    const size_t count = 2 * (1 + below(random, 2)), size = 1 + below(random, 3);
    text += fmt::format("  - {{count: {}, device: d{}, devices: {}, link: l{}}}\n", count,
                        below(random, devices), size, below(random, links));
    nodes += count;
    ranks += static_cast<int64_t>(count * size);
  }
  text += "levels:\n";
  if (below(random, 2) == 0)
    text += fmt::format("  - {{name: rack, nodes: 2, link: l{}}}\n", below(random, links));
  return text + fmt::format("  - {{name: all, link: l{}}}\n", below(random, links));
}

// ---- What holds ---------------------------------------------------------------------------------

// Leaves out why what gets faster may make a step longer: transfers that share links, computations
// that slow down beside them. With one stream of computations a rank then does all in one order.
class ApartMachine : public Machine {
 public:
  explicit ApartMachine(const Machine& of) : of_(of) { sends_wait = of.sends_wait; }
  int64_t place_of(const PlanSet& set, int64_t rank) const override {
    return of_.place_of(set, rank);
  }
  Result<RankCosts> costs_of(const PlanSet& set, int64_t rank) const override {
    PIPER_ASSIGN(RankCosts costs, of_.costs_of(set, rank));
    costs.slowed = 0;
    for (auto* section : {&costs.prologue, &costs.body, &costs.epilogue})
      for (StepCost& cost : *section) cost.links.clear();
    return costs;
  }

 private:
  const Machine& of_;
};

// All takes twice as long, to the bit: times change nothing but when what happens.
class TwiceMachine : public Machine {
 public:
  explicit TwiceMachine(const Machine& of) : of_(of) { sends_wait = of.sends_wait; }
  int64_t place_of(const PlanSet& set, int64_t rank) const override {
    return of_.place_of(set, rank);
  }
  Result<RankCosts> costs_of(const PlanSet& set, int64_t rank) const override {
    PIPER_ASSIGN(RankCosts costs, of_.costs_of(set, rank));
    costs.between_steps *= 2;
    for (auto* section : {&costs.prologue, &costs.body, &costs.epilogue})
      for (StepCost& cost : *section)
        for (double* time : {&cost.device, &cost.lane, &cost.latency, &cost.wire, &cost.host})
          *time *= 2;
    return costs;
  }

 private:
  const Machine& of_;
};

bool computes_on_one_stream(const PlanSet& set) {
  return std::ranges::all_of(set.roles, [](const RoleProgram& role) {
    std::set<int32_t> streams;
    for (const Instruction& one : role.body)
      if (one.kind == InstructionKind::kCompute) streams.insert(one.stream);
    return streams.size() <= 1;
  });
}

// "": all of a rank's times fit together.
std::string wrong_times(const Timeline& timeline) {
  for (const TimedRow& row : timeline.rows)
    for (const TimedStep& step : row.steps)
      if (!(step.ready >= 0 && step.start >= step.ready * (1 - 1e-9) && step.end >= step.start &&
            step.end <= timeline.length * (1 + 1e-9) && std::isfinite(step.end)))
        return fmt::format("'{}' is ready at {}, runs from {} to {} of {}", step.one->label,
                           step.ready, step.start, step.end, timeline.length);
  return "";
}

// Returns a cluster of which something is twice as fast.
Cluster faster(Random& random, Cluster cluster) {
  const size_t what = below(random, 5);
  ClusterLink& link = cluster.links[below(random, cluster.links.size())];
  ClusterDevice& device = cluster.devices[below(random, cluster.devices.size())];
  if (what == 0) link.bandwidth *= 2;
  if (what == 1) link.latency /= 2;
  if (what == 2)
    for (double& rate : device.flops) rate *= 2;
  if (what == 3) device.bandwidth *= 2, device.cache_bandwidth *= 2;
  if (what == 4) device.issue /= 2, device.launch /= 2, device.per_op /= 2;
  return cluster;
}

struct Lengths {
  double whole = 0, apart = 0;  // of two steps, and of two on the ApartMachine
};
Result<Lengths> lengths_of(const PlanSet& set, const Cluster& cluster) {
  PIPER_ASSIGN(const std::unique_ptr<Machine> machine, cluster_machine(cluster, set));
  PIPER_ASSIGN(const Timeline whole, simulate(set, *machine, 2));
  PIPER_ASSIGN(const Timeline apart, simulate(set, ApartMachine(*machine), 2));
  return Lengths{whole.length, apart.length};
}

// How much longer the worst step became by what got faster.
double worst = 0;

void expect_faster(Random& random, const PlanSet& set, const Cluster& cluster) {
  const auto before = lengths_of(set, cluster), after = lengths_of(set, faster(random, cluster));
  ASSERT_TRUE(before && after) << print_error((before ? after : before).error());
  if (computes_on_one_stream(set)) {
    EXPECT_LE(after->apart, before->apart * (1 + 1e-9));
  }
  worst = std::max(worst, after->whole / before->whole - 1);
}

void expect_sound(const PlanSet& set, const Cluster& cluster) {
  const auto machine = cluster_machine(cluster, set);
  ASSERT_TRUE(machine) << print_error(machine.error());
  const auto timeline = simulate(set, **machine, 2), again = simulate(set, **machine, 2);
  ASSERT_TRUE(timeline) << print_error(timeline.error());
  EXPECT_EQ(wrong_times(*timeline), "");
  EXPECT_EQ(timeline_trace(*timeline), timeline_trace(*again));
  const auto twice = simulate(set, TwiceMachine(**machine), 2);
  ASSERT_TRUE(twice) << print_error(twice.error());
  EXPECT_EQ(twice->length, 2 * timeline->length);
  const auto report = report_step(set, **machine);
  ASSERT_TRUE(report) << print_error(report.error());
  EXPECT_GE(report->step, report->bound * (1 - 1e-9));
  EXPECT_GE(report->alone, report->bound * (1 - 1e-9));
  EXPECT_GE(report->idle, -1e-9);
  EXPECT_LE(report->idle, 1);
}

// Draws a case. False: its strategy is refused.
bool try_case(uint64_t seed, const Folder& folder) {
  Random random(seed);
  const std::string target = one_of<const char*>(random, {"cpu", "cuda"});
  const std::string strategy = random_strategy(random);
  CompileOptions options;
  options.model = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";
  options.strategy = folder.write("strategy.yaml", strategy);
  options.target = target;
  options.oracles = false;
  const auto compiled = compile(options);
  if (!compiled) return false;
  const std::string text = random_cluster(random, compiled->set.world(), target);
  SCOPED_TRACE(fmt::format("PIPER_SEED={} PIPER_COUNT=1\n{}\n{}", seed, strategy, text));
  const auto cluster = read_cluster(folder.write("cluster.yaml", text));
  EXPECT_TRUE(cluster) << print_error(cluster.error());
  if (!cluster) return true;
  expect_sound(compiled->set, *cluster);
  for (int i = 0; i < 3; ++i) expect_faster(random, compiled->set, *cluster);
  return true;
}

// Where transfers share links, or streams the device, what comes sooner may get ahead of what the
// end of the step waits for, as in list schedules (Graham, 1969, "Bounds on multiprocessing timing
// anomalies"): so much longer steps may get then.
TEST(RandomClusters, SimulationsEndAndFasterMachinesAreFaster) {
  constexpr double kAnomaly = 0.02;
  const Folder folder;
  const uint64_t first = given_seed().value_or(1);
  const int count = given_count().value_or(16);
  int tried = 0;
  for (int i = 0; i < count; ++i) tried += try_case(first + static_cast<uint64_t>(i), folder);
  fmt::print("{} of {} strategies from seed {}; the worst anomaly makes steps {:.2f} % longer\n",
             tried, count, first, 100 * worst);
  EXPECT_TRUE(count == 1 || tried > count / 2);
  EXPECT_LE(worst, kAnomaly);
}

}  // namespace
}  // namespace piper
