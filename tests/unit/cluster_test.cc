// Cluster files and profiles: what they say, their errors, and what instructions take by them,
// beside sums by hand.
#include "piper/inspect/cluster.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "folder.h"
#include "golden.h"
#include "piper/base/parallel.h"

namespace piper {
namespace {

Cluster read_text(const std::string& text) {
  const Folder folder;
  auto cluster = read_cluster(folder.write("cluster.yaml", text));
  EXPECT_TRUE(cluster) << (cluster ? "" : print_error(cluster.error()));
  return cluster ? *std::move(cluster) : Cluster{};
}

// ---- Files --------------------------------------------------------------------------------------

TEST(Cluster, ErrorsAreLocated) {
  golden::run("clusters/errors.test", {"error"}, [](const golden::Case& c) -> golden::Section {
    const Folder folder;
    const auto cluster = read_cluster(folder.write("cluster.yaml", c.text("cluster")));
    return {"error", cluster ? "none" : folder.print(cluster.error())};
  });
  golden::run("clusters/profiles.test", {"error"}, [](const golden::Case& c) -> golden::Section {
    const Folder folder;
    const auto profile = read_profile(folder.write("profile.json", c.text("profile")));
    return {"error", profile ? "none" : folder.print(profile.error())};
  });
}

TEST(Cluster, ReadsQuantities) {
  const Cluster cluster = read_text(R"(piper_cluster: 1
devices:
  a:
    target: cuda
    flops: {bf16: 1.5 PFLOPS, f32: 67 TFLOPS}
    memory: 80 GiB
    bandwidth: 3.35 TB/s
    launch: 2.5us
    power: 700 W
    power_limit: 500 W
    efficiency: {product: 85 %, memory: 0.9}
    tiles: {128x256: 1, 64x64: 0.5}
    helper: true
links: {x: {latency: 500 ns, bandwidth: 400 Gb/s}}
nodes: {count: 3, device: a, devices: 2, link: x}
levels: [{name: all, link: x}]
)");
  ASSERT_EQ(cluster.devices.size(), 1u);
  const ClusterDevice& device = cluster.devices[0];
  EXPECT_DOUBLE_EQ(device.flops[static_cast<size_t>(DType::kBF16)], 1.5e15);
  EXPECT_DOUBLE_EQ(device.memory, 80.0 * (1 << 30));
  EXPECT_DOUBLE_EQ(device.bandwidth, 3.35e12);
  EXPECT_DOUBLE_EQ(device.launch, 2.5e-6);
  EXPECT_DOUBLE_EQ(device.of_products, 0.85);
  EXPECT_DOUBLE_EQ(device.power_limit, 500);
  ASSERT_EQ(device.tiles.size(), 2u);
  EXPECT_EQ(device.tiles[1].rows, 64);
  EXPECT_DOUBLE_EQ(device.tiles[1].share, 0.5);
  EXPECT_TRUE(device.helper);
  EXPECT_DOUBLE_EQ(cluster.links[0].latency, 5e-7);
  EXPECT_DOUBLE_EQ(cluster.links[0].bandwidth, 50e9);
  EXPECT_EQ(cluster.size(), 6);
  EXPECT_EQ(cluster.levels[0].nodes, 3);
}

TEST(Cluster, TheLibraryHasSome) {
  const std::map<std::string, int64_t> sizes = {
      {"h100x8", 8},      {"h100x2048", 2048},     {"h100x2048-eager", 2048},
      {"gb200-rack", 72}, {"a100-h100-mixed", 16}, {"two-cores", 2}};
  for (const auto& [name, size] : sizes) {
    const auto cluster = read_cluster("<" + name + ">");
    ASSERT_TRUE(cluster) << print_error(cluster.error());
    EXPECT_EQ(cluster->size(), size) << name;
  }
  for (const auto& entry :
       std::filesystem::directory_iterator(PIPER_SOURCE_DIR "/strategies/clusters"))
    EXPECT_TRUE(sizes.contains(entry.path().stem())) << entry.path();
  const auto none = read_cluster("<h100x9>");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message,
            "the library has no cluster '<h100x9>' (did you mean '<h100x8>'?)");
  EXPECT_FALSE(read_cluster("<1f1b>"));
}

TEST(Cluster, RangesOfNodesMayDiffer) {
  const auto cluster = read_cluster("<a100-h100-mixed>");
  ASSERT_TRUE(cluster);
  EXPECT_EQ(cluster->device_of(7).name, "a100");
  EXPECT_EQ(cluster->device_of(8).name, "h100");
}

// ---- What instructions take ---------------------------------------------------------------------

// Two nodes of two devices. Numbers are round, so that sums by hand are.
constexpr const char* kTwoByTwo = R"(piper_cluster: 1
devices:
  d:
    target: cuda
    flops: {f32: 1 TFLOPS}
    memory: 10 GB
    bandwidth: 100 GB/s
    host_bandwidth: 10 GB/s
    launch: 1 us
    issue: 3 us
    processors: 4
    tiles: {32x32: 1}
    ramp: 16
links:
  in: {latency: 1 us, bandwidth: 10 GB/s}
  out: {latency: 4 us, bandwidth: 1 GB/s}
nodes: {count: 2, device: d, devices: 2, link: in}
levels: [{name: all, link: out}]
)";

