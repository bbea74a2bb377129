// How zeros are laid out after the stretches of a dim, and where these are among the loops of an
// op.
#pragma once

#include <map>

#include "letters.h"
#include "piper/planner/sharding.h"

namespace piper {

// A dim is `outer` stretches of `there` units each, after which zeros go on up to `extent` units.
struct PadMark {
  int dim = -1;
  int64_t outer = 1, there = 0, unit = 1, extent = 0;
  const ShardSeed* seed = nullptr;
  int64_t padded() const { return outer * extent * unit; }
  bool same(const PadMark& other) const {
    return dim == other.dim && outer == other.outer && there == other.there && unit == other.unit &&
           extent == other.extent;
  }
};
using PadMarks = std::map<int32_t, PadMark>;  // by value

// Describes the stretches inside of one loop of an op.
struct PadPlace {
  char letter = 0;
  int64_t outer = 1, unit = 1;
  bool is_all() const { return outer == 1 && unit == 1; }
};

// f(letter, how many elements there are of it, before it and after it in the dim).
template <class F>
void each_letter(const Operand& operand, size_t d, F f) {
  const std::vector<int64_t> extents = extents_of(operand, d);
  int64_t before = 1, after = operand.shape[d];
  for (size_t i = 0; i < extents.size() && extents[i] > 0; before *= extents[i++]) {
    after /= extents[i];
    f(operand.dims[d][i], extents[i], before, after);
  }
}

inline std::optional<PadPlace> place_of(const Operand& operand, const PadMark& mark) {
  std::optional<PadPlace> place;
  each_letter(operand, static_cast<size_t>(mark.dim),
              [&](char letter, int64_t, int64_t before, int64_t after) {
                if (!place && mark.outer % before == 0 && mark.unit % after == 0)
                  place = PadPlace{letter, mark.outer / before, mark.unit / after};
              });
  return place;
}

// Returns how an operand goes on whose loop does.
inline std::optional<PadMark> mark_at(const Operand& operand, const PadPlace& place, PadMark mark) {
  std::optional<PadMark> made;
  for (size_t d = 0; d < operand.dims.size(); ++d)
    each_letter(operand, d, [&](char letter, int64_t size, int64_t before, int64_t after) {
      if (letter != place.letter || size != place.outer * mark.there * place.unit) return;
      mark.dim = static_cast<int>(d);
      mark.outer = before * place.outer, mark.unit = after * place.unit;
      made = mark;
    });
  return made;
}

}  // namespace piper
