// Compares the files that a program is to write with those that it reads. Called by tools first.
#include "piper/base/outputs.h"

#include <algorithm>
#include <filesystem>

#include "piper/base/folders.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

bool is_device(const std::string& path) {
  std::error_code ignored;
  const fs::file_status about = fs::status(path, ignored);
  return fs::exists(about) && !fs::is_regular_file(about) && !fs::is_directory(about);
}

// Returns whether two paths lead to one file, also to one that is not there yet.
bool are_one_file(const std::string& a, const std::string& b) {
  std::error_code problem;
  if (fs::equivalent(a, b, problem)) return true;
  const fs::path first = fs::weakly_canonical(a, problem);
  if (problem) return false;
  const fs::path second = fs::weakly_canonical(b, problem);
  return !problem && first == second;
}

Error used_twice(const OutputFile& file, std::string_view what) {
  return fail("{} {}: {}", file.flag, quote_control(file.path), what)
      .with_code(ExitCode::kUsage)
      .with_note("help: name another file");
}

}  // namespace

Status check_outputs(std::span<const OutputFile> outputs, std::span<const std::string> inputs) {
  for (const OutputFile& file : outputs) {
    PIPER_TRY(check_output(file.path));
    if (file.path.empty() || is_device(file.path)) continue;
    std::error_code ignored;
    const auto is_it = [&](const std::string& other) { return are_one_file(file.path, other); };
    if (fs::exists(file.path, ignored) && std::ranges::any_of(inputs, is_it))
      return used_twice(file, "this file is read, and would be replaced");
    for (const OutputFile& other : outputs)
      if (&other < &file && !other.path.empty() && is_it(other.path))
        return used_twice(file, fmt::format("{} writes this file, too", other.flag));
  }
  return ok_status();
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code problem;
  for (fs::directory_iterator it(folder, problem), end; !problem && it != end;
       it.increment(problem))
    if (std::error_code ignored; it->is_regular_file(ignored)) files.push_back(it->path().string());
  std::ranges::sort(files);
  return files;
}

}  // namespace piper