// A plan of one role on a mesh of a x b ranks, whose body is as given.
PlanSet set_of(int64_t a, int64_t b, const std::string& body, const std::string& programs = "") {
  auto role = parse_plan(fmt::format(
      "plan batch=8 arena=33554432 target=\"cuda\" workspace=[0]\naxis \"a\" {}\naxis \"b\" {}\n"
      "stream 0 \"compute\"\n"
      "group 0 \"b\" axes=[1]\ngroup 1 \"all\" axes=[0,1]\n"
      "communicator 0 axes=[1] streams=[0]\ncommunicator 1 axes=[0,1] streams=[0]\n"
      "communicator 2 from=[0,-1] to=[1,-1] streams=[0,0]\n"
      "buffer 0 \"x\" f32[1000,1000] step at=0\n"
      "buffer 1 \"h\" f32[1000,1000] step at=0 host\n"
      "buffer 2 \"p\" f32[500,1000] step at=4000256\n"
      "buffer 3 \"m\" f32[128,64] step at=8000512\nbuffer 4 \"w\" f32[64,32] step at=8033280\n"
      "buffer 5 \"y\" f32[128,32] step at=8041472\n{}body\n{}",
      a, b, programs, body));
  EXPECT_TRUE(role) << (role ? "" : print_error(role.error()));
  PlanSet set;
  if (!role) return set;
  set.roles.push_back(*std::move(role));
  set.manifest.mesh = set.roles[0].mesh;
  set.role_of_rank.assign(static_cast<size_t>(a * b), 0);
  return set;
}

std::vector<StepCost> costs_of(const Cluster& cluster, const PlanSet& set, int64_t rank = 0,
                               const MeasuredTimes* profile = nullptr) {
  const auto machine = cluster_machine(cluster, set, profile);
  EXPECT_TRUE(machine) << (machine ? "" : print_error(machine.error()));
  if (!machine) return {};
  const auto costs = (*machine)->costs_of(set, rank);
  EXPECT_TRUE(costs);
  return costs ? costs->body : std::vector<StepCost>{};
}

constexpr double kMegabytes4 = 4e6;  // of "x"

TEST(Transfers, MessagesTakeTheLinkThatBothShare) {
  const Cluster cluster = read_text(kTwoByTwo);
  const std::string send = "  0 send args=[0] peer=[1,-1] communicator=2\n";
  const StepCost out = costs_of(cluster, set_of(2, 2, send)).at(0);
  ASSERT_EQ(out.links.size(), 1u);
  EXPECT_EQ(cluster.links[static_cast<size_t>(out.links[0].link)].name, "out");
  EXPECT_DOUBLE_EQ(out.latency, 4e-6);
  EXPECT_DOUBLE_EQ(out.wire, kMegabytes4 / 1e9);
  EXPECT_DOUBLE_EQ(out.host, 3e-6);
  EXPECT_EQ(out.origin, CostOrigin::kGuessed);
  const StepCost in = costs_of(cluster, set_of(2, 1, send)).at(0);
  ASSERT_EQ(in.links.size(), 1u);
  EXPECT_EQ(cluster.links[static_cast<size_t>(in.links[0].link)].name, "in");
  EXPECT_DOUBLE_EQ(in.wire, kMegabytes4 / 10e9);
}

TEST(Transfers, SumsInRankOrderExchangeBlocks) {
  const Cluster cluster = read_text(kTwoByTwo);
  const auto costs = costs_of(cluster, set_of(2, 2,
                                              "  0 all_reduce args=[0] group=1 communicator=1\n"
                                              "  1 all_reduce args=[0] group=0 communicator=0\n"
                                              "  2 reduce_scatter args=[0,2] dim=0 group=0 "
                                              "communicator=0\n"));
  ASSERT_EQ(costs.size(), 3u);
  // Of two exchanges a half goes to the other node, and a quarter to the other device of the own.
  // To add them, memory moves all, and the own quarter.
  EXPECT_DOUBLE_EQ(costs[0].wire, 2 * kMegabytes4 / 2 / 1e9);
  EXPECT_DOUBLE_EQ(costs[0].lane, kMegabytes4 * 1.25 / 100e9);
  EXPECT_DOUBLE_EQ(costs[0].latency, 2 * 4e-6);
  // The half and the quarter are under way together.
  EXPECT_EQ(costs[0].links, (std::vector<LinkShare>{{0, 0.05}, {1, 1}}));
  // Within a node each gives the other a half, twice, or once.
  EXPECT_DOUBLE_EQ(costs[1].wire, kMegabytes4 / 10e9);
  EXPECT_DOUBLE_EQ(costs[1].lane, kMegabytes4 * 1.5 / 100e9);
  EXPECT_EQ(costs[1].links, (std::vector<LinkShare>{{0, 1}}));
  EXPECT_DOUBLE_EQ(costs[2].wire, kMegabytes4 / 2 / 10e9);
  EXPECT_DOUBLE_EQ(costs[2].lane, kMegabytes4 * 1.5 / 100e9);
}

