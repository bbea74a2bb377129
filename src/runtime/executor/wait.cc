// The host waits for its device, and looks meanwhile whether what that waits for can still come.
#include <thread>

#include "executor_state.h"

namespace piper {
namespace {

constexpr double kLooks = 2e-3;  // seconds before it rests
constexpr std::chrono::microseconds kRest{50};

// Its device may wait for other ranks: those that do not go on are named.
Error late(const Executor::State& state, int64_t step) {
  std::string others;
  for (const int64_t rank : state.control.find_stuck(state.peers))
    others += fmt::format("; rank {} does not go on", rank);
  return fail("rank {} waited {:.3g} s for its device in step {}{}; what it queued last is {}",
              state.control.rank(), state.control.timeout(), step + 1, others, state.queued_last)
      .with_code(ExitCode::kPeer);
}

Status look_around(Executor::State& state, Patience& patience, int64_t step) {
  PIPER_TRY(state.control.check_stopped());
  if (Status status = state.fabric.poll(); !status)
    return of_step(state, step, std::move(status).error());
  return patience.look() ? ok_status() : Status(late(state, step));
}

}  // namespace

Error of_step(const Executor::State& state, int64_t step, Error error) {
  error.message =
      fmt::format("rank {}, step {}: {}", state.control.rank(), step + 1, error.message);
  return error;
}

Status wait_for(Executor::State& state, int32_t event, int64_t step) {
  std::optional<Patience> patience;
  for (int turn = 0;; ++turn) {
    Result<bool> is_done = state.backend.is_done(event);
    if (is_done && *is_done) {
      Status finished = state.backend.finish(event);
      return finished ? finished : of_step(state, step, std::move(finished).error());
    }
    if (!is_done) return of_step(state, step, std::move(is_done).error());
    if (!patience) patience.emplace(state.control.seat(), state.control.timeout());
    const bool rests = patience->waited() > kLooks;
    if (rests || turn % 32 == 0) PIPER_TRY(look_around(state, *patience, step));
    rests ? std::this_thread::sleep_for(kRest) : std::this_thread::yield();
  }
}

}  // namespace piper
