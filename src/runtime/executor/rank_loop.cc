// The loop over steps of one rank.
#include "rank_loop.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "evaluation.h"
#include "faults.h"
#include "nonfinite.h"
#include "piper/plan/outer_updates.h"
#include "recorder.h"
#include "slow_ranks.h"

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

// Holds what a rank knows after a step beside its results.
struct Heard {
  bool stop = false, save = false;
  Words words = 0;  // Word bits, of all ranks
};

// Keeps what is told of the steps at the job's end.
void keep(const StepMetrics& metrics, JobResult& result) {
  std::vector<StepMetrics>& steps = result.steps;
  if (steps.size() >= 2 * kKeptSteps) steps.erase(steps.begin(), steps.end() - kKeptSteps);
  steps.push_back(metrics);
  if (metrics.step == result.totals.begun) result.totals.first_loss = metrics.loss;
  ++result.totals.ended;
  result.totals.ms += metrics.step_ms;
}

// Does rank 0's part between two steps: results, the caller's callback, whether to stop.
Status finish_step(RankRun& run, const StepMetrics& metrics, bool& stop) {
  keep(metrics, run.result);
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

// Returns whether values are compared between steps, during which no step may change them.
bool compares(const RankRun& run) {
  return run.options.verify.against != VerifyAgainst::kNone || run.replicas != nullptr;
}

// Returns whether all ranks are between the same two steps at some time.
bool meets(const RankRun& run) { return run.executor.role().steps_ahead == 0 || compares(run); }

// Returns what the rank has to say, with what the checkpoint under way says.
Words word_of(RankRun& run, bool stop) {
  const JobOptions& options = run.options;
  Words word = stop ? kStop : 0;
  if (is_told_to_stop(options)) word |= kStop | kInterrupted;
  if (run.result.interrupted) word |= kInterrupted;
  if (run.result.lost || (options.lost != nullptr && options.lost->load()))
    word |= kStop | kInterrupted | kLost;
  if (run.checkpoints == nullptr) return word;
  if (run.checkpoints->has_failed()) word |= kStop | kInterrupted | kLost;
  if (options.save != nullptr && options.save->exchange(false)) word |= kSave;
  if (run.control.rank() == 0 && run.checkpoints->asks()) word |= kSave;
  return word | run.checkpoints->word();
}

// Lets all ranks know what any of them says, and goes on with the checkpoint under way.
Status agree(RankRun& run, Words own, Heard& heard) {
  Words words = word_of(run, heard.stop) | own;
  PIPER_TRY(run.between.agree(words));
  run.result.interrupted = (words & kInterrupted) != 0;
  run.result.lost = (words & kLost) != 0;
  heard = {(words & kStop) != 0, (words & kSave) != 0, words};
  return run.checkpoints != nullptr ? run.checkpoints->advance(words) : ok_status();
}

// Does the same where steps overlap: ranks hear only rank 0, some steps later. After a step that no
// other overlaps with (`last`), all meet.
Status agree_late(RankRun& run, Heard& heard, bool last) {
  Words words = run.control.rank() == 0 ? word_of(run, heard.stop) : 0;
  const bool own = heard.stop;
  PIPER_TRY(run.between.spread_late(words, last));
  heard.stop = (words & kStop) != 0 || (last && own);
  run.result.lost |= (words & kLost) != 0;
  heard.save = (words & kSave) != 0;
  return last && run.checkpoints != nullptr ? agree(run, 0, heard) : ok_status();
}

Status meet_between_steps(RankRun& run, const NonFinite& guard, StepMetrics& metrics, Heard& heard,
                          bool last) {
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
  if (const auto before = guard.skipped())
    metrics.steps_skipped = *before + (metrics.skipped.value_or(0) != 0 ? 1 : 0);
  if (run.control.rank() == 0) PIPER_TRY(finish_step(run, metrics, heard.stop));
  if (!meets(run)) return agree_late(run, heard, last);
  return agree(run, run.control.rank() == 0 ? guard.words(metrics) : guard.words(run.executor),
               heard);
}

Status between_steps(RankRun& run, const NonFinite& guard, StepMetrics& metrics, Heard& heard,
                     bool last) {
  run.control.activity().store("the end of its step", std::memory_order_release);
  Status status = meet_between_steps(run, guard, metrics, heard, last);
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
        steps_ahead_(run.executor.role().steps_ahead),
        overlap_(steps_ahead_ > 0),
        late_(run.executor.is_asynchronous() && !compares(run)),
        guard_(run.options, run.between, !overlap_ && run.executor.role().outer_updates.empty(),
               late_),
        begun_(run.options.first_step),
        ended_(begun_),
        failed_(run.options.rollbacks.failed),
        went_to_(run.options.rollbacks.went_to) {
    run.result.totals.begun = begun_;
    // Only ranks that all meet between steps can compare their times.
    if (meets(run)) slow_.emplace(run.control, run.executor.recorder(), run.role);
  }

  Status run();

 private:
  using Clock = std::chrono::steady_clock;
  Status run_steps();
  Status begin_run();
  Status begin(int64_t step);
  Status end(int64_t step, bool last);
  Status end_until(int64_t step, bool last);
  Status judge(const StepMetrics& metrics, Words words);
  Status go_back(const StepMetrics& metrics);
  bool is_save_due(int64_t done) const {
    return run_.checkpoints != nullptr && run_.checkpoints->is_due(done, save_ ? kSave : 0);
  }
  bool is_evaluation_due(int64_t done) const {
    const int64_t every = run_.options.evaluate_every;
    return !run_.options.evaluation.empty() && every > 0 && done % every == 0;
  }
  // Returns whether a step does not begin before all that have begun are complete.
  bool waits(int64_t step) const {
    return step >= run_.options.steps || stop_ || is_save_due(step) || is_evaluation_due(step) ||
           std::ranges::any_of(run_.executor.role().outer_updates,
                               [&](const OuterUpdate& one) { return runs_at(one, step); });
  }
  // Returns whether the job goes on with other plans after the steps that have begun.
  bool goes_on() const { return run_.options.on_end && begun_ == run_.options.steps && !stop_; }
  Status evaluate_and_save_if_due(bool last);
  Status evaluate(bool last);
  Status save(bool waits);
  Status check_before_saving();
  Status hear_last();
  void tell_end();
  bool lacks_data(int64_t step);
  bool is_out_of_time() const;
  Status tell_memory(bool is_loaded);
  double seconds() const { return std::chrono::duration<double>(Clock::now() - since_).count(); }

  RankRun& run_;
  const int32_t steps_ahead_;
  const bool overlap_;
  const bool late_;  // a step is queued before the one that runs is asked for its results
  NonFinite guard_;
  std::optional<SlowRanks> slow_;
  bool stop_ = false, last_ = false;
  // Where steps overlap: before this one all others are complete, since something is due between
  // them, or since the job ends. It is known when this step would begin.
  int64_t end_ = Executor::kNoEnd;
  bool drains_ = false;           // the step under way is the last before that, and not of the job
  bool save_ = false;             // some rank was told to write a checkpoint
  int64_t begun_, ended_;         // so many steps
  bool step_was_undone_ = false;  // the step that ended last, which was not finite
  int64_t left_out_ = 0;          // steps of data
  int64_t failed_, went_to_;      // as Rollbacks says
  std::optional<double> loss_;    // rank 0's: of the last step that ended
  int64_t evaluated_ = -1;        // after so many steps the last time
  bool has_evaluated_ = false;
  std::optional<double> evaluation_loss_;  // rank 0's: of the first set, then
  Clock::time_point since_;  // when the step began, or where they are late, the one before ended
  double longest_s_ = 0;     // of the steps so far, with what is done between them
  std::array<double, 20> recent_s_{};  // of the last ones: a single slow one is forgotten
  // Returns the longest of the last steps; before the first one has ended, what is known of them.
  double recent_s() const {
    const double longest = *std::ranges::max_element(recent_s_);
    return longest > 0 ? longest : run_.options.pace.step_s;
  }
  MemoryMetrics memory_;
};

// Tells how much memory is free: after load, and again after step 2, when libraries have taken what
// they need for a step and for its graph.
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

// Begins the steps that are ahead of the next one, and that one.
Status Steps::begin_run() {
  end_ = Executor::kNoEnd;
  for (int64_t later = begun_ + steps_ahead_; overlap_ && --later > begun_;)
    if (waits(later)) end_ = later;
  return run_.executor.run_prologue(begun_, end_);
}

Status Steps::begin(int64_t step) {
  step_was_undone_ = false;
  // A step that has begun is finished.
  if (overlap_ && end_ == Executor::kNoEnd && waits(step + steps_ahead_))
    end_ = step + steps_ahead_;
  const bool ends = step + 1 == end_;
  last_ = step + 1 == run_.options.steps || (ends && stop_);
  drains_ = ends && !last_;
  PIPER_TRY(inject_fault("step", run_.control.rank(), step + 1));
  if (run_.options.before_step)
    PIPER_TRY(run_.options.before_step(run_.control.rank(), step, run_.executor));
  if (!late_ || step == run_.options.first_step) since_ = Clock::now();
  return run_.executor.start_step(step, end_);
}

// Returns whether what the step would read is lost: then it does not begin, on any rank.
bool Steps::lacks_data(int64_t step) {
  const bool is_body =
      step < run_.options.steps - steps_ahead_ && (end_ == Executor::kNoEnd || end_ == step);
  if (!is_body || !(meets(run_) || run_.control.world() == 1)) return false;
  const Status read = run_.executor.read_inputs(step);
  if (read || read.error().code != ExitCode::kStorage) return false;  // the step itself says it
  if (run_.options.on_loss) run_.options.on_loss(read.error());
  return run_.result.interrupted = run_.result.lost = true;
}

Status Steps::end(int64_t step, bool last) {
  PIPER_TRY(run_.executor.finish_step(step));
  if (overlap_) PIPER_TRY(guard_.check_alone(run_.executor, step));
  if (compares(run_)) PIPER_TRY(run_.executor.settle());
  const double took = seconds();
  StepMetrics metrics;
  metrics.step = step;
  metrics.step_ms = took * 1e3;
  metrics.tokens_per_s = static_cast<double>(run_.tokens_per_step) / took;
  metrics.peak_bytes = run_.between.peak_bytes();
  metrics.mfu = run_.between.mfu(took);
  // The oracle's first step takes as long as it takes.
  if (run_.options.verify.against != VerifyAgainst::kNone && step == run_.options.first_step)
    run_.control.set_timeout(
        std::max(run_.options.start_timeout_s, wait_limit(run_.options, took)));
  if (slow_ && run_.executor.knows_times(step)) PIPER_TRY(slow_->end_step(metrics));
  PIPER_TRY(inject_fault("after", run_.control.rank(), step + 1));
  const Clock::time_point ended = Clock::now();
  if (!last) stop_ = lacks_data(begun_) || is_out_of_time() || stop_;
  Heard heard{stop_};
  PIPER_TRY(between_steps(run_, guard_, metrics, heard, last));
  stop_ = heard.stop;
  save_ |= heard.save;
  const double all = seconds();  // but for a way back to a checkpoint
  if (!overlap_) PIPER_TRY(judge(metrics, heard.words));
  if (!step_was_undone_) loss_ = metrics.loss;
  if (step == run_.options.first_step + 1) PIPER_TRY(tell_memory(/*is_loaded=*/false));
  longest_s_ = std::max(longest_s_, all);
  recent_s_[static_cast<size_t>(step) % recent_s_.size()] = all;
  if (late_) since_ = ended;
  run_.control.set_timeout(wait_limit(run_.options, longest_s_));
  return ok_status();
}

// Decides what becomes of the job after a step, which may be that it counts as none.
Status Steps::judge(const StepMetrics& metrics, Words words) {
  using Verdict = NonFinite::Verdict;
  const Verdict verdict = guard_.judge(words);
  if (verdict == Verdict::kGoOn) return ok_status();
  if (verdict == Verdict::kRollBack) return go_back(metrics);
  const Error error = guard_.error(metrics, verdict);
  if (verdict == Verdict::kFail) {
    if (run_.control.rank() == 0) return error;
    return run_.control.barrier();  // rank 0 says what is wrong
  }
  if (!run_.result.ended_by) run_.result.ended_by = error;
  stop_ = run_.result.interrupted = true;
  if (late_) return ok_status();  // the step that is queued already ends, too
  run_.executor.undo_numbers();
  if (run_.control.rank() == 0) run_.result.steps.pop_back();
  begun_ = ended_ = metrics.step;
  step_was_undone_ = true;
  return ok_status();
}

// Goes on from a checkpoint, or from an older one where the job fails again before it gets further
// than the last time: the newer one may hold the damage itself.
Status Steps::go_back(const StepMetrics& metrics) {
  PIPER_TRY(run_.checkpoints->drain());
  const int64_t tried = metrics.step <= failed_ ? went_to_ : -1;
  // Ranks take different times to read their parts.
  run_.control.set_timeout(
      std::max(run_.options.start_timeout_s, wait_limit(run_.options, longest_s_)));
  run_.control.activity().store("the way back to a checkpoint", std::memory_order_release);
  const int64_t taken = metrics.step + 1 + left_out_;
  PIPER_ASSIGN(GoneBack back, roll_back(run_.options, run_.control, run_.executor, metrics.step,
                                        tried, left_out_));
  const int64_t done = back.step;
  failed_ = metrics.step;
  went_to_ = done;
  run_.result.totals.begun = std::min(run_.result.totals.begun, done);
  run_.checkpoints->go_back(done, left_out_);
  begun_ = ended_ = done;
  step_was_undone_ = true;
  last_ = false;
  evaluated_ = done;  // before it was saved, if at all
  loss_.reset();
  if (run_.control.rank() == 0) {
    std::vector<StepMetrics>& steps = run_.result.steps;
    std::erase_if(steps, [&](const StepMetrics& one) { return one.step >= done; });
    if (run_.options.on_rollback) PIPER_TRY(run_.options.on_rollback(metrics.step, done));
  }
  if (!back.is_of_other_plans) return begin_run();
  run_.result.goes_back = std::move(back);
  run_.result.taken = taken;
  last_ = stop_ = true;
  return ok_status();
}

// Asks for the results of all steps before this one.
Status Steps::end_until(int64_t step, bool last) {
  while (ended_ < step && !step_was_undone_) {
    PIPER_TRY(end(ended_, last && ended_ + 1 == step));
    if (!step_was_undone_) ++ended_;
  }
  return ok_status();
}

// Returns whether another step and a checkpoint would end after the limit, by rank 0's clock.
bool Steps::is_out_of_time() const {
  if (run_.options.time_limit_s <= 0 || run_.control.rank() != 0) return false;
  const double written = run_.checkpoints != nullptr ? run_.checkpoints->likely_s() : 0;
  const double passed = std::chrono::duration<double>(Clock::now() - run_.options.started).count();
  const double next = (late_ ? 2 : 1) * recent_s();  // one more step is under way where it is late
  if (passed + next + written < run_.options.time_limit_s) return false;
  return run_.result.interrupted = true;
}

// Does what is to be done when all steps that have begun are asked for their results: evaluates,
// then writes a checkpoint, which says what was found.
Status Steps::evaluate_and_save_if_due(bool last) {
  const bool rests = last || !overlap_ || drains_;
  const auto saves = [&] {
    return rests && run_.checkpoints != nullptr && (last || is_save_due(begun_));
  };
  const bool evaluates = rests && !run_.options.evaluation.empty() && evaluated_ != begun_ &&
                         ((last && !goes_on()) || is_evaluation_due(begun_));
  const bool drained = overlap_ && drains_ && !last;
  if (!saves() && !evaluates && !drained) return ok_status();
  PIPER_TRY(end_until(begun_, last || drains_));
  if (evaluates) PIPER_TRY(evaluate(last));
  if (saves()) {  // which a signal may have asked for meanwhile
    // Where steps overlap, ranks do not meet again before the next checkpoint.
    PIPER_TRY(save(/*waits=*/last || overlap_));
    // No later one would hold what these steps have trained, so it is tried once more, when rank 0
    // has removed what there is of it.
    if (last && run_.checkpoints->has_lost(begun_)) {
      PIPER_TRY(run_.control.barrier());
      PIPER_TRY(save(/*waits=*/true));
    }
  }
  return drained ? begin_run() : ok_status();
}

Status Steps::save(bool waits) {
  save_ = false;
  PIPER_TRY(check_before_saving());
  run_.control.activity().store("the copy of its states", std::memory_order_release);
  PIPER_TRY(
      run_.checkpoints->begin(begun_, guard_.skipped().value_or(run_.options.skipped), loss_,
                              evaluated_ == begun_ ? evaluation_loss_ : std::optional<double>()));
  return waits ? run_.checkpoints->drain() : ok_status();
}

// No checkpoint holds a state in which replicas differ: a job that goes on from the newest one has
// the right values again.
Status Steps::check_before_saving() {
  const bool was_checked = run_.replicas == nullptr || begun_ % run_.options.check_replicas == 0 ||
                           begun_ == run_.options.steps;
  if (was_checked) return ok_status();
  PIPER_TRY(run_.executor.settle());
  return run_.replicas->check(begun_ - 1);
}

// An interrupted job does not evaluate at its end, and breaks off what it evaluates.
Status Steps::evaluate(bool last) {
  const auto goes_on = [&]() -> Result<bool> {
    Heard heard{is_out_of_time() || stop_};
    PIPER_TRY(agree(run_, 0, heard));
    stop_ = heard.stop;
    save_ |= heard.save;
    return !run_.result.interrupted;
  };
  if (last) {
    PIPER_ASSIGN(const bool goes, goes_on());
    if (!goes) return ok_status();
  }
  evaluated_ = begun_;
  const auto around = [&](bool begins) -> Status {
    if (!run_.options.around_evaluation) return ok_status();
    PIPER_TRY(run_.executor.settle());
    return run_.options.around_evaluation(run_.executor, run_.transport, begins);
  };
  run_.control.activity().store("an evaluation", std::memory_order_release);
  const bool is_first = std::exchange(has_evaluated_, true);
  PIPER_TRY(around(true));
  // Of the first batch nobody knows how long it takes.
  if (is_first)
    run_.control.set_timeout(
        std::max(run_.options.start_timeout_s, wait_limit(run_.options, longest_s_)));
  PIPER_TRY(evaluate_sets(run_, begun_, goes_on, evaluation_loss_));
  PIPER_TRY(around(false));
  run_.control.set_timeout(wait_limit(run_.options, longest_s_));
  if (late_) since_ = Clock::now();
  return ok_status();
}

Status Steps::run_steps() {
  while (begun_ < run_.options.steps && !last_) {
    PIPER_TRY(begin(begun_));
    ++begun_;
    if (!late_) PIPER_TRY(end_until(begun_, last_ || drains_));
    if (late_) PIPER_TRY(end_until(begun_ - 1, false));
    last_ = last_ || (stop_ && !overlap_);
    if (!last_) PIPER_TRY(evaluate_and_save_if_due(/*last=*/false));
    last_ = last_ || (stop_ && !overlap_);
  }
  return ok_status();
}

// Tells all ranks what happened after the last step: that a checkpoint could not be written, that
// data are lost and, before other plans, that a signal came.
Status Steps::hear_last() {
  if (run_.checkpoints == nullptr && !goes_on()) return ok_status();
  const bool was_interrupted = run_.result.interrupted;
  Heard heard{stop_};
  PIPER_TRY(agree(run_, 0, heard));
  if (goes_on())
    stop_ = heard.stop;
  else
    run_.result.interrupted = was_interrupted;
  return ok_status();
}

// Tells what plans that the job goes on under have to know.
void Steps::tell_end() {
  run_.result.pace = {recent_s(), run_.checkpoints != nullptr ? run_.checkpoints->longest_s() : 0};
  run_.result.skipped = guard_.skipped().value_or(run_.options.skipped);
  run_.result.rollbacks = {guard_.rollbacks(), failed_, went_to_};
}

Status Steps::run() {
  const int64_t steps = run_.options.steps;
  PIPER_TRY(inject_fault("load", run_.control.rank(), begun_));
  PIPER_TRY(tell_memory(/*is_loaded=*/true));
  run_.control.set_timeout(wait_limit(run_.options, 0));
  if (overlap_ && begun_ >= steps)
    return run_.options.evaluation.empty() ? ok_status() : evaluate_and_save_if_due(/*last=*/true);
  Heard heard{is_out_of_time()};
  PIPER_TRY(agree(run_, 0, heard));  // signals during load
  last_ = stop_ = heard.stop;
  save_ = heard.save;
  PIPER_TRY(begin_run());
  do {
    PIPER_TRY(run_steps());
    PIPER_TRY(end_until(begun_, true));
  } while (begun_ < steps && !last_);  // the last one may have sent the job back
  if (run_.result.goes_back) return tell_end(), ok_status();
  if (!overlap_) PIPER_TRY(run_.executor.run_epilogue(steps));
  PIPER_TRY(evaluate_and_save_if_due(/*last=*/true));
  PIPER_TRY(hear_last());
  run_.result.goes_on = goes_on();
  run_.result.taken = begun_ + left_out_;
  run_.result.totals.done = begun_;
  tell_end();
  if (!run_.result.goes_on) PIPER_TRY(inject_fault("end", run_.control.rank(), begun_));
  if ((run_.options.parameters || run_.options.on_parameters) && !run_.result.goes_on)
    run_.executor.states();  // what is read of them is there from here on
  return run_.executor.settle();
}

}  // namespace

Status run_rank(RankRun& run) {
  Recorder& recorder = run.executor.recorder();
  try {
    Status status = Steps(run).run();
    recorder.set_patience(0);  // it is not looked at any more
    if (status) return status;
    run.fabric.abort();  // what is queued may wait for others for ever
    Error error = std::move(status).error();
    recorder.write(error.message.c_str(), Recorder::Stack::kNone);
    if (*recorder.path() != '\0')
      error.notes.push_back(
          fmt::format("what rank {} did last is in {}", run.control.rank(), recorder.path()));
    return error;
  } catch (const std::exception& problem) {
    recorder.set_patience(0);
    recorder.write(problem.what(), Recorder::Stack::kNone);
    throw;
  }
}

}  // namespace piper
