// ONNX's own training form, taken out of a model: what is left is the forward graph and its loss.
#pragma once

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {

inline constexpr std::string_view kTrainingDomain = "ai.onnx.preview.training";
// A model without an algorithm stays as it is. Else the graph has the forward nodes alone from here
// on, model.loss is among its outputs, and model.training says how each parameter is updated.
// Gradients at other points than the values
// themselves, gradients that are changed before they reach the optimizer, and bindings that are
// neither updates of an optimizer nor counters are refused.
Status take_training(OnnxModel& model);

}  // namespace piper::onnx_import
