// A backend that runs nothing and counts what it was asked: what is left of a step is the executor.
#pragma once

#include <memory>

#include "piper/devices/backend.h"

namespace piper {

// Counts what a null backend was asked to do. Its `copy` and `fill` leave memory as it is.
struct NullCounts {
  int64_t loads = 0, binds = 0, launches = 0, copies = 0, fills = 0;
};
std::unique_ptr<Backend> make_null_backend(NullCounts* counts = nullptr);

}  // namespace piper
