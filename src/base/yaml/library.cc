// Finds files of the library by name: in folders of -I, of PIPER_STRATEGIES, and beside the
// program.
#include "piper/base/library.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

namespace piper {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".yaml";
// Describes a part of the library: its folder, the word for one of its files, and an example.
struct PartNames {
  const char *folder, *noun, *example;
};
constexpr PartNames kParts[] = {{"", "", "'<FOLDER/NAME>', such as '<numerics/bf16>'"},
                                {"clusters", "cluster ", "'<NAME>', such as '<h100x8>'"},
                                {"spaces", "space ", "'<NAME>', such as '<usual>'"}};
const PartNames& names_of(LibraryPart part) { return kParts[static_cast<size_t>(part)]; }
constexpr size_t kMaxListed = 100;     // that an error lists
constexpr size_t kMaxEntries = 10000;  // of a folder, where what is no library is named as one

std::vector<fs::path> searched(const std::vector<std::string>& folders, LibraryPart part) {
  std::vector<fs::path> all(folders.begin(), folders.end());
  if (const char* more = std::getenv("PIPER_STRATEGIES"))
    for (const std::string& folder : split_text(more, ':'))
      if (!folder.empty()) all.emplace_back(folder);
  std::error_code code;
  const fs::path program = fs::read_symlink("/proc/self/exe", code);
  if (!code)
    all.push_back((program.parent_path() / "../share/piper/strategies").lexically_normal());
  if (part != LibraryPart::kStrategies)
    for (fs::path& folder : all) folder /= names_of(part).folder;
  return all;
}

// Returns numerics/bf16.yaml for "<numerics/bf16>". Error: the path leads out of the library.
Result<fs::path> file_of(std::string_view name, const SourceSpan& from, LibraryPart part) {
  const bool is_closed = name.size() > 2 && name.ends_with('>');
  const fs::path path =
      is_closed ? fs::path(name.substr(1, name.size() - 2)).lexically_normal() : fs::path();
  if (!path.has_filename() || path.is_absolute() || path == "." || *path.begin() == "..")
    return fail(from, "'{}' is no name of the library", quote_control(name))
        .with_note(
            fmt::format("help: write {}; './' begins the path of a file whose name begins with '<'",
                        names_of(part).example));
  return path.extension() == kEnding ? path : fs::path(path.string() + kEnding);
}

// Returns whether the path, within a folder that is searched for the part, may be one of its files.
bool is_of(const fs::path& path, LibraryPart part) {
  if (part != LibraryPart::kStrategies) return true;
  return std::none_of(std::begin(kParts), std::end(kParts), [&](const PartNames& other) {
    return path.begin()->string() == other.folder;
  });
}

// Returns the names of all files in the folders, as an include writes them, sorted.
std::vector<std::string> names_in(const std::vector<fs::path>& folders, LibraryPart part) {
  std::set<std::string> names;
  for (const fs::path& folder : folders) {
    std::error_code code;
    size_t left = kMaxEntries;
    fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied,
                                        code);
    for (; !code && it != fs::recursive_directory_iterator() && left > 0;
         it.increment(code), --left) {
      const fs::path path = it->path().lexically_relative(folder);
      if (path.extension() == kEnding && is_of(path, part))
        names.insert(fs::path(path).replace_extension().string());
    }
  }
  return {names.begin(), names.end()};
}

std::string last_part(const std::string& name) { return name.substr(name.rfind('/') + 1); }

// Returns the names whose last part is nearest to the wanted one's, in whatever folder, and the
// name that is nearest as a whole.
std::vector<std::string> near_names(const std::string& wanted,
                                    const std::vector<std::string>& names) {
  std::vector<std::string> last;
  for (const std::string& name : names) last.push_back(last_part(name));
  const std::optional<std::string> alike = nearest(last_part(wanted), last);
  const std::optional<std::string> whole = nearest(wanted, names);
  std::vector<std::string> near;
  for (const std::string& name : names)
    if (name == whole || last_part(name) == alike) near.push_back("'<" + name + ">'");
  return near;
}

Error not_found(const fs::path& file, const std::vector<fs::path>& folders, const SourceSpan& from,
                LibraryPart part) {
  const std::string wanted = fs::path(file).replace_extension().string();
  const std::vector<std::string> names = names_in(folders, part);
  const std::vector<std::string> near = near_names(wanted, names);
  const std::string meant =
      near.empty() ? "" : fmt::format(" (did you mean {}?)", join(near, " or "));
  Error error = fail(from, "the library has no {}'<{}>'{}", names_of(part).noun,
                     quote_control(wanted), meant);
  for (const fs::path& folder : folders) {
    std::error_code code;
    error.notes.push_back(
        fmt::format("looked in '{}'{}", quote_control(folder.string()),
                    fs::is_directory(folder, code) ? "" : ", which is no folder"));
  }
  if (near.empty() && !names.empty() && names.size() <= kMaxListed)
    error.notes.push_back("it has " + join(names, ", "));
  return std::move(error).with_note(
      "help: '-I DIR' and the variable PIPER_STRATEGIES (DIR:DIR:…) name folders to look in first");
}

}  // namespace

Result<std::string> find_in_library(std::string_view name, const std::vector<std::string>& folders,
                                    const SourceSpan& from, LibraryPart part) {
  PIPER_ASSIGN(const fs::path file, file_of(name, from, part));
  const std::vector<fs::path> all = searched(folders, part);
  for (const fs::path& folder : all) {
    if (!is_of(file, part)) break;
    std::error_code code;
    if (fs::status(folder / file, code).type() != fs::file_type::not_found)
      return (folder / file).string();
  }
  return not_found(file, all, from, part);
}

Error with_library_names(Error error, const std::string& path,
                         const std::vector<std::string>& folders, LibraryPart part) {
  std::error_code code;
  if (fs::exists(path, code)) return error;
  const fs::path file(path);
  const std::string wanted =
      (file.extension() == kEnding ? fs::path(file).replace_extension() : file).string();
  const std::vector<std::string> near = near_names(wanted, names_in(searched(folders, part), part));
  if (near.empty()) return error;
  return std::move(error).with_note(fmt::format("help: {} {} of the library", join(near, " or "),
                                                near.size() == 1 ? "is a name" : "are names"));
}

}  // namespace piper
