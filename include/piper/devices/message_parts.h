// Describes messages of several tensors, which lie apart on each side, and copies them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace piper {

// Names a part of a message of several tensors.
struct MessagePart {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

inline int64_t bytes_of(std::span<const MessagePart> parts) {
  int64_t bytes = 0;
  for (const MessagePart& part : parts) bytes += part.bytes;
  return bytes;
}

// Calls copy(to, from, bytes) for each run that lies in one part on both sides, as if each side
// were contiguous. Requires as many bytes on both.
template <class Copy>
void copy_parts(std::span<const MessagePart> from, std::span<const MessagePart> to,
                const Copy& copy) {
  size_t part = 0;
  int64_t done = 0;  // of that part
  for (const MessagePart& own : to)
    for (int64_t at = 0; at < own.bytes;) {
      while (done == from[part].bytes) ++part, done = 0;
      const int64_t bytes = std::min(own.bytes - at, from[part].bytes - done);
      copy(own.data + at, from[part].data + done, bytes);
      at += bytes, done += bytes;
    }
}

}  // namespace piper
