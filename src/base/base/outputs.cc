// Compares the files that a program is to write with those that it reads. Called by tools first.
#include "piper/base/outputs.h"

#include <algorithm>
#include <filesystem>

#include "piper/base/folders.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

// Returns whether one file is written there: a device may have many uses.
bool is_file(const OutputFile& output) {
  std::error_code ignored;
  const fs::file_status about = fs::status(output.path, ignored);
  return !output.path.empty() &&
         (!fs::exists(about) || fs::is_regular_file(about) || fs::is_directory(about));
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
    PIPER_TRY(check_not_read(std::span(&file, 1), inputs));
    for (const OutputFile& other : outputs)
      if (&other < &file && is_file(file) && is_file(other) && are_one_file(file.path, other.path))
        return used_twice(file, fmt::format("{} writes this file, too", other.flag));
  }
  return ok_status();
}

Status check_not_read(std::span<const OutputFile> outputs, std::span<const std::string> inputs) {
  for (const OutputFile& file : outputs) {
    const auto is_it = [&](const std::string& other) { return are_one_file(file.path, other); };
    std::error_code ignored;
    if (is_file(file) && fs::exists(file.path, ignored) && std::ranges::any_of(inputs, is_it))
      return used_twice(file, "this file is read, and would be replaced");
  }
  return ok_status();
}

}  // namespace piper
