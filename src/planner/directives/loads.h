// The costs of regions of contiguous ops, as `balance` compares them. Private to the room.
#pragma once

#include "piper/planner/job_costs.h"

namespace piper {

// Returns by op whether it is in a region that the split cuts, of a forward graph (parts.cc).
std::vector<bool> ops_in_parts(const Graph& graph, const Split& split);

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
  // Finds what ops `place` puts elsewhere part by part, and counts the parts where they are.
  void find_parts(const Graph& graph, const BalanceRule& balance, const JobCosts& costs);
  void add_parts(size_t op, size_t measure, double load);
  bool is_in_parts(size_t op) const { return !split_of_.empty() && split_of_[op] >= 0; }
  double sent(size_t r, size_t p) const;

  BalanceRule::By by_ = BalanceRule::By::kTime;
  std::vector<int32_t> kinds_;  // of devices; empty: none are known
  std::vector<Region> regions_;
  std::vector<std::vector<double>> measures_;  // sums up to each position, without parts
  std::vector<int32_t> split_of_;              // by op: whose parts are placed; -1: none
  std::vector<std::vector<double>> shares_;    // by split and region: of its parts those there
  std::vector<std::vector<double>> parts_;     // by measure and region: their loads
  double whole_ = 0;                           // of the first measure
  std::vector<double> crossing_, made_;        // made: bytes that ops make, likewise
  std::vector<Shared> shared_;
  std::vector<MessageTime> messages_;  // over the boundary before each region
  std::vector<size_t> work_;
};

}  // namespace piper
