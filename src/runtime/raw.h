// The bytes of plain values, for messages between ranks. Private to the runtime room.
#pragma once

#include <cstddef>

namespace piper {

template <class T>
std::byte* raw(T* data) {
  return reinterpret_cast<std::byte*>(data);
}

}  // namespace piper
