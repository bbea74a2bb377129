// What a run leaves: errors as they happen, lines of metrics, and at the end what was
// trained.
#pragma once

#include <cstdio>
#include <mutex>

#include "piper/base/folders.h"
#include "piper/runtime/job.h"

namespace piper {

// Tells each error once, from whatever thread.
class Voice {
 public:
  explicit Voice(std::function<void(const Error&)> tell) : tell_(std::move(tell)) {}
  void tell(const Error& error);
  // The same for an error that does not end the run: the process ends with the first one's code.
  void note(const Error& error);
  void note(const Status& status) {
    if (!status) note(status.error());
  }
  ExitCode code() const { return code_; }

 private:
  std::function<void(const Error&)> tell_;
  std::mutex mutex_;
  std::vector<std::string> told_;
  ExitCode code_ = ExitCode::kOk;
};

// Writes a line per step, as soon as the step is done, after those of earlier runs. A file that
// cannot be written to costs its lines, not the run.
class MetricsFile {
 public:
  ~MetricsFile();
  // Begins with a line about the run.
  Status open(const std::string& path, const RunOptions& options, const PlanSet& set);
  // Removes the lines of steps after this one: the job goes on from there.
  Status go_back(int64_t step);
  Status write(const std::string& line);  // after an error: nothing, and no further error

 private:
  Status broken();
  std::string path_;
  FILE* file_ = nullptr;
};

// Saves what was trained, with the entries of the module's state_dict that no step changes: writes
// it while ranks give it, tensor by tensor, and shows it when all else of the job is done.
class SavedParameters {
 public:
  SavedParameters(std::string path, const PlanSet& set) : path_(std::move(path)), set_(set) {}
  void take(std::span<const NamedTensor> parameters);
  Status show(std::string& text);

 private:
  std::string path_;
  const PlanSet& set_;
  std::optional<Result<UnseenFile>> file_;
  size_t count_ = 0;
};
// Shows what was saved, then the summary, the trace and whether inputs are unchanged. `rank`: of
// this process; −1: it has all of them.
void write_results(const RunOptions& options, const JobResult& result, SavedParameters& saved,
                   int64_t rank, Voice& voice);

}  // namespace piper
