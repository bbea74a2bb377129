// Rule layout: letters of an op's loops, in the dims of its operands.
#include "layouts_ops.h"

namespace piper {

bool needs_whole(const LoopRule& rule, char letter) {
  return rule.whole.find(letter) != std::string::npos;
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

int64_t extent_in(const LoopRule& rule, const Dims& dims, const Shape& shape, char letter) {
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto found = std::find(dims[d].begin(), dims[d].end(), letter);
    const std::vector<int64_t> extents = extents_of(rule, dims[d], shape[d]);
    if (found != dims[d].end() && !extents.empty())
      return extents[static_cast<size_t>(found - dims[d].begin())];
  }
  return 0;
}

size_t dim_of(const Dims& dims, char letter) {
  size_t d = 0;
  while (d < 31 && std::count(dims[d].begin(), dims[d].end(), letter) == 0) ++d;
  return d;
}

size_t occurrences(const Dims& dims, char letter) {
  size_t count = 0;
  for (const LoopRule::Dim& dim : dims)
    count += static_cast<size_t>(std::count(dim.begin(), dim.end(), letter));
  return count;
}

std::optional<Lies> placed(const LoopRule& rule, const Dims& dims, const Shape& shape, char letter,
                           int64_t outer, bool mirrored) {
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto found = std::find(dims[d].begin(), dims[d].end(), letter);
    if (found == dims[d].end()) continue;
    const std::vector<int64_t> extents = extents_of(rule, dims[d], shape[d]);
    if (extents.empty()) return std::nullopt;
    for (auto before = dims[d].begin(); before != found; ++before)
      outer *= extents[static_cast<size_t>(before - dims[d].begin())];
    return blocks_of(shape, d, outer, mirrored);
  }
  return std::nullopt;
}

}  // namespace piper
