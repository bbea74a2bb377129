// The search for strategies: as good as trying all, what stays stays, and what is found is a
// strategy that trains.
#include "piper/planner/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "folder.h"
#include "shell.h"

namespace piper {
namespace {

const std::string kModel = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";

class SearchTest : public ::testing::Test {
 protected:
  SearchOptions options(int64_t ranks, const std::string& fixed = "") {
    SearchOptions options;
    options.compile.model = kModel;
    options.compile.strategy = folder_.write(
        "train.yaml", "piper: 1\ntrain: {global_batch: 16, optimizer: {adamw: {lr: 1e-3}}}\n");
    options.compile.target = "cuda";
    auto cluster = read_cluster(PIPER_SOURCE_DIR "/strategies/clusters/h100x8.yaml");
    EXPECT_TRUE(cluster) << (cluster ? "" : print_error(cluster.error()));
    if (cluster) options.cluster = *std::move(cluster);
    auto space = read_space(PIPER_SOURCE_DIR "/strategies/spaces/usual.yaml");
    EXPECT_TRUE(space) << (space ? "" : print_error(space.error()));
    if (space) options.space = *std::move(space);
    options.ranks = ranks;
    options.folder = folder_.path() + "/candidates";
    std::filesystem::create_directories(options.folder);
    for (const std::string& text : split_text(fixed, ','))
      if (const size_t equals = text.find('='); equals != text.npos)
        options.fixed.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    return options;
  }
  static Found found(const SearchOptions& options) {
    auto found = search(options);
    EXPECT_TRUE(found) << (found ? "" : print_error(found.error()));
    return found ? *std::move(found) : Found{};
  }
  Folder folder_;
};

constexpr char kFew[] =
    "sequence=no,vocabulary=no,recompute=no,context=1,experts=1,offload=no,loss=no,async-tp=no";

// The usual numbers of replicas and of parts of a tensor divide neither these devices nor the
// batch.
TEST_F(SearchTest, FindsAMeshOfSevenDevices) {
  const Found best = found(options(7, kFew));
  ASSERT_FALSE(best.tried.empty());
  EXPECT_TRUE(best.tried.front().fits());
  EXPECT_EQ(best.tried.front().choice.ranks(), 7);
}

TEST_F(SearchTest, IsAsGoodAsTryingAll) {
  for (const double memory : {0.0, 120e6}) {
    SearchOptions one = options(4, kFew);
    one.memory = memory;
    one.most = 1000;
    const Found best = found(one);
    ASSERT_FALSE(best.tried.empty());
    ASSERT_TRUE(best.tried.front().fits());
    EXPECT_EQ(memory > 0, std::any_of(best.tried.begin(), best.tried.end(), [](const Tried& tried) {
                return tried.refused.empty() && !tried.fits();
              }));
    double least = best.tried.front().step;
    int64_t all = 0;
    for (const auto& [pipeline, tensor, replicas] :
         {std::tuple(4, 1, 1), {2, 2, 1}, {2, 1, 2}, {1, 4, 1}, {1, 2, 2}, {1, 1, 4}})
      for (const char* memory_of : {"ddp", "zero3"})
        for (const int micros : {1, 2, 4}) {
          SearchOptions each = options(
              4, fmt::format("{},pipeline={},tensor={},replicas={},memory={},microbatches={}", kFew,
                             pipeline, tensor, replicas, memory_of, micros));
          each.memory = memory;
          const auto tried = search(each);  // schedules alone are free
          if (!tried) continue;
          all += std::ssize(tried->tried);
          if (tried->tried.front().fits()) least = std::min(least, tried->tried.front().step);
        }
    EXPECT_GE(all, 40);
    EXPECT_LE(best.tried.front().step, 1.05 * least) << memory;
    EXPECT_GT(best.bound, 0);
    EXPECT_LT(best.bound, best.tried.front().step);
    EXPECT_TRUE(memory == 0 || best.tried.front().peak_bytes <= memory);
  }
}

// Four devices, of which some meshes do not fit at first.
Cluster narrow(const Folder& folder) {
  auto cluster = read_cluster(folder.write(
      "narrow.yaml",
      "piper_cluster: 1\n"
      "devices: {d: {target: cuda, flops: {f32: 1 TFLOPS}, memory: 80 GB, bandwidth: 10 TB/s}}\n"
      "links: {l: {latency: 0 us, bandwidth: 1 GB/s}}\n"
      "nodes: {devices: 4, device: d, link: l}\n"));
  EXPECT_TRUE(cluster) << (cluster ? "" : print_error(cluster.error()));
  return cluster ? *std::move(cluster) : Cluster{};
}

// The usual candidates of the fastest mesh need a little more than there is, and those of slower
// ones fit.
TEST_F(SearchTest, AMeshThatDoesNotFitAtFirstIsNotGivenUp) {
  const auto best_of = [&](const std::string& fixed) {
    SearchOptions one = options(4, "context=1,experts=1" + fixed);
    one.cluster = narrow(folder_);
    one.memory = 72 << 20;
    return found(one).tried.front();
  };
  const Tried best = best_of(""),
              by_hand = best_of(
                  ",pipeline=2,tensor=1,replicas=2,schedule=1f1b,memory=zero1,"
                  "microbatches=8,recompute=recompute-by-layer,offload=no,loss=no,async-tp=no");
  ASSERT_TRUE(best.fits());
  ASSERT_TRUE(by_hand.fits());
  EXPECT_LE(best.step, by_hand.step);
}

// Rows that say the same are one.
TEST_F(SearchTest, TheNextBestAreOtherPlans) {
  SearchOptions one = options(4, "context=1,experts=1,pipeline=2,tensor=1,schedule=zb-h1");
  one.cluster = narrow(folder_);
  const Found of = found(one);
  // With this much memory a budget keeps all: the same plans as without.
  EXPECT_TRUE(std::ranges::any_of(of.tried, [&](const Tried& tried) {
    return tried.choice.keep > 0 && tried.step == of.tried.front().step;
  }));
  std::set<std::string> rows;
  int64_t count = 0;
  for (const std::string& line : split_text(print_found(of, one), '\n'))
    if (line.starts_with("#   ")) {
      ++count;
      rows.insert(line.substr(0, line.find("pipeline")));
    }
  EXPECT_EQ(count, 5);
  EXPECT_GE(std::ssize(rows), 4) << print_found(of, one);  // printed numbers are rounded
}

// ---- Stages on devices that are not alike -------------------------------------------------------

// Two devices, of which the second is `times` as fast and has `memory`.
Cluster uneven(const Folder& folder, double times, const std::string& memory) {
  const std::string text = fmt::format(
      "piper_cluster: 1\ndevices:\n"
      "  first: {{target: cpu, flops: {{f32: 100 GFLOPS}}, memory: 8 GB, bandwidth: 20 GB/s}}\n"
      "  second: {{target: cpu, flops: {{f32: {} GFLOPS}}, memory: {}, bandwidth: {} GB/s}}\n"
      "links: {{wire: {{latency: 1 us, bandwidth: 50 GB/s}}}}\n"
      "nodes: [{{device: first, devices: 1, link: wire}},\n"
      "        {{device: second, devices: 1, link: wire}}]\n"
      "levels: [{{name: all, link: wire}}]\n",
      100 * times, memory, 20 * times);
  auto cluster = read_cluster(folder.write("uneven.yaml", text));
  EXPECT_TRUE(cluster) << (cluster ? "" : print_error(cluster.error()));
  return cluster ? *std::move(cluster) : Cluster{};
}

struct Cut2 {
  double step = 0;                    // seconds, as predicted on the cluster
  std::vector<double> flops, states;  // by rank: what it computes, and bytes that stay
};
// Compiles a pipeline of two stages that `balance` cuts; by the cluster's costs, or without.
Cut2 cut_in_two(const Folder& folder, const Cluster& cluster, const std::string& by,
                bool by_cluster) {
  CompileOptions options;
  options.model = kModel;
  options.oracles = false;
  options.strategy = folder.write(
      "pipeline.yaml",
      fmt::format("piper: 1\nmesh: {{pp: 2}}\n"
                  "train: {{global_batch: 16, optimizer: {{adamw: {{lr: 1e-3}}}}}}\n"
                  "annotate: [{{balance: {{tag: stage, into: 2{}}}}}]\ndirectives:\n"
                  "  - split: {{dim: batch, into: 16}}\n"
                  "  - place: {{where: {{stage: s}}, on: {{pp: s}}}}\n"
                  "  - order: {{each: pp, policy: {{prefer: [B, F], in_flight: P - r}}}}\n",
                  by.empty() ? "" : ", by: " + by));
  if (by_cluster) {
    auto costs = cluster_costs(cluster);
    EXPECT_TRUE(costs);
    options.devices = *std::move(costs);
  }
  const auto compiled = compile(options);
  EXPECT_TRUE(compiled) << (compiled ? "" : print_error(compiled.error()));
  if (!compiled) return {};
  const auto machine = cluster_machine(cluster, compiled->set);
  const auto report = report_step(compiled->set, **machine);
  EXPECT_TRUE(report);
  Cut2 made{report->step, {}, {}};
  for (const int32_t role : compiled->set.role_of_rank) {
    const RoleProgram& of = compiled->set.roles[static_cast<size_t>(role)];
    made.flops.push_back(*run_flops(of));
    double& bytes = made.states.emplace_back();
    for (const Buffer& buffer : of.buffers)
      if (of.tensor(buffer).kind == BufferKind::kState)
        bytes += static_cast<double>(of.tensor(buffer).type.bytes());
  }
  return made;
}

TEST_F(SearchTest, AStageOnADeviceThatIsHalfAsFastGetsHalfTheWork) {
  const Cluster half = uneven(folder_, 0.5, "8 GB"), twice = uneven(folder_, 2, "8 GB");
  const Cut2 equal = cut_in_two(folder_, half, "", false);
  const Cut2 slow = cut_in_two(folder_, half, "", true),
             fast = cut_in_two(folder_, twice, "", true);
  ASSERT_EQ(equal.flops.size(), 2u);
  EXPECT_NEAR(equal.flops[1] / equal.flops[0], 1, 0.35);
  EXPECT_NEAR(slow.flops[1] / slow.flops[0], 0.5, 0.2);
  EXPECT_NEAR(fast.flops[1] / fast.flops[0], 2, 0.8);
  EXPECT_GT(equal.step / slow.step, 1.2);
  // A cluster of equal devices does not make the search's result worse.
  const Cluster alike = uneven(folder_, 1, "8 GB");
  EXPECT_LE(cut_in_two(folder_, alike, "", true).step,
            1.02 * cut_in_two(folder_, alike, "", false).step);
}

// What a device is slow at may be in the backward pass alone.
TEST_F(SearchTest, BalanceCountsTheBackwardPassOfEachDevice) {
  const Cluster alike = uneven(folder_, 1, "8 GB");
  Cluster slow = alike;
  slow.devices[1].of_attention_grad = 0.02;
  const Cut2 as_alike = cut_in_two(folder_, alike, "", true),
             as_slow = cut_in_two(folder_, slow, "", true);
  ASSERT_EQ(as_slow.flops.size(), 2u);
  EXPECT_LT(as_slow.flops[1] / as_slow.flops[0], 0.9 * as_alike.flops[1] / as_alike.flops[0]);
  EXPECT_LT(as_slow.step, 0.95 * cut_in_two(folder_, slow, "", false).step);
}

TEST_F(SearchTest, AStageOnADeviceWithLessMemoryHoldsLess) {
  const Cluster half = uneven(folder_, 1, "4 GB"), alike = uneven(folder_, 1, "8 GB");
  const auto second = [](const Cut2& cut) {
    return cut.states[1] / (cut.states[0] + cut.states[1]);
  };
  for (const char* by : {"memory", "weights"}) {
    const double of_half = second(cut_in_two(folder_, half, by, true));
    const double of_alike = second(cut_in_two(folder_, alike, by, true));
    EXPECT_LT(of_half, of_alike - 0.05) << by;
    EXPECT_NEAR(of_alike, second(cut_in_two(folder_, alike, by, false)), 1e-9) << by;
  }
  // The loads differ: by weights both have the same, by time the last has the head, too.
  EXPECT_NEAR(second(cut_in_two(folder_, alike, "weights", false)), 0.5, 0.15);
}

TEST_F(SearchTest, WhatIsFixedStays) {
  const Found of = found(options(4, "schedule=zbv,tensor=1"));
  ASSERT_FALSE(of.tried.empty());
  for (const Tried& one : of.tried) {
    EXPECT_EQ(one.choice.schedule, "schedules/zbv");
    EXPECT_EQ(one.choice.tensor, 1);
  }
  const auto message = [&](const std::string& fixed) {
    const auto none = search(options(4, fixed));
    return none ? "found" : none.error().message;
  };
  EXPECT_EQ(
      message("colour=red"),
      "--fix: there is no choice 'colour'; there are pipeline, tensor, replicas, context, experts, "
      "sequence, vocabulary, microbatches, schedule, memory, recompute, keep, loss, offload, "
      "async-tp");
  EXPECT_EQ(message("schedule=2f2b"),
            "--fix schedule=2f2b: expected schedules/1f1b, schedules/interleaved-1f1b, "
            "schedules/zb-h1, schedules/zb-h2, schedules/zbv, schedules/dualpipev");
  EXPECT_EQ(message("pipeline=2,pipeline=4"), "--fix: 'pipeline' is given twice");
  EXPECT_EQ(message("pipeline=0"), "--fix pipeline=0: expected a whole number from 1 on");
  EXPECT_EQ(message("microbatches=2305843009213693952"),
            "--fix microbatches=2305843009213693952: expected at most 4096");
  EXPECT_EQ(message("pipeline=9"), "--fix pipeline=9: expected at most 8");
  EXPECT_EQ(message("context=4,experts=4"),
            "--fix: these axes need more than the 8 devices of the cluster");
  EXPECT_EQ(message("pipeline=3"),
            "no mesh of 4 ranks has what --fix asks for, with a batch of 16 samples");
  for (const Tried& one : found(options(2, "recompute=recompute-by-budget,context=1")).tried)
    EXPECT_GT(one.choice.keep, 0);
  for (const Tried& one : found(options(2, "keep=5,context=1")).tried)
    EXPECT_EQ(one.choice.keep, 5);
  SearchOptions many = options(64);
  const auto none = search(many);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message, "the cluster has 8 devices, but 64 ranks are asked for");
}

TEST_F(SearchTest, SaysWhichBatchAllDevicesShare) {
  const auto none = search(options(7, "pipeline=1"));
  ASSERT_FALSE(none);
  EXPECT_NE(print_error(none.error())
                .find("help: 7 replicas cannot share 16 samples evenly: 'global_batch: 21' allows "
                      "them, and '--ranks 4' leaves devices idle"),
            std::string::npos)
      << print_error(none.error());
}

// Contexts in parts are found where they are all that may change, and trained; the sample has no
// experts, which is noticed, and not tried for ever.
TEST_F(SearchTest, ContextsAndOffloadingAreTried) {
  const Found of = found(options(2, "pipeline=1,replicas=1,tensor=1,context=2"));
  ASSERT_TRUE(of.tried.front().fits());
  for (const char* way : {"context/ring", "context/heads"})
    EXPECT_TRUE(std::ranges::any_of(of.tried, [&](const Tried& one) {
      return one.refused.empty() && one.choice.attention == way;
    })) << way;
  const Found staged =
      found(options(4, "pipeline=4,schedule=1f1b,microbatches=16,tensor=1,context=1,experts=1"));
  EXPECT_TRUE(std::ranges::any_of(staged.tried, [](const Tried& one) {
    return one.refused.empty() && one.choice.beside.contains("memory/offload");
  }));
  const Found cut = found(options(2, "pipeline=1,tensor=2,sequence=yes,context=1,experts=1"));
  for (const char* file : {"parts/loss", "parts/async-tp"})
    EXPECT_TRUE(std::ranges::any_of(cut.tried, [&](const Tried& one) {
      return one.refused.empty() && one.choice.beside.contains(file);
    })) << file;
  const Found all =
      found(options(4, "pipeline=1,tensor=1,memory=ddp,context=1,offload=no,loss=no,async-tp=no"));
  EXPECT_TRUE(all.ended);
  const auto with_experts =
      std::ranges::count_if(all.tried, [](const Tried& one) { return one.choice.experts > 1; });
  EXPECT_GE(with_experts, 1);
  EXPECT_LE(with_experts, 2);
}

// Where layers that run again leave memory, some ops need not run again.
TEST_F(SearchTest, ABudgetFillsTheMemory) {
  const std::string fixed =
      "pipeline=1,tensor=1,context=1,experts=1,memory=ddp,microbatches=1,recompute=";
  const auto best_of = [&](const std::string& more, double memory) {
    SearchOptions one = options(2, more);
    one.memory = memory;
    return found(one).tried.front();
  };
  const Tried all = best_of(fixed + "no", 0), layers = best_of(fixed + "recompute-by-layer", 0);
  EXPECT_LT(all.step, layers.step);
  const double memory = (all.peak_bytes + 2 * layers.peak_bytes) / 3;
  const Tried best =
      best_of("pipeline=1,tensor=1,context=1,experts=1,memory=ddp,microbatches=1", memory);
  EXPECT_TRUE(best.fits());
  EXPECT_GT(best.choice.keep, 0);
  EXPECT_LT(best.step, layers.step);
  EXPECT_GT(best.peak_bytes, layers.peak_bytes);
}

TEST_F(SearchTest, SpacesAreChecked) {
  const auto message = [&](const std::string& text) {
    const auto space = read_space(folder_.write("space.yaml", text));
    return space ? "ok" : space.error().message;
  };
  const std::string lists = "piper_space: 1\nschedules: [a]\nmemory: [b, c]\n";
  EXPECT_EQ(message(lists + "begin: [{pipeline: 2, tensor: node, memory: c}]\n"), "ok");
  EXPECT_EQ(message("schedules: [a]\n"),
            "the file must say 'piper_space: 1', the version of its format");
  EXPECT_EQ(message(lists), "the space needs 'begin', a list of beginnings");
  EXPECT_EQ(message("piper_space: 1\nschedules: a\n"),
            "'schedules' must be a list of names of the library, not 'a'");
  EXPECT_EQ(message(lists + "begin: [{memory: d}]\n"),
            "'memory' is 'd', which the list above has not");
  EXPECT_EQ(message(lists + "begin: [{pipeline: 0}]\n"),
            "'pipeline' must be a whole number from 1 on, not '0'");
  const std::string begin = "begin: [{}]\n";
  EXPECT_EQ(message(lists + begin + "beside: [d, {e: tensor}]\n"), "ok");
  EXPECT_EQ(message(lists + begin + "beside: d\n"),
            "'beside' must be a list of names of the library, not 'd'");
  EXPECT_EQ(message(lists + begin + "beside: [{e: tensors}]\n"),
            "'e' needs 'tensors', which is none of pipeline, tensor, replicas, context, experts, "
            "sequence, vocabulary");
  EXPECT_EQ(message(lists + begin + "beside: [[e]]\n"),
            "'beside' has a list in place of a name or of {NAME: CHOICE}");
  EXPECT_EQ(message(lists + "begin: [{depth: 2}]\n"),
            "unknown key 'depth' of a beginning; there are pipeline, tensor, schedule and memory");
}

TEST_F(SearchTest, TheSameTwiceAndAsMuchAsIsAllowed) {
  SearchOptions one = options(2);
  one.most = 9;
  const Found first = found(one), second = found(one);
  EXPECT_EQ(first.tried.size(), 9u);
  EXPECT_FALSE(first.ended);
  EXPECT_EQ(print_found(first, one), print_found(second, one));
}

std::vector<std::filesystem::path> files_of(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path());
  return files;
}

