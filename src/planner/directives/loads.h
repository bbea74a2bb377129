// The costs of regions of contiguous ops, as `balance` compares them. Private to the room.
#pragma once

#include "piper/planner/job_costs.h"

namespace piper {

class Loads {
 public:
  static Result<Loads> make(const Graph& graph, const BalanceRule& balance, const JobCosts& costs);

  // Positions are between ops: p is before op p, and there is one after the last.
  size_t positions() const { return crossing_.size(); }
  size_t work_between(size_t a, size_t b) const { return work_[b] - work_[a]; }
  bool is_work(size_t op) const { return work_[op + 1] > work_[op]; }
  double crossing(size_t p) const { return crossing_[p]; }  // bytes
  const std::vector<double>& crossings() const { return crossing_; }

  // Returns what region `r`, of the ops from a to b, has to do or to hold, without its messages.
  // Never less for smaller a, or greater b.
  double own(size_t r, size_t a, size_t b) const;
  // Returns the same with its messages (by time); infinity where it has no work.
  double all(size_t r, size_t a, size_t b) const;
  // Returns a sum up to position p, of which regions should have about equal shares.
  double share_before(size_t p) const { return measures_.front()[p]; }
  // "33.3 % of the forward FLOPs".
  std::string describe(size_t r, size_t a, size_t b) const;

 private:
  struct Region {
    std::vector<size_t> measures = {0};  // that it counts by: the one that gives most
    double unit = 1, held = 0;           // of its load; of what ops make, the part that it holds
    std::string name;                    // of the devices
  };
  // Holds a parameter that several ops read: each region that has one keeps it.
  struct Shared {
    double bytes = 0;
    std::vector<size_t> readers;
  };
  Status count_time(const Graph& graph, const JobCosts& costs);
  void count_bytes(const Graph& graph, const BalanceRule& balance, const JobCosts& costs);
  void place(const BalanceRule& balance, const JobCosts& costs);
  double sent(size_t r, size_t p) const;

  BalanceRule::By by_ = BalanceRule::By::kTime;
  std::vector<int32_t> kinds_;  // of devices; empty: none are known
  std::vector<Region> regions_;
  std::vector<std::vector<double>> measures_;  // sums up to each position
  std::vector<double> crossing_, made_;        // made: bytes that ops make, likewise
  std::vector<Shared> shared_;
  std::vector<MessageTime> messages_;  // over the boundary before each region
  std::vector<size_t> work_;
};

}  // namespace piper
