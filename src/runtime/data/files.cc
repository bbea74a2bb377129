// Opens data files, compares them with what they were, and finds those that patterns name.
#include "files.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "piper/base/digester.h"
#include "piper/base/folders.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

void add_content(Digester& digester, const Bytes& file, size_t compared) {
  constexpr size_t kBlock = size_t{64} << 10;
  const std::string_view text = as_text(file.span());
  digester.add(fmt::format("{}\n", text.size()));
  if (text.size() <= compared) return digester.add(text);
  const size_t blocks = compared / kBlock;
  for (size_t i = 0; i < blocks; ++i)
    digester.add(text.substr((text.size() - kBlock) / (blocks - 1) * i, kBlock));
}

Result<std::string> content_of(const std::string& path, size_t compared) {
  PIPER_ASSIGN(const Bytes file, map_file(path));
  const MappedRead reading(path);
  Digester digester;
  add_content(digester, file, compared);
  PIPER_TRY(check_losses());
  return digester.digest();
}

bool has_tokens(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".bin" || extension == ".npy" || extension == ".safetensors";
}

// Returns the files of a folder that are not hidden.
std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names = files_in(folder);
  std::erase_if(names, [](const std::string& name) { return name.starts_with("."); });
  return names;
}

std::vector<std::string> match_files(const std::string& pattern) {
  std::vector<std::string> found;
  glob_t result = {};
  std::error_code ignored;
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &result) == 0)
    for (size_t i = 0; i < result.gl_pathc; ++i)
      if (fs::is_regular_file(result.gl_pathv[i], ignored)) found.push_back(result.gl_pathv[i]);
  globfree(&result);
  std::sort(found.begin(), found.end());
  return found;
}

// Says what the nearest folder that exists has.
Error nothing_found(const std::string& text) {
  fs::path folder = fs::path(text).parent_path();
  std::error_code ignored;
  while (!folder.empty() && !fs::is_directory(folder, ignored) && folder != folder.parent_path())
    folder = folder.parent_path();
  const std::vector<std::string> names = files_of(folder.string());
  Error error = fail("no file is named '{}'{}", text,
                     did_you_mean(fs::path(text).filename().string(), names));
  constexpr size_t kMost = 5;
  const size_t shown = std::min(names.size(), kMost);
  std::string has = join(std::span(names).first(shown), ", ");
  if (names.size() > shown) has += fmt::format(" and {} others", names.size() - shown);
  error.notes.push_back(fmt::format("{} has {}", folder.empty() ? "." : folder.string(),
                                    names.empty() ? "no files" : has));
  if (text.find(':') != std::string::npos)
    error.notes.push_back("help: a type of raw tokens is :u8, :i8, :u16, :i16, :u32, :i32 or :i64");
  return error;
}

}  // namespace

Result<DataFile> DataFile::open(const std::string& path, size_t compared) {
  DataFile file;
  file.path_ = path;
  file.compared_ = compared;
  PIPER_ASSIGN(file.content_, content_of(path, compared));
  stat(path.c_str(), &file.about_);
  file.seen_ = file.about_;
  return file;
}

std::optional<struct stat> DataFile::look_again() const {
  struct stat now = {};
  const bool is_there =
      stat(path_.c_str(), &now) == 0 && now.st_dev == about_.st_dev && now.st_ino == about_.st_ino;
  return is_there ? std::optional(now) : std::nullopt;
}

bool DataFile::is_cut() const {
  const auto now = look_again();
  return now && now->st_size < about_.st_size;
}

// Returns whether the file was written to. Programs can set all its times except the one of the
// last change of content or status (ctime), so that decides. Where only a part of the content is
// compared and is the same, such a change counts as a write unless it explains itself by mode,
// owner or links.
bool DataFile::is_written_to(const struct stat& now) const {
  if (now.st_ctim.tv_sec == seen_.st_ctim.tv_sec && now.st_ctim.tv_nsec == seen_.st_ctim.tv_nsec)
    return false;
  const Result<std::string> content = content_of(path_, compared_);
  if (!content || *content != content_) return true;
  const bool has_other = now.st_mode != seen_.st_mode || now.st_uid != seen_.st_uid ||
                         now.st_gid != seen_.st_gid || now.st_nlink != seen_.st_nlink;
  if (static_cast<size_t>(now.st_size) > compared_ && !has_other) return true;
  seen_ = now;
  return false;
}

Status DataFile::check() const {
  const auto now = look_again();
  if (now && now->st_size < about_.st_size) return loss_of(path_);
  if (!now || !is_written_to(*now)) return ok_status();
  return fail(
             "'{}' was written to while it was in use: what was read before and after does "
             "not belong together",
             path_)
      .with_code(ExitCode::kStorage)
      .with_note("help: write beside it and rename; a job keeps to the file that it has opened");
}

Result<std::vector<std::string>> find_data_files(const std::string& text) {
  std::error_code ignored;
  if (fs::is_directory(text, ignored)) {
    std::vector<std::string> found;
    for (const std::string& name : files_of(text))
      if (has_tokens(name)) found.push_back((fs::path(text) / name).string());
    if (found.empty())
      return nothing_found((fs::path(text) / "*.bin").string())
          .with_note("help: of a folder, files that end in .bin, .npy or .safetensors are read");
    return found;
  }
  if (fs::exists(text, ignored)) return std::vector{text};  // whatever characters it has
  std::vector<std::string> found = match_files(text);
  if (found.empty()) return nothing_found(text);
  return found;
}

}  // namespace piper
