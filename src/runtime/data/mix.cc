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

void Mix::add(const MixPhase& given) {
  Phase phase = make_phase(given);
  for (size_t s = 0; s < given.weights.size(); ++s)
    phase.before.push_back(phases_.empty() ? 0 : count(static_cast<int>(s), given.from));
  phases_.push_back(std::move(phase));
}

Mix::Mix(const std::vector<MixPhase>& phases) {
  for (const MixPhase& given : phases) add(given);
}

Mix Mix::of_each_once(std::span<const MixPhase> phases, std::span<const int64_t> sizes) {
  Mix mix;
  const auto sources = static_cast<int>(sizes.size());
  std::vector<int64_t> left(sizes.begin(), sizes.end()), weights(sizes.size()), last(sizes.size());
  const auto of_live = [&](std::vector<int64_t> own) {
    for (size_t s = 0; s < own.size(); ++s)
      if (left[s] == 0) own[s] = 0;
    return own;
  };
  const auto divisor_of = [](std::span<const int64_t> own) {  // 0: none has a weight
    return std::accumulate(own.begin(), own.end(), int64_t{0}, std::gcd<int64_t, int64_t>);
  };
  size_t next = 0;  // of the phases
  for (int64_t at = 0;;) {
    std::vector<int64_t> live = of_live(weights);
    for (; next < phases.size() && (phases[next].from <= at || divisor_of(live) == 0); ++next) {
      weights = phases[next].weights;
      for (size_t s = 0; s < sizes.size(); ++s)
        if (weights[s] > 0) last[s] = weights[s];
      live = of_live(weights);
    }
    if (divisor_of(live) == 0) live = of_live(last);
    const int64_t divisor = divisor_of(live);
    if (divisor == 0) return mix;
    for (int64_t& weight : live) weight /= divisor;
    mix.add({at, live});
    // The phase lasts until a source ends or the next one begins: more than `low` samples, and at
    // most `high`.
    int64_t low = at, high = at;
    for (int s = 0; s < sources; ++s)
      if (live[static_cast<size_t>(s)] > 0) high += left[static_cast<size_t>(s)];
    if (next < phases.size()) high = std::min(high, phases[next].from);
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      bool has_ended = false;
      for (int s = 0; s < sources; ++s)
        has_ended |= live[static_cast<size_t>(s)] > 0 &&
                     mix.count(s, middle) >= sizes[static_cast<size_t>(s)];
      (has_ended ? high : low) = middle;
    }
    at = high;
    for (int s = 0; s < sources; ++s)
      left[static_cast<size_t>(s)] = sizes[static_cast<size_t>(s)] - mix.count(s, at);
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
