// What random tests draw from: PIPER_SEED, or a number of their own.
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

}  // namespace piper
