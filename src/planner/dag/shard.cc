// What `shard` of replicate does to the update: states become runs of the flat elements, one for
// each rank of an axis of replicas and of those over which the gradient is terms.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "piper/ir/ops.h"
#include "piper/planner/make_dag.h"
#include "rounds.h"
#include "update.h"

namespace piper {
namespace {

class Cutter {
 public:
  Cutter(Dag& dag, const Part& like) : dag_(dag), graph_(dag.graph), like_(like) {
    for (const Version& version : dag.versions)
      previous_.emplace(version.newest.value, version.previous);
    for (const Chunk& chunk : dag.chunks)
      for (ValueId value : chunk.reads) read_.insert(value.value);
    for (Sum& sum : dag.sums) sums_.emplace(sum.value.value, &sum);
    for (const StateUpdate& update : graph_.updates)
      optimizer_.emplace(update.state.value, graph_.value(update.next).producer);
  }

  void cut(const Param& param) {
    const auto known = sums_.find(param.gradient.value);
    Sum* const sum = known == sums_.end() ? nullptr : known->second;
    const std::vector<int32_t> further = sum ? further_axes(dag_, *sum) : std::vector<int32_t>();
    SumRound round{.axes = like_.over};
    add_axes(round, further);
    over_ = round.axes;
    // Of what microbatches read in 16 bits only, the copy stays whole.
    const bool stays = like_.gather == Gather::kUpdate && is_read(param.value);
    const ValueId part = cut_versions(param.name, param.value, stays);
    PIPER_CHECK(sum || !param.gradient.valid(), "no sum is the gradient of '{}'", param.name);
    if (!sum) return;
    sum->part = gradient_part(param, further);
    leave_parts(*sum, further);
    cut_update(param, part, sum->part);
    for (const Copy& copy : dag_.copies)
      if (copy.master == param.value) cut_copy(copy.copy);
  }

