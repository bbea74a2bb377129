// The table of element types, and sizes of shapes.
#include <fmt/format.h>

#include <array>
#include <limits>

#include "piper/base/base.h"

namespace piper {
namespace {

constexpr std::array<DTypeInfo, kNumDTypes> kDTypes = {{
    {DType::kF32, "f32", "F32", 4, true},
    {DType::kF64, "f64", "F64", 8, true},
    {DType::kBF16, "bf16", "BF16", 2, true},
    {DType::kF16, "f16", "F16", 2, true},
    {DType::kI64, "i64", "I64", 8, false},
    {DType::kI32, "i32", "I32", 4, false},
    {DType::kBool, "bool", "BOOL", 1, false},
}};

// Shapes come from files: a product too large stays at the largest integer, which no limit admits.
int64_t saturating_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

}  // namespace

const DTypeInfo& info(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  PIPER_CHECK(index < kDTypes.size() && kDTypes[index].dtype == dtype);
  return kDTypes[index];
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeInfo& row : kDTypes)
    if (name == row.name) return row.dtype;
  return std::nullopt;
}

int64_t num_elements(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    PIPER_CHECK(size >= 0, "a shape has the dimension {}", size);
    if (size == 0) return 0;
    count = saturating_product(count, size);
  }
  return count;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

int64_t TensorType::bytes() const {
  return saturating_product(num_elements(shape), info(dtype).bytes);
}

std::string to_string(const TensorType& type) {
  return info(type.dtype).name + to_string(type.shape);
}

}  // namespace piper
