// `send`: what the ops of one stage make for those of another one travels in fewer bits. The op
// that makes it puts it into them, and the first reader of each stage takes it out, so that every
// plan of the strategy rounds at the same places.
#include <algorithm>
#include <map>

#include "match.h"
#include "piper/base/counted.h"
#include "piper/ir/blocks.h"

namespace piper {
namespace {

constexpr int64_t kSamplesFirst = 1;  // dims that no block spans

// Returns by value whether it depends on data and on parameters that are trained: such are what
// stages hand on, and their gradients. Masks and positions are not.
std::vector<bool> trained_values(const Graph& graph) {
  std::vector<bool> of_data(graph.values.size()), of_params(graph.values.size());
  for (const ValueId input : graph.inputs) of_data[input.index()] = true;
  for (const Param& param : graph.params)
    if (param.gradient.valid() || !param.frozen) of_params[param.value.index()] = true;
  for (const Node& node : graph.nodes)
    for (auto* of : {&of_data, &of_params}) {
      const bool any = std::ranges::any_of(
          node.inputs, [&](ValueId input) { return input.valid() && (*of)[input.index()]; });
      for (const ValueId output : node.outputs)
        if (any) (*of)[output.index()] = true;
    }
  for (size_t v = 0; v < of_data.size(); ++v) of_data[v] = of_data[v] && of_params[v];
  return of_data;
}

class SentValues {
 public:
  SentValues(Graph& graph, const Variables& variables)
      : graph_(graph),
        variables_(variables),
        readers_(readers(graph)),
        is_trained_(trained_values(graph)) {}

  // Rounds what the entry names and no entry before it has.
  Result<Explanation> run(const SendRule& entry) {
    if (entry.dtype == DType::kF32) return Explanation{entry.at, "send", {"nothing: f32"}};
    counts_ = {};
    const int tag = graph_.tag_index(entry.across);
    if (tag < 0)
      return fail(entry.across_at, "send: no tag is called '{}'{}", quote_control(entry.across),
                  did_you_mean(entry.across, graph_.tag_names))
          .with_note("help: name a tag of 'annotate' whose values are the stages: 'across: stage'");
    const SentAs how{entry.dtype, entry.in};
    for (size_t v = 0; v < is_trained_.size(); ++v) {
      if (!can_round(graph_.values[v])) continue;
      const std::vector<NodeId> across = readers_across(v, tag);
      if (across.empty()) continue;
      PIPER_ASSIGN(const bool named, is_named(entry, v));
      if (!named || graph_.values[v].type.dtype == entry.dtype) continue;
      const auto [by, is_new] = done_.try_emplace(v, &entry);
      if (!is_new && is_of_rest(entry) == is_of_rest(*by->second)) return twice(entry, v);
      if (!is_new) continue;
      round(ValueId(v), across, tag, how);
    }
    return report(entry, how);
  }
  void put_in_order() {
    if (done_.empty()) return;
    Result<Graph> ordered = in_topological_order(std::move(graph_));
    PIPER_CHECK(ordered, "rounding made a cycle");
    graph_ = *std::move(ordered);
  }

 private:
  struct Counts {
    int64_t activations = 0, gradients = 0, across = 0;
    SentBytes bytes;
  };

  bool can_round(const Value& value) const {
    const size_t v = static_cast<size_t>(&value - graph_.values.data());
    return value.kind == ValueKind::kNode && is_trained_[v] && info(value.type.dtype).is_float &&
           value.type.shape.size() > static_cast<size_t>(kSamplesFirst) &&
           num_elements(value.type.shape) > 0 && graph_.node(value.producer).pass != Pass::kU;
  }
  // Returns the readers whose tag is another one than that of the op that makes the value.
  std::vector<NodeId> readers_across(size_t v, int tag) const {
    const int32_t own = graph_.tag(graph_.node(graph_.values[v].producer), tag);
    std::vector<NodeId> across;
    for (const NodeId id : readers_[v]) {
      const Node& reader = graph_.node(id);
      const int32_t other = graph_.tag(reader, tag);
      if (reader.pass != Pass::kU && own != kNoTag && other != kNoTag && own != other)
        across.push_back(id);
    }
    return across;
  }
  Result<bool> is_named(const SendRule& entry, size_t v) {
    ++counts_.across;
    const Node& made_by = graph_.node(graph_.values[v].producer);
    if (entry.match && !entry.match->match(made_by.scope)) return false;
    if (!(is_backward(made_by) ? entry.gradients : entry.activations)) return false;
    PIPER_ASSIGN(const auto bound, match_node(graph_, made_by, entry.where, variables_));
    return bound.has_value();
  }

