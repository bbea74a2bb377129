// Data files as a job has opened them: what they were then, and whether they still are. Used by
// all that reads one.
#pragma once

#include <sys/stat.h>

#include "lost.h"
#include "piper/base/base.h"

namespace piper {

// Of a file that is not larger than this, in bytes, all is compared; of a larger one, so much.
inline constexpr size_t kComparedBytes = size_t{64} << 20;

class DataFile {
 public:
  static Result<DataFile> open(const std::string& path, size_t compared = kComparedBytes);
  const std::string& path() const { return path_; }
  const std::string& content() const { return content_; }  // digest
  // Returns whether the file is cut: past the end that it has now, its last page has zeros, which
  // no signal tells.
  bool is_cut() const;
  // Fails (kStorage) if somebody has cut the file or written to it, whatever its times say. One
  // thread at a time calls it, also while others read the file.
  Status check() const;

 private:
  // Returns what the file is now; nothing if it was replaced, as the job still reads the old one.
  std::optional<struct stat> look_again() const;
  bool is_written_to(const struct stat& now) const;

  std::string path_;
  size_t compared_ = kComparedBytes;
  struct stat about_ = {};         // when the file was opened
  mutable struct stat seen_ = {};  // when check() last found the content that it had then
  std::string content_;
};

// Calls `read`, which reads the mapped file, and says if that was cut meanwhile.
template <class Read>
Status read_mapped(const DataFile& file, const Read& read) {
  const MappedRead reading(file.path());
  Status status = read();
  return file.is_cut() ? Status(loss_of(file.path())) : status;
}

// Returns the files that a text names, sorted by the bytes of their names: the file itself, those
// that a pattern of *, ? and [] matches, or those of a folder that end in .bin, .npy or
// .safetensors. A text without any is an error that names near ones.
Result<std::vector<std::string>> find_data_files(const std::string& text);

}  // namespace piper
