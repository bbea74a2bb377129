// Checks of maps and numbers in YAML files.
#include "piper/base/maps.h"

#include <algorithm>
#include <charconv>

namespace piper::yaml {

Status expect(const Node& node, Node::Kind kind, std::string_view what, std::string_view is) {
  if (node.is(kind)) return ok_status();
  return fail(node.at, "{} must be {}, not {}", what, is, found(node));
}

Status check_keys(const Node& map, std::string_view what, const std::vector<std::string>& known,
                  const std::vector<std::string>& needed) {
  PIPER_TRY(expect(map, Node::Kind::kMap, what, "a map"));
  for (const Entry& entry : map.entries)
    if (std::find(known.begin(), known.end(), entry.key.text) == known.end())
      return fail(entry.key.at, "unknown key {} of {}{}; there are {}", shown(entry.key.text), what,
                  did_you_mean(entry.key.text, known), list_with_and(known));
  for (const std::string& key : needed)
    if (!map.find(key)) return fail(map.at, "{} needs '{}'", what, key);
  return ok_status();
}

Result<int64_t> read_count(const Node& node, std::string_view key) {
  constexpr int64_t kMost = int64_t{1} << 30;
  int64_t count = 0;
  const char* const end = node.text.data() + node.text.size();
  const auto read = std::from_chars(node.text.data(), end, count);
  if (!node.is(Node::Kind::kScalar) || read.ec != std::errc() || read.ptr != end || count < 1 ||
      count > kMost)
    return fail(node.at, "'{}' must be a whole number from 1 on, not {}", key, found(node));
  return count;
}

}  // namespace piper::yaml
