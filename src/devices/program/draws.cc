// Which random numbers a use takes: what src/ir/ops/families/random.cc says of keys, steps and
// places.
#include <algorithm>
#include <cmath>

#include "piper/devices/kernel_use.h"

namespace piper {

Draw draw_of(const KernelUse& use, size_t key) {
  const std::vector<int64_t> cuts = use.attrs.integers("cuts"), zeros = use.attrs.integers("zeros");
  Draw draw{.key = key, .elements = num_elements(use.out()), .cuts = {}};
  int64_t elements = draw.elements;  // of what cuts have left so far
  const auto without_zeros = [&](size_t after) {
    for (size_t z = zeros.size() / 3; z-- > 0;) {
      if (zeros[3 * z] != static_cast<int64_t>(after)) continue;
      const int64_t rows = zeros[3 * z + 1], behind = zeros[3 * z + 2];
      draw.cuts.push_back({.run = elements / rows, .zeros = behind});
      elements -= rows * behind;
    }
  };
  without_zeros(cuts.size() / 2);
  for (size_t c = cuts.size() / 2; c-- > 0;) {
    draw.cuts.push_back({.run = std::max<int64_t>(elements / std::abs(cuts[2 * c]), 1),
                         .shards = cuts[2 * c + 1],
                         .operand = key + 3 + c,
                         .mirrored = cuts[2 * c] < 0});
    elements *= cuts[2 * c + 1];
    without_zeros(c);
  }
  const int64_t rows = use.attrs.integer("rows", 1);
  const bool is_cut = use.has(key + 2);
  if (!is_cut && rows == 1) return draw;  // the run is all there is
  Draw::Cut samples{.run = std::max<int64_t>(elements / rows, 1),
                    .shards = use.attrs.integer("shards", 1)};
  if (is_cut) samples.operand = key + 2, samples.unit = use.in(key + 2)[0];
  draw.cuts.push_back(samples);
  return draw;
}

}  // namespace piper
