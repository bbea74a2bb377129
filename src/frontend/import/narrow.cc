// Integers of fewer bits than the ops of Piper have.
#include "narrow.h"

#include <algorithm>
#include <span>

namespace piper::onnx_import {

namespace {

// Returns such integers that an input, or an element of a list, has in that type.
Narrow narrow_input(const RuleContext& c, DType dtype) {
  Narrow found;
  const auto look = [&](const Val& val) {
    if (val.narrow.bits > 0 && val.dtype == dtype) found = val.narrow;
  };
  for (size_t i = 0; i < c.num_inputs(); ++i) {
    look(c.in(i));
    for (const Val& item : c.in(i).items) look(item);
  }
  return found;
}

}  // namespace

Status pass_narrow(const RuleContext& c, Vals& results) {
  constexpr std::string_view kKeep[] = {"BitwiseAnd",
                                        "BitwiseOr",
                                        "BitwiseXor",
                                        "Clip",
                                        "Concat",
                                        "ConcatFromSequence",
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
                                        "Relu",
                                        "Reshape",
                                        "Resize",
                                        "ReverseSequence",
                                        "ScatterElements",
                                        "ScatterND",
                                        "SequenceAt",
                                        "SequenceConstruct",
                                        "SequenceErase",
                                        "SequenceInsert",
                                        "Slice",
                                        "SpaceToDepth",
                                        "Split",
                                        "SplitToSequence",
                                        "Squeeze",
                                        "Tile",
                                        "TopK",
                                        "Transpose",
                                        "Unsqueeze",
                                        "Where"};
  constexpr std::string_view kOwn[] = {"BitShift", "BitwiseNot",       "Cast",    "CastLike",
                                       "Constant", "DequantizeLinear", "EyeLike", "QuantizeLinear"};
  const auto has = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), c.node.op) != std::end(list);
  };
  if (has(kOwn)) return ok_status();
  for (Val& result : results) {
    const bool is_list = result.kind == Val::Kind::kSequence;
    for (Val& made : is_list ? std::span(result.items) : std::span(&result, 1)) {
      const Narrow narrow = made.present() ? narrow_input(c, made.dtype) : Narrow();
      if (narrow.bits == 0) continue;
      if (!has(kKeep))
        return c.error("is not supported of integers of {} bits: cast them before", narrow.bits);
      made.narrow = narrow;
    }
  }
  return ok_status();
}

}  // namespace piper::onnx_import
