// Runs: equal ops that follow each other, such as the updates of all parameters, as one launch.
#include <algorithm>

#include "emitter.h"

namespace piper::cuda_kernels {
namespace {

struct Touched {
  DeviceOperand at;
  int64_t bytes = 0;
  bool is_written = false;
};

// Whether one writes what the other reads or writes.
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

// Whether two ops are equal but for attributes and the shapes of their operands.
bool are_alike(const FusedProgram& program, const ProgramOp& a, const ProgramOp& b) {
  if (a.op != b.op) return false;
  const auto same = [&](int32_t x, int32_t y) {
    return x < 0 || y < 0 ? x < 0 && y < 0
                          : program.values[static_cast<size_t>(x)].dtype ==
                                program.values[static_cast<size_t>(y)].dtype;
  };
  return std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), b.inputs.end(), same) &&
         std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(), same);
}

}  // namespace

size_t end_of_run(const FusedProgram& program, std::span<const DeviceOperand> places,
                  size_t first) {
  const ProgramOp& op = program.ops[first];
  const size_t operands = op.inputs.size() + op.outputs.size();
  std::vector<Touched> touched = touched_by(program, op, places);
  size_t last = first + 1;
  for (; last < program.ops.size() && (last - first + 1) * operands <= kMostPointers; ++last) {
    const ProgramOp& next = program.ops[last];
    if (!are_alike(program, op, next)) break;
    const std::vector<Touched> more = touched_by(program, next, places);
    const auto is_disturbed = [&](const Touched& b) {
      return std::any_of(touched.begin(), touched.end(),
                         [&](const Touched& a) { return disturb(a, b); });
    };
    if (std::any_of(more.begin(), more.end(), is_disturbed)) break;
    touched.insert(touched.end(), more.begin(), more.end());
  }
  return last;
}

}  // namespace piper::cuda_kernels