// In a ring a member sends to one neighbour: levels of one link are no second way.
TEST(Transfers, ARingSendsOnce) {
  std::string text = kTwoByTwo;
  text.replace(text.rfind("out"), 3, "in");
  const auto costs = costs_of(
      read_text(text), set_of(2, 2, "  0 rotate args=[0,0] turn=1 group=1 communicator=1\n"));
  ASSERT_EQ(costs.size(), 1u);
  EXPECT_DOUBLE_EQ(costs[0].wire, kMegabytes4 / 10e9);
}

TEST(Transfers, FastSumsGoRoundRings) {
  const Cluster cluster = read_text(kTwoByTwo);
  const auto costs =
      costs_of(cluster, set_of(2, 2, "  0 all_reduce args=[0] group=1 fast communicator=1\n"));
  // Three quarters twice, over the ports of both devices of a node. By trees it would be all twice.
  EXPECT_DOUBLE_EQ(costs.at(0).wire, 2 * 0.75 * kMegabytes4 / 2e9);
  EXPECT_DOUBLE_EQ(costs.at(0).latency, 2 * (2 * 1e-6 + 4e-6));
  // All of it passes the ports within a node, too: in a fifth of the time.
  ASSERT_EQ(costs.at(0).links.size(), 2u);
  EXPECT_NEAR(costs.at(0).links[0].share, 0.2, 1e-12);
  EXPECT_EQ(costs.at(0).links[1], (LinkShare{1, 1}));
}

// Where a library gathers, three quarters go round a ring over the ports of both devices of a node;
// elsewhere each sends its quarter to both of the other node by its own.
TEST(Transfers, LibrariesGatherByARing) {
  const std::string gather = "  0 all_gather args=[2,0] dim=0 group=0 communicator=0\n";
  const Cluster cluster = read_text(kTwoByTwo);
  EXPECT_DOUBLE_EQ(costs_of(cluster, set_of(1, 4, gather)).at(0).wire, 0.75 * kMegabytes4 / 2e9);
  std::string text = kTwoByTwo;
  text.replace(text.find("cuda"), 4, "cpu");
  PlanSet set = set_of(1, 4, gather);
  set.roles[0].target = "cpu";
  EXPECT_DOUBLE_EQ(costs_of(read_text(text), set).at(0).wire, 0.5 * kMegabytes4 / 1e9);
}

TEST(Transfers, CopiesToTheHostTakeItsLink) {
  const Cluster cluster = read_text(kTwoByTwo);
  const StepCost copy = costs_of(cluster, set_of(2, 2, "  0 copy args=[0,1]\n")).at(0);
  EXPECT_DOUBLE_EQ(copy.lane, 1e-6 + kMegabytes4 / 10e9);
}

constexpr const char* kProduct =
    "program 0 label=\"F\" args=3\n  value 0 f32[128,64] read\n  value 1 f32[64,32] read\n"
    "  value 2 f32[128,32] written\n  op MatMul in=[0,1] out=[2]\n";
constexpr const char* kRunsProduct = "  0 compute program=0 args=[3,4,5] pass=\"F\"\n";

// Compilations at once ask the same costs, which keep what they have answered.
TEST(Programs, ThreadsMayAskForCostsAtOnce) {
  const Cluster cluster = read_text(kTwoByTwo);
  std::vector<Program> products;
  for (int64_t rows = 32; rows <= 128; rows += 32) {
    const PlanSet set =
        set_of(2, 2, kRunsProduct,
               fmt::format("program 0 label=\"F\" args=3\n  value 0 f32[{0},64] read\n"
                           "  value 1 f32[64,32] read\n  value 2 f32[{0},32] written\n"
                           "  op MatMul in=[0,1] out=[2]\n",
                           rows));
    products.push_back(set.roles.at(0).programs.at(0));
  }
  std::vector<std::vector<double>> seconds;
  for (const size_t threads : {1, 4}) {
    const auto costs = cluster_costs(cluster);
    ASSERT_TRUE(costs) << print_error(costs.error());
    std::vector<double>& answers = seconds.emplace_back(64);
    in_parallel(
        answers.size(),
        [&](size_t i) {
          const auto one = (*costs)->seconds_of(0, products[i % products.size()]);
          answers[i] = one ? *one : NAN;
        },
        threads);
  }
  EXPECT_LT(seconds[0][0], seconds[0][3]);
  EXPECT_EQ(seconds[0], seconds[1]);
}

