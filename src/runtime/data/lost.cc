// Notices data files that are cut while they are mapped: the missing page is replaced, and the step
// fails.
#include "lost.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

namespace piper {
namespace {

thread_local const char* reads = nullptr;  // path
enum class Lost { kNothing, kNoted, kNamed };
std::atomic<Lost> lost{Lost::kNothing};
char lost_path[4096] = {};     // of the file that was lost first
struct sigaction before = {};  // what else is done at the signal
uintptr_t page = 4096;

// A page of zeros takes the place of the one that has vanished, so that the read comes to its end.
void replace_page(int signal, siginfo_t* about, void* context) {
  const auto at = reinterpret_cast<uintptr_t>(about->si_addr) / page * page;
  Lost none = Lost::kNothing;
  if (reads != nullptr && lost.compare_exchange_strong(none, Lost::kNoted)) {
    std::strncpy(lost_path, reads, sizeof lost_path - 1);
    lost.store(Lost::kNamed);
  }
  if (reads != nullptr && mmap(reinterpret_cast<void*>(at), page, PROT_READ,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED)
    return;
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, about, context);
  sigaction(signal, &before, nullptr);  // it comes again
}

}  // namespace

MappedRead::MappedRead(const std::string& path) : before_(reads) { reads = path.c_str(); }
MappedRead::~MappedRead() { reads = before_; }

void watch_for_losses() {
  static std::once_flag once;
  std::call_once(once, [] {
    page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction ours = {};
    ours.sa_sigaction = replace_page;
    ours.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &ours, &before);
  });
  lost.store(Lost::kNothing);
}

Status check_losses() {
  if (lost.load() == Lost::kNothing) return ok_status();
  while (lost.load() != Lost::kNamed) std::this_thread::yield();
  return loss_of(lost_path);
}

Error loss_of(const std::string& path) {
  return fail("'{}' was cut or became unreadable while it was in use", path)
      .with_code(ExitCode::kStorage);
}

}  // namespace piper
