// Queries all of whose keys a finite number hides, such as the lowest of f32 that is added to the
// scores of padding: softmax gives them equal weights, since nothing is left of a score beside such
// a number. The op keeps max + log(sum) of a row in one float, in which nothing of log(sum) is left
// beside it either, and kernels multiply scores by log₂e, which would make the lowest number
// infinite. So the terms that hide keys are raised to one number, and the op is told it: the
// gradient then counts the keys of such a query by the mask only.
//
// Beside smaller ones, as -10⁶, something is left of a score, but of log(sum) too little: the rows
// of such terms are shifted until their largest is 0, which changes no softmax.
#include <cmath>
#include <limits>
#include <map>

#include "attention.h"
#include "piper/ir/ops.h"

namespace piper::patterns {
namespace {

constexpr double kHidden = -0x1p100;  // nothing is left of a score beside it, in any float
constexpr size_t kMask = 3;

constexpr double kInexact = -0x1p10;  // from there on, log(sum) is not exact beside it

// Returns the limit of terms that hide: at most this much leaves nothing of common scores in a
// float of the type.
double limit_of(DType dtype) { return dtype == DType::kF64 ? -0x1p56 : -0x1p26; }

class HiddenRows {
 public:
  explicit HiddenRows(Graph& graph) : graph_(graph), match_(graph), build_(graph) {}

  void run() {
    mark_needed();
    if (std::find(needed_.begin(), needed_.end(), true) != needed_.end()) read_terms();
    for (size_t n = 0, count = graph_.nodes.size(); n < count; ++n) {
      if (is_masked(graph_.nodes[n]))
        raise(n);
      else if (is_needed(graph_.nodes[n]))
        copy_with_raised(n);
    }
  }

 private:
  // Returns whether the attention has a mask and has not been rewritten.
  static bool is_masked(const Node& node) {
    return node.op == "Attention" && node.inputs.size() > kMask && node.inputs[kMask].valid() &&
           !node.attrs.find("hidden_score");
  }
  const TensorType& type(ValueId id) const { return graph_.value(id).type; }
  bool is_needed(const Node& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return id.index() < needed_.size() && needed_[id.index()];
    });
  }

