// Writes what ranks did last. Nothing here allocates once a recorder is made: handlers of signals
// use it.
#include "recorder.h"

#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

#include "executor_state.h"

namespace piper {
namespace {

constexpr size_t kMostRanks = 1024;  // of one process; others are not recorded
std::atomic<Recorder*> all_recorders[kMostRanks];

// A stack that another thread was asked for. SIGURG is ignored where nobody handles it.
constexpr int kAsk = SIGURG;
struct Frames {
  std::array<void*, 64> frames;
  std::atomic<int> count{-1};
};
Frames asked_stack;
std::mutex asking;
std::mutex registry;  // who holds it finds recorders that stay; handlers of signals do without

extern "C" void answer_with_stack(int) {
  const int before = errno;
  asked_stack.count.store(backtrace(asked_stack.frames.data(), 64), std::memory_order_release);
  errno = before;
}

template <class... Args>
void put(int file, fmt::format_string<Args...> text, Args&&... args) {
  std::array<char, 512> line;
  const auto end =
      fmt::format_to_n(line.data(), line.size(), text, std::forward<Args>(args)...).size;
  static_cast<void>(!::write(file, line.data(), std::min(end, line.size())));
}

// Writes the stack of another thread, if it answers within a second.
void put_stack_of(int file, pthread_t thread) {
  const std::lock_guard lock(asking);
  asked_stack.count.store(-1, std::memory_order_relaxed);
  if (pthread_kill(thread, kAsk) != 0) return;
  for (int wait = 0; wait < 1000 && asked_stack.count.load(std::memory_order_acquire) < 0; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const int count = asked_stack.count.load(std::memory_order_acquire);
  if (count < 0) return put(file, "its thread does not answer\n");
  backtrace_symbols_fd(asked_stack.frames.data(), count, file);
}

void put_own_stack(int file) {
  std::array<void*, 64> frames;
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), 64), file);
}

const char* signal_name(int number) {
  return number == SIGSEGV   ? "it crashed: SIGSEGV"
         : number == SIGABRT ? "it crashed: SIGABRT"
         : number == SIGFPE  ? "it crashed: SIGFPE"
                             : "it crashed: SIGILL";
}
constexpr int kCrashes[] = {SIGSEGV, SIGABRT, SIGFPE, SIGILL};
struct sigaction before_us[std::size(kCrashes)];  // what was done of these, and is done after us
void handle_as_before() {
  for (size_t k = 0; k < std::size(kCrashes); ++k) sigaction(kCrashes[k], &before_us[k], nullptr);
}
thread_local Recorder* own_recorder = nullptr;

// Of a thread that is no rank's own, all ranks here may be meant.
extern "C" void write_and_crash(int number) {
  handle_as_before();
  for (std::atomic<Recorder*>& slot : all_recorders) {
    Recorder* const one = slot.load(std::memory_order_acquire);
    if (one != nullptr && (own_recorder == nullptr || own_recorder == one))
      one->write(signal_name(number), Recorder::Stack::kOfCaller);
  }
  std::raise(number);
}

}  // namespace

Spent spent_on(const Instruction& one) {
  if (one.kind == InstructionKind::kInput) return Spent::kData;
  if (one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv ||
      is_collective(one.kind))
    return Spent::kCommunication;
  if (one.pass == TaskPass::kF) return Spent::kForward;
  if (is_backward(one.pass)) return Spent::kBackward;
  return one.pass == TaskPass::kU ? Spent::kUpdate : Spent::kOther;
}

Recorder::Recorder(int64_t rank, Seat& seat, const std::string& folder)
    : rank_(rank), seat_(seat), thread_(pthread_self()) {
  const std::string path = fmt::format("{}/rank{:05}", folder, rank);
  if (folder.empty() || path.size() + 16 > path_.size()) return;
  std::error_code ignored;  // without a folder there is no file, which hinders nothing
  std::filesystem::create_directories(folder, ignored);
  std::filesystem::rename(path + ".txt", path + ".before.txt", ignored);
  (path + ".txt").copy(path_.data(), path_.size() - 1);
  std::array<void*, 4> first;
  backtrace(first.data(), 4);  // loads what the next call needs
  own_recorder = this;
  for (std::atomic<Recorder*>& slot : all_recorders) {
    Recorder* nobody = nullptr;
    if (slot.compare_exchange_strong(nobody, this)) return;
  }
}

Recorder::~Recorder() {
  own_recorder = nullptr;
  const std::lock_guard lock(registry);  // nobody writes it meanwhile
  for (std::atomic<Recorder*>& slot : all_recorders) {
    Recorder* self = this;
    slot.compare_exchange_strong(self, nullptr);
  }
}

