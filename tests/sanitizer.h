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

// For a function that computes what threads are to come to, of memory of its own: the thread
// sanitizer has nothing to find in it, and would take most of a test's time there. It does not
// reach into functions that are called.
#if defined(__GNUC__) && !defined(__clang__)
#define NOT_FOR_THREAD_SANITIZER __attribute__((no_sanitize_thread))
#else
#define NOT_FOR_THREAD_SANITIZER __attribute__((no_sanitize("thread")))
#endif

// Leaves a test that starts mpirun: a process under it has one thread of ours, and Open MPI's own
// threads are not built for the thread sanitizer.
#define SKIP_UNDER_THREAD_SANITIZER() \
  if (kThreadSanitizer) GTEST_SKIP() << "nothing of ours to find in processes of one thread"
