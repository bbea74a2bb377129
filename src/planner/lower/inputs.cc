// What roles need of each data input. Integers that index a table must be inside it.
#include "index_reads.h"
#include "piper/planner/lower.h"
#include "place.h"

namespace piper {
namespace {

// Describes an input. Integers that index a table or name a class have bounds.
DataInput describe_input(const Graph& graph, ValueId id,
                         const std::vector<std::vector<NodeId>>& readers) {
  const Value& value = graph.value(id);
  DataInput input{.name = value.name, .type = value.type, .batch_dim = value.batch_dim};
  if (value.batch_dim >= 0) input.type.shape[static_cast<size_t>(value.batch_dim)] *= graph.shards;
  const Legal legal = IndexReads(graph, readers, id).legal();
  input.low = legal.low(), input.high = legal.high(), input.ignore = legal.ignore();
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
