// The closed set of ops, and all that the compiler knows of each: one OpDef per op, defined in one
// file of src/ir/ops/families/. Its kernels are in src/devices/cpu/families/ and
// src/devices/cuda_kernels/families/.
//
// src/adding.md says how to add an op. Tests walk the table: tests/unit/ops_test.cc, and for
// kernels tests/ops/cpu_test.cc and tests/cuda/conformance_test.cc.
#pragma once

#include <functional>

#include "piper/ir/graph.h"

namespace piper {

// ---- Loops: what sharding knows of an op --------------------------------------------------------
//
// Loops are written as in einsum: a MatMul is "mk,kn->mn". Every loop of the op has a letter. A dim
// of an operand is a list of letters, outermost first: more than one after a reshape that merges
// dims; none for a dim of size 1 that is broadcast. A letter in inputs and outputs passes through
// (m, n); one in inputs only is summed, so a shard of it gives a partial sum (k); one in outputs
// only is a repetition. `whole` letters cannot be sharded; one that fills its dim may stand for
// dims of different extents.
struct LoopRule {
  using Dim = std::vector<char>;
  std::vector<std::vector<Dim>> inputs;   // [input][dim]
  std::vector<std::vector<Dim>> outputs;  // [output][dim]
  std::vector<std::pair<char, int64_t>> sizes;
  std::string whole;
  // Linear in these inputs: a Partial value may pass through (the output is then Partial). A list
  // of joint sets: {0},{1} for Mul (linear in each only); {0,1} for Add (linear only in both at
  // once).
  std::vector<std::vector<int>> linear;
  // (letter, input): a shard of the letter must know where it begins. This input, i64[], is the
  // position of its first element, absent where the letter is not cut; the attribute `whole` is the
  // size of the whole. Only a cut over mesh axes can give it.
  std::vector<std::pair<char, int>> firsts;
  // Such a shard may also be n equal runs, and is given their positions as i64[n].
  bool stretches = false;
  // The input that is an index, as of a Gather: each element is a position on the letter in
  // `firsts`, whose row is looked up or added to, so it counts for one shard of that letter only.
  // -1: there is none.
  int picks = -1;
  // Says how results of shards of a letter that an output lacks are combined: by a sum, by the
  // maximum, by an op that `merges`, or not at all, so that the letter cannot be cut.
  enum Reduction { kNone, kSum, kMax, kMerge } reduces = kSum;
  // The two halves of its inputs are two partial results; it makes the merged one.
  bool merges = false;
  // Names two letters that ring attention cuts: a rank keeps its shard of `own` (queries) and gets
  // the shard of `other` (keys, values) of each rank in turn. Outputs that lack a letter are
  // partial results to be combined. `first`: the input that says where the shard of `other` begins,
  // as `firsts` has it; -1: the op need not know.
  struct Turns {
    char own = 0, other = 0;
    int first = -1;
  };
  std::optional<Turns> turns;
};
// "mk,kn->mn" with single letters; '.' leading stands for the shared leading dims. For ops of fixed
// form.
LoopRule loops(std::string_view form, const std::vector<Shape>& inputs,
               const std::vector<Shape>& outputs);

// ---- What a rule is given -----------------------------------------------------------------------

struct OpTypes {  // of one use of an op
  std::vector<TensorType> inputs;
  // By input: false for an absent optional one (its type is then empty).
  std::vector<bool> present;
  std::vector<TensorType> outputs;  // filled for loops/cost/gradient, empty for `types`
  Attrs attrs;
};

struct Cost {
  double flops = 0;        // multiply-adds count two
  bool is_matmul = false;  // runs at matrix speed
};

// Emits nodes with inferred types into a graph. Autodiff, the importer's canonical forms and fusing
// build with it.
class Builder {
 public:
  explicit Builder(Graph& graph) : graph_(graph) {}
  // New nodes take these from here on: autodiff sets them from the forward node it differentiates.
  std::string scope;
  std::vector<int32_t> tags;
  Pass pass = Pass::kF;
  std::string name_prefix;  // names of new values: prefix + op + counter