TEST(Programs, ProductsGoInWavesOfTiles) {
  Cluster cluster = read_text(kTwoByTwo);
  const PlanSet set = set_of(2, 2, kRunsProduct, kProduct);
  // Four tiles of 32 x 32 on four processors, each of which takes 64 terms, and 16 to begin.
  const double tile = 2.0 * 32 * 32 * (64 + 16) / (1e12 / 4);
  EXPECT_DOUBLE_EQ(costs_of(cluster, set).at(0).device, tile + 1e-6);
  // A fifth tile would be another wave.
  cluster.devices[0].processors = 3;
  EXPECT_NEAR(costs_of(cluster, set).at(0).device, 2 * tile * 3 / 4 + 1e-6, 1e-12);
  // Where memory is slower than the product, the bytes count: three operands, once.
  cluster.devices[0].bandwidth = 1e9;
  cluster.devices[0].flops[0] = 1e15;
  EXPECT_NEAR(costs_of(cluster, set).at(0).device,
              4.0 * (128 * 64 + 64 * 32 + 128 * 32) / 1e9 + 1e-6, 1e-12);
}

// With an eighth of the power the clock is a half; memory does not become slower.
TEST(Programs, ProductsTakeLongerWithLessPower) {
  Cluster cluster = read_text(kTwoByTwo);
  const PlanSet set = set_of(2, 2, kRunsProduct, kProduct);
  const double full = costs_of(cluster, set).at(0).device - 1e-6;
  cluster.devices[0].power = 800;
  EXPECT_DOUBLE_EQ(costs_of(cluster, set).at(0).device, full + 1e-6);
  cluster.devices[0].power_limit = 100;
  EXPECT_NEAR(costs_of(cluster, set).at(0).device, 2 * full + 1e-6, 1e-12);
  cluster.devices[0].bandwidth = 1e9;
  cluster.devices[0].flops[0] = 1e15;
  EXPECT_NEAR(costs_of(cluster, set).at(0).device,
              4.0 * (128 * 64 + 64 * 32 + 128 * 32) / 1e9 + 1e-6, 1e-12);
}

// What counts is the last extent of each matrix, in bytes.
TEST(Programs, ProductsTakeLongerWhereRowsAreNotAligned) {
  Cluster cluster = read_text(kTwoByTwo);
  const auto time = [&](int64_t m, int64_t k, int64_t n) {
    const std::string program = fmt::format(
        "program 0 label=\"F\" args=3\n  value 0 f32[{0},{1}] read\n"
        "  value 1 f32[{1},{2}] read\n  value 2 f32[{0},{2}] written\n"
        "  op MatMul in=[0,1] out=[2]\n",
        m, k, n);
    return costs_of(cluster, set_of(2, 2, kRunsProduct, program)).at(0).device - 1e-6;
  };
  const double rows = time(127, 64, 32), columns = time(128, 64, 31), terms = time(128, 63, 32);
  cluster.devices[0].of_unaligned = 0.25;
  EXPECT_DOUBLE_EQ(time(127, 64, 32), rows);
  EXPECT_NEAR(time(128, 64, 31), 4 * columns, 1e-12);
  EXPECT_NEAR(time(128, 63, 32), 4 * terms, 1e-12);
}

// Ops that share a pass move what it reads and makes. With per_op each is a pass of its own, and no
// faster than the host launches it.
TEST(Programs, OpsMayBePassesOfTheirOwn) {
  Cluster cluster = read_text(kTwoByTwo);
  const PlanSet set = set_of(2, 2, "  0 compute program=0 args=[3,3] pass=\"F\"\n",
                             "program 0 label=\"F\" args=2\n  value 0 f32[128,64] read\n"
                             "  value 1 f32[128,64] written\n  value 2 f32[128,64]\n"
                             "  op Exp in=[0] out=[2]\n  op Tanh in=[2] out=[1]\n");
  const double bytes = 4.0 * 128 * 64;
  EXPECT_NEAR(costs_of(cluster, set).at(0).device, 2 * bytes / 100e9 + 1e-6, 1e-12);
  cluster.devices[0].per_op = 1e-9;
  EXPECT_NEAR(costs_of(cluster, set).at(0).device, 2 * (2 * bytes / 100e9 + 1e-6), 1e-12);
  cluster.devices[0].per_op = 1e-3;
  EXPECT_NEAR(costs_of(cluster, set).at(0).device, 2e-3, 1e-12);
  // An op that a framework composes of three takes three passes and launches.
  cluster.devices[0].composed["Tanh"] = 3;
  EXPECT_NEAR(costs_of(cluster, set).at(0).device, 4e-3, 1e-12);
  cluster.devices[0].per_op = 1e-9;
  EXPECT_NEAR(costs_of(cluster, set).at(0).device, 4 * (2 * bytes / 100e9 + 1e-6), 1e-12);
  MeasuredTimes profile;
  profile.target = "cuda";
  const auto machine = cluster_machine(cluster, set, &profile);
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().message,
            "the device 'd' runs op by op ('per_op'), but the profile is of programs whose ops "
            "share passes");
}

