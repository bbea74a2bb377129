// Rule layout: how what ranks hold lies over one mesh axis. Private to the verify room.
//
// Shapes are those of a rank's own values, of which the whole is not known. So a cut is told from
// the flat elements: they are `outer` equal stretches, of each of which the rank holds its block.
//
//   f32[2,6] cut at dim 1, outer 3: 2 × 3 stretches, of each a block of 2 elements
//
// No change of shape changes that; which dim is cut is what is known beside it. Where they are
// mirrored, the blocks of every second stretch are counted from its end; there is an even number of
// stretches then, at the dim that is cut too.
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
    kFirst,     // a number: `outer` times the rank's own along the axis, or one for each stretch
    kRows,      // so many (`outer`) as there are on all ranks: right where the rank owns what the
                // index names
  };
  Kind kind = kUnset;
  // kCut: those that may be the one, a bit each. kWhole: those along which all elements are the
  // same, so that it may be taken for any block as well.
  uint32_t dims = 0;
  // kCut: mesh axes whose ranks hold flat runs, of the blocks or, with this axis, of the elements.
  uint32_t run = 0;
  int64_t outer = 1;
  // kCut: axes at the same stretches, of whose blocks these are blocks, or which cut these blocks.
  uint32_t outside = 0, inside = 0;
  // kCut, kFirst: what the rank so many before has by right. Unless empty, `of` is those before it
  // whose part is in: what one of them makes of it is there to be added, or merged.
  struct Turn {
    int64_t before = 0;
    std::vector<bool> of;
    bool merges = false;
    bool operator==(const Turn&) const = default;
  };
  Turn turn;
  // Which integers these are, 0: that is not known. kRows: which are the index, of which a rank
  // owns so many numbers.
  int32_t index = 0;
  int64_t owned = 0;
  bool mirrored = false;  // kCut, kFirst
  // More readings. Of [1,6] in blocks the whole may be [2,6] or [1,12]: what moves elements, or
  // adds them up along a dim, makes other things of these.
  std::vector<Lies> also;

  // Each by itself.
  std::vector<Lies> readings() const {
    std::vector<Lies> all{*this};
    all[0].also.clear();
    all.insert(all.end(), also.begin(), also.end());
    return all;
  }
  void add_reading(const Lies& other) {
    if (other.kind == kUnknown) return;
    if (kind == kUnknown) {
      *this = other;
    } else if (!other.also.empty()) {
      for (const Lies& one : other.readings()) add_reading(one);
    } else if (same_stretches(other)) {
      dims |= other.dims, outside |= other.outside, inside |= other.inside;
    } else {
      for (Lies& one : also)
        if (one.same_stretches(other)) return one.add_reading(other);
      also.push_back(other);
    }
  }
  bool same_stretches(const Lies& other) const {
    return kind == other.kind && outer == other.outer && mirrored == other.mirrored &&
           run == other.run && turn == other.turn && (kind != kRows || index == other.index) &&
           owned == other.owned && (outside & other.inside) == 0 && (inside & other.outside) == 0;
  }
  // One reading of both is the same; dims that are not known fit all.
  bool fits(const Lies& other) const {
    for (const Lies& one : readings())
      for (const Lies& its : other.readings())
        if (one.same_stretches(its) && (kind != kCut || run != 0 || (one.dims & its.dims) != 0))
          return true;
    return false;
  }
  bool operator==(const Lies&) const = default;
};
inline int64_t elements_of(const Shape& shape, size_t dims) {  // the first so many
  int64_t count = 1;
  for (size_t d = 0; d < dims; ++d) count *= shape[d];
  return count;
}
// The same layout of other elements.
inline Lies renewed(Lies lies) {
  if (lies.kind != Lies::kRows) lies.index = 0;
  if (lies.kind == Lies::kWhole) lies.dims = 0;
  for (Lies& one : lies.also) one = renewed(std::move(one));
  return lies;
}
// Calls visit(number) for those of the integers, of all readings.
template <class Visit>
void each_number(Lies& lies, const Visit& visit) {
  if (lies.index != 0) visit(lies.index);
  for (Lies& one : lies.also) each_number(one, visit);
}
// "cut at dim 1, outer 3", of a value of that shape.
std::string to_string(const Lies& lies, const Shape& shape);

// What `change` makes of the readings, without those of which it makes nothing.
template <class Change>
Lies of_each(const Lies& lies, const Change& change) {
  Lies made{Lies::kUnknown};
  for (const Lies& reading : lies.readings()) made.add_reading(change(reading));
  return made;
}

// Blocks at `dim`, which is `outer` stretches.
Lies blocks_of(const Shape& shape, size_t dim, int64_t outer, bool mirrored = false);
// Dims at which a value of that shape may be cut into so many stretches. `several`: its blocks are
// known to have several elements of the dim.
uint32_t dims_of(const Shape& shape, int64_t outer, bool several);
// The same elements in another shape; the same one may have been another in between.
Lies reshaped(const Lies& lies, const Shape& from, const Shape& to);
// Keeps the readings that cut dim `dim`; returns kUnknown if there are none.
Lies cut_at(const Lies& lies, const Shape& shape, int64_t dim);
// Elements [first, first + count) of `all`; kUnknown: not whole blocks.
Lies run_of(const Lies& lies, int64_t all, int64_t first, int64_t count, const Shape& to);

// How what a state keeps lies over the axis. Cuts apply in order, each to what is left.
Lies kept_of(const RoleProgram& role, const Tensor& tensor, int32_t axis);
// What of a cut along one axis a collective along others leaves, which has `members` blocks of each
// of `outer` stretches of `dim`. `joins`: it puts them together, from `shape`.
Lies beside(const Lies& lies, const Shape& shape, int32_t of_dim, int64_t outer, uint32_t over,
            int64_t members, bool joins);

struct LiesAfter {
  std::vector<Lies> values;  // arguments first
  std::string wrong;         // the first op that cannot take what it is given, with it; empty: none
};
// How a program leaves its arguments, given how they lie over the axis of so many ranks.
LiesAfter follow_layouts(const Program& program, std::span<const Lies> args, int32_t axis,
                         int64_t ranks);

}  // namespace piper
