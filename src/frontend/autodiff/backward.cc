// Appends the backward pass: adjoints of values, by the gradient rules of the op table.
#include "backward.h"

#include <algorithm>
#include <map>
#include <set>

#include "piper/base/float16.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

// Says by value where the parameters' influence reaches.
struct Influence {
  std::vector<bool> inputs;  // depends on inputs of the step, or on random numbers
  std::vector<bool> params;  // depends on a trained parameter, through floating-point values alone
};

Influence trace(const Graph& graph) {
  Influence of{std::vector<bool>(graph.values.size()), std::vector<bool>(graph.values.size())};
  for (size_t i = 0; i < graph.values.size(); ++i) {
    of.inputs[i] = graph.values[i].kind == ValueKind::kInput;
  }
  auto is_float = [&](ValueId id) { return info(graph.value(id).type.dtype).is_float; };
  for (const Param& param : graph.params) {
    of.params[param.value.index()] = !param.frozen && is_float(param.value);
  }
  for (const Node& node : graph.nodes) {
    const OpDef* def = find_op(node.op);
    bool inputs = def && def->draws >= 0;  // another value for each sample, like data
    bool params = false;
    for (ValueId id : node.inputs) {
      if (!id.valid()) continue;
      inputs = inputs || of.inputs[id.index()];
      params = params || of.params[id.index()];
    }
    params = params && node.op != "Detach";
    for (ValueId id : node.outputs) {
      of.inputs[id.index()] = inputs;
      of.params[id.index()] = params && is_float(id);
    }
  }
  return of;
}

// A Term is what the reader `node` adds to the adjoint of a value, through its input `input`.
struct Term {
  NodeId node;
  int input = 0;
  ValueId adjoint;
};
bool stands_before(const Term& a, const Term& b) {
  return std::pair(a.node, a.input) < std::pair(b.node, b.input);
}

// Makes 16-bit values of one use in f32: nodes of the use whose results nobody else reads are made
// again, of operands in f32; all other values are converted. Products of what is only moved keep
// their operands, and make sums in f32 of them.
class Widening {
 public:
  // Takes the nodes from `first` on for those of the use.
  Widening(Graph& graph, Builder& build, size_t first)
      : graph_(graph), build_(build), first_(first) {
    for (size_t n = first; n < graph.nodes.size(); ++n)
      for (const ValueId input : graph.nodes[n].inputs) ++reads_[input];
  }

  ValueId run(ValueId value) {
    while (true) {
      const ValueId wanted = open_.empty() ? value : next_operand();
      if (const auto made = in_f32(wanted)) {
        if (open_.empty()) return *made;
        open_.back().operands.push_back(*made);
      } else {
        open_.push_back({graph_.value(wanted).producer, {}});
      }
      if (!open_.empty()) finish_last();
    }
  }

 private:
  // Holds a node to make again, and its operands so far.
  struct Remade {
    NodeId node;
    std::vector<ValueId> operands;
  };

