// Writes tensors, attributes and nodes as ONNX's messages.
#include "write_nodes.h"

namespace piper::onnx_import {
namespace {

int type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return onnx::TensorProto::FLOAT;
    case DType::kF64:
      return onnx::TensorProto::DOUBLE;
    case DType::kBF16:
      return onnx::TensorProto::BFLOAT16;
    case DType::kF16:
      return onnx::TensorProto::FLOAT16;
    case DType::kI64:
      return onnx::TensorProto::INT64;
    case DType::kI32:
      return onnx::TensorProto::INT32;
    case DType::kBool:
      return onnx::TensorProto::BOOL;
  }
  return onnx::TensorProto::UNDEFINED;
}

}  // namespace

void write_metadata(google::protobuf::Message& message, int field, const std::string& key,
                    const std::string& value) {
  onnx::StringStringEntryProto entry;
  entry.set_key(key);
  entry.set_value(value);
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(
      field, entry.SerializeAsString());
}

void write_tensor(onnx::TensorProto& out, const std::string& name, const TensorType& type,
                  const Bytes& data) {
  out.set_name(name);
  out.set_data_type(type_of(type.dtype));
  for (const int64_t dim : type.shape) out.add_dims(dim);
  if (data.data == nullptr) {
    out.set_raw_data(std::string(static_cast<size_t>(type.bytes()), '\0'));
  } else {
    out.set_raw_data(data.data, data.size);
  }
}

void write_attr(onnx::NodeProto& node, const OnnxAttr& attr) {
  using A = onnx::AttributeProto;
  A& out = *node.add_attribute();
  out.set_name(attr.name);
  if (const auto* i = std::get_if<int64_t>(&attr.value)) {
    out.set_type(A::INT);
    out.set_i(*i);
  } else if (const auto* f = std::get_if<double>(&attr.value)) {
    out.set_type(A::FLOAT);
    out.set_f(static_cast<float>(*f));
  } else if (const auto* s = std::get_if<std::string>(&attr.value)) {
    out.set_type(A::STRING);
    out.set_s(*s);
  } else if (const auto* is = std::get_if<std::vector<int64_t>>(&attr.value)) {
    out.set_type(A::INTS);
    for (const int64_t x : *is) out.add_ints(x);
  } else if (const auto* fs = std::get_if<std::vector<double>>(&attr.value)) {
    out.set_type(A::FLOATS);
    for (const double x : *fs) out.add_floats(static_cast<float>(x));
  } else if (const auto* ss = std::get_if<std::vector<std::string>>(&attr.value)) {
    out.set_type(A::STRINGS);
    for (const std::string& x : *ss) out.add_strings(x);
  } else if (const auto* t = std::get_if<OnnxTensor>(&attr.value)) {
    out.set_type(A::TENSOR);
    write_tensor(*out.mutable_t(), t->name, t->type, t->data);
  }
}

onnx::NodeProto& add_node(onnx::GraphProto& graph, const std::string& op,
                          const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs, std::string_view domain) {
  onnx::NodeProto& node = *graph.add_node();
  node.set_op_type(op);
  node.set_name("training/" + outputs[0]);
  node.set_domain(std::string(domain));
  for (const std::string& name : inputs) node.add_input(name);
  for (const std::string& name : outputs) node.add_output(name);
  return node;
}

void add_input(onnx::GraphProto& graph, const OnnxInput& input) {
  onnx::ValueInfoProto& value = *graph.add_input();
  value.set_name(input.name);
  auto& type = *value.mutable_type()->mutable_tensor_type();
  type.set_elem_type(type_of(input.dtype));
  type.mutable_shape();
  for (const OnnxDim& dim : input.dims) {
    auto& out = *type.mutable_shape()->add_dim();
    if (dim.value >= 0) out.set_dim_value(dim.value);
    if (dim.value < 0 && !dim.param.empty()) out.set_dim_param(dim.param);
  }
}

}  // namespace piper::onnx_import
