// Follows the vectors by which ranks share squares of gradients and the loss: which term of which
// sum each element is. Sizes do not grow with the number of ranks. Private to the verify room.
#pragma once

#include "model.h"

namespace piper {

// Is an element of such a vector: zero, unknown (kOther), or a number of sum `target`: the sum of
// its squares over all elements that a rank has, or the sum itself if it is a scalar.
struct Term {
  static constexpr int32_t kZero = -1, kOther = -2;
  int32_t target = kZero;
  int64_t runs = 1;           // into how many runs the elements are split before squares are summed
  uint32_t cut = 0;           // mesh axes along which each rank has squares of another run
  uint32_t followed = 0;      // the same, of axes that rule layout follows; in no sum of this rule
  int64_t times = 1;          // how often it was added
  DType exact = DType::kF64;  // a type that represents it exactly: casts to smaller types change it
  bool is_zero() const { return target == kZero; }
};
using Terms = std::vector<Term>;

uint64_t symbol_of(const Terms& terms);
// Follows an op that only moves or adds elements. Nothing: it is another op, elements are unknown,
// or there are more than `most`.
std::optional<Terms> moved(const ProgramOp& op, const Program& program,
                           std::span<const Terms* const> inputs, size_t most);
// Returns the sum over ranks, element by element; what cannot be added is kOther.
Terms added(Terms a, const Terms& b);
// Sums over the `count` ranks along a free axis: it is removed from the cuts of terms.
void sum_along(Terms& terms, int32_t axis, int64_t count);
// Returns the sum over the `count` coordinates of an axis whose ranks run programs of their own:
// what each has of another run is whole then, if all have it equally often.
Terms sum_of_runs(const std::vector<Terms>& by_coordinate, int32_t axis, int64_t count);

}  // namespace piper
