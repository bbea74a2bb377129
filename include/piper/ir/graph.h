// The model: one training step for one device as a flat SSA graph of ops on typed values.
//
// The importer makes a forward graph; autodiff adds gradients and the optimizer; sharding gives
// every value its local shape and layout. Nothing here knows what an op means: that is the ops
// room.
//
// Order: nodes are in a topological order; ids are positions. Values are made by a node, or are
// inputs, state or constants.
#pragma once

#include <unordered_map>

#include "piper/base/base.h"

namespace piper {

struct NodeTag;
struct ValueTag;
using NodeId = Id<NodeTag>;
using ValueId = Id<ValueTag>;

// F forward, BI adjoints of values that depend on inputs, BW contributions to parameters'
// gradients, U the rest of the step (sums over the step, clipping, optimizer). B, F+… exist only as
// tasks (piper/plan/pass.h).
enum class Pass : uint8_t { kF, kBI, kBW, kU };
inline constexpr const char* kPassNames[] = {"F", "BI", "BW", "U"};

enum class ValueKind : uint8_t {
  kNode,      // made by a node in each step
  kInput,     // comes from the data: dim `batch_dim` counts samples
  kConstant,  // known at compile time
  kState,     // lives from step to step: parameters, optimizer state, the step counter
};

// Says how a value is laid out over the batch axis group (replicas × microbatches): one local value
// stands for
//   kReplicated  the same value in every shard,
//   kSharded     blocks of `dim`; a dim is [outer, shards × local, inner] and shard i holds the
//                i-th block of each outer part, or, where `mirrored`, of every second one the
//                i-th from its end: causal attention is as much work on tokens of each shard,
//   kPartial     terms of a sum over all shards.
//   kGreatest    numbers of which the largest counts.
//   kRouted      all rows, of which those are right whose index names what the shard has of a
//                table: tokens at their experts.
enum class LayoutKind : uint8_t { kReplicated, kSharded, kPartial, kGreatest, kRouted };
struct Layout {
  LayoutKind kind = LayoutKind::kReplicated;
  int dim = -1;           // kSharded
  int64_t outer = 1;      // kSharded: extent of the factors of `dim` left of the sharded one
  ValueId by = {};        // kRouted, while an axis is applied: the index
  bool mirrored = false;  // kSharded, of an even `outer`
  bool operator==(const Layout&) const = default;
};
std::string to_string(const Layout& layout);  // By kind: "R", "S0", "S1/4" (outer 4), "S1/2z"
                                              // (mirrored), "P", "M" (greatest), "D" (routed)

// Says how a value is cut over a mesh axis that a `shard` directive names. Axes are applied one
// after the other: what an axis cuts is what those before it left to a rank.
struct AxisLayout {
  int32_t axis = 0;  // of the mesh
  Layout layout;     // never kReplicated
  bool operator==(const AxisLayout&) const = default;
};
struct Value;
std::string print_layouts(const Value& value);  // "S0", "R+S1/4@2+P@3": of the batch, then by axis

struct Value {
  std::string name;  // unique; the exporter's where it has one
  TensorType type;
  ValueKind kind = ValueKind::kNode;
  NodeId producer;       // kNode
  int output_index = 0;  // kNode: which output of the producer
  int batch_dim = -1;    // kInput: the dim that counts samples, or -1
  // kConstant: the elements; kState: initial elements, or empty: filled with `fill`.
  Bytes data;
  double fill = 0;               // kState without data
  Layout layout;                 // of the local shape in `type`; kReplicated until sharding has run
  std::vector<AxisLayout> over;  // in the order in which the axes were applied
  // Extents of all ranks together without the zeros that let axes cut a dim; 0, or empty: none.
  Shape unpadded;
  // kConstant that an import rule made: of f64, the numbers that were rounded to `data`; empty:
  // those of `data`. What is computed in f64 takes these.
  Bytes exact;
  // Stands for `data` in a graph read from text that left the elements out.
  std::string data_digest;
};

struct Node {
  std::string op;     // a name of the op table (ops.h)
  std::string name;   // the exporter's node name, or made from the value's
  std::string scope;  // module path without leading slash: "h/0/mlp/fc1"; "" when unknown
  Attrs attrs;
  std::vector<ValueId> inputs;  // an absent optional input is an invalid id
  std::vector<ValueId> outputs;
  Pass pass = Pass::kF;
  // By index of Graph::tag_names; kNoTag when absent; may be shorter than tag_names.
  std::vector<int32_t> tags;
};
inline constexpr int32_t kNoTag = INT32_MIN;
inline bool is_backward(const Node& node) {
  return node.pass == Pass::kBI || node.pass == Pass::kBW;
}

// A trained tensor under its framework name and orientation.
struct Param {
  std::string name;                  // "model.h.0.qkv.weight"
  std::vector<std::string> aliases;  // other names of the same tensor (ties)
  std::string scope;                 // "model/h/0/qkv/weight": what globs match
  ValueId value;                     // kState
  std::string evidence;              // how the importer knows, for --explain=parameters
  // Not trained; what the model itself keeps, as a running mean, has an update all the same.
  bool frozen = false;
  // After autodiff: the step's whole gradient (output of a StepSum); invalid if none.
  ValueId gradient;
};

// Returns the paths under which patterns find it, each once: its scope, then its own name and its
// aliases with '/' for '.'.
std::vector<std::string> paths_of(const Param& param);
// Returns whether the pattern matches one of these paths, or a name as it is saved.
bool has_name(const Param& param, const Glob& glob);

// A state value takes, at the end of the step, the value of `next`.
struct StateUpdate {
  ValueId state, next;
  // The parameter beside which an optimizer's state is kept and updated, where `next` is not made by
  // the op that updates the parameter.
  ValueId beside = {};
};

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Param> params;  // canonical parameter order: the framework's
  std::vector<StateUpdate> updates;
  std::vector<std::string> tag_names;
  std::vector<ValueId> inputs;   // kInput values in the file's order
  std::vector<ValueId> outputs;  // forward outputs (loss, logits …) before autodiff
  // Scalar: before autodiff the model's; after it, the StepSum of the whole batch.
  ValueId loss;
  ValueId grad_norm;  // after autodiff: f64 scalar, before clipping
  // Of evaluation, where the loss is a mean over labels: the scalar by which its sum is divided;
  // after autodiff the StepSum of that.
  ValueId weight;
  // i64 scalar state, 0 in the first step: after autodiff, or where an op reads it.
  ValueId step;
  // After sharding: input i64 [samples], the samples' numbers in the global batch, where an op
  // reads them; the executor makes it, no data have it.
  ValueId sample;
  int64_t batch = 0;   // samples of the global batch
  int64_t shards = 1;  // after sharding: replicas × microbatches

