// Plans of a batch that grows: what they know of the steps before theirs.
#include "rampup.h"

#include "piper/frontend/autodiff.h"

namespace piper {

Status count_tokens(const Graph& graph, const CompileOptions& options, Strategy& strategy) {
  const size_t stage = options.stage.value_or(strategy.rampup.size());
  if (stage == 0) return ok_status();
  if (graph.batch <= 0)
    return fail(strategy.rampup_at, "'rampup' needs a model with a batch of samples");
  int64_t first = 0, samples = 0;
  for (size_t k = 0; k < stage; ++k) {
    first += strategy.rampup[k].steps;
    samples += strategy.rampup[k].steps * strategy.rampup[k].global_batch;
  }
  const int64_t tokens = tokens_of_step(graph) * strategy.train.sites,
                before = samples * (tokens_of_step(graph) / graph.batch);
  for (ParamGroup& group : strategy.train.groups) {
    std::vector<std::string> words = split_text(group.rate, ' ');
    for (std::string& word : words)
      if (word == "tokens") word = fmt::format("step {} - 0 max {} * {} +", first, tokens, before);
    group.rate = join(words, " ");
  }
  return ok_status();
}

std::vector<std::string> rampup_lines(const Compiled& compiled) {
  std::vector<std::string> lines;
  int64_t first = 1, samples = 0;
  for (const RampStage& stage : compiled.rampup) {
    samples += stage.steps * stage.global_batch;
    lines.push_back(fmt::format("steps {} to {}: {} samples each, {} in all by then", first,
                                first + stage.steps - 1, stage.global_batch, samples));
    first += stage.steps;
  }
  if (!lines.empty())
    lines.push_back(fmt::format("from step {} on: {}", first, compiled.set.roles[0].batch));
  return lines;
}

}  // namespace piper
