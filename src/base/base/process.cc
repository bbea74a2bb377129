// What every program does first and last.
#include "piper/base/process.h"

#include <fcntl.h>
#include <mimalloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "mapped.h"
#include "piper/base/base.h"

// mimalloc defines these functions; they are null in programs without mimalloc.
extern "C" [[gnu::weak]] decltype(mi_register_error) mi_register_error;
extern "C" [[gnu::weak]] decltype(mi_option_set_enabled_default) mi_option_set_enabled_default;

namespace piper {
namespace {

// Writes without memory of its own: there may be none.
void say(std::string_view text) {
  static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
}

[[noreturn]] void end_without_memory() {
  say("error: out of memory: the system refused an allocation\n");
  _exit(static_cast<int>(ExitCode::kStorage));
}

// Ends on an exception that nobody caught: what the system refuses is no mistake of ours.
[[noreturn]] void end_on_exception() {
  try {
    if (const auto problem = std::current_exception()) std::rethrow_exception(problem);
  } catch (const std::bad_alloc&) {
    end_without_memory();
  } catch (const std::system_error& problem) {
    say("error: the system refused: ");
    say(problem.what());
    say("\n");
    _exit(static_cast<int>(ExitCode::kStorage));
  } catch (const std::exception& problem) {
    say("internal error: ");
    say(problem.what());
    say("\n");
  }
  std::abort();
}

// Files are read as mapped memory: the system says in no other way that one has become shorter, or
// that its disk fails. The first thread says it.
void end_without_file(int, siginfo_t* about, void*) {
  static std::atomic_flag said;
  while (said.test_and_set()) pause();
  const char* const path = mapped_file_at(about->si_addr);
  if (path == nullptr) {
    say("error: memory became unreadable\n");
  } else {
    say("error: '");
    say(path);
    say("' was cut or became unreadable while it was in use\n");
  }
  _exit(static_cast<int>(ExitCode::kStorage));
}

// Libraries allocate before main, and not all allocators know the handler of operator new: mimalloc
// aborts unless it is told what else to do.
[[gnu::section(".preinit_array"), gnu::used]] void (*before_all)() = [] {
  std::set_new_handler(end_without_memory);
  if (mi_register_error == nullptr) return;
  mi_register_error([](int problem, void*) { problem == ENOMEM ? end_without_memory() : void(); },
                    nullptr);
  // Pages that are free for a moment are not given back: each step of a compilation would take them
  // anew, and the system clears what it gives.
  mi_option_set_enabled_default(mi_option_allow_decommit, false);
};

// A stack that is too small would end the process by a signal. This thread's grows up to a limit,
// which is raised where it may be; the others' are of the size that the limit had at the start.
void ensure_stack() {
  constexpr rlim_t kLeast = rlim_t{1} << 20, kUsual = rlim_t{8} << 20;  // bytes
  rlimit stack = {};
  if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kLeast) return;
  stack.rlim_cur = kUsual;
  stack.rlim_max = std::max(kUsual, stack.rlim_max);  // root may
  if (setrlimit(RLIMIT_STACK, &stack) != 0) {
    getrlimit(RLIMIT_STACK, &stack);
    stack.rlim_cur = std::min(kUsual, stack.rlim_max);
    if (stack.rlim_cur < kLeast || setrlimit(RLIMIT_STACK, &stack) != 0) {
      say("error: the system allows less than 1 MiB of stack\n  = help: ulimit -s 8192\n");
      _exit(static_cast<int>(ExitCode::kStorage));
    }
  }
  pthread_attr_t usual;
  pthread_attr_init(&usual);
  pthread_attr_setstacksize(&usual, kUsual);
  pthread_setattr_default_np(&usual);
  pthread_attr_destroy(&usual);
}

}  // namespace

void prepare_process() {
  ensure_stack();
  // The next file to be opened would take the place of a standard stream that is closed. Nothing
  // can be written to these.
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream)
    if (fcntl(stream, F_GETFD) < 0) static_cast<void>(!open("/dev/null", O_RDONLY));
  std::set_terminate(end_on_exception);
  std::signal(SIGXFSZ, SIG_IGN);  // the write fails instead
  struct sigaction cut = {};
  cut.sa_sigaction = end_without_file;
  cut.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &cut, nullptr);
}

Status flush_output() {
  const bool failed = std::fflush(stdout) != 0;
  if (!failed && std::ferror(stdout) == 0) return ok_status();
  return fail("what was printed did not arrive: {}",
              failed ? std::strerror(errno) : "standard output was full or closed")
      .with_code(ExitCode::kStorage);
}

}  // namespace piper
