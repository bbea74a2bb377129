#include "shard.h"

#include <unordered_map>

namespace piper {
namespace {

class Cutter {
 public:
  explicit Cutter(Dag& dag) : dag_(dag), graph_(dag.graph) {
    for (const Version& version : dag.versions)
      previous_.emplace(version.newest.value, version.previous);
  }

  ShardedParam cut(const Param& param) {
    const TensorType whole = graph_.value(param.value).type;
    ShardedParam result{param.value, {}, param.gradient, {}, {dag_.levels[0].axis}};
    const std::vector<int32_t> axes = axes_of(param.gradient);
    result.over.insert(result.over.end(), axes.begin(), axes.end());
    std::sort(result.over.begin(), result.over.end());
    const TensorType own{whole.dtype, {part_elements(num_elements(whole.shape), axes)}};
    Value part;
    part.name = param.name + ".part";
    part.type = own;
    if (dag_.sharding.parameters) part.kind = ValueKind::kState;
    result.part = graph_.add_value(std::move(part));
    dag_.parts.push_back({result.part, param.value, whole, result.over});
    if (dag_.sharding.parameters) cut_previous(param.value, own, result.over);
    if (!param.gradient.valid()) return result;
    Value gradient;
    gradient.name = param.name + ".grad.part";
    gradient.type = {graph_.value(param.gradient).type.dtype, own.shape};
    gradient.over.push_back({dag_.levels[0].axis, {LayoutKind::kSharded, 0}});
    const auto& over = graph_.value(param.gradient).over;
    gradient.over.insert(gradient.over.end(), over.begin(), over.end());
    for (int32_t axis : axes) gradient.over.push_back({axis, {LayoutKind::kSharded, 0}});
    result.gradient_part = graph_.add_value(std::move(gradient));
    cut_update(result, own.shape);
    return result;
  }

 private:
  std::vector<int32_t> axes_of(ValueId gradient) const {
    const auto sum = std::find_if(dag_.sums.begin(), dag_.sums.end(),
                                  [&](const Sum& each) { return each.value == gradient; });
    return sum == dag_.sums.end() ? std::vector<int32_t>() : sum->axes;
  }
  int64_t part_elements(int64_t elements, const std::vector<int32_t>& axes) const {
    int64_t ranks = dag_.levels[0].size;
    for (int32_t axis : axes) ranks *= dag_.mesh[static_cast<size_t>(axis)].size;
    return (elements + ranks - 1) / ranks;
  }

  // What microbatches read is cut alike, where it is another version.
  void cut_previous(ValueId newest, const TensorType& own, const std::vector<int32_t>& over) {
    const auto known = previous_.find(newest.value);
    if (known == previous_.end()) return;
    const Value whole = graph_.value(known->second);
    Value part;
    part.name = whole.name + ".part";
    part.type = own;
    part.kind = ValueKind::kState;
    part.fill = whole.fill;
    dag_.parts.push_back({graph_.add_value(std::move(part)), known->second, whole.type, over});
  }

  // The optimizer takes and makes parts; its states are parts.
  void cut_update(const ShardedParam& param, const Shape& own) {
    NodeId optimizer;
    for (const StateUpdate& update : graph_.updates)
      if (update.state == param.whole) optimizer = graph_.value(update.next).producer;
    PIPER_CHECK(optimizer.valid(), "nothing updates '{}'", graph_.value(param.whole).name);
    for (StateUpdate& update : graph_.updates) {
      if (graph_.value(update.next).producer != optimizer) continue;
      graph_.value(update.next).type.shape = own;
      if (update.state == param.whole) {
        update.state = param.part;
      } else {
        dag_.parts.push_back({update.state, {}, graph_.value(update.state).type, param.over});
        graph_.value(update.state).type.shape = own;
      }
    }
    for (ValueId& input : graph_.node(optimizer).inputs) {
      if (input == param.whole) input = param.part;
      if (input == param.gradient) input = param.gradient_part;
    }
  }

  Dag& dag_;
  Graph& graph_;
  std::unordered_map<int32_t, ValueId> previous_;  // by newest
};

}  // namespace

std::vector<ShardedParam> shard_states(Dag& dag) {
  std::vector<ShardedParam> sharded;
  if (!dag.sharding.optimizer || dag.levels.empty() || dag.levels[0].size == 1) return sharded;
  Cutter cutter(dag);
  for (size_t p = 0; p < dag.graph.params.size(); ++p) {
    const Param param = dag.graph.params[p];
    const bool small = dag.graph.value(param.value).type.bytes() < dag.sharding.persist_bytes;
    if (small || (!param.gradient.valid() && !dag.sharding.parameters)) continue;
    sharded.push_back(cutter.cut(param));
  }
  return sharded;
}

}  // namespace piper
