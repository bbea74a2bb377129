// The few host bytes that keep a job together: ranks agree on their plans, tell each other what
// goes between steps, and end together.
//
// A Control belongs to one rank and is used from one thread of it at a time. Every wait has a
// deadline: when it passes, or another rank has aborted, the call returns an Error with
// ExitCode::kPeer that names this rank, what it waited for, the rank it waited for, whom that
// one waits for, and where the last of them is. Time in which this process was suspended
// does not count.
#pragma once

#include <atomic>
#include <functional>
#include <optional>

#include "piper/base/base.h"

namespace piper {

// Says which plan a rank holds. Ranks compare it before any data moves.
struct PlanIdentity {
  std::string set_id;
  int64_t rank = 0;
  int64_t world = 1;
  std::string source;   // the file or directory, for the error
  std::string kernels;  // what the rank computes with: ranks of one job must not round differently
  // What else must be the same on all ranks, with its value: all name the same.
  std::vector<std::pair<std::string, std::string>> flags;
  // Why the rank cannot take part: what the others wait for in vain. The rest may be empty then.
  std::optional<Error> failure = std::nullopt;
};

int64_t now_ns();  // of the steady clock

// Holds what one rank shows to others: what it does and whom it waits for. The error of a wait that
// times out follows these to the rank at the end of the chain, and names it.
struct alignas(64) Seat {
  std::atomic<const char*> activity{nullptr};  // in the rank's own memory
  std::atomic<int64_t> waits_for{-1};          // a rank; -1: nobody
  std::atomic<int64_t> looked_ns{0};           // when it last looked around while it waited
};

// Counts how long a rank has waited. Time in which the process was suspended does not count, so a
// suspended job goes on without timing out.
class Patience {
 public:
  Patience(Seat& seat, double limit_s);
  // Shows others whom this rank waits for, until done().
  void wait_for(int64_t peer) { seat_.waits_for.store(peer, std::memory_order_relaxed); }
  void done() { seat_.waits_for.store(-1, std::memory_order_relaxed); }
  // Looks around: to be called every interval(); returns false when the limit has passed. What the
  // rank waits for is left for others to see.
  bool look();
  double interval() const { return interval_; }
  double waited() const { return waited_; }

 private:
  Seat& seat_;
  const double limit_, interval_;
  double waited_ = 0;
  int64_t last_ns_;
};

// Moves host bytes between the ranks of a job, over a tree: rank 0 is its root, rank r > 0 is a
// child of (r - 1) / kFanOut. No rank's number of bytes or messages grows with the world.
class Control {
 public:
  static constexpr int64_t kFanOut = 8;
  virtual ~Control() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t world() const = 0;
  std::optional<int64_t> parent() const;
  std::vector<int64_t> children() const;
  int64_t depth() const;   // of the own rank: 0 is the root's
  int64_t height() const;  // the largest depth

  // Agrees with the others; all ranks call it first. It fails on every rank, naming both sides,
  // unless all hold plans of one set for the same world, each for another rank, and all can take
  // part.
  virtual Status agree(const PlanIdentity& own);
  // Returns at once: the bytes are copied. What one rank tells another is heard in order.
  virtual Status tell(int64_t rank, std::span<const std::byte> bytes) = 0;
  // Hears as many bytes as were told; `what` names what the rank waits for, as in "barrier".
  virtual Status hear(int64_t rank, std::span<std::byte> bytes, const char* what) = 0;
  // Collective: what all bring becomes one on its way to rank 0, then everyone's. `fold` takes what
  // a child brings into its own; in whatever order, it comes to the same.
  Status merge(std::span<std::byte> own, const char* what,
               const std::function<void(std::span<const std::byte> theirs)>& fold);
  virtual Status barrier();
  // Ends the waits of all other ranks with an error that carries this one's message. The first call
  // of a job counts.
  virtual void abort(const Error& reason) = 0;

  // Sets how long the rank waits for others from here on, in everything that it waits through.
  virtual void set_timeout(double seconds) = 0;
  virtual double timeout() const = 0;
  // Fails when another rank has aborted or is gone: for waits that go through something else.
  virtual Status check_stopped() = 0;
  virtual Seat& seat() = 0;
  // Returns those of these ranks that have not looked around for half that time, so that others may
  // wait for them; as far as anything is known of them.
  virtual std::vector<int64_t> find_stuck(std::span<const int64_t> /*ranks*/) { return {}; }
  // Says what this rank is doing, for the errors of those who wait for it: a text that outlives
  // the job. May stay unread.
  std::atomic<const char*>& activity() { return seat().activity; }
};

// These send and receive a text of any length (below 1 GiB), from one rank to another; and texts in
// one.
Status tell_text(Control& control, int64_t rank, std::string_view text);
Result<std::string> hear_text(Control& control, int64_t rank, const char* what);
std::string pack(std::span<const std::string> texts);
std::vector<std::string> unpack(std::string_view packed);

}  // namespace piper
