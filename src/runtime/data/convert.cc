// Converts what data files hold to the element type of a plan's input, within its range.
#include <cstring>

#include "feed.h"

namespace piper {
namespace {

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

float from_bf16(uint16_t bits) { return from_bits(uint32_t{bits} << 16); }

float from_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00) return from_bits(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
  const float value = magnitude < 0x400 ? static_cast<float>(magnitude) * 0x1p-24f
                                        : from_bits((magnitude << 13) + (112u << 23));
  return sign ? -value : value;
}

bool is_integer(DType type) { return type == DType::kI64 || type == DType::kI32; }

template <class From>
From load(const std::byte* from, int64_t i) {
  From value;
  std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

template <class From, class To>
int64_t integers(const std::byte* from, std::byte* to, const InputNeed& need, int64_t count) {
  const bool bounded = need.low <= need.high && need.ranges.empty();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = load<From>(from, i);
    const To narrow = static_cast<To>(value);
    if (narrow != value) return i;
    if (bounded && (value < need.low || value > need.high) && value != need.ignore) return i;
    std::memcpy(to + i * static_cast<int64_t>(sizeof narrow), &narrow, sizeof narrow);
  }
  return -1;
}

template <class From>
int64_t integers_of(const std::byte* from, std::byte* to, const InputNeed& need, int64_t count) {
  return need.type.dtype == DType::kI64 ? integers<From, int64_t>(from, to, need, count)
                                        : integers<From, int32_t>(from, to, need, count);
}

int64_t convert_integers(const std::byte* from, const StoredElement& element, std::byte* to,
                         const InputNeed& need, int64_t count) {
  switch (element.is_signed ? -element.width : element.width) {
    case 1:
      return integers_of<uint8_t>(from, to, need, count);
    case 2:
      return integers_of<uint16_t>(from, to, need, count);
    case 4:
      return integers_of<uint32_t>(from, to, need, count);
    case -1:
      return integers_of<int8_t>(from, to, need, count);
    case -2:
      return integers_of<int16_t>(from, to, need, count);
    case -4:
      return integers_of<int32_t>(from, to, need, count);
    default:
      return integers_of<int64_t>(from, to, need, count);
  }
}

template <class To>
void floats(const std::byte* from, DType type, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    To value{};
    if (type == DType::kF32) value = static_cast<To>(load<float>(from, i));
    if (type == DType::kF64) value = static_cast<To>(load<double>(from, i));
    if (type == DType::kF16) value = from_f16(load<uint16_t>(from, i));
    if (type == DType::kBF16) value = from_bf16(load<uint16_t>(from, i));
    std::memcpy(to + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
  }
}

}  // namespace

bool convertible(DType from, DType to) {
  if (from == to || (is_integer(from) && is_integer(to))) return true;
  return info(from).is_float && (to == DType::kF32 || to == DType::kF64);
}

int64_t convert(const std::byte* from, const StoredElement& element, std::byte* to,
                const InputNeed& need, int64_t count) {
  const DType type = element.dtype, want = need.type.dtype;
  if (is_integer(type)) return convert_integers(from, element, to, need, count);
  if (type == want)
    std::memcpy(to, from, static_cast<size_t>(count * info(type).bytes));
  else if (want == DType::kF32)
    floats<float>(from, type, to, count);
  else
    floats<double>(from, type, to, count);
  return -1;
}

int64_t find_outside(const std::byte* values, const InputNeed& need, int64_t first, int64_t count) {
  const std::vector<int64_t>& ranges = need.ranges;
  int64_t begin = 0;
  for (size_t r = 0; r < ranges.size(); r += 4) {
    const int64_t end = begin + ranges[r], low = ranges[r + 1], high = ranges[r + 2];
    for (int64_t i = std::max(begin, first); i < std::min(end, first + count); ++i) {
      const int64_t value = need.type.dtype == DType::kI64 ? load<int64_t>(values, i - first)
                                                           : load<int32_t>(values, i - first);
      if (low <= high && (value < low || value > high) && value != ranges[r + 3]) return i - first;
    }
    begin = end;
  }
  return -1;
}

InputNeed need_of_element(const InputNeed& need, int64_t element) {
  InputNeed of_element = need;
  for (size_t r = 0; r < need.ranges.size() && element >= 0; r += 4) {
    of_element.low = need.ranges[r + 1], of_element.high = need.ranges[r + 2];
    of_element.ignore = need.ranges[r + 3];
    element -= need.ranges[r];
  }
  return of_element;
}

std::string print_range(const InputNeed& need) {
  if (need.low > need.high) return "the range of " + std::string(info(need.type.dtype).name);
  std::string text = fmt::format("[{}, {}]", need.low, need.high);
  if (need.ignore != INT64_MIN) text += fmt::format(" or {}", need.ignore);
  return text;
}

}  // namespace piper
