// Finds a model's layers from its module paths.
#include "layers.h"

#include <algorithm>
#include <map>
#include <set>

namespace piper {
namespace {

bool is_integer(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "model/h/3/fc" -> ("model/h", 3); none without an integer.
std::optional<std::pair<std::string, int64_t>> outermost(const std::string& scope) {
  std::string prefix;
  for (const std::string& segment : split_text(scope, '/')) {
    if (is_integer(segment)) return std::pair(prefix, int64_t{std::stol(segment)});
    prefix += (prefix.empty() ? "" : "/") + segment;
  }
  return {};
}

}  // namespace

Layers find_layers(std::span<const std::string> scopes) {
  std::map<std::string, std::set<int64_t>> values;
  for (const std::string& scope : scopes) {
    if (const auto found = outermost(scope)) values[found->first].insert(found->second);
  }
  Layers layers;
  const auto count = [](auto& list, const std::string& name, auto key) -> auto& {
    const auto at =
        std::find_if(list.begin(), list.end(), [&](const auto& item) { return key(item) == name; });
    if (at != list.end()) return *at;
    return list.emplace_back();
  };
  for (const std::string& scope : scopes) {
    const auto found = outermost(scope);
    if (found && values[found->first].size() > 1) {
      const std::string match =
          found->first + (found->first.empty() ? "{layer}/**" : "/{layer}/**");
      LayerPattern& pattern =
          count(layers.patterns, match, [](const LayerPattern& p) { return p.match; });
      pattern.match = match;
      ++pattern.nodes;
      if (pattern.nodes == 1) {
        const std::set<int64_t>& seen = values[found->first];
        pattern.values.assign(seen.begin(), seen.end());
      }
    } else {
      auto& [name, nodes] = count(layers.rest, scope, [](const auto& item) { return item.first; });
      name = scope;
      ++nodes;
    }
  }
  return layers;
}

}  // namespace piper
