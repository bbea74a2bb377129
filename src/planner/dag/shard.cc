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
  explicit Cutter(Dag& dag) : dag_(dag), graph_(dag.graph) {
    for (const Version& version : dag.versions)
      previous_.emplace(version.newest.value, version.previous);
    for (const Chunk& chunk : dag.chunks)
      for (ValueId value : chunk.reads) read_.insert(value.value);
    for (Sum& sum : dag.sums) sums_.emplace(sum.value.value, &sum);
    for (size_t u = 0; u < graph_.updates.size(); ++u) {
      const StateUpdate& update = graph_.updates[u];
      update_of_.emplace(update.state.value, u);
      made_by_[graph_.value(update.next).producer.value].push_back(u);
      if (update.beside.valid()) beside_[update.beside.value].push_back(u);
    }
    for (const Copy& copy : dag.copies) copies_[copy.master.value].push_back(copy.copy);
  }

  void cut(const StateCut& how) {
    const Param& param = how.param;
    levels_ = how.levels;
    const auto known = sums_.find(param.gradient.value);
    Sum* const sum = known == sums_.end() ? nullptr : known->second;
    const std::vector<int32_t> further = sum ? further_axes(dag_, *sum) : std::vector<int32_t>();
    SumRound round{.axes = levels_[0].over};
    add_axes(round, further);
    together_ = sum ? added_before(*sum, further) : std::vector<int32_t>();
    if (has_direction(param)) leave_whole_terms(*sum);
    std::ranges::stable_partition(round.axes, [&](int32_t axis) { return is_together(axis); });
    levels_[0].over = round.axes;
    if (!sum) levels_.resize(1);  // what is not trained is updated by nobody
    const ValueId part = cut_versions(param.name, param.value, is_read(param.value));
    PIPER_CHECK(sum || !param.gradient.valid(), "no sum is the gradient of '{}'", param.name);
    if (!sum) return;
    cut_gradient(param, *sum, further);
    sum->each_micro = how.each_micro;
    leave_parts(*sum, further);
    cut_update(param, part, sum->part);
    if (const auto copies = copies_.find(param.value.value); copies != copies_.end())
      for (const ValueId copy : copies->second) cut_copy(copy);
  }

 private:
  // Returns the axes over which terms are added up, and the sum is cut, before the first of its
  // rounds, which rounds what it adds: all but those of replicas. Their runs come first, so that
  // each is a run that the others cut again.
  std::vector<int32_t> added_before(const Sum& sum, const std::vector<int32_t>& further) const {
    const SumRound& first = dag_.rounds[static_cast<size_t>(sum.rounds[0])];
    if (first.scaled == Scaled::kNone) return {};
    SumRound before{.axes = further};
    for (const int32_t axis : levels_[0].over)
      if (dag_.mesh[static_cast<size_t>(axis)].is_coupled()) add_axes(before, {axis});
    return before.axes;
  }
  // An optimizer that looks at whole tensors puts them together over all axes at once, so their
  // terms are added up so, too, and travel as they are where not only replicas have some.
  bool has_direction(const Param& param) const {
    const auto update = update_of_.find(param.value.value);
    if (together_.empty() || update == update_of_.end()) return false;
    const ValueId next = graph_.updates[update->second].next;
    return find_op(graph_.node(graph_.value(next).producer).op)->directed;
  }
  void leave_whole_terms(Sum& sum) {
    SumRound first = dag_.rounds[static_cast<size_t>(sum.rounds[0])];
    first.scaled = Scaled::kNone, first.block = 0;
    sum.rounds[0] = round_of(dag_, std::move(first));
    together_.clear();
  }
  bool is_together(int32_t axis) const {
    return std::binary_search(together_.begin(), together_.end(), axis);
  }
  // Returns whether microbatches read parameters whole, as the update leaves them.
  bool stays() const { return levels_[0].gather == Gather::kUpdate; }
  // Returns the shape of a run of the first levels. Those of the last level follow one another.
  Shape run_shape(const TensorType& whole, size_t levels) const {
    int64_t all = 1, larger = 1;
    for (size_t l = 0; l < levels_.size(); ++l)
      for (const int32_t axis : levels_[l].over) {
        const int64_t size = dag_.mesh[static_cast<size_t>(axis)].size;
        all *= size;
        if (l >= levels) larger *= size;
      }
    return {(num_elements(whole.shape) + all - 1) / all * larger};
  }
  Shape own_shape(const TensorType& whole) const { return run_shape(whole, levels_.size()); }
  Part part_of(size_t level, ValueId value, ValueId param, const TensorType& whole) const {
    Part part = levels_[level];
    part.value = value, part.param = param, part.whole = whole;
    for (size_t l = 0; l < level; ++l)
      part.above.insert(part.above.end(), levels_[l].over.begin(), levels_[l].over.end());
    return part;
  }
  // Notes that a value is the own run of a parameter, by the last level at once.
  void note_run(ValueId value, ValueId param, const TensorType& whole, Gather gather) {
    dag_.parts.push_back(part_of(levels_.size() - 1, value, param, whole));
    dag_.parts.back().gather = gather;
  }
  // Returns whether a microbatch reads the value, in any version.
  bool is_read(ValueId value) const {
    const auto previous = previous_.find(value.value);
    return read_.contains(value.value) ||
           (previous != previous_.end() && is_read(previous->second));
  }
  // Returns what the update writes of a parameter or copy: its own run by the last level.
  ValueId cut_versions(const std::string& name, ValueId whole, bool read) {
    if (!read) {  // of what microbatches read in 16 bits only, the copy is gathered
      const TensorType type = graph_.value(whole).type;
      const ValueId run = add_run(name, whole, levels_.size(), ValueKind::kState);
      note_run(run, whole, type, stays() ? Gather::kStep : levels_[0].gather);
      return run;
    }
    ValueId run = whole;
    std::string its = name;
    for (size_t l = 0; l < levels_.size(); ++l, its += ".part") {
      const bool kept = l == 0 && !stays();
      run = add_part(its, run, whole, l + 1, kept ? ValueKind::kState : ValueKind::kNode);
    }
    if (stays()) return run;
    for (auto previous = previous_.find(whole.value); previous != previous_.end();
         previous = previous_.find(previous->second.value))
      add_part(graph_.value(previous->second).name, previous->second, previous->second, 1,
               ValueKind::kState);
    return run;
  }
  void cut_copy(ValueId copy) {
    const Shape own = own_shape(graph_.value(copy).type);
    const ValueId part = cut_versions(graph_.value(copy).name, copy, true);
    const auto known = update_of_.find(copy.value);
    if (known == update_of_.end()) return;
    StateUpdate& update = graph_.updates[known->second];
    update.state = part;
    graph_.value(update.next).type.shape = own;
  }
  ValueId add_run(const std::string& name, ValueId whole, size_t levels, ValueKind kind) {
    const TensorType type = graph_.value(whole).type;
    return graph_.add_value({.name = name + ".part",
                             .type = {type.dtype, run_shape(type, levels)},
                             .kind = kind,
                             .fill = graph_.value(whole).fill});
  }
  // Adds the run by the last of so many levels, of `larger`: the parameter, copy or version that
  // microbatches read, or a run of that.
  ValueId add_part(const std::string& name, ValueId larger, ValueId whole, size_t levels,
                   ValueKind kind) {
    const TensorType type = graph_.value(whole).type;
    const ValueId id = add_run(name, whole, levels, kind);
    Part part = part_of(levels - 1, id, whole, type);
    if (levels > 1) part.within = larger, part.gather = Gather::kUpdate;
    dag_.parts.push_back(std::move(part));
    return id;
  }
  // Lets the first rounds of a gradient leave runs, each of what the round before has left.
  void cut_gradient(const Param& param, Sum& sum, const std::vector<int32_t>& further) {
    const Value whole = graph_.value(param.gradient);
    std::string name = param.name + ".grad";
    for (size_t levels = together_.empty() ? 1 : 0; levels <= levels_.size(); ++levels) {
      name += ".part";
      Value part{.name = name, .type = {whole.type.dtype, run_shape(whole.type, levels)}};
      if (levels == 0)
        for (const int32_t axis : together_)
          part.type.shape[0] /= dag_.mesh[static_cast<size_t>(axis)].size;
      for (size_t l = std::max<size_t>(levels, 1); l-- > 0;)
        for (int32_t axis : levels_[l].over)
          if ((l > 0 || !std::binary_search(further.begin(), further.end(), axis)) &&
              (levels > 0 || is_together(axis)))
            part.over.push_back({axis, {LayoutKind::kSharded, 0}});
      part.over.insert(part.over.end(), whole.over.begin(), whole.over.end());
      for (int32_t axis : further) part.over.push_back({axis, {LayoutKind::kSharded, 0}});
      sum.part = graph_.add_value(std::move(part));
      if (levels < levels_.size()) sum.larger.push_back(sum.part);
    }
  }
  // The further axes come first, not last.
  void leave_parts(Sum& sum, const std::vector<int32_t>& further) {
    std::vector<SumRound> rounds;
    for (int32_t round : sum.rounds) rounds.push_back(dag_.rounds[static_cast<size_t>(round)]);
    for (SumRound& round : rounds)
      std::erase_if(round.axes, [&](int32_t axis) {
        return std::binary_search(further.begin(), further.end(), axis) || is_together(axis);
      });
    if (together_.empty()) {
      add_axes(rounds.front(), further);
    } else {
      SumRound& first = rounds.front();
      first.cuts = true;
      SumRound before{.axes = together_, .stream = first.stream};
      before.fast = first.fast, before.bucket = first.bucket;
      rounds.insert(rounds.begin(), std::move(before));
    }
    sum.rounds.clear();
    for (SumRound& round : rounds) sum.rounds.push_back(round_of(dag_, std::move(round)));
  }
  // The optimizer takes and makes parts; its states are parts.
  void cut_update(const Param& param, ValueId part, ValueId gradient) {
    const ValueId next = graph_.updates[update_of_.at(param.value.value)].next;
    const NodeId optimizer = graph_.value(next).producer;
    for (const size_t u : made_by_.at(optimizer.value)) {
      StateUpdate& update = graph_.updates[u];
      Value& state = graph_.value(update.state);
      const Shape own = own_shape(state.type);
      if (update.state == param.value) {
        update.state = part;
      } else {
        note_run(update.state, {}, state.type, levels_[0].gather);
        state.type.shape = own;
      }
      graph_.value(update.next).type.shape = own;
    }
    if (find_op(graph_.node(optimizer).op)->directed) {
      CutUpdate cut{param.value,
                    part,
                    param.gradient,
                    gradient,
                    optimizer,
                    stays() && is_read(param.value),
                    beside_[param.value.value]};
      for (size_t l = 0; l < levels_.size(); ++l)
        cut.levels.push_back(
            {run_shape(graph_.value(param.value).type, l + 1), levels_[l].over, levels_[l].stream});
      const TensorType whole = graph_.value(param.gradient).type;
      if (readers_.empty()) readers_ = readers(graph_);
      for (const ValueId state : cut_direction(dag_, cut, readers_))
        note_run(state, {}, whole, levels_[0].gather);
    }
    std::vector<ValueId>& inputs = graph_.node(optimizer).inputs;
    std::replace(inputs.begin(), inputs.end(), param.value, part);
    std::replace(inputs.begin(), inputs.end(), param.gradient, gradient);
  }

  Dag& dag_;
  Graph& graph_;
  std::vector<Part> levels_;                                  // of the parameter under way
  std::vector<int32_t> together_;                             // its added_before()
  std::unordered_map<int32_t, ValueId> previous_;             // by newest
  std::unordered_set<int32_t> read_;                          // by microbatches
  std::unordered_map<int32_t, Sum*> sums_;                    // by value
  std::unordered_map<int32_t, std::vector<ValueId>> copies_;  // by master
  // Of Graph::updates: by state, by the node that makes the next value, by the parameter beside
  // which it is.
  std::unordered_map<int32_t, size_t> update_of_;
  std::unordered_map<int32_t, std::vector<size_t>> made_by_, beside_;
  std::vector<std::vector<NodeId>> readers_;  // by value, where an optimizer has a direction
};

}  // namespace