// A framework's flat buffers cost the device a read and a write of the whole: beside the
// computation that reads a gathered parameter first, or makes a gradient, and with collectives of
// strided parts.
TEST(Programs, FrameworksCopyIntoBuffersAndOutOfThem) {
  Cluster cluster = read_text(kTwoByTwo);
  PlanSet set = set_of(2, 2,
                       "  0 all_gather args=[2,3] group=0 communicator=0\n"
                       "  1 compute program=0 args=[3,3] pass=\"F\"\n"
                       "  2 compute program=0 args=[3,3] pass=\"B\"\n"
                       "  3 reduce_scatter args=[3,2] group=0 communicator=0\n"
                       "  4 reduce_scatter args=[0,2] dim=0 group=0 communicator=0\n"
                       "  5 reduce_scatter args=[0,2] dim=1 group=0 communicator=0\n",
                       "program 0 label=\"F\" args=2\n  value 0 f32[128,64] read\n"
                       "  value 1 f32[128,64] written\n  op Exp in=[0] out=[1]\n");
  const std::vector<StepCost> plain = costs_of(cluster, set);
  const auto more = [&](bool gathered, bool reduced, bool strided) {
    cluster.devices[0].copies = {gathered, reduced, strided};
    const std::vector<StepCost> costs = costs_of(cluster, set);
    std::vector<double> each;
    for (size_t i = 0; i < costs.size(); ++i)
      each.push_back(costs[i].device + costs[i].lane - plain[i].device - plain[i].lane);
    return each;
  };
  const auto expect = [](const std::vector<double>& found, const std::vector<double>& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-12) << i;
  };
  const double small = 2 * 4.0 * 128 * 64 / 100e9 + 1e-6, large = 2 * 4e6 / 100e9 + 1e-6;
  expect(more(true, false, false), {0, 0, 0, 0, 0, 0});  // no parameter: an activation
  expect(more(false, true, false), {0, 0, small, 0, 0, 0});
  expect(more(false, false, true), {0, 0, 0, 0, 0, large});
  set.roles[0].tensors[3].param = "w";
  expect(more(true, false, false), {0, small, 0, 0, 0, 0});
  MeasuredTimes profile;
  profile.target = "cuda";
  const auto machine = cluster_machine(cluster, set, &profile);
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().message,
            "the device 'd' copies as a framework does ('copies'), but the profile is of programs "
            "that do not");
}

TEST(Programs, ADeviceNeedsRatesOfTheirTypes) {
  Cluster cluster = read_text(kTwoByTwo);
  cluster.devices[0].flops[0] = 0;
  const PlanSet set = set_of(2, 2, kRunsProduct, kProduct);
  const auto machine = cluster_machine(cluster, set);
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().message, "the device 'd' has no FLOPS of f32");
  EXPECT_EQ(machine.error().at.line, 3);
}

TEST(Machine, RefusesWhatDoesNotFit) {
  const Cluster cluster = read_text(kTwoByTwo);
  const auto few = cluster_machine(cluster, set_of(4, 2, kRunsProduct, kProduct));
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().message, "the cluster has 4 devices, but the plans are for 8 ranks");
  EXPECT_EQ(few.error().at.line, 17);
  PlanSet other = set_of(2, 2, kRunsProduct, kProduct);
  other.roles[0].target = "cpu";
  const auto target = cluster_machine(cluster, other);
  ASSERT_FALSE(target);
  EXPECT_EQ(target.error().message, "the device 'd' runs plans for cuda, but these are for cpu");
}

// Two devices of unlike memory, and two ranks of unlike needs: each fits where it has room.
TEST(Facts, AreOfTheRankWithTheLeastRoom) {
  PlanSet set = set_of(2, 1, kRunsProduct, kProduct);
  set.roles.push_back(set.roles[0]);
  set.role_of_rank = {0, 1};
  set.roles[0].arena_bytes = 90'000'000, set.roles[1].arena_bytes = 20'000'000;
  Cluster cluster = read_text(kTwoByTwo);
  ASSERT_EQ(cluster.devices.size(), 1u);
  cluster.devices.push_back(cluster.devices[0]);
  cluster.devices[0].memory = 100e6, cluster.devices[1].memory = 25e6;
  cluster.nodes = {cluster.nodes[0], cluster.nodes[0]};
  for (int32_t n = 0; n < 2; ++n) {
    cluster.nodes[static_cast<size_t>(n)].count = cluster.nodes[static_cast<size_t>(n)].devices = 1;
    cluster.nodes[static_cast<size_t>(n)].device = n;
  }
  const MachineFacts fits = facts_of(cluster, set);
  EXPECT_EQ(fits.memory, 25e6);
  EXPECT_GE(fits.memory - fits.peak_bytes, 0);
  std::swap(cluster.nodes[0], cluster.nodes[1]);
  const MachineFacts lacks = facts_of(cluster, set);
  EXPECT_EQ(lacks.memory, 25e6);
  EXPECT_GE(lacks.peak_bytes, 90e6);
}

