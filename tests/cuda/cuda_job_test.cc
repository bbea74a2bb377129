// A small model trained by piper-run on the faked libraries: what the CPU gives, with a step queued
// at once or op by op, in any legal order of streams.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "cuda/samples.h"
#include "folder.h"
#include "piper/base/data.h"
#include "shell.h"

namespace piper {
namespace {

constexpr const char* kStrategy = R"(piper: 1
train:
  global_batch: 16
  optimizer: {adamw: {lr: 1e-2}}
  clip_norm: 1.0
directives:
  - split: {dim: batch, into: 2, as: mb}
)";

class CudaJob : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(at("strategy.yaml")) << kStrategy;
    write_samples(at("x.npy"), 16, 1);
    write_samples(at("y.npy"), 4, 2);
    const auto [code, output] = run_shell(fmt::format(
        "{0}/bin/piperc {1}/tests/data/mlp.onnx {2}/strategy.yaml --target cuda -o {2}/plans 2>&1",
        PIPER_BINARY_DIR, PIPER_SOURCE_DIR, folder_.path()));
    ASSERT_EQ(code, 0) << output;
  }
  // Puts plans for several ranks in the place of those for one. `more`: of the strategy, behind its
  // optimizer.
  void compile_ranks(const char* strategy, const std::string& more, const char* flags) {
    std::ofstream(at("ranks.yaml")) << fmt::format(
        "piper: 1\ninclude: {}/strategies/{}.yaml\ntrain:\n  global_batch: 24\n"
        "  optimizer: {{adamw: {{lr: 1e-2}}}}\n{}",
        PIPER_SOURCE_DIR, strategy, more);
    const auto [code, output] = run_shell(
        fmt::format("{0}/bin/piperc {1}/tests/data/mlp.onnx {2}/ranks.yaml {3} --target cuda -o "
                    "{2}/plans --force 2>&1",
                    PIPER_BINARY_DIR, PIPER_SOURCE_DIR, folder_.path(), flags));
    ASSERT_EQ(code, 0) << output;
  }
  std::string at(const char* name) const { return std::string(folder_.path()) + "/" + name; }
  // Its exit code and what it said on both outputs.
  std::pair<int, std::string> train(const std::string& variables, const std::string& flags,
                                    const char* save) {
    return run_shell(fmt::format(
        "env XDG_CACHE_HOME={0} {1} timeout 300 {2}/bin/piper-run {0}/plans --data x={0}/x.npy "
        "--data y={0}/y.npy --steps 6 --save {0}/{3} {4} 2>&1",
        folder_.path(), variables, PIPER_BINARY_DIR, save, flags));
  }
  std::string on_device(const std::string& more, const std::string& flags, const char* save) {
    const auto [code, output] =
        train(fmt::format("PIPER_CUDA_PATH={}/all {}", PIPER_FAKE_CUDA, more), flags, save);
    EXPECT_EQ(code, 0) << output;
    return output;
  }
  std::string bits(const char* name) const { return *read_text_file(at(name), 1 << 20); }
  std::map<std::string, std::vector<float>> values(const char* name) const {
    std::map<std::string, std::vector<float>> values;
    const auto tensors = read_safetensors(at(name));
    EXPECT_TRUE(tensors.ok());
    for (const NamedTensor& one : *tensors) {
      std::vector<float>& to = values[one.name];
      to.resize(one.data.size / sizeof(float));
      std::memcpy(to.data(), one.data.data, one.data.size);
    }
    return values;
  }

  Folder folder_;
};

