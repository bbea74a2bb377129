// The order of a mixture's sources: each sample of a source has a first and a last place, so that
// the source is never a whole sample ahead of its share or behind it, and of the samples that may
// come, the one whose last place is nearest comes.
#include "mix.h"

#include <algorithm>
#include <numeric>

namespace piper {

Mix::Phase Mix::make_phase(const MixPhase& given) {
  Phase phase{given.from, given.weights, {}, {}, {}};
  const size_t sources = given.weights.size();
  const int64_t parts = std::accumulate(given.weights.begin(), given.weights.end(), int64_t{0});
  PIPER_CHECK(parts > 0 && parts <= kMostParts && sources <= kMostSources);
  // The sample `j` of a source of weight w belongs into [j × parts / w, (j + 1) × parts / w).
  std::vector<int64_t> given_so_far(sources), first(sources), last(sources);
  const auto see_next = [&](size_t s) {
    const int64_t j = given_so_far[s], weight = given.weights[s];
    first[s] = weight == 0 ? INT64_MAX : j * parts / weight;
    last[s] = weight == 0 ? INT64_MAX : ((j + 1) * parts + weight - 1) / weight;
  };
  for (size_t s = 0; s < sources; ++s) see_next(s);
  phase.order.reserve(static_cast<size_t>(parts));
  for (int64_t place = 0; place < parts; ++place) {
    if (place % kStride == 0)
      for (const int64_t count : given_so_far) phase.counts.push_back(static_cast<int32_t>(count));
    size_t next = sources;
    for (size_t s = 0; s < sources; ++s)
      if (first[s] <= place && (next == sources || last[s] < last[next])) next = s;
    PIPER_CHECK(next < sources && last[next] > place);
    phase.order.push_back(static_cast<uint8_t>(next));
    ++given_so_far[next];
    see_next(next);
  }
  return phase;
}

Mix::Mix(const std::vector<MixPhase>& phases) {
  for (const MixPhase& given : phases) {
    Phase phase = make_phase(given);
    for (size_t s = 0; s < given.weights.size(); ++s)
      phase.before.push_back(phases_.empty() ? 0 : count(static_cast<int>(s), given.from));
    phases_.push_back(std::move(phase));
  }
}

const Mix::Phase& Mix::phase_of(int64_t sample) const {
  const auto behind =
      std::upper_bound(phases_.begin(), phases_.end(), sample,
                       [](int64_t value, const Phase& phase) { return value < phase.from; });
  return *(behind - 1);
}

int64_t Mix::count_in(const Phase& phase, int source, int64_t samples) const {
  const auto s = static_cast<size_t>(source);
  const auto parts = static_cast<int64_t>(phase.order.size());
  const int64_t rest = samples % parts;
  const size_t stride = static_cast<size_t>(rest / kStride);
  const auto begin = phase.order.begin() + static_cast<int64_t>(stride) * kStride;
  return phase.before[s] + samples / parts * phase.weights[s] +
         phase.counts[stride * phase.weights.size() + s] +
         std::count(begin, phase.order.begin() + rest, static_cast<uint8_t>(source));
}

int64_t Mix::count(int source, int64_t samples) const {
  const Phase& phase = phase_of(samples);
  return count_in(phase, source, samples - phase.from);
}

Mix::Place Mix::at(int64_t sample) const {
  const Phase& phase = phase_of(sample);
  const int64_t within = sample - phase.from;
  const int source = phase.order[static_cast<size_t>(within) % phase.order.size()];
  return {source, count_in(phase, source, within)};
}

}  // namespace piper
