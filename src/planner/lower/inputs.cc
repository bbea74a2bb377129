// Which values each data input may have: what indexes a table must be inside it.
#include <algorithm>
#include <set>

#include "piper/ir/ops.h"
#include "place.h"

namespace piper {
namespace {

// Describes an input. Integers that index a table or name a class have bounds, also where ops move
// them before.
DataInput describe_input(const Graph& graph, ValueId id,
                         const std::vector<std::vector<NodeId>>& readers) {
  const Value& value = graph.value(id);
  DataInput input{.name = value.name, .type = value.type, .batch_dim = value.batch_dim};
  if (value.batch_dim >= 0) input.type.shape[static_cast<size_t>(value.batch_dim)] *= graph.shards;
  input.low = INT64_MIN;
  input.high = -1;
  std::set<int64_t> ignored;  // by the ops that read it as indices, of which all may ignore a value
  bool is_ignored = true;
  std::vector<ValueId> open{id};
  std::set<int32_t> seen;
  while (!open.empty()) {
    const ValueId at = open.back();
    open.pop_back();
    if (!seen.insert(at.value).second) continue;
    for (NodeId reader : readers[at.index()]) {
      const Node& node = graph.node(reader);
      const OpDef* def = find_op(node.op);
      if (!def) continue;
      const bool moves = def->elements != OpDef::Elements::kMade || def->collective;
      if (moves) open.push_back(node.outputs[0]);
      if (!def->indices || node.inputs[1] != at) continue;
      const OpDef::Indices indices = def->indices(use_of(graph, node));
      // Below 0, they may count from the end of -1 - extent; of 0, where it is not known.
      const bool from_end = indices.extent < 0;
      const int64_t extent = from_end ? -1 - indices.extent : indices.extent;
      if (from_end && extent == 0) continue;
      input.low = std::max(input.low, from_end ? -extent : 0);
      input.high = input.high < 0 ? extent - 1 : std::min(input.high, extent - 1);
      if (indices.ignored)
        ignored.insert(*indices.ignored);
      else
        is_ignored = false;
    }
  }
  if (input.high < 0) input.low = 0;
  if (is_ignored && ignored.size() == 1) input.ignore = *ignored.begin();
  return input;
}

}  // namespace

void describe_needs(RoleProgram& role, const Dag& dag,
                    const std::vector<std::vector<NodeId>>& readers) {
  std::set<std::string_view> used;
  for (const Instruction& instruction : role.body)
    if (instruction.kind == InstructionKind::kInput) used.insert(instruction.input);
  for (ValueId input : dag.graph.inputs)
    if (input != dag.graph.sample && used.count(dag.graph.value(input).name))
      role.inputs.push_back(describe_input(dag.graph, input, readers));
}

}  // namespace piper
