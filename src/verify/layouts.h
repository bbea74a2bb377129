// Rule layout: how what ranks hold lies over one mesh axis. Private to the verify room.
//
// Shapes are those of a rank's own values, of which the whole is not known. So a cut is told from
// the flat elements: they are `outer` equal stretches, of each of which the rank holds its block.
//
//   f32[2,6] cut at dim 1, outer 3: 2 × 3 stretches, of each a block of 2 elements
//
// No change of shape changes that; which dim is cut is what is known beside it.
#pragma once

#include "model.h"

namespace piper {

struct Lies {
  enum Kind : uint8_t {
    kUnset,     // nothing was written
    kUnknown,   // after an error, which has been said
    kWhole,     // the same on all ranks of the axis
    kCut,       // blocks
    kTerms,     // of a sum
    kGreatest,  // numbers of which the greatest counts
    kFirst,     // a number: `outer` times the rank's own along the axis
    kMixed,     // numbers side by side: `outer` times over pieces that are terms or whole
  };
  Kind kind = kUnset;
  uint32_t dims = 0;  // kCut: those that may be the one, a bit each
  // kCut: mesh axes whose ranks hold flat runs, of the blocks or, with this axis, of the elements.
  uint32_t run = 0;
  int64_t outer = 1;
  std::vector<bool> terms;  // kMixed: by piece
  // One reading of both is the same; dims that are not known fit all.
  bool fits(const Lies& other) const {
    return kind == other.kind && outer == other.outer && run == other.run && terms == other.terms &&
           (kind != kCut || run != 0 || (dims & other.dims) != 0);
  }
  bool operator==(const Lies&) const = default;
};
inline int64_t elements_of(const Shape& shape, size_t dims) {  // the first so many
  int64_t count = 1;
  for (size_t d = 0; d < dims; ++d) count *= shape[d];
  return count;
}
// "cut at dim 1, outer 3", of a value of that shape.
std::string to_string(const Lies& lies, const Shape& shape);

// Blocks at `dim`, which is `outer` stretches.
Lies blocks_of(const Shape& shape, size_t dim, int64_t outer);
// Dims at which a value of that shape may be cut into so many stretches. `several`: its blocks are
// known to have several elements of the dim.
uint32_t dims_of(const Shape& shape, int64_t outer, bool several);
// The same elements in another shape.
Lies reshaped(const Lies& lies, const Shape& from, const Shape& to);
// Elements [first, first + count) of `all`; kUnknown: not whole blocks.
Lies run_of(const Lies& lies, int64_t all, int64_t first, int64_t count, const Shape& to);

// Pieces side by side, `outer` times over.
Lies mixed(int64_t outer, std::vector<bool> terms);

struct LiesAfter {
  std::vector<Lies> args;
  std::string wrong;  // the first op that cannot take what it is given, with it; empty: none
};
// How a program leaves its arguments, given how they lie.
LiesAfter follow_layouts(const Program& program, std::span<const Lies> args, int64_t ranks);

}  // namespace piper
