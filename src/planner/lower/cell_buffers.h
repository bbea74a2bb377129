// The buffers of one cell: which tensor each is, and what it is at the start. Private to the lower
// room.
#pragma once

#include <algorithm>
#include <map>

#include "at.h"
#include "gathers.h"
#include "place.h"
#include "places.h"

namespace piper {

// Makes buffers, tensors and groups as instructions need them.
class CellBuffers {
 public:
  CellBuffers(const Dag& dag, Places& places, RoleProgram& role)
      : dag_(dag), places_(places), role_(role), tensor_of_(dag.graph.values.size(), -1) {}

  // Adds a buffer. `micro`: negative for what exists once.
  int32_t add(ValueId id, int32_t micro) {
    int32_t& tensor = tensor_of_[id.index()];
    if (tensor < 0) {
      tensor = static_cast<int32_t>(role_.tensors.size());
      const Value& value = dag_.graph.value(id);
      role_.tensors.push_back({.name = value.name, .type = value.type});
    }
    role_.buffers.push_back({tensor, std::max(micro, -1)});
    return static_cast<int32_t>(role_.buffers.size() - 1);
  }
  // Returns the buffer of an item; an alias has that of what it is an alias of.
  int32_t of(ItemId id) {
    const ItemId item = root_of(dag_, id);
    int32_t& known = places_.buffer[item.index()];
    if (known < 0) known = new_buffer(item);
    return known;
  }
  // Says which tensors are copies of parameters: who keeps a copy keeps the parameter, or its own
  // part of it. (A forward pass by itself does not name it: see evaluation.cc.)
  void name_masters() {
    std::vector<int32_t> buffer(role_.tensors.size());  // by tensor
    for (size_t b = 0; b < role_.buffers.size(); ++b)
      buffer[at(role_.buffers[b].tensor)] = static_cast<int32_t>(b);
    std::map<ValueId, int32_t> kept;  // by parameter: its tensor
    for (const Param& param : dag_.graph.params)
      kept[param.value] = tensor_of_[param.value.index()];
    for (const Part& part : dag_.parts)
      if (dag_.graph.value(part.value).kind == ValueKind::kState && part.param.valid())
        kept[part.param] = tensor_of_[part.value.index()];
    for (const auto& [copy, master] : copies_)
      if (const auto known = kept.find(master); known != kept.end() && known->second >= 0)
        role_.tensors[at(copy)].copy_of = buffer[at(known->second)];
  }

  // Returns the group over these axes, added if it is not there.
  int32_t group_of(const std::vector<int32_t>& axes) {
    for (size_t g = 0; g < role_.groups.size(); ++g)
      if (role_.groups[g].axes == axes) return static_cast<int32_t>(g);
    Group group;
    group.axes = axes;
    for (int32_t axis : axes)
      group.name += (group.name.empty() ? "" : "+") + dag_.mesh[at(axis)].name;
    role_.groups.push_back(std::move(group));
    return static_cast<int32_t>(role_.groups.size() - 1);
  }

  std::vector<GatheredBuffer> gathered;

 private:
  int32_t new_buffer(ItemId id) {
    if (const auto gather = places_.gather_of.find(id.value); gather != places_.gather_of.end())
      return add_gathered(id, gather->second);
    const Item& item = dag_.items[id.index()];
    const Value& value = dag_.graph.value(item.value);
    const int32_t index = add(item.value, item.micro);
    if (value.kind == ValueKind::kState) {
      describe_state(item.value, role_.tensor(index));
    } else if (value.kind == ValueKind::kConstant) {
      role_.tensor(index).kind = BufferKind::kConstant;
      role_.tensor(index).init = value.name;
    }
    return index;
  }
  int32_t add_gathered(ItemId id, TaskId by) {
    const ValueId own = dag_.items[id.index()].value;
    const int32_t whole = add(own, -1);
    const ValueId newest = newest_of(own), master = places_.master_of[newest.index()];
    if (master.valid()) copies_.emplace_back(role_.buffers[at(whole)].tensor, master);
    role_.tensor(whole).param = places_.param[(master.valid() ? master : newest).index()]->name;
    const Task& gather = dag_.tasks[by.index()];
    const ItemId* const own_write = std::find(gather.writes.begin(), gather.writes.end(), id);
    const ItemId part = gather.reads[at(own_write - gather.writes.begin())];
    const Part& how = *places_.part[dag_.items[part.index()].value.index()];
    gathered.push_back({whole,
                        of(part),
                        group_of(gather.group),
                        by,
                        how.gather,
                        {how.scaled, how.block},
                        how.bucket});
    return whole;
  }

  void describe_state(ValueId state, Tensor& tensor) {
    const Part* part = places_.part[state.index()];
    // A part starts as its run of the whole, a copy as its parameter.
    const bool previous = places_.newest_of[state.index()].valid();
    const ValueId whole = newest_of(part && part->param.valid() ? part->param : state);
    const ValueId master = places_.master_of[whole.index()];
    const Value& initial = dag_.graph.value(master.valid() ? master : whole);
    tensor.kind = BufferKind::kState;
    tensor.fill = previous ? dag_.graph.value(state).fill : initial.fill;
    if (initial.data.size > 0) tensor.init = initial.name;
    const TensorType& held = part ? part->whole : initial.type;
    if (part) tensor.part_of = group_of(part->all_over());
    if (part || !initial.over.empty()) tensor.whole = uncut(dag_, initial, held).shape;
    tensor.cuts = cuts_of(dag_, initial, held.shape, tensor.whole);
    const auto trained =
        std::ranges::find(dag_.trained, master.valid() ? master : whole, &TrainedPart::value);
    if (trained != dag_.trained.end()) {
      const auto& [value, dim, index, count] = *trained;
      if (tensor.whole.empty()) tensor.whole = initial.type.shape;
      int64_t& extent = tensor.whole[at(dim)];
      tensor.cuts.insert(tensor.cuts.begin(), {-1, dim, index, extent});
      extent *= count;
    }
    if (previous) return;  // it is not what is saved
    if (master.valid()) copies_.emplace_back(tensor_of_[state.index()], master);
    if (const Param* param = places_.param[whole.index()]) {
      tensor.param = param->name;
      tensor.aliases = param->aliases;
    }
  }

  ValueId newest_of(ValueId value) const {
    const ValueId newest = places_.newest_of[value.index()];
    return newest.valid() ? newest : value;
  }

  const Dag& dag_;
  Places& places_;
  RoleProgram& role_;
  std::vector<int32_t> tensor_of_;                   // by value
  std::vector<std::pair<int32_t, ValueId>> copies_;  // tensors, and the parameters that they round
};

}  // namespace piper
