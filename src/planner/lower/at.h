// Ids as positions. Private to the lower room.
#pragma once

#include <cstddef>
#include <cstdint>

namespace piper {

inline size_t at(int64_t id) { return static_cast<size_t>(id); }

}  // namespace piper
