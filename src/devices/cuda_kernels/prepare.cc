// Prepares roles for cuda: matrices that programs pass to each other, such as logits, get gaps
// between their rows if products are faster with them.
#include <algorithm>
#include <map>

#include "piper/base/memory.h"
#include "piper/ir/ops.h"
#include "pitch.h"

namespace piper {
namespace {

using namespace cuda_kernels;  // NOLINT: this room's own

size_t at(int32_t index) { return static_cast<size_t>(index); }

class RowAligner {
 public:
  explicit RowAligner(RoleProgram& role)
      : role_(role), may_(role.tensors.size()), uses_(role.programs.size()) {}

  void run() {
    propose();
    if (std::none_of(may_.begin(), may_.end(), [](bool may) { return may; })) return;
    find_uses();
    settle();
    for (size_t t = 0; t < may_.size(); ++t) may_[t] = may_[t] && in_product_[t];
    settle();
    for (size_t p = 0; p < uses_.size(); ++p) mark(p);
    make_room();
  }

 private:
  // What a program is bound to: a tensor for each argument.
  using Tensors = std::vector<int32_t>;
  struct Uses {
    std::vector<Tensors> bound;
    std::optional<FusedProgram> joined;  // if it may have to do with such a matrix
  };

  int32_t tensor_of(int32_t buffer) const { return role_.buffers[at(buffer)].tensor; }

  // Proposes the 16-bit matrices that only programs use.
  void propose() {
    constexpr int64_t kLeastColumns = 256;  // of products by tensor cores that are worth it
    for (size_t t = 0; t < may_.size(); ++t) {
      const Tensor& tensor = role_.tensors[t];
      may_[t] = tensor.kind == BufferKind::kStep && !tensor.host &&
                info(tensor.type.dtype).bytes == 2 && aligned_pitch(tensor.type) > 0 &&
                tensor.type.shape.back() >= kLeastColumns;
    }
    for (const auto* reports : {&role_.reports, &role_.evaluation_reports})
      for (const Report& report : *reports) may_[at(tensor_of(report.buffer))] = false;
    for (const auto* section : role_.sections())
      for (const Instruction& each : *section)
        for (const int32_t arg : each.args)
          if (each.kind != InstructionKind::kCompute) may_[at(tensor_of(arg))] = false;
  }

  void find_uses() {
    for (const auto* section : role_.sections())
      for (const Instruction& each : *section) {
        if (each.kind != InstructionKind::kCompute) continue;
        Tensors tensors;
        for (const int32_t arg : each.args) tensors.push_back(tensor_of(arg));
        if (std::ranges::none_of(tensors, [&](int32_t t) { return may_[at(t)]; })) continue;
        Uses& uses = uses_[at(each.program)];
        if (!std::ranges::count(uses.bound, tensors)) uses.bound.push_back(std::move(tensors));
      }
    for (size_t p = 0; p < uses_.size(); ++p)
      if (!uses_[p].bound.empty()) uses_[p].joined = joined_for_cuda(role_.programs[p]);
  }

  // Returns which arguments of a program are such matrices in every instruction that runs it.
  std::vector<bool> args_of(size_t program) const {
    std::vector<bool> args(at(role_.programs[program].num_args), !uses_[program].bound.empty());
    for (const Tensors& tensors : uses_[program].bound)
      for (size_t a = 0; a < args.size(); ++a)
        args[a] = args[a] && may_[at(tensors[a])] &&
                  role_.tensors[at(tensors[a])].type == role_.programs[program].values[a];
    return args;
  }

  // Excludes what an op of any program cannot take with gaps, until nothing changes.
  void settle() {
    for (bool changed = true; changed;) {
      changed = false;
      in_product_.assign(may_.size(), false);
      for (size_t p = 0; p < uses_.size(); ++p) {
        if (!uses_[p].joined) continue;
        const Pitches pitches = find_pitches(*uses_[p].joined, args_of(p));
        const bool has_op = op_to_mark(p) != nullptr;
        for (const Tensors& tensors : uses_[p].bound)
          for (size_t a = 0; a < tensors.size(); ++a) {
            const size_t t = at(tensors[a]);
            if (pitches.in_product[a]) in_product_[t] = true;
            if (!may_[t] || (has_op && pitches.rows[a] > 0)) continue;
            may_[t] = false;
            changed = true;
          }
      }
    }
  }

  // Returns the first op that fusing leaves as it is; null if there is none.
  ProgramOp* op_to_mark(size_t program) {
    std::vector<ProgramOp>& ops = role_.programs[program].ops;
    const auto op = std::find_if(ops.begin(), ops.end(), [](const ProgramOp& each) {
      const OpDef* def = find_op(each.op);
      return def && !def->pointwise;
    });
    return op == ops.end() ? nullptr : &*op;
  }

  void mark(size_t program) {
    if (!uses_[program].joined) return;
    const std::vector<bool> args = args_of(program);
    std::vector<int64_t> marked;
    for (size_t a = 0; a < args.size(); ++a)
      if (args[a]) marked.push_back(static_cast<int64_t>(a));
    if (!marked.empty()) op_to_mark(program)->attrs.set(std::string(kAlignedArgs), marked);
  }

  // Inserts room for the gaps where each such matrix ends. Whatever begins there or after moves
  // up, whatever begins before stays. Then only buffers overlap that did so before, whose users
  // wait for each other, on whatever streams they are.
  void make_room() {
    std::map<int64_t, int64_t> rooms;  // bytes, by where they are inserted
    for (const Buffer& buffer : role_.buffers) {
      if (!may_[at(buffer.tensor)]) continue;
      TensorType wide = role_.tensor(buffer).type;
      const int64_t end = align_up(buffer.offset + wide.bytes());
      wide.shape.back() = aligned_pitch(wide);
      int64_t& room = rooms[end];
      room = std::max(room, align_up(buffer.offset + wide.bytes()) - end);
    }
    for (Buffer& buffer : role_.buffers) {
      if (role_.tensor(buffer).host) continue;
      int64_t moved = 0;
      for (const auto& [from, bytes] : rooms)
        if (from <= buffer.offset) moved += bytes;
      buffer.offset += moved;
    }
    for (const auto& [from, bytes] : rooms) role_.arena_bytes += bytes;
  }

  RoleProgram& role_;
  std::vector<bool> may_, in_product_;  // by tensor
  std::vector<Uses> uses_;              // by program
};

}  // namespace

RoleProgram prepared_for_cuda(RoleProgram role) {
  RowAligner(role).run();
  return role;
}

}  // namespace piper