  // Adds one use of `op`. Types are inferred; a wrong use is our bug here (user input is checked
  // before).
  std::vector<ValueId> op(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {});
  // Returns the node's first output.
  ValueId op1(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {});
  Result<std::vector<ValueId>> try_op(std::string_view op, std::vector<ValueId> inputs, Attrs attrs,
                                      const SourceSpan& at);

  ValueId scalar(double value, DType dtype);  // a constant, one per value and dtype in the graph
  ValueId constant(TensorType type, Bytes data);
  ValueId add(ValueId a, ValueId b) { return op1("Add", {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return op1("Sub", {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return op1("Mul", {a, b}); }
  ValueId div(ValueId a, ValueId b) { return op1("Div", {a, b}); }
  ValueId neg(ValueId a) { return op1("Neg", {a}); }
  ValueId cast(ValueId a, DType to) { return op1("Cast", {a}, {{"to", info(to).name}}); }
  ValueId matmul(ValueId a, ValueId b, bool trans_a = false, bool trans_b = false);
  ValueId transpose(ValueId a, std::vector<int64_t> perm);
  ValueId reshape(ValueId a, Shape shape);  // a itself when the shape is the same
  ValueId expand(ValueId a, Shape shape);   // likewise
  ValueId reduce_sum(ValueId a, std::vector<int64_t> axes, bool keepdims);
  // Sums `a` over what broadcasting had repeated, so that it has the shape of an operand again.
  ValueId sum_to(ValueId a, const Shape& shape);

  const TensorType& type(ValueId id) const { return graph_.value(id).type; }
  const Shape& shape(ValueId id) const { return graph_.value(id).type.shape; }
  Graph& graph() { return graph_; }

 private:
  Graph& graph_;
  std::vector<ValueId> scalars_;  // what scalar() has made or found
};

// Returns the adjoints of a node's inputs, in input order; an invalid id means none (integer
// inputs, not differentiable by nature). `wanted[i]` is false where nobody needs the adjoint: do
// not build it.
struct GradientArgs {
  std::span<const ValueId> inputs;
  std::span<const ValueId> outputs;
  std::span<const ValueId> output_grads;  // invalid where an output has no adjoint
  const Attrs& attrs;
  std::span<const bool> wanted;
};
using Grads = std::vector<ValueId>;  // empty: this use of the op is not differentiable

// Describes a use of the op that the conformance test runs every rule on.
struct OpSample {
  std::vector<TensorType> inputs;
  Attrs attrs;
  double low = -2, high = 2;  // floats are drawn from here; integers from [0, int_high)
  int64_t int_high = 3;
  std::vector<int> absent = {};  // optional inputs that this use leaves out
};

// An attribute that a use of an op may have. What is absent is 0, empty, or what the op's file
// says.
struct OpDef;
struct OpAttribute {
  std::string_view name;
  enum Kind : uint8_t { kInteger, kReal, kText, kIntegers } kind = kInteger;  // as in AttrValue
  // Whether a use of right types reads it; null: each does. Where it is not read it must be absent:
  // nothing else would tell one value from another.
  bool (*is_read)(const OpDef& op, const OpTypes& use) = nullptr;
};

struct OpDef {
  std::string_view name;
  std::vector<OpAttribute> attributes = {};  // all that a use may have
  // Output types from input types and attributes; the error sentence names shapes, the caller adds
  // the location.
  Result<std::vector<TensorType>> (*types)(const OpTypes& use) = nullptr;
  // Null: not differentiable (comparisons, integers) — reaching it with a float adjoint is an error
  // that names the op.
  Grads (*gradient)(Builder& build, const GradientArgs& args) = nullptr;
  LoopRule (*loops)(const OpTypes& use) = nullptr;
  Cost (*cost)(const OpTypes& use) = nullptr;
  // Attributes for the sharded use, when they name sizes: given the whole use and the new local
  // output shapes.
  Attrs (*localise)(const OpTypes& use, const std::vector<Shape>& local_outputs) = nullptr;
  // Lists ops that make the same and can be cut by letters that are whole in this one; null: none.
  // An operand is an output of an earlier step, or, of step -1, an input of this op.
  struct Operand {
    int step = -1, index = 0;
  };
  struct Step {
    std::string_view op;
    std::vector<Operand> inputs;
    Attrs attrs;
  };
  struct Steps {
    std::vector<Step> steps;
    std::vector<Operand> outputs;
  };
  Steps (*apart)(const OpTypes& use) = nullptr;
  // An output may take the memory of this input, where both have one type, when nothing else reads
  // it later: (output, input).
  std::vector<std::pair<int, int>> in_place;
  // One loop over the elements of the (broadcast) operands: fuse may merge it.
  bool pointwise = false;
  // Made by the ranks of a mesh axis together: no backend has it.
  bool collective = false;
  // The neutral value by which the input `absent_in` may be padded, such as -inf for a maximum: an
  // element of this value changes nothing else in a result. It holds for letters that are whole,
  // are in `firsts`, or are reduced by a maximum. Where a result has the letter, it is 0 there, but
  // in `nonzero` ones. An infinite number stands for the least or the largest one of the type.
  std::optional<double> absent = {};
  int absent_in = 0;
  // Outputs that are not zero where all operands are zero, as of f with f(0) != 0; all others are.
  std::vector<int> nonzero = {};
  // The first of three inputs in a row of an op that draws random numbers
  // (src/ir/ops/families/random.cc): the key, the step, and the samples' numbers, which sharding
  // adds. -1: the op draws none.
  int draws = -1;

  // ---- What other rooms ask of an op ----
  // In which type it computes where 16 bits are asked for, as torch.autocast chooses: the low one,
  // which is for what takes the time; f32, for what loses most by rounding or leaves the range of
  // f16; or the widest type of its operands.
  enum class Autocast { kWidest, kLow, kF32 } autocast = Autocast::kWidest;
  // kPart: the output has some elements of the only input, or all, in their order; kPermuted: all
  // of them in another order.
  enum class Elements { kMade, kPart, kPermuted } elements = Elements::kMade;
  // Returns the offset in bytes at which the output begins in the only input, where a use makes a
  // view of it (as Reshape does). Null: no use is a view.
  std::optional<int64_t> (*first_byte)(const TensorType& from, const TensorType& to,
                                       const Attrs& attrs) = nullptr;
  // The second input has indices, which are in [0, extent) or are `ignored`. Null: it has none.
  struct Indices {
    int64_t extent = 0;
    std::optional<int64_t> ignored = {};
  };
  Indices (*indices)(const OpTypes& use) = nullptr;
  // Kernels may apply so many pointwise ops to the result as they write it, an epilogue (attribute
  // `then`); `takes_rows`: also ops whose other operand is one row, such as a bias.
  int takes = 0;
  bool takes_rows = false;
  // It may swap its two operands: no bit changes.
  bool commutes = false;
  // It is an optimizer's update: this many states are between the gradient and the numbers of the
  // step. -1: it is none.
  int states = -1;
  // Such an op takes the direction that others make of the gradient, in the gradient's place.
  bool directed = false;
  // It sums a value over all microbatches and replicas of the step (StepSum).
  bool sums_step = false;
  std::vector<OpSample> samples;
};

const OpDef* find_op(std::string_view name);  // null when there is none
std::span<const OpDef* const> all_ops();      // by name
inline bool is_step_sum(const Node& node) {
  const OpDef* def = find_op(node.op);
  return def && def->sums_step;
}
// Returns the use that a node of a graph makes of its op.
OpTypes use_of(const Graph& graph, const Node& node);

}  // namespace piper
