// Runs: equal ops, such as the updates of all parameters, as one launch, with the Casts of what
// they make.
#include <algorithm>

#include "emitter.h"
#include "piper/ir/ops.h"

namespace piper::cuda_kernels {
namespace {

struct Touched {
  DeviceOperand at;
  int64_t bytes = 0;
  bool is_written = false;
};

// Returns whether one writes what the other reads or writes.
bool disturb(const Touched& a, const Touched& b) {
  return (a.is_written || b.is_written) && a.at.kind == b.at.kind &&
         a.at.argument == b.at.argument && a.at.offset < b.at.offset + b.bytes &&
         b.at.offset < a.at.offset + a.bytes;
}

std::vector<Touched> touched_by(const FusedProgram& program, const ProgramOp& op,
                                std::span<const DeviceOperand> places) {
  std::vector<Touched> touched;
  for (const auto* values : {&op.inputs, &op.outputs})
    for (const int32_t value : *values)
      if (value >= 0)
        touched.push_back({places[static_cast<size_t>(value)],
                           program.values[static_cast<size_t>(value)].bytes(),
                           values == &op.outputs});
  return touched;
}

// Returns whether two ops are equal but for attributes and the shapes of their operands.
bool are_alike(const Program& program, const ProgramOp& a, const ProgramOp& b) {
  if (a.op != b.op) return false;
  const auto same = [&](int32_t x, int32_t y) {
    return x < 0 || y < 0 ? x < 0 && y < 0
                          : program.values[static_cast<size_t>(x)].dtype ==
                                program.values[static_cast<size_t>(y)].dtype;
  };
  return std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), b.inputs.end(), same) &&
         std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(), same);
}

// The launch has a pointer for each operand of its ops, also for an absent one.
size_t operands_of(const ProgramOp& op) { return op.inputs.size() + op.outputs.size(); }

// Collects what the ops of a run touch, and how many pointers they take.
class RunTouches {
 public:
  // Adds an op of so many operands, which touches `more`. Returns whether it can be one of the run;
  // if not, nothing changes.
  bool add(std::vector<Touched> more, size_t operands) {
    const auto is_disturbed = [&](const Touched& b) {
      return std::any_of(all_.begin(), all_.end(), [&](const Touched& a) { return disturb(a, b); });
    };
    if (pointers_ + operands > kMostPointers || std::any_of(more.begin(), more.end(), is_disturbed))
      return false;
    all_.insert(all_.end(), more.begin(), more.end());
    pointers_ += operands;
    return true;
  }

 private:
  std::vector<Touched> all_;
  size_t pointers_ = 0;
};

// Remembers which values the ops that stay behind read and write.
class Passed {
 public:
  explicit Passed(size_t values) : read_(values), written_(values) {}
  void add(const ProgramOp& op) {
    for (const int32_t value : op.inputs)
      if (value >= 0) read_[static_cast<size_t>(value)] = true;
    for (const int32_t value : op.outputs)
      if (value >= 0) written_[static_cast<size_t>(value)] = true;
  }
  // Returns whether the op can run before all of them.
  bool lets_by(const ProgramOp& op) const {
    const auto is_in = [](const std::vector<bool>& set, int32_t value) {
      return value >= 0 && set[static_cast<size_t>(value)];
    };
    return std::none_of(op.inputs.begin(), op.inputs.end(),
                        [&](int32_t value) { return is_in(written_, value); }) &&
           std::none_of(op.outputs.begin(), op.outputs.end(), [&](int32_t value) {
             return is_in(written_, value) || is_in(read_, value);
           });
  }

 private:
  std::vector<bool> read_, written_;
};

// Returns the one of `updates` whose first result, in f32, the op casts to 16 bits. An update's
// result takes the place of what it updates.
std::optional<size_t> update_copied_by(const Program& program, std::span<const ProgramOp> updates,
                                       const ProgramOp& op) {
  const auto type = [&](int32_t value) { return program.values[static_cast<size_t>(value)].dtype; };
  if (op.op != "Cast" || type(op.inputs[0]) != DType::kF32 ||
      (type(op.outputs[0]) != DType::kBF16 && type(op.outputs[0]) != DType::kF16) ||
      std::ranges::count(find_op(updates[0].op)->in_place, std::pair(0, 0)) == 0)
    return std::nullopt;
  for (size_t u = 0; u < updates.size(); ++u)
    if (updates[u].outputs[0] == op.inputs[0]) return u;
  return std::nullopt;
}

