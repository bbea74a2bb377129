// Nested loops with as few levels as they need.
#include "loop.h"

#include "piper/devices/kernel_use.h"

namespace piper::cpu {

Loop make_loop(const Shape& shape, const std::vector<std::vector<int64_t>>& strides) {
  Walk walk = folded(shape, strides, 0);
  Loop loop;
  loop.inner = walk.extents.back();
  walk.extents.pop_back();
  for (std::vector<int64_t>& steps : walk.strides) {
    loop.inner_steps.push_back(steps.back());
    steps.pop_back();
  }
  for (const int64_t extent : walk.extents) loop.rows *= extent;
  if (loop.inner == 0) loop.rows = 0;
  loop.outer = std::move(walk.extents);
  loop.outer_steps = std::move(walk.strides);
  return loop;
}

}  // namespace piper::cpu
