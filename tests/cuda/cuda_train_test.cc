// The sample GPT trains on the backend cuda, whose libraries are faked (fake_cuda/fake.h), as it
// does on the CPU: in whatever order what is queued runs, and with whole steps as graphs.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "folder.h"
#include "shell.h"

namespace piper {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

using Numbers = std::vector<double>;  // the losses of the steps, then the norms of their gradients

class CudaTrain : public ::testing::Test {
 protected:
  void compile(const std::string& directives, const std::string& target = "cuda") {
    compile_model(PIPER_SOURCE_DIR "/samples/gpt/model.onnx", directives, target);
  }
  void compile_model(const std::string& model, const std::string& directives,
                     const std::string& target = "cuda") {
    const std::string text =
        "piper: 1\ntrain:\n  global_batch: 1\n  clip_norm: 1\n"
        "  optimizer: {adamw: {lr: 2e-3, weight_decay: 0.1}}\n";
    folder_.write("strategy.yaml", text + directives);
    std::string tokens;
    for (int i = 0; i < 4096; ++i) tokens += static_cast<char>('a' + i * i % 23);
    folder_.write("text.bin", tokens);
    const auto [code, output] =
        run_shell(fmt::format("{}/piperc {} {}/strategy.yaml -o {}/plans --force --target {} 2>&1",
                              kPrograms, model, folder_.path(), folder_.path(), target));
    ASSERT_EQ(code, 0) << output;
  }
  // Of four steps: the first two are queued one by one.
  Numbers train(const std::string& backend, const std::string& variables = "") {
    const std::string metrics = folder_.path() + "/metrics.jsonl";
    std::filesystem::remove(metrics);
    const auto [code, output] =
        run_shell(fmt::format("env PIPER_CUDA_PATH={}/all XDG_CACHE_HOME={}/cache {} timeout 500 "
                              "{}/piper-run {}/plans --backend {} --data {}/text.bin:u8 --steps 4 "
                              "--metrics {} --threads 1 2>&1",
                              PIPER_FAKE_CUDA, folder_.path(), variables, kPrograms, folder_.path(),
                              backend, folder_.path(), metrics));
    EXPECT_EQ(code, 0) << variables << ": " << output;
    said_ = output;
    Numbers losses, norms;
    std::ifstream lines(metrics);
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      if (!json.contains("loss")) continue;
      losses.push_back(json["loss"]);
      norms.push_back(json["grad_norm"]);
    }
    EXPECT_EQ(losses.size(), 4u) << output;
    losses.insert(losses.end(), norms.begin(), norms.end());
    return losses;
  }
  static void expect_near(const Numbers& made, const Numbers& wanted, double bound) {
    ASSERT_EQ(made.size(), wanted.size());
    for (size_t i = 0; i < made.size(); ++i)
      EXPECT_NEAR(made[i], wanted[i], bound * std::abs(wanted[i])) << "number " << i;
  }

  // With an NVRTC, and no driver, where somebody looks for them.
  std::pair<int, std::string> compile_only(const std::string& architectures,
                                           const std::string& variables = "") {
    const std::string nvrtc = folder_.path() + "/nvrtc";
    std::filesystem::create_directories(nvrtc);
    for (const char* const file : {"/libnvrtc.so.13", "/libnvrtc-builtins.so.13.5"})
      if (!std::filesystem::exists(nvrtc + file))
        std::filesystem::create_symlink(std::string(PIPER_FAKE_CUDA "/all") + file, nvrtc + file);
    auto [code, output] = run_shell(
        fmt::format("env PIPER_CUDA_PATH={} XDG_CACHE_HOME={}/cache {} {}/piper-run {}/plans "
                    "--compile-only {} 2>&1",
                    nvrtc, folder_.path(), variables, kPrograms, folder_.path(), architectures));
    for (size_t at = 0; (at = output.find(folder_.path())) != std::string::npos;)
      output.replace(at, folder_.path().size(), "HERE");
    return {code, output};
  }

  static constexpr const char* kPrograms = PIPER_BINARY_DIR "/bin";
  Folder folder_;
  std::string said_;  // by the last run
};

TEST_F(CudaTrain, AsOnTheCpuInAnyOrder) {
  compile("");
  const Numbers wanted = train("cpu"), made = train("cuda");
  expect_near(made, wanted, 1e-4);
  EXPECT_EQ(train("cuda", "FAKE_CUDA_SEED=2"), made);
}

// Of a GPT-2 with 259 classes, whose logits have gaps between their rows on a device.
TEST_F(CudaTrain, RowsWithGapsAsOnTheCpu) {
  const auto [code, output] =
      run_shell(fmt::format("{}/tests/make_models gpt2 1 {} layers=1 width=16 heads=2 kv_heads=2 "
                            "hidden=64 context=8 vocabulary=259 random=1 2>&1",
                            PIPER_BINARY_DIR, folder_.path()));
  ASSERT_EQ(code, 0) << output;
  compile_model(folder_.path() + "/model.onnx",
                "loss: {cross_entropy: {logits: logits, labels: labels, ignore_index: -100}}\n"
                "directives:\n  - precision: {compute: bf16}\n");
  expect_near(train("cuda"), train("cpu"), 5e-3);
}

