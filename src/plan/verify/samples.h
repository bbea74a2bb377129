// Multisets of samples for all ranks of a cell; their size does not grow with the number of ranks.
// Private to the verify room.
#pragma once

#include <map>
#include <unordered_map>

#include "piper/plan/bundle.h"

namespace piper {

// Samples [first + Σ k × stride, … + length) for each combination of k in [0, count) over the axes
// of `spread`, each `times` times. On a rank the set begins `stride` × coordinate later, summed
// over free axes.
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

// Returns the samples of `range` in the cell at `coordinates`.
SampleSet samples_of(const SampleRange& range, const std::vector<int64_t>& coordinates,
                     const std::vector<bool>& free_axis);
// Sums over the ranks along a free axis of size `count`.
void sum_over_axis(SampleSet& set, size_t axis, int64_t count);
// Replaces the set by that of the rank at `coordinate` of a free axis, for all ranks along the
// axis.
void take_from(SampleSet& set, size_t axis, int64_t coordinate);

// A sample set in short: sets of one form differ only in these numbers.
struct SampleRun {
  int64_t first = 0, length = 0, times = 1;
  int32_t form = 0;
  auto operator<=>(const SampleRun&) const = default;
};

// Gives ids to forms and sets: equal ones have equal ids.
class SampleTable {
 public:
  int32_t id_of(const SampleSet& set) { return id_of(run_of(set)); }
  int32_t id_of(const SampleRun& run);
  SampleRun run_of(const SampleSet& set);
  SampleSet set_of(const SampleRun& run) const;
  const SampleRun& run(int32_t id) const { return runs_[id]; }

 private:
  using Form = std::pair<std::vector<int64_t>, std::vector<SampleSet::Axis>>;
  std::map<Form, int32_t> form_ids_;
  std::vector<const Form*> forms_;
  int32_t last_form_ = -1;  // most sets have the same form as the one before
  struct RunHash {
    size_t operator()(const SampleRun& run) const {
      uint64_t mixed = 0;
      for (const int64_t number : {run.first, run.length, run.times, int64_t{run.form}})
        mixed = (mixed ^ mixed >> 31) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(number);
      return mixed ^ mixed >> 29;
    }
  };
  std::unordered_map<SampleRun, int32_t, RunHash> run_ids_;
  std::vector<SampleRun> runs_;
};

// Adds a run to a multiset. A run that continues the last one is joined with it.
void add_run(std::vector<SampleRun>& runs, const SampleRun& run);

// Returns the first run of samples of [0, batch) that the sets do not hold exactly once.
struct Miscount {
  int64_t first = 0, end = 0, times = 0;
};
std::optional<Miscount> find_miscount(std::vector<SampleSet> sets, int64_t batch);

// Returns a text such as "[0, 4) + 8 × dp".
std::string print_samples(const SampleSet& set,
                          const std::vector<std::pair<std::string, int64_t>>& mesh);

}  // namespace piper
