#include <algorithm>
#include <map>

#include "optimizer.h"
#include "piper/autodiff.h"
#include "piper/ops.h"

namespace piper {
namespace {

// What each value of the forward graph is made of.
struct Sources {
  std::vector<bool> inputs;   // depends on data inputs
  std::vector<bool> trained;  // depends on a trained parameter
  std::vector<bool> to_loss;  // the loss depends on it
};

Sources find_sources(const Graph& graph) {
  Sources s{std::vector<bool>(graph.values.size()), std::vector<bool>(graph.values.size()),
            std::vector<bool>(graph.values.size())};
  for (size_t v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].kind == ValueKind::kInput) s.inputs[v] = true;
  for (const Param& param : graph.params)
    if (!param.frozen && info(graph.value(param.value).type.dtype).is_float) s.trained[param.value.index()] = true;
  for (const Node& node : graph.nodes)
    for (ValueId input : node.inputs) {
      if (!input.valid()) continue;
      for (ValueId output : node.outputs) {
        if (s.inputs[input.index()]) s.inputs[output.index()] = true;
        if (s.trained[input.index()]) s.trained[output.index()] = true;
      }
    }
  s.to_loss[graph.loss.index()] = true;
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    const bool leads = std::any_of(node.outputs.begin(), node.outputs.end(),
                                   [&](ValueId output) { return s.to_loss[output.index()]; });
    if (!leads) continue;
    for (ValueId input : node.inputs)
      if (input.valid()) s.to_loss[input.index()] = true;
  }
  return s;
}

// A term of a value's adjoint, from one reader.
struct Term {
  NodeId reader;
  size_t input = 0;
  ValueId grad;
};

// A parameter's gradient through one use.
struct Use {
  NodeId reader;
  size_t input = 0;
  ValueId grad;
};

class Differentiator {
 public:
  explicit Differentiator(Graph& graph)
      : graph_(graph), build_(graph), sources_(find_sources(graph)), terms_(graph.values.size()) {
    build_.pass = Pass::kBI;
    build_.name_prefix = "grad/";
    for (size_t p = 0; p < graph.params.size(); ++p) param_of_value_[graph.params[p].value.value] = p;
    uses_.resize(graph.params.size());
  }

  // Uses by parameter, each list in order of (reader, input).
  Result<std::vector<std::vector<Use>>> run() {
    const size_t forward_nodes = graph_.nodes.size();
    seed();
    for (size_t n = forward_nodes; n-- > 0;) PIPER_TRY(visit(NodeId(n)));
    classify(forward_nodes);
    for (auto& uses : uses_)
      std::sort(uses.begin(), uses.end(),
                [](const Use& a, const Use& b) { return std::pair(a.reader, a.input) < std::pair(b.reader, b.input); });
    return std::move(uses_);
  }

 private:
  void seed() {
    const TensorType type = graph_.value(graph_.loss).type;
    const NodeId producer = graph_.value(graph_.loss).producer;
    if (producer.valid()) follow(producer);
    const ValueId one = build_.expand(build_.scalar(1, type.dtype), type.shape);
    terms_[graph_.loss.index()].push_back({NodeId(graph_.nodes.size()), 0, one});
  }

  // New nodes belong to the region of this forward node.
  void follow(NodeId id) {
    build_.scope = graph_.node(id).scope;
    build_.tags = graph_.node(id).tags;
  }

  // The whole adjoint of a value: its terms in order of readers; invalid if there is none.
  ValueId adjoint(ValueId value) {
    auto& terms = terms_[value.index()];
    if (terms.empty()) return {};
    std::sort(terms.begin(), terms.end(),
              [](const Term& a, const Term& b) { return std::pair(a.reader, a.input) < std::pair(b.reader, b.input); });
    ValueId sum = terms[0].grad;
    for (size_t t = 1; t < terms.size(); ++t) sum = build_.add(sum, terms[t].grad);
    adjoints_.push_back(sum);
    return sum;
  }

  bool wants(ValueId input) const {
    return input.valid() && sources_.trained[input.index()] && info(graph_.value(input).type.dtype).is_float;
  }

  Result<Grads> gradient_of(NodeId id, const std::vector<ValueId>& output_grads) {
    const Node node = graph_.node(id);
    const OpDef* def = find_op(node.op);
    PIPER_CHECK(def, "op '{}' is not in the table", node.op);
    if (!def->gradient)
      return fail("not supported: the gradient of {} (node '{}', scope '{}')", node.op, node.name, node.scope);
    const auto wanted = std::make_unique<bool[]>(node.inputs.size());
    for (size_t i = 0; i < node.inputs.size(); ++i) wanted[i] = wants(node.inputs[i]);
    const GradientArgs args{node.inputs, node.outputs, output_grads, node.attrs,
                            std::span<const bool>(wanted.get(), node.inputs.size())};
    return def->gradient(build_, args);
  }

