// Moves and slices of constant tensors during the import.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

struct MutableBytes {
  std::shared_ptr<std::byte[]> memory;
  size_t size = 0;
  explicit MutableBytes(size_t n) : memory(new std::byte[n == 0 ? 1 : n]), size(n) {}
  Bytes finish() && {
    const std::byte* data = memory.get();
    return {std::move(memory), data, size};
  }
};

// Describes a matrix whose rows are contiguous in `to`, and whose elements are anywhere in `from`.
// Strides are distances in bytes there.
struct Matrix {
  int64_t rows = 1, columns = 1, row_stride = 0, stride = 0;
};

// Copies it block by block: what a transposition reads of a line of the cache it needs again for
// the next rows.
template <size_t kSize>
void copy_matrix(std::byte* to, const std::byte* from, const Matrix& m) {
  constexpr int64_t kBlock = 16, size = kSize;
  if (m.stride == size) {
    for (int64_t r = 0; r < m.rows; ++r)
      std::memcpy(to + r * m.columns * size, from + r * m.row_stride,
                  static_cast<size_t>(m.columns * size));
    return;
  }
  for (int64_t first_row = 0; first_row < m.rows; first_row += kBlock)
    for (int64_t first = 0; first < m.columns; first += kBlock) {
      const int64_t end_row = std::min(first_row + kBlock, m.rows),
                    end = std::min(first + kBlock, m.columns);
      for (int64_t r = first_row; r < end_row; ++r)
        for (int64_t c = first; c < end; ++c)
          std::memcpy(to + (r * m.columns + c) * size, from + r * m.row_stride + c * m.stride,
                      kSize);
    }
}

// Returns the elements at offset + sum of index × stride (in bytes), in row-major order of `shape`.
Bytes copy_view(const std::byte* from, const Shape& shape, const std::vector<int64_t>& strides,
                int size) {
  const int64_t elements = num_elements(shape);
  MutableBytes out(static_cast<size_t>(elements * size));
  if (elements == 0) return std::move(out).finish();
  const size_t rank = shape.size();
  Matrix inner;
  if (rank > 0) inner.columns = shape[rank - 1], inner.stride = strides[rank - 1];
  if (rank > 1) inner.rows = shape[rank - 2], inner.row_stride = strides[rank - 2];
  auto* const copy = size == 1   ? copy_matrix<1>
                     : size == 2 ? copy_matrix<2>
                     : size == 4 ? copy_matrix<4>
                                 : copy_matrix<8>;
  std::vector<int64_t> index(rank, 0);
  std::byte* to = out.memory.get();
  for (int64_t done = 0; done < elements; done += inner.rows * inner.columns) {
    copy(to, from, inner);
    to += inner.rows * inner.columns * size;
    for (size_t d = rank; d-- > 2;) {  // next matrix
      const size_t k = d - 2;
      from += strides[k];
      if (++index[k] < shape[k]) break;
      from -= strides[k] * shape[k];
      index[k] = 0;
    }
  }
  return std::move(out).finish();
}

std::vector<int64_t> strides_of(const Shape& shape, int size) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = size;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

bool slices_equal(const Bytes& data, const Shape& shape, size_t dim, int size) {
  int64_t outer = 1, inner = size;
  for (size_t d = 0; d < dim; ++d) outer *= shape[d];
  for (size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  for (int64_t o = 0; o < outer; ++o) {
    const std::byte* block = data.data + o * shape[dim] * inner;
    // Each slice equals the next: one comparison of the block with itself, moved by a slice.
    if (std::memcmp(block, block + inner, static_cast<size_t>((shape[dim] - 1) * inner)) != 0)
      return false;
  }
  return true;
}

float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

double from_f16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double value = exponent == 0    ? std::ldexp(mantissa, -24)
                 : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                  : std::ldexp(mantissa + 1024, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

template <class T>
T element(const Bytes& data, size_t index) {
  T value;
  std::memcpy(&value, data.data + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
Bytes one(T value) {
  return Bytes::copy_of(&value, sizeof value);
}

uint16_t to_bf16(double number) {
  const float value = static_cast<float>(number);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

uint16_t to_f16(double number) {
  const uint16_t sign = std::signbit(number) ? 0x8000 : 0;
  const double size = std::fabs(number);
  if (std::isnan(number)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < std::ldexp(1.0, -14))
    return sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(size, 24)));
  int exponent;
  const double mantissa = std::frexp(size, &exponent);  // in [0.5, 1)
  const int bits =
      static_cast<int>(std::nearbyint(std::ldexp(mantissa, 11)));  // may round up to 2048
  // The leading bit of the mantissa adds one to the exponent; so does a mantissa rounded up.
  return sign | static_cast<uint16_t>(((exponent + 13) << 10) + bits);
}

}  // namespace

std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return {};
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

Bytes expand_bytes(const Bytes& data, const Shape& from, const Shape& to, DType dtype) {
  if (from == to) return data;
  std::vector<int64_t> strides = strides_of(from, info(dtype).bytes);
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] == 1) strides[d] = 0;
  }
  return copy_view(data.data, to, strides, info(dtype).bytes);
}

