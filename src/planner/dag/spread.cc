// Where an optimizer's states live in parts: spreads what it computes of whole matrices over the
// ranks that have these parts, of equal matrices one to each.
#include <algorithm>
#include <map>

#include "piper/ir/ops.h"
#include "update.h"

namespace piper {
namespace {

// Describes the computation of a direction, between the exchange that gathers what it is made of
// and the one that takes the own run of it.
struct WholeWork {
  size_t from = 0, to = 0;  // of Dag::exchanges
  std::vector<NodeId> nodes;
  std::string text;  // equal for equal computations
};

class Spread {
 public:
  explicit Spread(Dag& dag)
      : dag_(dag), graph_(dag.graph), index_(dag), regions_(dag), is_taken_(dag.exchanges.size()) {
    for (size_t e = 0; e < dag.exchanges.size(); ++e)
      if (!gathers(dag.exchanges[e])) runs_of_[dag.exchanges[e].param].push_back(e);
    for (const StateUpdate& update : graph_.updates) is_next_.insert(update.next);
  }

  void run() {
    // Equal computations over the same axes, of parameters of the same cells and region.
    using Key = std::tuple<std::string, std::vector<int32_t>, int32_t, std::set<int32_t>,
                           std::optional<size_t>>;
    std::map<Key, size_t> known;
    std::vector<std::vector<WholeWork>> groups;
    for (size_t e = 0; e < dag_.exchanges.size(); ++e) {
      const Part& from = dag_.exchanges[e];
      auto work = work_of(e);
      const ValueId param = work ? param_of(dag_.exchanges[work->to].value) : ValueId();
      if (!param.valid() || is_cut(param)) continue;
      const Key key(work->text, from.over, from.stream, index_.held[param.index()],
                    regions_.of_param(param));
      const auto [group, is_new] = known.try_emplace(key, groups.size());
      if (is_new) groups.emplace_back();
      std::vector<WholeWork>& works = groups[group->second];
      works.push_back(*std::move(work));
      if (std::ssize(works) < ranks_of(from)) continue;
      known.erase(group);
    }
    for (const std::vector<WholeWork>& group : groups)
      if (group.size() > 1) spread(group);  // one alone is computed by all
    std::vector<Part> left;
    for (size_t e = 0; e < dag_.exchanges.size(); ++e)
      if (e >= is_taken_.size() || !is_taken_[e]) left.push_back(std::move(dag_.exchanges[e]));
    dag_.exchanges = std::move(left);
  }

 private:
  int64_t ranks_of(const Part& exchange) const {
    int64_t ranks = 1;
    for (const int32_t axis : exchange.over) ranks *= dag_.mesh[static_cast<size_t>(axis)].size;
    return ranks;
  }

  // Returns whether `shard` cuts the parameter, as a stack of matrices: ranks of that axis have
  // others.
  bool is_cut(ValueId param) const {
    for (const Copy& copy : dag_.copies)
      if (copy.copy == param) return is_cut(copy.master);
    return std::ranges::any_of(graph_.value(param).over, [](const AxisLayout& lies) {
      return lies.layout.kind == LayoutKind::kSharded;
    });
  }

  std::set<NodeId> reached_from(ValueId value) const {
    std::set<NodeId> all;
    std::vector<ValueId> open{value};
    while (!open.empty()) {
      const ValueId read = open.back();
      open.pop_back();
      for (const NodeId reader : index_.readers[read.index()])
        if (all.insert(reader).second)
          for (const ValueId made : graph_.node(reader).outputs) open.push_back(made);
    }
    return all;
  }

  // Returns the nodes that read the value, or what such make, each after those that it reads.
  std::vector<NodeId> read_by(ValueId value) const {
    std::set<NodeId> all = reached_from(value);
    std::vector<NodeId> order;
    const auto visit = [&](NodeId id, const auto& self) -> void {
      if (all.erase(id) == 0) return;
      for (const ValueId input : graph_.node(id).inputs)
        if (input.valid() && graph_.value(input).producer.valid())
          self(graph_.value(input).producer, self);
      order.push_back(id);
    };
    while (!all.empty()) visit(*all.begin(), visit);
    return order;
  }

  // Returns the computation that reads what an exchange gathers; nothing: ranks cannot share it, as
  // it reads other values, communicates, makes states, or is hardly more than the padding of its
  // runs.
  std::optional<WholeWork> work_of(size_t from) const {
    const Part& gather = dag_.exchanges[from];
    if (!gathers(gather) ||
        2 * num_elements(gather.whole.shape) <=
            ranks_of(gather) * num_elements(graph_.value(gather.value).type.shape))
      return std::nullopt;
    WholeWork work{.from = from, .nodes = read_by(gather.param)};
    std::map<ValueId, size_t> numbers{{gather.param, 0}};
    for (const NodeId id : work.nodes) {
      const Node& node = graph_.node(id);
      const OpDef& def = *find_op(node.op);
      if (def.collective || def.draws >= 0 || node.outputs.size() != 1) return std::nullopt;
      work.text += node.op + print_attrs(node.attrs);
      for (const ValueId input : node.inputs) {
        const bool is_made = input.valid() && numbers.contains(input);
        if (input.valid() && !is_made && graph_.value(input).kind != ValueKind::kConstant)
          return std::nullopt;
        work.text += !input.valid() ? " -"
                     : is_made      ? fmt::format(" {}", numbers.at(input))
                                    : fmt::format(" '{}'", graph_.value(input).name);
      }
      const ValueId made = node.outputs[0];
      work.text += fmt::format(": {}\n", to_string(graph_.value(made).type));
      if (is_next_.contains(made)) return std::nullopt;
      numbers.emplace(made, numbers.size());
    }
    std::optional<size_t> to;
    for (const auto& [value, number] : numbers)
      if (const auto runs = runs_of_.find(value); runs != runs_of_.end()) {
        if (to || runs->second.size() != 1 || value == gather.param) return std::nullopt;
        to = runs->second.front();
      }
    if (!to || dag_.exchanges[*to].over != gather.over || dag_.exchanges[*to].whole != gather.whole)
      return std::nullopt;
    work.text = to_string(gather.whole) + "\n" + work.text;
    work.to = *to;
    return work;
  }

