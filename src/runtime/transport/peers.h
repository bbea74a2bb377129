// How a rank that is a process waits for others: every wait tests its transfers, gives way to other
// processes and looks at the clock.
#pragma once

#include <sched.h>

#include <optional>

#include "doorbell.h"
#include "host_memory.h"
#include "wire.h"

namespace piper::process {

class Peers {
 public:
  Peers(std::unique_ptr<Wire> wire, double timeout_s);

  Wire& wire() { return *wire_; }
  HostMemory& memory() { return memory_; }
  int64_t rank() const { return rank_; }
  int64_t world() const { return world_; }
  double timeout() const { return timeout_; }
  void set_timeout(double seconds) { timeout_ = seconds; }
  // Lets waits spin longer from here on where nobody else wants the core. Called when all ranks are
  // there.
  void note_all_have_come();
  // Returns whether an error has ended the job.
  bool has_ended() const { return ended_; }
  void abort(const Error& reason);
  // Returns those ranks that have not looked around for half of the timeout.
  std::vector<int64_t> find_stuck(std::span<const int64_t> ranks) const;

  // Returns whether the transfer has ended; a receive of another size ends with an error.
  bool is_done(Transfer& transfer, Status& status, const char* what);
  // Waits until all transfers have ended. For errors: `what` is done, by a group of `ranks` if any.
  Status wait(std::span<Transfer> transfers, const char* what, std::span<const int64_t> ranks = {});
  // Waits until ready(peer), which says for whom it waits; rests for so many seconds between two
  // looks. Others may need the core to get there: gives way soon, rests after a while.
  template <class Ready, class Where>
  Status wait_until(double rest_s, Ready ready, Where where) {
    std::optional<Patience> patience;
    int64_t peer = -1;
    for (int turn = 0; !ready(peer); ++turn) {
      if (turn % 32 == 0 || (patience && patience->waited() > wire_->spin_seconds())) {
        PIPER_TRY(wire_->check_stopped());
        if (!patience) patience.emplace(memory_.own().seat, timeout_);
        patience->wait_for(peer);
        if (!patience->look()) return late(peer, where());
        if (patience->waited() > wire_->spin_seconds())
          wire_->rest(std::min(rest_s, patience->interval()));
      }
      turn < spins_ ? Doorbell::relax() : static_cast<void>(sched_yield());
    }
    if (patience) patience->done();
    return ok_status();
  }

 private:
  Status wait_all(std::span<Transfer> transfers, const char* what, std::span<const int64_t> ranks);
  const Seat* seat_of(int64_t rank) const;  // null: it is on another host
  Error late(int64_t peer, const std::string& where) const;

  std::unique_ptr<Wire> wire_;
  const int64_t rank_, world_;
  int spins_ = 32;  // before others get the core
  double timeout_;
  bool ended_ = false;
  HostMemory memory_;
};

}  // namespace piper::process
