// Time limits of tests that prove that nobody waits: what is to end at once may take kAtOnce on a
// loaded machine, and what it must not wait for would take kNever. In seconds.
#pragma once

namespace piper {

inline constexpr double kAtOnce = 60, kNever = 300;

}  // namespace piper
