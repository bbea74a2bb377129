// Factors by which what was measured differs from what a cluster file says. Private to the room.
#pragma once

#include "programs.h"
#include "transfers.h"

namespace piper::cluster {

// Returns factors from 0 on by which the columns of `rows`, multiplied and added, come nearest to
// `times`, relative to each and to what a clock is off; what they leave open is near `prior`
// (Lawson and Hanson, 1974, Solving Least Squares Problems: by coordinates).
std::vector<double> fit_factors(std::span<const std::vector<double>> rows,
                                std::span<const double> times, std::span<const double> prior,
                                double off = 0);

// Holds times with what is known of them.
struct KnownTime {
  double seconds = 0;
  CostOrigin origin = CostOrigin::kGuessed;
};

// Gives times of programs: measured, else the device's with the factors of what was measured,
// nearer to those programs that spend their time alike.
class ProgramTimes {
 public:
  static Result<ProgramTimes> make(const ClusterDevice& device, const MeasuredTimes* profile);
  Result<KnownTime> of(const Program& plan, const FusedProgram& runs) const;

 private:
  struct Near {
    Parts parts = {};
    double total = 0, off = 0;  // the logarithm of measured by fitted
  };
  Result<KnownTime> op_by_op(const Program& plan) const;
  double total_of(const Parts& parts) const;
  double correction(const Parts& parts, double total) const;

  ClusterDevice device_;
  std::map<std::string, double> measured_;  // by digest
  std::vector<double> factors_ = std::vector<double>(kParts, 1);
  std::vector<Near> near_;
  double least_ = 1;  // of what full rates give: a device may be faster than its file says
};

// Gives times of messages and collectives: measured at this size between ranks that are spread
// alike, else on a line through those of the kind, else of all kinds.
class TransferTimes {
 public:
  TransferTimes(const Cluster& cluster, const Topology& topology, const MeasuredTimes* profile);
  struct Time {
    Way way;
    CostOrigin origin = CostOrigin::kGuessed;
  };
  Time of(const Spread& spread, const ClusterDevice& device, const Instruction& one,
          double bytes) const;
  // Returns what the call of a send, or a copy, an input or the like takes.
  KnownTime send(double bytes) const;
  KnownTime local(const ClusterDevice& device, const RoleProgram& role,
                  const Instruction& one) const;
  // Returns what a backend does in front of a body for a value of so many bytes.
  KnownTime prepared(const ClusterDevice& device, double bytes) const;

 private:
  using Line = std::vector<double>;  // factors of latency, wire and sum
  Way plain(const Spread& spread, const ClusterDevice& device, const Instruction& one,
            double bytes) const;
  KnownTime local_of(std::string_view kind, std::string_view where, double bytes,
                     double otherwise) const;

  // Holds a measured message or collective, with how its ranks are spread here.
  struct Known {
    const MeasuredTimes::Measured* measured = nullptr;
    Spread spread;
  };

  const Cluster& cluster_;
  const MeasuredTimes* profile_;
  std::vector<Known> known_;
  std::map<std::string, Line> lines_;  // by kind; "": of all
};

}  // namespace piper::cluster
