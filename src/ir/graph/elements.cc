// Constants of a graph as text, exactly, and back.
#include <charconv>
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

template <class T>
bool append(std::string_view word, std::string& bytes, int base = 10) {
  T element{};
  std::from_chars_result read{};
  const char* end = word.data() + word.size();
  if constexpr (std::is_floating_point_v<T>) {
    read = std::from_chars(word.data(), end, element);
  } else {
    read = std::from_chars(word.data(), end, element, base);
  }
  bytes.append(reinterpret_cast<const char*>(&element), sizeof(T));
  return read.ec == std::errc() && read.ptr == end;
}

bool append_element(DType dtype, std::string_view word, std::string& bytes) {
  switch (dtype) {
    case DType::kF32:
      return append<float>(word, bytes);
    case DType::kF64:
      return append<double>(word, bytes);
    case DType::kI64:
      return append<int64_t>(word, bytes);
    case DType::kI32:
      return append<int32_t>(word, bytes);
    case DType::kBool:
      return append<uint8_t>(word, bytes);
    case DType::kBF16:
    case DType::kF16:
      return word.starts_with("0x") && append<uint16_t>(word.substr(2), bytes, 16);
  }
  return false;
}

}  // namespace

std::string print_elements(const Value& value) {
  std::vector<std::string> words;
  int64_t count = num_elements(value.type.shape);
  for (int64_t i = 0; i < count; ++i) words.push_back(print_element(value, i));
  return "[" + join(words, ",") + "]";
}

Result<Bytes> parse_elements(std::string_view text, const TensorType& type) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') {
    return fail("expected elements like [1,2], found '{}'", text);
  }
  std::string_view inner = text.substr(1, text.size() - 2);
  std::string bytes;
  int64_t count = 0;
  std::vector<std::string> words;
  if (!inner.empty()) words = split_text(inner, ',');
  for (const std::string& word : words) {
    if (!append_element(type.dtype, word, bytes)) {
      return fail("'{}' is not an element of {}", word, to_string(type));
    }
    ++count;
  }
  if (count != num_elements(type.shape)) {
    return fail("{} elements for {}", count, to_string(type));
  }
  return Bytes::copy_of(bytes.data(), bytes.size());
}

}  // namespace piper