// Returns whether a run whose Casts begin at op `first` can have the Cast `copy`, too: all Casts
// make the same type, neither side has gaps between its rows, and no two Casts read one parameter.
bool takes_copy(const FusedProgram& program, std::span<const DeviceOperand> places, size_t first,
                size_t copy) {
  const auto input = [&](size_t o) { return program.ops[o].inputs[0]; };
  const auto output = [&](size_t o) { return static_cast<size_t>(program.ops[o].outputs[0]); };
  const DeviceOperand& from = places[static_cast<size_t>(input(copy))];
  const DeviceOperand& to = places[output(copy)];
  if (from.pitch > 0 || to.pitch > 0 || to.kind == DeviceOperand::kAbsent) return false;
  for (size_t o = first; o < copy; ++o)
    if (input(o) == input(copy) ||
        program.values[output(o)].dtype != program.values[output(copy)].dtype)
      return false;
  return true;
}

}  // namespace

Program with_runs_together(Program program) {
  std::vector<ProgramOp> ordered;
  std::vector<bool> is_placed(program.ops.size());
  const auto place = [&](size_t o) {
    ordered.push_back(program.ops[o]);
    is_placed[o] = true;
  };
  const auto place_behind = [&](size_t first, const auto& is_wanted) {
    Passed passed(program.values.size());
    for (size_t o = first + 1; o < program.ops.size(); ++o) {
      if (is_placed[o]) continue;
      if (is_wanted(program.ops[o]) && passed.lets_by(program.ops[o]))
        place(o);
      else
        passed.add(program.ops[o]);
    }
  };
  for (size_t first = 0; first < program.ops.size(); ++first) {
    if (is_placed[first]) continue;
    const size_t begin = ordered.size();
    place(first);
    if (!find_run_maker(program.ops[first].op)) continue;
    place_behind(first,
                 [&](const ProgramOp& op) { return are_alike(program, program.ops[first], op); });
    const std::vector<ProgramOp> updates(ordered.begin() + static_cast<int64_t>(begin),
                                         ordered.end());
    place_behind(first, [&](const ProgramOp& op) {
      return update_copied_by(program, updates, op).has_value();
    });
  }
  program.ops = std::move(ordered);
  return program;
}

size_t end_of_run(const FusedProgram& program, std::span<const DeviceOperand> places,
                  size_t first) {
  const ProgramOp& op = program.ops[first];
  RunTouches run;
  run.add(touched_by(program, op, places), operands_of(op));
  size_t last = first + 1;
  for (; last < program.ops.size() && are_alike(program, op, program.ops[last]); ++last)
    if (!run.add(touched_by(program, program.ops[last], places), operands_of(program.ops[last])))
      break;
  const std::span<const ProgramOp> updates(&program.ops[first], last - first);
  size_t end = last;
  for (size_t copy = last; copy < program.ops.size(); ++copy) {
    if (!update_copied_by(program, updates, program.ops[copy]) ||
        !takes_copy(program, places, last, copy))
      break;
    std::vector<Touched> touched = touched_by(program, program.ops[copy], places);
    touched.erase(touched.begin());  // the parameter, which the update has at hand
    if (!run.add(std::move(touched), operands_of(program.ops[copy]))) break;
    const bool ends_pass =
        copy + 1 == program.ops.size() || program.pass_of(copy + 1) != program.pass_of(copy);
    if (ends_pass) end = copy + 1;
  }
  return end;
}

Run run_of(const FusedProgram& program, size_t first, size_t last) {
  Run run;
  const auto is_update = [&](const ProgramOp& op) { return op.op == program.ops[first].op; };
  size_t o = first;
  int32_t operands = 0;
  for (; o < last && is_update(program.ops[o]); ++o) {
    run.uses.push_back(kernel_use(program, program.ops[o]));
    operands += static_cast<int32_t>(operands_of(program.ops[o]));
  }
  run.copies.assign(run.uses.size(), -1);
  const std::span<const ProgramOp> updates(&program.ops[first], run.uses.size());
  for (; o < last; ++o, operands += 2) {
    const std::optional<size_t> of = update_copied_by(program, updates, program.ops[o]);
    run.copies[*of] = operands + 1;
    run.copy_type = program.values[static_cast<size_t>(program.ops[o].outputs[0])].dtype;
  }
  return run;
}

}  // namespace piper::cuda_kernels
