// The lock of a folder of checkpoints. Taken by rank 0 before anything there is read or changed.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "piper/base/folders.h"
#include "resume.h"

namespace piper {
namespace {

constexpr std::chrono::milliseconds kLockRetry{100};
constexpr int kLockRetries = 50;  // of a lock whose job may just be ending

}  // namespace

FolderLock::~FolderLock() {
  if (file_ >= 0) close(file_);
}

Result<FolderLock> FolderLock::take(const std::string& folder) {
  PIPER_TRY(make_folder(folder));
  const std::string path = folder + "/.lock";
  FolderLock lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (lock.file_ < 0)
    return fail("cannot write checkpoints into '{}': {}", folder, std::strerror(errno))
        .with_code(ExitCode::kStorage);
  for (int tries = 0; flock(lock.file_, LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (errno != EWOULDBLOCK) break;  // the file system knows no locks
    if (tries == kLockRetries)
      return fail("another job writes checkpoints into '{}' and is still running", folder)
          .with_code(ExitCode::kStorage);
    std::this_thread::sleep_for(kLockRetry);
  }
  return lock;
}

}  // namespace piper
