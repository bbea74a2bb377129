// Decides what becomes of a job whose loss or gradients are not finite.
#include "nonfinite.h"

#include <cmath>

#include "faults.h"

namespace piper {
namespace {

bool is_bad(const std::optional<double>& value) { return value && !std::isfinite(*value); }

// NaN has a sign, which says nothing.
double without_sign(double value) { return std::isnan(value) ? std::abs(value) : value; }

Error numeric_of(const StepMetrics& metrics) {
  const bool loss = is_bad(metrics.loss);
  if (!loss && !is_bad(metrics.grad_norm))
    return fail("step {}: a loss or the norm of the gradients is not finite on a rank other than 0",
                metrics.step + 1)
        .with_code(ExitCode::kNumeric)
        .with_note("help: --check-replicas 1 names what differs between ranks that hold the same");
  Error error =
      fail("step {}: the {} is {}", metrics.step + 1, loss ? "loss" : "norm of the gradients",
           without_sign(loss ? *metrics.loss : metrics.grad_norm.value_or(NAN)))
          .with_code(ExitCode::kNumeric);
  if (loss && std::isnan(*metrics.loss) && metrics.step == 0)
    error.notes.push_back(
        "help: data that has such numbers makes it one, a logarithm or root of a negative number, "
        "and 0/0, as a mean over labels is where a batch ignores all of them");
  return error;
}

StepMetrics reported_by(const Executor& executor) {
  StepMetrics metrics;
  metrics.loss = executor.report("loss");
  metrics.grad_norm = executor.report("grad_norm");
  metrics.skipped = executor.report("skipped");
  return metrics;
}

bool skips_steps(const RoleProgram& role) {
  return std::ranges::any_of(role.reports, [](const Report& one) { return one.name == "skipped"; });
}

Error not_gone_back(Error error, int64_t step) {
  error.message =
      fmt::format("going back from step {}, which is not finite: {}", step + 1, error.message);
  if (error.code == ExitCode::kUsage) error.code = ExitCode::kNumeric;
  return error;
}

}  // namespace

Words NonFinite::words(const StepMetrics& metrics) const {
  if (metrics.skipped.value_or(0) != 0) return kSkipped;
  const Words updated = metrics.skipped ? kUpdated : 0;
  if (between_.scales_loss()) return updated;  // a loss in f16 may be too large
  return (is_bad(metrics.loss) || is_bad(metrics.grad_norm) ? kNotFinite : 0) | updated;
}

Words NonFinite::words(const Executor& executor) const { return words(reported_by(executor)); }

NonFinite::Verdict NonFinite::judge(Words words) {
  const bool skipped = (words & kSkipped) != 0;
  disagrees_ = skipped && (words & kUpdated) != 0;
  if (skipped) ++skipped_, ++in_a_row_;
  if (!skipped && (words & kNotFinite) == 0) in_a_row_ = 0;
  if ((words & (kSkipped | kNotFinite)) == 0) return Verdict::kGoOn;
  if (skipped && !disagrees_ && may_skip() && in_a_row_ < kMostSkippedInARow) return Verdict::kGoOn;
  if (options_.on_nan == OnNan::kRollBack && rollbacks_ < options_.most_rollbacks) {
    ++rollbacks_;
    return Verdict::kRollBack;
  }
  return skipped && !disagrees_ && can_keep_ ? Verdict::kKeep : Verdict::kFail;
}

Error NonFinite::error(const StepMetrics& metrics, Verdict verdict) const {
  Error error = numeric_of(metrics);
  if (between_.room() > 0)
    error.notes.push_back(fmt::format(
        "a rank has room for {} rows of experts of each rank, and a step that routes more of them "
        "to one rank is not finite. help: a larger 'capacity' in the strategy; one as large as "
        "the number of ranks is room for all rows",
        between_.room()));
  if (verdict == Verdict::kKeep && is_late_ && metrics.step + 1 < options_.steps)
    error.notes.push_back(fmt::format(
        "no rank has made this update; step {} was queued before that was known, and what is saved "
        "is the state after it",
        metrics.step + 2));
  else if (verdict == Verdict::kKeep)
    error.notes.push_back(fmt::format(
        "no rank has made this update: what is saved is the state after step {}", metrics.step));
  if (disagrees_)
    error.notes.push_back(
        "some ranks have made the update and others have not, though all of them have this norm "
        "alike: nothing of this step is saved");
  if (in_a_row_ >= kMostSkippedInARow)
    error.notes.push_back(fmt::format("{} steps in a row were skipped", in_a_row_));
  if (options_.on_nan == OnNan::kRollBack && rollbacks_ >= options_.most_rollbacks)
    error.notes.push_back(
        fmt::format("the job has gone back {} times (--most-rollbacks)", rollbacks_));
  if (!between_.can_skip())
    error.notes.push_back(
        "the update was made, and is not saved. help: 'train: {skip_nonfinite: true}' or clip_norm "
        "keeps such updates from being made");
  else if (verdict != Verdict::kKeep && !disagrees_)
    error.notes.push_back("nothing is saved of the steps after the newest checkpoint");
  if (options_.on_nan == OnNan::kStop && !between_.scales_loss())
    error.notes.push_back(
        "help: --on-nan skip goes on without such updates, --on-nan rollback from a checkpoint");
  return error;
}

Status NonFinite::check_alone(const Executor& executor, int64_t step) {
  StepMetrics metrics = reported_by(executor);
  metrics.step = step;
  const Words said = words(metrics);
  if ((said & (kSkipped | kNotFinite)) == 0 || (said == kSkipped && may_skip())) return ok_status();
  return error(metrics, Verdict::kFail);
}

std::optional<int64_t> NonFinite::skipped() const {
  return between_.can_skip() ? std::optional(skipped_) : std::nullopt;
}

Status check_on_nan(const RunOptions& options, const PlanSet& set) {
  const JobOptions& job = options.job;
  const auto usage = [](std::string text) {
    return Error{ExitCode::kUsage, {}, "--on-nan " + std::move(text), {}};
  };
  if (job.on_nan == OnNan::kSkip && std::ranges::none_of(set.roles, skips_steps))
    return usage("skip: the updates of these plans do not wait for the norm of the gradients")
        .with_note("help: 'train: {skip_nonfinite: true}' or clip_norm in the strategy");
  if (job.on_nan != OnNan::kRollBack) return ok_status();
  if (!job.checkpoint)
    return usage("rollback needs a folder for checkpoints")
        .with_note("help: --checkpoint DIR, or --out DIR, with --every N");
  if (std::ranges::any_of(set.roles, [](const RoleProgram& role) { return role.steps_ahead > 0; }))
    return usage("rollback is not supported where steps overlap (weight_versions)");
  if (job.verify.against != VerifyAgainst::kNone)
    return usage(
        "rollback and --verify-against do not go together: what is compared with would "
        "have to go back, too");
  return ok_status();
}

Result<GoneBack> roll_back(const JobOptions& options, Control& control, Executor& executor,
                           int64_t step, int64_t tried, int64_t& left_out) {
  PIPER_CHECK(options.find_back);
  PIPER_TRY(executor.settle());
  Result<GoneBack> back = options.find_back(control, tried);
  // Where a peer is gone or a disk fails, another start may find what is there.
  if (!back) return not_gone_back(std::move(back).error(), step);
  PIPER_TRY(inject_fault("back", control.rank(), back->step));
  if (!back->is_of_other_plans) {
    left_out += step + 1 - back->step;
    PIPER_TRY(executor.reload(*back->states, left_out));
    PIPER_TRY(executor.settle());
  }
  PIPER_TRY(control.barrier());  // its files may be removed from here on
  return back;
}

}  // namespace piper
