// Checkpoints go on under every other strategy: each pair of eight resumes, and is compared with
// the single-device plan that begins with the same checkpoint.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "at_once.h"
#include "sample_jobs.h"

namespace piper::checkpoints_test {
namespace {

struct Way {
  const char* name;
  const char* text;
  bool same_sums;  // as the single-device plan forms them
};
constexpr Way kWays[] = {
    {"one", "", true},
    {"ddp2", "include: <ddp>\nparams: {dp: 2}\n", true},
    {"zero3x3", "include: <zero3>\nparams: {dp: 3}\n", true},
    {"zero1x4", "include: <zero1>\nparams: {dp: 4}\n", true},
    {"pp2dp2", "include: <1f1b>\nparams: {stages: 2, dp: 2, microbatches: 3}\n", true},
    {"zbv2", "include: <zbv>\nparams: {stages: 2, microbatches: 4}\n", true},
    {"tp2", "include: <tensor/tensor>\nparams: {tp: 2}\n", false},
    {"vocabulary3",
     "mesh: {tp: 3}\ndirectives:\n  - shard: {match: \"**/wte/*\", dim: 0, over: tp, pad: true}\n",
     false}};

class Checkpoints : public SampleJobs {
 protected:
  static void SetUpTestSuite() {
    SampleJobs::SetUpTestSuite();
    for (const Way& way : kWays) {
      offer(way.name, [&way] { compile(way.name, way.text); });
      offer(at(way), [&way] {
        const auto [code, output] = run(way.name, "--steps 3 --checkpoint " + path(at(way)));
        ASSERT_EQ(code, 0) << way.name << output;
      });
    }
  }
  static std::string at(const Way& way) { return std::string("checkpoint-") + way.name; }
};

// Where sums are formed in the order of the single-device plan, its bits; else nearly its values.
void expect_alike(const std::map<std::string, std::string>& ours,
                  const std::map<std::string, std::string>& theirs, bool bits,
                  const std::string& what) {
  for (const auto& [name, bytes] : theirs) {
    const auto found = ours.find(name);
    ASSERT_TRUE(found != ours.end() && found->second.size() == bytes.size()) << what << name;
    if (found->second == bytes) continue;
    ASSERT_FALSE(bits) << what << ": " << name;
    double most = 0, difference = 0;
    for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
      float a = 0, b = 0;
      std::memcpy(&a, bytes.data() + at, 4);
      std::memcpy(&b, found->second.data() + at, 4);
      most = std::max<double>(most, std::abs(a));
      difference = std::max<double>(difference, std::abs(a - b));
    }
    ASSERT_LE(difference, 1e-3 * most + 1e-7) << what << ": " << name;
  }
  EXPECT_EQ(ours.size(), theirs.size()) << what;
}

// What one strategy wrote, another loads, and then both train as the single-device plan does that
// begins with the same checkpoint: parameters, and states of the optimizer, which no loss shows.
TEST_F(Checkpoints, EachPairOfStrategiesGoesOn) {
  for (const Way& from : kWays)
    for (const Way& to : kWays) {
      const std::string what = fmt::format("{} -> {}", from.name, to.name);
      const auto go_on = [&](const std::string& plans, const std::string& folder) {
        const auto [code, output] = run(plans, fmt::format("--steps 4 --resume {} --checkpoint {}",
                                                           path(at(from)), path(folder)));
        EXPECT_EQ(code, 0) << what << output;
        EXPECT_NE(output.find("goes on after step 3"), std::string::npos) << what << output;
        auto tensors = tensors_of(folder);
        std::filesystem::remove_all(path(folder));
        return tensors;
      };
      const auto ours = go_on(to.name, "ours"),
                 theirs = go_on(std::string(to.name) + "/single", "theirs");
      expect_alike(ours, theirs, to.same_sums, what);
    }
}

// The control: parameters alone, without the optimizer's states, are another training.
TEST_F(Checkpoints, ParametersAloneAreAnotherCourse) {
  const auto resumed =
                 run("ddp2", "--steps 6 --resume " + path(at(kWays[1])) + " --save " + path("a")),
             fresh = run("ddp2", "--steps 3 --init " + path(at(kWays[1])) + " --save " + path("b"));
  EXPECT_EQ(resumed.first, 0) << resumed.second;
  EXPECT_EQ(fresh.first, 0) << fresh.second;
  EXPECT_NE(fresh.second.find("begin afresh"), std::string::npos) << fresh.second;
  EXPECT_NE(read("a"), read("b"));
}

// A job that ends in the middle and goes on saves what one job saves: at the end of its steps, at a
// checkpoint before them, with two to four versions of weights, in 16 bits, under scaled losses.
TEST_F(Checkpoints, ResumedJobsSaveWhatOneJobSaves) {
  const std::pair<const char*, const char*> more[] = {
      {"versions", "include: <pipedream-2bw>\nparams: {stages: 2, microbatches: 4}\n"},
      {"three",
       "include: <pipedream-2bw>\nparams: {stages: 2, microbatches: 4}\nweight_versions: 3\n"},
      {"four", "include: <zero1>\nparams: {dp: 2}\nweight_versions: 4\n"},
      {"bf16", "include: [<zero1>, <numerics/bf16>]\nparams: {dp: 2}\n"},
      {"f16", "include: [<zero3>, <numerics/f16>]\nparams: {dp: 2}\n"},
      {"f64", "include: [<ddp>, <numerics/f64>]\nparams: {dp: 2}\n"}};
  for (const auto& [name, text] : more) compile(name, text);
  for (const char* name :
       {"pp2dp2", "zero3x3", "vocabulary3", "versions", "three", "four", "bf16", "f16", "f64"}) {
    const std::string folder = path(std::string("cut-") + name);
    const auto all = run(name, "--steps 7 --save " + path("a")),
               part = run(name, "--steps 4 --every 3 --checkpoint " + folder),
               rest = run(name, "--steps 7 --resume " + folder + " --save " + path("b")),
               early = run(name,
                           "--steps 7 --resume " + folder + "/step-000000003 --save " + path("c"));
    for (const auto& one : {all, part, rest, early}) ASSERT_EQ(one.first, 0) << name << one.second;
    EXPECT_EQ(read("a"), read("b")) << name;
    EXPECT_EQ(read("a"), read("c")) << name;
  }
}

// All versions are saved: jobs that go on at each step, on other meshes, save what one job saves.
TEST_F(Checkpoints, OlderVersionsGoOnOnAnotherMesh) {
  const std::string rule = "weight_versions: 4\n";
  compile("delayed-ddp", "include: <ddp>\nparams: {dp: 2}\n" + rule);
  compile("delayed-zero1", "include: <zero1>\nparams: {dp: 2}\n" + rule);
  compile("delayed-zero3", "include: <zero3>\nparams: {dp: 2}\n" + rule);
  const std::string folder = path("delayed");
  const auto all = run("delayed-ddp", "--steps 8 --every 1 --keep last=8 --checkpoint " + folder +
                                          " --save " + path("a"));
  ASSERT_EQ(all.first, 0) << all.second;
  for (int64_t step = 1; step < 8; ++step)
    for (const char* name : {"delayed-ddp", "delayed-zero1", "delayed-zero3"}) {
      const auto rest = run(
          name, fmt::format("--steps 8 --resume {}/step-{:09} --save {}", folder, step, path("b")));
      ASSERT_EQ(rest.first, 0) << rest.second;
      EXPECT_EQ(read("a"), read("b")) << name << " after step " << step;
    }
}

// ---- What is asked for now ----------------------------------------------------------------------

TEST_F(Checkpoints, OtherSettingsAreNamedAndMayBeAccepted) {
  std::string other = kTrain;
  other.replace(other.find("2e-3"), 4, "1e-3");
  compile("slower", "include: <ddp>\nparams: {dp: 2}\n", other);
  const std::string resume = "--steps 4 --resume " + path(at(kWays[1]));
  const auto refused = run("slower", resume), accepted = run("slower", resume + " --accept lr"),
             branched = run("slower", "--steps 4 --branch " + path(at(kWays[1])));
  EXPECT_EQ(refused.first, 2) << refused.second;
  EXPECT_NE(refused.second.find("optimizer.adamw.lr: 0.002 before, 0.001 now"), std::string::npos)
      << refused.second;
  EXPECT_EQ(accepted.first, 0) << accepted.second;
  EXPECT_EQ(branched.first, 0) << branched.second;
  const auto slip = run("slower", resume + " --accept ler");
  EXPECT_EQ(slip.first, 2) << slip.second;
  EXPECT_NE(slip.second.find("'ler' is no setting"), std::string::npos) << slip.second;
  EXPECT_NE(slip.second.find("= note: there are model, data, seed, shuffle, "), std::string::npos)
      << slip.second;
  const size_t first = slip.second.find("optimizer.adamw.lr,");
  EXPECT_EQ(slip.second.find("optimizer.adamw.lr,", first + 1), std::string::npos) << slip.second;
  const auto seeded = run("ddp2", resume + " --seed 5");
  EXPECT_EQ(seeded.first, 2) << seeded.second;
  EXPECT_NE(seeded.second.find("seed: 0 before, 5 now"), std::string::npos) << seeded.second;
}

// Another batch goes on at the next sample of the same order: none is left out or repeated.
TEST_F(Checkpoints, AnotherBatchGoesOnAtTheNextSample) {
  std::string larger = kTrain;
  larger.replace(larger.find("12"), 2, "24");
  compile("larger", "include: <ddp>\nparams: {dp: 2}\n", larger);
  const auto [code, output] =
      run("larger", "--steps 5 --accept global_batch --resume " + path(at(kWays[1])) +
                        " --checkpoint " + path("grown"));
  ASSERT_EQ(code, 0) << output;
  const auto reader = CheckpointReader::open(file_storage(), path("grown/step-000000005"));
  ASSERT_TRUE(reader) << print_error(reader.error());
  EXPECT_EQ(reader->about().samples, 3 * 12 + 2 * 24);
}

TEST_F(Checkpoints, OptimizersWithOtherStatesAreRefusedAndBranch) {
  compile("sgd", "include: <ddp>\nparams: {dp: 2}\n",
          "train: {global_batch: 12, optimizer: {sgd: {lr: 0.01, momentum: 0.9}}}\n");
  const auto refused = run("sgd", "--steps 4 --resume " + path(at(kWays[1])));
  EXPECT_EQ(refused.first, 2) << refused.second;
  EXPECT_NE(refused.second.find("is no checkpoint of what these plans train"), std::string::npos)
      << refused.second;
  EXPECT_NE(refused.second.find(".momentum' is not in the checkpoint"), std::string::npos)
      << refused.second;
  const auto branched = run("sgd", "--steps 4 --branch " + path(at(kWays[1])));
  EXPECT_EQ(branched.first, 0) << branched.second;
  EXPECT_NE(branched.second.find("of the checkpoint are ignored"), std::string::npos)
      << branched.second;
}

// Older versions of weights follow from newer ones; what the model calls so does not.
TEST_F(Checkpoints, AParameterCalledAsAnOlderVersionIsNotLeftOut) {
  std::ofstream(path("named.yaml"))
      << "piper: 1\ntrain: {global_batch: 12, optimizer: {sgd: {lr: 0.01}}}\n";
  std::ifstream in(PIPER_SOURCE_DIR "/tests/data/small_gpt/model.onnx", std::ios::binary);
  const std::string model(std::istreambuf_iterator<char>(in), {});
  for (const std::string now : {"lm_head.w8.previous1", "lm_head.w8.previous2"}) {
    std::string renamed = model;
    const std::string before = "model.lm_head.weight";
    for (size_t at = 0; (at = renamed.find(before, at)) != renamed.npos;)
      renamed.replace(at, now.size(), now);
    std::ofstream(path(now + ".onnx"), std::ios::binary) << renamed;
    const auto compiled =
        run_shell(fmt::format("{}/bin/piperc {}.onnx {} -o {} --no-oracles 2>&1", PIPER_BINARY_DIR,
                              path(now), path("named.yaml"), path(now)));
    ASSERT_EQ(compiled.first, 0) << compiled.second;
  }
  const auto saved = run("lm_head.w8.previous1", "--steps 2 --checkpoint " + path("called"));
  ASSERT_EQ(saved.first, 0) << saved.second;
  const auto [code, text] =
      run("lm_head.w8.previous2", "--steps 3 --accept model --resume " + path("called"));
  EXPECT_EQ(code, 2) << text;
  for (const char* line :
       {"'lm_head.w8.previous2' is not in the checkpoint", "'lm_head.w8.previous1' is in the "})
    EXPECT_NE(text.find(line), std::string::npos) << text;
}

// ---- Folders ------------------------------------------------------------------------------------

TEST_F(Checkpoints, ADamagedOneIsNamedAndTheOneBeforeIsTaken) {
  const std::string folder = path("damaged");
  ASSERT_EQ(run("ddp2", "--steps 6 --every 2 --checkpoint " + folder).first, 0);
  const std::string file = folder + "/step-000000006/rank00001.safetensors";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(-5, std::ios::end);
  bytes.put('\x55');
  bytes.close();
  const auto [code, output] = run(
      "ddp2", "--steps 8 --resume " + folder + " --checkpoint " + folder + " --save " + path("a"));
  EXPECT_EQ(code, 0) << output;
  EXPECT_NE(output.find(file + ": error: its content does not match its digest"), std::string::npos)
      << output;
  EXPECT_NE(output.find("goes on after step 4"), std::string::npos) << output;
  EXPECT_TRUE(std::filesystem::exists(folder + "/damaged-step-000000006"));
  ASSERT_EQ(run("ddp2", "--steps 8 --save " + path("b")).first, 0);
  EXPECT_EQ(read("a"), read("b"));
}

TEST_F(Checkpoints, FoldersAreGuarded) {
  std::filesystem::create_directory(path("nothing"));
  const auto missing = run("ddp2", "--steps 1 --resume " + path("nowhere"));
  EXPECT_EQ(missing.first, 2) << missing.second;
  EXPECT_NE(missing.second.find("does not exist"), std::string::npos) << missing.second;
  const auto empty = run("ddp2", "--steps 1 --resume " + path("nothing"));
  EXPECT_EQ(empty.first, 2) << empty.second;
  EXPECT_NE(empty.second.find("holds no checkpoint"), std::string::npos) << empty.second;
  const auto file = run("ddp2", "--steps 1 --resume " + path("ddp2/manifest.json"));
  EXPECT_EQ(file.first, 2) << file.second;
  EXPECT_NE(file.second.find("is a file, not a checkpoint"), std::string::npos) << file.second;
  const auto started = run("ddp2", "--steps 1 --resume-or-start " + path("nothing"));
  EXPECT_EQ(started.first, 0) << started.second;
  EXPECT_NE(started.second.find("training starts from the beginning"), std::string::npos);
  const auto mixed = run("ddp2", "--steps 2 --checkpoint " + path(at(kWays[1])));
  EXPECT_EQ(mixed.first, 2) << mixed.second;
  EXPECT_NE(mixed.second.find("would be mixed with those of another run"), std::string::npos)
      << mixed.second;
}

// Files that a run reads are as they were, whatever flag names them, and none has two uses.
TEST_F(Checkpoints, RunsWriteNoFileThatTheyRead) {
  const std::string step = at(kWays[0]) + "/step-000000003/";
  const std::string files[] = {"text.bin",
                               "one/manifest.json",
                               "one/rank0.plan",
                               "one/params/init.safetensors",
                               "one/single/manifest.json",
                               step + "checkpoint.json",
                               step + "rank00000.safetensors"};
  for (const std::string& file : files) {
    const std::string before = read(file);
    ASSERT_FALSE(before.empty()) << file;
    for (const char* flag : {"--save", "--metrics", "--trace", "--profile"}) {
      const auto [code, output] = run(
          "one", fmt::format("--steps 4 --resume {} {} {}", path(at(kWays[0])), flag, path(file)));
      EXPECT_EQ(code, 2) << flag << file << output;
      EXPECT_NE(output.find(fmt::format("{} {}: this file is read", flag, path(file))), output.npos)
          << output;
      EXPECT_EQ(read(file), before) << flag << file;
    }
  }
  const std::string save = " --save " + path("begin.safetensors");
  const auto twice = run("one", "--steps 1 --metrics " + path("begin.safetensors") + save);
  EXPECT_EQ(twice.first, 2) << twice.second;
  EXPECT_NE(twice.second.find("--save writes this file, too"), twice.second.npos) << twice.second;
  ASSERT_EQ(run("one", "--steps 1" + save).first, 0);
  const std::string init = "--steps 1 --init " + path("begin.safetensors");
  EXPECT_EQ(run("one", init + " --metrics " + path("begin.safetensors")).first, 2);
  EXPECT_EQ(run("one", init + save).first, 0);  // as a whole, by what was trained from it
}

// The folder of a run replaces only a strategy that a run has copied there, and a folder of
// checkpoints in it counts once it holds one.
TEST_F(Checkpoints, FoldersOfRunsLoseNothing) {
  const std::string out = path("mine"), own = "piper: 1  # my own words\n";
  std::filesystem::create_directory(out);
  std::ofstream(out + "/strategy.yaml") << own;
  const auto refused = run("one", "--steps 1 --out " + out);
  EXPECT_EQ(refused.first, 2) << refused.second;
  EXPECT_NE(refused.second.find("a strategy.yaml that piper-run has not written"),
            refused.second.npos)
      << refused.second;
  EXPECT_EQ(read("mine/strategy.yaml"), own);
  const std::string folder = path("held");
  ASSERT_EQ(run("one", "--steps 1 --checkpoint " + folder).first, 0);
  for (const char* steps : {"2", "3"}) {
    const auto goes_on =
        run("one", fmt::format("--steps {} --out {} --resume {}", steps, folder, folder));
    EXPECT_EQ(goes_on.first, 0) << goes_on.second;
    EXPECT_TRUE(std::filesystem::exists(
        fmt::format("{}/checkpoints/step-00000000{}/checkpoint.json", folder, steps)));
  }
  std::filesystem::create_directories(path(at(kWays[1])) + "/checkpoints");
  const auto found = run("ddp2", "--steps 4 --resume " + path(at(kWays[1])));
  EXPECT_EQ(found.first, 0) << found.second;
  std::filesystem::remove(path(at(kWays[1])) + "/checkpoints");
}

// What was trained is saved also when a checkpoint cannot be written; with `ignore` the job goes
// on.
TEST_F(Checkpoints, OneThatFailsLosesNoTraining) {
  const std::string flags = "--steps 8 --every 2 --checkpoint ";
  const auto with_fault = [&](const std::string& more) {
    return run_shell(
        fmt::format("PIPER_FAULT=disk@1:4:write {}/bin/piper-run {} --data {}:u8 "
                    "--threads 1 --save {} {} 2>&1",
                    PIPER_BINARY_DIR, path("ddp2"), path("text.bin"), path("saved"), more));
  };
  const auto stopped = with_fault(flags + path("stopped"));
  EXPECT_EQ(stopped.first, 12) << stopped.second;
  EXPECT_NE(stopped.second.find("saved 53 parameters"), std::string::npos) << stopped.second;
  const auto ignored = with_fault(flags + path("ignored") + " --checkpoint-errors ignore");
  EXPECT_EQ(ignored.first, 12) << ignored.second;
  const auto steps = list_checkpoints(file_storage(), path("ignored"));
  ASSERT_TRUE(steps);
  EXPECT_EQ(*steps, (std::vector<int64_t>{8, 6, 2}));
}

TEST_F(Checkpoints, KeepSaysWhichStay) {
  const auto [code, output] =
      run("one", "--steps 10 --every 1 --keep last=2,every=4 --checkpoint " + path("kept"));
  ASSERT_EQ(code, 0) << output;
  const auto steps = list_checkpoints(file_storage(), path("kept"));
  ASSERT_TRUE(steps);
  EXPECT_EQ(*steps, (std::vector<int64_t>{10, 9, 8, 4}));
}

// ---- Signals and kills --------------------------------------------------------------------------

// SIGUSR1 saves and goes on, SIGTERM saves and ends; of four processes it is the last that is told.
TEST_F(Checkpoints, SignalsToAnyRankSave) {
  const std::string told = path("told");
  const std::string command = fmt::format(
      "{}/bin/piper-run {} --data {}:u8 --threads 1 --checkpoint {} --steps 100000 --log-every 100",
      PIPER_BINARY_DIR, path("pp2dp2"), path("text.bin"), told);
  const std::string script = fmt::format(
      "({}) > {}/told.txt 2>&1 & J=$!; for i in $(seq 600); do grep -q 'step 1/' {}/told.txt && "
      "break; sleep 0.1; done; kill -USR1 $(cat {}/pid3); for i in $(seq 600); do ls {} | grep -q "
      "step- && break; sleep 0.1; done; ls {}; kill -TERM $(cat {}/pid3); wait $J; echo code $?; "
      "cat {}/told.txt",
      as_processes(4, torch_variables(4, free_port()), command, folder()), folder(), folder(),
      folder(), told, told, folder(), folder());
  const auto [code, output] = run_shell(script);
  EXPECT_NE(output.find("code 130"), std::string::npos) << output;
  const auto steps = list_checkpoints(file_storage(), told);
  ASSERT_TRUE(steps);
  EXPECT_EQ(steps->size(), 2u) << output;
}

// Launchers pass a signal on that the process has got already: a second one at once ends nothing.
TEST_F(Checkpoints, ASignalTwiceAtOnceSaves) {
  const std::string twice = path("twice");
  const auto [code, output] = run_shell(fmt::format(
      "PIPER_FAULT=slow@0:*:step {}/bin/piper-run {} --data {}:u8 --threads 1 --checkpoint {} "
      "--steps "
      "100000 --log-every 1 > {}/twice.txt 2>&1 & J=$!; for i in $(seq 600); do grep -q 'step 1/' "
      "{}/twice.txt && break; sleep 0.1; done; kill -TERM $J; sleep 0.1; kill -TERM $J; wait $J",
      PIPER_BINARY_DIR, path("one"), path("text.bin"), twice, folder(), folder()));
  EXPECT_EQ(code, 130) << output;
  const auto steps = list_checkpoints(file_storage(), twice);
  ASSERT_TRUE(steps);
  EXPECT_EQ(steps->size(), 1u);
}

// An export replaces what an export has written, and no other file.
TEST_F(Checkpoints, ExportsReplaceNoOtherFiles) {
  ASSERT_EQ(run("one", "--steps 1 --checkpoint " + path("exported")).first, 0);
  const auto exports = [] {
    return run_shell(fmt::format("{}/bin/piper-checkpoint export {} {} --hf --force 2>&1",
                                 PIPER_BINARY_DIR, path("exported"), path("hf")));
  };
  EXPECT_EQ(exports().first, 0);
  EXPECT_EQ(exports().first, 0);
  ASSERT_TRUE(write_file(path("hf/config.json"), "{}"));
  const auto refused = exports();
  EXPECT_NE(refused.first, 0);
  EXPECT_NE(refused.second.find("'config.json'"), std::string::npos) << refused.second;
  EXPECT_EQ(read("hf/config.json"), "{}");
}

// Killed at whatever time, a job goes on with the newest whole checkpoint, and ends as one that
// nobody killed.
TEST_F(Checkpoints, KilledJobsEndAsOthersDo) {
  const std::string folder = path("killed");
  const std::string flags = "--steps 60 --every 2 --keep last=2 --checkpoint " + folder +
                            " --resume-or-start " + folder + " --save " + path("a");
  ASSERT_EQ(run("zero3x3", "--steps 60 --save " + path("b")).first, 0);
  int kills = 0;
  for (int attempt = 0; attempt < 40; ++attempt) {
    const std::string command = fmt::format(
        "timeout -s KILL 0.{:02} {}/bin/piper-run {} --data {}:u8 --threads 1 {} 2>&1",
        8 + attempt % 8 * 6, PIPER_BINARY_DIR, path("zero3x3"), path("text.bin"), flags);
    const auto [code, output] = run_shell(command);
    if (code == 0) break;
    ++kills;
    ASSERT_EQ(code, 137) << output;
  }
  const auto [code, output] = run("zero3x3", flags);
  ASSERT_EQ(code, 0) << output;
  EXPECT_GT(kills, 0);
  EXPECT_EQ(read("a"), read("b"));
}

// Whatever a rank is doing when it is killed, the others end soon, and a resumed job ends as one
// that nobody killed. `launch`: starts a command as four processes.
class KillPoints : public Checkpoints {
 protected:
  static void expect_resumed(const std::string& name,
                             const std::function<std::string(const std::string& command)>& launch) {
    ASSERT_EQ(run("pp2dp2", "--steps 7 --save " + path("b")).first, 0);
    for (const std::string phase :
         {"load", "step", "after", "copy", "write", "commit", "publish", "end"})
      for (const int rank : {0, 3}) {
        if (rank != 0 && (phase == "commit" || phase == "publish")) continue;
        const int step = phase == "load" ? 0 : phase == "end" ? 7 : 4;
        const std::string what = fmt::format("kill@{}:{}:{}", rank, step, phase),
                          folder = path(name + "-points-" + what);
        const std::string killed = fmt::format(
            "env PIPER_FAULT={} {}", what,
            command("pp2dp2", fmt::format("--steps 7 --every 2 --timeout {0} --start-timeout {0} "
                                          "--checkpoint {1}",
                                          kNever, folder)));
        const auto before = std::chrono::steady_clock::now();
        const auto [code, output] = run_shell("exec 2>&1; " + launch(killed));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
        EXPECT_NE(code, 0) << what << output;
        EXPECT_LE(took.count(), kAtOnce) << what;  // the others' patience is no part of it
        const auto resumed = run("pp2dp2", "--steps 7 --resume-or-start " + folder +
                                               " --checkpoint " + folder + " --save " + path("a"));
        ASSERT_EQ(resumed.first, 0) << what << resumed.second;
        EXPECT_EQ(read("a"), read("b")) << what;
      }
  }
};

TEST_F(KillPoints, OverTcp) {
  expect_resumed("tcp", [](const std::string& command) {
    return as_processes(4, torch_variables(4, free_port()), command);
  });
}

TEST_F(KillPoints, OverMpi) {
  expect_resumed("mpi",
                 [](const std::string& command) { return kMpi + ("mpirun -n 4 " + command); });
}

// A job that is started again with fewer processes takes the plans for these.
TEST_F(Checkpoints, FewerProcessesTakeOtherPlans) {
  const std::string folder = path("elastic");
  const auto start = [&](int processes, int steps, const std::string& more) {
    return run_shell("exec 2>&1; " +
                     as_processes(processes, torch_variables(processes, free_port()),
                                  fmt::format("{}/bin/piper-run {} {} --data {}:u8 --threads 1 "
                                              "--steps {} --resume-or-start {} --checkpoint {} {}",
                                              PIPER_BINARY_DIR, path("pp2dp2"), path("tp2"),
                                              path("text.bin"), steps, folder, folder, more)));
  };
  const auto four = start(4, 3, ""), two = start(2, 5, "--verify-against single"),
             three = start(3, 6, "");
  EXPECT_EQ(four.first, 0) << four.second;
  EXPECT_EQ(two.first, 0) << two.second;
  EXPECT_NE(two.second.find("goes on after step 3"), std::string::npos) << two.second;
  EXPECT_EQ(three.first, 2) << three.second;
  EXPECT_NE(three.second.find("3 processes were started"), std::string::npos) << three.second;
}

// ---- What a run leaves --------------------------------------------------------------------------

uint32_t crc_of(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

// The records of an events file, whose checksums are right.
std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at + 16 <= file.size();) {
    uint64_t size = 0;
    uint32_t of_size = 0, of_data = 0;
    std::memcpy(&size, file.data() + at, 8);
    std::memcpy(&of_size, file.data() + at + 8, 4);
    EXPECT_EQ(of_size, crc_of(std::string_view(file).substr(at, 8)));
    records.push_back(file.substr(at + 12, size));
    std::memcpy(&of_data, file.data() + at + 12 + size, 4);
    EXPECT_EQ(of_data, crc_of(records.back()));
    at += size + 16;
  }
  return records;
}

