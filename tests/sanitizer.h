// Which sanitizer a test is built with.
#pragma once

namespace piper {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitizer;
#endif

}  // namespace piper

// Leaves a test that starts mpirun: a process under it has one thread of ours, and Open MPI's own
// threads are not built for the thread sanitizer.
#define SKIP_UNDER_THREAD_SANITIZER() \
  if (kThreadSanitizer) GTEST_SKIP() << "nothing of ours to find in processes of one thread"
