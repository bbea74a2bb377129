// What the makers of an op's steps are given, and what they write to.
//
// Each file of families/ defines makers, with a row for each op; table.cc puts the rows together. A
// maker refuses element types that it has no kernel for; all else has been checked where the use
// was read. The text of a family is device/FAMILY.cuh: templates over element types and sizes, which a
// kernel's body calls with those of the use, so that no size is a parameter.
#pragma once

#include <functional>
#include <optional>
#include <set>

#include "piper/devices/cuda_kernels.h"

namespace piper::cuda_kernels {

using Use = KernelUse;

// Returns the elements from one row of an operand of this shape to the next.
inline int64_t pitch_of(const DeviceOperand& operand, const Shape& shape) {
  return operand.pitch > 0 ? operand.pitch : shape.back();
}
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the names that the text has for element types: "double", "float", "bf16", "f16",
// "int64_t", "int32_t", "bool". And of unsigned integers of so many bytes: "uint32_t", for what
// only moves.
std::string_view type_name(DType dtype);
std::string_view bits_name(DType dtype);
// Returns what is computed in: double of f64, float of the other floats, itself of integers and
// bool.
DType compute_type(DType dtype);
// Returns a literal of the text: "1.0e-05f", "-INFINITY".
std::string literal(double value, DType dtype);

// Describes a kernel to be launched. `body` is what is between the braces of its function,
// where operand i of the op (inputs, then outputs, then what `extra` lists) is `p.at<T>(i)`, null
// where absent.
struct KernelText {
  std::string_view family;  // whose texts the body uses, apart by spaces; empty: none
  std::string body;
  int64_t blocks = 1;
  int32_t threads = 128;
  int64_t shared_bytes = 0;
  std::vector<DeviceOperand> extra = {};
  std::vector<DeviceOperand> operands = {};  // in place of the op's, if any
};

class Emitter {
 public:
  // What follows is of this op, whose operands are these.
  void begin(size_t op, std::vector<DeviceOperand> operands);
  const DeviceOperand& operand(size_t i) const { return operands_[i]; }

  void kernel(KernelText text);  // of no blocks: nothing is launched
  void product(const DeviceProduct& product, std::vector<DeviceOperand> operands);
  // Belongs to a library that may be there: makes the steps that follow its DeviceStep.
  struct Around {
    std::function<void()> before, after;
    std::function<Status()> instead;
  };
  Status attention(const DeviceAttention& attention, std::vector<DeviceOperand> operands,
                   const DeviceOperand& workspace, const Around& around);
  void copy(const DeviceOperand& from, const DeviceOperand& to, int64_t bytes);
  void zero(const DeviceOperand& what, int64_t bytes);
  // Reserves memory for the kernels of this op only, 256-byte aligned; its contents do not outlive
  // them.
  DeviceOperand scratch(int64_t bytes);

  // Ends the program: its source, and scratch after the locals.
  void finish(DeviceProgram& program, int64_t local_bytes);

 private:
  DeviceStep& step(DeviceStep::Kind kind, size_t index);
  void keep_literals(const std::string& all);

  std::vector<DeviceOperand> operands_;
  int32_t op_ = 0;
  int64_t scratch_ = 0, most_scratch_ = 0;
  std::set<std::string> families_;
  std::vector<std::pair<std::string, int32_t>> functions_;  // by body and threads
  DeviceProgram made_;
};

// Writes the steps of a use.
using Maker = Status (*)(const Use& use, Emitter& emit);
Maker find_maker(std::string_view op);  // null when there is none

// Holds uses of one op that are equal but for attributes and the shapes of their tensors, and of
// which none writes what another reads or writes: they follow each other in the program, and may
// run at once. Operands: those of each use, one after the other, then those of each Cast; at most
// kMostPointers.
struct Run {
  std::vector<Use> uses;
  // The i-th is the operand that a Cast writes from the first result (f32) of use i; -1: none.
  std::vector<int32_t> copies;
  std::optional<DType> copy_type;  // bf16 or f16, of all of them; nothing where there are none
};
using RunMaker = Status (*)(const Run& run, Emitter& emit);
RunMaker find_run_maker(std::string_view op);  // null when there is none
inline constexpr size_t kMostPointers = 480;   // of a kernel, less those of scratch: 4 KiB
// Moves ops that can go into a run with an op before them up to it, where nothing between them
// hinders that.
Program with_runs_together(Program program);
// Returns the op after the last that goes into one run with op `first`, Casts of their results
// included.
size_t end_of_run(const FusedProgram& program, std::span<const DeviceOperand> places, size_t first);
Run run_of(const FusedProgram& program, size_t first, size_t last);

// ---- Passes over rows (rows.cc) -----------------------------------------------------------------
// Returns whether there are kernels over rows for the op, and whether it can be one among others.
bool goes_by_rows(const FusedProgram& program, const ProgramOp& op);
bool joins_rows(const FusedProgram& program, const ProgramOp& op);
// Returns the names of the ops of which it can be true.
std::vector<std::string> row_ops();
// Emits several ops that go over the same rows, as one pass. Operands: those of each op, one after
// the other; of values inside the pass, absent.
Status make_pass(const FusedProgram& program, size_t first, size_t last, Emitter& emit);

}  // namespace piper::cuda_kernels