// A resumed run cuts what lies beyond its step, and refuses before it cuts anything.
TEST_F(Checkpoints, MetricsAreOneSeries) {
  const std::string out = path("out");
  const auto first = run("ddp2", "--steps 6 --every 2 --out " + out);
  ASSERT_EQ(first.first, 0) << first.second;
  const std::string all = read("out/metrics.jsonl");
  const auto mixed =
      run("ddp2", "--steps 8 --out " + out + " --resume " + out + "/checkpoints/step-000000004");
  EXPECT_EQ(mixed.first, 2) << mixed.second;
  EXPECT_EQ(read("out/metrics.jsonl"), all);
  std::filesystem::remove_all(out + "/checkpoints/step-000000006");
  const auto resumed = run("ddp2", "--steps 8 --out " + out + " --resume " + out + "/checkpoints");
  ASSERT_EQ(resumed.first, 0) << resumed.second;
  const std::string series = read("out/metrics.jsonl");
  for (int step = 1; step <= 8; ++step) {
    const std::string line = fmt::format("{{\"step\":{},", step);
    const size_t at = series.find(line);
    EXPECT_NE(at, std::string::npos) << step;
    EXPECT_EQ(series.find(line, at + 1), std::string::npos) << step;
  }
  // Whatever a run prints is in the log, behind what the run before has printed.
  const std::string log = read("out/log.txt");
  size_t begin = 0;
  for (const std::string& output : {first.second, mixed.second, resumed.second}) {
    std::istringstream printed(output);
    size_t end = begin;
    for (std::string line; std::getline(printed, line);) {
      const size_t at = log.find(line + "\n", begin);
      ASSERT_NE(at, std::string::npos) << line << "\nis not in\n" << log.substr(begin);
      end = std::max(end, at);
    }
    begin = end;
  }
  EXPECT_GT(begin, 0U);
  const std::string values = read("out/metrics.prom");
  EXPECT_NE(values.find("piper_step 8\n"), std::string::npos);
  EXPECT_EQ(values.find("e+"), std::string::npos) << values;  // whole numbers are whole
  // What Prometheus' own checks ask for: each value has a type and says what it is, once, before
  // it.
  std::istringstream lines(values);
  size_t count = 0;
  for (std::string line, help, type; std::getline(lines, line); ++count) {
    if (line.starts_with("# HELP ")) help = line.substr(7);
    if (line.starts_with("# TYPE ")) type = line.substr(7);
    if (line.starts_with("# ")) continue;
    const std::string name = line.substr(0, line.find_first_of(" {"));
    EXPECT_EQ(type, name + " gauge");
    EXPECT_TRUE(help.starts_with(name + " ") && help.find(' ', name.size() + 1) != help.npos)
        << help;
    EXPECT_EQ(values.find("# HELP " + name + " "), values.rfind("# HELP " + name + " ")) << name;
  }
  EXPECT_GT(count, 20U) << values;
  EXPECT_TRUE(read("out/strategy.yaml").starts_with("# Written by piper-run")) << out;
  EXPECT_NE(read("out/strategy.yaml").find("\npiper: 1"), std::string::npos);
  std::vector<size_t> counts;
  for (const auto& file : std::filesystem::directory_iterator(out))
    if (file.path().filename().string().starts_with("events.out.tfevents."))
      counts.push_back(records_of(read("out/" + file.path().filename().string())).size());
  std::sort(counts.begin(), counts.end());
  EXPECT_EQ(counts, (std::vector<size_t>{2 + 4, 2 + 6}));  // version, begin, steps
}