// The peak that counts is that of the type with most FLOPs in forwards, not of most products.
TEST(Machine, ThePeakIsOfTheTypeOfMostWork) {
  std::string programs =
                  "program 0 label=\"F\" args=3\n  value 0 bf16[128,64] read\n"
                  "  value 1 bf16[64,32] read\n  value 2 bf16[128,32] written\n"
                  "  op MatMul in=[0,1] out=[2]\n",
              body = "  0 compute program=0 args=[6,7,8] pass=\"F\"\n";
  for (int p = 1; p <= 3; ++p) {  // small ones; and one as large that is no forward
    programs += fmt::format(
        "program {0} label=\"{0}\" args=3\n  value 0 f32[{1},64] read\n"
        "  value 1 f32[64,32] read\n  value 2 f32[{1},32] written\n"
        "  op MatMul in=[0,1] out=[2]\n",
        p, p == 3 ? 128 : 4);
    body += fmt::format("  {0} compute program={0} args=[{1}] pass=\"{2}\"\n", p,
                        p == 3 ? "3,4,5" : "9,4,10", p == 3 ? "U" : "F");
  }
  const PlanSet set =
      set_of(1, 1, body,
             "buffer 6 \"b\" bf16[128,64] step at=8060928\nbuffer 7 \"c\" bf16[64,32] step "
             "at=8077312\nbuffer 8 \"d\" bf16[128,32] step at=8081408\nbuffer 9 \"e\" f32[4,64] "
             "step at=8089600\nbuffer 10 \"f\" f32[4,32] step at=8090624\n" +
                 programs);
  ASSERT_EQ(set.roles.size(), 1u);
  Cluster cluster = read_text(kTwoByTwo);
  cluster.devices[0].flops[static_cast<size_t>(DType::kBF16)] = 7e12;
  EXPECT_EQ(facts_of(cluster, set).peak_flops, 7e12);
}

// ---- Places -------------------------------------------------------------------------------------

std::vector<int64_t> places_of(const Cluster& cluster, const PlanSet& set) {
  const auto machine = cluster_machine(cluster, set);
  EXPECT_TRUE(machine) << (machine ? "" : print_error(machine.error()));
  std::vector<int64_t> places;
  for (int64_t rank = 0; machine && rank < set.world(); ++rank)
    places.push_back((*machine)->place_of(set, rank));
  return places;
}

TEST(Places, DifferWhereDevicesOrLevelsDo) {
  Cluster cluster = read_text(kTwoByTwo);
  const std::string reduce = "  0 all_reduce args=[0] group=0 communicator=0\n";
  EXPECT_EQ(places_of(cluster, set_of(2, 2, reduce)), (std::vector<int64_t>{0, 0, 0, 0}));
  // Three ranks of which two share a node: their group is spread over both.
  EXPECT_EQ(places_of(cluster, set_of(1, 3, reduce)), (std::vector<int64_t>{0, 0, 0}));
  const auto mixed = read_cluster("<a100-h100-mixed>");
  ASSERT_TRUE(mixed);
  const auto places = places_of(*mixed, set_of(2, 8, reduce));
  EXPECT_EQ(std::set<int64_t>(places.begin(), places.begin() + 8).size(), 1u);
  EXPECT_NE(places.front(), places.back());
  // Groups of three on nodes of two: every second one lies across two nodes in another way.
  cluster.nodes[0].count = 3;
  cluster.levels[0].nodes = 3;
  const auto uneven = places_of(cluster, set_of(2, 3, reduce));
  EXPECT_EQ(uneven[0], uneven[1]);
  EXPECT_EQ(uneven[0], uneven[5]);
}

// What a file says of a kind of device is of the ranks on such devices only.
TEST(Machine, RanksGoOnAsTheirDevicesDo) {
  std::string text = kTwoByTwo;
  const auto replace = [&](const std::string& what, const std::string& with) {
    const size_t at = text.find(what);
    ASSERT_NE(at, text.npos) << what;
    text.replace(at, what.size(), with);
  };
  replace("links:\n",
          "  e: {target: cuda, flops: {f32: 1 TFLOPS}, memory: 10 GB, bandwidth: 100 GB/s, "
          "slowed: 25%, between_steps: 7 ms, helper: true}\nlinks:\n");
  replace("nodes: {count: 2, device: d, devices: 2, link: in}",
          "nodes: [{device: d, devices: 2, link: in}, {device: e, devices: 2, link: in}]");
  const auto costs = [](const std::string& of, const std::string& target, int64_t rank) {
    PlanSet set = set_of(2, 2, "  0 all_reduce args=[0] group=0 communicator=0\n");
    set.roles[0].target = target;
    const auto machine = cluster_machine(read_text(of), set);
    EXPECT_TRUE(machine) << (machine ? "" : print_error(machine.error()));
    const auto made = machine ? (*machine)->costs_of(set, rank) : Result<RankCosts>(RankCosts());
    return made ? *made : RankCosts();
  };
  for (const int64_t rank : {0, 1, 2, 3}) {
    const RankCosts of = costs(text, "cuda", rank);
    EXPECT_EQ(of.slowed, rank < 2 ? 0 : 0.25) << rank;
    EXPECT_EQ(of.between_steps, rank < 2 ? 0 : 7e-3) << rank;
    EXPECT_EQ(of.lanes, RankLanes::kStreams) << rank;
  }
  for (size_t at = 0; (at = text.find("target: cuda", at)) != text.npos;)
    text.replace(at, 12, "target: cpu");
  for (const int64_t rank : {0, 1, 2, 3})
    EXPECT_EQ(costs(text, "cpu", rank).lanes,
              rank < 2 ? RankLanes::kThread : RankLanes::kTwoThreads)
        << rank;
}

