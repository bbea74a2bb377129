// Writes what a run's folder holds beside metrics and checkpoints. Called by the run's watcher.
#include "run_folder.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>

namespace piper {
namespace {

namespace fs = std::filesystem;
constexpr std::chrono::seconds kBetweenValues{5};
constexpr int64_t kMostStrategy = int64_t{1} << 26;
const std::string kCopyLine = "# Written by piper-run: the strategy of the plans of this job\n";

// Returns values under the names and in the units that dashboards of other trainers use.
std::vector<std::pair<std::string, double>> scalars_of(const StepMetrics& metrics) {
  std::vector<std::pair<std::string, double>> scalars;
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) scalars.emplace_back(name, *value);
  };
  add("loss", metrics.loss);
  add("grad_norm", metrics.grad_norm);
  add("learning_rate", metrics.learning_rate);
  add("loss_scale", metrics.loss_scale);
  add("skipped", metrics.skipped);
  if (metrics.steps_skipped)
    scalars.emplace_back("steps_skipped", static_cast<double>(*metrics.steps_skipped));
  add("mfu", metrics.mfu);
  for (const auto& [kind, ms] : metrics.spent_ms)
    scalars.emplace_back(fmt::format("spent_ms/{}", kind), ms);
  scalars.emplace_back("tokens_per_second", metrics.tokens_per_s);
  scalars.emplace_back("step_duration_seconds", metrics.step_ms / 1e3);
  return scalars;
}

}  // namespace

void RunFolder::complete(RunOptions& options) {
  if (options.out.empty()) return;
  if (options.metrics.empty()) options.metrics = options.out + "/metrics.jsonl";
  options.job.recording = options.out + "/flight";
  if (!options.job.checkpoint) options.job.checkpoint.emplace();
  if (options.job.checkpoint->folder.empty())
    options.job.checkpoint->folder = options.out + "/checkpoints";
}

Status RunFolder::check(const RunOptions& options, const PlanSet& set) {
  const std::string path = options.out + "/strategy.yaml";
  std::error_code ignored;
  if (options.out.empty() || options.evaluate_only || !fs::exists(path, ignored))
    return ok_status();
  PIPER_ASSIGN(const std::string text, read_text_file(path, kMostStrategy));
  if (text.starts_with(kCopyLine) || text == set.manifest.strategy_text) return ok_status();
  return fail("--out {}: there is a strategy.yaml that piper-run has not written",
              quote_control(options.out))
      .with_code(ExitCode::kUsage)
      .with_note("help: name another folder; the plans' strategy would replace that file");
}

Status RunFolder::open(const RunOptions& options, const PlanSet& set) {
  if (options.out.empty()) return ok_status();
  folder_ = options.out;
  steps_ = options.job.steps;
  trains_ = !options.evaluate_only;
  if (!trains_) return begin_events({});
  PIPER_TRY(write_file(folder_ + "/strategy.yaml", kCopyLine + set.manifest.strategy_text));
  return begin_events(options.job.first_step);
}

Status RunFolder::go_back(int64_t step) {
  return folder_.empty() ? ok_status() : begin_events(step);
}

