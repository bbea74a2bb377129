// Writes files of tensors for other programs, so that readers find a whole one.
#include "files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "piper/base/digester.h"
#include "piper/base/folders.h"

namespace piper {

int flush_and_forget(int file) {
  if (fsync(file) != 0) return errno;
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);  // advice: a file system may not take it
  return 0;
}

Status check_new(const std::string& file, bool replace) {
  std::error_code ignored;
  if (replace || !std::filesystem::exists(file, ignored)) return ok_status();
  const bool is_folder = std::filesystem::is_directory(file, ignored);
  if (is_folder && std::filesystem::is_empty(file, ignored)) return ok_status();
  return fail("'{}' is there{}", file, is_folder ? " and not empty" : "")
      .with_code(ExitCode::kInput)
      .with_note("help: --force writes over it");
}

namespace {

// Makes what was written last, before the file takes the place of an older one.
Status flush_file(const std::string& file) {
  const int opened = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const int problem = opened < 0 ? errno : flush_and_forget(opened);
  if (opened >= 0) close(opened);
  if (problem == 0) return ok_status();
  return cannot_store("write", file, problem);
}

}  // namespace

Status write_checked(const std::string& file, std::span<const NamedTensor> expected,
                     const std::function<Result<std::string>(const std::string&)>& write) {
  const std::string built = file + ".partial";
  std::error_code ignored;
  std::filesystem::remove(built, ignored);  // what a run that was killed has left
  const auto write_and_compare = [&]() -> Status {
    PIPER_ASSIGN(const std::string written, write(built));
    PIPER_TRY(flush_file(built));
    PIPER_ASSIGN(const Bytes back, map_file(built));
    PIPER_ASSIGN(const std::vector<NamedTensor> read, read_safetensors(built));
    const bool same = std::equal(read.begin(), read.end(), expected.begin(), expected.end(),
                                 [](const NamedTensor& a, const NamedTensor& b) {
                                   return a.name == b.name && a.type == b.type;
                                 });
    if (same && digest(as_text(back.span())) == written) return ok_status();
    return fail("'{}' was written, and something else was read back", built)
        .with_code(ExitCode::kStorage);
  };
  Status written = write_and_compare();
  if (written && std::rename(built.c_str(), file.c_str()) != 0)
    written = cannot_store("write", file, errno);
  std::filesystem::remove(built, ignored);
  return written;
}

}  // namespace piper
