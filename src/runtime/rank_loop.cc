#include "rank_loop.h"

#include <chrono>

namespace piper {
namespace {

constexpr size_t kTargetWindow = 20;

// Whether the mean loss of the last steps has come down to the target.
bool target_reached(const JobOptions& options, std::span<const StepMetrics> steps) {
  if (!options.target_loss || steps.size() < kTargetWindow) return false;
  double sum = 0;
  for (const StepMetrics& one : steps.last(kTargetWindow)) {
    if (!one.loss) return false;
    sum += *one.loss;
  }
  return sum / kTargetWindow <= *options.target_loss;
}

// Rank 0's part between two steps: results, the caller's callback, whether to stop.
Status finish_step(RankRun& run, const StepMetrics& metrics, bool& stop) {
  run.result.steps.push_back(metrics);
  if (run.options.on_step) PIPER_TRY(run.options.on_step(metrics));
  if (run.options.stop != nullptr && run.options.stop->load()) {
    run.result.interrupted = true;
    stop = true;
  }
  if (target_reached(run.options, run.result.steps)) {
    run.result.reached_target = true;
    stop = true;
  }
  return ok_status();
}

// Each process has compared its own parameters with the oracle; what several hold must be the same
// bit for bit.
Status compare_processes(RankRun& run, int64_t step) {
  std::vector<uint64_t> own = run.comparison->digests();
  std::vector<std::vector<uint64_t>> by_rank;
  PIPER_TRY(run.between.gather(own, by_rank));
  return by_rank.empty() ? ok_status() : run.comparison->check_digests(step, by_rank);
}

Status meet_between_steps(RankRun& run, StepMetrics& metrics, bool& stop, bool last) {
  PIPER_TRY(run.between.collect(run.executor, metrics));
  if (run.options.verify.against != VerifyAgainst::kNone) {
    PIPER_TRY(run.transport.control().barrier());  // nobody writes while somebody compares
    if (run.comparison != nullptr) PIPER_TRY(run.comparison->check(metrics.step, metrics.loss));
    if (run.apart) PIPER_TRY(compare_processes(run, metrics.step));
  }
  const int64_t done = metrics.step + 1;
  if (run.replicas != nullptr &&
      (done % run.options.check_replicas == 0 || done == run.options.steps))
    PIPER_TRY(run.replicas->check(metrics.step));
  if (run.transport.rank() == 0) PIPER_TRY(finish_step(run, metrics, stop));
  const bool compares =
      run.options.verify.against != VerifyAgainst::kNone || run.replicas != nullptr;
  if (run.executor.role().steps_ahead > 0 && !compares)
    return run.between.spread_late(stop, metrics.step, last);
  return run.between.spread(stop);
}

Status between_steps(RankRun& run, StepMetrics& metrics, bool& stop, bool last) {
  run.transport.activity().store("the end of its step", std::memory_order_release);
  Status status = meet_between_steps(run, metrics, stop, last);
  if (!status && status.error().code == ExitCode::kPeer) {
    Error error = std::move(status).error();
    error.message = fmt::format("after step {}: {}", metrics.step + 1, error.message);
    return error;
  }
  return status;
}

constexpr double kTimeout = 10;        // seconds
constexpr double kTimeoutInSteps = 5;  // of the longest so far

// How long a rank waits for another. Nobody knows how long a step takes before one is done.
double wait_limit(const JobOptions& options, double longest_s) {
  const double least = longest_s > 0 ? kTimeout : options.start_timeout_s;
  return std::max(options.timeout_s.value_or(least), kTimeoutInSteps * longest_s);
}

}  // namespace

Status run_rank(RankRun& run) {
  using Clock = std::chrono::steady_clock;
  bool stop = false, last = false;
  const bool overlap = run.executor.role().steps_ahead > 0;
  if (overlap && run.options.steps == 0) return ok_status();
  const bool verifies = run.options.verify.against != VerifyAgainst::kNone;
  double longest_s = 0;  // of the steps so far, with what is done between them
  run.transport.set_timeout(wait_limit(run.options, 0));
  PIPER_TRY(run.executor.run_prologue(0));
  for (int64_t step = 0; step < run.options.steps && !last; ++step) {
    // A step that has begun is finished.
    last = step + 1 == run.options.steps || (stop && overlap);
    if (run.options.before_step)
      PIPER_TRY(run.options.before_step(run.transport.rank(), step, run.executor));
    auto start = Clock::now();
    PIPER_TRY(run.executor.run_step(step, last));
    std::chrono::duration<double> took = Clock::now() - start;
    StepMetrics metrics;
    metrics.step = step;
    metrics.step_ms = took.count() * 1e3;
    metrics.tokens_per_s = static_cast<double>(run.tokens_per_step) / took.count();
    metrics.peak_bytes = run.between.peak_bytes();
    // The oracle's first step takes as long as it takes.
    if (verifies && step == 0)
      run.transport.set_timeout(
          std::max(run.options.start_timeout_s, wait_limit(run.options, took.count())));
    PIPER_TRY(between_steps(run, metrics, stop, last));
    const std::chrono::duration<double> whole = Clock::now() - start;
    longest_s = std::max(longest_s, whole.count());
    run.transport.set_timeout(wait_limit(run.options, longest_s));
    last = last || (stop && !overlap);
  }
  return overlap ? ok_status() : run.executor.run_epilogue(run.options.steps);
}

}  // namespace piper