  // Returns the parameter that is updated by the run of a direction, or by a run of that.
  ValueId param_of(ValueId run) const {
    for (auto runs = runs_of_.find(run); runs != runs_of_.end(); runs = runs_of_.find(run))
      run = dag_.exchanges[runs->second.front()].value;
    for (const NodeId reader : index_.readers[run.index()])
      for (size_t u = 0; u < graph_.updates.size(); ++u)
        if (graph_.value(graph_.updates[u].next).producer == reader && index_.params[u].size() == 1)
          return index_.params[u][0];
    return {};
  }

  // The first of the computations then is the rank's own; the others are dropped. Where there are
  // fewer than ranks, further ranks compute the last one.
  void spread(const std::vector<WholeWork>& works) {
    const Part gather = dag_.exchanges[works[0].from], own = dag_.exchanges[works[0].to];
    const int64_t ranks = ranks_of(gather), elements = num_elements(gather.whole.shape),
                  run = num_elements(graph_.value(gather.value).type.shape),
                  padding = ranks * run - elements;
    Builder build(graph_);
    build.pass = Pass::kU;
    build.name_prefix = graph_.value(gather.param).name + ".spread/";
    std::vector<ValueId> runs;
    for (const WholeWork& work : works)
      runs.push_back(build.reshape(dag_.exchanges[work.from].value, {1, run}));
    runs.resize(static_cast<size_t>(ranks), runs.back());
    const ValueId stack = build.op1("Concat", runs, {{"axis", int64_t{0}}});
    const DType dtype = gather.whole.dtype;
    const auto add = [&](const char* name, Shape shape) {
      return graph_.add_value(
          {.name = build.name_prefix + name, .type = {dtype, std::move(shape)}});
    };
    const auto exchange = [&](Part how, ValueId of_all, ValueId of_own) {
      how.value = of_all, how.param = of_own, how.stream = gather.stream, how.spreads = true;
      how.whole = graph_.value(of_own).type;
      dag_.exchanges.push_back(std::move(how));
    };
    const ValueId taken = add("own", {1, ranks * run});
    exchange(gather, stack, taken);
    const auto slice = [&](ValueId of, int64_t row, int64_t columns) {
      return build.op1("Slice", {of},
                       {{"starts", std::vector<int64_t>{row, 0}},
                        {"ends", std::vector<int64_t>{row + 1, columns}},
                        {"steps", std::vector<int64_t>{1, 1}}});
    };
    const ValueId matrix =
        build.reshape(padding > 0 ? slice(taken, 0, elements) : taken, gather.whole.shape);
    for (const NodeId id : works[0].nodes)
      std::ranges::replace(graph_.node(id).inputs, gather.param, matrix);
    const ValueId back = add("directions", {ranks, run});
    ValueId direction = build.reshape(own.param, {1, elements});
    if (padding > 0)
      direction = build.op1("Pad", {direction},
                            {{"before", std::vector<int64_t>{0, 0}},
                             {"after", std::vector<int64_t>{0, padding}},
                             {"value", 0.0}});
    exchange(own, back, direction);
    for (size_t i = 0; i < works.size(); ++i) {
      const ValueId part = slice(back, static_cast<int64_t>(i), run);
      replace(dag_.exchanges[works[i].to].value, build.reshape(part, {run}));
      is_taken_[works[i].from] = is_taken_[works[i].to] = true;
    }
  }

  // Lets all that reads a run of a direction read another value.
  void replace(ValueId run, ValueId by) {
    for (const NodeId reader : index_.readers[run.index()])
      std::ranges::replace(graph_.node(reader).inputs, run, by);
    for (Part& exchange : dag_.exchanges)
      if (!gathers(exchange) && exchange.param == run) exchange.param = by;
  }

  Dag& dag_;
  Graph& graph_;
  const UpdateIndex index_;
  const UpdateRegions regions_;
  std::vector<bool> is_taken_;                      // by exchange
  std::map<ValueId, std::vector<size_t>> runs_of_;  // by value: exchanges that take a run of it
  std::set<ValueId> is_next_;
};

}  // namespace

void spread_directions(Dag& dag) {
  if (!dag.exchanges.empty()) Spread(dag).run();
}

}  // namespace piper
