// Columns of numbers as base64, and texts as patterns with numbers.
#include "columns.h"

namespace piper {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns how long the number is that begins there: one that prints the same, or 0.
size_t number_length(std::string_view text, size_t from) {
  size_t end = from;
  while (end < text.size() && is_digit(text[end])) ++end;
  constexpr size_t kMostDigits = 9;
  const size_t length = end - from;
  return length > kMostDigits || (length > 1 && text[from] == '0') ? 0 : length;
}

}  // namespace

void Columns::add(const char* name, std::span<const int64_t> numbers, bool differences) {
  list_.push_back({name, bytes_.size(), numbers.size(), differences ? 1 : 0});
  int64_t before = 0;
  for (const int64_t number : numbers) {
    const int64_t shown = differences ? number - before : number;
    before = number;
    auto rest = (static_cast<uint64_t>(shown) << 1) ^ static_cast<uint64_t>(shown >> 63);
    for (; rest >= 128; rest >>= 7) bytes_ += static_cast<char>(rest % 128 + 128);
    bytes_ += static_cast<char>(rest);
  }
}

std::string Columns::base64() const {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes_.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes_.size(); i += 3) {
    uint32_t group = 0;
    for (size_t b = 0; b < 3; ++b)
      group = group << 8 | (i + b < bytes_.size() ? static_cast<uint8_t>(bytes_[i + b]) : 0U);
    for (size_t b = 0; b < 4; ++b)
      text += i + b > bytes_.size() ? '=' : kLetters[group >> (18 - 6 * b) & 63];
  }
  return text;
}

int64_t Patterns::add(std::string_view text, std::vector<int64_t>& numbers) {
  std::vector<std::string> pieces(1);
  for (size_t i = 0; i < text.size();) {
    // Digits behind one that was not taken for a number belong to it.
    const bool begins = is_digit(text[i]) && (i == 0 || !is_digit(text[i - 1]));
    const size_t length = begins ? number_length(text, i) : 0;
    if (length == 0) {
      pieces.back() += text[i++];
      continue;
    }
    int64_t number = 0;
    for (size_t d = 0; d < length; ++d) number = 10 * number + (text[i + d] - '0');
    numbers.push_back(number);
    pieces.emplace_back();
    i += length;
  }
  const auto [known, is_new] = known_.try_emplace(pieces, std::ssize(list_));
  if (is_new) list_.push_back(std::move(pieces));
  return known->second;
}

}  // namespace piper
