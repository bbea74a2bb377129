// Spaces of a search: the file that lists schedules, ways to save memory, and beginnings.
#include <algorithm>

#include "choices.h"
#include "piper/base/library.h"
#include "piper/base/maps.h"

namespace piper {
namespace {

using yaml::check_keys;
using yaml::Node;
using yaml::read_count;

Result<std::vector<std::string>> read_names(const Node& root, std::string_view key) {
  const yaml::Entry* entry = root.find(key);
  if (!entry) return fail(root.at, "the space needs '{}'", key);
  if (!entry->value.is(Node::Kind::kList) || entry->value.items.empty())
    return fail(entry->value.at, "'{}' must be a list of names of the library, not {}", key,
                yaml::found(entry->value));
  std::vector<std::string> names;
  for (const Node& item : entry->value.items) {
    if (!item.is(Node::Kind::kScalar))
      return fail(item.at, "'{}' has {} in place of a name", key, yaml::found(item));
    names.push_back(item.text);
  }
  return names;
}

// Each item is a name, or a name and what it needs.
Result<std::vector<SearchSpace::Beside>> read_beside(const Node& list) {
  if (!list.is(Node::Kind::kList))
    return fail(list.at, "'beside' must be a list of names of the library, not {}",
                yaml::found(list));
  std::vector<std::string> known;
  for (const choices::ChoicePart& part : choices::kParts) known.emplace_back(part.name);
  std::vector<SearchSpace::Beside> files;
  for (const Node& item : list.items) {
    if (item.is(Node::Kind::kScalar)) {
      files.push_back({item.text, ""});
      continue;
    }
    if (!item.is(Node::Kind::kMap) || item.entries.size() != 1)
      return fail(item.at, "'beside' has {} in place of a name or of {{NAME: CHOICE}}",
                  yaml::found(item));
    const yaml::Entry& entry = item.entries.front();
    if (!std::ranges::count(known, entry.value.text))
      return fail(entry.value.at, "'{}' needs {}, which is none of {}", entry.key.text,
                  yaml::found(entry.value), join(known, ", "));
    files.push_back({entry.key.text, entry.value.text});
  }
  return files;
}

Result<SearchSpace::Begin> read_begin(const Node& node, const SearchSpace& space) {
  PIPER_TRY(check_keys(node, "a beginning", {"pipeline", "tensor", "schedule", "memory"}));
  SearchSpace::Begin begin{1, 1, space.schedules.front(), space.memory.front()};
  for (const yaml::Entry& entry : node.entries) {
    const std::string& key = entry.key.text;
    if (key == "tensor" && entry.value.text == "node") {
      begin.tensor = 0;
    } else if (key == "pipeline" || key == "tensor") {
      PIPER_ASSIGN((key == "tensor" ? begin.tensor : begin.pipeline), read_count(entry.value, key));
    } else {
      const auto& known = key == "schedule" ? space.schedules : space.memory;
      if (std::find(known.begin(), known.end(), entry.value.text) == known.end())
        return fail(entry.value.at, "'{}' is {}, which the list above has not{}", key,
                    yaml::found(entry.value), did_you_mean(entry.value.text, known));
      (key == "schedule" ? begin.schedule : begin.memory) = entry.value.text;
    }
  }
  return begin;
}

Result<SearchSpace> read_root(const Node& root, const std::string& path) {
  PIPER_TRY(check_keys(root, "the space",
                       {"piper_space", "schedules", "memory", "recompute", "budget", "context",
                        "experts", "beside", "begin"}));
  const yaml::Entry* version = root.find("piper_space");
  if (!version || version->value.text != "1")
    return fail(version ? version->value.at : root.at,
                "the file must say 'piper_space: 1', the version of its format");
  SearchSpace space{.path = path};
  PIPER_ASSIGN(space.schedules, read_names(root, "schedules"));
  PIPER_ASSIGN(space.memory, read_names(root, "memory"));
  for (const auto& [key, names] :
       {std::pair("context", &space.context), {"recompute", &space.recompute}})
    if (root.find(key)) {
      PIPER_ASSIGN(*names, read_names(root, key));
    }
  for (const auto& [key, name] : {std::pair("experts", &space.experts), {"budget", &space.budget}})
    if (const yaml::Entry* entry = root.find(key)) {
      if (!entry->value.is(Node::Kind::kScalar))
        return fail(entry->value.at, "'{}' must be a name of the library, not {}", key,
                    yaml::found(entry->value));
      *name = entry->value.text;
    }
  if (const yaml::Entry* beside = root.find("beside")) {
    PIPER_ASSIGN(space.beside, read_beside(beside->value));
  }
  const yaml::Entry* begin = root.find("begin");
  if (!begin || !begin->value.is(Node::Kind::kList) || begin->value.items.empty())
    return fail(begin ? begin->value.at : root.at, "the space needs 'begin', a list of beginnings");
  for (const Node& item : begin->value.items) {
    PIPER_ASSIGN(space.begin.emplace_back(), read_begin(item, space));
  }
  return space;
}

}  // namespace

Result<SearchSpace> read_space(const std::string& name, const std::vector<std::string>& folders) {
  std::string path = name;
  if (is_library_name(name)) {
    PIPER_ASSIGN(path, find_in_library(name, folders, SourceSpan{}, LibraryPart::kSpaces));
  }
  Result<std::string> text = read_text_file(path, yaml::kMaxBytes);
  if (!text)
    return with_library_names(std::move(text).error(), path, folders, LibraryPart::kSpaces);
  PIPER_ASSIGN(const yaml::Node root, yaml::parse_yaml(path, *text));
  return read_root(root, path);
}

}  // namespace piper
