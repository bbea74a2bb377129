// From time to time rank 0 tells all others that it goes on, and they tell rank 0. The process does
// so, beside a thread that works: a process that is stopped or gone says nothing.
#include "finish.h"

#include <chrono>
#include <system_error>
#include <thread>

#include "raw.h"

namespace piper {
namespace {

constexpr int32_t kChannel = kOwnChannels + 7;
constexpr std::chrono::milliseconds kLook{1};

char goes_on = 0, is_done = 1;  // what is said; sends take it from here

class Ending {
 public:
  Ending(Transport& transport, double timeout_s)
      : transport_(transport), interval_(std::min(0.5, timeout_s / 10)) {
    transport.set_timeout(timeout_s);
    transport.activity().store("what it does after the last step", std::memory_order_release);
  }

  Status open() {
    const int64_t first = transport_.rank() == 0 ? 1 : 0,
                  end = transport_.rank() == 0 ? transport_.world() : 1;
    for (int64_t other = first; other < end; ++other) {
      PIPER_ASSIGN(to_.emplace_back(), transport_.add_send(other, kChannel, 1));
      PIPER_ASSIGN(from_.emplace_back(), transport_.add_recv(other, kChannel));
    }
    return ok_status();
  }
  Status tell_if_due() {
    if (Clock::now() - told_ < interval_) return ok_status();
    return tell(goes_on);
  }
  // Rank 0 is the last to be done, and hears from all that they know.
  Status close() {
    if (transport_.rank() == 0) {
      PIPER_TRY(hear_out());
      PIPER_TRY(tell(is_done));
      return hear_out();
    }
    PIPER_TRY(tell(is_done));
    PIPER_TRY(hear_out());
    return tell(is_done);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Status tell(char& word) {
    told_ = Clock::now();
    for (const int32_t route : to_) PIPER_TRY(transport_.send(route, raw(&word), 1));
    return transport_.wait_sends();
  }
  Status hear_out() {
    for (const int32_t route : from_)
      for (char word = goes_on; word != is_done;) {
        PIPER_TRY(transport_.recv(route, raw(&word), 1));
        if (transport_.rank() == 0) PIPER_TRY(tell_if_due());
      }
    return ok_status();
  }

  Transport& transport_;
  const std::chrono::duration<double> interval_;
  std::vector<int32_t> to_, from_;  // routes
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
    return ending.open();
  }
  Status status = ending.open();
  while (status && !over.load()) {
    std::this_thread::sleep_for(kLook);
    status = ending.tell_if_due();
  }
  worker.join();
  return status;
}

}  // namespace

Status finish_together(Transport& transport, double timeout_s, const std::function<void()>& work) {
  Ending ending(transport, timeout_s);
  Status status = work_and_tell(ending, work);
  if (status) status = ending.close();
  if (status) return ok_status();
  Error error = std::move(status).error();
  error.message = fmt::format("after the last step: {}", error.message);
  return error;
}

}  // namespace piper
