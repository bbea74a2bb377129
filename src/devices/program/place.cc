// Locals of a program -> places in its workspace.
#include <algorithm>

#include "piper/base/memory.h"
#include "piper/ir/ops.h"
#include "steps.h"

namespace piper {
namespace {

// Returns which inputs an output may be stored over: (output, input).
std::vector<std::pair<int, int>> in_place_pairs(const ProgramOp& op) {
  if (const OpDef* def = find_op(op.op)) return def->in_place;
  std::vector<std::pair<int, int>> all;
  if (op.op == kFusedOp)
    for (size_t o = 0; o < op.outputs.size(); ++o)
      for (size_t i = 0; i < op.inputs.size(); ++i)
        all.emplace_back(static_cast<int>(o), static_cast<int>(i));
  return all;
}

// Lays out the local values of a program: lifetimes over its passes, in-place where ops
// allow. A view lives in its base.
class LocalPlacer {
 public:
  explicit LocalPlacer(const FusedProgram& program)
      : program_(program),
        base_(program.bases()),
        last_use_(program.values.size(), -1),
        block_of_(program.values.size(), -1),
        is_local_(program.values.size(), true),
        alone_(program.ops.size(), true) {
    for (int32_t a = 0; a < program.num_args; ++a) is_local_[at(a)] = false;
    for (const auto& [value, bytes] : program.literals) is_local_[at(value)] = false;
    for (const ProgramView& view : program.views) is_local_[at(view.value)] = false;
    const std::vector<bool> inside = program.inside();
    for (size_t v = 0; v < inside.size(); ++v)
      if (inside[v]) is_local_[v] = false;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      for (int32_t input : program.ops[i].inputs)
        if (input >= 0) last_use_[at(base_[at(input)])] = time_of(i);
      if (i > 0 && time_of(i) == time_of(i - 1)) alone_[i] = alone_[i - 1] = false;
    }
  }

  LocalPlaces run() {
    for (size_t i = 0; i < program_.ops.size(); ++i) place_outputs(i);
    LocalPlaces places{std::vector<int64_t>(program_.values.size(), -1), place_blocks(blocks_)};
    for (size_t v = 0; v < program_.values.size(); ++v)
      if (is_local_[v] && block_of_[v] >= 0) places.offsets[v] = blocks_[at(block_of_[v])].offset;
    return places;
  }

 private:
  int32_t time_of(size_t op) const { return static_cast<int32_t>(program_.pass_of(op)); }

  void place_outputs(size_t o) {
    const ProgramOp& op = program_.ops[o];
    const auto pairs = alone_[o] ? in_place_pairs(op) : std::vector<std::pair<int, int>>{};
    const int32_t now = time_of(o);
    std::vector<bool> taken(op.inputs.size());
    for (size_t k = 0; k < op.outputs.size(); ++k) {
      const size_t out = at(op.outputs[k]);
      if (!is_local_[out] || block_of_[out] >= 0) continue;
      for (const auto& [output, input] : pairs) {
        if (at(output) != k || at(input) >= op.inputs.size() || taken[at(input)] ||
            !may_take(o, at(input), program_.values[out]))
          continue;
        block_of_[out] = block_of_[at(base_[at(op.inputs[at(input)])])];
        taken[at(input)] = true;
        break;
      }
      if (block_of_[out] < 0) {
        block_of_[out] = static_cast<int32_t>(blocks_.size());
        blocks_.push_back({.bytes = program_.values[out].bytes(), .first = now, .last = now});
      }
      Block& block = blocks_[at(block_of_[out])];
      block.last = std::max<int64_t>({block.last, last_use_[out], now});
    }
  }

  // Returns whether a result of this type may be stored over input `i` of op `o`, which needs it
  // last.
  bool may_take(size_t o, size_t i, const TensorType& type) const {
    const ProgramOp& op = program_.ops[o];
    if (op.inputs[i] < 0) return false;
    const int32_t base = base_[at(op.inputs[i])];
    const TensorType& from = program_.values[at(op.inputs[i])];
    const auto reads = std::count_if(op.inputs.begin(), op.inputs.end(), [&](int32_t input) {
      return input >= 0 && base_[at(input)] == base;
    });
    return is_local_[at(base)] && last_use_[at(base)] == time_of(o) && reads == 1 &&
           from.bytes() == type.bytes() && info(from.dtype).bytes == info(type.dtype).bytes &&
           program_.values[at(base)].bytes() == type.bytes();
  }

  const FusedProgram& program_;
  const std::vector<int32_t> base_;
  std::vector<int32_t> last_use_, block_of_;  // by value; of bases
  std::vector<bool> is_local_;                // has a place of its own
  std::vector<bool> alone_;                   // by op: it is a pass
  std::vector<Block> blocks_;
};

}  // namespace

LocalPlaces place_locals(const FusedProgram& program) { return LocalPlacer(program).run(); }

}  // namespace piper