  Status visit(NodeId id) {
    const Node node = graph_.node(id);
    const bool from_inputs = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
      return sources_.inputs[output.index()];
    });
    const bool trained = std::any_of(node.outputs.begin(), node.outputs.end(),
                                     [&](ValueId output) { return sources_.trained[output.index()]; });
    if (!trained || !from_inputs) return ok_status();
    follow(id);
    std::vector<ValueId> output_grads;
    bool any = false;
    for (ValueId output : node.outputs) {
      output_grads.push_back(adjoint(output));
      any = any || output_grads.back().valid();
    }
    if (!any) return ok_status();
    PIPER_ASSIGN(const Grads grads, gradient_of(id, output_grads));
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!wants(node.inputs[i]) || i >= grads.size() || !grads[i].valid()) continue;
      if (sources_.inputs[node.inputs[i].index()]) {
        terms_[node.inputs[i].index()].push_back({id, i, grads[i]});
      } else {
        PIPER_TRY(add_use(id, i, node.inputs[i], grads[i]));
      }
    }
    return ok_status();
  }

  // Pulls one use's gradient back through what the value is made of, down to parameters.
  Status add_use(NodeId reader, size_t input, ValueId value, ValueId grad) {
    std::map<size_t, ValueId> by_param;
    PIPER_TRY(pull_back(value, grad, by_param));
    for (const auto& [param, g] : by_param) uses_[param].push_back({reader, input, g});
    return ok_status();
  }
  Status pull_back(ValueId value, ValueId grad, std::map<size_t, ValueId>& by_param) {
    const auto param = param_of_value_.find(value.value);
    if (param != param_of_value_.end()) {
      auto [it, is_new] = by_param.try_emplace(param->second, grad);
      if (!is_new) it->second = build_.add(it->second, grad);
      return ok_status();
    }
    const NodeId producer = graph_.value(value).producer;
    if (!producer.valid()) return ok_status();
    const Node node = graph_.node(producer);
    std::vector<ValueId> output_grads(node.outputs.size());
    output_grads[static_cast<size_t>(graph_.value(value).output_index)] = grad;
    PIPER_ASSIGN(const Grads grads, gradient_of(producer, output_grads));
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (wants(node.inputs[i]) && i < grads.size() && grads[i].valid())
        PIPER_TRY(pull_back(node.inputs[i], grads[i], by_param));
    return ok_status();
  }

  // BI: some adjoint of a value that depends on inputs is reachable from it. All else in the backward is BW.
  void classify(size_t first) {
    std::vector<bool> leads(graph_.nodes.size());
    std::vector<ValueId> open = adjoints_;
    while (!open.empty()) {
      const NodeId producer = graph_.value(open.back()).producer;
      open.pop_back();
      if (!producer.valid() || producer.index() < first || leads[producer.index()]) continue;
      leads[producer.index()] = true;
      for (ValueId input : graph_.node(producer).inputs)
        if (input.valid()) open.push_back(input);
    }
    for (size_t n = first; n < graph_.nodes.size(); ++n) graph_.nodes[n].pass = leads[n] ? Pass::kBI : Pass::kBW;
  }

  Graph& graph_;
  Builder build_;
  Sources sources_;
  std::vector<std::vector<Term>> terms_;  // by forward value
  std::vector<ValueId> adjoints_;         // of values that depend on inputs
  std::vector<std::vector<Use>> uses_;    // by parameter
  std::map<int32_t, size_t> param_of_value_;
};

ValueId add_step_sum(Graph& graph, std::string name, std::string scope, std::vector<ValueId> contributions) {
  const TensorType type = graph.value(contributions[0]).type;
  Node node;
  node.op = "StepSum";
  node.name = std::move(name);
  node.scope = std::move(scope);
  node.pass = Pass::kU;
  node.inputs = std::move(contributions);
  const NodeId id = graph.add_node(std::move(node), std::span(&type, 1));
  return graph.node(id).outputs[0];
}

}  // namespace

Result<Differentiated> differentiate(Graph forward, const TrainSpec& train) {
  Differentiated result;
  result.graph = std::move(forward);
  Graph& graph = result.graph;
  PIPER_CHECK(graph.loss.valid(), "differentiate needs a loss");
  PIPER_ASSIGN(const auto uses, Differentiator(graph).run());
  graph.loss = add_step_sum(graph, graph.value(graph.loss).name + ".step", "", {graph.loss});
  size_t trained = 0;
  for (size_t p = 0; p < graph.params.size(); ++p) {
    Param& param = graph.params[p];
    if (param.frozen) continue;
    if (uses[p].empty()) {
      result.without_gradient.push_back(param.name);
      continue;
    }
    std::vector<ValueId> contributions;
    for (const Use& use : uses[p]) contributions.push_back(use.grad);
    param.gradient = add_step_sum(graph, "grad/" + param.name, param.scope, std::move(contributions));
    ++trained;
  }
  if (trained == 0) return fail("no parameter that the loss depends on can be trained");
  PIPER_TRY(add_update(graph, train));
  graph.outputs.clear();
  graph = without_dead_nodes(std::move(graph), false);
  PIPER_TRY(check_graph(graph));
  return result;
}

}  // namespace piper