  ValueId next_operand() const {
    const Remade& last = open_.back();
    return graph_.node(last.node).inputs[last.operands.size()];
  }
  void finish_last() {
    const Node node = graph_.node(open_.back().node);  // a copy: the graph grows
    if (open_.back().operands.size() < node.inputs.size()) return;
    made_[open_.back().node] = build_.op(node.op, std::move(open_.back().operands), node.attrs);
    open_.pop_back();
  }
  // Returns the value in f32; nothing: its producer is to be made again first.
  std::optional<ValueId> in_f32(ValueId value) {
    if (!value.valid() || !is_half(build_.type(value).dtype)) return value;
    const NodeId maker = graph_.value(value).producer;
    if (!is_of_use(maker)) return build_.cast(value, DType::kF32);
    const Node node = graph_.node(maker);  // a copy: the graph grows
    const auto has_one_reader = [&](ValueId output) {
      const auto found = reads_.find(output);
      return found == reads_.end() || found->second <= 1;
    };
    if (node.op == "Cast" || !std::ranges::all_of(node.outputs, has_one_reader))
      return build_.cast(value, DType::kF32);
    if (!made_.contains(maker)) {
      const auto is_moved_input = [&](ValueId input) { return input.valid() && is_moved(input); };
      if (!gives_sums(node) || !std::ranges::all_of(node.inputs, is_moved_input)) return {};
      Attrs attrs = node.attrs;
      attrs.set("to", std::string(info(DType::kF32).name));
      made_[maker] = build_.op(node.op, node.inputs, std::move(attrs));
    }
    return made_[maker][static_cast<size_t>(graph_.value(value).output_index)];
  }
  // Returns whether a product of 16-bit operands can give its sums without rounding them.
  static bool gives_sums(const Node& node) {
    return node.op == "MatMul" || node.op == "GroupedMatMulGrad";
  }
  bool is_of_use(NodeId node) const { return node.valid() && node.index() >= first_; }
  // Returns whether the value has elements of one that the use did not make, and no others.
  bool is_moved(ValueId value) const {
    for (NodeId maker = graph_.value(value).producer; is_of_use(maker);
         maker = graph_.value(value).producer) {
      const Node& node = graph_.node(maker);
      if (find_op(node.op)->elements == OpDef::Elements::kMade) return false;
      value = node.inputs[0];
    }
    return true;
  }

  Graph& graph_;
  Builder& build_;
  const size_t first_;
  std::map<ValueId, int> reads_;                 // by nodes of the use
  std::map<NodeId, std::vector<ValueId>> made_;  // by node that was made again: its results
  std::vector<Remade> open_;                     // each makes an operand of the one before
};

class Sweep {
 public:
  explicit Sweep(Graph& graph)
      : graph_(graph),
        forward_(graph.nodes.size()),
        influence_(trace(graph)),
        build_(graph),
        terms_(graph.values.size()),
        param_at_(graph.values.size(), -1) {
    build_.name_prefix = "d_";
    build_.pass = Pass::kBW;
    contributions_.resize(graph.params.size());
    for (size_t i = 0; i < graph.params.size(); ++i) {
      if (influence_.params[graph.params[i].value.index()]) {
        param_at_[graph.params[i].value.index()] = static_cast<int>(i);
      }
    }
  }

  // Adds the gradients. `scale`: f32[], what the loss is multiplied with; or none.
  Status run(ValueId scale) {
    if (!influence_.params[graph_.loss.index()]) return ok_status();
    const ValueId one = build_.expand(seed(scale), Shape(build_.shape(graph_.loss)));
    if (influence_.inputs[graph_.loss.index()]) {
      terms_[graph_.loss.index()].push_back({NodeId(), 0, one});
    } else {
      pull_back(graph_.loss, {NodeId(forward_), 0, one}, forward_);
    }
    for (size_t n = forward_; n-- > 0;) visit(NodeId(n));
    if (!refused_.empty()) return refusal();
    classify();
    for (std::vector<ParamContribution>& uses : contributions_) {
      std::stable_sort(uses.begin(), uses.end(), [](const auto& a, const auto& b) {
        return std::pair(a.node, a.input) < std::pair(b.node, b.input);
      });
    }
    return ok_status();
  }

  std::vector<std::vector<ParamContribution>> contributions() && {
    return std::move(contributions_);
  }

 private:
  ValueId seed(ValueId scale) {
    const DType dtype = graph_.value(graph_.loss).type.dtype;
    if (!scale.valid()) return build_.scalar(1, dtype);
    if (const NodeId last = graph_.value(graph_.loss).producer; last.valid()) {
      build_.scope = graph_.node(last).scope;
      build_.tags = graph_.node(last).tags;
    }
    return dtype == DType::kF32 ? scale : build_.cast(scale, dtype);
  }