TEST_F(CudaTrain, In16BitsAsOnTheCpu) {
  compile("directives:\n  - precision: {compute: bf16}\n");
  expect_near(train("cuda"), train("cpu"), 5e-3);
}

TEST_F(CudaTrain, SaysWhatMemoryTheDeviceHasFree) {
  compile("");
  const auto memory = [&](const std::string& backend, const std::string& variables) {
    train(backend, variables);
    std::vector<std::pair<std::string, nlohmann::json>> found;  // and the line before
    std::ifstream lines(folder_.path() + "/metrics.jsonl");
    std::string before;
    for (std::string line; std::getline(lines, line); before = line)
      if (const auto json = nlohmann::json::parse(line); json.contains("memory"))
        found.emplace_back(before.substr(0, before.find(',')), json["memory"]);
    return found;
  };
  EXPECT_TRUE(memory("cpu", "").empty());
  // A library takes 4 MiB for itself in the first step.
  const auto found = memory("cuda", "FAKE_CUDA_LIBRARIES_TAKE=4194304");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].first, "{\"run\":1");
  EXPECT_EQ(found[1].first, "{\"step\":2");
  const auto number = [&](size_t line, const char* name) {
    return found[line].second.value(name, int64_t{-1});
  };
  constexpr int64_t kDevice = int64_t{80} << 30, kPage = int64_t{2} << 20;
  const int64_t taken = number(0, "taken_bytes");
  EXPECT_GE(taken, number(0, "stated_bytes"));
  EXPECT_LT(taken, number(0, "stated_bytes") + kPage);
  EXPECT_EQ(number(0, "device_free_bytes_after_load"), kDevice - taken);
  EXPECT_EQ(number(0, "device_free_bytes_after_step_2"), -1);
  EXPECT_EQ(number(1, "taken_bytes"), taken);
  EXPECT_EQ(number(1, "device_free_bytes_after_load"), kDevice - taken);
  EXPECT_EQ(number(1, "device_free_bytes_after_step_2"), kDevice - taken - 4194304);
}

TEST_F(CudaTrain, CompilesNothingWhereAllWasCompiledAhead) {
  compile("");
  const std::string counted = "FAKE_CUDA_COUNT=nvrtcCompileProgram";
  const auto [code, output] = compile_only("sm_90,80", counted);
  EXPECT_EQ(code, 0) << output;
  EXPECT_THAT(
      output,
      ContainsRegex("sm_90 by NVRTC 13.5: kernels of [0-9]+ programs, 0 of them found there, "
                    "[0-9.]+ [KM]iB in HERE/cache/piper\n"
                    "sm_80 by NVRTC 13.5: kernels of [0-9]+ programs, 0 of them found there"));
  EXPECT_THAT(output, Not(HasSubstr("fake cuda: 0 calls")));
  train("cuda", counted);
  EXPECT_THAT(said_, HasSubstr("fake cuda: 0 calls"));
  // What a device of 9.0 asks for has this name, too.
  const auto [again, more] = compile_only("sm_90a", counted);
  EXPECT_EQ(again, 0) << more;
  EXPECT_THAT(
      more, ContainsRegex("sm_90 by NVRTC 13.5: kernels of [0-9]+ programs, [1-9][0-9]* of them"));
  EXPECT_THAT(more, HasSubstr("fake cuda: 0 calls"));
}

TEST_F(CudaTrain, SaysWhyNothingIsCompiledAhead) {
  compile("");
  for (const char* const unknown : {"sm_91", "sm_75", "hopper", "sm_", "sm_90x"}) {
    const auto [code, output] = compile_only(unknown);
    EXPECT_EQ(code, 2) << output;
    EXPECT_THAT(output, HasSubstr(fmt::format("no kernels for the architecture '{}'", unknown)));
    EXPECT_THAT(output, HasSubstr("know sm_80, sm_90, sm_100, sm_120"));
  }
  const auto [nowhere, where] = compile_only("sm_90", "XDG_CACHE_HOME=cache HOME=");
  EXPECT_EQ(nowhere, 2) << where;
  EXPECT_THAT(where, HasSubstr("there is no folder to keep kernels in"));
  const auto [unwritten, what] = compile_only("sm_90", "XDG_CACHE_HOME=/proc");
  EXPECT_EQ(unwritten, 12) << what;
  EXPECT_THAT(what, ContainsRegex("the code of ([0-9]+) of [0-9]+ programs cannot be written to "
                                  "/proc/piper"));
  compile("", "cpu");
  const auto [other, target] = compile_only("sm_90");
  EXPECT_EQ(other, 1) << target;
  EXPECT_THAT(target, HasSubstr("HERE/plans is for cpu: no kernel of it is to be compiled"));
}

}  // namespace
}  // namespace piper
