// Rule layout: letters of an op's loops, in the dims of its operands.
#include "layouts_ops.h"

namespace piper {

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