  // Returns the adjoint of a node's output: the sum of its terms in order of its readers.
  ValueId whole_adjoint(ValueId output) {
    std::vector<Term>& terms = terms_[output.index()];
    if (terms.empty()) return {};
    std::stable_sort(terms.begin(), terms.end(), stands_before);
    ValueId sum = terms[0].adjoint;
    const std::string scope = build_.scope;
    const std::vector<int32_t> tags = build_.tags;
    // Readers of one kind make it: beside the first one's term, which comes last. One value goes on
    // from there, over a border between stages too.
    if (tags_agree(terms)) {
      const Node& first = graph_.node(terms[0].node);
      build_.scope = first.scope;
      build_.tags = first.tags;
    }
    for (size_t i = 1; i < terms.size(); ++i) {
      sum = build_.add(sum, terms[i].adjoint);
      of_inputs_.insert(sum);
    }
    build_.scope = scope;
    build_.tags = tags;
    return sum;
  }

  bool tags_agree(const std::vector<Term>& terms) const {
    return std::all_of(terms.begin(), terms.end(), [&](const Term& term) {
      return term.node.valid() && graph_.node(term.node).tags == graph_.node(terms[0].node).tags;
    });
  }

  // Returns all of them at once, in the order of the forward.
  Error refusal() const {
    constexpr size_t kShown = 32;
    Error error = fail("{}", refused_.back());
    for (size_t i = refused_.size() - 1; i-- > 0 && error.notes.size() < kShown;)
      error.notes.push_back("also, " + refused_[i]);
    return error;
  }

