// Compiles a strategy for each stage of its 'rampup'. Called by piperc and piper-diff.
#include "rampup.h"

namespace piper {

Result<std::vector<Compiled>> compile_stages(const CompileOptions& options, const Compiled& last) {
  std::vector<Compiled> stages;
  for (size_t k = 0; k < last.rampup.size(); ++k) {
    CompileOptions one = options;
    one.dump = nullptr;
    one.order = false;
    one.stage = k;
    Result<Compiled> made = compile(one);
    if (!made) {
      const RampStage& stage = last.rampup[k];
      Error error = std::move(made).error();
      error.notes.push_back(fmt::format("this is the stage of 'rampup' in line {}, with {} samples",
                                        stage.at.line, stage.global_batch));
      return error;
    }
    stages.push_back(*std::move(made));
  }
  return stages;
}

std::vector<int64_t> first_steps_of(const Compiled& last) {
  std::vector<int64_t> first{0};
  for (const RampStage& stage : last.rampup) first.push_back(first.back() + stage.steps);
  return first;
}

}  // namespace piper
