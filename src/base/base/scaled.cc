// Puts numbers into blocks of 8 bits, and takes them out.
#include "piper/base/scaled.h"

#include <algorithm>
#include <cstring>

#include "piper/base/float16.h"

namespace piper {
namespace {

constexpr uint32_t kInfinite = 0x7f800000;
constexpr float kLeast = 0x1p-100F;

float greatest_of(Scaled type) { return type == Scaled::kInt8 ? 127.0F : 448.0F; }

// Rounds a size of at most 448 to 3 bits of mantissa, ties to even; below 2^-6 to multiples of
// 2^-9.
uint8_t float8_of(float size) {
  constexpr float kLeastNormal = 0x1p-6F;
  constexpr uint32_t kMost = 0x7e;  // 448; 0x7f is NaN
  if (size < kLeastNormal) return static_cast<uint8_t>(std::nearbyint(size * 512.0F));
  const auto bits = std::bit_cast<uint32_t>(size);
  const uint32_t rounded = bits + 0x7ffff + (bits >> 20 & 1);
  return static_cast<uint8_t>(std::min((rounded >> 20) - (120U << 3), kMost));
}
float float8_number(uint32_t code) {
  if (code < 8) return static_cast<float>(code) * 0x1p-9F;
  return std::bit_cast<float>((code + (120U << 3)) << 20);
}

// Reads the elements of a block as floats.
void widen(DType dtype, const std::byte* from, int64_t count, float* to) {
  if (dtype == DType::kF32)
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  else if (is_half(dtype))
    widen_halves(dtype, from, to, count);
  else
    for (int64_t i = 0; i < count; ++i)
      to[i] = static_cast<float>(float_at(dtype, from + i * info(dtype).bytes));
}
void narrow(DType dtype, const float* from, int64_t count, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
  } else if (is_half(dtype)) {
    round_to_halves(dtype, from, to, count);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const double number = from[i];
      std::memcpy(to + i * static_cast<int64_t>(sizeof number), &number, sizeof number);
    }
  }
}

void round_block(const InBlocks& in, int64_t count, float* numbers) {
  const float scale = scale_of(in.type, numbers, count);
  for (int64_t i = 0; i < count; ++i)
    numbers[i] = number_of(in.type, code_of(in.type, numbers[i], scale), scale);
}
void take_block(const InBlocks& in, const std::byte* from, int64_t count, float* numbers) {
  float scale = 0;
  std::memcpy(&scale, from + in.block, sizeof scale);
  for (int64_t i = 0; i < count; ++i)
    numbers[i] = number_of(in.type, static_cast<uint8_t>(from[i]), scale);
}

// Adds up a block of each term, which take(term, numbers) reads.
template <class Number, class Take>
void add_block(DType dtype, size_t terms, int64_t count, std::byte* to, const Take& take) {
  float numbers[kMostBlock];
  std::byte halves[2 * kMostBlock];
  Number sums[kMostBlock];
  for (size_t t = 0; t < terms; ++t) {
    take(t, numbers);
    if (is_half(dtype)) {
      narrow(dtype, numbers, count, halves);
      widen(dtype, halves, count, numbers);
    }
    for (int64_t i = 0; i < count; ++i)
      sums[i] = t == 0 ? Number(numbers[i]) : sums[i] + Number(numbers[i]);
  }
  if constexpr (std::is_same_v<Number, double>)
    std::memcpy(to, sums, static_cast<size_t>(count) * sizeof(double));
  else
    narrow(dtype, sums, count, to);
}

// Adds up block by block: take(term, block, elements of it, numbers) reads one of a term.
template <class Take>
void add_all(const InBlocks& in, DType dtype, size_t terms, int64_t count, std::byte* to,
             const Take& take) {
  const int64_t size = info(dtype).bytes;
  for (int64_t b = 0, at = 0; at < count; ++b, at += in.block) {
    const int64_t here = std::min(in.block, count - at);
    const auto one = [&](size_t t, float* numbers) { take(t, b, here, numbers); };
    if (dtype == DType::kF64)
      add_block<double>(dtype, terms, here, to + at * size, one);
    else
      add_block<float>(dtype, terms, here, to + at * size, one);
  }
}

}  // namespace

Scaled parse_scaled(std::string_view name) {
  const auto at = std::ranges::find(kScaledNames, name);
  return at == kScaledNames.end() ? Scaled::kNone : static_cast<Scaled>(at - kScaledNames.begin());
}

float scale_of(Scaled type, const float* numbers, int64_t count) {
  uint32_t most = 0;  // sizes are in the order of their bits, and NaN is the greatest
  for (int64_t i = 0; i < count; ++i)
    most = std::max(most, std::bit_cast<uint32_t>(numbers[i]) & 0x7fffffff);
  if (most >= kInfinite) return std::bit_cast<float>(uint32_t{0x7fc00000});
  const auto size = std::bit_cast<float>(most);
  return size < kLeast ? 0.0F : size / greatest_of(type);
}

