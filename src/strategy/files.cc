#include <algorithm>
#include <filesystem>
#include <utility>

#include "sections.h"

namespace piper {
namespace {

constexpr size_t kMaxFiles = 64;

// Reads a file after the files it includes; each file once.
class Loader {
 public:
  explicit Loader(ErrorList& errors) : errors_(errors) {}
  Status load(const std::string& path, const SourceSpan& from) {
    const std::string key = identity(path);
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) return ok_status();
    if (auto it = std::find(open_.begin(), open_.end(), key); it != open_.end()) {
      return fail(from, "the file '{}' includes itself", path)
          .with_note(
              fmt::format("the way is {} -> {}", join(std::span(it, open_.end()), " -> "), key));
    }
    if (open_.size() + seen_.size() >= kMaxFiles) {
      return fail(from, "more than {} files are included", kMaxFiles);
    }
    PIPER_ASSIGN(StrategyFile file, read(path, from));
    open_.push_back(key);
    PIPER_TRY(load_included(file));
    open_.pop_back();
    seen_.push_back(key);
    files_.push_back(std::move(file));
    return ok_status();
  }
  std::vector<StrategyFile> take() { return std::move(files_); }

 private:
  static std::string identity(const std::string& path) {
    std::error_code code;
    const auto full = std::filesystem::weakly_canonical(path, code);
    return code ? path : full.string();
  }

  Result<StrategyFile> read(const std::string& path, const SourceSpan& from) {
    auto text = read_text_file(path, yaml::kMaxBytes);
    if (!text) {
      Error error = std::move(text).error();
      if (from.line == 0) return error;
      return fail(from, "cannot include '{}'", path)
          .with_note(error.message)
          .with_note("help: paths are relative to the folder of this file");
    }
    StrategyFile file{path, *std::move(text), {}};
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

  Status load_included(const StrategyFile& file) {
    const yaml::Entry* include = file.root.find("include");
    if (include == nullptr) return ok_status();
    const yaml::Node& value = include->value;
    std::vector<const yaml::Node*> paths;
    if (value.is(yaml::Node::Kind::kList)) {
      for (const yaml::Node& item : value.items) paths.push_back(&item);
    } else {
      paths.push_back(&value);
    }
    for (const yaml::Node* node : paths) {
      if (!node->is(yaml::Node::Kind::kScalar) || node->text.empty()) {
        return wrong_type(*node, "the path of a strategy file");
      }
      const auto beside = std::filesystem::path(file.path).parent_path() / node->text;
      PIPER_TRY(load(beside.lexically_normal().string(), node->at));
    }
    return ok_status();
  }

  ErrorList& errors_;
  std::vector<StrategyFile> files_;
  std::vector<std::string> seen_, open_;
};

void add_params(const yaml::Entry& section, Sections& out, ErrorList& errors) {
  if (!section.value.is(yaml::Node::Kind::kMap))
    errors.add(wrong_type(section.value, "a map of params"));
  for (const yaml::Entry& param : section.value.entries) {
    if (Status named = check_new_name(param.key, "a param"); !named) {
      errors.add(std::move(named));
      continue;
    }
    auto it = std::find_if(out.params.begin(), out.params.end(),
                           [&](const yaml::Entry* e) { return e->key.text == param.key.text; });
    if (it != out.params.end()) {
      out.overridden.push_back(std::exchange(*it, &param));
    } else {
      out.params.push_back(&param);
    }
  }
}

}  // namespace

Result<std::vector<StrategyFile>> load_files(const std::string& path, ErrorList& errors) {
  Loader loader(errors);
  PIPER_TRY(loader.load(path, {path}));
  return loader.take();
}

const yaml::Entry* Sections::find(std::string_view name) const {
  for (const auto& [key, entry] : once) {
    if (key == name) return entry;
  }
  return nullptr;
}

Sections gather_sections(const std::vector<StrategyFile>& files, ErrorList& errors) {
  Sections out;
  for (const StrategyFile& file : files) {
    for (const yaml::Entry& entry : file.root.entries) {
      const std::string& name = entry.key.text;
      if (name == "piper" || name == "include" || entry.value.is(yaml::Node::Kind::kNull)) continue;
      if (name == "params") {
        add_params(entry, out, errors);
      } else if (name == "annotate") {
        out.annotate.push_back(&entry);
      } else if (name == "directives") {
        out.directives.push_back(&entry);
      } else if (name == "require") {
        out.require.push_back(&entry);
      } else if (const yaml::Entry* first = out.find(name)) {
        errors.add(fail(entry.key.at, "'{}' is given in two files", name)
                       .with_note(fmt::format("first at {}", yaml::place(first->key.at))));
      } else {
        out.once.emplace_back(name, &entry);
      }
    }
  }
  return out;
}

}  // namespace piper
