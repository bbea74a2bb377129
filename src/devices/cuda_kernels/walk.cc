// Strides and loops over several operands as texts of kernels index them.
#include "walk.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cstring>

#include "piper/base/float16.h"

namespace piper::cuda_kernels {
namespace {

uint64_t bits_of(double value, DType dtype) {
  uint16_t half = 0;
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::kF64:
      return std::bit_cast<uint64_t>(value);
    case DType::kF32:
      return std::bit_cast<uint32_t>(narrow);
    case DType::kBF16:
    case DType::kF16:
      round_to_halves(dtype, &narrow, reinterpret_cast<std::byte*>(&half), 1);
      return half;
    case DType::kI64:
      return static_cast<uint64_t>(static_cast<int64_t>(value));
    case DType::kI32:
      return static_cast<uint32_t>(static_cast<int64_t>(value));
    case DType::kBool:
      return value != 0;
  }
  return 0;
}

}  // namespace

int64_t common_bytes(std::initializer_list<int64_t> numbers) {
  int64_t bytes = 16;
  for (const int64_t n : numbers)
    while (n % bytes != 0) bytes /= 2;
  return bytes;
}

std::string word_name(int64_t bytes) {
  return bytes == 16 ? "Pack<uint32_t, 4>" : fmt::format("uint{}_t", 8 * bytes);
}

std::string word_of(double value, DType dtype, int64_t bytes) {
  const uint64_t bits = bits_of(value, dtype);
  const int64_t size = info(dtype).bytes;
  uint64_t all = 0;  // eight bytes of it
  for (int64_t b = 0; b < 8; b += size) all |= bits << (8 * b);
  const uint64_t low = all & 0xffffffffU, high = all >> 32;
  if (bytes == 16) return fmt::format("Pack<uint32_t, 4>{{{{{0}u, {1}u, {0}u, {1}u}}}}", low, high);
  if (bytes == 8) return fmt::format("uint64_t{{{}ull}}", all);
  return fmt::format("uint{}_t{{{}u}}", 8 * bytes, low & (~uint64_t{0} >> (64 - 8 * bytes)));
}

std::string_view index_name(std::initializer_list<int64_t> most) {
  constexpr int64_t kMost = (int64_t{1} << 31) - (1 << 16);
  for (const int64_t n : most)
    if (n > kMost) return "int64_t";
  return "int32_t";
}

int64_t reach(const Shape& extents, const std::vector<int64_t>& strides) {
  int64_t far = 0;
  for (size_t d = 0; d < extents.size(); ++d) far += (extents[d] - 1) * std::abs(strides[d]);
  return far;
}

std::string list(const std::vector<int64_t>& numbers) {
  return fmt::format("{{{}}}", fmt::join(numbers, ", "));
}

std::string strides_type(std::string_view index, const Shape& extents) {
  return fmt::format("Strides<{}, {}>", index, extents.size());
}

std::string strides_value(const Shape& extents, const std::vector<int64_t>& strides) {
  return fmt::format("{{{}, {}}}", list(extents), list(strides));
}

void launch(Emitter& emit, std::string_view family, std::string body, int64_t count,
            std::vector<DeviceOperand> extra) {
  emit.kernel({.family = family,
               .body = std::move(body),
               .blocks = ceil_div(count, kThreads),
               .threads = kThreads,
               .extra = std::move(extra)});
}

}  // namespace piper::cuda_kernels
