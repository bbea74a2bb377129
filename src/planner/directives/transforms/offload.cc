// The directive `offload`: values that are on the host between forward and backward.
#include <algorithm>
#include <map>
#include <set>

#include "match.h"
#include "transforms.h"

namespace piper {
namespace {

using What = OffloadRule::What;

// Lists by item the tasks of its cell that use it.
struct Uses {
  TaskId writer, forward;  // the first computation of the forward that makes or reads it
  bool backward = false;
};

std::vector<Uses> find_uses(const Dag& dag) {
  std::vector<Uses> uses(dag.items.size());
  for (size_t t = 0; t < dag.tasks.size(); ++t) {
    const Task& task = dag.tasks[t];
    for (ItemId item : task.writes) uses[item.index()].writer = TaskId(t);
    if (!task.chunk.valid()) continue;
    const bool backward = is_backward(task.pass);
    for (const SmallVector<ItemId>* items : {&task.writes, &task.reads})
      for (ItemId item : *items) {
        Uses& use = uses[item.index()];
        use.backward = use.backward || backward;
        if (task.pass == TaskPass::kF && !use.forward.valid()) use.forward = TaskId(t);
      }
  }
  return uses;
}

class Chooser {
 public:
  Chooser(Dag& dag, const Strategy& strategy, const Variables& variables)
      : dag_(dag),
        variables_(variables),
        matcher_(dag, strategy),
        uses_(find_uses(dag)),
        claimed_by_(dag.items.size()) {
    for (const Item& item : dag.items)
      if (item.alias.valid()) shared_.insert(item.alias.value);
  }

  Result<Offload> choose(const OffloadRule& rule) {
    Offload offload{.optimizer = rule.what == What::kOptimizer,
                    .parameters = rule.what == What::kParameters,
                    .distance = rule.distance,
                    .in_flight = rule.in_flight,
                    .out_stream = stream_of(dag_, "offload"),
                    .in_stream = stream_of(dag_, "load")};
    if (rule.what != What::kActivations) {
      PIPER_ASSIGN(offload.names, names_of(rule));
      return offload;
    }
    for (size_t i = 0; i < dag_.items.size(); ++i) {
      PIPER_ASSIGN(const bool met, matches(ItemId(i), rule));
      if (!met || (claimed_by_[i] && is_of_rest(rule) && !is_of_rest(*claimed_by_[i]))) continue;
      if (claimed_by_[i])
        return fail(rule.at, "offload: {} is claimed already", print_item(dag_, ItemId(i)))
            .with_note("from " + place_of(claimed_by_[i]->at));
      claimed_by_[i] = &rule;
      offload.items.push_back(ItemId(i));
    }
    if (!offload.items.empty()) return offload;
    const auto& nodes = dag_.graph.nodes;
    if (rule.match && std::none_of(nodes.begin(), nodes.end(), [&](const Node& node) {
          return rule.match->match(node.scope).has_value();
        }))
      return no_ops(dag_.graph, "offload: matches no op", rule.at, rule.match, {});
    PIPER_ASSIGN(const std::vector<TaskId> named, matcher_.find(rule.where, variables_));
    const bool any = std::ranges::any_of(
        named, [&](TaskId task) { return dag_.tasks[task.index()].pass == TaskPass::kF; });
    if (any && !rule.match && rule.min_bytes == 0)
      return fail(rule.where.empty() ? rule.at : rule.where.front().at,
                  "offload: nothing that these forwards make or read is kept for the backward")
          .with_note("what 'recompute' makes again is not kept");
    return matcher_.nothing(rule.where, rule.at, "offload");
  }

 private:
  // Returns the states, or the parameters, that an entry names.
  Result<std::vector<std::string>> names_of(const OffloadRule& rule) {
    const bool optimizer = rule.what == What::kOptimizer;
    const auto claim = [&](const std::string& name) -> Status {
      const auto [known, is_new] = claimed_.try_emplace({rule.what, name}, &rule);
      if (is_new) return ok_status();
      return fail(rule.at, "offload: {} are claimed already",
                  !name.empty() ? "those of '" + quote_control(name) + "'"
                  : optimizer   ? "the optimizer's states"
                                : "parameters")
          .with_note("from " + place_of(known->second->at));
    };
    std::vector<std::string> names;
    if (is_of_rest(rule) && rule.min_bytes == 0) {
      PIPER_TRY(claim(""));
      return names;
    }
    const Graph& graph = dag_.graph;
    const auto all = readers(graph);
    std::map<ValueId, ValueId> copy_of;  // what microbatches read, by master
    for (const Copy& copy : dag_.copies) copy_of.emplace(copy.master, copy.copy);
    for (const Param& param : graph.params) {
      if (rule.match && !has_name(param, *rule.match)) continue;
      const auto copy = copy_of.find(param.value);
      const ValueId read = copy == copy_of.end() ? param.value : copy->second;
      PIPER_ASSIGN(const bool met, is_read_where(graph, all[read.index()], rule.where, variables_));
      if (!met || graph.value(param.value).type.bytes() < rule.min_bytes) continue;
      if (is_of_rest(rule) && claimed_.contains({rule.what, param.name})) continue;
      PIPER_TRY(claim(param.name));
      names.push_back(param.name);
    }
    if (names.empty())
      return fail(rule.at, "offload: no parameter is what 'match', 'where' and 'min' say")
          .with_note("help: `piperc MODEL --describe` lists parameters");
    std::ranges::sort(names);
    return names;
  }
  // Returns whether a value of a microbatch is kept from its forward to its backward, and chosen.
  Result<bool> matches(ItemId id, const OffloadRule& rule) const {
    const Item& item = dag_.items[id.index()];
    const Uses& uses = uses_[id.index()];
    if (item.micro < 0 || item.alias.valid() || shared_.contains(id.value)) return false;
    if (!uses.backward || !uses.forward.valid() || !uses.writer.valid()) return false;
    const Task& writer = dag_.tasks[uses.writer.index()];
    const bool made = writer.pass == TaskPass::kF || writer.kind == InstructionKind::kRecv;
    const Value& value = dag_.graph.value(item.value);
    if (!made || !value.producer.valid() || value.type.bytes() < rule.min_bytes) return false;
    if (rule.match && !rule.match->match(dag_.graph.node(value.producer).scope)) return false;
    return matcher_.matches(uses.forward, rule.where, variables_);
  }