uint8_t code_of(Scaled type, float number, float scale) {
  if (!(scale > 0)) return 0;
  const float by_scale = number / scale;
  if (type == Scaled::kInt8)
    return static_cast<uint8_t>(
        static_cast<int8_t>(std::clamp(std::nearbyint(by_scale), -127.0F, 127.0F)));
  const uint8_t code = float8_of(std::fabs(by_scale));
  return by_scale < 0 ? static_cast<uint8_t>(code | 0x80) : code;
}

float number_of(Scaled type, uint8_t code, float scale) {
  if (type == Scaled::kInt8) return static_cast<float>(static_cast<int8_t>(code)) * scale;
  const float size = float8_number(code & 0x7fU);
  return ((code & 0x80U) != 0 ? -size : size) * scale;
}

BlockPlaces::BlockPlaces(int64_t block, Shape shape, Shape piece, int64_t run)
    : block_(block), shape_(std::move(shape)), piece_(std::move(piece)) {
  if (piece_.empty()) piece_ = shape_;
  for (size_t d = 0; d < shape_.size(); ++d)
    pieces_ *= piece_[d] == 0 ? 1 : (shape_[d] + piece_[d] - 1) / piece_[d];
  const int64_t elements = num_elements(piece_);
  run_ = run > 0 ? run : std::max<int64_t>(elements, 1);
  runs_ = (elements + run_ - 1) / run_;
  per_run_ = (run_ + block_ - 1) / block_;
}

int64_t BlockPlaces::index_of(int64_t piece, int64_t element) const {
  if (element >= num_elements(piece_)) return -1;
  int64_t index = 0, stride = 1;
  bool is_there = true;
  for (size_t d = shape_.size(); d-- > 0;) {
    const int64_t pieces = (shape_[d] + piece_[d] - 1) / piece_[d],
                  at = piece % pieces * piece_[d] + element % piece_[d];
    is_there = is_there && at < shape_[d];
    index += at * stride;
    stride *= shape_[d];
    piece /= pieces;
    element /= piece_[d];
  }
  return is_there ? index : -1;
}

void put_in_blocks(const InBlocks& in, DType dtype, const std::byte* from, int64_t count,
                   std::byte* to) {
  float numbers[kMostBlock];
  const int64_t size = info(dtype).bytes;
  for (int64_t at = 0; at < count; at += in.block, to += in.block_bytes()) {
    const int64_t here = std::min(in.block, count - at);
    widen(dtype, from + at * size, here, numbers);
    const float scale = scale_of(in.type, numbers, here);
    for (int64_t i = 0; i < in.block; ++i)
      to[i] = std::byte(i < here ? code_of(in.type, numbers[i], scale) : 0);
    std::memcpy(to + in.block, &scale, sizeof scale);
  }
}

void take_from_blocks(const InBlocks& in, DType dtype, const std::byte* from, int64_t count,
                      std::byte* to) {
  float numbers[kMostBlock];
  const int64_t size = info(dtype).bytes;
  for (int64_t at = 0; at < count; at += in.block, from += in.block_bytes()) {
    const int64_t here = std::min(in.block, count - at);
    take_block(in, from, here, numbers);
    narrow(dtype, numbers, here, to + at * size);
  }
}

void round_in_blocks(const InBlocks& in, DType dtype, const std::byte* from, int64_t count,
                     std::byte* to) {
  float numbers[kMostBlock];
  const int64_t size = info(dtype).bytes;
  for (int64_t at = 0; at < count; at += in.block) {
    const int64_t here = std::min(in.block, count - at);
    widen(dtype, from + at * size, here, numbers);
    round_block(in, here, numbers);
    narrow(dtype, numbers, here, to + at * size);
  }
}

void add_in_blocks(const InBlocks& in, DType dtype, std::span<const std::byte* const> terms,
                   int64_t count, std::byte* to) {
  const int64_t bytes = in.block * info(dtype).bytes;
  add_all(in, dtype, terms.size(), count, to,
          [&](size_t t, int64_t b, int64_t here, float* numbers) {
            widen(dtype, terms[t] + b * bytes, here, numbers);
            round_block(in, here, numbers);
          });
}

void add_blocks(const InBlocks& in, DType dtype, std::span<const std::byte* const> terms,
                int64_t count, std::byte* to) {
  add_all(in, dtype, terms.size(), count, to,
          [&](size_t t, int64_t b, int64_t here, float* numbers) {
            take_block(in, terms[t] + b * in.block_bytes(), here, numbers);
          });
}

}  // namespace piper
