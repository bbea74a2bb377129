// Compiles and runs a model under a strategy in this process, for tests that compare results.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>

#include "folder.h"
#include "piper/base/data.h"
#include "piper/planner/compile.h"
#include "piper/runtime/data.h"
#include "sanitizer.h"
#include "support/sim.h"

namespace piper::jobs {

std::string models_folder();
std::string model_path(const std::string& model, const std::string& file);

// A GPT of four layers with tied embeddings, for what does not depend on sizes: a sixtieth of the
// work of `gpt`.
inline constexpr const char* kSmallGpt = "gpt-unoptimized";

struct Shape2 {
  int64_t pp = 1, dp = 1, mb = 1;
  std::string order = "1f1b";  // a file of strategies/
};

inline const char* kSgd = "optimizer: {sgd: {lr: 0.02, momentum: 0.9}}";
inline const char* kAdamW =
    "optimizer: {adamw: {lr: 3e-3, betas: [0.9, 0.95], eps: 1e-6, weight_decay: 0.1}}, clip_norm: "
    "1.0";

// A file of the library, or of tests/data/schedules/ (schedules that are not in the library,
// written from formats/strategy.md alone), and those that it includes as one text.
std::string library_text(const std::string& file);
// The sizes as definitions of those params that the text has.
std::vector<Definition> definitions_of(const std::string& text, const Shape2& shape);
// The text of a strategy for one of the exported models: a file of the library, and what trains it.
std::string strategy_text(const std::string& model, const std::string& train);
Result<Compiled> compile_model(const std::string& model, std::string text, const Shape2& shape,
                               bool oracles = false, const std::vector<Definition>& more = {});

// ---- The library of strategies ------------------------------------------------------------------

// The names of all files of strategies/ or a folder in it, without their ending, sorted.
std::vector<std::string> library_files(const std::string& folder = "");
// A name of a file as a name of a test.
std::string identifier(std::string name);
// A strategy of the library, perhaps changed, with what trains it.
Result<Compiled> compile_text(const std::string& model, const std::string& text,
                              const std::string& train, CompileOptions options);

Result<std::unique_ptr<BatchSource>> open_file(const PlanSet& set, const std::string& path);
Result<std::unique_ptr<BatchSource>> open_batches(const PlanSet& set, const std::string& model);
// Writes batches as a file for open_file: values by name, the first dim the samples.
std::string write_batches(const Folder& folder, const nlohmann::json& batches, int64_t samples = 8);

// Skips the test where the folder of models does not have this one.
#define NEED_MODEL(name)                                                       \
  if (!std::filesystem::exists(::piper::jobs::model_path(name, "model.onnx"))) \
  GTEST_SKIP() << "no models in " << ::piper::jobs::models_folder()

// Cuts the layers of the GPTs among the models over the axis tp.
inline constexpr const char* kGptTensor = R"(  - shard: {match: "**/qkv/*", dim: 0, over: tp}
  - shard: {match: "**/proj/weight", dim: 1, over: tp}
  - shard: {match: "**/fc/*", dim: 0, over: tp}
  - shard: {match: "**/fc_out/weight", dim: 1, over: tp}
)";

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, NamedTensor> parameters;
};
inline Trained trained_by(JobResult job) {
  Trained trained;
  for (const StepMetrics& step : job.steps) {
    trained.losses.push_back(step.loss.value_or(NAN));
    trained.norms.push_back(step.grad_norm.value_or(NAN));
  }
  for (NamedTensor& tensor : job.parameters) trained.parameters[tensor.name] = std::move(tensor);
  return trained;
}
Result<Trained> train_on(const PlanSet& set, const std::string& path, int64_t steps,
                         int threads = 1, bool fuse = true);
Result<Trained> train(const PlanSet& set, const std::string& model, int64_t steps, int threads = 1,
                      bool fuse = true);

// On devices that only queue, see sim.h.
Result<Trained> train_simulated(const PlanSet& set, const std::string& model, SimWorld& world,
                                int64_t steps);

// A few steps of the plans on the CPU, with helpers beside its ranks' threads, and on devices that
// only queue: all end with the same bits. There in three orders, of which no two plans of a test
// have the same; plans of larger models in two; in 20 if PIPER_SEED says where to begin.
void expect_same_when_queued(const PlanSet& set, const BatchSource& data, const std::string& what);
void expect_same_when_queued(const PlanSet& set, const std::string& model, const std::string& what);

void expect_equal_bits(const Trained& a, const Trained& b, const std::string& what);
// The largest of any parameter: absolute difference ÷ max(largest absolute value in b, 0.05).
double largest_difference(const Trained& a, const Trained& b);
// The largest, from what a file of f64 has as PREFIXlosses and PREFIXafter/PARAMETER: absolute
// difference ÷ max(largest absolute value there, 0.05).
double difference_from(const Trained& trained, const std::string& path, const std::string& prefix);
// Largest absolute difference ÷ max(largest absolute reference, 0.05).
double tensor_error(const NamedTensor& got, const NamedTensor& want);

std::map<std::string, NamedTensor> reference_tensors(const std::string& model);
nlohmann::json reference_json(const std::string& model);

}  // namespace piper::jobs
