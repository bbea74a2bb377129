// The vectors by which ranks share their squares and the loss: what of which sum each element
// holds. Nothing here grows with the number of ranks. Private to the verify room.
#pragma once

#include "model.h"

namespace piper {

// Describes an element: zero, not known, or a number of sum `target`: its squares, of all that a
// rank has, or a scalar sum itself.
struct Term {
  static constexpr int32_t kZero = -1, kOther = -2;
  int32_t target = kZero;
  int64_t runs = 1;  // in which squares are summed, on all ranks together
  uint32_t cut = 0;  // mesh axes along which each rank has another run
  int64_t times = 1;
  DType exact =
      DType::kF64;  // of whose numbers it is one: a cast to a type without them changes it
  bool is_zero() const { return target == kZero; }
};
using Terms = std::vector<Term>;

uint64_t symbol_of(const Terms& terms);
// Follows ops that only move elements, or add them; nothing: another op, elements that are not
// known, or more than `most` of them.
std::optional<Terms> moved(const ProgramOp& op, const Program& program,
                           std::span<const Terms* const> inputs, size_t most);
// Returns the sum over ranks, element by element; what cannot be added is kOther.
Terms added(Terms a, const Terms& b);
// Sums over the ranks along a free axis with `count` members: of runs it has one less to go.
void sum_along(Terms& terms, int32_t axis, int64_t count);

}  // namespace piper
