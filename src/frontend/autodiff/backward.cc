// Appends the backward pass: adjoints of values, by the gradient rules of the op table.
#include "backward.h"

#include <algorithm>
#include <map>
#include <set>

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

  bool narrow(ValueId value) const {
    const DType dtype = build_.type(value).dtype;
    return dtype == DType::kBF16 || dtype == DType::kF16;
  }

  // Returns a contribution as it would be without its last rounding to 16 bits.
  ValueId unrounded(ValueId sum, size_t first) {
    const NodeId maker = graph_.value(sum).producer;
    const bool widens = maker.valid() && maker.index() >= first &&
                        graph_.node(maker).op == "Cast" && narrow(graph_.node(maker).inputs[0]) &&
                        !narrow(sum);
    if (!widens && !narrow(sum)) return sum;
    std::map<ValueId, int> reads;  // by the nodes of this use
    for (size_t n = first; n < graph_.nodes.size(); ++n)
      for (ValueId input : graph_.nodes[n].inputs) ++reads[input];
    std::map<NodeId, std::vector<ValueId>> done;
    const ValueId wide =
        in_f32(widens ? ValueId(graph_.node(maker).inputs[0]) : sum, first, reads, done);
    return build_.type(wide).dtype == build_.type(sum).dtype || narrow(sum) ? wide : sum;
  }
  // Whether a value has elements of one that this use did not make, and makes none of its own.
  bool is_moved(ValueId value, size_t first) const {
    const NodeId maker = graph_.value(value).producer;
    if (!maker.valid() || maker.index() < first) return true;
    const Node& node = graph_.node(maker);
    return find_op(node.op)->elements != OpDef::Elements::kMade && is_moved(node.inputs[0], first);
  }

  // Returns a 16-bit value in f32: nodes of this use whose results nobody else reads are made
  // again, of operands in f32, but products of what is only moved, which keep their sums; all other
  // values are converted.
  ValueId in_f32(ValueId value, size_t first, const std::map<ValueId, int>& reads,
                 std::map<NodeId, std::vector<ValueId>>& done) {
    if (!narrow(value)) return value;
    const NodeId maker = graph_.value(value).producer;
    if (!maker.valid() || maker.index() < first) return build_.cast(value, DType::kF32);
    const Node node = graph_.node(maker);  // a copy: the graph grows
    const auto alone = [&](ValueId output) {
      const auto found = reads.find(output);
      return found == reads.end() || found->second <= 1;
    };
    if (node.op == "Cast" || !std::all_of(node.outputs.begin(), node.outputs.end(), alone))
      return build_.cast(value, DType::kF32);
    auto [known, is_new] = done.try_emplace(maker);
    const auto moved = [&](ValueId input) { return input.valid() && is_moved(input, first); };
    if (is_new && node.op == "MatMul" &&
        std::all_of(node.inputs.begin(), node.inputs.end(), moved)) {
      Attrs attrs = node.attrs;
      attrs.set("to", std::string(info(DType::kF32).name));
      known->second = build_.op(node.op, node.inputs, std::move(attrs));
    } else if (is_new) {
      std::vector<ValueId> inputs;
      for (ValueId input : node.inputs)
        inputs.push_back(input.valid() ? in_f32(input, first, reads, done) : input);
      known->second = build_.op(node.op, std::move(inputs), node.attrs);
    }
    return known->second[static_cast<size_t>(graph_.value(value).output_index)];
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