  Error twice(const SendRule& entry, size_t v) const {
    return fail(entry.at, "send: two lines name '{}'", quote_control(graph_.values[v].name))
        .with_note(fmt::format("first at {}", place_of(done_.at(v)->at)));
  }

  Builder builder_like(NodeId id, const std::string& prefix) {
    const Node& node = graph_.node(id);
    Builder build(graph_);
    build.scope = node.scope, build.tags = node.tags, build.pass = node.pass;
    build.name_prefix = prefix;
    return build;
  }
  // Returns the reader of a stage beside which the numbers are taken out: the first one of the
  // earliest pass.
  NodeId first_of(const std::vector<NodeId>& ids) const {
    return *std::ranges::min_element(ids, {}, [&](NodeId id) { return graph_.node(id).pass; });
  }
  void round(ValueId value, const std::vector<NodeId>& across, int tag, const SentAs& how) {
    const TensorType type = graph_.value(value).type;
    const std::string name = graph_.value(value).name + ".";
    const NodeId producer = graph_.value(value).producer;
    Builder put = builder_like(producer, name + "sent/");
    const ValueId sent = put_as(put, value, how, kSamplesFirst);
    std::map<int32_t, std::vector<NodeId>> stages;
    for (const NodeId id : across) stages[graph_.tag(graph_.node(id), tag)].push_back(id);
    for (const auto& [stage, ids] : stages) {
      Builder take = builder_like(first_of(ids), fmt::format("{}at_{}/", name, stage));
      const ValueId taken = take_as(take, sent, type, how, kSamplesFirst);
      for (const NodeId id : ids) std::ranges::replace(graph_.node(id).inputs, value, taken);
    }
    (is_backward(graph_.node(producer)) ? counts_.gradients : counts_.activations) += 1;
    counts_.bytes.add(type, how, kSamplesFirst);
  }

  Result<Explanation> report(const SendRule& entry, const SentAs& how) const {
    const int64_t count = counts_.activations + counts_.gradients;
    if (count == 0 && counts_.across == 0)
      return Explanation{entry.at, "send", {"nothing: no value goes from one to another"}};
    if (count == 0)
      return fail(entry.at, "send: none of {} values across '{}' is rounded", counts_.across,
                  quote_control(entry.across))
          .with_note("another entry has them, 'match', 'where' or 'what' leaves them out, or they "
                     "are of that type already");
    return Explanation{
        entry.at,
        "send",
        {fmt::format("note: {} and {} across '{}' {}", counted(counts_.activations, "activation"),
                     counted(counts_.gradients, "gradient"), entry.across,
                     counts_.bytes.explain(how, "for all samples"))}};
  }

  Graph& graph_;
  const Variables& variables_;
  const std::vector<std::vector<NodeId>> readers_;
  const std::vector<bool> is_trained_;
  std::map<size_t, const SendRule*> done_;  // values that are rounded, and by which entry
  Counts counts_;                           // of the entry at hand
};

}  // namespace

Result<Graph> round_sent(Graph step, const Strategy& strategy, const Variables& variables,
                         Explanations* out) {
  if (strategy.sends.empty()) return step;
  SentValues sent(step, variables);
  for (const bool rest : {false, true})
    for (const SendRule& entry : strategy.sends) {
      if (is_of_rest(entry) != rest) continue;
      Result<Explanation> report = sent.run(entry);
      if (!out) continue;
      if (!report) return std::move(report).error();
      out->push_back(*std::move(report));
    }
  sent.put_in_order();
  return step;
}

}  // namespace piper
