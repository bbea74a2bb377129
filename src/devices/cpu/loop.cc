// Strides of broadcast operands, and nested loops with as few levels as they need.
#include "loop.h"

namespace piper::cpu {

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::vector<int64_t> broadcast_strides(const Shape& from, const Shape& to) {
  const size_t lead = to.size() - from.size();
  std::vector<int64_t> strides(to.size(), 0);
  const std::vector<int64_t> own = strides_of(from);
  for (size_t d = 0; d < from.size(); ++d) strides[lead + d] = from[d] == 1 ? 0 : own[d];
  return strides;
}

Loop make_loop(const Shape& shape, const std::vector<std::vector<int64_t>>& strides) {
  const size_t operands = strides.size();
  std::vector<int64_t> extents;
  std::vector<std::vector<int64_t>> steps(operands);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    bool merge = !extents.empty();
    for (size_t k = 0; merge && k < operands; ++k) {
      merge = steps[k].back() == strides[k][d] * shape[d];
    }
    if (merge) {
      extents.back() *= shape[d];
      for (size_t k = 0; k < operands; ++k) steps[k].back() = strides[k][d];
    } else {
      extents.push_back(shape[d]);
      for (size_t k = 0; k < operands; ++k) steps[k].push_back(strides[k][d]);
    }
  }
  Loop loop;
  loop.inner_steps.assign(operands, 0);
  if (!extents.empty()) {
    loop.inner = extents.back();
    extents.pop_back();
    for (size_t k = 0; k < operands; ++k) {
      loop.inner_steps[k] = steps[k].back();
      steps[k].pop_back();
    }
  }
  for (int64_t extent : extents) loop.rows *= extent;
  if (loop.inner == 0) loop.rows = 0;
  loop.outer = std::move(extents);
  loop.outer_steps = std::move(steps);
  return loop;
}

}  // namespace piper::cpu
