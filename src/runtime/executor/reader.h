// Reads what a section takes from the data before the section begins: where there is a thread for
// it, while the one before runs.
#pragma once

#include "executor_state.h"
#include "worker.h"

namespace piper {

class Reader {
 public:
  static Result<std::unique_ptr<Reader>> start(Executor::State& state, bool has_thread);
  // Begins to read what the section takes in `step` into the staging of this parity, which nobody
  // uses any more.
  void begin(const BoundSection& section, int64_t step, size_t parity);
  // Waits until that is done; reads it now if nothing or something else was begun. The error is
  // that of the first instruction that has one.
  Status take(const BoundSection& section, int64_t step, size_t parity);
  // What was begun is waited for and not taken.
  void forget();

 private:
  // Says who asks, and for what.
  struct Order {
    const BoundSection* section = nullptr;
    int64_t step = 0;
    size_t parity = 0;
    const BatchSource* data = nullptr;
    bool operator==(const Order&) const = default;
  };
  explicit Reader(Executor::State& state) : state_(state) {}
  void read();

  Executor::State& state_;
  Order order_;
  Status status_ = ok_status();
  std::unique_ptr<Worker> worker_;  // null: no thread; last: it ends first
};

}  // namespace piper
