// Integers of fewer bits than the ops of Piper have.
#include "narrow.h"

#include <algorithm>

namespace piper::onnx_import {

Status pass_narrow(const RuleContext& c, Vals& results) {
  constexpr std::string_view kKeep[] = {"BitwiseAnd",
                                        "BitwiseOr",
                                        "BitwiseXor",
                                        "Clip",
                                        "Concat",
                                        "DepthToSpace",
                                        "Expand",
                                        "Flatten",
                                        "Gather",
                                        "GatherElements",
                                        "GatherND",
                                        "Identity",
                                        "Max",
                                        "MaxPool",
                                        "Min",
                                        "Pad",
                                        "ReduceMax",
                                        "ReduceMin",
                                        "Reshape",
                                        "Resize",
                                        "ReverseSequence",
                                        "ScatterElements",
                                        "ScatterND",
                                        "Slice",
                                        "SpaceToDepth",
                                        "Split",
                                        "Squeeze",
                                        "Tile",
                                        "TopK",
                                        "Transpose",
                                        "Unsqueeze",
                                        "Where"};
  constexpr std::string_view kOwn[] = {"BitShift", "BitwiseNot",       "Cast",          "CastLike",
                                       "Constant", "DequantizeLinear", "QuantizeLinear"};
  const auto has = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), c.node.op) != std::end(list);
  };
  Narrow narrow;
  for (size_t i = 0; i < c.num_inputs(); ++i)
    if (c.in(i).narrow.bits > 0) narrow = c.in(i).narrow;
  if (narrow.bits == 0 || has(kOwn)) return ok_status();
  for (Val& result : results) {
    if (result.dtype != DType::kI32 || !result.present()) continue;
    if (!has(kKeep))
      return c.error("is not supported of integers of {} bits: cast them before", narrow.bits);
    result.narrow = narrow;
  }
  return ok_status();
}

}  // namespace piper::onnx_import
