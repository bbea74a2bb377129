// Host tensors of doubles for tests of kernels: packed into any element type, run, and unpacked
// again.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "piper/devices/cpu.h"
#include "piper/ir/signatures.h"

namespace piper::test {

struct Tensor {
  TensorType type;
  std::vector<double> v;
  double& operator[](int64_t i) { return v[static_cast<size_t>(i)]; }
  double operator[](int64_t i) const { return v[static_cast<size_t>(i)]; }
};

inline Tensor tensor(DType dtype, Shape shape, std::vector<double> v) {
  return {{dtype, std::move(shape)}, std::move(v)};
}
inline Tensor scalar(DType dtype, double v) { return tensor(dtype, {}, {v}); }
inline Tensor absent() { return {{DType::kF32, {}}, {}}; }

template <class T>
Bytes pack_as(const std::vector<double>& v) {
  std::vector<T> out(v.begin(), v.end());
  return Bytes::copy_of(out.data(), out.size() * sizeof(T));
}
inline Bytes pack(const Tensor& t) {
  if (t.v.empty() && num_elements(t.type.shape) > 0) return {};
  switch (t.type.dtype) {
    case DType::kF32:
      return pack_as<float>(t.v);
    case DType::kF64:
      return pack_as<double>(t.v);
    case DType::kI64:
      return pack_as<int64_t>(t.v);
    case DType::kI32:
      return pack_as<int32_t>(t.v);
    case DType::kBool:
      return pack_as<uint8_t>(t.v);
    default:
      return pack_as<uint16_t>(t.v);  // 16-bit floats: the bits themselves
  }
}
template <class T>
std::vector<double> unpack_as(const Bytes& bytes) {
  std::vector<T> typed(bytes.size / sizeof(T));
  if (bytes.size > 0) std::memcpy(typed.data(), bytes.data, bytes.size);
  return {typed.begin(), typed.end()};
}
inline Tensor unpack(const TensorType& type, const Bytes& bytes) {
  switch (type.dtype) {
    case DType::kF32:
      return {type, unpack_as<float>(bytes)};
    case DType::kF64:
      return {type, unpack_as<double>(bytes)};
    case DType::kI64:
      return {type, unpack_as<int64_t>(bytes)};
    case DType::kI32:
      return {type, unpack_as<int32_t>(bytes)};
    case DType::kBool:
      return {type, unpack_as<uint8_t>(bytes)};
    default:
      return {type, unpack_as<uint16_t>(bytes)};
  }
}

// Whether a plan may have the use, or joining makes it.
inline Status check_operands(std::string_view op, const Attrs& attrs,
                             const std::vector<Tensor>& inputs,
                             const std::vector<TensorType>& outputs) {
  for (const char* made : {"then", "columns", "packed_b"})
    if (attrs.find(made)) return ok_status();
  if (!find_op(op)) return ok_status();
  OpTypes use{{}, {}, outputs, attrs};
  for (const Tensor& t : inputs) {
    const bool there = !t.v.empty() || num_elements(t.type.shape) == 0;
    use.inputs.push_back(there ? t.type : TensorType{});
    use.present.push_back(there);
  }
  return check_use(op, use);
}

inline Result<std::vector<Bytes>> run_bytes(std::string_view op, const Attrs& attrs,
                                            const std::vector<Tensor>& inputs,
                                            const std::vector<TensorType>& outputs) {
  PIPER_TRY(check_operands(op, attrs, inputs, outputs));
  std::vector<TensorType> types;
  std::vector<Bytes> data;
  for (const Tensor& t : inputs) {
    types.push_back(t.type);
    data.push_back(pack(t));
  }
  return evaluate_op(op, attrs, types, data, outputs);
}

// The op's outputs; a failure of the test, and zeros, when it is refused.
inline std::vector<Tensor> run(std::string_view op, const Attrs& attrs,
                               const std::vector<Tensor>& inputs,
                               const std::vector<TensorType>& outputs) {
  Result<std::vector<Bytes>> bytes = run_bytes(op, attrs, inputs, outputs);
  std::vector<Tensor> results;
  if (!bytes) ADD_FAILURE() << op << ": " << bytes.error().message;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto count = static_cast<size_t>(num_elements(outputs[i].shape));
    results.push_back(bytes ? unpack(outputs[i], (*bytes)[i])
                            : Tensor{outputs[i], std::vector<double>(count, 0.0)});
  }
  return results;
}
inline Tensor run1(std::string_view op, const Attrs& attrs, const std::vector<Tensor>& inputs,
                   const TensorType& output) {
  return run(op, attrs, inputs, {output})[0];
}
// The message with which the op is refused.
inline std::string refusal(std::string_view op, const Attrs& attrs,
                           const std::vector<Tensor>& inputs,
                           const std::vector<TensorType>& outputs) {
  Result<std::vector<Bytes>> result = run_bytes(op, attrs, inputs, outputs);
  return result ? "" : result.error().message;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // Rounded to the element type, so that references see what the kernel sees.
  Tensor uniform(DType dtype, Shape shape, double low, double high) {
    Tensor t{{dtype, std::move(shape)}, {}};
    for (int64_t i = num_elements(t.type.shape); i > 0; --i) {
      const double x = low + (high - low) * std::generate_canonical<double, 53>(engine_);
      const bool real = dtype == DType::kF32 || dtype == DType::kF64;
      t.v.push_back(dtype == DType::kF32 ? static_cast<float>(x) : real ? x : std::floor(x));
    }
    return t;
  }

 private:
  std::mt19937_64 engine_;
};

// Elements are equal, both NaN, or within absolute + relative × |expected|.
inline void expect_near(const Tensor& actual, const std::vector<double>& expected, double relative,
                        double absolute, const std::string& what) {
  ASSERT_EQ(actual.v.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double a = actual.v[i], e = expected[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    ASSERT_LE(std::abs(a - e), absolute + relative * std::abs(e))
        << what << " element " << i << ": " << a << " is not " << e;
  }
}
inline double tolerance(DType dtype) { return dtype == DType::kF32 ? 2e-6 : 1e-14; }

// The index into a tensor of shape `from`, broadcast to `to`, for element i of `to`.
inline int64_t source_index(const Shape& from, const Shape& to, int64_t i) {
  int64_t index = 0, step = 1;
  for (size_t d = to.size(); d-- > 0;) {
    const int64_t at = i % to[d];
    i /= to[d];
    if (d + from.size() < to.size()) continue;
    const int64_t size = from[d + from.size() - to.size()];
    index += size == 1 ? 0 : at * step;
    step *= size;
  }
  return index;
}

// Distance of two floats in units in the last place.
inline int64_t ulps(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) ? 0 : INT64_MAX;
  auto place = [](float x) {
    const auto bits = std::bit_cast<int32_t>(x);
    return bits < 0 ? -static_cast<int64_t>(bits & 0x7fffffff) : static_cast<int64_t>(bits);
  };
  return std::abs(place(a) - place(b));
}

}  // namespace piper::test