  // Marks the floats that masks are made of.
  void mark_needed() {
    needed_.resize(graph_.values.size());
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (is_masked(node)) need(node.inputs[kMask]);
      if (!is_needed(node)) continue;
      for (const ValueId id : node.inputs)
        if (id.valid()) need(id);
    }
  }
  void need(ValueId id) {
    if (info(type(id).dtype).is_float) needed_[id.index()] = true;
  }

  // Finds which of these may hold a term that hides, and which depend on parameters.
  void read_terms() {
    low_.resize(needed_.size());
    inexact_.resize(needed_.size());
    trained_.resize(needed_.size());
    for (size_t v = 0; v < needed_.size(); ++v) {
      const Value& value = graph_.values[v];
      trained_[v] = value.kind == ValueKind::kState;
      if (!needed_[v]) continue;
      const ValueId id(static_cast<int32_t>(v));
      const bool is_input = value.kind == ValueKind::kInput;
      const double limit = limit_of(value.type.dtype);
      low_[v] = is_input || has_element(id, [&](double x) { return x <= limit; });
      inexact_[v] =
          is_input || has_element(id, [&](double x) { return x > limit && x <= kInexact; });
    }
    for (const Node& node : graph_.nodes) {
      bool low = false, inexact = false, trained = false;
      for (const ValueId id : node.inputs) {
        if (!id.valid()) continue;
        low = low || low_[id.index()];
        inexact = inexact || inexact_[id.index()];
        trained = trained || trained_[id.index()];
      }
      for (const ValueId id : node.outputs) {
        low_[id.index()] = low && needed_[id.index()];
        inexact_[id.index()] = inexact && needed_[id.index()];
        trained_[id.index()] = trained;
      }
    }
  }
  template <class Is>
  bool has_element(ValueId id, Is is) const {
    if (graph_.value(id).kind != ValueKind::kConstant) return false;
    const auto hides = [&](double x) { return is(x) && !std::isinf(x); };
    if (const auto one = match_.number(id)) return hides(*one);
    const auto elements = match_.elements(id);
    return elements && std::any_of(elements->begin(), elements->end(), hides);
  }

  // Returns the ops through which a raised term stays one.
  bool hands_on(const Node& node) const {
    return node.op == "Add" || node.op == "Where" || node.op == "Concat" || node.op == "Slice" ||
           (node.op == "Cast" && info(type(node.inputs[0]).dtype).is_float) ||
           is_view(graph_, node);
  }

  // Returns what is read in place of a value: with its terms raised, where they are.
  ValueId raised(ValueId id, const Node& reader) {
    if (!id.valid() || id.index() >= low_.size() || !low_[id.index()]) return id;
    if (trained_[id.index()]) {
      const auto made = copies_.find(id);
      return made == copies_.end() ? id : made->second;
    }
    const DType dtype = type(id).dtype;
    if (match_.scalar(id)) return build_.scalar(kHidden, dtype);
    const Node* producer = match_.producer(id);
    place_at(producer ? *producer : reader);
    const auto [known, is_new] = raised_.try_emplace({id, build_.scope});
    if (is_new) {
      const double infinity = std::numeric_limits<double>::infinity();
      const ValueId hides = build_.op1("LessOrEqual", {id, build_.scalar(limit_of(dtype), dtype)});
      const ValueId is_finite = build_.op1("Greater", {id, build_.scalar(-infinity, dtype)});
      known->second = build_.op1(
          "Where", {build_.op1("And", {hides, is_finite}), build_.scalar(kHidden, dtype), id});
    }
    return known->second;
  }
  void place_at(const Node& node) {
    build_.scope = node.scope;
    build_.tags = node.tags;
    build_.pass = node.pass;
    build_.name_prefix = node.name + "/";
  }

  // A mask that depends on parameters keeps its gradient: the terms below it are raised.
  void copy_with_raised(size_t index) {
    const Node node = graph_.nodes[index];
    const ValueId made = node.outputs[0];
    if (!low_[made.index()] || !trained_[made.index()] || !hands_on(node)) return;
    std::vector<ValueId> inputs;
    for (const ValueId id : node.inputs) inputs.push_back(raised(id, node));
    if (inputs == node.inputs) return;
    place_at(node);
    copies_.emplace(made, build_.op1(node.op, inputs, node.attrs));
  }

  void raise(size_t index) {
    const Node node = graph_.nodes[index];
    const ValueId mask = node.inputs[kMask];
    if (type(mask).dtype == DType::kBool) {
      const double score =
          node.attrs.real("masked_score", -std::numeric_limits<double>::infinity());
      if (std::isinf(score) || score > kVeryLow) return;  // it replaces scores: any is as good
      graph_.nodes[index].attrs.set("masked_score", kHidden);
    } else {
      const ValueId terms = raised(mask, node), made = shifted(terms, mask, node);
      graph_.nodes[index].inputs[kMask] = made;
      if (terms == mask) return;
    }
    graph_.nodes[index].attrs.set("hidden_score", kHidden);
  }

  // Returns the terms with those rows shifted whose largest one is inexact. Where queries see keys
  // up to their own only, terms that are the same for all of them stay: shifted they are not.
  ValueId shifted(ValueId terms, ValueId mask, const Node& node) {
    const bool causal = node.attrs.integer("causal") != 0;
    const TensorType mask_type = type(mask);
    if (!inexact_[mask.index()] || (causal && mask_type.shape[2] == 1)) return terms;
    const Node* producer = match_.producer(mask);
    place_at(producer ? *producer : node);
    const int64_t offset = causal ? node.attrs.integer("offset") : 0;
    const auto [known, is_new] = shifted_.try_emplace({mask, build_.scope, causal, offset});
    if (!is_new) return known->second;
    const auto number = [&](double x) { return build_.scalar(x, mask_type.dtype); };
    ValueId seen = build_.op1("Detach", {terms});
    if (causal) {
      const ValueId is_seen = build_.op1("Trilu", {build_.expand(number(1), last_two(mask_type))},
                                         {{"upper", int64_t{0}}, {"k", offset}});
      seen = build_.op1("Where",
                        {build_.op1("Greater", {is_seen, number(0)}), seen, number(-INFINITY)});
    }
    const ValueId top = build_.op1("ReduceMax", {seen},
                                   {{"axes", std::vector<int64_t>{3}}, {"keepdims", int64_t{1}}});
    const auto between = [&](double low, double high) {
      return build_.op1("And", {build_.op1("Greater", {top, number(low)}),
                                build_.op1("LessOrEqual", {top, number(high)})});
    };
    const ValueId by =
        build_.op1("Where", {between(limit_of(mask_type.dtype), kInexact), top, number(0)});
    return known->second = build_.sub(terms, by);
  }
  static Shape last_two(const TensorType& mask) { return {mask.shape[2], mask.shape[3]}; }

  Graph& graph_;
  const Matcher match_;
  Builder build_;
  std::vector<bool> needed_, low_, inexact_, trained_;  // by value
  std::map<ValueId, ValueId> copies_;
  std::map<std::pair<ValueId, std::string>, ValueId> raised_;
  std::map<std::tuple<ValueId, std::string, bool, int64_t>, ValueId> shifted_;
};

}  // namespace

void raise_hiding_terms(Graph& graph) { HiddenRows(graph).run(); }

}  // namespace piper::patterns
