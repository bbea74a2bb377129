// Strided moves of backends that have nothing faster than a copy for each run.
#include "piper/devices/backend.h"

namespace piper {

void Backend::move(const StridedMove& move, int32_t stream) {
  const auto each = [&](const auto& self, size_t loop, const std::byte* from,
                        std::byte* to) -> void {
    if (loop == move.loops.size()) return copy(to, from, move.run, stream);
    for (int64_t i = 0; i < move.loops[loop].count; ++i)
      self(self, loop + 1, from + i * move.loops[loop].from, to + i * move.loops[loop].to);
  };
  if (move.run > 0) each(each, 0, move.from, move.to);
}

}  // namespace piper