// What is kept is what is used, unless something that it depends on has changed.
TEST_F(SearchTest, WhatCandidatesCameToIsKept) {
  SearchOptions one = options(2);
  one.most = 6;
  const std::string without = print_found(found(one), one);
  one.kept = folder_.path() + "/kept";
  EXPECT_EQ(print_found(found(one), one), without);
  const auto files = files_of(one.kept);
  EXPECT_EQ(files.size(), 6u);
  EXPECT_EQ(print_found(found(one), one), without);
  EXPECT_EQ(files_of(one.kept).size(), 6u);
  // All are marked: a search that compiled one again would not say so of it.
  for (const auto& file : files) {
    std::string text = *read_text_file(file.string(), 1 << 16);
    const size_t at = text.find("step ");
    ASSERT_NE(at, text.npos);
    text.replace(at, text.find('\n', at) - at, "step 0x1p+3");
    ASSERT_TRUE(write_file(file.string(), text));
  }
  for (const Tried& tried : found(one).tried) EXPECT_EQ(tried.step, 8);
  // Another strategy, another cluster, another model, damage: computed.
  SearchOptions other = one;
  other.compile.strategy = folder_.write(
      "other.yaml", "piper: 1\ntrain: {global_batch: 16, optimizer: {adamw: {lr: 2e-3}}}\n");
  SearchOptions slower = one;
  std::string cluster = *read_text_file(one.cluster.path, 1 << 20);
  slower.cluster = *read_cluster(folder_.write("slower.yaml", cluster + "# slower\n"));
  SearchOptions copy = one;
  const std::string beside = folder_.path() + "/copy";  // of the data, which have another time
  std::filesystem::create_directories(beside);
  copy.compile.model = beside + "/model.onnx";
  for (const char* file : {"", ".data"})
    std::filesystem::copy_file(kModel + file, copy.compile.model + file);
  for (const SearchOptions& each : {other, slower, copy})
    for (const Tried& tried : found(each).tried) EXPECT_LT(tried.step, 8);
  for (const auto& file : files) ASSERT_TRUE(write_file(file.string(), "piper-search 1\nstep 0x"));
  EXPECT_EQ(print_found(found(one), one), without);
}

