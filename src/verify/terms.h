// The vectors by which ranks share their squares and the loss, element by element: what of which
// sum each holds. Private to the verify room.
#pragma once

#include "model.h"

namespace piper {

// Run `run` of the `total` in which the squares of sum `target` are added, or a whole scalar sum.
struct Term {
  static constexpr int32_t kZero = -1, kOther = -2;
  int32_t target = kZero;
  int32_t run = 0, total = 1;
  int32_t parts = 0;  // runs of a rank where each has others
  int32_t times = 1;
  bool is_zero() const { return target == kZero; }
  bool operator==(const Term&) const = default;
};

struct Terms {
  std::vector<Term> elements;
  uint32_t cut = 0;  // mesh axes along which each rank has other runs

  static Terms zeros(int64_t count) { return {std::vector<Term>(static_cast<size_t>(count)), 0}; }
  uint64_t symbol() const;
};

// Ops that only move elements; nothing: another op, or elements that are not known.
std::optional<Terms> moved(const ProgramOp& op, const Program& program,
                           std::span<const Terms* const> inputs);
// Element by element; what cannot be added is kOther.
void add(Terms& sum, const Terms& more);
// The sum over the ranks along free axes, each with `count` members.
void repeat(Terms& terms, uint32_t axes, int64_t count);

}  // namespace piper
