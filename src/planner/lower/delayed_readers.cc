// Delays what reads the results of reductions, after they are raised.
#include "delayed_readers.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "at.h"
#include "gathers.h"
#include "piper/plan/flops.h"

namespace piper {
namespace {

class ReaderDelay {
 public:
  ReaderDelay(const RoleProgram& role, const Dag& dag, const std::vector<Overlap>& overlaps)
      : role_(role),
        dag_(dag),
        ends_(ends_of_overlaps(overlaps, role.body.size())),
        products_(role),
        begun_(role.streams.size()),
        bursts_(1, begun_),
        may_leave_(role.body.size()),
        left_(role.body.size()) {
    for (const Overlap& overlap : overlaps) find_leavers(overlap);
  }

  // Returns the positions in the new order.
  std::vector<int32_t> run() {
    for (size_t i = 0; i < role_.body.size(); ++i) {
      if (ends_[i] >= 0) {
        if (i == 0 || ends_[i - 1] != ends_[i]) release_for_overlap(i);
        left_[i] = may_leave_[i] && must_wait(role_.body[i], held_.size());
        left_[i] ? hold(i) : emit(i);
        if (at(ends_[i]) == i) release_ready();
      } else if (!rises(role_, role_.body[i], dag_)) {
        release_for(role_.body[i]);
        emit(i);
      } else if (must_wait(role_.body[i], held_.size())) {
        hold(i);
      } else {
        emit(i);
        release_ready();
      }
    }
    release_first(held_.size());
    return std::move(order_);
  }
  // Returns whether the instruction was in an overlap and is behind it now.
  bool has_left(size_t i) const { return left_[i]; }

 private:
  // Holds where a result comes from that none has read. Reductions between two other computations
  // that have matrix products are a burst.
  struct ReducedBy {
    int32_t stream = 0;
    size_t burst = 0;
    int64_t bytes = 0;  // of the burst, up to its own
  };

  // Lets a computation leave its overlap if it rises, begins no half, and shares no buffer with
  // what stays behind it.
  void find_leavers(const Overlap& overlap) {
    std::unordered_set<int32_t> used;  // by what stays
    for (int32_t i = overlap.end - 1; i > overlap.first; --i) {
      const Instruction& one = role_.body[at(i)];
      const bool shares =
          std::ranges::any_of(one.args, [&](int32_t a) { return used.contains(a); });
      may_leave_[at(i)] = !shares && i != overlap.second && one.kind == InstructionKind::kCompute &&
                          rises(role_, one, dag_);
      if (!may_leave_[at(i)]) used.insert(one.args.begin(), one.args.end());
    }
  }
  // Returns whether it reads the result of a reduction behind whose burst fewer bytes have begun to
  // move, or shares a buffer with one of the first instructions that are held.
  bool must_wait(const Instruction& one, size_t first) const {
    const auto is_under_way = [&](int32_t arg) {
      const auto result = results_.find(arg);
      if (result == results_.end() || result->second.stream == one.stream) return false;
      const ReducedBy& by = result->second;
      return begun_[at(by.stream)] - end_of(by.burst)[at(by.stream)] < by.bytes;
    };
    if (one.kind == InstructionKind::kCompute && std::ranges::any_of(one.args, is_under_way))
      return true;
    return uses_held(one) &&
           std::any_of(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(first),
                       [&](size_t held) { return shares(role_.body[held], one); });
  }
  static bool shares(const Instruction& a, const Instruction& b) {
    return std::ranges::find_first_of(a.args, b.args) != a.args.end();
  }

  void hold(size_t i) {
    held_.push_back(i);
    for (int32_t arg : role_.body[i].args) ++held_uses_[arg];
  }
  bool uses_held(const Instruction& one) const {
    return !held_.empty() && std::ranges::any_of(one.args, [&](int32_t arg) {
      const auto uses = held_uses_.find(arg);
      return uses != held_uses_.end() && uses->second > 0;
    });
  }
  void let_go(size_t k) {
    const size_t i = held_[k];
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(k));
    for (int32_t arg : role_.body[i].args) --held_uses_[arg];
    emit(i);
  }

  void emit(size_t i) {
    order_.push_back(static_cast<int32_t>(i));
    const Instruction& one = role_.body[i];
    const bool moves = rises(role_, one, dag_), reduces = moves && info(one.kind).adds;
    if (reduces) begun_[at(one.stream)] += bytes_through(role_, one);
    const size_t burst = bursts_.size(), step = takes_pairs(one.kind) ? 2 : 1;
    const int64_t before = bursts_.back()[at(one.stream)];
    for (size_t a = 0; a < one.args.size(); ++a)
      if (reduces && a % step == step - 1)
        results_[one.args[a]] = {one.stream, burst, begun_[at(one.stream)] - before};
      else
        results_.erase(one.args[a]);
    if (!moves && products_.are_in(one) && begun_ != bursts_.back()) bursts_.push_back(begun_);
  }
  const std::vector<int64_t>& end_of(size_t burst) const {
    return burst < bursts_.size() ? bursts_[burst] : begun_;
  }

  // Releases what need not wait any more; a reduction among it lets others go.
  void release_ready() {
    for (size_t k = 0; k < held_.size();) {
      if (must_wait(role_.body[held_[k]], k)) {
        ++k;
        continue;
      }
      let_go(k);
      k = 0;
    }
  }
  void release_first(size_t count) {
    for (size_t k = 0; k < count; ++k) let_go(0);
  }
  // Releases what shares a buffer with it, and what has been held for longer.
  void release_for(const Instruction& one) {
    size_t count = uses_held(one) ? held_.size() : 0;
    while (count > 0 && !shares(role_.body[held_[count - 1]], one)) --count;
    release_first(count);
  }
  void release_for_overlap(size_t first) {
    for (size_t i = first; i <= at(ends_[first]); ++i)
      if (!may_leave_[i]) release_for(role_.body[i]);
  }

  const RoleProgram& role_;
  const Dag& dag_;
  const std::vector<int64_t> ends_;
  const ProgramProducts products_;
  std::vector<int64_t> begun_;                      // by stream: bytes of reductions
  std::vector<std::vector<int64_t>> bursts_;        // what had begun before and after each
  std::unordered_map<int32_t, ReducedBy> results_;  // by buffer
  std::vector<size_t> held_;                        // in order
  std::unordered_map<int32_t, int> held_uses_;      // by buffer
  std::vector<bool> may_leave_, left_;              // overlaps, by instruction
  std::vector<int32_t> order_;
};

}  // namespace

std::vector<int32_t> delay_readers(RoleProgram& role, const Dag& dag,
                                   std::vector<Overlap>& overlaps) {
  ReaderDelay delay(role, dag, overlaps);
  const std::vector<int32_t> order = delay.run();
  for (Overlap& overlap : overlaps)
    while (delay.has_left(at(overlap.end - 1))) --overlap.end;
  std::vector<int32_t> moved(role.body.size());
  std::vector<Instruction> body;
  body.reserve(role.body.size());
  for (int32_t i : order) {
    moved[at(i)] = static_cast<int32_t>(body.size());
    body.push_back(std::move(role.body[at(i)]));
    if (delay.has_left(at(i))) body.back().stream = 0;
  }
  role.body = std::move(body);
  return moved;
}

}  // namespace piper
