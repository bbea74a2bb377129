// Rule layout: how each value is laid out over one mesh axis. Private to the verify room.
//
// A plan has the shapes of a rank's own values only, not those of the whole. So a cut is described
// by flat elements: these are `outer` equal stretches, and the rank holds its block of each
// stretch.
//
//   f32[2,6] cut at dim 1, outer 3: 2 × 3 stretches, of each a block of 2 elements
//
// A Reshape leaves the stretches as they are; `dims` has in addition which dims may be the cut one.
// In a mirrored layout the blocks of every second stretch are counted from its end, and the number
// of stretches within the dim that is cut is even.
#pragma once

#include "model.h"

namespace piper {

struct Lies {
  enum Kind : uint8_t {
    kUnset,     // not written yet
    kUnknown,   // after an error that was reported
    kWhole,     // the same on all ranks of the axis
    kCut,       // each rank has its blocks
    kTerms,     // each rank has a term of a sum
    kGreatest,  // each rank has a number, and the maximum of these counts
    kFirst,     // where a block begins: `outer` times the rank's position along the axis, or such a
                // number for each stretch
    kRows,      // all rows of all ranks (`outer` of them), of which those are valid whose index
                // names something that the rank owns
    kPlaces,    // of the rows of the own block: where each is put among those that are sent
    kSent,      // rows of the own block, put together for the ranks that own what their index names
    kStack,     // the own runs, over `run`, of `outer` values: a row of each
    kOwn,       // each rank over `run` has a whole value of its own, of those of a stack
    kApart,     // integers that differ between any two ranks, each of them: numbers of samples
    kOnce,      // truth values, of each of which one rank at most has a true one
  };
  Kind kind = kUnset;
  // A bit for each dim. kCut: dims that may be the cut one. kWhole: dims along which all elements
  // are equal, so that the value may also be taken for any block of them.
  uint32_t dims = 0;
  // kCut: mesh axes over which flat runs are cut. If this axis is among them, the elements are cut
  // into runs; else the blocks along this axis are.
  uint32_t run = 0;
  int64_t outer = 1;
  // kCut: other axes that cut the same stretches: those whose blocks this axis cuts (outside), and
  // those that cut the blocks of this axis (inside).
  uint32_t outside = 0, inside = 0;
  // kCut, kFirst: the value belongs to the rank `before` positions before this one along the axis,
  // as in a ring, and `beside` positions (row-major in the mesh) before it along the other axes
  // whose rings it has gone through, `rings` (a bit for each axis). If `of` is not empty, the value
  // is a partial result, and `of` tells of which ranks, by both distances and in order, it has the
  // parts. These are merged, as in ring attention, or added. All parts over the axis are there if
  // `of` has the same distances along other axes for each distance along this one.
  struct Turn {
    using Rank = std::pair<int64_t, int64_t>;
    int64_t before = 0, beside = 0;
    uint32_t rings = 0;
    std::vector<Rank> of;
    bool merges = false;
    bool is_home() const { return before == 0 && of.empty(); }
    // Returns whether both are the same over this axis: other axes compare `beside` themselves.
    bool fits(const Turn& other) const {
      return before == other.before && of == other.of && merges == other.merges;
    }
    bool operator==(const Turn&) const = default;
  };
  Turn turn;
  // The number of the integers that the value has (see Integers), 0: unknown. kRows: the number of
  // the index by which rows are routed; a rank owns `owned` of the things that it names.
  int32_t index = 0;
  int64_t owned = 0;
  // Of rows that an exchange of equal blocks moves: kRows are then as many (`outer`), those that
  // have come from each rank and others that no index names. kSent has as many, and kPlaces tells
  // where they are; 0: all rows of all ranks. `names`: the numbers of the index themselves.
  int64_t packed = 0;
  bool names = false;
  bool is_routed() const { return kind == kRows || kind == kPlaces || kind == kSent; }
  bool mirrored = false;  // kCut, kFirst
  // kWhole, kTerms: a number that the program itself holds. kFirst: one has been added, so the
  // block is one of a part of the whole loop, which begins at that number.
  bool fixed = false;
  bool zero = false;  // kWhole: it holds a zero
  // Further readings. If a rank has a block [1,6], the whole may be [2,6] or [1,12], and ops that
  // move elements, or sum along a dim, give different results for these.
  std::vector<Lies> also;

