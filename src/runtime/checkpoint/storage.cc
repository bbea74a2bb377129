// The file system as a place for checkpoints. Called by whoever writes, reads or lists them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "files.h"
#include "piper/base/folders.h"
#include "piper/runtime/checkpoint.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

struct Handle {
  int number;
  explicit Handle(int opened) : number(opened) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (number >= 0) close(number);
  }
};

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

class FileStorage : public Storage {
 public:
  Status write(const std::string& path, std::span<const std::string_view> parts) override {
    const std::string folder = parent_of(path);
    PIPER_TRY(make_folder(folder));
    const Handle file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (file.number < 0) return cannot_store("write", path, errno);
    for (const std::string_view part : parts) PIPER_TRY(write_all(file.number, part, path));
    if (const int problem = flush_and_forget(file.number); problem != 0)
      return cannot_store("write", path, problem);
    return flush_folder(folder);
  }

  Result<Bytes> read(const std::string& path) override { return map_file(path); }

  Result<std::vector<std::string>> list(const std::string& folder) override {
    std::vector<std::string> names;
    std::error_code problem;
    for (fs::directory_iterator it(folder, problem), end; !problem && it != end;
         it.increment(problem))
      names.push_back(it->path().filename().string());
    if (problem && problem != std::errc::no_such_file_or_directory)
      return cannot_store("read", folder, problem.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  Status publish(const std::string& built, const std::string& folder) override {
    PIPER_TRY(flush_folder(built));
    if (rename(built.c_str(), folder.c_str()) != 0) {
      if (errno != ENOTEMPTY && errno != EEXIST) return cannot_store("write", folder, errno);
      PIPER_ASSIGN(const std::string old, replace_folder(built, folder));
      PIPER_TRY(remove(old));
    }
    return flush_folder(parent_of(folder));
  }

  Status remove(const std::string& folder) override {
    const fs::path path(folder);
    const std::string gone =
        (path.parent_path() / (".removed-" + path.filename().string())).string();
    std::error_code problem;
    fs::remove_all(gone, problem);
    if (problem) return cannot_store("remove", gone, problem.value());
    if (rename(folder.c_str(), gone.c_str()) != 0)
      return errno == ENOENT ? ok_status() : Status(cannot_store("remove", folder, errno));
    fs::remove_all(gone, problem);
    if (problem) return cannot_store("remove", gone, problem.value());
    return ok_status();
  }
};

}  // namespace

Storage& file_storage() {
  static FileStorage storage;
  return storage;
}

}  // namespace piper