// The times that --costs states are of a microbatch, in however many tasks it is.
TEST(Stated, ChunksShareTheTimeOfTheirPass) {
  std::string body;
  for (const char* task : {"label=\"F seq=0\" micro=0", "label=\"F seq=0\" micro=0",
                           "label=\"F seq=1\" micro=0", "label=\"F seq=0\" micro=1"})
    body += fmt::format("  {} compute program=0 args=[3,4,5] pass=\"F\" stage=0 {}\n",
                        std::ranges::count(body, '\n'), task);
  const PlanSet set = set_of(1, 1, body, kProduct);
  const auto costs = stated_machine({.forward = 12})->costs_of(set, 0);
  ASSERT_TRUE(costs) << print_error(costs.error());
  std::vector<double> times;
  for (const StepCost& one : costs->body) times.push_back(one.device);
  EXPECT_EQ(times, (std::vector<double>{8, 0, 4, 12}));
}

// Parts on other ranks share it, too; ranks that do the same part do it beside each other.
TEST(Stated, PartsOnOtherRanksShareTheTimeOfTheirPass) {
  const auto body = [](const std::string& label) {
    return fmt::format(
        "  0 compute program=0 args=[3,4,5] pass=\"F\" stage=0 micro=0 label=\"F{}\"\n", label);
  };
  PlanSet set = set_of(3, 1, body(" part=0"), kProduct);
  set.roles.push_back(
      set_of(3, 1, body(" part=1") + "  1" + body("").substr(3), kProduct).roles[0]);
  set.role_of_rank = {0, 0, 1};
  const auto times = [&](int64_t rank) {
    const auto costs = stated_machine({.forward = 12})->costs_of(set, rank);
    EXPECT_TRUE(costs);
    std::vector<double> made;
    for (const StepCost& one : costs ? costs->body : std::vector<StepCost>())
      made.push_back(one.device);
    return made;
  };
  EXPECT_EQ(times(1), std::vector<double>{4});
  EXPECT_EQ(times(2), (std::vector<double>{4, 4}));
}

TEST(Places, AreFewForManyRanks) {
  auto cluster = read_cluster("<h100x2048>");
  ASSERT_TRUE(cluster);
  cluster->nodes[0].count = cluster->levels[0].nodes = 8192;
  const auto places =
      places_of(*cluster, set_of(64, 1024, "  0 all_reduce args=[0] group=0 communicator=0\n"));
  ASSERT_EQ(places.size(), 65536u);
  EXPECT_EQ(std::set<int64_t>(places.begin(), places.end()).size(), 1u);
}

// ---- Profiles -----------------------------------------------------------------------------------

// A profile by a device whose products are twice, and whose bytes are three times as slow as the
// cluster says, with a launch of 5 us.
MeasuredTimes slow_profile() {
  MeasuredTimes profile;
  profile.target = "cuda";
  profile.host = 7e-6;
  // Products of so many terms, passes of so many bytes, and passes of next to nothing.
  constexpr std::array<std::array<int, 3>, 5> kOf = {
      {{6400, 0, 0}, {0, 1, 0}, {0, 0, 40}, {640, 2, 5}, {1280, 1, 20}}};
  for (const auto& [terms, large, small] : kOf) {
    MeasuredTimes::Measured one;
    one.name = fmt::format("{}", terms + large);
    const double bytes = 1e6;
    if (terms > 0) {
      OpWork work{.kind = OpWork::kProduct, .flops = 2.0 * 32 * 32 * terms * 4};
      work.count = 4, work.m = work.n = 32, work.k = terms;
      one.work = {PassWork{{work}, 0, 1}};
    }
    for (int p = 0; p < large; ++p) one.work.push_back({{}, 0, bytes});
    for (int p = 0; p < small; ++p) one.work.push_back({{}, 0, 1});
    const double product = terms > 0 ? 2.0 * 32 * 32 * (terms + 16) / (1e12 / 4) : 0;
    one.median = one.least =
        2 * product + large * 3 * bytes / 100e9 + static_cast<double>(one.work.size()) * 5e-6;
    profile.programs.push_back(std::move(one));
  }
  for (const double bytes : {1e6, 3e6}) {
    MeasuredTimes::Measured one;
    one.name = "all_reduce";
    one.where = "nccl";
    one.bytes = bytes;
    one.ranks = {0, 1};
    one.least = 10e-6 + bytes / 5e9;  // half as fast as within a node
    one.median = 1;                   // waiting, mostly
    profile.communication.push_back(one);
  }
  return profile;
}

TEST(Profiles, RatesAreThoseThatWereMeasured) {
  const Cluster cluster = read_text(kTwoByTwo);
  const MeasuredTimes profile = slow_profile();
  const PlanSet set = set_of(2, 2, kRunsProduct, kProduct);
  const StepCost cost = costs_of(cluster, set, 0, &profile).at(0);
  EXPECT_EQ(cost.origin, CostOrigin::kInterpolated);
  EXPECT_DOUBLE_EQ(cost.host, 7e-6);
  const double product = 2.0 * 32 * 32 * (64 + 16) / (1e12 / 4);
  EXPECT_NEAR(cost.device, 2 * product + 5e-6, 0.02 * (2 * product + 5e-6));
}

