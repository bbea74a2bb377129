// How a collective, or taking one's own part, changes how one of its args is laid out over one mesh
// axis. Private to the verify room.
#pragma once

#include <optional>

#include "layout_check.h"

namespace piper {

class MovedLayout {
 public:
  // `place` is one of the members, `a` the arg that is read.
  MovedLayout(LayoutCheck& check, Spot place, size_t a)
      : check_(check),
        place_(place),
        one_(check.at(place)),
        a_(a),
        over_(check.group_axes(place)) {}

  // Returns the layout of what is made of the arg, by one reading of it.
  Lies made_of(const Lies& from);
  // Returns the number of the integers that are made of those with number `from`. Equal integers
  // that equal collectives move remain equal.
  int32_t integers_of(int32_t from);

 private:
  bool along_axis() const { return over_ >> check_.axis() & 1; }
  const Shape& shape(size_t arg) const { return check_.shape(place_, one_.args[arg]); }
  Lies wrong(const char* does, size_t arg, const Lies& lies);

  // Return the blocks that it joins, or into which it cuts, if these are blocks of a dim.
  std::optional<Blocks> blocks_joined() const;
  std::optional<Blocks> blocks_cut() const;
  Blocks blocks_at(const Shape& all, int32_t dim, int64_t outer, bool mirrored) const;
  // Returns the shape in the middle of an all-to-all: after joining, before cutting.
  Shape together() const;

  Lies rotated(Lies from);
  Lies out_of_rings(const Lies& from) const;
  Lies reduced(const Lies& from);
  // Returns the layout of the rank's part of a value that must be `wanted`: whole, or terms of a
  // sum.
  Lies cut(const Lies& from, Lies::Kind wanted);
  Lies in_runs(const Lies& from);
  Lies gathered(const Lies& from);
  // Joins blocks, for an all-gather or for the first half of an all-to-all.
  Lies joined(const Lies& from);
  Lies exchanged(const Lies& from);
  // Makes own values of stacks of runs, or stacks of own values.
  Lies spread(const Lies& from);
  bool in_stacks() const { return one_.dim < 0 || one_.to_dim < 0; }  // of an all-to-all
  // Moves packed rows to the ranks that own what their index names, or back.
  Lies packed_exchanged(Lies rows);
  // Sends rows to the ranks that own what the index names (dispatch), or back to the blocks from
  // which they came (combine).
  Lies routed(const Lies& from);

  // These return how one reading is laid out after a collective along other axes (see
  // piper::beside()).
  Lies joined_beside(const Lies& from);
  Lies cut_beside(const Lies& from);
  // Cuts routed rows along another axis. If each row is cut, the rows remain the same. If the rows
  // are, those of a block belong to the same block of the index.
  Lies rows_cut(Lies rows);
  // Of packed rows only each row can be cut.
  static Lies each_cut(const Lies& rows, const Blocks& blocks);
  Lies rows_joined(Lies rows);
  // Routes rows along another axis. Over this one, rows and index are both whole, or both cut into
  // the same blocks, or the index is whole and each row is cut.
  Lies routed_beside(const Lies& from, const Lies& index);
  // Returns the layout of new blocks along this axis. Axes that already cut the same dim at the
  // same stretches are outside of it, unless they are known to be inside.
  Lies own_blocks(int32_t dim, int64_t outer, bool mirrored) const;

  LayoutCheck& check_;
  const Spot place_;
  const Instruction& one_;
  const size_t a_;
  const uint32_t over_;  // the mesh axes of its group
};

}  // namespace piper