void keep_runs(Dag& section, const Dag& step, const std::map<std::string, Part>& runs) {
  Graph& graph = section.graph;
  std::unordered_map<int32_t, const Part*> run_of;  // by value that is one
  const auto cut = [&](ValueId value, const Part& run, ValueId param) {
    Part own{
        .value = value, .param = param, .whole = run.whole, .over = run.over, .above = run.above};
    own.whole.dtype = graph.value(value).type.dtype;
    section.parts.push_back(std::move(own));
  };
  for (Param& param : graph.params) {
    const auto run = runs.find(param.name);
    if (run == runs.end()) continue;
    const ValueId own = param.value;
    param.value = graph.add_value(Value(graph.value(own)));
    Value& value = graph.value(own);
    graph.value(param.value).name = value.name;
    value.name += ".part";
    value.over.clear();
    run_of.emplace(own.value, &run->second);
    cut(own, run->second, param.value);
  }
  for (const Node& node : graph.nodes)
    for (const ValueId input : node.inputs)
      if (const auto run = run_of.find(input.value); input.valid() && run != run_of.end())
        for (const ValueId output : node.outputs) run_of.emplace(output.value, run->second);
  for (const StateUpdate& update : graph.updates)
    if (const auto run = run_of.find(update.next.value); run != run_of.end())
      if (run_of.emplace(update.state.value, run->second).second)
        cut(update.state, *run->second, {});
  for (const auto& [value, run] : run_of)
    graph.value(ValueId(value)).type.shape = step.graph.value(run->value).type.shape;
}

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

void leave_twins(Dag& dag, Sum& sum) {
  std::vector<int32_t> left;
  for (const int32_t index : sum.rounds) {
    SumRound round = dag.rounds[static_cast<size_t>(index)];
    if (round.twins > 1 && round.stride == dag.twin_stride) round.stride *= round.twins;
    round.size /= std::exchange(round.twins, 1);
    std::erase_if(round.axes,
                  [&](int32_t axis) { return dag.mesh[static_cast<size_t>(axis)].twins; });
    if (round.size > 1 || !round.axes.empty()) left.push_back(round_of(dag, std::move(round)));
  }
  sum.rounds = std::move(left);
}

std::vector<int32_t> further_axes(const Dag& dag, const Sum& sum) {
  SumRound all;
  for (int32_t round : sum.rounds) add_axes(all, dag.rounds[static_cast<size_t>(round)].axes);
  std::erase_if(all.axes,
                [&](int32_t axis) { return dag.mesh[static_cast<size_t>(axis)].replicated; });
  return all.axes;
}

void cut_states(Dag& dag, const std::vector<StateCut>& cuts) {
  Cutter cutter(dag);
  for (const StateCut& cut : cuts) cutter.cut(cut);
}

}  // namespace piper