// A folder in which nothing can be written.
constexpr char kFull[] = "/proc/self/fd";

// What cannot be kept is no refusal of a candidate: the same is found, and it is said once. Where
// candidates themselves cannot be written, nothing is found.
TEST_F(SearchTest, AFullDiskLeavesOutNoCandidate) {
  SearchOptions one = options(2);
  one.most = 6;
  const std::string without = print_found(found(one), one);
  one.kept = kFull;
  std::string said;
  one.warn = [&](const Error& error) { said += error.message + "; "; };
  EXPECT_EQ(print_found(found(one), one), without);
  EXPECT_TRUE(said.starts_with("cannot write '/proc/self/fd/")) << said;
  EXPECT_EQ(said.find("; "), said.size() - 2) << said;
  one.kept.clear();
  one.folder = kFull;
  const auto none = search(one);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ExitCode::kStorage);
  const auto swept = sweep(one, {SweptParam{"", {"1"}, {}}});
  ASSERT_FALSE(swept);
  EXPECT_EQ(swept.error().code, ExitCode::kStorage);
}

TEST_F(SearchTest, SweepsAreTables) {
  SearchOptions one = options(2);
  one.compile.strategy =
      folder_.write("mine.yaml",
                    "piper: 1\ninclude: <1f1b>\nparams: {stages: 1, microbatches: 4, dp: 1}\n"
                    "train: {global_batch: 16, optimizer: {adamw: {lr: 1e-3}}}\n");
  std::vector<std::string> shown;
  one.progress = [&](const Tried& tried, int64_t) { shown.push_back(describe(tried)); };
  const auto rows = [&](const std::string& params) {
    const auto swept = read_sweep(folder_.write("sweep.yaml", params));
    return swept ? sweep(one, *swept) : swept.error();
  };
  const auto made = rows("piper_sweep: 1\nparams: {stages: [1, 2], microbatches: [4, 8, 5]}\n");
  ASSERT_TRUE(made) << print_error(made.error());
  ASSERT_EQ(made->size(), 6u);
  ASSERT_EQ(shown.size(), 6u);
  EXPECT_EQ(shown[4], "stages = 2, microbatches = 8");
  const std::vector<std::string> table = split_text(print_sweep(*made), '\n');
  ASSERT_EQ(table.size(), 8u);
  EXPECT_TRUE(table[0].starts_with("stages  microbatches")) << table[0];
  constexpr const char* kMicrobatches[] = {"4", "8", "5"};
  size_t fastest = 0, refused = 0;
  for (size_t r = 0; r < 6; ++r) {
    const Swept& row = (*made)[r];
    EXPECT_EQ(row.values[0].value, r < 3 ? "1" : "2");
    EXPECT_EQ(row.values[1].value, kMicrobatches[r % 3]);
    EXPECT_EQ(row.tried.refused.empty(), r % 3 != 2) << table[r + 1];
    fastest += table[r + 1].ends_with("fastest");
    refused += table[r + 1].find("refused: ") != table[r + 1].npos;
  }
  EXPECT_EQ(fastest, 1u);
  EXPECT_EQ(refused, 2u);
  EXPECT_GT((*made)[3].tried.idle, (*made)[4].tried.idle);  // more microbatches, less idle time

  const auto message = [&](const std::string& text) {
    const auto none = rows(text);
    return none ? "made" : fmt::format("{}: {}", none.error().at.line, none.error().message);
  };
  EXPECT_EQ(message("piper_sweep: 1\nparams: {stagse: [1]}\n"),
            "2: no param is called 'stagse' (did you mean 'stages'?)");
  EXPECT_EQ(message("piper_sweep: 2\nparams: {stages: [1]}\n"),
            "1: version '2' of sweeps is not supported");
  EXPECT_EQ(message("piper_sweep: 1\nparams: {stages: 4}\n"),
            "2: 'stages' must be a list of values such as [1, 2, 4], not '4'");
  EXPECT_EQ(message("piper_sweep: 1\n"), "1: a sweep needs 'params'");
}