TEST_F(CudaJob, TrainsWhatTheCpuTrains) {
  const auto [code, output] = train("", "--backend cpu", "cpu.safetensors");
  ASSERT_EQ(code, 0) << output;
  // Nobody says which: the plans are made for cuda, and there is a device.
  EXPECT_THAT(on_device("", "", "graphs.safetensors"), testing::HasSubstr("cuda on Fake H100"));
  const auto expected = values("cpu.safetensors"), made = values("graphs.safetensors");
  ASSERT_EQ(expected.size(), 6u);
  ASSERT_EQ(made.size(), 6u);
  for (const auto& [name, numbers] : expected) {
    const auto& others = made.at(name);
    ASSERT_EQ(others.size(), numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i)
      ASSERT_NEAR(others[i], numbers[i], 1e-5) << name << " " << i;
  }
  for (int seed = 1; seed <= 6; ++seed) {
    const bool graphs = seed % 2 == 0;
    on_device(fmt::format("FAKE_CUDA_SEED={} FAKE_CUDA_CHECK=1", seed),
              graphs ? "--graphs on" : "--graphs off", "again.safetensors");
    EXPECT_EQ(bits("again.safetensors"), bits("graphs.safetensors")) << "seed " << seed;
  }
}

// With graphs a step is one call, from the second on, for which it is called twice more.
TEST_F(CudaJob, GraphsSaveCalls) {
  const auto calls = [&](const char* graphs) {
    const std::string output =
        on_device("FAKE_CUDA_COUNT=cuLaunchKernel", graphs, "unused.safetensors");
    const size_t at = output.find("fake cuda: ");
    EXPECT_NE(at, std::string::npos) << output;
    return at == std::string::npos ? 0 : std::atoll(output.c_str() + at + 11);
  };
  EXPECT_LT(calls("--graphs on") * 4, calls("--graphs off") * 3);
}

// Each instruction's time on the device lies in the step, and none ends before it begins.
TEST_F(CudaJob, ATraceHasTheDevicesTimes) {
  on_device("", "--trace " + at("trace.json") + " --trace-steps 2", "unused.safetensors");
  const auto trace = nlohmann::json::parse(bits("trace.json"));
  std::set<std::string> names;
  for (const auto& event : trace.is_array() ? trace : trace.at("traceEvents")) {
    if (event.value("ph", "") != "X") continue;
    names.insert(event.at("name").get<std::string>());
    EXPECT_GT(event.at("dur").get<double>(), 0) << event;
  }
  EXPECT_GE(names.size(), 4u) << trace;
}

// Times are the device's, of each program once; the plan states what is taken of it.
TEST_F(CudaJob, AProfileHasTheDevicesTimes) {
  on_device("", "--profile " + at("p.json"), "unused.safetensors");
  const auto profile = nlohmann::json::parse(bits("p.json"));
  EXPECT_EQ(profile.at("clock"), "device");
  EXPECT_EQ(profile.at("target"), "cuda");
  EXPECT_EQ(profile.at("device").at("name"), "Fake H100");
  EXPECT_EQ(profile.at("first_step"), 4);
  std::set<std::string> programs;
  for (const auto& entry : profile.at("programs")) {
    EXPECT_TRUE(programs.insert(entry.at("program")).second) << entry;
    EXPECT_GT(entry.at("count"), 0) << entry;
    EXPECT_GT(entry.at("min_us"), 0) << entry;
  }
  EXPECT_GE(programs.size(), 3u);
  for (const auto& entry : profile.at("host").at("kinds")) EXPECT_GT(entry.at("min_us"), 0);
  constexpr int64_t kPage = int64_t{2} << 20;
  for (const auto& role : profile.at("roles")) {
    const int64_t stated = role.at("stated_bytes").at("device");
    EXPECT_EQ(role.at("taken_bytes").at("device"), (stated + kPage - 1) / kPage * kPage);
    EXPECT_EQ(role.at("taken_bytes").at("host"), role.at("stated_bytes").at("host"));
  }
}

