// Makes folders, replaces one as a whole, and lists what is in one.
#include "piper/base/folders.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace piper {

Error cannot_store(std::string_view verb, const std::string& path, int problem) {
  return fail("cannot {} '{}': {}", verb, path, std::strerror(problem))
      .with_code(ExitCode::kStorage);
}

Status flush_folder(const std::string& folder) {
  const int handle = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int problem = handle < 0 || fsync(handle) != 0 ? errno : 0;
  if (handle >= 0) close(handle);
  if (problem == 0 || problem == EINVAL || problem == ENOTSUP || problem == EACCES)
    return ok_status();
  return cannot_store("write", folder, problem);
}

Status make_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code problem, unknown;
  std::vector<fs::path> hold_new;  // the folders in which new names will be
  for (fs::path at = fs::absolute(folder, unknown);
       !fs::exists(at, unknown) && at.has_relative_path(); at = at.parent_path())
    hold_new.push_back(at.parent_path());
  fs::create_directories(folder, problem);
  if (problem)
    return fail("cannot create '{}': {}", folder, problem.message()).with_code(ExitCode::kStorage);
  for (const fs::path& above : hold_new) PIPER_TRY(flush_folder(above.string()));
  return ok_status();
}

Result<std::string> replace_folder(const std::string& built, const std::string& folder) {
  const auto refused = [&](int problem) { return cannot_store("replace", folder, problem); };
  if (renameat2(AT_FDCWD, built.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0)
    return built;
  if (errno != EINVAL && errno != ENOSYS) return refused(errno);
  const std::string aside = built + ".old";
  if (std::rename(folder.c_str(), aside.c_str()) != 0) return refused(errno);
  if (std::rename(built.c_str(), folder.c_str()) == 0) return aside;
  const int problem = errno;
  (void)std::rename(aside.c_str(), folder.c_str());
  return refused(problem);
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code problem, ignored;
  for (std::filesystem::directory_iterator it(folder.empty() ? "." : folder, problem), end;
       !problem && it != end; it.increment(problem))
    if (it->is_regular_file(ignored)) names.push_back(it->path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> files_beside(const std::string& path, std::string_view extension) {
  std::vector<std::string> names = files_in(std::filesystem::path(path).parent_path().string());
  std::erase_if(names, [&](const std::string& name) {
    return std::filesystem::path(name).extension() != extension;
  });
  return names;
}

}  // namespace piper
