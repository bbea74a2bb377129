// The table `Tensors` of the texts (device/prelude.cuh): several tensors in one launch.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "emitter.h"

namespace piper::cuda_kernels {

inline int64_t sum_of(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}
inline std::string tensors_type(size_t count) { return fmt::format("Tensors<{}>", count); }
// Its value: tensor i has `numbers[i]` blocks or whatever is numbered, and `counts[i]` elements.
inline std::string tensors_text(const std::vector<int64_t>& numbers,
                                const std::vector<int64_t>& counts) {
  std::vector<int64_t> first{0};
  for (const int64_t number : numbers) first.push_back(first.back() + number);
  return fmt::format("{{{{{}}}, {{{}}}}}", fmt::join(first, ", "), fmt::join(counts, ", "));
}

}  // namespace piper::cuda_kernels
