// The list of mapped files, by which a read past a cut end and a later write are noticed.
#include "mapped.h"

#include <atomic>
#include <mutex>

#include "piper/base/base.h"
#include "piper/base/process.h"

namespace piper {
namespace {

// An entry stays in the list for ever and is used again: a signal handler may look at it.
struct Mapping {
  std::atomic<const std::byte*> begin{nullptr};  // null: free
  size_t size = 0;
  std::string path;
  struct stat about = {};
  Mapping* next = nullptr;
};

std::atomic<Mapping*> first{nullptr};
std::mutex mutex;  // for changes of entries

Mapping* free_entry() {
  for (Mapping* each = first.load(); each != nullptr; each = each->next)
    if (each->begin.load() == nullptr) return each;
  auto* made = new Mapping;
  made->next = first.load();
  first.store(made);
  return made;
}

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

void note_mapping(const void* begin, size_t size, const std::string& path,
                  const struct stat& about) {
  std::lock_guard lock(mutex);
  Mapping* const entry = free_entry();
  entry->size = size;
  entry->path = path;
  entry->about = about;
  entry->begin.store(static_cast<const std::byte*>(begin));
}

void forget_mapping(const void* begin) {
  std::lock_guard lock(mutex);
  for (Mapping* each = first.load(); each != nullptr; each = each->next)
    if (each->begin.load() == begin) each->begin.store(nullptr);
}

const char* mapped_file_at(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  for (const Mapping* each = first.load(); each != nullptr; each = each->next) {
    const std::byte* const begin = each->begin.load();
    if (begin != nullptr && at >= begin && at < begin + each->size) return each->path.c_str();
  }
  return nullptr;
}

Status check_mapped_files() {
  std::lock_guard lock(mutex);
  for (const Mapping* each = first.load(); each != nullptr; each = each->next) {
    struct stat now = {};
    if (each->begin.load() == nullptr || stat(each->path.c_str(), &now) != 0) continue;
    const bool replaced = now.st_dev != each->about.st_dev || now.st_ino != each->about.st_ino;
    if (replaced ||
        (same_time(now.st_mtim, each->about.st_mtim) && now.st_size == each->about.st_size))
      continue;
    return fail(
               "'{}' was written to while it was in use: what was read before and after does not "
               "belong together",
               each->path)
        .with_code(ExitCode::kStorage)
        .with_note("help: write beside it and rename; a job keeps to the file that it has opened");
  }
  return ok_status();
}

}  // namespace piper
