// Import rules. A rule reads one ONNX op: from its node and the values of its inputs it makes the
// values of its outputs, by emitting ops of ops.h or by computing constants. Its entry is a line in
// a table of src/frontend/rules/*.cc; nothing else needs to know of it.
#pragma once

#include <map>

#include "piper/frontend/onnx.h"
#include "piper/ir/ops.h"

namespace piper::onnx_import {

// Says what a name of the ONNX graph stands for: a value of our graph, a constant, or a list of
// such.
//
// A value may be *broadcast*: what is held has the shape `stored`, with 1 where `shape` has more.
// Expand only changes `shape`, and pointwise ops work on what is stored, so a mask repeated over
// the batch stays one mask.
struct Val {
  enum class Kind { kAbsent, kGraph, kConstant, kSequence };
  Kind kind = Kind::kAbsent;
  DType dtype = DType::kF32;
  Shape shape, stored;
  ValueId id;              // kGraph: of shape `stored`
  Bytes data;              // kConstant: of shape `stored`
  std::vector<Val> items;  // kSequence
  Narrow narrow = {};      // i32: what the file has
  Bytes exact;             // kConstant: of f64, what was rounded to `data`; empty: that itself
  bool present() const { return kind != Kind::kAbsent; }
  bool is_constant() const { return kind == Kind::kConstant; }
  size_t rank() const { return shape.size(); }
  bool is_broadcast() const { return shape != stored; }
};
using Vals = std::vector<Val>;

Val constant_val(DType dtype, Shape shape, Bytes data);  // compressed where slices are equal
Val integers_val(const std::vector<int64_t>& values);    // i64, one dim
Val number_val(double value, DType dtype);               // a scalar
Val numbers_val(const std::vector<double>& values, const Shape& shape, DType dtype);
Val integer_val(int64_t value);                 // i64, a scalar
Val graph_val(const Graph& graph, ValueId id);  // held in full
// Returns the elements of a shape; none when there are more than any model has.
std::optional<int64_t> elements_of(const Shape& shape);

// Makes nodes, and folds those whose inputs are all constants.
class Emitter {
 public:
  // `stored` counts the bytes of the file's tensors, which bound what may be computed from them.
  // `sample_variance` says that running variances are those that PyTorch keeps.
  Emitter(Graph& graph, int64_t stored, uint64_t seed, bool sample_variance)
      : sample_variance(sample_variance),
        build_(graph),
        seed_(seed),
        largest_((int64_t{64} << 20) + 4 * stored),
        left_((int64_t{2} << 30) + 16 * stored) {}
  const bool sample_variance;  // over n - 1, where ONNX has n
  Builder& build() { return build_; }
  Graph& graph() { return build_.graph(); }

  // These return the value with the given dims (all: no longer broadcast) held in full.
  Result<Val> exact(const Val& val);
  Result<Val> exact_dims(const Val& val, std::span<const size_t> dims);
  // Returns the op that made a value; null where none did, as of constants, which have no id.
  const Node* maker(ValueId id);
  // Returns the value of what is stored. A constant becomes a value of the graph, equal ones once.
  ValueId id_of(const Val& val);

  // Requires room for a constant of that type. Fails if the file is too small to justify it: a
  // small file must not fill the memory.
  Status take_room(const TensorType& type);
  Result<Val> count_to(int64_t n);  // 0, 1, … n - 1

  // Holds what an op that draws random numbers reads (ops/random.cc): its key, of the seed and of
  // how many such ops came before it, and the step.
  struct Draw {
    Val key, step;
  };
  Draw draw(std::optional<uint64_t> own_seed);

  // Declares a state that the model updates itself, with the name that it will have.
  void keep(ValueId state, std::string name) { kept_.emplace(state, Kept{std::move(name), {}}); }
  // At the end of the step such a state becomes momentum · what it is + (1 - momentum) · `now`, of
  // its type, again where it has done so already. Other values stay as they are.
  Status follow(const Val& state, const Val& now, double momentum);

  // Adds a canonical op on values as they are stored. Outputs are not broadcast.
  Result<Vals> op(std::string_view name, const Vals& inputs, const Attrs& attrs);
  // Adds a pointwise op: broadcast inputs give a broadcast output.
  Result<Val> pointwise(std::string_view name, const Vals& inputs, const Attrs& attrs);

 private:
  struct Kept {
    std::string name;
    ValueId next;  // if any
  };
  Result<Vals> fold(std::string_view name, const Vals& inputs, const Attrs& attrs);
  Builder build_;
  const uint64_t seed_;
  uint64_t draws_ = 0;
  std::map<ValueId, Kept> kept_;
  int64_t largest_, left_;  // bytes of one constant, and of all that are still to be made
  std::vector<std::pair<std::string, ValueId>> constants_;  // by content, sorted
  // Of these the large ones, by where their elements are, which the graph keeps.
  std::map<std::tuple<const std::byte*, const std::byte*, DType, Shape>, ValueId> large_;
};

class RuleContext {
 public:
  RuleContext(const OnnxNode& n, Vals inputs, int64_t opset_version, std::string scope, Emitter& e)
      : node(n),
        opset(opset_version),
        emit(e),
        inputs_(std::move(inputs)),
        scope_(std::move(scope)),
        read_(n.attrs.size()) {}
  const OnnxNode& node;
  const int64_t opset;
  Emitter& emit;
  bool by_pytorch = false;  // the file's exporter is PyTorch's