  void visit(NodeId id) {
    const Node node = graph_.node(id);  // a copy: the graph grows
    if (node.outputs.empty() || !influence_.inputs[node.outputs[0].index()]) return;
    build_.scope = node.scope;
    build_.tags = node.tags;
    std::vector<ValueId> adjoints;
    for (ValueId output : node.outputs) adjoints.push_back(whole_adjoint(output));
    const size_t first = graph_.nodes.size();
    const Grads grads = gradient(node, adjoints);
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].valid()) continue;
      const ValueId input = node.inputs[i];
      const Term term{id, static_cast<int>(i), grads[i]};
      if (influence_.inputs[input.index()]) {
        terms_[input.index()].push_back(term);
        of_inputs_.insert(grads[i]);
      } else {
        pull_back(input, term, first);
      }
    }
  }

  // Returns the wanted adjoints of a node's inputs, or none when nobody wants one, or the op has
  // none.
  Grads gradient(const Node& node, const std::vector<ValueId>& adjoints) {
    const auto none = [](ValueId id) { return !id.valid(); };
    if (std::all_of(adjoints.begin(), adjoints.end(), none)) return Grads{};
    const auto wanted = std::make_unique<bool[]>(node.inputs.size());
    bool any = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      wanted[i] = node.inputs[i].valid() && influence_.params[node.inputs[i].index()];
      any = any || wanted[i];
    }
    if (!any) return Grads{};
    const OpDef* def = find_op(node.op);
    PIPER_CHECK(def != nullptr, "op '{}' is not in the table", node.op);
    Grads grads;
    if (def->gradient) {
      grads = def->gradient(
          build_,
          {node.inputs, node.outputs, adjoints, node.attrs, {wanted.get(), node.inputs.size()}});
    }
    if (grads.empty()) {
      refused_.push_back(fmt::format(
          "op {} has no gradient{}, but a trained parameter reaches the loss through node "
          "'{}' in scope '{}'",
          node.op, def->gradient ? " for this use" : "", quote_control(node.name),
          quote_control(node.scope)));
    }
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!wanted[i]) grads[i] = {};
    }
    return grads;
  }

  // Follows one use's adjoint of a value made of parameters only back to the parameters. Its nodes
  // stay with the use: they and those that make the adjoint, from `first` on.
  void pull_back(ValueId value, const Term& use, size_t first) {
    std::map<ValueId, ValueId> adjoint{{value, use.adjoint}};
    std::set<NodeId, std::greater<>> open;
    auto reach = [&](ValueId id) {
      if (const NodeId producer = graph_.value(id).producer; producer.valid()) {
        open.insert(producer);
      }
    };
    reach(value);
    while (!open.empty()) {
      const Node node = graph_.node(*open.begin());
      open.erase(open.begin());
      std::vector<ValueId> adjoints;
      for (ValueId output : node.outputs) {
        const auto known = adjoint.find(output);
        adjoints.push_back(known == adjoint.end() ? ValueId() : known->second);
      }
      const Grads grads = gradient(node, adjoints);
      for (size_t i = 0; i < grads.size(); ++i) {
        if (!grads[i].valid()) continue;
        const auto [at, fresh] = adjoint.try_emplace(node.inputs[i], grads[i]);
        if (!fresh) at->second = build_.add(at->second, grads[i]);
        reach(node.inputs[i]);
      }
    }
    for (const auto& [reached, sum] : adjoint) {
      const int param = param_at_[reached.index()];
      if (param >= 0) contributions_[param].push_back({use.node, use.input, unrounded(sum, first)});
    }
  }

  // Returns a contribution as it would be without its last rounding to 16 bits.
  ValueId unrounded(ValueId sum, size_t first) {
    const NodeId maker = graph_.value(sum).producer;
    const auto is_narrow = [&](ValueId value) { return is_half(build_.type(value).dtype); };
    const bool widens = maker.valid() && maker.index() >= first &&
                        graph_.node(maker).op == "Cast" &&
                        is_narrow(graph_.node(maker).inputs[0]) && !is_narrow(sum);
    if (!widens && !is_narrow(sum)) return sum;
    const ValueId wide =
        Widening(graph_, build_, first).run(widens ? ValueId(graph_.node(maker).inputs[0]) : sum);
    return build_.type(wide).dtype == build_.type(sum).dtype || is_narrow(sum) ? wide : sum;
  }

  // BI: an adjoint of a value that depends on inputs is reachable. All backward nodes were made as
  // BW.
  void classify() {
    for (size_t n = graph_.nodes.size(); n-- > forward_;) {
      Node& node = graph_.nodes[n];
      for (ValueId output : node.outputs) {
        if (of_inputs_.count(output)) node.pass = Pass::kBI;
      }
      if (node.pass != Pass::kBI) continue;
      for (ValueId input : node.inputs) {
        if (!input.valid()) continue;
        const NodeId producer = graph_.value(input).producer;
        if (producer.valid() && producer.index() >= forward_) {
          graph_.node(producer).pass = Pass::kBI;
        }
      }
    }
  }

  Graph& graph_;
  const size_t forward_;  // number of forward nodes
  const Influence influence_;
  Builder build_;
  std::vector<std::vector<Term>> terms_;  // by forward value that depends on inputs
  std::vector<int> param_at_;             // by forward value: the trained parameter it is, or -1
  std::set<ValueId> of_inputs_;  // adjoints of values that depend on inputs, and their terms
  std::vector<std::vector<ParamContribution>> contributions_;
  std::vector<std::string> refused_;  // ops without a gradient on the way, from the loss on
};

}  // namespace

Result<BackwardPass> append_backward(Graph forward, const std::optional<LossScale>& scale) {
  BackwardPass result;
  result.graph = std::move(forward);
  if (scale && scale->dynamic) {
    Value state;
    state.name = "loss_scale";
    state.type = {DType::kF32, {}};
    state.kind = ValueKind::kState;
    state.fill = scale->init;
    result.loss_scale = result.graph.add_value(std::move(state));
  } else if (scale) {
    result.loss_scale = Builder(result.graph).scalar(scale->init, DType::kF32);
  }
  Sweep sweep(result.graph);
  PIPER_TRY(sweep.run(result.loss_scale));
  result.contributions = std::move(sweep).contributions();
  return result;
}

}  // namespace piper