// Steps are told from names that look like them and from lines that a full disk has torn; runs that
// began before are others.
TEST_F(Checkpoints, MetricsAreCutAtTheStepOfTheCheckpoint) {
  const std::string run_line = "{\"run\":1,\"steps\":9}\n";
  const std::string before = run_line + "{\"step\":9,\"loss\":1}\n" + run_line +
                             "{\"step\":3,\"loss\":1,\"spent_ms\":{\"wait\":1.0}}\n"
                             R"({"evaluation":"a\",\"step\":9","step":3,"loss":1})"
                             "\n",
                    resumed =
                        "{\"run\":3,\"after_step\":2,\"steps\":9}\n"
                        "{\"memory\":{\"stated_bytes\":1}}\n{\"step\":3,\"loss\":1}\n",
                    torn = "{\"step\":3,\"spent_ms\":{\"wait\":1.0}\n", beyond = "{\"step\":4}\n",
                    noted = "{\"memory\":{\"stated_bytes\":2}}\n";
  const std::pair<std::string, std::string> cases[] = {
      {before + torn + resumed + beyond + "{\"step\":5,\"lo", before + resumed},
      {before + beyond + beyond, before},
      {before + beyond + noted + beyond, before + noted},
      {before + noted, before + noted}};
  for (const auto& [file, kept] : cases) {
    std::ofstream(path("cut.jsonl"), std::ios::binary) << file;
    const auto [code, output] =
        run("ddp2", "--steps 4 --resume " + path(at(kWays[1])) + " --metrics " + path("cut.jsonl"));
    ASSERT_EQ(code, 0) << output;
    const std::string now = read("cut.jsonl");
    EXPECT_EQ(now.substr(0, now.rfind("{\"run\":")), kept) << file;
    EXPECT_NE(now.find("{\"step\":4,"), now.npos);
  }
}

