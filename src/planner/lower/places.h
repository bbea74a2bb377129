// Where tasks, items and values are in the roles.
#pragma once

#include <unordered_map>

#include "programs.h"

namespace piper {

// Holds what all cells look up, by position: each item and task is of one cell.
struct Places {
  explicit Places(const Dag& dag)
      : items_of_cell(dag.cells.size()),
        buffer(dag.items.size(), -1),
        programs(dag.tasks.size()),
        instruction(dag.tasks.size(), -1),
        param(dag.graph.values.size()),
        part(dag.graph.values.size()),
        newest_of(dag.graph.values.size()),
        master_of(dag.graph.values.size()) {
    for (const Param& each : dag.graph.params) param[each.value.index()] = &each;
    for (const Part& each : dag.parts) part[each.value.index()] = &each;
    // Of a chain the newest comes last.
    for (auto each = dag.versions.rbegin(); each != dag.versions.rend(); ++each) {
      const ValueId first = newest_of[each->newest.index()];
      newest_of[each->previous.index()] = first.valid() ? first : each->newest;
    }
    for (const Part& each : dag.parts)
      if (each.param.valid()) newest_of[each.value.index()] = newest_of[each.param.index()];
    for (const Copy& each : dag.copies) master_of[each.copy.index()] = each.master;
    for (const Item& item : dag.items) ++items_of_cell[static_cast<size_t>(item.cell)];
    for (size_t t = 0; t < dag.tasks.size() && !dag.parts.empty(); ++t)
      if (gathers_parameters(dag, dag.tasks[t]))
        for (ItemId item : dag.tasks[t].writes) gather_of[item.value] = TaskId(t);
  }
  std::vector<size_t> items_of_cell;
  std::vector<int32_t> buffer;                 // by item that is no alias
  std::vector<const ChunkPrograms*> programs;  // by compute task
  std::vector<int32_t> instruction;            // by task: its first
  std::vector<const Param*> param;             // by value
  std::vector<const Part*> part;               // by value: the part that it is
  std::vector<ValueId> newest_of;              // by value that is a previous version, or its part
  std::vector<ValueId> master_of;              // by value that is a copy of a parameter
  std::unordered_map<int32_t, TaskId> gather_of;  // by item: a parameter that lives in parts
};

}  // namespace piper
