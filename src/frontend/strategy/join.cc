// What several files say together.
#include <algorithm>
#include <filesystem>
#include <map>

#include "sections.h"

namespace piper {
namespace {

using fields::Type;

bool same_value(const yaml::Node& a, const yaml::Node& b) {
  const auto same_entry = [](const yaml::Entry& x, const yaml::Entry& y) {
    return x.key.text == y.key.text && same_value(x.value, y.value);
  };
  return a.kind == b.kind && a.text == b.text &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), same_value) &&
         std::equal(a.entries.begin(), a.entries.end(), b.entries.begin(), b.entries.end(),
                    same_entry);
}

bool agree(const Given& a, const Given& b) {
  return a.value && b.value ? same_value(*a.value, *b.value) : !a.value && !b.value;
}

using FileEntry = std::pair<size_t, const yaml::Entry*>;

// The entries of several maps by key, in the order in which keys are read first.
std::vector<std::vector<FileEntry>> by_key(const std::vector<FileEntry>& maps) {
  std::vector<std::vector<FileEntry>> out;
  std::map<std::string_view, size_t> index;
  for (const auto& [file, section] : maps)
    for (const yaml::Entry& entry : section->value.entries) {
      const auto [at, is_new] = index.emplace(entry.key.text, out.size());
      if (is_new) out.emplace_back();
      out[at->second].emplace_back(file, &entry);
    }
  return out;
}

class Joiner {
 public:
  Joiner(const std::vector<StrategyFile>& files, Choice& choice, ErrorList& errors)
      : files_(files), choice_(choice), errors_(errors) {}

  Sections join() {
    for (const fields::Field& field : fields::object("strategy").fields) {
      std::vector<FileEntry> given;
      for (size_t i = 0; i < files_.size(); ++i)
        if (const yaml::Entry* entry = files_[i].root.find(field.name);
            entry && !entry->value.is(yaml::Node::Kind::kNull))
          given.emplace_back(i, entry);
      if (!given.empty() && field.name != "piper" && field.name != "include") join(field, given);
    }
    return std::move(out_);
  }

 private:
  void join(const fields::Field& field, const std::vector<FileEntry>& given) {
    if (field.name == "params") return join_params(given);
    switch (field.form.type) {
      case Type::kMany:
        return join_lists(field, given);
      case Type::kManyOrOne:
        for (const auto& [file, entry] : given) out_.annotate.push_back(*entry);
        return;
      case Type::kOne:
      case Type::kNamed:
      case Type::kCounts:
        return join_maps(given);
      default:
        out_.once.push_back(take(given, fmt::format("'{}'", field.name)));
    }
  }

  size_t counting(const std::vector<FileEntry>& entries, std::string_view what) {
    std::vector<Given> given;
    for (const auto& [file, entry] : entries) given.push_back({file, &entry->key, &entry->value});
    return choice_.among(given, what);
  }
  const yaml::Entry& take(const std::vector<FileEntry>& entries, std::string_view what) {
    const size_t chosen = counting(entries, what);
    for (size_t i = 0; i < entries.size(); ++i)
      if (i != chosen) out_.overridden.push_back(&entries[i].second->value);
    return *entries[chosen].second;
  }

  void join_params(const std::vector<FileEntry>& given) {
    for (const auto& [file, section] : given)
      if (!section->value.is(yaml::Node::Kind::kMap))
        errors_.add(wrong_type(section->value, "a map of params"));
    for (const std::vector<FileEntry>& entries : by_key(given)) {
      const yaml::Node& key = entries[0].second->key;
      if (Status named = check_new_name(key, "a param"); !named) {
        errors_.add(std::move(named));
        continue;
      }
      const size_t chosen = counting(entries, fmt::format("the param '{}'", key.text));
      for (size_t i = 0; i < entries.size(); ++i)
        (i == chosen ? out_.params : out_.overridden_params).push_back(entries[i].second);
    }
  }

