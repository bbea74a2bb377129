// Tensors known at import time: views of their bytes, without arithmetic.
#pragma once

#include "piper/base/base.h"

namespace piper::onnx_import {

std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b);
// `from` (every dim equal to that of `to`, or 1) repeated to the shape `to`.
Bytes expand_bytes(const Bytes& data, const Shape& from, const Shape& to, DType dtype);
Bytes permute_bytes(const Bytes& data, const Shape& shape, std::span<const int64_t> perm,
                    DType dtype);
Bytes slice_bytes(const Bytes& data, const Shape& shape, std::span<const int64_t> starts,
                  std::span<const int64_t> steps, const Shape& out, DType dtype);
// The shape with every dim along which all slices are equal cut to 1, and its bytes.
std::pair<Shape, Bytes> compress(const Bytes& data, const Shape& shape, DType dtype);
Shape permuted(const Shape& shape, std::span<const int64_t> perm);
// All elements have the same bytes (true of one element too).
bool is_uniform(const Bytes& data, DType dtype);

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  return Bytes::copy_of(values.data(), values.size() * sizeof(T));
}
// Of kI64, kI32 or kBool.
std::vector<int64_t> read_integers(const Bytes& data, DType dtype);
// Any dtype, as double.
double read_number(const Bytes& data, DType dtype, size_t index);
// One element of `dtype`.
Bytes number_bytes(double value, DType dtype);

}  // namespace piper::onnx_import
