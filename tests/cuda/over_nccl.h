// Ranks that communicate over NCCL, each as a process of its own would run it, and a small model
// for them.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "folder.h"
#include "piper/planner/compile.h"
#include "piper/runtime/job.h"

namespace piper {

// Numbers that follow from their places.
class Numbers final : public BatchSource {
 public:
  explicit Numbers(std::vector<InputNeed> needs) : needs_(std::move(needs)) {}
  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    const Shape& shape = needs_[static_cast<size_t>(input)].type.shape;
    const int64_t each = num_elements(shape) / shape[0];
    for (int64_t i = 0; i < count * each; ++i) {
      const auto place = static_cast<double>((first * each + i) * (input + 3) + step * 1009);
      const auto number = static_cast<float>(std::sin(place));
      std::memcpy(to + i * info(DType::kF32).bytes, &number, sizeof number);
    }
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }

 private:
  std::vector<InputNeed> needs_;
};

// A strategy of the library, and more of it, for the model of tests/data/mlp.onnx.
inline Result<Compiled> compile_mlp(const std::string& strategy,
                                    const std::vector<Definition>& definitions,
                                    const std::string& more) {
  const Folder folder;
  const std::string source = PIPER_SOURCE_DIR;
  const std::string text = fmt::format(
      "piper: 1\ninclude: {}/strategies/{}.yaml\ntrain:\n  global_batch: 24\n"
      "  optimizer: {{adamw: {{lr: 1e-2}}}}\n  clip_norm: 1.0\n{}",
      source, strategy, more);
  return compile({.model = source + "/tests/data/mlp.onnx",
                  .strategy = folder.write("strategy.yaml", text),
                  .defines = definitions,
                  .target = "cuda"});
}

// A case of a test: a strategy of the library for that model.
struct MlpJob {
  const char* name;
  const char* strategy;
  std::vector<Definition> definitions;
  const char* more = "";  // of the strategy
};
inline Result<Compiled> compile_mlp(const MlpJob& job) {
  return compile_mlp(job.strategy, job.definitions, job.more);
}

// By rank. Where one fails the others are told; they wait so many seconds for each other.
inline std::vector<Result<JobResult>> run_over_nccl(const PlanSet& set, const BatchSource& data,
                                                    const JobOptions& options, double timeout_s) {
  // A process of one rank sets this variable while no other thread reads any. Here ranks are
  // threads, one of which would set it while others read.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  const auto world = make_inproc_world(set.world(), TransportOptions{timeout_s});
  std::vector<Result<JobResult>> results(static_cast<size_t>(set.world()),
                                         Result<JobResult>(fail("it did not run")));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < set.world(); ++rank)
    threads.emplace_back([&, rank] {
      Transport& transport = world->rank(rank);
      Result<JobResult>& result = results[static_cast<size_t>(rank)];
      result = run_rank_here(set, &data, nullptr, nullptr, transport, options);
      if (!result) transport.control().abort(result.error());
    });
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace piper
