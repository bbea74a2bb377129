// Makes folders that last; replaces a folder of files as a whole, and a file; lists what else is in
// a folder; and says early what could not be written.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "piper/base/base.h"

namespace piper {

// Returns the error (kStorage) of what the system refused, by its number: "cannot write 'x': No
// space left on device".
Error cannot_store(std::string_view verb, const std::string& path, int problem);

// Makes the names in a folder last. Some file systems cannot be told to, and need not be. Errors
// are kStorage.
Status flush_folder(const std::string& folder);
// Makes a folder, and those above it that are not there. Their names last, as what is written into
// them is to. Errors are kStorage.
Status make_folder(const std::string& folder);

// Puts the folder `built` in the place of `folder`, which exists, in one step where the file system
// can exchange two names, and in two renames where it cannot. Returns where the old folder is then.
// Error (kStorage): a rename fails; `folder` is then as it was.
Result<std::string> replace_folder(const std::string& built, const std::string& folder);

// Returns in order the names of the regular files directly in a folder, "" being the current one;
// none where there is no such folder.
std::vector<std::string> files_in(const std::string& folder);
// Returns in order the names of the files in the folder of `path` that end as `extension` says
// (".yaml"); none where there is no such folder.
std::vector<std::string> files_beside(const std::string& path, std::string_view extension);

// Checks that a file can be written at this path, or to the device that is there, so that work of
// minutes or days does not end without its result. An empty path is no file. Errors are kStorage.
Status check_output(const std::string& path);
// Checks that the disk of this path has room for so many bytes, of `what` ("a checkpoint"). A file
// that is replaced stays until the new one is whole. Errors are kStorage.
Status check_room(const std::string& path, int64_t bytes, std::string_view what);

// Writes all bytes to an open file. `path` is its name in errors, which are kStorage.
Status write_all(int handle, std::string_view bytes, const std::string& path);

// A file that is written beside the one whose place it takes: nobody sees it before it is whole.
// Bytes for a device or a pipe wait in memory until they are published. Links stay links.
class UnseenFile {
 public:
  // Deferred parts are made one at a time; the others have to outlive it. Errors are kStorage.
  static Result<UnseenFile> write(const std::string& path, std::span<const Bytes> parts);
  UnseenFile(UnseenFile&& other) noexcept;
  UnseenFile& operator=(UnseenFile&&) = delete;
  ~UnseenFile();  // removes it, unless it was published
  // Flushes it to the disk, and renames it. Called once.
  Status publish();

 private:
  UnseenFile() = default;
  Error broken(Error error) const;
  std::string path_, name_;
  int handle_ = -1;  // -1: of a device or a pipe
  size_t bytes_ = 0;
  std::vector<Bytes> kept_;
};

}  // namespace piper