  Dag& dag_;
  const Variables& variables_;
  TaskMatcher matcher_;
  std::vector<Uses> uses_;
  std::vector<const OffloadRule*> claimed_by_;                          // by item
  std::map<std::pair<What, std::string>, const OffloadRule*> claimed_;  // states, by parameter
  std::set<int32_t> shared_;  // items whose memory others use
};

// Fails if parameters are to be on the host, and versions of them or steps that overlap need them
// on the device.
Status check_parameters(const OffloadRule& rule, const Dag& dag, const Strategy& strategy) {
  if (rule.what == What::kParameters && !dag.versions.empty())
    return fail(rule.at, "not supported: several versions of parameters that are on the host")
        .with_note("help: 'what: optimizer', or weight_versions: 1");
  for (const Order& order : strategy.orders) {
    PIPER_ASSIGN(const auto tags, tags_named(order));
    if (rule.what == What::kParameters && std::ranges::count(tags, "step") > 0)
      return fail(rule.at, "not supported: parameters on the host where steps overlap ({})",
                  line_of(order.at, rule.at))
          .with_note("help: 'what: optimizer'");
  }
  return ok_status();
}

// Chooses what is in host memory. Errors: nothing matches, what two entries claim.
Result<Dag> apply_offload(Dag dag, const TransformContext& context) {
  const Strategy& strategy = context.strategy;
  if (strategy.offloads.empty()) return dag;
  Chooser chooser(dag, strategy, context.variables);
  std::vector<Offload> offloads(strategy.offloads.size());
  std::vector<size_t> turns;  // those that name nothing are of the rest
  for (const bool rest : {false, true})
    for (size_t o = 0; o < offloads.size(); ++o)
      if (is_of_rest(strategy.offloads[o]) == rest) turns.push_back(o);
  for (const size_t o : turns) {
    const OffloadRule& rule = strategy.offloads[o];
    PIPER_TRY(check_parameters(rule, dag, strategy));
    PIPER_ASSIGN(offloads[o], chooser.choose(rule));
  }
  dag.offloads = std::move(offloads);
  return dag;
}

}  // namespace

Transform offload_transform() { return {TransformTime::kTasks, apply_offload}; }

Result<Explanation> explain_offload(const OffloadRule& rule, int64_t values, int64_t bytes,
                                    int64_t stay) {
  Explanation report{rule.at, "offload", {}};
  if (rule.what == What::kParameters) {
    report.lines.push_back(
        fmt::format("{} parameters ({}) live on the host, and come back for each use", values,
                    human_bytes(bytes)));
    return report;
  }
  const bool optimizer = rule.what == What::kOptimizer;
  const char* what = optimizer ? "states of the optimizer" : "values kept for the backward";
  if (values == 0) {
    Error error = fail(rule.at, "offload: none of {} {} can leave", stay, what);
    if (optimizer) {
      error.notes.push_back("the optimizer has no states, or each is used by several instructions");
      return error;
    }
    error.notes.push_back(
        fmt::format("the next use of each comes within {} compute tasks: 'in_flight' {} for it to "
                    "leave, 'distance' {} to come back",
                    rule.in_flight + rule.distance + 1, rule.in_flight, rule.distance));
    error.notes.push_back(
        "help: a compute task is what a 'place' line tells apart of a microbatch's pass: tag the "
        "layers ('annotate') and place the tags, on one device if need be");
    return error;
  }
  report.lines.push_back(fmt::format(
      "{} {} ({}) {}: {} copies to the host and {} back a step", values, what, human_bytes(bytes),
      optimizer ? "live on the host" : "leave for the host", values, values));
  if (stay > 0)
    report.lines.push_back(
        fmt::format("{} stay{}", stay,
                    optimizer ? ", for several instructions use them or they are scalars"
                              : ", for their next use comes too soon"));
  return report;
}

}  // namespace piper
