// Loops over the elements of a tensor and of operands that follow it by strides (0 where
// broadcast).
#pragma once

#include <array>

#include "piper/base/base.h"

namespace piper::cpu {

inline constexpr int kMaxOperands = 32;

// Holds extents with, for each operand, a stride per extent. Extents of 1 are gone, and neighbours
// that every operand walks through without a gap are merged, so most loops have one or two extents.
// The innermost is kept apart.
struct Loop {
  std::vector<int64_t> outer;                     // extents, outermost first
  std::vector<std::vector<int64_t>> outer_steps;  // [operand][outer]
  int64_t inner = 1;
  std::vector<int64_t> inner_steps;  // [operand]; 0 or 1 for broadcast operands
  int64_t rows = 1;                  // product of `outer`

  int operands() const { return static_cast<int>(inner_steps.size()); }

  // Calls f(offsets of the operands in elements) once per combination of the outer extents, in
  // row-major order.
  template <class F>
  void each_row(F f) const {
    each_row(0, rows, f);
  }
  // Visits the rows [begin, end).
  template <class F>
  void each_row(int64_t begin, int64_t end, F f) const {
    std::array<int64_t, kMaxOperands> at{};
    std::array<int64_t, kMaxRank> index{};
    const int rank = static_cast<int>(outer.size());
    int64_t rest = begin;
    for (int d = rank - 1; d >= 0 && rest > 0; --d) {
      index[d] = rest % outer[d];
      rest /= outer[d];
      for (int k = 0; k < operands(); ++k) at[k] += outer_steps[k][d] * index[d];
    }
    for (int64_t row = begin; row < end; ++row) {
      f(at.data());
      for (int d = rank - 1; d >= 0; --d) {
        if (++index[d] < outer[d]) {
          for (int k = 0; k < operands(); ++k) at[k] += outer_steps[k][d];
          break;
        }
        for (int k = 0; k < operands(); ++k) at[k] -= outer_steps[k][d] * (outer[d] - 1);
        index[d] = 0;
      }
    }
  }
};

// Makes a loop. Requires at most kMaxOperands operands, each with a stride per dim of `shape`, and
// rank at most kMaxRank.
Loop make_loop(const Shape& shape, const std::vector<std::vector<int64_t>>& strides);

}  // namespace piper::cpu
