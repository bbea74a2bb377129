// Reports a run step by step: the line of progress, metrics, the run's folder. Made by run_plans.
#include "watch.h"

#include <algorithm>

#include "job_log.h"

namespace piper {
namespace {

void print_line(const std::string& line) { say(quote_control(line) + "\n"); }

void watch_checkpoints(CheckpointOptions& options, Voice& voice) {
  options.note = print_line;
  options.on_loss = [&voice](const Error& error) { voice.note(error); };
}

}  // namespace

Watch::Watch(RunOptions& options, const PlanSet& set, Voice& voice, bool speaks) : voice_(voice) {
  if (!speaks) return;
  if (options.job.checkpoint) watch_checkpoints(*options.job.checkpoint, voice);
  progress_.emplace(options.job.steps, options.log_every);
  voice_.note(folder_.open(options, set));
  if (!options.metrics.empty()) voice_.note(metrics_.open(options.metrics, options, set));
  options.job.on_step = [this](const StepMetrics& one) { return see(one); };
  options.job.on_evaluation = [this](const EvaluationMetrics& one) {
    print_line(print_evaluation(one));
    voice_.note(metrics_.write(print_metrics(one)));
    voice_.note(folder_.add(one));
  };
  options.job.on_rollback = [this](int64_t step, int64_t done) { return go_back(step, done); };
  options.job.on_memory = [this](const MemoryMetrics& memory) {
    voice_.note(metrics_.write(print_metrics(memory)));
    return ok_status();
  };
}

Status Watch::go_back(int64_t step, int64_t done) {
  const std::string where =
      done > 0 ? fmt::format("the checkpoint after step {}", done) : "where it began";
  print_line(
      fmt::format("step {} is not finite: the job goes on from {}, without the data in between",
                  step + 1, where));
  voice_.note(metrics_.go_back(done));
  voice_.note(folder_.go_back(done));
  return ok_status();
}

// Says it once, as long as the same ranks are slow in the same.
void Watch::name_slow(const std::vector<SlowRank>& slow) {
  const auto is_same = [](const SlowRank& a, const SlowRank& b) {
    return a.rank == b.rank && std::string_view(a.in) == b.in;
  };
  for (const SlowRank& one : slow)
    if (std::ranges::none_of(slow_, [&](const SlowRank& known) { return is_same(one, known); }))
      print_line(print_slow(one));
  slow_ = slow;
}

Status Watch::see(const StepMetrics& one) {
  progress_->show(one);
  if (!one.spent_ms.empty()) name_slow(one.slow);
  voice_.note(metrics_.write(print_metrics(one)));
  voice_.note(folder_.add(one));
  return ok_status();
}

}  // namespace piper
