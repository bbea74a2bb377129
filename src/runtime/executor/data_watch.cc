// The thread that looks at data files while a job trains. Made by run_plans.
#include "data_watch.h"

#include <algorithm>
#include <chrono>
#include <system_error>

namespace piper {
namespace {

constexpr std::chrono::seconds kBetweenLooks{1};
constexpr int64_t kFilesInALook = 100;  // thousands of processes may ask one server of files

}  // namespace

DataWatch::DataWatch(std::vector<const BatchSource*> sources, int64_t rank,
                     std::function<void(const Error&)> on_change)
    : on_change_(std::move(on_change)) {
  for (const BatchSource* source : sources) {
    if (source == nullptr || source->num_files() == 0) continue;
    sources_.push_back(source);
    files_ += source->num_files();
  }
  if (sources_.empty()) return;
  file_ = rank * kFilesInALook % files_;
  for (; file_ >= sources_[source_]->num_files(); ++source_)
    file_ -= sources_[source_]->num_files();
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {  // no thread is to be had: the files are compared at the end
  }
}

DataWatch::~DataWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ends_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DataWatch::run() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, kBetweenLooks, [&] { return is_over_; })) {
    lock.unlock();
    const Status same = look();
    if (!same) return on_change_(same.error());
    lock.lock();
  }
}

Status DataWatch::look() {
  for (int64_t left = std::min(files_, kFilesInALook); left > 0;) {
    const BatchSource& source = *sources_[source_];
    const int64_t count = std::min(left, source.num_files() - file_);
    PIPER_TRY(source.check(file_, count));
    left -= count;
    file_ += count;
    if (file_ < source.num_files()) continue;
    file_ = 0;
    source_ = (source_ + 1) % sources_.size();
  }
  return ok_status();
}

}  // namespace piper