// A tool is told of instructions while the host queues them, or makes a graph of them, and of all
// steps.
TEST_F(CudaJob, AToolIsToldOfEachStep) {
  const auto count = [&](const char* graphs) {
    on_device(fmt::format("NVTX_INJECTION64_PATH={} NVTX_TOOL_LOG={}", PIPER_NVTX_TOOL, at("log")),
              graphs, "unused.safetensors");
    std::map<std::string, int> lines;
    std::ifstream log(at("log"));
    for (std::string line; std::getline(log, line);) ++lines[line.substr(0, line.rfind('/'))];
    return lines;
  };
  const auto with = count("--graphs on"), without = count("--graphs off");
  EXPECT_EQ(with.at("begin 1 piper/step"), 6);
  EXPECT_EQ(without.at("begin 1 piper/step"), 6);
  const int computed = without.at("begin 1 piper/compute");
  EXPECT_EQ(computed % 6, 0);
  EXPECT_GT(computed, 0);
  EXPECT_LT(with.at("begin 1 piper/compute"), computed);
  EXPECT_GE(with.at("begin 1 piper/compute"), computed / 6 * 2);  // the first step, and a graph
}

// Ranks of one device copy from each other: the bits are those of the plan for one rank, in any
// legal order of all streams.
struct Parallel {
  const char* name;
  const char* strategy;
  const char* flags;
  const char* directives = "";
};
class CudaRanks : public CudaJob, public testing::WithParamInterface<Parallel> {};

