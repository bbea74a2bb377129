// What is read of mapped files may vanish: a file is cut, a disk fails. The system says so by a
// signal only.
#pragma once

#include <string>

#include "piper/base/base.h"

namespace piper {

// While it lives, the thread reads the file at this path, which outlives it; then the one that it
// read before, if any. What has vanished reads as zeros.
class MappedRead {
 public:
  explicit MappedRead(const std::string& path);
  ~MappedRead();
  MappedRead(const MappedRead&) = delete;
  MappedRead& operator=(const MappedRead&) = delete;

 private:
  const char* before_;
};
// Catches the signal of lost pages from here on, and forgets earlier losses. Called when files are
// opened.
void watch_for_losses();
// Fails (kStorage) when anything has vanished since: no rank may take zeros for data.
Status check_losses();
Error loss_of(const std::string& path);

}  // namespace piper
