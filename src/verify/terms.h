// The vectors by which ranks share their squares and the loss: what of which sum each element
// holds. Nothing here grows with the number of ranks. Private to the verify room.
#pragma once

#include "model.h"

namespace piper {

// `count` elements that are zero or not known; or one number of sum `target`: its squares, of all
// that a rank has, or a scalar sum itself.
struct Term {
  static constexpr int32_t kZero = -1, kOther = -2;
  int32_t target = kZero;
  int64_t count = 1;
  int64_t runs = 1;  // in which squares are summed, on all ranks together
  uint32_t cut = 0;  // mesh axes along which each rank has another run
  int64_t times = 1;
  bool is_zero() const { return target == kZero; }
};

struct Terms {
  std::vector<Term> spans;  // in order; neighbours that are zero, or not known, are one

  int64_t size() const;
  void append(const Term& span);
  Terms part(int64_t first, int64_t count) const;  // elements [first, first + count)
  uint64_t symbol() const;
};

// Ops that only move elements, or add them; nothing: another op, or elements that are not known.
std::optional<Terms> moved(const ProgramOp& op, const Program& program,
                           std::span<const Terms* const> inputs);
// Element by element; what cannot be added is kOther.
Terms added(const Terms& a, const Terms& b);
// The sum over the ranks along a free axis with `count` members: of runs it has one less to go.
void sum_along(Terms& terms, int32_t axis, int64_t count);

}  // namespace piper