TEST_P(CudaRanks, TrainWhatOneTrains) {
  const std::string more = std::string("  clip_norm: 1.0\n") + GetParam().directives;
  ASSERT_NO_FATAL_FAILURE(compile_ranks(GetParam().strategy, more, GetParam().flags));
  for (int seed = 1; seed <= 3; ++seed) {
    const std::string said =
        on_device(fmt::format("FAKE_CUDA_SEED={} FAKE_CUDA_CHECK={}", seed, seed == 1),
                  "--backend cuda --verify-against single", "ranks.safetensors");
    EXPECT_THAT(said, testing::HasSubstr("equal to the single-device plan bit for bit")) << seed;
    EXPECT_EQ(said.find("are formed in rank order: NCCL has no two ranks") != std::string::npos,
              *GetParam().directives != 0);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Strategies, CudaRanks,
    testing::Values(
        Parallel{
            "ddp", "ddp", "-D dp=2 -D microbatches=2",
            "directives:\n  - name: replicate\n    replicate: {over: dp, reduce: {sum: fast}}\n"},
        Parallel{"zero1", "zero1", "-D dp=3"},
        Parallel{"zero3", "zero3", "-D dp=2 -D microbatches=2"},
        Parallel{"stages", "1f1b", "-D stages=2 -D dp=2 -D microbatches=3"},
        Parallel{"halves_of_backward", "zb-h1", "-D stages=2 -D dp=1 -D microbatches=4"},
        Parallel{"both_ways", "dualpipev", "-D stages=2 -D dp=1 -D microbatches=6"},
        Parallel{"two_versions", "pipedream-2bw", "-D stages=2 -D dp=2 -D microbatches=4"}),
    [](const auto& info) { return info.param.name; });

// Ranks with a device each copy from each other's, whether the devices reach each other or not, and
// whether their memory is mapped or not.
TEST_F(CudaJob, RanksOnSeveralDevicesTrainWhatOneTrains) {
  ASSERT_NO_FATAL_FAILURE(
      compile_ranks("1f1b", "  clip_norm: 1.0\n", "-D stages=2 -D dp=2 -D microbatches=3"));
  for (const char* variables :
       {"FAKE_CUDA_PEERS=1", "FAKE_CUDA_PEERS=0", "FAKE_CUDA_PEERS=1 PIPER_CUDA_WITHOUT=vmm",
        "FAKE_CUDA_PEERS=0 PIPER_CUDA_WITHOUT=vmm"}) {
    const std::string said = on_device(
        fmt::format("FAKE_CUDA_DEVICES=4 FAKE_CUDA_COUNT=cuMemcpyPeerAsync {}", variables),
        "--backend cuda --verify-against single", "ranks.safetensors");
    EXPECT_THAT(said, testing::HasSubstr("equal to the single-device plan bit for bit"));
    EXPECT_THAT(said, testing::Not(testing::HasSubstr("fake cuda: 0 calls"))) << variables;
  }
}

// A device that takes longer than others is named, by the times of some steps, which train the same
// bits; and a step's MFU is of what NVIDIA publishes of the device.
TEST_F(CudaJob, SlowDevicesAreNamed) {
  ASSERT_NO_FATAL_FAILURE(compile_ranks("ddp", "", "-D dp=2 --no-oracles"));
  const auto run = [&](const char* slow, const std::string& flags) {
    const std::string metrics = at("metrics.jsonl");
    std::filesystem::remove(metrics);
    const auto [ended, said] = run_shell(fmt::format(
        "env XDG_CACHE_HOME={0} PIPER_CUDA_PATH={1}/all FAKE_CUDA_DEVICES=2 FAKE_CUDA_SLOW={2} "
        "timeout 300 {3}/bin/piper-run {0}/plans --data x={0}/x.npy --data y={0}/y.npy --metrics "
        "{4} {5} 2>&1",
        folder_.path(), PIPER_FAKE_CUDA, slow, PIPER_BINARY_DIR, metrics, flags));
    EXPECT_EQ(ended, 0) << said;
    return said + bits("metrics.jsonl");
  };
  const std::string named = run("1", "--steps 200 --save " + at("slow.safetensors"));
  EXPECT_THAT(named, testing::HasSubstr("rank 1 takes "));
  EXPECT_THAT(named, testing::ContainsRegex("\"spent_ms\":.\"F\":[0-9.]+,\"B\":[0-9.]+,\"U\":"));
  EXPECT_THAT(run("7", "--steps 200 --save " + at("equal.safetensors")),
              testing::Not(testing::HasSubstr(" takes ")));
  EXPECT_EQ(bits("slow.safetensors"), bits("equal.safetensors"));
  const auto mfu_times_ms = [&](const std::string& flags) {
    const std::string lines = run("7", "--steps 3 " + flags);
    const auto number = [&](const std::string& key) {
      const size_t found = lines.rfind("\"" + key + "\":");
      return found == lines.npos ? NAN : std::strtod(&lines[found + key.size() + 3], nullptr);
    };
    return number("mfu") * number("step_ms");
  };
  // 132 multiprocessors of capability 9.0 at 1.83 GHz, f32.
  EXPECT_NEAR(mfu_times_ms("") / mfu_times_ms("--peak 61.84e12"), 1, 1e-2);
}

// Averages of parameters are evaluated as on the CPU, and training is as without them.
TEST_F(CudaJob, AveragesAreEvaluated) {
  std::ofstream(at("ranks.yaml")) << fmt::format(
      "piper: 1\ninclude: {}/strategies/zero1.yaml\ntrain:\n  global_batch: 12\n"
      "  optimizer: {{adamw: {{lr: 1e-2}}}}\n  ema: {{decay: 0.5}}\n",
      PIPER_SOURCE_DIR);
  const auto [code, output] = run_shell(
      fmt::format("{0}/bin/piperc {1}/tests/data/mlp.onnx {2}/ranks.yaml -D dp=2 --target cuda "
                  "--eval -o {2}/plans --force --no-oracles 2>&1",
                  PIPER_BINARY_DIR, PIPER_SOURCE_DIR, folder_.path()));
  ASSERT_EQ(code, 0) << output;
  const auto loss = [](const std::string& said) {
    const std::string words = "after step 6: valid loss ";
    const size_t found = said.find(words);
    return found == said.npos ? NAN : std::strtod(&said[found + words.size()], nullptr);
  };
  const std::string flags =
      fmt::format("--eval-every 3 --eval-data x={0} --eval-data y={1} ", at("x.npy"), at("y.npy"));
  const auto [ended, said] = train("", flags + "--eval-ema --backend cpu", "cpu.safetensors");
  ASSERT_EQ(ended, 0) << said;
  const std::string devices = "FAKE_CUDA_DEVICES=2";
  const double ours = loss(on_device(devices, flags + "--eval-ema", "averaged.safetensors")),
               other = loss(on_device(devices, flags, "plain.safetensors"));
  EXPECT_NEAR(ours, loss(said), 1e-4);
  EXPECT_GT(std::abs(ours - other), 1e-3);
  EXPECT_EQ(bits("averaged.safetensors"), bits("plain.safetensors"));
}

// Also where there is no device: it does not run on the CPU as if nothing had been asked for.
// The step behind one that is not finite is queued before that is known: both end, and what is
// saved is what a job that skips the first one has after the second.
TEST_F(CudaJob, AStepThatIsNotFiniteLeavesWhatCanBeSaved) {
  std::fstream x(at("x.npy"), std::ios::binary | std::ios::in | std::ios::out);
  const float nan = NAN;
  x.seekp(-(64 - 40) * 16 * static_cast<std::streamoff>(sizeof nan),
          std::ios::end);  // row 40 of 64
  x.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  x.close();
  const auto run = [&](const std::string& flags, const char* save) {
    return run_shell(fmt::format(
        "env XDG_CACHE_HOME={0} PIPER_CUDA_PATH={1}/all timeout 300 {2}/bin/piper-run {0}/plans "
        "--data x={0}/x.npy --data y={0}/y.npy --no-shuffle --save {0}/{3} {4} 2>&1",
        folder_.path(), PIPER_FAKE_CUDA, PIPER_BINARY_DIR, save, flags));
  };
  const std::string kept = at("kept");
  const auto stopped = run("--steps 6 --on-nan stop --checkpoint " + kept, "stopped");
  EXPECT_EQ(stopped.first, static_cast<int>(ExitCode::kNumeric)) << stopped.second;
  EXPECT_NE(stopped.second.find("step 3: the "), std::string::npos) << stopped.second;
  EXPECT_NE(stopped.second.find("step 4 was queued before that was known"), std::string::npos)
      << stopped.second;
  for (const auto& [steps, save] :
       {std::pair(3, "three"), std::pair(4, "four"), std::pair(6, "six")})
    ASSERT_EQ(run(fmt::format("--steps {} --on-nan skip", steps), save).first, 0);
  EXPECT_EQ(bits("stopped"), bits("four"));
  EXPECT_NE(bits("stopped"), bits("three"));
  EXPECT_NE(bits("stopped"), bits("six"));
  const auto resumed = run("--steps 6 --on-nan skip --resume " + kept, "resumed");
  EXPECT_EQ(resumed.first, 0) << resumed.second;
  EXPECT_EQ(bits("resumed"), bits("six"));
}

TEST_F(CudaJob, AMisspeltSwitchIsAnError) {
  for (const char* folder : {PIPER_FAKE_CUDA "/all", "/nowhere"}) {
    const auto [code, output] =
        train(fmt::format("PIPER_CUDA_PATH={} PIPER_CUDA_WITHOUT=graph", folder), "",
              "unused.safetensors");
    EXPECT_EQ(code, static_cast<int>(ExitCode::kUsage)) << output;
    EXPECT_THAT(output, testing::HasSubstr("PIPER_CUDA_WITHOUT: 'graph' is no part that can be "
                                           "switched off (did you mean 'graphs'?)"));
  }
}

TEST_F(CudaJob, WithoutADeviceItSaysWhatItLookedFor) {
  const auto [code, output] =
      train("PIPER_CUDA_PATH=/nowhere FAKE_CUDA_DEVICES=0", "--backend cuda", "unused.safetensors");
  if (output.find("libcuda.so.1") == std::string::npos) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EQ(code, 1) << output;
  EXPECT_EQ(output.find("error: NVIDIA's driver is not here: "), 0u) << output;
  EXPECT_THAT(output, testing::HasSubstr("looked for libcuda.so.1 in "));
}

}  // namespace
}  // namespace piper
