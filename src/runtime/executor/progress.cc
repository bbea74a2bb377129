// The line that shows how far a run is.
#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "job_log.h"
#include "piper/base/counted.h"

namespace piper {

Progress::Progress(int64_t steps, int64_t every)
    : steps_(steps),
      every_(every > 0 ? every : std::max<int64_t>(1, steps / 20)),
      terminal_(isatty(STDERR_FILENO) != 0),
      left_(steps) {}

Progress::~Progress() {
  if (open_) std::fputs("\n", stderr);
}

namespace {

constexpr double kLeastData = 0.01;  // of a step; less is not worth a word

// "3 h 20 min left", of at least a minute; else "".
std::string print_left(double seconds) {
  const auto minutes = static_cast<int64_t>(std::min(seconds, 1e15) / 60);
  if (minutes < 1) return "";
  if (minutes < 60) return fmt::format("  {} min left", minutes);
  if (minutes < 48 * 60) return fmt::format("  {} h {} min left", minutes / 60, minutes % 60);
  return fmt::format("  {} d {} h left", minutes / 60 / 24, minutes / 60 % 24);
}

// A NaN's sign means nothing, but would be printed.
double without_sign_of_nan(double number) { return std::isnan(number) ? std::abs(number) : number; }

}  // namespace

std::string print_progress(const StepMetrics& metrics, int64_t steps, double data_ms,
                           std::optional<double> left) {
  std::string text = fmt::format("step {}/{}", metrics.step + 1, steps);
  if (metrics.loss) text += fmt::format("  loss {:.4f}", without_sign_of_nan(*metrics.loss));
  if (metrics.grad_norm)
    text += fmt::format("  grad norm {:.3f}", without_sign_of_nan(*metrics.grad_norm));
  if (metrics.learning_rate) text += fmt::format("  lr {:.3g}", *metrics.learning_rate);
  if (metrics.loss_scale) text += fmt::format("  loss scale {:.6g}", *metrics.loss_scale);
  if (metrics.skipped.value_or(0) != 0) text += "  skipped";
  if (const int64_t all = metrics.steps_skipped.value_or(0); all > 0)
    text += fmt::format("  ({} of this job)", all);
  text += fmt::format("  {:.1f} ms  {:.0f} tokens/s", metrics.step_ms, metrics.tokens_per_s);
  if (metrics.mfu) text += fmt::format("  MFU {:.1f} %", *metrics.mfu * 100);
  if (data_ms >= kLeastData * metrics.step_ms) text += fmt::format("  data {:.1f} ms", data_ms);
  return left ? text + print_left(*left) : text;
}

std::string print_evaluation(const EvaluationMetrics& metrics) {
  return fmt::format("after step {}: {} loss {:.4f}  {}  {:.1f} ms a batch", metrics.step,
                     quote_control(metrics.set), metrics.loss,
                     counted(metrics.batches, "batch", "es"),
                     metrics.ms / static_cast<double>(std::max<int64_t>(metrics.batches, 1)));
}

std::string print_slow(const SlowRank& one) {
  return fmt::format("rank {} takes {:.1f} x {} in {}: {:.1f} ms a step", one.rank, one.factor,
                     one.is_alone ? "its best time" : "the others", one.in, one.ms);
}

std::optional<double> TimeLeft::after(int64_t step, double time) {
  const Ended now{step, time};
  if (!from_ || step <= middle_.step) {
    from_ = middle_ = now;
    return std::nullopt;
  }
  const double one = (time - from_->time) / static_cast<double>(step - from_->step);
  if (step - middle_.step > middle_.step - from_->step) from_ = std::exchange(middle_, now);
  return one * static_cast<double>(steps_ - step - 1);
}

void Progress::show(const StepMetrics& metrics) {
  const double now = static_cast<double>(now_ns()) / 1e6;
  const std::optional<double> left = left_.after(metrics.step, now / 1e3);
  for (const auto& [kind, ms] : metrics.spent_ms)
    if (kind == std::string_view("data")) data_ms_ = ms;
  const bool last = metrics.step + 1 == steps_;
  const bool is_kept = last || (metrics.step + 1) % every_ == 0 || metrics.step == 0;
  const bool is_shown = terminal_ && (last || now - last_ms_ >= 100);
  if (!is_kept && !is_shown) return;
  const std::string line = print_progress(metrics, steps_, data_ms_, left);
  if (!terminal_) return say(line + "\n");
  if (is_kept) JobLog::add(line + "\n");
  if (!is_shown) return;
  last_ms_ = now;
  open_ = true;
  std::fputs(("\r\x1b[K" + line).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace piper
