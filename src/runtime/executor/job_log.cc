// The log of a job. Lines come from all of its threads and processes.
#include "job_log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <ctime>

namespace piper {
namespace {

std::atomic<int> log_file{-1};

}  // namespace

JobLog::~JobLog() {
  if (const int file = log_file.exchange(-1); file >= 0) close(file);
}

void JobLog::open(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (const int before = log_file.exchange(file); before >= 0) close(before);
}

void JobLog::add(std::string_view lines) {
  const int file = log_file.load();
  if (file < 0) return;
  const std::string text =
      fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}", fmt::gmtime(std::time(nullptr)), lines);
  static_cast<void>(!write(file, text.data(), text.size()));  // at once: others write here, too
}

void say(const std::string& lines) {
  const char* const clear = isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "";  // of progress
  std::fputs((clear + lines).c_str(), stderr);
  std::fflush(stderr);
  JobLog::add(lines);
}

}  // namespace piper