  // What is no map is left to who reads it.
  void join_maps(const std::vector<FileEntry>& given) {
    yaml::Entry joined = *given[0].second;
    for (const auto& [file, section] : given)
      if (!section->value.is(yaml::Node::Kind::kMap)) return out_.once.push_back(*section);
    joined.value.entries.clear();
    for (const std::vector<FileEntry>& entries : by_key(given)) {
      const std::string what =
          fmt::format("'{}' of '{}'", entries[0].second->key.text, joined.key.text);
      joined.value.entries.push_back(take(entries, what));
    }
    out_.once.push_back(std::move(joined));
  }

  void join_lists(const fields::Field& field, const std::vector<FileEntry>& given) {
    auto& list = field.name == "directives" ? out_.directives
                 : field.name == "require"  ? out_.require
                                            : out_.parameters;
    for (const auto& [file, section] : given) {
      if (!section->value.is(yaml::Node::Kind::kList))
        errors_.add(no_list(section->value, fmt::format("a list for '{}'", field.name)));
      for (const yaml::Node& item : section->value.items) list.push_back({file, item});
    }
  }

  const std::vector<StrategyFile>& files_;
  Choice& choice_;
  ErrorList& errors_;
  Sections out_;
};

}  // namespace

size_t Choice::among(const std::vector<Given>& given, std::string_view what) {
  std::optional<size_t> chosen;
  for (size_t i = 0; i < given.size(); ++i) {
    const bool overridden = std::any_of(given.begin(), given.end(), [&](const Given& other) {
      return files_[other.file].below.contains(given[i].file);
    });
    if (overridden) continue;
    if (!chosen)
      chosen = i;
    else if (!agree(given[*chosen], given[i]))
      clash(given[*chosen], given[i], what);
  }
  return *chosen;
}

void Choice::clash(const Given& first, const Given& second, std::string_view what) {
  if (!clashes_.emplace(first.file, second.file).second) return;
  Error error = fail(second.key->at, "{} is given twice", what)
                    .with_note(fmt::format("first at {}", yaml::place(first.key->at)));
  std::vector<std::string> more;
  for (const size_t file : {first.file, second.file}) note_includer(file, error, more);
  error.notes.push_back(
      "help: neither file includes the other; give it in a file that includes both, or include one "
      "of them");
  error.notes.insert(error.notes.end(), more.begin(), more.end());
  errors_.add(std::move(error));
}

// Says through which other file the first one includes a file, and what that brings besides.
void Choice::note_includer(size_t file, Error& error, std::vector<std::string>& help) const {
  const SourceSpan& from = files_[file].from;
  const auto by = std::ranges::find(files_, from.file, &StrategyFile::path);
  if (from.line == 0 || by == files_.end() || by->from.line == 0) return;
  const std::filesystem::path folder = std::filesystem::path(by->path).parent_path();
  const auto name = [&](const std::string& path) {
    return std::filesystem::path(path).lexically_relative(folder).string();
  };
  error.notes.push_back(fmt::format("{} is included at {}, and {} at {}", name(files_[file].path),
                                    yaml::place(from), name(by->path), yaml::place(by->from)));
  std::vector<std::string> others;
  for (const StrategyFile& other : files_)
    if (other.from.file == by->path && other.path != files_[file].path)
      others.push_back(name(other.path));
  if (!others.empty())
    help.push_back(fmt::format("help: {} in place of {} leaves {} out", join(others, " and "),
                               name(by->path), name(files_[file].path)));
}

Sections join_files(const std::vector<StrategyFile>& files, Choice& choice, ErrorList& errors) {
  return Joiner(files, choice, errors).join();
}

const yaml::Entry* Sections::find(std::string_view name) const {
  for (const yaml::Entry& entry : once)
    if (entry.key.text == name) return &entry;
  return nullptr;
}

}  // namespace piper
