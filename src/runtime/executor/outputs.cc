// What a job writes: errors, metrics, parameters, traces.
#include "outputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "job_log.h"
#include "piper/base/counted.h"
#include "piper/base/data.h"
#include "piper/base/process.h"

namespace piper {

namespace fs = std::filesystem;

// ---- Errors -------------------------------------------------------------------------------------

void Voice::tell(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (std::find(told_.begin(), told_.end(), error.message) != told_.end()) return;
  told_.push_back(error.message);
  tell_(error);
}

void Voice::note(const Error& error) {
  tell(error);
  const std::lock_guard lock(mutex_);
  if (code_ == ExitCode::kOk) code_ = error.code;
}

// ---- Metrics ------------------------------------------------------------------------------------

namespace {

constexpr std::string_view kRun = "{\"run\":";                 // begins the line of a run
constexpr std::string_view kEvaluates = "\"evaluates\":true";  // it trains nothing

// Calls `visit` with each line, its newline included, and with what follows it.
template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
    text.remove_prefix(line.size());
    visit(line, text);
  }
}

// Says what a file of metrics has: how many runs, the line of the last one, where the last one
// begins that began at the beginning, and whether the file's last line is whole. A run that trained
// nothing counts, but neither begins a series nor goes on with one.
struct Earlier {
  int64_t runs = 0;
  std::string last;
  size_t first = 0;
  bool whole = true;
};

Earlier look_at(std::string_view text) {
  Earlier earlier;
  for_each_line(text, [&](std::string_view line, std::string_view rest) {
    earlier.whole = line.ends_with('\n');
    if (!line.starts_with(kRun)) return;
    ++earlier.runs;
    if (line.find(kEvaluates) != line.npos) return;
    earlier.last = line;
    if (line.find("\"after_step\":") == line.npos)
      earlier.first = text.size() - rest.size() - line.size();
  });
  return earlier;
}

Result<Earlier> look_at_file(const std::string& path) {
  PIPER_ASSIGN(const Bytes file, map_file(path));
  return look_at(as_text(file.span()));
}

// Returns the step of a line; −1: it is of none. A name in the line has its quotes escaped.
int64_t step_of(std::string_view line) {
  constexpr std::string_view kStep = "\"step\":";
  int64_t step = -1;
  if (const size_t at = line.find(kStep); at != line.npos)
    std::from_chars(line.data() + at + kStep.size(), line.data() + line.size(), step);
  return step;
}

// Removes the lines of steps after this one, of the run that is resumed and of those that it
// resumed: runs before them that began at the beginning are others. A file may have millions of
// lines, while all ranks wait: only one that ends a run may be torn, and is parsed.
Status cut_lines(const std::string& path, int64_t step) {
  std::string kept;  // if lines stay behind the first one that goes
  size_t end = 0;    // of what stays before it
  {
    PIPER_ASSIGN(const Bytes file, map_file(path));
    const std::string_view text = as_text(file.span());
    end = text.size();
    std::string after;
    for_each_line(
        text.substr(look_at(text).first), [&](std::string_view line, std::string_view rest) {
          const bool may_be_torn = rest.empty() || rest.starts_with(kRun);
          const bool goes = step_of(line) > step || (may_be_torn && !nlohmann::json::accept(line));
          if (goes && end == text.size()) end -= rest.size() + line.size();
          if (!goes && end < text.size()) after += line;
        });
    if (end == text.size()) return ok_status();
    if (!after.empty()) kept = std::string(text.substr(0, end)) + after;
  }
  if (!kept.empty()) return write_file(path, kept);
  std::error_code problem;
  fs::resize_file(path, end, problem);
  if (!problem) return ok_status();
  return fail("cannot write {}: {}", path, problem.message()).with_code(ExitCode::kStorage);
}

// Returns whether the job goes on with the run that the file ends with, so that what this one tells
// of steps beyond the checkpoint is cut. A job that is started again before its first checkpoint is
// still the same one if it runs the same plans. An evaluation and a branch are no such jobs.
bool goes_on(const Earlier& earlier, const RunOptions& options, const PlanSet& set) {
  using How = StartOptions::How;
  const How how = options.start.how;
  if (options.evaluate_only || (how != How::kResume && how != How::kResumeOrStart)) return false;
  return options.job.first_step > 0 ||
         earlier.last.find('"' + set.manifest.set_id + '"') != std::string::npos;
}

