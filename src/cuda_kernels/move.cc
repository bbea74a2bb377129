// Transpose, Reshape: elements in another order, or in the same.
#include <fmt/format.h>

#include "families.h"

namespace piper::cuda_kernels {
namespace {

constexpr int32_t kThreads = 256;

// What moves element i of the result from where `strides` says.
void take_strided(const Use& use, const Shape& extents, const std::vector<int64_t>& strides,
                  Emitter& emit) {
  const int64_t count = num_elements(use.out());
  const auto rank = std::max<size_t>(extents.size(), 1);
  const auto list = [&](const std::vector<int64_t>& numbers, int64_t otherwise) {
    return numbers.empty() ? fmt::format("{}", otherwise)
                           : fmt::format("{}", fmt::join(numbers, ", "));
  };
  emit.kernel({.family = "move",
               .body = fmt::format("  constexpr Strides<{}> strides{{{{{}}}, {{{}}}}};\n"
                                   "  take_strided(p.at<const {}>(0), p.at<{}>(1), {}LL, strides);",
                                   rank, list(extents, 1), list(strides, 0), bits_name(use.type()),
                                   bits_name(use.type()), count),
               .blocks = ceil_div(count, kThreads),
               .threads = kThreads});
}

}  // namespace

Status make_reshape(const Use& use, Emitter& emit) {
  emit.copy(emit.operand(0), emit.operand(1), use.outputs[0].bytes());
  return ok_status();
}

Status make_transpose(const Use& use, Emitter& emit) {
  const std::vector<int64_t> perm = use.attrs.integers("perm");
  std::vector<int64_t> of_input(perm.size()), strides;
  int64_t step = 1;
  for (size_t d = perm.size(); d-- > 0; step *= use.in(0)[d]) of_input[d] = step;
  for (const int64_t d : perm) strides.push_back(of_input[static_cast<size_t>(d)]);
  take_strided(use, use.out(), strides, emit);
  return ok_status();
}

}  // namespace piper::cuda_kernels
