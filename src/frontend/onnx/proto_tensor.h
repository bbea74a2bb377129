// Tensors of an ONNX file, checked: element type, dims, and as many bytes as they say.
#pragma once

#include <onnx/onnx_pb.h>

#include "onnx_model.h"

namespace piper::onnx_import {

inline constexpr int kMaxRank = 16;
// Fields that the installed schema (IR 8) does not know yet.
inline constexpr int kNodeMetadata = 9, kGraphMetadata = 16, kValueMetadata = 4;

// A name of the file, for an error.
std::string shown(const std::string& name);
// `who` begins the errors. Takes the bytes out of the message where they stand in it raw.
Result<OnnxTensor> read_tensor(const std::string& who, onnx::TensorProto& tensor,
                               ExternalData& files);

}  // namespace piper::onnx_import
