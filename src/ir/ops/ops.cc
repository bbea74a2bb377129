// The table of all ops.
#include <algorithm>
#include <unordered_map>

#include "rules.h"

namespace piper {
namespace {

struct Table {
  std::vector<OpDef> defs;
  std::vector<const OpDef*> by_name;  // in order
  std::unordered_map<std::string_view, const OpDef*> find;
};

Table make_table() {
  Table table;
#define PIPER_FAMILY(name) \
  for (OpDef & def : name##_ops()) table.defs.push_back(std::move(def));
#include "families.inc"
#undef PIPER_FAMILY
  for (const OpDef& def : table.defs) {
    table.by_name.push_back(&def);
    table.find.emplace(def.name, &def);
  }
  std::sort(table.by_name.begin(), table.by_name.end(),
            [](const OpDef* a, const OpDef* b) { return a->name < b->name; });
  return table;
}

const Table& table() {
  static const Table made = make_table();
  return made;
}

}  // namespace

const OpDef* find_op(std::string_view name) {
  const auto& ops = table().find;
  const auto at = ops.find(name);
  return at != ops.end() ? at->second : nullptr;
}

std::span<const OpDef* const> all_ops() { return table().by_name; }

OpTypes use_of(const Graph& graph, const Node& node) {
  OpTypes use;
  use.inputs.reserve(node.inputs.size());
  use.present.reserve(node.inputs.size());
  use.outputs.reserve(node.outputs.size());
  for (ValueId id : node.inputs) {
    use.inputs.push_back(id.valid() ? graph.value(id).type : TensorType{});
    use.present.push_back(id.valid());
  }
  for (ValueId id : node.outputs) use.outputs.push_back(graph.value(id).type);
  use.attrs = node.attrs;
  return use;
}

}  // namespace piper
