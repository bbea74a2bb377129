// Files of the library as one text each, for tests that change them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>

#include "piper/base/base.h"

namespace piper {

// Returns whether a file of strategies/ is a strategy; the others describe clusters, and what is
// searched.
inline bool is_strategy(const std::filesystem::path& file) {
  const auto folder = file.parent_path().filename();
  return file.extension() == ".yaml" && folder != "clusters" && folder != "spaces";
}

// A strategy file by its keys, each with what stands behind the colon.
class StrategyText {
 public:
  // What the file and those that it includes say together, if each key stands in one form.
  static StrategyText read(const std::filesystem::path& path) {
    StrategyText out;
    const auto text = read_text_file(path.string(), 1 << 20);
    if (text) out.add_lines(*text);
    const auto include = out.find("include");
    if (include == out.keys_.end()) return out;
    std::string files = include->second.substr(1);
    std::erase_if(files, [](char c) { return c == '[' || c == ']' || c == ' '; });
    out.keys_.erase(include);
    StrategyText all;
    for (const std::string& file : split_text(files, ','))
      for (const auto& [key, value] : read(path.parent_path() / file).keys_) all.add(key, value);
    for (const auto& [key, value] : out.keys_) all.add(key, value);
    return all;
  }
  // The directives last.
  std::string text() const {
    std::string out, last;
    for (const auto& [key, value] : keys_)
      (key == "directives" ? last : out) += key + ":" + value + "\n";
    return out + last;
  }

 private:
  using Keys = std::vector<std::pair<std::string, std::string>>;
  Keys::iterator find(const std::string& key) {
    return std::find_if(keys_.begin(), keys_.end(), [&](const auto& k) { return k.first == key; });
  }

  void add_lines(const std::string& text) {
    for (const std::string& line : split_text(text, '\n')) {
      if (line.empty() || line[0] == '#') continue;
      const size_t colon = line.find(':');
      if (line[0] == ' ')
        keys_.back().second += "\n" + line;
      else
        keys_.emplace_back(line.substr(0, colon), line.substr(colon + 1));
    }
  }

  // Maps in braces and lists below their key grow; the order stays the last directive.
  void add(const std::string& key, const std::string& value) {
    const auto own = find(key);
    if (own == keys_.end())
      keys_.emplace_back(key, value);
    else if (value.starts_with(" {"))
      own->second = own->second.substr(0, own->second.size() - 1) + ", " + value.substr(2);
    else if (value.starts_with("\n"))
      own->second.insert(std::min(own->second.find("\n  - name: order"), own->second.size()),
                         value);
  }

  Keys keys_;
};

}  // namespace piper
