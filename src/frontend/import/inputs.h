// The model's data inputs as values of the graph: their dynamic dims bound, the batch found.
#pragma once

#include "piper/frontend/import.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {

// The dim_param that all inputs share, "" if there is none; those do not count that all samples
// share: of fixed dims, or of 1 in dim 0.
std::string shared_param(const OnnxModel& model);
// Inputs whose shape the file does not say get as many dims as the strategy names.
Status take_shapes(OnnxModel& model, const ImportOptions& options);
// Whether dim 0 of an input is no batch, if the strategy says of how many samples one is (0: it
// does not): fixed, where that of other inputs is dynamic or another number.
bool is_shared(const OnnxModel& model, const OnnxInput& input, int64_t batch);
// `notes`: inputs that all samples are taken to share.
Status bind_inputs(const OnnxModel& model, const ImportOptions& options, Graph& graph,
                   std::vector<Note>& notes);

}  // namespace piper::onnx_import
