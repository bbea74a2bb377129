// Letters of loop rules: their sizes, and where they are in operands.
#include "piper/ir/loop_letters.h"

#include <algorithm>

namespace piper {

bool needs_whole(const LoopRule& rule, char letter) {
  return rule.whole.find(letter) != std::string::npos;
}

bool tells_first(const LoopRule& rule, char letter) {
  return std::ranges::any_of(rule.firsts, [&](const auto& first) { return first.first == letter; });
}

bool is_whole(const LoopRule& rule, char letter) {
  return needs_whole(rule, letter) || tells_first(rule, letter);
}

int64_t loop_size(const LoopRule& rule, char letter) {
  for (const auto& [known, size] : rule.sizes)
    if (known == letter) return size;
  return 1;
}

std::vector<int64_t> extents_of(const LoopRule& rule, const LoopRule::Dim& dim, int64_t extent) {
  std::vector<int64_t> extents;
  int64_t product = 1;
  std::optional<size_t> open;
  for (size_t i = 0; i < dim.size(); ++i) {
    const bool whole = needs_whole(rule, dim[i]);
    if (whole && open) return {};
    if (whole) open = i;
    extents.push_back(whole ? 1 : loop_size(rule, dim[i]));
    product *= extents.back();
  }
  if (open && product > 0) extents[*open] = extent / product;
  return extents;
}

size_t occurrences(const std::vector<LoopRule::Dim>& dims, char letter) {
  size_t count = 0;
  for (const LoopRule::Dim& dim : dims)
    count += static_cast<size_t>(std::ranges::count(dim, letter));
  return count;
}

}  // namespace piper
