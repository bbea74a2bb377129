// Predictions on the command line: piper-sim, piperc --cluster and the gate of piper-diff say the
// same, and bad input is named.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "folder.h"
#include "piper/base/base.h"
#include "shell.h"

namespace piper {
namespace {

const std::string kSample = PIPER_SOURCE_DIR "/samples/gpt/";

std::pair<int, std::string> run(const std::string& words) {
  return run_shell(fmt::format("{}/bin/{} 2>&1", PIPER_BINARY_DIR, words));
}
// Plans of the sample for cuda, made once.
const std::string& plans() {
  static const Folder folder;
  static const std::string set = [] {
    const std::string made = folder.path() + "/plans";
    const auto [code, text] = run(
        fmt::format("piperc {0}model.onnx {0}pp2-dp2.yaml --target cuda -o {1}", kSample, made));
    EXPECT_EQ(code, 0) << text;
    return made;
  }();
  return set;
}
double number_behind(const std::string& text, const std::string& key) {
  const size_t at = text.find(key);
  EXPECT_NE(at, std::string::npos) << key << " in\n" << text;
  return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + key.size(), nullptr);
}

TEST(Predict, ToolsSayTheSame) {
  const auto [code, text] = run(fmt::format("piper-sim {} --cluster '<h100x8>'", plans()));
  ASSERT_EQ(code, 0) << text;
  for (const char* line : {"4 ranks (pp 2, dp 2) for cuda, on h100x8.yaml\n", "fits: a device has ",
                           "all_reduce over dp", "messages over pp", "the longest chain of a step",
                           "B stage=1", "computations ", " guessed\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
  const auto compiled = run(fmt::format(
      "piperc {0}model.onnx {0}pp2-dp2.yaml --dry-run --cluster '<h100x8>' | sed -n '/^plans /,$p'",
      kSample));
  EXPECT_EQ(compiled.second, text);
  const auto json = run(fmt::format("piper-sim {} --cluster '<h100x8>' --json", plans()));
  EXPECT_NEAR(number_behind(json.second, "\"step_s\": ") * 1e3, number_behind(text, "step  "),
              1e-3);
  EXPECT_EQ(json.second,
            run(fmt::format("piper-sim {} --cluster '<h100x8>' --json", plans())).second);
}

// The model has the same work however it is cut, also where ranks compute the same: all but the
// rows of two matrices is computed by each of eight ranks here.
TEST(Predict, WhatRanksComputeAlikeIsNoWorkOfTheModel) {
  const Folder folder;
  const std::string cluster = folder.write("cluster.yaml",
                                           "piper_cluster: 1\n"
                                           "devices: {d: {target: cpu, flops: {f32: 1 TFLOPS}, "
                                           "memory: 4 GB, bandwidth: 100 GB/s}}\n"
                                           "links: {l: {latency: 1 us, bandwidth: 10 GB/s}}\n"
                                           "nodes: {device: d, devices: 8, link: l}\n");
  const std::string train = "train: {global_batch: 16, optimizer: {adamw: {lr: 1e-3}}}\n";
  const auto work_of = [&](const std::string& strategy, double ranks) {
    const auto [code, text] = run(
        fmt::format("piperc {}model.onnx {} -o {}/set --force --no-oracles", kSample,
                    folder.write("strategy.yaml", "piper: 1\n" + strategy + train), folder.path()));
    EXPECT_EQ(code, 0) << text;
    const std::string said =
        run(fmt::format("piper-sim {}/set --cluster {} --json", folder.path(), cluster)).second;
    return number_behind(said, "\"mfu\": ") * number_behind(said, "\"step_s\": ") * ranks * 1e12;
  };
  const double one = work_of("", 1);
  EXPECT_GT(one, 0);
  for (const auto& [cut, ranks] :
       {std::pair("include: <1f1b>\nparams: {stages: 2, microbatches: 4}\n", 2),
        {"mesh: {tp: 8}\ndirectives:\n  - shard: {match: \"**/fc/*\", dim: 0, over: tp}\n", 8}})
    EXPECT_NEAR(work_of(cut, ranks), one, 1e-9 * one) << cut;
}

// A computation does not take the place in memory of gradients that are still being summed: it
// would wait for them.
TEST(Predict, ReduceScattersAreBehindComputations) {
  const Folder folder;
  const std::string strategy =
      folder.write("strategy.yaml",
                   "piper: 1\ninclude: [<memory/zero3>]\nparams: {dp: 4, bucket_kib: 64}\n"
                   "train: {optimizer: {adamw: {lr: 1e-3}}, global_batch: 32}\n");
  const auto [code, text] = run(fmt::format(
      "piperc {}model.onnx {} --dry-run --target cuda --cluster '<h100x8>'", kSample, strategy));
  ASSERT_EQ(code, 0) << text;
  const size_t line = text.find("  reduce_scatter over dp ");
  ASSERT_NE(line, std::string::npos) << text;
  const size_t end = text.find(" %\n", line);
  ASSERT_NE(end, std::string::npos) << text;
  const size_t number = text.rfind(' ', end - 1);
  EXPECT_GT(std::strtod(text.c_str() + number, nullptr), 50) << text.substr(line, 200);
}

// Over a slow network a step is shorter where the next forward begins before all gradients are
// summed, and shorter still where sums that it needs first overtake others.
TEST(Predict, SumsByNeedShortenAStep) {
  const Folder folder;
  const std::string cluster = folder.write(
      "slow.yaml",
      "piper_cluster: 1\n"
      "devices:\n"
      "  gpu: {target: cuda, flops: {f32: 0.2 TFLOPS}, vector: 0.2 TFLOPS, memory: 80 GB, "
      "bandwidth: 3 TB/s, launch: 0.2 us, issue: 0.2 us}\n"
      "links:\n"
      "  network: {latency: 1 us, bandwidth: 0.4 GB/s}\n"
      "nodes: {device: gpu, devices: 8, link: network}\n");
  const auto step_of = [&](const std::string& name, const std::string& text) {
    const std::string strategy = folder.write(
        name + ".yaml",
        "piper: 1\ntrain: {optimizer: {adamw: {lr: 1e-3}}, global_batch: 16}\n" + text);
    const std::string set = folder.path() + "/" + name;
    const auto [code, said] =
        run(fmt::format("piperc {}model.onnx {} --target cuda --cluster {} -o {}", kSample,
                        strategy, cluster, set));
    EXPECT_EQ(code, 0) << said;
    return number_behind(run(fmt::format("piper-sim {} --cluster {} --json", set, cluster)).second,
                         "\"step_s\": ");
  };
  const std::string by_need =
      "include: <items/sums-by-need>\n"
      "params: {dp: 8, layers: 8, bucket_kib: 64, credit_kib: 128}\n";
  const double plain = step_of("plain",
                               "include: <memory/ddp>\nparams: {dp: 8}\ndirectives:\n"
                               "  - {name: replicate, replicate: {over: dp, bucket: 64KiB}}\n"),
               ready = step_of("ready",
                               "include: <items/sums-by-need>\n"
                               "params: {dp: 8, layers: 8, bucket_kib: 64}\n"
                               "directives:\n  - drop: stream\n"),
               need = step_of("need", by_need);
  EXPECT_LT(ready, 0.97 * plain);
  EXPECT_LT(need, 0.9 * ready);
  // Backwards do not take the memory of gradients that are being scattered.
  const double halves = step_of("halves",
                                "include: <items/dear>\n"
                                "params: {dp: 8, layers: 8, bucket_kib: 64}\n");
  EXPECT_LT(halves, 0.9 * plain);
}

// Returns what piperc says of a schedule of the library with these entries, on two GPUs; of a plain
// schedule without any.
std::string said_of_messages(const std::string& schedule, const std::string& entries,
                             const std::string& flags = "") {
  const Folder folder;
  const std::string strategy = folder.write(
      "strategy.yaml", fmt::format("piper: 1\ninclude: [<{}>]\nparams: {{stages: 2, "
                                   "microbatches: 8}}\ntrain: {{global_batch: 8, optimizer: {{sgd: "
                                   "{{lr: 0.1}}}}}}\ndirectives: [{}]\n",
                                   schedule, entries));
  const auto [code, text] = run(fmt::format("piperc {}model.onnx {} --dry-run {}", kSample,
                                            strategy, flags.empty() ? "--target cuda" : flags));
  EXPECT_EQ(code, 0) << text;
  return text;
}

// Messages on streams of their own are received as they are sent, which may hold up computations.
// The note names the entry and what to write; with that there is none, and steps are shorter.
TEST(Predict, MessagesThatComputationsWaitForAreNamed) {
  const std::string note = "strategy.yaml:5): makes a step ";
  const auto step_of = [](const std::string& entries) {
    return number_behind(said_of_messages("schedules/dualpipev", entries, "--cluster '<h100x8>'"),
                         "\nstep  ");
  };
  const std::string streams = "{stream: {where: {kind: [send, recv]}, name: messages}}",
                    instead = "{stream: {where: {kind: recv}, name: messages}}";
  const std::string said = said_of_messages("schedules/dualpipev", streams);
  EXPECT_NE(said.find(note), std::string::npos) << said;
  EXPECT_NE(said.find("write 'stream: {where: {kind: recv}, name: messages}' in place of a stream "
                      "with sends"),
            std::string::npos)
      << said;
  EXPECT_EQ(said_of_messages("schedules/dualpipev", instead).find(note), std::string::npos);
  EXPECT_GT(step_of(streams), 1.02 * step_of(instead));
  // Streams of other tasks are none of messages, and a CPU has no streams.
  EXPECT_EQ(said_of_messages("schedules/dualpipev", "{stream: {where: {kind: input}, name: in}}")
                .find(note),
            std::string::npos);
  EXPECT_EQ(said_of_messages("schedules/dualpipev", streams, "--target cpu").find(note),
            std::string::npos);
}

TEST(Predict, SchedulesOfTheLibraryDoNotWaitForMessages) {
  for (const auto& file :
       std::filesystem::directory_iterator(PIPER_SOURCE_DIR "/strategies/schedules")) {
    const std::string name = file.path().stem().string(),
                      said = said_of_messages("schedules/" + name, "");
    EXPECT_EQ(said.find("wait for messages between stages"), std::string::npos) << name << said;
  }
}

// A slower device makes steps longer, and the gate says so.
TEST(Predict, TheGateFailsWhereStepsGetLonger) {
  const std::string diff = fmt::format(
      "piper-diff --model {0}model.onnx {0}pp2-dp2.yaml {0}pp2-dp2-tp2.yaml --cluster '<h100x8>'",
      kSample);
  EXPECT_EQ(run(diff + " --fail-on time:+1%").first, 1);
  EXPECT_EQ(run(diff + " --fail-on time:+50%").first, 0);
  const auto [code, text] = run(diff + " --only time");
  EXPECT_EQ(code, 1);
  EXPECT_NE(text.find("time  a step takes "), std::string::npos) << text;
}

TEST(Predict, WhyNamesTheTaskAndItsRank) {
  const std::string sim = fmt::format("piper-sim {} --costs F=10,BI=10,BW=10,send=1,U=5", plans());
  const auto [code, text] = run(sim + " --why 2@0,3@12,1@31");
  EXPECT_EQ(code, 0) << text;
  const std::string order =
      "  by this line of the strategy: order: each: pp program: repeat min(M, P - r - 1): F "
      "repeat M - min(M, P - r - 1): F B repeat min(M, …\n";
  EXPECT_EQ(
      text,
      "rank 2 computes nothing from 0 us to 10 ms: it waits in 'recv add_192 mb=0' (messages over "
      "pp) on stream 'compute'\n"
      "  by this line of the strategy: place: {where: {stage: s}, on: {pp: s}}\n"
      "  rank 0 comes to 'send add_192 mb=0' (messages over pp) at 10 ms\n"
      "rank 0 computes 'F stage=0 mb=0' from 0 us to 10 ms (stated)\n" +
          order + "rank 3 computes 'F stage=1 mb=0' from 11 ms to 21 ms (stated)\n" + order +
          "rank 1 computes nothing from 20 ms to 41 ms: it waits in 'recv d_Add_176 mb=0' "
          "(messages over pp) on stream 'compute'\n"
          "  by this line of the strategy: place: {where: {stage: s}, on: {pp: s}}\n"
          "  rank 2 comes to 'send d_Add_176 mb=0' (messages over pp) at 41 ms\n"
          "rank 2 computes 'B stage=1 mb=0' from 21 ms to 41 ms (stated)\n" +
          order);
}

// The plans that piperc has made say it as those in files do.
TEST(Predict, WhyNeedsNoPlanFiles) {
  const std::string why = " --cluster '<h100x8>' --why 2@0,0@0.011",
                    compile = fmt::format("piperc {0}model.onnx {0}pp2-dp2.yaml", kSample);
  const auto [code, text] = run(compile + " --dry-run" + why);
  EXPECT_EQ(code, 0) << text;
  const std::string of_files = run("piper-sim " + plans() + why).second;
  EXPECT_TRUE(text.ends_with(of_files)) << text << "beside\n" << of_files;  // after notes
  for (const char* part : {"rank 2 computes nothing from 0 us to ", "\nrank 0 computes 'F stage=0",
                           "  by this line of the strategy: "})
    EXPECT_NE(of_files.find(part), std::string::npos) << of_files;
  for (const auto& [words, says] :
       {std::pair(" --why 0@1", "--why requires --cluster"),
        std::pair(" --cluster '<h100x8>' --why 0@1 --dump plan", "--dump excludes --why"),
        std::pair(" --cluster '<h100x8>' --why x", "--why x: expected a rank and milliseconds"),
        std::pair(" --cluster '<h100x8>' --why 9@0", "there is no rank 9: the plans are for 4")}) {
    const auto [status, said] = run(compile + " --dry-run" + words);
    EXPECT_EQ(status, 2) << said;
    EXPECT_NE(said.find(says), std::string::npos) << said;
  }
}

// As of a policy's costs.
TEST(Predict, BackwardsThatAreNotStatedTakeTwoForwards) {
  const std::string sim = fmt::format("piper-sim {} --no-sensitivity --costs ", plans());
  const auto [code, text] = run(sim + "F=10,send=1");
  EXPECT_EQ(code, 0) << text;
  EXPECT_EQ(text, run(sim + "F=10,BI=10,BW=10,send=1").second);
  EXPECT_EQ(text, run(sim + "F=10,B=20,send=1").second);
  EXPECT_NE(text, run(sim + "F=10,B=0,send=1").second);
  // What is a stage's own is of its own forward.
  EXPECT_EQ(run(sim + "F=10,F@1=30").second, run(sim + "F=10,F@1=30,B@1=60").second);
  EXPECT_EQ(run(sim + "F=10,BW=5,F@1=30").second, run(sim + "F=10,BW=5,F@1=30,B@1=35").second);
  EXPECT_EQ(run(sim + "F=10,B=5,BI@1=30").second, run(sim + "F=10,B=5,B@1=40").second);
  EXPECT_EQ(run(sim + "F=10,B=5,F@1=30").second, run(sim + "F=10,B=5,F@1=30,B@1=5").second);
}

TEST(Predict, WhatIsWrongIsNamed) {
  const struct {
    std::string words, says;
    int code;
  } wrong[] = {
      {plans(), "--cluster FILE or --costs NAME=MS", 2},
      {plans() + " --costs Q=1", "--costs: there is no 'Q'; passes are F, B, BI, BW and U", 2},
      {plans() + " --costs F=1,F=2", "--costs: 'F' is given twice", 2},
      {plans() + " --costs F@7=1", "--costs F@7=1: the plans have no 'F@7'", 2},
      {plans() + " --costs F@7=1", "help: they have F@0, F@1\n", 2},
      {plans() + " --costs BI@7=1", "help: they have BI@0, BI@1\n", 2},
      {plans() + " --costs F=1 --why 0@", "--why 0@: expected a rank and milliseconds", 2},
      {plans() + " --costs F=1 --steps 3", "--steps: --why, --trace or --html", 2},
      {plans() + " --costs F=1 --why 0@0 --json", "--why prints sentences", 2},
      {plans() + " --costs F", "--costs F: '' is not a number of milliseconds from 0 on", 2},
      {plans() + " --costs F@x=1", "--costs F@x=1: expected a pass and its stage, as F@3=20", 2},
      {plans() + " --costs F=-1", "'-1' is not a number of milliseconds", 2},
      {plans() + " --costs F=nan", "'nan' is not a number of milliseconds", 2},
      {plans() + " --costs F=1 --why 9@0", "there is no rank 9: the plans are for 4 ranks", 2},
      {plans() + " --costs F=1 --why 0@999", "is not within the ", 2},
      {plans() + " --costs F=1 --why x", "--why x: expected a rank and milliseconds, as 3@12.5", 2},
      {plans() + " --costs F=1 --why @3", "--why @3: expected a rank and milliseconds", 2},
      {plans() + " --costs F=1 --why 99999999999999999999@3", "expected a rank and", 2},
      {plans() + " --cluster '<h100x9>'", "the library has no cluster '<h100x9>'", 1},
      {plans() + " --cluster '<two-cores>'",
       "the cluster has 2 devices, but the plans are for 4 ranks", 1},
      {plans() + " --cluster h100x8", "help: '<h100x8>' is a name of the library", 1},
      {plans() + " --cluster h100x9.yaml", "help: '<h100x8>' is a name of the library", 1},
      {plans() + " --cluster '<h100x8>' --profile " + plans() + "/rank0.plan",
       "help: a profile that is damaged or cut off is of no use; 'piper-run PLANS --profile", 1},
      {"nowhere --costs F=1", "nowhere", 4},
      {"nowhere --costs F=1 --html gone/a.html", "cannot write gone/a.html: gone is not a ", 12},
      {"nowhere --costs F=1 --trace /dev/null/a", "cannot write /dev/null/a: /dev/null is not", 12},
  };
  for (const auto& one : wrong) {
    const auto [code, text] = run("piper-sim " + one.words);
    EXPECT_NE(text.find(one.says), std::string::npos) << one.words << "\n" << text;
    EXPECT_EQ(code, one.code) << one.words << "\n" << text;
  }
}

}  // namespace
}  // namespace piper