  size_t num_inputs() const { return inputs_.size(); }
  const Val& in(size_t i) const;  // absent beyond the end
  bool has(size_t i) const { return in(i).present(); }
  // Fails unless there are `least` to `most` inputs, the first `least` present, all tensors.
  Status need(size_t least, size_t most = SIZE_MAX) const;

  bool has_attr(std::string_view name) const { return node.find(name) != nullptr; }
  int64_t integer(std::string_view name, int64_t otherwise) const {
    return read<int64_t>(name).value_or(otherwise);
  }
  double real(std::string_view name, double otherwise) const {
    return read<double>(name).value_or(otherwise);
  }
  std::string text(std::string_view name, std::string otherwise) const {
    return read<std::string>(name).value_or(std::move(otherwise));
  }
  // Returns the framework's call that the node comes from ("aten.clamp"), or "" where none is
  // noted. It says which slope a bound, a tie or a zero has, which the operator leaves open.
  std::string called() const;
  std::vector<int64_t> integers(std::string_view name) const {
    return list<int64_t>(name).value_or(std::vector<int64_t>());
  }
  std::vector<double> reals(std::string_view name) const {
    return list<double>(name).value_or(std::vector<double>());
  }
  template <class T>  // int64_t, double or std::string; none when absent or of another kind
  std::optional<std::vector<T>> list(std::string_view name) const {
    return read<std::vector<T>>(name);
  }
  template <class T>  // none when absent or of another kind
  std::optional<T> read(std::string_view name) const {
    const OnnxAttr* attr = node.find(name);
    if (!attr || !std::holds_alternative<T>(attr->value)) return std::nullopt;
    read_[static_cast<size_t>(attr - node.attrs.data())] = true;
    return std::get<T>(attr->value);
  }
  // Takes attributes as read, which change nothing in the use at hand.
  void pass_over(std::initializer_list<std::string_view> names) const;
  // Fails if the node has an attribute that the rule has not read as a value of its kind: what it
  // says would be lost.
  Status all_read() const;

  // Returns input i as constant integers, which an op needs at import time.
  Result<std::vector<int64_t>> constant_integers(size_t i, std::string_view role) const;
  // Returns an attribute in older opsets, an input in newer ones; none when absent in both.
  Result<std::optional<std::vector<int64_t>>> integers_or_input(std::string_view attr,
                                                                size_t input) const;
  Result<size_t> axis(int64_t value, size_t rank) const;  // normalised
  Result<std::vector<int64_t>> axes(std::vector<int64_t> values,
                                    size_t rank) const;  // normalised, sorted, unique

  // Fails if a shape of the file has a negative dim or overflows.
  Status check_shape(const Shape& shape) const;

  template <class... Args>
  Error error(fmt::format_string<Args...> text, Args&&... args) const {
    return located(fmt::format(text, std::forward<Args>(args)...));
  }
  Error located(std::string text) const;
  Error located_op(std::string_view op, const Error& error) const;

  // These add canonical ops on exact operands, except pointwise ones. `x` must be present.
  Result<Vals> ops(std::string_view name, const Vals& inputs, const Attrs& attrs = {});
  Result<Val> op(std::string_view name, const Vals& inputs, const Attrs& attrs = {});
  Result<Val> cast(const Val& x, DType dtype);  // x itself, where it has that type
  Result<Val> pointwise(std::string_view name, const Vals& inputs, const Attrs& attrs = {});
  Result<Val> add(const Val& a, const Val& b) { return pointwise("Add", {a, b}); }
  Result<Val> mul(const Val& a, const Val& b) { return pointwise("Mul", {a, b}); }
  Result<Val> exact(const Val& val);
  Result<Val> reshape(const Val& x, const Shape& shape);
  Result<Val> transpose(const Val& x, const std::vector<int64_t>& perm);
  Result<Val> slice(const Val& x, const std::vector<int64_t>& starts,
                    const std::vector<int64_t>& steps, const Shape& shape);
  // Returns [start, start + count) of one dim, which the rest keeps whole.
  Result<Val> part(const Val& x, size_t axis, int64_t start, int64_t count);
  Result<Val> reduce_sum(const Val& x, const std::vector<int64_t>& axes, bool keepdims);
  Result<Val> matmul(const Val& a, const Val& b);        // ranks >= 2
  Result<Val> root(const Val& x);                        // of numbers >= 0; its slope at 0 is 0
  Result<Val> power(const Val& x, double exponent);      // likewise
  Result<Val> expand(const Val& x, const Shape& shape);  // by numpy's rules
  Val number(double value, const Val& like) const { return number_val(value, like.dtype); }

 private:
  Vals inputs_;
  std::string scope_;
  mutable std::vector<bool> read_;  // by attribute of the node
};

using Rule = Result<Vals> (*)(RuleContext&);
struct ImportRule {
  std::string_view op;  // of ai.onnx, or "domain::op"
  int64_t since;        // opsets of ai.onnx that the rule reads, inclusive
  int64_t until;
  Rule rule;
  std::string_view note = {};  // what of the op is not read
};

class RuleTable {
 public:
  RuleTable();
  // Returns null where no rule reads the node's op in this opset.
  const ImportRule* find(const OnnxNode& node, int64_t opset) const;
  const std::vector<const ImportRule*>& rules() const { return rules_; }  // by name

 private:
  std::vector<const ImportRule*> rules_;
};

// Joins each bag of embeddings, which the exporter writes as a loop, into one node that a rule
// reads.
void join_bags(OnnxModel& model);

}  // namespace piper::onnx_import
