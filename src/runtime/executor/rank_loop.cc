// The loop over steps of one rank.
#include "rank_loop.h"

#include <chrono>

#include "evaluation.h"
#include "faults.h"

namespace piper {
namespace {

constexpr size_t kTargetWindow = 20;

// Returns whether the mean loss of the last steps has come down to the target.
bool target_reached(const JobOptions& options, std::span<const StepMetrics> steps) {
  if (!options.target_loss || steps.size() < kTargetWindow) return false;
  double sum = 0;
  for (const StepMetrics& one : steps.last(kTargetWindow)) {
    if (!one.loss) return false;
    sum += *one.loss;
  }
  return sum / kTargetWindow <= *options.target_loss;
}

bool is_told_to_stop(const JobOptions& options) {
  return options.stop != nullptr && options.stop->load();
}

// Does rank 0's part between two steps: results, the caller's callback, whether to stop.
Status finish_step(RankRun& run, const StepMetrics& metrics, bool& stop) {
  run.result.steps.push_back(metrics);
  if (run.options.on_step) PIPER_TRY(run.options.on_step(metrics));
  if (is_told_to_stop(run.options)) {
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
  HoldersOf all = run.comparison->holders();
  PIPER_TRY(gather_holders(run.control, all, "exchange after the step"));
  return run.control.rank() == 0 ? run.comparison->check_holders(step, all) : ok_status();
}

// What is compared between steps stands still meanwhile.
bool compares(const RankRun& run) {
  return run.options.verify.against != VerifyAgainst::kNone || run.replicas != nullptr;
}

// Returns whether all ranks are between the same two steps at some time.
bool meets(const RankRun& run) { return run.executor.role().steps_ahead == 0 || compares(run); }

// Returns what the rank has to say, with what the checkpoint under way says.
uint8_t word_of(RankRun& run, bool stop) {
  const JobOptions& options = run.options;
  uint8_t word = stop ? kStop : 0;
  if (is_told_to_stop(options)) word |= kStop | kInterrupted;
  if (run.result.interrupted) word |= kInterrupted;
  if (run.checkpoints == nullptr) return word;
  if (run.checkpoints->has_failed()) word |= kStop | kInterrupted;
  if (options.save != nullptr && options.save->exchange(false)) word |= kSave;
  if (run.control.rank() == 0 && run.checkpoints->asks()) word |= kSave;
  return word | run.checkpoints->word();
}

// Lets all ranks know what any of them says, and goes on with the checkpoint under way.
Status agree(RankRun& run, bool& stop, bool& save) {
  uint8_t words = word_of(run, stop);
  PIPER_TRY(run.between.agree(words));
  run.result.interrupted = (words & kInterrupted) != 0;
  stop = (words & kStop) != 0;
  save = (words & kSave) != 0;
  return run.checkpoints != nullptr ? run.checkpoints->advance(words) : ok_status();
}

// The same where steps overlap: only rank 0 is heard, and some steps later. After a step that no
// other overlaps with (`last`), all meet.
Status agree_late(RankRun& run, bool& stop, bool& save, bool last) {
  uint8_t words = run.control.rank() == 0 ? word_of(run, stop) : 0;
  const bool own = stop;
  PIPER_TRY(run.between.spread_late(words, last));
  stop = (words & kStop) != 0 || (last && own);
  save = (words & kSave) != 0;
  return last && run.checkpoints != nullptr ? agree(run, stop, save) : ok_status();
}

Status meet_between_steps(RankRun& run, StepMetrics& metrics, bool& stop, bool& save, bool last) {
  PIPER_TRY(run.between.collect(run.executor, metrics));
  if (run.options.verify.against != VerifyAgainst::kNone) {
    PIPER_TRY(run.control.barrier());  // nobody writes while somebody compares
    if (run.comparison != nullptr) PIPER_TRY(run.comparison->check(metrics.step, metrics.loss));
    if (run.apart) PIPER_TRY(compare_processes(run, metrics.step));
  }
  const int64_t done = metrics.step + 1;
  if (run.replicas != nullptr &&
      (done % run.options.check_replicas == 0 || done == run.options.steps))
    PIPER_TRY(run.replicas->check(metrics.step));
  if (run.control.rank() == 0) PIPER_TRY(finish_step(run, metrics, stop));
  return meets(run) ? agree(run, stop, save) : agree_late(run, stop, save, last);
}

Status between_steps(RankRun& run, StepMetrics& metrics, bool& stop, bool& save, bool last) {
  run.control.activity().store("the end of its step", std::memory_order_release);
  Status status = meet_between_steps(run, metrics, stop, save, last);
  if (!status && status.error().code == ExitCode::kPeer) {
    Error error = std::move(status).error();
    error.message = fmt::format("after step {}: {}", metrics.step + 1, error.message);
    return error;
  }
  return status;
}

constexpr double kTimeout = 10;        // seconds
constexpr double kTimeoutInSteps = 5;  // of the longest so far

// Returns how long a rank waits for another. Nobody knows how long a step takes before one is done.
double wait_limit(const JobOptions& options, double longest_s) {
  const double least = longest_s > 0 ? kTimeout : options.start_timeout_s;
  return std::max(options.timeout_s.value_or(least), kTimeoutInSteps * longest_s);
}

// Runs a rank's steps, one after the other.
class Steps {
 public:
  explicit Steps(RankRun& run)
      : run_(run),
        overlap_(run.executor.role().steps_ahead > 0),
        late_(run.executor.is_asynchronous() && !compares(run)),
        begun_(run.options.first_step),
        ended_(begun_) {}

  Status run();

 private:
  using Clock = std::chrono::steady_clock;
  Status begin(int64_t step);
  Status end(int64_t step, bool last);
  Status end_until(int64_t step, bool last);
  bool is_save_due(int64_t done) const {
    return run_.checkpoints != nullptr && run_.checkpoints->is_due(done, save_ ? kSave : 0);
  }
  bool is_evaluation_due(int64_t done) const {
    const int64_t every = run_.options.evaluate_every;
    return !run_.options.evaluation.empty() && every > 0 && done % every == 0;
  }
  Status rest_if_due(bool last);
  Status evaluate(bool last);
  bool lacks_data(int64_t step);
  bool is_out_of_time() const;
  Status tell_memory(bool is_loaded);
  double seconds() const { return std::chrono::duration<double>(Clock::now() - since_).count(); }

  RankRun& run_;
  const bool overlap_;
  const bool late_;  // a step is queued before the one that runs is asked for its results
  bool stop_ = false, last_ = false;
  bool drains_ = false;  // the step ends before the next one begins: something is due between them
  bool save_ = false;    // some rank was told to write a checkpoint
  int64_t begun_, ended_;                  // so many steps
  std::optional<double> loss_;             // rank 0's: of the last step that ended
  int64_t evaluated_ = -1;                 // after so many steps the last time
  std::optional<double> evaluation_loss_;  // rank 0's: of the first set, then
  Clock::time_point since_;  // when the step began, or where they are late, the one before ended
  double longest_s_ = 0;     // of the steps so far, with what is done between them
  MemoryMetrics memory_;
};

// Tells what is free after load or, where that is done, after step 2, by when libraries have taken
// what they need for a step and for its graph.
Status Steps::tell_memory(bool is_loaded) {
  if (run_.control.rank() != 0 || !run_.options.on_memory) return ok_status();
  const Backend& backend = run_.executor.backend();
  const std::optional<int64_t> free = backend.free_bytes();
  if (!free) return ok_status();
  memory_.stated_bytes = run_.executor.role().peak_bytes();
  memory_.taken_bytes = backend.taken().device;
  if (is_loaded)
    memory_.free_after_load = *free;
  else
    memory_.free_after_step_2 = free;
  return run_.options.on_memory(memory_);
}

Status Steps::begin(int64_t step) {
  // A step that has begun is finished.
  last_ = step + 1 == run_.options.steps || (stop_ && overlap_);
  drains_ = overlap_ && !last_ && (is_save_due(step + 1) || is_evaluation_due(step + 1));
  PIPER_TRY(inject_fault("step", run_.control.rank(), step + 1));
  if (run_.options.before_step)
    PIPER_TRY(run_.options.before_step(run_.control.rank(), step, run_.executor));
  if (!late_ || step == run_.options.first_step) since_ = Clock::now();
  return run_.executor.start_step(step, last_ || drains_);
}

// Returns whether what the step would read is lost: then it does not begin, on any rank.
bool Steps::lacks_data(int64_t step) {
  const bool is_body = step < run_.options.steps - (overlap_ ? 1 : 0);
  if (!is_body || !(meets(run_) || run_.control.world() == 1)) return false;
  const Status read = run_.executor.read_inputs(step);
  if (read || read.error().code != ExitCode::kStorage) return false;  // the step itself says it
  if (run_.options.on_loss) run_.options.on_loss(read.error());
  return run_.result.interrupted = true;
}

Status Steps::end(int64_t step, bool last) {
  PIPER_TRY(run_.executor.finish_step(step));
  if (compares(run_)) PIPER_TRY(run_.executor.settle());
  const double took = seconds();
  StepMetrics metrics;
  metrics.step = step;
  metrics.step_ms = took * 1e3;
  metrics.tokens_per_s = static_cast<double>(run_.tokens_per_step) / took;
  metrics.peak_bytes = run_.between.peak_bytes();
  // The oracle's first step takes as long as it takes.
  if (run_.options.verify.against != VerifyAgainst::kNone && step == run_.options.first_step)
    run_.control.set_timeout(
        std::max(run_.options.start_timeout_s, wait_limit(run_.options, took)));
  PIPER_TRY(inject_fault("after", run_.control.rank(), step + 1));
  const Clock::time_point ended = Clock::now();
  if (!last) stop_ = lacks_data(begun_) || is_out_of_time() || stop_;
  bool save = false;
  PIPER_TRY(between_steps(run_, metrics, stop_, save, last));
  save_ |= save;
  loss_ = metrics.loss;
  if (step == run_.options.first_step + 1) PIPER_TRY(tell_memory(/*is_loaded=*/false));
  longest_s_ = std::max(longest_s_, seconds());
  if (late_) since_ = ended;
  run_.control.set_timeout(wait_limit(run_.options, longest_s_));
  return ok_status();
}

// Asks for the results of all steps before this one.
Status Steps::end_until(int64_t step, bool last) {
  for (; ended_ < step; ++ended_) PIPER_TRY(end(ended_, last && ended_ + 1 == step));
  return ok_status();
}

// Rank 0's clock counts: whether another step and a checkpoint would end after the limit.
bool Steps::is_out_of_time() const {
  if (run_.options.time_limit_s <= 0 || run_.control.rank() != 0) return false;
  const double written = run_.checkpoints != nullptr ? run_.checkpoints->likely_s() : 0;
  const double passed = std::chrono::duration<double>(Clock::now() - run_.options.started).count();
  const double next = (late_ ? 2 : 1) * longest_s_;  // one more step is under way where it is late
  if (passed + next + written < run_.options.time_limit_s) return false;
  return run_.result.interrupted = true;
}

// Does what is to be done when all steps that have begun are asked for their results: evaluates,
// then writes a checkpoint, which says what was found.
Status Steps::rest_if_due(bool last) {
  const bool rests = last || !overlap_ || drains_;
  const auto saves = [&] {
    return rests && run_.checkpoints != nullptr && (last || is_save_due(begun_));
  };
  const bool evaluates = rests && !run_.options.evaluation.empty() && evaluated_ != begun_ &&
                         (last || is_evaluation_due(begun_));
  if (!saves() && !evaluates) return ok_status();
  PIPER_TRY(end_until(begun_, last || drains_));
  if (evaluates) PIPER_TRY(evaluate(last));
  if (saves()) {  // which a signal may have asked for meanwhile
    save_ = false;
    PIPER_TRY(run_.checkpoints->begin(
        begun_, loss_, evaluated_ == begun_ ? evaluation_loss_ : std::optional<double>()));
    // Where steps overlap, ranks do not meet again before the next checkpoint.
    if (last || overlap_) PIPER_TRY(run_.checkpoints->drain());
  }
  return last || !overlap_ ? ok_status() : run_.executor.run_prologue(begun_);
}

// An interrupted job does not evaluate at its end, and breaks off what it evaluates.
Status Steps::evaluate(bool last) {
  const auto goes_on = [&]() -> Result<bool> {
    if (is_out_of_time()) stop_ = true;
    bool save = false;
    PIPER_TRY(agree(run_, stop_, save));
    save_ |= save;
    return !run_.result.interrupted;
  };
  if (last) {
    PIPER_ASSIGN(const bool goes, goes_on());
    if (!goes) return ok_status();
  }
  // Of the first batch nobody knows how long it takes.
  if (evaluated_ < 0)
    run_.control.set_timeout(
        std::max(run_.options.start_timeout_s, wait_limit(run_.options, longest_s_)));
  evaluated_ = begun_;
  PIPER_TRY(evaluate_sets(run_, begun_, goes_on, evaluation_loss_));
  run_.control.set_timeout(wait_limit(run_.options, longest_s_));
  if (late_) since_ = Clock::now();
  return ok_status();
}

Status Steps::run() {
  const int64_t steps = run_.options.steps;
  PIPER_TRY(inject_fault("load", run_.control.rank(), begun_));
  PIPER_TRY(tell_memory(/*is_loaded=*/true));
  run_.control.set_timeout(wait_limit(run_.options, 0));
  if (overlap_ && begun_ >= steps)
    return run_.options.evaluation.empty() ? ok_status() : rest_if_due(/*last=*/true);
  if (run_.checkpoints != nullptr) PIPER_TRY(agree(run_, stop_, save_));  // signals during load
  last_ = stop_;
  PIPER_TRY(run_.executor.run_prologue(begun_));
  while (begun_ < steps && !last_) {
    PIPER_TRY(begin(begun_));
    ++begun_;
    if (!late_) PIPER_TRY(end_until(begun_, last_ || drains_));
    if (late_) PIPER_TRY(end_until(begun_ - 1, false));
    last_ = last_ || (stop_ && !overlap_);
    if (!last_) PIPER_TRY(rest_if_due(/*last=*/false));
    last_ = last_ || (stop_ && !overlap_);
  }
  PIPER_TRY(end_until(begun_, true));
  if (!overlap_) PIPER_TRY(run_.executor.run_epilogue(steps));
  PIPER_TRY(rest_if_due(/*last=*/true));
  PIPER_TRY(inject_fault("end", run_.control.rank(), begun_));
  if (run_.options.parameters)
    run_.executor.states();  // what is read of them is there from here on
  return run_.executor.settle();
}

}  // namespace

Status run_rank(RankRun& run) {
  Status status = Steps(run).run();
  if (!status) run.fabric.abort();  // what is queued may wait for others for ever
  return status;
}

}  // namespace piper
