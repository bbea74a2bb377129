// Plans of a batch that grows: what they know of the steps before theirs.
#include "rampup.h"

#include "piper/frontend/autodiff.h"

namespace piper {

namespace {

// Has the formulas of rates count tokens so.
void replace_tokens(Strategy& strategy, const std::string& counted) {
  for (ParamGroup& group : strategy.train.groups) {
    std::vector<std::string> words = split_text(group.rate, ' ');
    for (std::string& word : words)
      if (word == "tokens") word = counted;
    group.rate = join(words, " ");
  }
}

}  // namespace

Status count_tokens(const Graph& graph, const CompileOptions& options, Strategy& strategy) {
  const size_t stage = options.stage.value_or(strategy.rampup.size());
  if (stage == 0) return ok_status();
  if (graph.batch <= 0)
    return fail(strategy.rampup_at, "'rampup' needs a model with a batch of samples");
  // A step that is skipped does not count, so the first updates of a stage may be of numbers that
  // belong to the stages before. Their tokens are those of such a number, in whichever stage it is.
  const int64_t of_sample = tokens_of_step(graph) / graph.batch,
                tokens = tokens_of_step(graph) * strategy.train.sites;
  int64_t first = 0, of_step = strategy.rampup[0].global_batch * of_sample;
  std::string counted = fmt::format("step {} *", of_step);
  for (size_t k = 1; k <= stage; ++k) {
    first += strategy.rampup[k - 1].steps;
    const int64_t next = k < stage ? strategy.rampup[k].global_batch * of_sample : tokens;
    counted += fmt::format(" step {} - 0 max {} * {}", first, std::abs(next - of_step),
                           next < of_step ? "-" : "+");
    of_step = next;
  }
  replace_tokens(strategy, counted);
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
