// What is read of mapped files may vanish: a file is cut, a disk fails. The system says so by a
// signal alone.
#pragma once

#include <string>

#include "piper/base/base.h"

namespace piper {

// While it lives, the thread reads of the file at this path, which outlives it: what has vanished
// reads as zeros.
class MappedRead {
 public:
  explicit MappedRead(const std::string& path);
  ~MappedRead();
  MappedRead(const MappedRead&) = delete;
  MappedRead& operator=(const MappedRead&) = delete;
};
// At the opening of files: what comes by the signal is heard from here on, and nothing is lost yet.
void watch_for_losses();
// An error (kStorage) when anything has vanished since: no rank may take zeros for data.
Status check_losses();
Error loss_of(const std::string& path);

}  // namespace piper
