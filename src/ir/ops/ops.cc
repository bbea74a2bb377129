// The table of all ops.
#include <algorithm>

#include "rules.h"

namespace piper {
namespace {

struct Table {
  std::vector<OpDef> defs;
  std::vector<const OpDef*> by_name;
};

Table make_table() {
  Table table;
#define PIPER_FAMILY(name) \
  for (OpDef & def : name##_ops()) table.defs.push_back(std::move(def));
#include "families.inc"
#undef PIPER_FAMILY
  for (const OpDef& def : table.defs) table.by_name.push_back(&def);
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
  const std::vector<const OpDef*>& ops = table().by_name;
  auto at = std::lower_bound(ops.begin(), ops.end(), name,
                             [](const OpDef* def, std::string_view n) { return def->name < n; });
  return at != ops.end() && (*at)->name == name ? *at : nullptr;
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