TEST_F(Checkpoints, ATimeLimitEndsWithACheckpoint) {
  const auto [code, output] =
      run("ddp2", "--steps 100000 --time-limit 2s --checkpoint " + path("limited"));
  EXPECT_EQ(code, 130) << output;
  const auto steps = list_checkpoints(file_storage(), path("limited"));
  ASSERT_TRUE(steps);
  EXPECT_EQ(steps->size(), 1u) << output;
}

std::string updates_in(const std::map<std::string, std::string>& tensors) {
  int64_t count = -1;
  if (tensors.contains("step")) std::memcpy(&count, tensors.at("step").data(), sizeof count);
  return std::to_string(count);
}

TEST_F(Checkpoints, ABranchToAnotherOptimizerCountsItsUpdatesFrom0) {
  const std::string batch = "train:\n  global_batch: 12\n  optimizer: ";
  compile("plain", "", batch + "{sgd: {lr: 1e-3, momentum: 0}}\n");
  compile("adam", "", batch + "{adamw: {lr: 1e-3}}\n");
  compile("lion", "", batch + "{lion: {lr: 1e-4}}\n");
  ASSERT_EQ(run("plain", "--steps 3 --checkpoint " + path("c-plain")).first, 0);
  const auto branch = [&](const std::string& plans, const std::string& from, int steps) {
    const auto [code, output] =
        run(plans, fmt::format("--steps {} --branch {} --checkpoint {}", steps, path(from),
                               path(from + "-" + plans)));
    EXPECT_EQ(code, 0) << output;
    return output;
  };
  std::string said = branch("adam", "c-plain", 5);
  EXPECT_NE(said.find("updates are counted from 0"), std::string::npos) << said;
  EXPECT_EQ(updates_in(tensors_of("c-plain-adam")), "2");
  said = branch("lion", "c-plain-adam", 6);
  EXPECT_EQ(said.find("counted from 0"), std::string::npos) << said;
  EXPECT_EQ(updates_in(tensors_of("c-plain-adam-lion")), "3");
}

