// Tensors of an ONNX file, checked: element type, dims, and as many bytes as they say.
#pragma once

#include <onnx/onnx_pb.h>

#include "external_data.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {

// Fails if the name is empty, too long or not UTF-8. `role` says what has it.
Status check_name(std::string_view role, const std::string& name);
// Returns a name of the file as an error shows it.
std::string shown(const std::string& name);
// Reads and checks a tensor. `who` begins the errors. Moves raw bytes out of the message.
Result<OnnxTensor> read_tensor(const std::string& who, onnx::TensorProto& tensor,
                               ExternalData& files);

}  // namespace piper::onnx_import