  // Returns all readings, each without others.
  std::vector<Lies> readings() const {
    std::vector<Lies> all{*this};
    all[0].also.clear();
    all.insert(all.end(), also.begin(), also.end());
    return all;
  }
  void add_reading(Lies other) {
    if (other.kind == kUnknown) return;
    if (kind == kUnknown) {
      *this = std::move(other);
    } else if (!other.also.empty()) {
      for (const Lies& one : other.readings()) add_reading(one);
    } else if (same_stretches(other)) {
      dims |= other.dims, outside |= other.outside, inside |= other.inside;
    } else {
      for (Lies& one : also)
        if (one.same_stretches(other)) return one.add_reading(std::move(other));
      also.push_back(std::move(other));
    }
  }
  bool same_stretches(const Lies& other) const {
    return kind == other.kind && outer == other.outer && mirrored == other.mirrored &&
           run == other.run && turn.fits(other.turn) && (!is_routed() || index == other.index) &&
           owned == other.owned && packed == other.packed && (outside & other.inside) == 0 &&
           (inside & other.outside) == 0;
  }
  bool fits_one(const Lies& one, const Lies& its) const {
    return one.same_stretches(its) && (kind != kCut || run != 0 || (one.dims & its.dims) != 0);
  }
  // Returns whether they have a reading in common. Of flat runs of flat runs, one may know more of
  // the axes: rule sum compares all, in their order.
  bool fits(const Lies& other) const {
    return any_reading([&](const Lies& one) {
      return other.any_reading([&](const Lies& its) {
        const bool is_flat = (one.run & its.run) != 0 && one.dims == 0 && its.dims == 0;
        if (!is_flat || one.run == its.run) return fits_one(one, its);
        Lies of_run = its;
        of_run.run = one.run;
        return fits_one(one, of_run);
      });
    });
  }
  template <class Visit>
  bool any_reading(const Visit& visit) const {
    return visit(*this) || std::any_of(also.begin(), also.end(), visit);
  }
  bool operator==(const Lies&) const = default;
};
inline int64_t elements_of(const Shape& shape, size_t dims) {  // of the first `dims` dims
  int64_t count = 1;
  for (size_t d = 0; d < dims; ++d) count *= shape[d];
  return count;
}
// Returns the same layout for other elements: what is known of integers and equal elements is
// dropped.
inline Lies renewed(Lies lies) {
  if (!lies.is_routed()) lies.index = 0;
  if (lies.kind == Lies::kWhole) lies.dims = 0;
  for (Lies& one : lies.also) one = renewed(std::move(one));
  return lies;
}
// Calls visit(number) for the number of the integers in each reading that has one.
template <class Visit>
void each_number(Lies& lies, const Visit& visit) {
  if (lies.index != 0) visit(lies.index);
  for (Lies& one : lies.also) each_number(one, visit);
}
// Returns a text such as "cut at dim 1, outer 3" for a value of this shape.
std::string to_string(const Lies& lies, const Shape& shape);

// Applies `change` to each reading and joins the results, except those that are kUnknown.
template <class Change>
Lies of_each(const Lies& lies, const Change& change) {
  Lies made{Lies::kUnknown};
  if (lies.also.empty())
    made.add_reading(change(lies));
  else
    for (const Lies& reading : lies.readings()) made.add_reading(change(reading));
  return made;
}

// Returns the layout of blocks of `dim`, where each dim is cut into `outer` stretches first.
Lies blocks_of(const Shape& shape, size_t dim, int64_t outer, bool mirrored = false);
// Returns the dims of `shape` that may be the cut one if there are `outer` stretches. `several`: a
// block is known to have more than one element of its dim.
uint32_t dims_of(const Shape& shape, int64_t outer, bool several);
// Returns the layout of the same elements in another shape. `to` may equal `from`: a value may have
// had another shape in between, and dims that could then be the cut one count.
Lies reshaped(const Lies& lies, const Shape& from, const Shape& to);
// Keeps the readings that cut dim `dim`; returns kUnknown if there are none.
Lies cut_at(const Lies& lies, const Shape& shape, int64_t dim);
// Returns the layout of elements [first, first + count) of `all`; kUnknown if they are not complete
// blocks.
Lies run_of(const Lies& lies, int64_t all, int64_t first, int64_t count, const Shape& to);

// Returns how a state is laid out over the axis. Its cuts apply in order, each to what the cuts
// before left of a dim; kUnknown if one crosses blocks of another.
Lies kept_of(const RoleProgram& role, const Tensor& tensor, int32_t axis);
// Returns the layout over one axis after a collective along others (`over`), which joins (`joins`)
// or cuts `members` blocks of each of `outer` stretches of `of_dim`. `shape`: that of a part if it
// joins, else that of the whole.
Lies beside(const Lies& lies, const Shape& shape, int32_t of_dim, int64_t outer, uint32_t over,
            int64_t members, bool joins);

struct LiesAfter {
  std::vector<Lies> values;  // arguments first
  std::string wrong;         // the first op that cannot take its operands, and why; empty: none
  // By value: dims along which an op adds up elements that are equal. Their number counts there, so
  // these are no block of more.
  std::vector<uint32_t> counted;
};
// Is a mesh axis over which layouts are followed.
struct AxisOfLayouts {
  int32_t index = 0;
  int64_t ranks = 1;
  bool has_samples = false;  // its ranks read different samples
};

// Returns the layouts of a program's values from those of its arguments, over an axis.
LiesAfter follow_layouts(const Program& program, std::span<const Lies> args,
                         const AxisOfLayouts& axis);

}  // namespace piper