Status RunFolder::begin_events(std::optional<int64_t> first_step) {
  constexpr std::string_view kPrefix = "events.out.tfevents.";
  int64_t runs = 0, time = std::time(nullptr);
  std::error_code problem;
  for (fs::directory_iterator it(folder_, problem), end; !problem && it != end;
       it.increment(problem)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    ++runs;
    // Readers take the files in the order of their names, also where a clock was set back.
    int64_t other = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), other);
    time = std::max(time, std::min(other, int64_t{9'999'999'998}) + 1);
  }
  return events_.open(folder_, time, runs + 1, first_step);
}

Status RunFolder::add(const StepMetrics& metrics) {
  if (folder_.empty()) return ok_status();
  last_ = metrics;
  for (const auto& [kind, ms] : metrics.spent_ms) spent_seconds_[kind] = ms / 1e3;
  PIPER_TRY(events_.add(metrics.step + 1, scalars_of(metrics)));
  if (std::chrono::steady_clock::now() - written_ < kBetweenValues) return ok_status();
  return write_values();
}

Status RunFolder::add(const EvaluationMetrics& metrics) {
  if (folder_.empty()) return ok_status();
  evaluated_[metrics.set] = metrics;
  const std::pair<std::string, double> scalar{"evaluation_loss/" + metrics.set, metrics.loss};
  PIPER_TRY(events_.add(metrics.step, std::span(&scalar, 1)));
  return trains_ ? write_values() : ok_status();
}

Status RunFolder::close() {
  const bool has_values = written_ != std::chrono::steady_clock::time_point();
  return has_values ? write_values() : ok_status();
}

namespace {

// Escapes what ends a label's value in Prometheus' text format.
std::string label_value(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (c == '\\' || c == '"' || c == '\n') text += '\\';
    text += c == '\n' ? 'n' : c;
  }
  return text;
}

// Replaces a file in one step, for those that read it meanwhile. Nothing waits for the disk: a step
// would, and what a crash of the machine loses here is of no use after it.
Status replace_file(const std::string& path, const std::string& text) {
  const std::string built = path + ".partial";
  const auto broken = [&] {
    return fail("cannot write {}: {}", path, std::strerror(errno)).with_code(ExitCode::kStorage);
  };
  FILE* const file = std::fopen(built.c_str(), "w");
  if (file == nullptr) return broken();
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (written && closed && std::rename(built.c_str(), path.c_str()) == 0) return ok_status();
  const Error error = broken();
  std::remove(built.c_str());
  return error;
}

}  // namespace

namespace {

// Returns what Prometheus says of a value to whoever asks it for a graph.
std::string_view help_of(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kHelp[] = {
      {"step", "steps that are done"},
      {"steps", "steps that the job is to do"},
      {"peak_bytes", "most memory that the plan of a rank takes"},
      {"loss", "training loss of the last step"},
      {"evaluation_loss", "loss of a set when it was evaluated last"},
      {"grad_norm", "norm of all gradients before clipping"},
      {"learning_rate", "learning rate of the last step"},
      {"loss_scale", "factor of the loss, so that gradients fit into 16 bits"},
      {"skipped", "1 if the last step made no update, as it was not finite"},
      {"steps_skipped", "steps so far that made no update"},
      {"mfu", "share of the peak of all devices that the model's own work takes"},
      {"tokens_per_second", "tokens of the last step over its time"},
      {"step_duration_seconds", "time of the last step"},
      {"spent_seconds", "time of a step by what ranks do, in the mean over ranks and 20 steps"}};
  for (const auto& [known, help] : kHelp)
    if (known == name) return help;
  return name;
}

std::string heading_of(std::string_view name) {
  return fmt::format("# HELP piper_{0} {1}\n# TYPE piper_{0} gauge\n", name, help_of(name));
}

std::string prometheus_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value)
         : std::isnan(value)  ? "NaN"
         : value < 0          ? "-Inf"
                              : "+Inf";
}

}  // namespace

// Writes a text file of Prometheus, for its node exporter to collect.
Status RunFolder::write_values() {
  written_ = std::chrono::steady_clock::now();
  std::string text;
  const auto add = [&](const std::string& name, double value) {
    text += heading_of(name) + fmt::format("piper_{} {}\n", name, prometheus_number(value));
  };
  add("step", static_cast<double>(last_.step + 1));
  add("steps", static_cast<double>(steps_));
  add("peak_bytes", static_cast<double>(last_.peak_bytes));
  for (const auto& [name, value] : scalars_of(last_))
    if (name.find('/') == name.npos) add(name, value);
  if (!evaluated_.empty()) text += heading_of("evaluation_loss");
  for (const auto& [set, metrics] : evaluated_)
    text += fmt::format("piper_evaluation_loss{{set=\"{}\"}} {}\n", label_value(set),
                        prometheus_number(metrics.loss));
  if (!spent_seconds_.empty()) text += heading_of("spent_seconds");
  for (const auto& [kind, seconds] : spent_seconds_)
    text += fmt::format("piper_spent_seconds{{on=\"{}\"}} {}\n", kind, prometheus_number(seconds));
  return replace_file(folder_ + "/metrics.prom", text);
}

}  // namespace piper
