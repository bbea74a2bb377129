// Returns what random tests begin with and how many cases they draw: PIPER_SEED and PIPER_COUNT, or
// numbers of their own.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>

namespace piper {

inline std::optional<uint64_t> given_seed() {
  const char* text = std::getenv("PIPER_SEED");
  if (text == nullptr) return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}
inline std::optional<int> given_count() {
  const char* text = std::getenv("PIPER_COUNT");
  if (text == nullptr) return std::nullopt;
  return std::atoi(text);
}

}  // namespace piper
