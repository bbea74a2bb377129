// The wire format of protobuf, as far as plans use it. Private to the bundle room.
#pragma once

#include <cstdint>

namespace piper {

// What stands behind a field's number.
enum Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2 };

// Small numbers of either sign as small ones without: 0, -1, 1, -2 are 0, 1, 2, 3.
inline uint64_t to_zigzag(int64_t value) {
  return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
}
inline int64_t from_zigzag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

}  // namespace piper
