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
  for (auto family : {unary_ops,      binary_ops,          compare_ops,
                      cast_ops,       matmul_ops,          linear_ops,
                      transpose_ops,  reshape_ops,         expand_ops,
                      slice_ops,      concat_ops,          pad_ops,
                      gather_ops,     gather_nd_ops,       gather_elements_ops,
                      grouped_ops,    top_k_ops,           window_ops,
                      fill_ops,       random_ops,          scan_ops,
                      reduce_ops,     softmax_ops,         layer_norm_ops,
                      attention_ops,  attention_merge_ops, rms_norm_ops,
                      group_norm_ops, rotary_ops,          silu_ops,
                      gelu_ops,       cross_entropy_ops,   collective_ops,
                      step_ops,       optimizer_ops,       block_ops}) {
    for (OpDef& def : family()) table.defs.push_back(std::move(def));
  }
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
