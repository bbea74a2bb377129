// Multisets of samples, as the ranks of a cell hold them: nothing here grows with the number of
// ranks. Private to the verify room.
#pragma once

#include "piper/bundle.h"

namespace piper {

// For each combination of k in [0, count) over `spread`: samples [first + Σ k × stride, … +
// length), `times` times over. And `stride`: how far the whole moves with the own coordinate on
// each free axis.
struct SampleSet {
  struct Axis {
    int64_t stride = 0, count = 1;
    auto operator<=>(const Axis&) const = default;
  };
  int64_t first = 0, length = 0, times = 1;
  std::vector<int64_t> stride;  // by mesh axis; 0 on all that are not free
  std::vector<Axis> spread;     // ascending
  bool operator==(const SampleSet&) const = default;
};

// The samples of `range` in the cell at `coordinates`.
SampleSet samples_of(const SampleRange& range, const std::vector<int64_t>& coordinates,
                     const std::vector<bool>& free_axis);
// The sum over the ranks along a free axis of size `count`.
void sum_over_axis(SampleSet& set, size_t axis, int64_t count);
// What all ranks have after the one at `coordinate` of a free axis gave its own.
void take_from(SampleSet& set, size_t axis, int64_t coordinate);

// The first run of samples of [0, batch) that the sets hold not exactly once.
struct Miscount {
  int64_t first = 0, end = 0, times = 0;
};
std::optional<Miscount> find_miscount(std::vector<SampleSet> sets, int64_t batch);

// "[0, 4) + 8 × dp"
std::string print_samples(const SampleSet& set,
                          const std::vector<std::pair<std::string, int64_t>>& mesh);

}  // namespace piper