 private:
  Shape own_shape(const TensorType& whole) const {
    int64_t ranks = 1;
    for (int32_t axis : over_) ranks *= dag_.mesh[static_cast<size_t>(axis)].size;
    return {(num_elements(whole.shape) + ranks - 1) / ranks};
  }
  void note_part(ValueId value, ValueId param, const TensorType& whole, Gather gather) {
    dag_.parts.push_back({value, param, whole, over_, gather, like_.stream, like_.distance});
  }
  // Returns whether a microbatch reads the value, in either version.
  bool is_read(ValueId value) const {
    const auto previous = previous_.find(value.value);
    return read_.contains(value.value) ||
           (previous != previous_.end() && read_.contains(previous->second.value));
  }
  ValueId cut_versions(const std::string& name, ValueId whole, bool stays) {
    const ValueId part = add_part(name, whole, stays);
    const auto previous = previous_.find(whole.value);
    if (!stays && previous != previous_.end())
      add_part(graph_.value(previous->second).name, previous->second, stays);
    return part;
  }
  void cut_copy(ValueId copy) {
    const bool stays = like_.gather == Gather::kUpdate;
    const Shape own = own_shape(graph_.value(copy).type);
    const ValueId part = cut_versions(graph_.value(copy).name, copy, stays);
    for (StateUpdate& update : graph_.updates) {
      if (update.state != copy) continue;
      update.state = part;
      graph_.value(update.next).type.shape = own;
    }
  }
  // Adds the part of a parameter or copy, or of the version that microbatches read.
  ValueId add_part(const std::string& name, ValueId whole, bool stays) {
    const TensorType type = graph_.value(whole).type;
    const ValueId id = graph_.add_value({.name = name + ".part",
                                         .type = {type.dtype, own_shape(type)},
                                         .kind = stays ? ValueKind::kNode : ValueKind::kState,
                                         .fill = graph_.value(whole).fill});
    // A parameter of which the copy stays whole is itself never gathered: nothing asks when.
    const bool gathered = stays || like_.gather != Gather::kUpdate;
    note_part(id, whole, type, gathered ? like_.gather : Gather::kStep);
    return id;
  }
  ValueId gradient_part(const Param& param, const std::vector<int32_t>& further) {
    const Value& whole = graph_.value(param.gradient);
    Value part{.name = param.name + ".grad.part",
               .type = {whole.type.dtype, own_shape(whole.type)}};
    for (int32_t axis : like_.over) part.over.push_back({axis, {LayoutKind::kSharded, 0}});
    part.over.insert(part.over.end(), whole.over.begin(), whole.over.end());
    for (int32_t axis : further) part.over.push_back({axis, {LayoutKind::kSharded, 0}});
    return graph_.add_value(std::move(part));
  }
  // The further axes come first, not last.
  void leave_parts(Sum& sum, const std::vector<int32_t>& further) {
    std::vector<SumRound> rounds;
    for (int32_t round : sum.rounds) rounds.push_back(dag_.rounds[static_cast<size_t>(round)]);
    for (SumRound& round : rounds)
      std::erase_if(round.axes, [&](int32_t axis) {
        return std::binary_search(further.begin(), further.end(), axis);
      });
    add_axes(rounds.front(), further);
    sum.rounds.clear();
    for (SumRound& round : rounds) sum.rounds.push_back(round_of(dag_, std::move(round)));
  }
  // The optimizer takes and makes parts; its states are parts.
  void cut_update(const Param& param, ValueId part, ValueId gradient) {
    const NodeId optimizer = optimizer_.at(param.value.value);
    for (StateUpdate& update : graph_.updates) {
      if (graph_.value(update.next).producer != optimizer) continue;
      Value& state = graph_.value(update.state);
      const Shape own = own_shape(state.type);
      if (update.state == param.value) {
        update.state = part;
      } else {
        note_part(update.state, {}, state.type, like_.gather);
        state.type.shape = own;
      }
      graph_.value(update.next).type.shape = own;
    }
    if (find_op(graph_.node(optimizer).op)->directed) {
      const CutUpdate cut{param.value,
                          part,
                          param.gradient,
                          gradient,
                          optimizer,
                          like_.gather == Gather::kUpdate && is_read(param.value),
                          own_shape(graph_.value(param.value).type),
                          over_,
                          like_.stream};
      const TensorType whole = graph_.value(param.gradient).type;
      for (const ValueId state : cut_direction(dag_, cut))
        note_part(state, {}, whole, like_.gather);
    }
    std::vector<ValueId>& inputs = graph_.node(optimizer).inputs;
    std::replace(inputs.begin(), inputs.end(), param.value, part);
    std::replace(inputs.begin(), inputs.end(), param.gradient, gradient);
  }

  Dag& dag_;
  Graph& graph_;
  const Part& like_;
  std::vector<int32_t> over_;                      // of the parameter under way
  std::unordered_map<int32_t, ValueId> previous_;  // by newest
  std::unordered_set<int32_t> read_;               // by microbatches
  std::unordered_map<int32_t, Sum*> sums_;         // by value
  std::unordered_map<int32_t, NodeId> optimizer_;  // by state
};

}  // namespace

void add_axes(SumRound& round, const std::vector<int32_t>& axes) {
  round.axes.insert(round.axes.end(), axes.begin(), axes.end());
  std::sort(round.axes.begin(), round.axes.end());
}

int32_t round_of(Dag& dag, SumRound round) {
  const auto known = std::find(dag.rounds.begin(), dag.rounds.end(), round);
  const auto index = static_cast<int32_t>(known - dag.rounds.begin());
  if (known == dag.rounds.end()) dag.rounds.push_back(std::move(round));
  return index;
}

std::vector<int32_t> further_axes(const Dag& dag, const Sum& sum) {
  SumRound all;
  for (int32_t round : sum.rounds) add_axes(all, dag.rounds[static_cast<size_t>(round)].axes);
  std::erase_if(all.axes,
                [&](int32_t axis) { return dag.mesh[static_cast<size_t>(axis)].replicated; });
  return all.axes;
}

void cut_states(Dag& dag, const std::vector<Param>& params, const Part& like) {
  Cutter cutter(dag, like);
  for (const Param& param : params) cutter.cut(param);
}

}  // namespace piper
