// Finds the matrices of a program whose rows can be apart; program.cc places them like that.
#include "pitch.h"

#include <algorithm>

#include "rows.h"

namespace piper::cuda_kernels {
namespace {

constexpr int64_t kVector = 16, kLine = 128;  // bytes
constexpr int64_t kMostGap = 16;              // a gap is at most one in so many bytes of a row

size_t at(int32_t value) { return static_cast<size_t>(value); }

class PitchSearch {
 public:
  PitchSearch(const FusedProgram& program, const std::vector<bool>& args)
      : program_(program),
        base_(program.bases()),
        made_{std::vector<int64_t>(program.values.size()),
              std::vector<bool>(program.values.size())} {
    propose(args);
    for (const ProgramOp& op : program.ops) note_products(op);
    for (const auto& [a, b] : pairs_) {
      const bool either = made_.in_product[at(a)] || made_.in_product[at(b)];
      made_.in_product[at(a)] = made_.in_product[at(b)] = either;
    }
    for (size_t v = at(program.num_args); v < made_.rows.size(); ++v)
      if (!made_.in_product[v]) made_.rows[v] = 0;
  }

  Pitches run() {
    do {
      changed_ = false;
      for (const ProgramOp& op : program_.ops) check(op);
      for (const auto& [a, b] : pairs_)
        if ((made_.rows[at(a)] == 0) != (made_.rows[at(b)] == 0)) drop(a), drop(b);
    } while (changed_);
    for (const ProgramView& view : program_.views)
      made_.rows[at(view.value)] = made_.rows[at(view.base)];
    return std::move(made_);
  }

 private:
  const TensorType& type(int32_t value) const { return program_.values[at(value)]; }
  int64_t bytes_of_row(int32_t value) const {
    const TensorType& of = type(value);
    return of.shape.empty() ? 0 : of.shape.back() * info(of.dtype).bytes;
  }
  void drop(int32_t value) {
    changed_ = changed_ || made_.rows[at(value)] != 0;
    made_.rows[at(value)] = 0;
  }

  // Proposes gaps for all values in the workspace and the arguments that may have them, unless a
  // view of it has other rows.
  void propose(const std::vector<bool>& args) {
    for (size_t v = 0; v < made_.rows.size(); ++v)
      if (v >= args.size() || args[v]) made_.rows[v] = aligned_pitch(program_.values[v]);
    const std::vector<bool> inside = program_.inside();
    for (size_t v = 0; v < inside.size(); ++v)
      if (inside[v]) made_.rows[v] = 0;
    for (const auto& [value, bytes] : program_.literals) made_.rows[at(value)] = 0;
    for (const ProgramView& view : program_.views) {
      made_.rows[at(view.value)] = 0;
      const int64_t row = bytes_of_row(view.base);
      if (row == 0 || bytes_of_row(view.value) != row || view.offset % row != 0 ||
          type(view.value).dtype != type(view.base).dtype)
        drop(view.base);
    }
  }

  void note_products(const ProgramOp& op) {
    const auto pair = [&](int32_t a, int32_t b) {
      pairs_.emplace_back(base_[at(a)], base_[at(b)]);
    };
    if (op.op == "CrossEntropyGrad") pair(op.inputs[0], op.outputs[0]);
    if (op.op != "MatMul" && op.op != "Linear") return;
    for (const auto* values : {&op.inputs, &op.outputs})
      for (const int32_t value : *values)
        if (value >= 0) made_.in_product[at(base_[at(value)])] = true;
    if (op.op == "MatMul" && op.inputs.size() > 2) pair(op.inputs[2], op.outputs[0]);
  }

  void check(const ProgramOp& op) {
    const auto has = [&](int32_t value) {
      return value >= 0 && made_.rows[at(base_[at(value)])] != 0;
    };
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (has(op.inputs[i]) && !takes_input(op, i)) drop(base_[at(op.inputs[i])]);
    for (size_t o = 0; o < op.outputs.size(); ++o)
      if (has(op.outputs[o]) && !takes_output(op, o)) drop(base_[at(op.outputs[o])]);
  }

  bool takes_input(const ProgramOp& op, size_t i) const {
    if (op.op == "MatMul") return has_terms(op);
    if (op.op == "Linear") return has_terms(op) && i < 2;
    if (op.op.starts_with("CrossEntropy")) return i == 0 && op.op != "CrossEntropyOfTerms";
    return takes_in_rows(op, i, true);
  }
  bool takes_output(const ProgramOp& op, size_t o) const {
    if (op.op == "MatMul") return has_terms(op);
    if (op.op == "Linear") return has_terms(op) && is_of_library(op);
    if (op.op == "CrossEntropyGrad") return true;
    return takes_in_rows(op, o, false);
  }
  bool has_terms(const ProgramOp& op) const {
    return num_elements(type(op.inputs[0]).shape) > 0 && num_elements(type(op.inputs[1]).shape) > 0;
  }
  // Returns whether the library makes all of a Linear without an activation (see product.cc).
  bool is_of_library(const ProgramOp& op) const {
    const int32_t bias = op.inputs[2];
    const auto view = std::find_if(program_.views.begin(), program_.views.end(),
                                   [&](const ProgramView& each) { return each.value == bias; });
    const bool is_aligned = view == program_.views.end() || view->offset % kVector == 0;
    return op.attrs.text("activation", "none") == "none" && is_aligned &&
           type(op.inputs[0]).dtype != DType::kF64;
  }
  bool takes_in_rows(const ProgramOp& op, size_t operand, bool is_input) const {
    if (find_run_maker(op.op)) return false;
    const Use use = kernel_use(program_, op);
    const std::optional<Extents> extents = extents_of(use);
    const RowOp* const row_op = find_row_op(use);
    if (!extents || !row_op) return extents.has_value();
    const std::string_view kinds = is_input ? row_op->inputs : row_op->outputs;
    const TensorType& of = is_input ? use.inputs[operand] : use.outputs[operand];
    return operand < kinds.size() && kinds[operand] == 'x' && of.shape.back() == extents->width;
  }

  const FusedProgram& program_;
  const std::vector<int32_t> base_;
  std::vector<std::pair<int32_t, int32_t>> pairs_;  // of bases whose rows are as far apart
  Pitches made_;                                    // of bases, until the end
  bool changed_ = false;
};

}  // namespace

int64_t aligned_pitch(const TensorType& type) {
  if (type.shape.size() < 2 || !info(type.dtype).is_float) return 0;
  const int64_t element = info(type.dtype).bytes, row = type.shape.back() * element;
  if (row % kVector == 0 || row < kMostGap * kVector || type.bytes() <= row) return 0;
  const int64_t to = row < kMostGap * kLine ? kVector : kLine;
  return ceil_div(row, to) * to / element;
}

std::vector<bool> aligned_args(const Program& program) {
  std::vector<bool> args(at(program.num_args));
  for (const ProgramOp& op : program.ops)
    if (op.attrs.find(kAlignedArgs))
      for (const int64_t arg : op.attrs.integers(kAlignedArgs))
        args[static_cast<size_t>(arg)] = true;
  return args;
}

Pitches find_pitches(const FusedProgram& program, const std::vector<bool>& args) {
  return PitchSearch(program, args).run();
}

FusedProgram widened_by(const Pitches& pitches, FusedProgram program) {
  for (size_t v = 0; v < pitches.rows.size(); ++v)
    if (pitches.rows[v] > 0) program.values[v].shape.back() = pitches.rows[v];
  return program;
}

}  // namespace piper::cuda_kernels
