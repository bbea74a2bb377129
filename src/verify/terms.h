// The vectors by which ranks share their squares and the loss: what of which sum each element
// holds. Nothing here grows with the number of ranks. Private to the verify room.
#pragma once

#include "model.h"

namespace piper {

// `count` elements: runs [run, run + count) of the `total` in which the squares of sum `target` are
// added; or a whole scalar sum.
struct Term {
  static constexpr int32_t kZero = -1, kOther = -2;
  int32_t target = kZero;
  int64_t run = 0, count = 1, total = 1;
  int64_t parts = 0;  // runs of a rank where each has others
  int64_t times = 1;
  bool is_zero() const { return target == kZero; }
};

struct Terms {
  std::vector<Term> spans;  // in order; neighbours that continue each other are one
  int64_t repeats = 1;      // ranks that each give all spans, each its own runs
  uint32_t cut = 0;         // mesh axes along which each rank has other runs

  int64_t size() const;
  void append(const Term& span);
  Terms part(int64_t first, int64_t count) const;  // elements [first, first + count)
  Terms plain() const;                             // without repeats
  uint64_t symbol() const;
};

// Ops that only move elements, or add them; nothing: another op, or elements that are not known.
std::optional<Terms> moved(const ProgramOp& op, const Program& program,
                           std::span<const Terms* const> inputs);
// Element by element; what cannot be added is kOther.
Terms added(const Terms& a, const Terms& b);
// The sum over the ranks along free axes, each with `count` members.
void repeat(Terms& terms, uint32_t axes, int64_t count);

}  // namespace piper
