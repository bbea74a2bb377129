// Which of several sources gives a sample: a function of the sample's number, without state.
#pragma once

#include <span>
#include <vector>

#include "piper/base/base.h"

namespace piper {

// From sample `from` on, source s gives weights[s] of every sum-of-weights samples. Weights are
// whole numbers without a common divisor; one at least is not 0.
struct MixPhase {
  int64_t from = 0;
  std::vector<int64_t> weights;
};
inline constexpr int64_t kMostParts = 1'000'000;  // sum of the weights of a phase
inline constexpr size_t kMostSources = 64, kMostPhases = 64;

// Spreads each phase's sources so evenly that after n of its samples each has given its share of n
// to one sample. The order repeats after as many samples as the weights have parts, and takes a
// byte of memory for each.
class Mix {
 public:
  explicit Mix(const std::vector<MixPhase>& phases);  // the first one from 0, then rising
  // Lets each source give its `sizes` samples and then no more: the others go on by their weights,
  // and a phase begins early if all that it follows have ended. A source that ends in no phase goes
  // on behind them with the last weight that it had; one that never has any gives nothing.
  static Mix of_each_once(std::span<const MixPhase> phases, std::span<const int64_t> sizes);
  struct Place {
    int source = 0;
    int64_t index = 0;  // of the samples that the source gives
  };
  Place at(int64_t sample) const;
  // Returns how many of the first `samples` are of the source.
  int64_t count(int source, int64_t samples) const;

 private:
  struct Phase {
    int64_t from = 0;
    std::vector<int64_t> weights;
    std::vector<int64_t> before;  // by source: samples of earlier phases
    std::vector<uint8_t> order;   // the source of each sample of a period
    std::vector<int32_t> counts;  // by source, at every kStride-th sample of a period
  };
  static constexpr int64_t kStride = 256;
  Mix() = default;
  static Phase make_phase(const MixPhase& phase);
  void add(const MixPhase& phase);
  const Phase& phase_of(int64_t sample) const;
  int64_t count_in(const Phase& phase, int source, int64_t samples) const;

  std::vector<Phase> phases_;
};

}  // namespace piper
