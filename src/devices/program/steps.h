// The steps of fuse(), in the order in which it takes them, and what they share.
#pragma once

#include <algorithm>

#include "piper/devices/program.h"
#include "piper/ir/ops.h"
#include "piper/ir/signatures.h"

namespace piper {

inline size_t at(int32_t value) { return static_cast<size_t>(value); }

// Says which ops of a program touch each value: those that touch a view count for its base.
class ProgramUses {
 public:
  static constexpr size_t kNone = ~size_t{0};
  explicit ProgramUses(const FusedProgram& program);
  int32_t base(int32_t value) const { return bases_[at(value)]; }
  // Return ops in order, once for each operand.
  std::vector<size_t>& readers(int32_t value) { return readers_[at(base(value))]; }
  const std::vector<size_t>& readers(int32_t value) const { return readers_[at(base(value))]; }
  const std::vector<size_t>& writers(int32_t value) const { return writers_[at(base(value))]; }
  // The op that has the value itself, not a view of it or its base, as a result.
  size_t& maker(int32_t value) { return makers_[at(value)]; }
  size_t maker(int32_t value) const { return makers_[at(value)]; }
  // Returns whether it is one value: not an argument that is read and written, or written twice.
  bool is_settled(int32_t value) const;

 private:
  const FusedProgram& program_;
  const std::vector<int32_t> bases_;                    // by value
  std::vector<std::vector<size_t>> readers_, writers_;  // by base
  std::vector<size_t> makers_;                          // by value; kNone: there is none
};

// Groups of ops, each of which is to run where its last op was. At first each op is one.
class OpGroups {
 public:
  // Requires that ops are joined only if nothing else writes what they read and write.
  OpGroups(const FusedProgram& program, const ProgramUses& uses);
  // Returns the ops that are in one group with this one, in order.
  const std::vector<size_t>& with(size_t op) const { return members_[group_[op]]; }
  bool are_together(size_t a, size_t b) const { return group_[a] == group_[b]; }
  // Makes one group of those of two ops, if what reads results of the earlier one is after the
  // later one, and `fits` holds for all their ops, in order.
  template <class Fits>
  void join(size_t op, size_t other, const Fits& fits) {
    size_t a = group_[op], b = group_[other];
    if (a == b) return;
    if (members_[a].back() > members_[b].back()) std::swap(a, b);
    std::vector<size_t> both(members_[a].size() + members_[b].size());
    std::ranges::merge(members_[a], members_[b], both.begin());
    if (!fits(both) || !may_move(a, b)) return;
    for (const size_t o : members_[a]) group_[o] = b;
    members_[a].clear();
    members_[b] = std::move(both);
  }

 private:
  // Returns whether the ops of group a may be where group b is.
  bool may_move(size_t a, size_t b) const;

  const FusedProgram& program_;
  const ProgramUses& uses_;
  std::vector<size_t> group_;                 // by op
  std::vector<std::vector<size_t>> members_;  // by group; empty when it joined another
};

// Ops of whose results nothing is read, nor given out, are gone.
void drop_dead(FusedProgram& program);
// Removes ops that only rename bytes; their results, or what they read, become views.
void make_views(FusedProgram& program, FuseCounts& counts);
// Joins to an attention the Slices that make its operands, and a Concat of its gradients.
void make_columns(FusedProgram& program, FuseCounts& counts);
// Sums and products with what a matrix product or the gradient of a norm makes are part of it.
void finish_products(FusedProgram& program, FuseCounts& counts);
// Groups of pointwise ops are Fused ops.
void make_groups(FusedProgram& program, FuseCounts& counts);
// Values that no op touches are gone, the others numbered again in order.
void drop_unused(FusedProgram& program);

// Returns whether the op runs at matrix speed, by its first sample.
bool is_product(const OpDef& def);

// Returns what makes a pointwise op one word of an expression: its name, with its option after a
// colon; nothing when it cannot be one.
std::optional<std::string> word_of(const ProgramOp& op);

}  // namespace piper