Bytes permute_bytes(const Bytes& data, const Shape& shape, std::span<const int64_t> perm,
                    DType dtype) {
  return copy_view(data.data, permuted(shape, perm),
                   permuted(strides_of(shape, info(dtype).bytes), perm), info(dtype).bytes);
}

Bytes slice_bytes(const Bytes& data, const Shape& shape, std::span<const int64_t> starts,
                  std::span<const int64_t> steps, const Shape& out, DType dtype) {
  std::vector<int64_t> strides = strides_of(shape, info(dtype).bytes);
  const std::byte* from = data.data;
  if (num_elements(out) > 0) {
    for (size_t d = 0; d < shape.size(); ++d) {
      from += strides[d] * starts[d];
      strides[d] *= steps[d];
    }
  }
  return copy_view(from, out, strides, info(dtype).bytes);
}

std::pair<Shape, Bytes> compress(const Bytes& data, const Shape& shape, DType dtype) {
  Shape now = shape;
  Bytes bytes = data;
  if (num_elements(shape) == 0) return {now, bytes};
  for (size_t d = 0; d < now.size(); ++d) {
    if (now[d] == 1 || !slices_equal(bytes, now, d, info(dtype).bytes)) continue;
    Shape smaller = now;
    smaller[d] = 1;
    const std::vector<int64_t> starts(now.size(), 0), steps(now.size(), 1);
    bytes = slice_bytes(bytes, now, starts, steps, smaller, dtype);
    now = std::move(smaller);
  }
  return {now, bytes};
}

Shape permuted(const Shape& shape, std::span<const int64_t> perm) {
  Shape out;
  for (const int64_t p : perm) out.push_back(shape[static_cast<size_t>(p)]);
  return out;
}

// No elements have no bytes that a caller could read.
bool is_uniform(const Bytes& data, DType dtype) {
  const size_t size = static_cast<size_t>(info(dtype).bytes);
  return data.size >= size && std::memcmp(data.data, data.data + size, data.size - size) == 0;
}

std::vector<int64_t> read_integers(const Bytes& data, DType dtype) {
  const size_t count = data.size / static_cast<size_t>(info(dtype).bytes);
  std::vector<int64_t> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = dtype == DType::kI64   ? element<int64_t>(data, i)
             : dtype == DType::kI32 ? element<int32_t>(data, i)
                                    : element<uint8_t>(data, i);
  }
  return out;
}

double read_number(const Bytes& data, DType dtype, size_t index) {
  switch (dtype) {
    case DType::kF32:
      return element<float>(data, index);
    case DType::kF64:
      return element<double>(data, index);
    case DType::kBF16:
      return from_bf16(element<uint16_t>(data, index));
    case DType::kF16:
      return from_f16(element<uint16_t>(data, index));
    case DType::kI64:
      return static_cast<double>(element<int64_t>(data, index));
    case DType::kI32:
      return element<int32_t>(data, index);
    case DType::kBool:
      return element<uint8_t>(data, index);
  }
  return 0;
}

Bytes number_bytes(double value, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return one(static_cast<float>(value));
    case DType::kF64:
      return one(value);
    case DType::kBF16:
      return one(to_bf16(value));
    case DType::kF16:
      return one(to_f16(value));
    case DType::kI64:
      return one(static_cast<int64_t>(value));
    case DType::kI32:
      return one(static_cast<int32_t>(value));
    case DType::kBool:
      return one(static_cast<uint8_t>(value != 0));
  }
  return {};
}

}  // namespace piper::onnx_import
