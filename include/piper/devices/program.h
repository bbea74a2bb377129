// A chunk's program in fewer passes over memory. Results keep every bit: only what is stored and
// read changes.
//
// Views: an op that gives the same bytes another shape (a Reshape, a Transpose that moves only
// extents of 1, a Slice that is one run of bytes, …) makes no copy: its result is a view of what it
// reads; or what it reads is made in the argument that it would have been copied to.
//
//   y = Add x b;  z = Reshape y;  MatMul z w
//     ->   y = Add x b;  MatMul (y as z) w
//
// What nobody reads is not made.
//
// Columns: q, k and v that are Slices of one tensor are read where they are, and their gradients
// are made where a Concat would have put them (the attributes `columns` and `grad_columns`,
// formats/plan.md).
//
//   q, k, v = Slices of x;  y = Attention q k v
//     ->   y = Attention x x x {columns=[0,128,256] kv_heads=4}
//
// Finished products: a sum or product with what a MatMul or the gradient of a norm makes, whose
// other operand has its shape or is one row of it, is done on each part of the result while it is
// in the nearest cache (the attribute `then`, formats/plan.md).
//
//   h = MatMul x w;  t = Add h b;  y = Add r t
//     ->   MatMul in=[x,w,b,r] out=[y] {then="Add Add"}
//
// Groups: pointwise ops over one shape, each reading another's result, become one op "Fused" with
// the attribute `expr`, a postfix program over a stack: a block of elements goes
// through all of them while it is in the nearest cache. Operands are broadcast to the shape.
// Outputs are what others read; all else is never stored. Two ops are merged whenever that saves a
// pass over memory and changes the order of no two ops that depend on each other.
//
//   h = Add x b;  t = Tanh h;  y = Mul h t
//     ->   Fused in=[x,b] out=[h,y] {expr="0 1 Add =0 @0 Tanh @0 Mul"}
//
// Plans hold none of this: backends fuse what they load, and may compile an expression, or run it
// op by op.
#pragma once

#include "piper/plan/bundle.h"

namespace piper {

inline constexpr std::string_view kFusedOp = "Fused";

// Describes another shape for the same bytes: `value` is `base` (an argument or a local that is no
// view) from byte `offset` on. Made with its base; an op that writes it writes the base, which is
// then an argument and covered whole.
struct ProgramView {
  int32_t value = 0, base = 0;
  int64_t offset = 0;
};
struct FusedProgram : Program {
  std::vector<ProgramView> views;      // by value, ascending
  std::vector<size_t> passes = {};     // by op: its pass, ascending; empty: each op is one
  std::vector<int32_t> bases() const;  // by value: its base, itself when it is no view
  std::vector<bool> inside() const;    // by value: made and read in one pass alone, never stored
  size_t pass_of(size_t op) const { return passes.empty() ? op : passes[op]; }
};

struct FuseCounts {
  int64_t groups = 0;    // Fused ops made
  int64_t ops = 0;       // pointwise ops that they replace
  int64_t views = 0;     // copies that became views or columns
  int64_t finished = 0;  // sums and products that became part of another op
};

struct FuseOptions {
  // Whether kernels of products and of norms' gradients can take ops along (`then`).
  bool finishes_products = true;
  // Says whether ops share passes. If not, each op that is no view moves all that it reads and
  // makes, as in frameworks that run ops one by one.
  bool shares_passes = true;
};

// Returns the program rewritten; what was done is added to `counts`. Arguments keep their numbers
// and flags. Requires: SSA form as check_role demands it, ops whose operands have the types that
// they take. Ensures: the same; every local is made by an op.
FusedProgram fuse(Program program, FuseCounts& counts, const FuseOptions& options = {});

// Says where locals are in a program's workspace, by value; -1: arguments, literals, views, and
// what is inside a pass.
struct LocalPlaces {
  std::vector<int64_t> offsets;  // bytes, multiples of kAlignment
  int64_t bytes = 0;             // the greatest end
};
// Locals whose lives are apart may share memory, and one may take the place of an input of the op
// that makes it, where the op is a pass of its own, the op table allows it and nothing reads that
// later.
LocalPlaces place_locals(const FusedProgram& program);

// Devices with generated kernels run ops over the same rows as one pass: such ops are put side by
// side. A pass may begin and end with what looks at whole rows (norms, softmax), and end
// with sums over rows (gradients of biases and of norms' parameters). Run op by op it gives the
// same bits, but needs places for what is `inside`. Ops that `takes` is false for stay single.
using TakesRows = bool (*)(const FusedProgram& program, const ProgramOp& op);
FusedProgram join_rows(FusedProgram program, TakesRows takes = nullptr);

// Counts what a pass moves to and from memory: each operand once, and of it the elements that the
// pass reads or writes.
struct PassTraffic {
  std::string kind;         // names of its ops, words of Fused ones: "Cast:f32 Add LayerNorm"
  bool is_product = false;  // of matrices, or an attention; with all that it takes along
  std::vector<std::pair<int32_t, int64_t>> read, written;  // bytes, by value: bases, no views
};
// Returns the traffic by pass.
std::vector<PassTraffic> traffic_of(const FusedProgram& program);

// Returns the program in the form that a device runs whose kernels take 16-bit floats in some ops
// only: any other op takes them converted to f32, and each of its results is rounded once. It has
// the same arguments and makes the same bits: an op means no more.
using TakesHalves = bool (*)(std::string_view op);
Program widened(Program program, TakesHalves takes);

// The program without the composites of 16-bit ops that a device has no kernel for: their ops one
// by one, in f32 between them, so that each result is rounded once.
Program taken_apart(Program program);

}  // namespace piper