TEST_F(Checkpoints, TokensOfABatchThatChangedAreTold) {
  const auto train = [](int batch) {
    return fmt::format(
        "train:\n  global_batch: {}\n  optimizer: {{adamw: {{lr: 1e-3}}}}\n"
        "  schedule: \"lr * min(1, tokens / 10000)\"\n",
        batch);
  };
  compile("twelve", "", train(12));
  compile("six", "", train(6));
  ASSERT_EQ(run("twelve", "--steps 2 --checkpoint " + path("c-twelve")).first, 0);
  const auto [code, output] =
      run("six", "--steps 3 --accept global_batch --resume " + path("c-twelve"));
  EXPECT_EQ(code, 0) << output;
  EXPECT_NE(output.find("as if each of the 2 steps before had had today's 6 samples; they had 24"),
            std::string::npos)
      << output;
}

TEST_F(Checkpoints, AveragesAreExported) {
  const std::string from = path("checkpoint-one"), to = path("averages.safetensors");
  const auto [code, output] = run_shell(
      fmt::format("{}/bin/piper-checkpoint export {} {} --ema 2>&1", PIPER_BINARY_DIR, from, to));
  ASSERT_EQ(code, 0) << output;
  const auto exported = read_safetensors(to);
  ASSERT_TRUE(exported);
  const auto tensors = tensors_of("checkpoint-one");
  int averages = 0;
  for (const NamedTensor& one : *exported) {
    const auto found = tensors.find(one.name + ".ema");
    if (found == tensors.end()) continue;
    ++averages;
    EXPECT_EQ(as_text(one.data.span()), found->second) << one.name;
    EXPECT_NE(found->second, tensors.at(one.name)) << one.name;
  }
  EXPECT_GT(averages, 0);
}

