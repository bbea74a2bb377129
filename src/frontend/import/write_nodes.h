// Writes tensors, attributes and nodes as ONNX's messages. Private to the import room.
#pragma once

#include <onnx/onnx_pb.h>

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {

void write_metadata(google::protobuf::Message& message, int field, const std::string& key,
                    const std::string& value);
void write_tensor(onnx::TensorProto& out, const std::string& name, const TensorType& type,
                  const Bytes& data);
void write_attr(onnx::NodeProto& node, const OnnxAttr& attr);
onnx::NodeProto& add_node(onnx::GraphProto& graph, const std::string& op,
                          const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs, std::string_view domain = "");
void add_input(onnx::GraphProto& graph, const OnnxInput& input);

}  // namespace piper::onnx_import
