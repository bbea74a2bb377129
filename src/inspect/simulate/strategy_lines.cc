// Finds directives in the text of a strategy as plans hold it: each begins a line of its own.
#include "strategy_lines.h"

#include <algorithm>
#include <cctype>

#include "rows.h"

namespace piper::timeline {
namespace {

constexpr std::string_view kEntry = "  - ";

// Returns the entries of "directives:", each as one line: of those that have all of their text on
// further lines, as orders have, its begin.
std::vector<std::string> directives_of(const std::string& text) {
  constexpr size_t kMost = 100;  // characters
  std::vector<std::string> found;
  bool inside = false, goes_on = false;
  for (const std::string& line : split_text(text, '\n')) {
    if (!line.starts_with(' ')) inside = line == "directives:";
    if (!inside) continue;
    if (line.starts_with(kEntry)) {
      found.push_back(line.substr(kEntry.size()));
      goes_on = line.ends_with(':');
    } else if (const size_t begin = line.find_first_not_of(' '); goes_on && begin != line.npos) {
      found.back() +=
          " " + line.substr(begin, line.ends_with(" |") ? line.size() - begin - 2 : line.npos);
      goes_on = found.back().size() <= kMost;
      if (!goes_on) found.back() = found.back().substr(0, found.back().rfind(' ', kMost)) + " …";
    }
  }
  return found;
}

// Returns whether the entry's "over" is the axis, or a list that has it.
bool is_over(const std::string& entry, const std::string& axis) {
  constexpr std::string_view kKey = "over: ";
  const size_t key = entry.find(kKey);
  if (key == entry.npos) return false;
  const size_t begin = key + kKey.size();
  const size_t end = entry.find_first_of(entry[begin] == '[' ? "]" : ",}", begin);
  const std::string over = entry.substr(begin, end == entry.npos ? end : end - begin);
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = over.find(axis); at != over.npos; at = over.find(axis, at + 1)) {
    const size_t behind = at + axis.size();
    if ((at == 0 || !is_word(over[at - 1])) && (behind == over.size() || !is_word(over[behind])))
      return true;
  }
  return false;
}

}  // namespace

std::string strategy_line_of(const std::string& strategy_text, const RoleProgram& role,
                             const Instruction& one) {
  const std::vector<std::string> all = directives_of(strategy_text);
  const auto first = [&](std::string_view name, const auto& is_it) -> std::string {
    const auto found = std::ranges::find_if(all, [&](const std::string& entry) {
      return entry.starts_with(fmt::format("{}:", name)) && is_it(entry);
    });
    return found == all.end() ? "" : *found;
  };
  const auto any = [](const std::string&) { return true; };
  if (one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv)
    return first("place", any);
  if (is_collective(one.kind)) {
    for (const int32_t a : role.groups[at(one.group)].axes) {
      const auto is_it = [&](const std::string& entry) {
        return is_over(entry, role.mesh[at(a)].first);
      };
      for (const char* name : {"replicate", "shard"})
        if (std::string line = first(name, is_it); !line.empty()) return line;
    }
    return "";
  }
  if (one.kind == InstructionKind::kCompute) return first("order", any);
  return one.kind == InstructionKind::kCopy ? first("offload", any) : "";
}

}  // namespace piper::timeline