TEST_F(SearchTest, TheResultIsAStrategy) {
  const std::string train = options(1).compile.strategy;
  const auto shell = [&](const std::string& command) {
    return run_shell(
        fmt::format("cd {} && {}/bin/{} 2>&1", folder_.path(), PIPER_BINARY_DIR, command));
  };
  auto [code, text] = shell(fmt::format(
      "piper-search {} train.yaml --cluster '<two-cores>' -o best.yaml --most 12", kModel));
  ASSERT_EQ(code, 0) << text;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 3) << text;
  std::tie(code, text) = shell(fmt::format(
      "piperc {} best.yaml -o plans && {}/bin/piper-verify plans", kModel, PIPER_BINARY_DIR));
  EXPECT_EQ(code, 0) << text;
  // A path is a text, whatever characters it has.
  std::filesystem::copy_file(folder_.path() + "/train.yaml",
                             folder_.path() + "/[old], \"b\" #1.yaml");
  std::tie(code, text) = shell(fmt::format(
      "piper-search {} '[old], \"b\" #1.yaml' --cluster '<two-cores>' -o odd.yaml --most 2 && "
      "{}/bin/piperc {} odd.yaml --dry-run",
      kModel, PIPER_BINARY_DIR, kModel));
  EXPECT_EQ(code, 0) << text;
  for (const char* output : {"train.yaml", "notes.txt"}) {
    folder_.write("notes.txt", "mine");
    std::tie(code, text) = shell(fmt::format(
        "piper-search {} train.yaml --cluster '<two-cores>' -o {} --most 2", kModel, output));
    EXPECT_EQ(code, 2) << text;
    EXPECT_NE(text.find(*output == 't' ? "this file is read, and would be replaced"
                                       : "there is a file that piper-search has not written"),
              text.npos)
        << text;
  }
  std::tie(code, text) = shell(fmt::format(
      "piper-search {} train.yaml --cluster '<two-cores>' -o none/best.yaml --most 2", kModel));
  EXPECT_EQ(code, 12) << text;
  EXPECT_EQ(text,  // at once: nothing was tried
            "error: cannot write none/best.yaml: none is not a directory one can write to\n");
  std::tie(code, text) =
      shell(fmt::format("piper-search {} train.yaml --cluster '<h100x8>' -o no.yaml --memory 1MB "
                        "--most 5",
                        kModel));
  EXPECT_EQ(code, 3) << text;
  EXPECT_NE(text.find("no strategy that was tried fits: the one that needs least takes "),
            text.npos)
      << text;
  EXPECT_NE(text.find("a few times as many devices like these were not enough"), text.npos) << text;
}

// What would fit is found where nothing does: states that two devices share take less of each.
TEST_F(SearchTest, TheFewestDevicesThatFitAreNamed) {
  SearchOptions options = this->options(1, fmt::format("{},microbatches=1", kFew));
  const double one = found(options).tried.front().peak_bytes;
  ASSERT_GT(one, 0);
  options.memory = one * 0.8;
  const Found none = found(options);
  ASSERT_FALSE(none.tried.front().fits());
  const auto more = fit_on_more(options, none.tried.front());
  ASSERT_TRUE(more) << print_error(more.error());
  ASSERT_TRUE(*more);
  EXPECT_TRUE((*more)->fits());
  EXPECT_EQ((*more)->choice.ranks(), 2);
  // The cluster's file need not have as many.
  options.cluster.nodes.front().devices = 1;
  const auto enlarged = fit_on_more(options, none.tried.front());
  ASSERT_TRUE(enlarged && *enlarged);
  EXPECT_EQ((*enlarged)->choice, (*more)->choice);
}

}  // namespace
}  // namespace piper