// Returns the same line for the same run, whenever it runs.
std::string run_line(int64_t number, const RunOptions& options, const PlanSet& set) {
  nlohmann::ordered_json line;
  line["run"] = number;
  line["plan_set"] = set.manifest.set_id;
  line["ranks"] = set.world();
  if (options.job.first_step > 0) line["after_step"] = options.job.first_step;
  line["steps"] = options.job.steps;
  line["seed"] = options.data.seed;
  if (options.evaluate_only) line["evaluates"] = true;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

MetricsFile::~MetricsFile() {
  if (file_ != nullptr) std::fclose(file_);
}

Status MetricsFile::open(const std::string& path, const RunOptions& options, const PlanSet& set) {
  path_ = path;
  std::error_code ignored;
  const bool is_there = fs::is_regular_file(path, ignored);
  Earlier earlier;
  if (is_there) {
    PIPER_ASSIGN(earlier, look_at_file(path));
  }
  if (is_there && goes_on(earlier, options, set)) {
    PIPER_TRY(cut_lines(path, options.job.first_step));
    PIPER_ASSIGN(earlier, look_at_file(path));
  }
  file_ = std::fopen(path.c_str(), "a");
  if (file_ == nullptr) return broken();
  return write((earlier.whole ? "" : "\n") + run_line(earlier.runs + 1, options, set));
}

Status MetricsFile::go_back(int64_t step) {
  if (file_ == nullptr) return ok_status();
  std::fclose(std::exchange(file_, nullptr));
  if (fs::is_regular_file(path_)) PIPER_TRY(cut_lines(path_, step));
  file_ = std::fopen(path_.c_str(), "a");
  return file_ != nullptr ? ok_status() : broken();
}

Status MetricsFile::write(const std::string& line) {
  if (file_ == nullptr) return ok_status();
  const bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size();
  return written && std::fflush(file_) == 0 ? ok_status() : broken();
}

Status MetricsFile::broken() {
  Error error = fail("cannot write {}: {}", path_, std::strerror(errno))
                    .with_code(ExitCode::kStorage)
                    .with_note("the run goes on without metrics");
  if (file_ != nullptr) std::fclose(file_);
  file_ = nullptr;
  return error;
}

// ---- The end ------------------------------------------------------------------------------------

namespace {

std::string comparison_text(const VerifyOptions& verify, const JobResult& result) {
  if (verify.against == VerifyAgainst::kNone) return "";
  const int64_t steps = result.totals.done - result.totals.begun;
  if (result.bitwise)
    return fmt::format(
        "equal to the single-device plan bit for bit: loss and {} after each of {}\n",
        counted(result.compared_parameters, "parameter"), counted(steps, "step"));
  const bool single = verify.against == VerifyAgainst::kSingle;
  return fmt::format(
      "within bounds of the {} plan after each of {} steps{}: loss within {:.2g} (bound {:.2g}), "
      "{} parameters within {:.2g} (bound {:.2g})\n",
      single ? "single-device" : "uncut", steps,
      single ? ", as sums are formed in another order here" : "", result.worst_loss_error,
      verify.loss_bound, result.compared_parameters, result.worst_param_error, verify.param_bound);
}

std::string summary(const RunOptions& options, const JobResult& result) {
  std::string text;
  const JobTotals& totals = result.totals;
  if (result.interrupted) text += fmt::format("interrupted after step {}\n", totals.done);
  if (result.steps.empty()) return text;
  const StepMetrics& last = result.steps.back();
  text += counted(totals.done - totals.begun, "step");
  if (totals.first_loss && last.loss)
    text += fmt::format(", loss {:.4f} -> {:.4f}", *totals.first_loss, *last.loss);
  text += fmt::format(", {:.1f} ms a step, at most {} a rank",
                      totals.ms / static_cast<double>(totals.ended), human_bytes(last.peak_bytes));
  if (result.taken_bytes > last.peak_bytes)  // in whole pages
    text += fmt::format(", taken as {}", human_bytes(result.taken_bytes));
  text += "\n";
  if (result.reached_target)
    text += fmt::format("the target loss {} is reached\n", *options.job.target_loss);
  return text + comparison_text(options.job.verify, result);
}

// "run.json" becomes "run.rank3.json": processes write side by side.
std::string with_rank(const std::string& path, int64_t rank) {
  fs::path file(path);
  std::string extension = file.extension().string();
  return file.replace_extension(fmt::format(".rank{}{}", rank, extension)).string();
}

void write_summary(const RunOptions& options, const JobResult& result, SavedParameters& saved,
                   Voice& voice) {
  std::string text = summary(options, result);
  voice.note(saved.show(text));
  std::fputs(text.c_str(), stdout);
  if (!text.empty()) JobLog::add(text);
  voice.note(flush_output());
}

}  // namespace

void SavedParameters::take(std::span<const NamedTensor> parameters) {
  std::vector<NamedTensor> all(parameters.begin(), parameters.end());
  std::set<std::string> known;
  for (const NamedTensor& parameter : all) known.insert(parameter.name);
  for (NamedTensor& tensor : untouched_of(set_))
    if (known.insert(tensor.name).second) all.push_back(std::move(tensor));
  std::ranges::sort(all, {}, &NamedTensor::name);
  count_ = all.size();
  const std::string header = safetensors_header(all, {});
  std::vector<Bytes> parts{Bytes::copy_of(header.data(), header.size())};
  for (NamedTensor& tensor : all) parts.push_back(std::move(tensor.data));
  file_.emplace(UnseenFile::write(path_, parts));
}

Status SavedParameters::show(std::string& text) {
  if (!file_) return ok_status();
  if (!*file_) return file_->error();
  PIPER_TRY((*file_)->publish());
  text +=
      fmt::format("saved {} to {}\n", counted(static_cast<int64_t>(count_), "parameter"), path_);
  return ok_status();
}

void write_results(const RunOptions& options, const JobResult& result, SavedParameters& saved,
                   int64_t rank, Voice& voice) {
  if (rank <= 0) write_summary(options, result, saved, voice);
  if (!options.trace.empty()) {
    const std::string path = rank < 0 ? options.trace : with_rank(options.trace, rank);
    voice.note(write_file(path, print_trace(result.traces)));
  }
  if (!options.profile.empty() && rank <= 0)
    voice.note(result.profile.empty()
                   ? fail("no step was timed: there is nothing to write to {}", options.profile)
                         .with_code(ExitCode::kStorage)
                   : write_file(options.profile, result.profile));
  if (!result.profile_note.empty())
    say(fmt::format("warning: {}: {}\n", options.profile, result.profile_note));
  voice.note(check_mapped_files());
  if (rank <= 0 && options.job.target_loss && !result.reached_target && !result.interrupted)
    voice.note(
        fail("the mean loss of the last 20 steps is above the target {}", *options.job.target_loss)
            .with_code(ExitCode::kNumeric));
}

}  // namespace piper
