// Notes of reading a model, as lines for people. The tools and compile print them.
#include <algorithm>

#include "piper/frontend/model.h"

namespace piper {

std::vector<std::string> lines_of(std::span<const Note> notes, size_t most_names) {
  std::vector<std::pair<std::string, std::vector<std::string>>> names_of;  // by text
  for (const Note& note : notes) {
    auto at = std::find_if(names_of.begin(), names_of.end(),
                           [&](const auto& entry) { return entry.first == note.text; });
    if (at == names_of.end()) at = names_of.insert(at, {note.text, {}});
    if (!note.of.empty()) at->second.push_back(note.of);
  }
  std::vector<std::string> lines;
  for (const auto& [text, names] : names_of) {
    const std::span shown(names.data(), std::min(names.size(), most_names));
    std::string line = join(shown, ", ");
    if (names.size() > shown.size())
      line += fmt::format(" and {} more", names.size() - shown.size());
    lines.push_back(line.empty() ? text : line + ": " + text);
  }
  return lines;
}

}  // namespace piper
