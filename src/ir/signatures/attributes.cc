// The attributes of each op that has some. src/ir/ops/ says what they mean.
#include <algorithm>
#include <vector>

#include "piper/ir/signatures.h"

namespace piper {
namespace {

struct Row {
  std::vector<std::string_view> ops;
  std::vector<OpAttribute> attributes;
};

OpAttribute integer(std::string_view name) { return {name, OpAttribute::kInteger}; }
OpAttribute real(std::string_view name) { return {name, OpAttribute::kReal}; }
OpAttribute text(std::string_view name) { return {name, OpAttribute::kText}; }
OpAttribute integers(std::string_view name) { return {name, OpAttribute::kIntegers}; }

bool has(const OpTypes& use, size_t input) {
  return input < use.present.size() && use.present[input];
}
// Adds the attribute `whole`, the extent of all parts, where the use is told at which of them it
// begins.
OpAttribute whole() {
  return {"whole", OpAttribute::kInteger, [](const OpDef& op, const OpTypes& use) {
            const auto firsts = op.loops(use).firsts;
            return std::any_of(firsts.begin(), firsts.end(), [&](const auto& first) {
              return has(use, static_cast<size_t>(first.second));
            });
          }};
}
// Adds the attributes of attention whose mask is this input: the number of keys, and the score
// where a boolean mask is false.
template <size_t mask>
OpAttribute keys() {
  return {"keys", OpAttribute::kInteger, [](const OpDef&, const OpTypes& use) {
            return has(use, mask) && use.inputs[mask].shape[3] != 1;
          }};
}
template <size_t mask>
OpAttribute masked_score() {
  return {"masked_score", OpAttribute::kReal, [](const OpDef&, const OpTypes& use) {
            return has(use, mask) && use.inputs[mask].dtype == DType::kBool;
          }};
}
OpAttribute offset() {
  return {"offset", OpAttribute::kInteger,
          [](const OpDef&, const OpTypes& use) { return use.attrs.integer("causal") != 0; }};
}
// Adds the attribute of attention's merge that is read only where all keys of a query may be
// hidden.
OpAttribute parts() {
  return {"parts", OpAttribute::kInteger, [](const OpDef&, const OpTypes& use) {
            return use.attrs.find("hidden_score") != nullptr;
          }};
}

std::vector<Row> make_rows() {
  return {
      {{"Mod"}, {integer("fmod")}},
      {{"Cast"}, {text("to")}},
      {{"Gelu", "GeluAndSlope", "GeluGrad"}, {text("approximate")}},
      {{"MatMul"}, {integer("trans_a"), integer("trans_b"), integer("accumulate"), text("to")}},
      {{"Linear"}, {integer("trans_b"), text("activation")}},
      {{"GroupedMatMul"}, {integer("trans_b"), whole()}},
      {{"GroupedMatMulGrad"}, {integer("trans_b"), whole(), integer("groups")}},
      {{"Attention"},
       {integers("tokens_first"), real("scale"), real("softcap"), masked_score<3>(),
        real("hidden_score"), integer("causal"), offset(), keys<3>(), whole()}},
      {{"AttentionGrad"},
       {integers("tokens_first"), real("scale"), real("softcap"), masked_score<6>(),
        integer("causal"), offset(), keys<6>(), whole(), integer("mask_grad")}},
      {{"AttentionMerge"}, {integer("tokens_first"), parts(), real("hidden_score")}},
      {{"Rotary"}, {integer("interleaved"), integer("inverse")}},
      {{"LayerNorm", "RmsNorm"}, {integer("axis"), real("epsilon")}},
      {{"LayerNormGradX", "LayerNormGradParams", "RmsNormGradX", "RmsNormGradScale"},
       {integer("axis")}},
      {{"GroupNorm", "GroupNormGradX", "GroupNormGradParams"},
       {integer("groups"), real("epsilon")}},
      {{"Softmax", "SoftmaxGrad", "LogSoftmax", "LogSoftmaxGrad"}, {integer("axis")}},
      {{"CrossEntropySum", "CrossEntropyOfTerms", "LabelCount"}, {integer("ignore_index")}},
      {{"CrossEntropyTerms", "CrossEntropyGrad"}, {integer("ignore_index"), whole()}},
      {{"ReduceSum", "ReduceProd"}, {integers("axes"), integer("keepdims")}},
      {{"ReduceMax", "ReduceMin"}, {integers("axes"), integer("keepdims"), integer("first")}},
      {{"ReduceExtremeGrad"}, {integers("axes"), integer("first")}},
      {{"ReduceProdGrad"}, {integers("axes")}},
      {{"CumSum"}, {integer("axis"), integer("exclusive"), integer("reverse")}},
      {{"Trilu"}, {integer("upper"), integer("k")}},
      {{"TopK"}, {integer("axis"), integer("k"), integer("largest")}},
      {{"Transpose"}, {integers("perm"), integer("blocks")}},
      {{"Reshape"}, {integers("shape"), integers("blocks")}},
      {{"Expand"}, {integers("shape")}},
      {{"Slice"}, {integers("starts"), integers("ends"), integers("steps")}},
      {{"Concat"}, {integer("axis")}},
      {{"Pad"}, {integers("before"), integers("after"), real("value")}},
      {{"Fill"}, {integers("shape"), real("value"), text("dtype")}},
      {{"Unfold"}, {integers("kernel"), integers("strides"), integers("dilations")}},
      {{"Fold"}, {integers("size"), integers("strides"), integers("dilations")}},
      {{"Gather"}, {integer("axis"), integer("padding"), whole()}},
      {{"GatherGrad"}, {integer("axis"), integer("size"), whole()}},
      {{"GatherElements"}, {integer("axis")}},
      {{"GatherElementsGrad"}, {integer("axis"), integers("sizes")}},
      {{"ScatterElements"}, {integer("axis"), text("reduction")}},
      {{"GatherND"}, {integer("batch_dims")}},
      {{"GatherNDGrad"}, {integer("batch_dims"), integers("sizes")}},
      {{"ScatterND"}, {text("reduction")}},
      {{"Random"},
       {integers("shape"), text("dtype"), text("distribution"), real("shift"), real("scale"),
        integer("rows"), integer("shards"), integers("cuts"), integers("zeros")}},
      {{"Dropout"},
       {real("ratio"), integer("rows"), integer("shards"), integers("cuts"), integers("zeros")}},
      {{"SumSquares"}, {integer("parts")}},
      {{"ClipFactor"}, {real("max_norm")}},
      {{"LearningRate"},
       {real("base"), real("min_ratio"), integer("warmup"), integer("total"), integer("cosine")}},
      {{"NextLossScale"}, {real("growth"), real("backoff"), integer("interval")}},
      {{"Sgd"},
       {real("momentum"), real("dampening"), real("weight_decay"), integer("nesterov"),
        integer("count")}},
      {{"AdamW"},
       {real("beta1"), real("beta2"), real("eps"), real("weight_decay"), integer("decoupled")}},
      {{"OnnxAdam"},
       {real("beta1"), real("beta2"), real("eps"), real("weight_decay"), real("weight_decay_after"),
        integer("count")}},
      {{"Adagrad"}, {real("lr_decay"), real("eps"), real("weight_decay"), integer("count")}},
  };
}

}  // namespace

std::span<const OpAttribute> attributes_of(std::string_view op) {
  static const std::vector<Row> rows = make_rows();
  for (const Row& row : rows)
    if (std::find(row.ops.begin(), row.ops.end(), op) != row.ops.end()) return row.attributes;
  return {};
}

}  // namespace piper
