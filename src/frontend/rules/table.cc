// The table of import rules by op and version, and the error that lists all nodes without one.
#include <algorithm>

#include "rule.h"

namespace piper::onnx_import {
RuleTable::RuleTable() {
  for (const auto rules : {math_rules(),
                           shape_rules(),
                           join_rules(),
                           index_rules(),
                           reduce_rules(),
                           matmul_rules(),
                           norm_rules(),
                           loss_rules(),
                           attention_rules(),
                           einsum_rules(),
                           pool_rules(),
                           conv_rules(),
                           activation_rules(),
                           scatter_rules(),
                           resize_rules(),
                           batch_norm_rules(),
                           random_rules(),
                           recurrent_rules(),
                           quantize_rules(),
                           sample_rules(),
                           signal_rules(),
                           microsoft_rules(),
                           microsoft_attention_rules(),
                           bag_rules()}) {
    for (const ImportRule& rule : rules) rules_.push_back(&rule);
  }
  std::stable_sort(rules_.begin(), rules_.end(),
                   [](const ImportRule* a, const ImportRule* b) { return a->op < b->op; });
}

const ImportRule* RuleTable::find(const OnnxNode& node, int64_t opset) const {
  const std::string op = node.domain.empty() ? node.op : node.domain + "::" + node.op;
  auto at = std::lower_bound(rules_.begin(), rules_.end(), op,
                             [](const ImportRule* r, const std::string& o) { return r->op < o; });
  for (; at != rules_.end() && (*at)->op == op; ++at) {
    if ((*at)->since <= opset && opset <= (*at)->until) return *at;
  }
  return nullptr;
}

}  // namespace piper::onnx_import
