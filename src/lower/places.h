// Where tasks, items and values stand in the roles.
#pragma once

#include <map>

#include "programs.h"

namespace piper {

// What all cells look up, by position: each item and task is of one cell.
struct Places {
  explicit Places(const Dag& dag)
      : items_of_cell(dag.cells.size()),
        buffer(dag.items.size(), -1),
        programs(dag.tasks.size()),
        instruction(dag.tasks.size(), -1),
        param(dag.graph.values.size()),
        part(dag.graph.values.size()),
        part_of(dag.graph.values.size()),
        newest_of(dag.graph.values.size()) {
    for (const Param& each : dag.graph.params) param[each.value.index()] = &each;
    for (const Part& each : dag.parts) {
      part[each.value.index()] = &each;
      if (each.param.valid() && dag.sharding.parameters) part_of[each.param.index()] = &each;
    }
    for (const Version& each : dag.versions) {
      newest_of[each.previous.index()] = each.newest;
      if (const Part* own = part_of[each.previous.index()])
        newest_of[own->value.index()] = each.newest;
    }
    for (size_t i = 0; i < dag.items.size(); ++i) {
      ++items_of_cell[static_cast<size_t>(dag.items[i].cell)];
      if (part[dag.items[i].value.index()])
        item_of_part.try_emplace({dag.items[i].value, dag.items[i].cell}, i);
    }
  }
  std::vector<size_t> items_of_cell;
  std::vector<int32_t> buffer;                 // by item that is no alias
  std::vector<const ChunkPrograms*> programs;  // by compute task
  std::vector<int32_t> instruction;            // by task: its first
  std::vector<const Param*> param;             // by value
  std::vector<const Part*> part;               // by value: the part that it is
  std::vector<const Part*>
      part_of;  // by value: the part that a parameter lives in, if in parts alone
  std::vector<ValueId> newest_of;  // by value that is a previous version, or its part
  std::map<std::pair<ValueId, int32_t>, ItemId> item_of_part;  // by cell
};

}  // namespace piper