// ---- Several processes --------------------------------------------------------------------------

TEST_F(Checkpoints, WhoFailedFirstIsNamedByWhoComesLate) {
  const auto [code, output] =
      run_shell("exec 2>&1; export PIPER_FAULT=throw@2:1:step,slow@1:1:step; " +
                as_processes(4, torch_variables(4, free_port()), command("pp2dp2", "--steps 2")));
  EXPECT_NE(code, 0) << output;
  EXPECT_NE(output.find("it throws as asked"), std::string::npos) << output;
  EXPECT_EQ(output.find("cannot connect"), std::string::npos) << output;
  EXPECT_EQ(output.find("rank 1 failed"), std::string::npos) << output;
}

// ---- Faults -------------------------------------------------------------------------------------

TEST_F(Checkpoints, FaultsThatDoNotHappenAreTold) {
  const auto [code, output] = run("one", "--steps 1", "kill@0:1:load");
  EXPECT_EQ(code, 0) << output;
  EXPECT_NE(output.find("'kill@0:1:load' did not happen"), std::string::npos) << output;
}

TEST_F(Checkpoints, AFaultOfAnUpdateIsInItsParameters) {
  for (const char* plans : {"ddp2", "pp2dp2"}) {
    const auto [code, output] = run(plans, "--steps 3 --check-replicas 1", "flip@0:2:update");
    EXPECT_EQ(code, 11) << plans << output;
  }
}

TEST_F(Checkpoints, AResumedJobCountsTheStepsThatWereSkippedBefore) {
  const std::string flags = "--on-nan skip --checkpoint " + path("skips") + " ";
  ASSERT_EQ(run("one", flags + "--steps 3", "nan@0:2:backward").first, 0);
  const auto [code, output] = run(
      "one", flags + "--steps 5 --resume " + path("skips") + " --metrics " + path("skips.jsonl"));
  ASSERT_EQ(code, 0) << output;
  const std::string metrics = read("skips.jsonl");
  EXPECT_NE(metrics.find("\"skipped\":false,\"steps_skipped\":1"), std::string::npos) << metrics;
}

TEST_F(Checkpoints, FaultsAreSpelled) {
  const auto [code, output] =
      run_shell("PIPER_FAULT=kll@0:0:load " PIPER_BINARY_DIR "/bin/piper-run " + path("one") +
                " --data " + path("text.bin") + ":u8 2>&1");
  EXPECT_EQ(code, 2) << output;
  EXPECT_NE(output.find("did you mean 'kill'?"), std::string::npos) << output;
}

}  // namespace
}  // namespace piper::checkpoints_test
