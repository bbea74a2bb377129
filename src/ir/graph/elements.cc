// Prints constants of a graph exactly.
#include <cstring>

#include "text.h"

namespace piper {
namespace {

template <class T>
T load(const Value& value, int64_t index) {
  T element;
  std::memcpy(&element, value.data.data + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return element;
}

std::string print_element(const Value& value, int64_t index) {
  switch (value.type.dtype) {
    case DType::kF32:
      return fmt::format("{}", load<float>(value, index));
    case DType::kF64:
      return fmt::format("{}", load<double>(value, index));
    case DType::kI64:
      return fmt::format("{}", load<int64_t>(value, index));
    case DType::kI32:
      return fmt::format("{}", load<int32_t>(value, index));
    case DType::kBool:
      return fmt::format("{}", load<uint8_t>(value, index));
    case DType::kBF16:
    case DType::kF16:
      return fmt::format("0x{:04x}", load<uint16_t>(value, index));
  }
  return {};
}

}  // namespace

std::string print_elements(const Value& value) {
  std::vector<std::string> words;
  int64_t count = num_elements(value.type.shape);
  for (int64_t i = 0; i < count; ++i) words.push_back(print_element(value, i));
  return "[" + join(words, ",") + "]";
}

}  // namespace piper
