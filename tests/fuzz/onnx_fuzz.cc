// ONNX files, with references into external data: import, and what imports on through the compiler
// to verified plans.
#include <onnx/onnx_pb.h>
#include <unistd.h>

#include "piper/planner/compile.h"
#include "protobuf_change.h"
#include "targets.h"

namespace piper::fuzz {
namespace {

constexpr std::string_view kStrategies[] = {
    "piper: 1\n"
    "train: {global_batch: 8, optimizer: {sgd: {lr: 0.1}}}\n",

    "piper: 1\n"
    "mesh: {dp: 2}\n"
    "train: {global_batch: 8, optimizer: {adamw: {lr: 1e-3}}, clip_norm: 1.0}\n"
    "directives:\n"
    "  - split: {dim: batch, into: 2, as: mb}\n"
    "  - replicate: {over: dp, bucket: 1MiB}\n",

    "piper: 1\n"
    "mesh: {pp: 2}\n"
    "train: {global_batch: 8, optimizer: {sgd: {lr: 0.1, momentum: 0.9}}}\n"
    "annotate: [{balance: {tag: stage, into: 2}}]\n"
    "directives:\n"
    "  - split: {dim: batch, into: 4, as: mb}\n"
    "  - place: {where: {stage: s}, on: {pp: s}}\n",
};
constexpr off_t kDataBytes = 4 << 20;

// Strategies, and a data file of zeros that references can find.
class ModelFolder {
 public:
  ModelFolder() : folder_("onnx") {
    for (size_t i = 0; i < std::size(kStrategies); ++i)
      strategies_.push_back(folder_.write(fmt::format("{}.yaml", i), kStrategies[i]));
    const std::string data = folder_.write("model.onnx.data", "");
    PIPER_CHECK(truncate(data.c_str(), kDataBytes) == 0);
  }
  CompileOptions options(std::string_view model) const {
    CompileOptions options;
    options.model = folder_.write("model.onnx", model);
    options.strategy = strategies_[std::hash<std::string_view>()(model) % strategies_.size()];
    options.oracles = false;
    return options;
  }

 private:
  Folder folder_;
  std::vector<std::string> strategies_;
};

}  // namespace

void run_onnx(std::string_view model) {
  static const ModelFolder folder;
  const Result<Compiled> compiled = compile(folder.options(model));
  if (compiled) return;
  // A plan that the verifier refuses is the compiler's mistake, whatever the model.
  PIPER_CHECK(compiled.error().code != ExitCode::kRefused, "{}", print_error(compiled.error()));
  PIPER_CHECK(!compiled.error().message.empty());
}

std::string change_onnx(std::string_view model, std::mt19937& random) {
  onnx::ModelProto message;
  if (!message.ParseFromArray(model.data(), static_cast<int>(model.size())))
    return std::string(model);
  change_message(message, random);
  return message.SerializeAsString();
}

}  // namespace piper::fuzz