uint64_t Recorder::done() const {
  return lines[0].count_.load(std::memory_order_acquire) +
         lines[1].count_.load(std::memory_order_acquire);
}

void Recorder::write_line(int file, const Line& line, const char* name, double now_us) const {
  const uint64_t count = line.count_.load(std::memory_order_acquire);
  if (count == 0) return;
  put(file, "\n{}, oldest first: seconds ago, step, instruction\n", name);
  for (uint64_t k = count - std::min(count, kKept); k < count; ++k) {
    const Line::Entry& entry = line.entries_[k % kKept];
    const char* const label = entry.label.load(std::memory_order_relaxed);
    put(file, "{:10.6f}  {:4}  {}\n",
        (now_us - entry.began_us.load(std::memory_order_relaxed)) * 1e-6,
        entry.step.load(std::memory_order_relaxed) + 1, label == nullptr ? "" : label);
  }
}

void Recorder::write(const char* why, Stack stack) {
  if (path_[0] == '\0') return;
  is_written_.store(true, std::memory_order_relaxed);
  const int file = open(path_.data(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  const double now = now_us();
  const char* const activity = seat_.activity.load(std::memory_order_acquire);
  const int64_t waits_for = seat_.waits_for.load(std::memory_order_relaxed);
  put(file, "rank {}: {}\n", rank_, why);
  put(file, "it was at {}\n", activity == nullptr ? "no instruction yet" : activity);
  if (waits_for >= 0)
    put(file, "it waits for rank {}\n", waits_for);
  else
    put(file, "it waits for no other rank\n");
  write_line(file, lines[0], "its own thread", now);
  write_line(file, lines[1], "its helper thread", now);
  if (stack != Stack::kNone)
    put(file, "\nstack of {} thread; addr2line -Cfe PROGRAM +OFFSET names what has no name\n",
        stack == Stack::kOfCaller ? "the crashed" : "its own");
  if (stack == Stack::kOfCaller) put_own_stack(file);
  if (stack == Stack::kOfRank) put_stack_of(file, thread_);
  close(file);
}

// Returns true once when the rank has stopped: one that waits looks around, so this is a rank that
// neither looks nor makes progress.
bool Recorder::stands_still(double now_us) {
  const uint64_t done = this->done();
  const int64_t look = seat_.looked_ns.load(std::memory_order_relaxed);
  if (done != seen_done_ || look != seen_look_ || since_us_ == 0) {
    seen_done_ = done, seen_look_ = look, since_us_ = now_us;
    was_written_ = false;
  }
  const double patience = patience_s_.load(std::memory_order_relaxed);
  if (was_written_ || patience <= 0 || now_us - since_us_ < patience / 2 * 1e6) return false;
  return was_written_ = true;
}

// ---- The watchman -------------------------------------------------------------------------------

struct Watchman::Thread {
  std::mutex mutex;
  std::condition_variable changed;
  bool ends = false;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return ends; })) {
      const std::lock_guard stay(registry);
      for (std::atomic<Recorder*>& slot : all_recorders) {
        Recorder* const one = slot.load(std::memory_order_acquire);
        if (one != nullptr && one->stands_still(now_us()))
          one->write("it makes no progress, and waits for no other rank", Recorder::Stack::kOfRank);
      }
    }
  }
};

Watchman::Watchman() : thread_(std::make_unique<Thread>()) {
  struct sigaction answer = {};
  answer.sa_handler = answer_with_stack;
  answer.sa_flags = SA_RESTART;
  sigaction(kAsk, &answer, nullptr);
  struct sigaction crash = {};
  crash.sa_handler = write_and_crash;
  for (size_t k = 0; k < std::size(kCrashes); ++k) sigaction(kCrashes[k], &crash, &before_us[k]);
  thread_->thread = std::thread([this] { thread_->run(); });
}

Watchman::~Watchman() {
  {
    const std::lock_guard lock(thread_->mutex);
    thread_->ends = true;
  }
  thread_->changed.notify_all();
  thread_->thread.join();
  handle_as_before();
}

void Watchman::write_all(const char* why) {
  const std::lock_guard stay(registry);
  for (std::atomic<Recorder*>& slot : all_recorders)
    if (Recorder* const one = slot.load(std::memory_order_acquire);
        one != nullptr && !one->is_written_.load(std::memory_order_relaxed))
      one->write(why, Recorder::Stack::kOfRank);
}

}  // namespace piper
