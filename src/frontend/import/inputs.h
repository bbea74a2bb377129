// The model's data inputs as values of the graph: their dynamic dims bound, the batch found.
#pragma once

#include "piper/frontend/import.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {

// Returns the dim_param that all inputs share, or "". Inputs that all samples share do not count:
// those of fixed dims, or with 1 in dim 0.
std::string shared_param(const OnnxModel& model);
// Inputs whose shape the file does not say get as many dims as the strategy names.
Status take_shapes(OnnxModel& model, const ImportOptions& options);
// Returns whether dim 0 of an input is not a batch: it is fixed, where that of other inputs is
// dynamic or another number. `batch` is how many samples the strategy says; 0: it does not.
bool is_shared(const OnnxModel& model, const OnnxInput& input, int64_t batch);
// Binds the inputs' dims. Adds notes on inputs that all samples are taken to share.
Status bind_inputs(const OnnxModel& model, const ImportOptions& options, Graph& graph,
                   std::vector<Note>& notes);

}  // namespace piper::onnx_import
