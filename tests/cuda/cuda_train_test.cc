// The sample GPT trains on the backend cuda, whose libraries are faked (fake_cuda/fake.h), as it
// does on the CPU: in whatever order what is queued runs, and with whole steps as graphs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "folder.h"
#include "shell.h"

namespace piper {
namespace {

using Numbers = std::vector<double>;  // the losses of the steps, then the norms of their gradients

class CudaTrain : public ::testing::Test {
 protected:
  void compile(const std::string& directives) {
    const std::string text =
        "piper: 1\ntrain:\n  global_batch: 1\n  clip_norm: 1\n"
        "  optimizer: {adamw: {lr: 2e-3, weight_decay: 0.1}}\n";
    folder_.write("strategy.yaml", text + directives);
    std::string tokens;
    for (int i = 0; i < 4096; ++i) tokens += static_cast<char>('a' + i * i % 23);
    folder_.write("text.bin", tokens);
    const auto [code, output] = run_shell(
        fmt::format("{}/piperc {}/samples/gpt/model.onnx {}/strategy.yaml -o {}/plans --target "
                    "cuda 2>&1",
                    kPrograms, PIPER_SOURCE_DIR, folder_.path(), folder_.path()));
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

  static constexpr const char* kPrograms = PIPER_BINARY_DIR "/bin";
  Folder folder_;
};

TEST_F(CudaTrain, AsOnTheCpuInAnyOrder) {
  compile("");
  const Numbers wanted = train("cpu"), made = train("cuda");
  expect_near(made, wanted, 1e-4);
  EXPECT_EQ(train("cuda", "FAKE_CUDA_SEED=2"), made);
}

TEST_F(CudaTrain, In16BitsAsOnTheCpu) {
  compile("directives:\n  - precision: {compute: bf16}\n");
  expect_near(train("cuda"), train("cpu"), 5e-3);
}

}  // namespace
}  // namespace piper
