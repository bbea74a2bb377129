// Errors of plans that are not what they should be: their exit code says so. Private to the bundle
// room.
#pragma once

#include "piper/base/base.h"

namespace piper {

template <class... Args>
Error bad(fmt::format_string<Args...> text, Args&&... args) {
  return fail(fmt::runtime(text), std::forward<Args>(args)...).with_code(ExitCode::kPlan);
}

template <class... Args>
Error bad_at(const std::string& path, fmt::format_string<Args...> text, Args&&... args) {
  return fail(SourceSpan{path}, fmt::runtime(text), std::forward<Args>(args)...)
      .with_code(ExitCode::kPlan);
}

inline bool in_range(int64_t id, size_t count) {
  return id >= 0 && id < static_cast<int64_t>(count);
}

}  // namespace piper
