// The model's data inputs as values of the graph: their dynamic dims bound, the batch found.
#pragma once

#include "onnx_model.h"

namespace piper::onnx_import {

// The dim_param that all inputs share, "" if there is none.
std::string shared_param(const OnnxModel& model);
Status bind_inputs(const OnnxModel& model, const ImportOptions& options, Graph& graph);

}  // namespace piper::onnx_import
