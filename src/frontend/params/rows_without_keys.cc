// Queries that see no key, under PyTorch's scaled_dot_product_attention with a mask of booleans:
// they get 0, and pass no gradient on. Below opset 23 its exporter writes
//
//   w = Softmax(scores + Where(mask, 0, lowest)), Where(IsNaN(w), 0, w)
//
// whose weights are never NaN: such a query would get the mean of all values. The mask itself says
// which weights are 0.
#include <algorithm>
#include <map>

#include "claims.h"

namespace piper::onnx_import {
namespace {

class Guards {
 public:
  explicit Guards(OnnxModel& model) : model_(model) {
    for (size_t n = 0; n < model.nodes.size(); ++n)
      for (const std::string& output : model.nodes[n].outputs) maker_.emplace(output, n);
  }

  void run() {
    for (OnnxNode& node : model_.nodes) {
      if (node.op != "Where" || node.inputs.size() != 3) continue;
      const auto text = find_metadata(node.metadata, "pkg.torch.onnx.fx_node");
      if (text.find(kAttentionCall) == text.npos) continue;
      const auto call = parse_call(text);
      if (!call || call->function != kAttentionCall) continue;
      const std::string mask = mask_of(node);
      if (!mask.empty()) node.inputs = {mask, node.inputs[2], node.inputs[1]};
    }
  }

 private:
  const OnnxNode* maker(const std::string& value, std::string_view op) const {
    const auto at = maker_.find(value);
    return at != maker_.end() && model_.nodes[at->second].op == op ? &model_.nodes[at->second]
                                                                   : nullptr;
  }

  // Returns the condition under which the guarded weights have a key; "" where the node is not a
  // guard.
  std::string mask_of(const OnnxNode& guard) const {
    const OnnxNode* test = maker(guard.inputs[0], "IsNaN");
    const OnnxNode* softmax = maker(guard.inputs[2], "Softmax");
    if (!test || !softmax || test->inputs.empty() || softmax->inputs.empty()) return "";
    const OnnxNode* sum = maker(softmax->inputs[0], "Add");
    if (!sum || sum->inputs.size() != 2 || test->inputs[0] != guard.inputs[2]) return "";
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const OnnxNode* term = maker(sum->inputs[side], "Where");
      if (term && !term->inputs.empty() && maker(sum->inputs[1 - side], "MatMul"))
        return term->inputs[0];
    }
    return "";
  }

  OnnxModel& model_;
  std::map<std::string, size_t, std::less<>> maker_;
};

}  // namespace

void guard_rows_without_keys(OnnxModel& model) { Guards(model).run(); }

}  // namespace piper::onnx_import
