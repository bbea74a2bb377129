#include "fibers.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>

#include "piper/base/base.h"
#include "sanitizer.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#ifdef __x86_64__
// Saves what a function must preserve, and takes up what the other stack has saved: swapcontext
// calls the system each time for the signals' sake.
extern "C" void piper_switch_stacks(void** from, void* to);
asm(R"(
.text
.globl piper_switch_stacks
.type piper_switch_stacks, @function
piper_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size piper_switch_stacks, .-piper_switch_stacks
)");
#else
#include <ucontext.h>
#endif

namespace piper::emulator {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10, kPage = 4096;
thread_local Fibers* entering = nullptr;  // whose fiber is started

#ifdef __x86_64__
using Context = void*;
void set_up(Context& context, char* stack, void (*entry)()) {
  auto* top = reinterpret_cast<void**>(stack + kStackBytes);
  *--top = nullptr;  // where `entry` would return to, so that its frame is aligned
  *--top = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  context = top;
}
void exchange(Context& from, Context& to) { piper_switch_stacks(&from, to); }
#else
using Context = ucontext_t;
void set_up(Context& context, char* stack, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}
void exchange(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

// Stacks that nobody has: launches follow each other, and the system is slow to give and take them.
class Stacks {
 public:
  // Behind a page that nobody may touch.
  char* take() {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      char* const stack = idle_.back();
      idle_.pop_back();
      return stack;
    }
    void* memory = mmap(nullptr, kStackBytes + kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    PIPER_CHECK(memory != MAP_FAILED, "no memory for the stack of a fiber");
    mprotect(memory, kPage, PROT_NONE);
    return static_cast<char*>(memory) + kPage;
  }
  void give_back(char* stack) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(stack);
  }

 private:
  std::mutex mutex_;
  std::vector<char*> idle_;
};
Stacks& stacks() {
  static Stacks& all = *new Stacks;  // fibers may end after everything else
  return all;
}

}  // namespace

struct Fibers::Host {
  Context context{};
  const void* stack = nullptr;  // as the address sanitizer says
  size_t bytes = 0;
  void* fake = nullptr;
  void* thread = nullptr;  // as the thread sanitizer says
};

struct Fibers::Fiber {
  size_t number = 0;
  char* stack = nullptr;
  Context context{};
  bool is_idle = true, is_prepared = false;
  void* fake = nullptr;
  void* thread = nullptr;
};

Fibers::Fibers(std::function<void(size_t)> body)
    : body_(std::move(body)), host_(std::make_unique<Host>()) {}

Fibers::~Fibers() {
  abandon();
  for (const auto& fiber : fibers_) stacks().give_back(fiber->stack);
}

Fibers::Fiber& Fibers::at(size_t number) {
  while (fibers_.size() <= number) {
    auto fiber = std::make_unique<Fiber>();
    fiber->number = fibers_.size();
    fiber->stack = stacks().take();
    fibers_.push_back(std::move(fiber));
  }
  return *fibers_[number];
}

void Fibers::prepare(Fiber& fiber) {
  set_up(fiber.context, fiber.stack, &Fibers::enter);
  fiber.is_prepared = true;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(fiber.stack, kStackBytes);  // of frames that were abandoned
#endif
#if defined(__SANITIZE_THREAD__)
  if (fiber.thread) __tsan_destroy_fiber(fiber.thread);
  fiber.thread = __tsan_create_fiber(0);
#endif
}

void Fibers::enter() {
  Fibers& all = *entering;
  all.run(*all.running_);
}

void Fibers::run(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &host_->stack, &host_->bytes);
#endif
  for (;;) {
    body_(fiber.number);
    fiber.is_idle = true;
    to_host(fiber);
  }
}

void Fibers::to_fiber(Fiber& fiber) {
  running_ = &fiber;
  entering = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&host_->fake, fiber.stack, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  host_->thread = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(fiber.thread, 0);
#endif
  exchange(host_->context, fiber.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(host_->fake, nullptr, nullptr);
#endif
}

void Fibers::to_host(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fiber.fake, host_->stack, host_->bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(host_->thread, 0);
#endif
  exchange(fiber.context, host_->context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.fake, &host_->stack, &host_->bytes);
#endif
}

void Fibers::resume(size_t number) {
  Fiber& fiber = at(number);
  if (!fiber.is_prepared) prepare(fiber);
  fiber.is_idle = false;
  to_fiber(fiber);
}

void Fibers::stop() { to_host(*running_); }

bool Fibers::is_idle(size_t number) const {
  return number >= fibers_.size() || fibers_[number]->is_idle;
}

void Fibers::abandon() {
  for (const auto& fiber : fibers_) {
    if (!fiber->is_idle) fiber->is_prepared = false;
    fiber->is_idle = true;
  }
#if defined(__SANITIZE_THREAD__)
  for (const auto& fiber : fibers_)
    if (fiber->thread && !fiber->is_prepared) {
      __tsan_destroy_fiber(fiber->thread);
      fiber->thread = nullptr;
    }
#endif
}

std::pair<uintptr_t, size_t> Fibers::stack(size_t number) const {
  return {reinterpret_cast<uintptr_t>(fibers_[number]->stack), kStackBytes};
}

}  // namespace piper::emulator
