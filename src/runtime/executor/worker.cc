// A thread that does one piece of work at a time when it is told.
#include "worker.h"

#include <csignal>
#include <system_error>

#include "piper/devices/cpu.h"

namespace piper {
namespace {

// Returns the signals that go to other threads. A thread causes the rest itself, as by a read of a
// file that was cut: where they are blocked, the system ends the process, whatever handles them.
sigset_t signals_for_others() {
  sigset_t all;
  sigfillset(&all);
  for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS})
    sigdelset(&all, own);
  return all;
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::start(std::function<void()> work, int core) {
  std::unique_ptr<Worker> made(new Worker(std::move(work)));
  const sigset_t others = signals_for_others();
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, &others, &before);  // what it has at its start
  std::optional<std::string> problem;
  try {
    made->thread_ = std::thread([worker = made.get(), core] {
      if (core >= 0) pin_to_core(core);
      worker->serve();
    });
  } catch (const std::system_error& refused) {
    problem = refused.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!problem) return made;
  return fail("the system refused a second thread for the rank: {}", *problem)
      .with_code(ExitCode::kStorage);
}

Worker::~Worker() {
  if (!thread_.joinable()) return;
  finish();
  leaves_ = true;
  begin();
  thread_.join();
}

void Worker::begin() {
  begun_.fetch_add(1, std::memory_order_release);
  begun_.notify_one();
}

void Worker::finish() {
  const uint32_t last = begun_.load(std::memory_order_relaxed);
  await(ended_, [&](uint32_t ended) { return ended == last; });
}

void Worker::serve() {
  for (uint32_t turn = 1;; ++turn) {
    await(begun_, [&](uint32_t begun) { return begun == turn; });
    if (leaves_) return;
    work_();
    ended_.store(turn, std::memory_order_release);
    ended_.notify_one();
  }
}

}  // namespace piper
