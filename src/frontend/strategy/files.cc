// Strategy files and the files that they include.
#include <algorithm>
#include <filesystem>

#include "piper/base/folders.h"
#include "piper/base/library.h"
#include "sections.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFiles = 64;

// Reads a file after the files it includes; each file once.
class Loader {
 public:
  Loader(const std::vector<Definition>& defines, const std::vector<std::string>& folders,
         ErrorList& errors)
      : defines_(defines), folders_(folders), errors_(errors) {}
  // Returns which of the files this is.
  Result<size_t> load(const std::string& path, const SourceSpan& from) {
    const std::string key = identity(path);
    if (auto it = std::find(seen_.begin(), seen_.end(), key); it != seen_.end())
      return static_cast<size_t>(it - seen_.begin());
    PIPER_TRY(check_open(path, key, from));
    PIPER_ASSIGN(StrategyFile file, read(path, from));
    open_.push_back({key, &file});
    PIPER_TRY(load_included(file));
    open_.pop_back();
    seen_.push_back(key);
    files_.push_back(std::move(file));
    return files_.size() - 1;
  }
  std::vector<StrategyFile> take() { return std::move(files_); }

 private:
  struct Open {
    std::string key;
    const StrategyFile* file;
  };

  static std::string identity(const std::string& path) {
    std::error_code code;
    const auto full = fs::weakly_canonical(path, code);
    return code ? path : full.string();
  }

  Status check_open(const std::string& path, const std::string& key, const SourceSpan& from) const {
    auto it = std::find_if(open_.begin(), open_.end(), [&](const Open& o) { return o.key == key; });
    if (it != open_.end()) {
      Error error = fail(from, "the file '{}' includes itself", path);
      for (++it; it != open_.end(); ++it)
        error.notes.push_back(
            fmt::format("'{}' is included at {}", it->file->path, yaml::place(it->file->from)));
      return error;
    }
    if (open_.size() + seen_.size() < kMaxFiles) return ok_status();
    return fail(from, "more than {} files are included", kMaxFiles);
  }

  static Error cannot_include(const fs::path& path, const SourceSpan& from, std::string_view why) {
    const std::vector<std::string> names = files_beside(path.string(), ".yaml");
    const std::string near = did_you_mean(path.filename().string(), names);
    Error error =
        fail(from, "cannot include '{}'{}", path.string(), near).with_note(std::string(why));
    if (near.empty() && names.size() > 1 && names.size() <= kMaxFiles)
      error.notes.push_back(fmt::format("the files there are {}", join(names, ", ")));
    return std::move(error).with_note(
        "help: paths are relative to the folder of this file; '<NAME>' is a file of the library");
  }

  Result<StrategyFile> read(const std::string& path, const SourceSpan& from) {
    if (from.line == 0 && path.ends_with(".onnx"))
      return fail(SourceSpan{path}, "a model stands where the strategy belongs")
          .with_note("help: the model is first: piperc MODEL.onnx STRATEGY.yaml");
    auto text = read_text_file(path, yaml::kMaxBytes);
    if (!text) {
      Error error = std::move(text).error();
      if (from.line > 0) return cannot_include(path, from, error.message);
      error.message +=
          did_you_mean(fs::path(path).filename().string(), files_beside(path, ".yaml"));
      return with_library_names(std::move(error), path, folders_);
    }
    StrategyFile file{path, *std::move(text), from, {}, {}, {}};
    PIPER_ASSIGN(file.root, yaml::parse_yaml(path, file.text));
    PIPER_TRY(check_version(file));
    return file;
  }

  Status check_version(const StrategyFile& file) {
    const SourceSpan whole{file.path, 1, 1, 1};
    if (file.root.is(yaml::Node::Kind::kNull))
      return fail(SourceSpan{file.path}, "the file is empty");
    const yaml::Entry* version = file.root.find("piper");
    if (file.root.is(yaml::Node::Kind::kMap) && version == nullptr) {
      return fail(whole, "a strategy file needs the key 'piper'")
          .with_note("help: write 'piper: 1' first");
    }
    auto keys = fields::read(file.root, whole, "strategy");
    if (!keys && !file.root.is(yaml::Node::Kind::kMap)) return std::move(keys).error();
    if (!keys) errors_.add(std::move(keys).error());
    PIPER_ASSIGN(const int64_t number, read_integer(version->value, {}, {}));
    if (number != 1) {
      return fail(version->value.at, "version {} of the strategy language is not supported", number)
          .with_note("help: this program reads version 1");
    }
    return ok_status();
  }

  Status load_included(StrategyFile& file) {
    const yaml::Entry* include = file.root.find("include");
    if (include == nullptr) return ok_status();
    const yaml::Node& value = include->value;
    const bool is_list = value.is(yaml::Node::Kind::kList);
    for (const yaml::Node& node : is_list ? std::span(value.items) : std::span(&value, 1)) {
      if (!node.is(yaml::Node::Kind::kScalar) || node.text.empty())
        return wrong_type(node, "the path of a strategy file");
      PIPER_ASSIGN(std::string path, read_path(node, open_params(), defines_));
      PIPER_ASSIGN(const std::string found, find(path, file, node.at));
      if (path != node.text) file.paths.push_back({node, std::move(path)});
      PIPER_ASSIGN(const size_t below, load(found, node.at));
      file.below.insert(below);
      file.below.insert(files_[below].below.begin(), files_[below].below.end());
    }
    return ok_status();
  }

  Result<std::string> find(const std::string& path, const StrategyFile& file,
                           const SourceSpan& from) const {
    if (is_library_name(path)) return find_in_library(path, folders_, from);
    return (fs::path(file.path).parent_path() / path).lexically_normal().string();
  }

  // Returns the params that count: of equal names that of the outermost file.
  std::vector<const yaml::Entry*> open_params() const {
    std::vector<const yaml::Entry*> out;
    for (const Open& open : open_) {
      const yaml::Entry* params = open.file->root.find("params");
      if (params == nullptr) continue;
      for (const yaml::Entry& param : params->value.entries)
        if (std::none_of(out.begin(), out.end(),
                         [&](const yaml::Entry* e) { return e->key.text == param.key.text; }))
          out.push_back(&param);
    }
    return out;
  }

  const std::vector<Definition>& defines_;
  const std::vector<std::string>& folders_;  // of the library, to look in first
  ErrorList& errors_;
  std::vector<StrategyFile> files_;
  std::vector<std::string> seen_;  // by file
  std::vector<Open> open_;
};

}  // namespace

Result<std::vector<StrategyFile>> load_files(const std::string& path,
                                             const std::vector<Definition>& defines,
                                             const std::vector<std::string>& folders,
                                             ErrorList& errors) {
  Loader loader(defines, folders, errors);
  PIPER_ASSIGN(const std::string file,
               is_library_name(path) ? find_in_library(path, folders, {}) : path);
  PIPER_TRY(loader.load(file, {}));
  return loader.take();
}

void check_paths(const std::vector<StrategyFile>& files, const Scope& scope, ErrorList& errors) {
  for (const StrategyFile& file : files)
    for (const auto& [node, path] : file.paths) {
      const Result<std::string> now = read_text(node, scope);
      if (!now)
        errors.add(now.error());
      else if (*now != path)
        errors.add(fail(node.at, "the path is '{}' where the file is read first, and '{}' in all",
                        path, *now)
                       .with_note("help: give its params in the outermost file"));
    }
}

}  // namespace piper
