// From time to time each rank tells its neighbours in the tree that it goes on. The process does
// so, beside a thread that works: a process that is stopped or gone says nothing.
#include "finish.h"

#include <chrono>
#include <system_error>
#include <thread>

namespace piper {
namespace {

constexpr std::chrono::milliseconds kLook{1};

enum class Word : uint8_t { kGoesOn, kIsDone };

class Ending {
 public:
  Ending(Control& control, double timeout_s)
      : control_(control), interval_(std::min(0.5, timeout_s / 10)) {
    control.set_timeout(timeout_s);
    control.activity().store("what it does after the last step", std::memory_order_release);
    near_ = control_.children();
    if (const auto up = control_.parent()) near_.push_back(*up);
  }

  Status tell_if_due() {
    if (Clock::now() - told_ < interval_) return ok_status();
    told_ = Clock::now();
    for (const int64_t rank : near_) PIPER_TRY(tell(rank, Word::kGoesOn));
    return ok_status();
  }
  // Rank 0 is the last to be done, and hears from all that they know.
  Status close() {
    PIPER_TRY(pass_up());
    if (const auto up = control_.parent()) PIPER_TRY(hear_out(*up));
    for (const int64_t child : control_.children()) PIPER_TRY(tell(child, Word::kIsDone));
    return pass_up();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Status tell(int64_t rank, Word word) {
    return control_.tell(rank, std::as_bytes(std::span(&word, 1)));
  }
  Status pass_up() {
    for (const int64_t child : control_.children()) PIPER_TRY(hear_out(child));
    if (const auto up = control_.parent()) PIPER_TRY(tell(*up, Word::kIsDone));
    return ok_status();
  }
  Status hear_out(int64_t rank) {
    for (Word word = Word::kGoesOn; word != Word::kIsDone;) {
      PIPER_TRY(control_.hear(rank, std::as_writable_bytes(std::span(&word, 1)), "last exchange"));
      PIPER_TRY(tell_if_due());
    }
    return ok_status();
  }

  Control& control_;
  const std::chrono::duration<double> interval_;
  std::vector<int64_t> near_;
  Clock::time_point told_ = Clock::now();
};

Status work_and_tell(Ending& ending, const std::function<void()>& work) {
  std::atomic<bool> over{false};
  std::thread worker;
  try {
    worker = std::thread([&] {
      work();
      over.store(true);
    });
  } catch (const std::system_error&) {  // no thread is to be had: in silence, then
    work();
    return ok_status();
  }
  Status status = ok_status();
  while (status && !over.load()) {
    std::this_thread::sleep_for(kLook);
    status = ending.tell_if_due();
  }
  worker.join();
  return status;
}

}  // namespace

Status finish_together(Control& control, double timeout_s, const std::function<void()>& work) {
  Ending ending(control, timeout_s);
  Status status = work_and_tell(ending, work);
  if (status) status = ending.close();
  if (status) return ok_status();
  Error error = std::move(status).error();
  error.message = fmt::format("after the last step: {}", error.message);
  return error;
}

}  // namespace piper
