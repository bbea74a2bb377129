// Sets of samples, as runs repeated along mesh axes, and their unions.
#include "samples.h"

#include <algorithm>
#include <tuple>

namespace piper {
namespace {

constexpr int64_t kMaxTimes = int64_t{1} << 30;

// Joins the lowest spread axis to the run where it continues it without a gap.
void absorb(SampleSet& set) {
  std::erase_if(set.spread, [](const SampleSet::Axis& axis) { return axis.count == 1; });
  while (!set.spread.empty() && set.spread[0].stride == set.length) {
    set.length *= set.spread[0].count;
    set.spread.erase(set.spread.begin());
  }
}

// Returns whether the next set begins where the one of its form ends.
bool goes_on(const SampleSet& set, const SampleSet& next) {
  return set.spread == next.spread && set.times == next.times &&
         set.first + set.length == next.first;
}

// Joins neighbours of one form until nothing changes; exact, and enough where the sets tile
// regularly.
void merge(std::vector<SampleSet>& sets) {
  for (bool changed = true; changed;) {
    changed = false;
    for (SampleSet& set : sets) absorb(set);
    std::sort(sets.begin(), sets.end(), [](const SampleSet& a, const SampleSet& b) {
      return std::tie(a.spread, a.times, a.first) < std::tie(b.spread, b.times, b.first);
    });
    std::vector<SampleSet> merged;
    for (SampleSet& set : sets) {
      if (!merged.empty() && goes_on(merged.back(), set)) {
        merged.back().length += set.length;
        changed = true;
      } else {
        merged.push_back(std::move(set));
      }
    }
    sets = std::move(merged);
  }
}

// Adds the places where the count of covering sets changes, and by how much.
void add_edges(const SampleSet& set, size_t axis, int64_t first,
               std::vector<std::pair<int64_t, int64_t>>& edges) {
  if (axis == set.spread.size()) {
    edges.emplace_back(first, set.times);
    edges.emplace_back(first + set.length, -set.times);
    return;
  }
  for (int64_t k = 0; k < set.spread[axis].count; ++k)
    add_edges(set, axis + 1, first + k * set.spread[axis].stride, edges);
}

}  // namespace

SampleSet samples_of(const SampleRange& range, const std::vector<int64_t>& coordinates,
                     const std::vector<bool>& free_axis) {
  SampleSet set;
  set.first = range.first;
  set.length = range.count;
  set.stride.assign(free_axis.size(), 0);
  for (size_t a = 0; a < free_axis.size(); ++a) {
    if (free_axis[a])
      set.stride[a] = range.stride[a];
    else
      set.first += range.stride[a] * coordinates[a];
  }
  return set;
}

void sum_over_axis(SampleSet& set, size_t axis, int64_t count) {
  if (set.stride[axis] == 0) {
    set.times = std::min(set.times * count, kMaxTimes);
    return;
  }
  set.spread.push_back({set.stride[axis], count});
  std::sort(set.spread.begin(), set.spread.end());
  set.stride[axis] = 0;
}

void take_from(SampleSet& set, size_t axis, int64_t coordinate) {
  set.first += set.stride[axis] * coordinate;
  set.stride[axis] = 0;
}

SampleRun SampleTable::run_of(const SampleSet& set) {
  if (last_form_ >= 0) {
    const auto& [stride, spread] = *forms_[last_form_];
    if (set.stride == stride && set.spread == spread)
      return {set.first, set.length, set.times, last_form_};
  }
  const auto [form, is_new] =
      form_ids_.try_emplace({set.stride, set.spread}, static_cast<int32_t>(forms_.size()));
  if (is_new) forms_.push_back(&form->first);
  last_form_ = form->second;
  return {set.first, set.length, set.times, form->second};
}

SampleSet SampleTable::set_of(const SampleRun& run) const {
  const auto& [stride, spread] = *forms_[run.form];
  return {run.first, run.length, run.times, stride, spread};
}

int32_t SampleTable::id_of(const SampleRun& run) {
  const auto [known, is_new] = run_ids_.try_emplace(run, static_cast<int32_t>(runs_.size()));
  if (is_new) runs_.push_back(run);
  return known->second;
}

void add_run(std::vector<SampleRun>& runs, const SampleRun& run) {
  if (!runs.empty() && runs.back().form == run.form && runs.back().times == run.times) {
    SampleRun& last = runs.back();
    if (last.first + last.length == run.first) {
      last.length += run.length;
      return;
    }
    if (run.first + run.length == last.first) {
      last.first = run.first;
      last.length += run.length;
      return;
    }
  }
  runs.push_back(run);
}

std::optional<Miscount> find_miscount(std::vector<SampleSet> sets, int64_t batch) {
  std::erase_if(sets, [](const SampleSet& set) { return set.length == 0; });
  merge(sets);
  if (sets.size() == 1 && sets[0].spread.empty() && sets[0].times == 1 && sets[0].first == 0 &&
      sets[0].length == batch)
    return std::nullopt;
  // The sets are irregular, or wrong: count sample by sample.
  std::vector<std::pair<int64_t, int64_t>> edges;
  for (const SampleSet& set : sets) add_edges(set, 0, set.first, edges);
  std::sort(edges.begin(), edges.end());
  int64_t at = 0, times = 0;
  for (size_t e = 0; e < edges.size();) {
    if (edges[e].first > at && times != 1)
      return Miscount{at, std::min(edges[e].first, batch), times};
    at = edges[e].first;
    for (; e < edges.size() && edges[e].first == at; ++e) times += edges[e].second;
  }
  if (at < batch) return Miscount{at, batch, 0};
  return std::nullopt;
}

std::string print_samples(const SampleSet& set,
                          const std::vector<std::pair<std::string, int64_t>>& mesh) {
  std::string text = fmt::format("[{}, {})", set.first, set.first + set.length);
  for (size_t a = 0; a < set.stride.size(); ++a)
    if (set.stride[a] != 0) text += fmt::format(" + {} × {}", set.stride[a], mesh[a].first);
  for (const SampleSet::Axis& axis : set.spread)
    text += fmt::format(" and {} more at distance {}", axis.count - 1, axis.stride);
  return text;
}

}  // namespace piper