  const Value& value(ValueId id) const { return values[id.index()]; }
  Value& value(ValueId id) { return values[id.index()]; }
  const Node& node(NodeId id) const { return nodes[id.index()]; }
  Node& node(NodeId id) { return nodes[id.index()]; }

  ValueId add_value(Value value);  // makes the name unique by a suffix
  // Appends a node and its output values (named `name`, or `name:1`… for further ones). Inputs must
  // exist.
  NodeId add_node(Node node, std::span<const TensorType> output_types);
  // Appends a node like one that is there, perhaps with other inputs, pass and tags: its new
  // outputs have the types and the layouts of node.outputs.
  NodeId add_copy(Node node);
  // Moves each node to its place in `order`, which lists all nodes.
  void put_in_order(const std::vector<NodeId>& order);
  ValueId add_constant(std::string name, TensorType type, Bytes data);
  ValueId find_value(std::string_view name) const;  // invalid when absent

  int tag_index(std::string_view name) const;      // -1 when absent
  int add_tag(std::string_view name);              // index, new or existing
  int32_t tag(const Node& node, int index) const;  // kNoTag when absent
  void set_tag(Node& node, int index, int32_t value);
  std::vector<int32_t> tags_of(const Node& node) const;  // all of tag_names: a node's region

 private:
  // Names given so far, each with the value that took it and the next suffix to try. Only a hint
  // that keeps add_value fast: `values` may be edited freely, and add_value looks at what it has
  // not seen yet.
  struct TakenName {
    int32_t value = -1;
    int32_t next_suffix = 1;
  };
  void index_names();
  friend Graph without_dead_nodes(Graph graph, bool keep_outputs);
  std::unordered_map<std::string, TakenName> names_;
  size_t indexed_ = 0;  // values[0, indexed_) are in names_
};

// Returns for each value the nodes that read it, in node order; a node that reads it twice is
// listed twice.
std::vector<std::vector<NodeId>> readers(const Graph& graph);

// Removes nodes that nothing needs (needed: loss, outputs if `keep_outputs`, updates) and unused
// values; renumbers.
Graph without_dead_nodes(Graph graph, bool keep_outputs);
// Puts nodes into a topological order that keeps the present order wherever it can. Fails on a
// cycle, naming a node of it.
Result<Graph> in_topological_order(Graph graph);
// Checks what every step that makes a Graph ensures: SSA, ids in range, order, unique names, sizes
// of constant data.
Status check_graph(const Graph& graph);

// Returns the canonical text form, of which parse_graph of the tests reads a graph that prints the
// same. Data of constants larger than 64 bytes is printed as its digest. Lines:
//   input %x:f32[8,16] batch_dim=0 layout=S0
//   constant %c:f32[] = [0.5]
//   state %m:f32[4,4] = fill 0
//   update %m %m.next %w
//   %y:f32[8,4] = MatMul(%x, %w) {trans_b=1} pass=F scope=h/0/mlp tags={stage=1} layout=S0
std::string print_graph(const Graph& graph);

}  // namespace piper