TEST(Profiles, KnownProgramsTakeWhatTheyTook) {
  const Cluster cluster = read_text(kTwoByTwo);
  const PlanSet set = set_of(2, 2, kRunsProduct, kProduct);
  MeasuredTimes profile = slow_profile();
  profile.programs[0].name = program_digest(set.roles[0].programs[0]);
  const StepCost cost = costs_of(cluster, set, 0, &profile).at(0);
  EXPECT_EQ(cost.origin, CostOrigin::kMeasured);
  EXPECT_DOUBLE_EQ(cost.device, profile.programs[0].median);
}

TEST(Profiles, CollectivesLieOnALine) {
  const Cluster cluster = read_text(kTwoByTwo);
  const MeasuredTimes profile = slow_profile();
  const auto costs = costs_of(cluster,
                              set_of(2, 2,
                                     "  0 all_reduce args=[2] group=0 communicator=0\n"
                                     "  1 all_reduce args=[0] group=1 communicator=1\n"),
                              0, &profile);
  ASSERT_EQ(costs.size(), 2u);
  const double expected = 10e-6 + 2e6 / 5e9;
  EXPECT_EQ(costs[0].origin, CostOrigin::kInterpolated);
  EXPECT_NEAR(costs[0].latency + costs[0].wire + costs[0].lane, expected, 0.05 * expected);
  // Between nodes the bytes are as much slower than the file says as within them.
  const double within = (1e6 / 5e9) / (1e6 / 10e9 + 1.5e6 / 100e9);
  const double stated = 2 * kMegabytes4 / 2 / 1e9 + kMegabytes4 * 1.25 / 100e9;
  EXPECT_NEAR((costs[1].wire + costs[1].lane) / stated, within, 0.15 * within);
}

// What two ranks of a node take is not what two of different nodes do; and what threads of one
// process tell each other says nothing of these.
TEST(Profiles, AreOfRanksThatAreSpreadAlike) {
  const Cluster cluster = read_text(kTwoByTwo);
  MeasuredTimes profile = slow_profile();
  const auto reduced = [&](int64_t a, int64_t b, const std::vector<int64_t>& ranks,
                           const char* where) {
    for (MeasuredTimes::Measured& one : profile.communication)
      one.ranks = ranks, one.where = where, one.bytes = kMegabytes4;
    return costs_of(cluster, set_of(a, b, "  0 all_reduce args=[0] group=1 communicator=1\n"), 0,
                    &profile)
        .at(0);
  };
  const double took = profile.communication[0].least;
  const StepCost within = reduced(1, 2, {0, 1}, "tcp"), between = reduced(1, 2, {0, 2}, "tcp");
  EXPECT_EQ(within.origin, CostOrigin::kMeasured);
  EXPECT_NEAR(within.latency + within.wire + within.lane, took, 1e-12);
  EXPECT_EQ(between.origin, CostOrigin::kInterpolated);
  EXPECT_EQ(reduced(1, 2, {0, 1}, "inproc").origin, CostOrigin::kMeasured);
  std::string apart = kTwoByTwo;
  apart.replace(apart.find("devices: 2"), 10, "devices: 1");
  const Cluster far = read_text(apart);
  const PlanSet set = set_of(1, 2, "  0 all_reduce args=[0] group=1 communicator=1\n");
  const StepCost guessed = costs_of(far, set, 0, &profile).at(0);
  EXPECT_EQ(guessed.origin, CostOrigin::kGuessed);
  EXPECT_EQ(guessed.wire, costs_of(far, set).at(0).wire);
}

TEST(Profiles, AreOfTheSameKindOfDevice) {
  MeasuredTimes profile = slow_profile();
  profile.target = "cpu";
  const Cluster cluster = read_text(kTwoByTwo);
  const auto machine = cluster_machine(cluster, set_of(2, 2, kRunsProduct, kProduct), &profile);
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().message, "the profile is of plans for cpu, but these are for cuda");
}

TEST(Passes, ReadBack) {
  OpWork work{.kind = OpWork::kAttentionGrad, .flops = 1e15 / 3, .dtype = DType::kBF16};
  work.count = 12, work.m = 1024, work.n = 512.5, work.k = 64;
  const std::vector<PassWork> passes = {{{work, work}, 17, 4096}, {{}, 0, 0}, {{}, 0, 0}};
  const std::vector<std::string> texts = print_passes(passes);
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[1], "2 0 0");
  const auto read = parse_pass(texts[0]);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->first, 1);
  EXPECT_EQ(read->second, passes[0]);
  for (const char* wrong : {"", "1", "1 2", "x 0 0", "1 -1 0", "1 product:f32:1:2:3 0 0",
                            "1 product:f33:1:2:3:4:5 0 0", "1 elements:f32:1:2:3:4:5 0 0"})
    EXPECT_FALSE(parse_pass(wrong)) << wrong;
}

}  // namespace
}  // namespace piper
