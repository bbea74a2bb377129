// The ONNX project's own backend node tests: small models with inputs and expected outputs.
//
// Two sources. Debian's libonnx-testdata has those of ONNX 1.12 (operators up to opset 17), a
// folder each. tests/data/onnx_node_cases.gz has those of ONNX 1.23 for operators that changed or
// appeared in opsets 18 to 23, written by make_node_cases.py: length-delimited ModelProtos whose
// graph is named like the case and whose extra initializers "in:NAME" and "out:NAME" hold the data.
#pragma once

#include <google/protobuf/io/gzip_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <onnx/onnx_pb.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "piper/frontend/import.h"

namespace piper::test {

struct NodeCase {
  std::string name;
  onnx::ModelProto model;
  std::vector<onnx::TensorProto> inputs, outputs;  // as the graph lists them
  bool tensors_only = true;  // false: a sequence or an optional value goes in or out
};

template <class Message>
bool read_message(const std::filesystem::path& path, Message& message) {
  std::ifstream in(path, std::ios::binary);
  return in && message.ParseFromIstream(&in);
}

inline bool is_tensor(const onnx::ValueInfoProto& value) { return value.type().has_tensor_type(); }

inline std::vector<onnx::TensorProto> read_folder_data(const std::filesystem::path& folder,
                                                       const std::string& role, int count) {
  std::vector<onnx::TensorProto> out(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    read_message(folder / "test_data_set_0" / (role + "_" + std::to_string(i) + ".pb"),
                 out[static_cast<size_t>(i)]);
  }
  return out;
}

// Those of a folder of folders, by name; empty when it is not there.
inline std::vector<NodeCase> folder_cases(const std::filesystem::path& root) {
  std::vector<NodeCase> cases;
  if (!std::filesystem::is_directory(root)) return cases;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    NodeCase c;
    c.name = entry.path().filename().string();
    if (!read_message(entry.path() / "model.onnx", c.model)) continue;
    const onnx::GraphProto& graph = c.model.graph();
    c.tensors_only = std::all_of(graph.input().begin(), graph.input().end(), is_tensor) &&
                     std::all_of(graph.output().begin(), graph.output().end(), is_tensor);
    if (c.tensors_only) {
      c.inputs = read_folder_data(entry.path(), "input", graph.input_size());
      c.outputs = read_folder_data(entry.path(), "output", graph.output_size());
    }
    cases.push_back(std::move(c));
  }
  std::sort(cases.begin(), cases.end(),
            [](const NodeCase& a, const NodeCase& b) { return a.name < b.name; });
  return cases;
}

inline std::vector<NodeCase> packed_cases(const std::string& path) {
  std::vector<NodeCase> cases;
  std::ifstream file(path, std::ios::binary);
  google::protobuf::io::IstreamInputStream raw(&file);
  google::protobuf::io::GzipInputStream stream(&raw);
  for (;;) {
    NodeCase c;
    bool clean_end = false;
    if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&c.model, &stream, &clean_end)) {
      break;
    }
    onnx::GraphProto& graph = *c.model.mutable_graph();
    c.name = graph.name();
    auto* all = graph.mutable_initializer();
    auto take = [&](const std::string& prefix, const auto& values) {
      std::vector<onnx::TensorProto> out;
      for (const onnx::ValueInfoProto& value : values) {
        const auto found = std::find_if(all->begin(), all->end(), [&](const auto& tensor) {
          return tensor.name() == prefix + value.name();
        });
        out.push_back(found == all->end() ? onnx::TensorProto() : *found);
      }
      return out;
    };
    c.inputs = take("in:", graph.input());
    c.outputs = take("out:", graph.output());
    all->erase(std::remove_if(all->begin(), all->end(),
                              [](const auto& tensor) {
                                return tensor.name().starts_with("in:") ||
                                       tensor.name().starts_with("out:");
                              }),
               all->end());
    cases.push_back(std::move(c));
  }
  return cases;
}

// ---- Tensors and models of ours ----

inline bool is_narrow(int type) {
  return type == onnx::TensorProto::UINT8 || type == onnx::TensorProto::INT8 ||
         type == onnx::TensorProto::UINT16 || type == onnx::TensorProto::INT16;
}

inline std::optional<DType> dtype_of(int type) {
  switch (type) {
    case onnx::TensorProto::UINT8:
    case onnx::TensorProto::INT8:
    case onnx::TensorProto::UINT16:
    case onnx::TensorProto::INT16:
      return DType::kI32;  // which holds them
    case onnx::TensorProto::FLOAT:
      return DType::kF32;
    case onnx::TensorProto::DOUBLE:
      return DType::kF64;
    case onnx::TensorProto::FLOAT16:
      return DType::kF16;
    case onnx::TensorProto::BFLOAT16:
      return DType::kBF16;
    case onnx::TensorProto::INT64:
      return DType::kI64;
    case onnx::TensorProto::INT32:
      return DType::kI32;
    case onnx::TensorProto::BOOL:
      return DType::kBool;
    default:
      return {};
  }
}

template <class To, class Field>
Bytes packed_elements(const Field& field) {
  std::vector<To> out;
  for (const auto& x : field) out.push_back(static_cast<To>(x));
  return Bytes::copy_of(out.data(), out.size() * sizeof(To));
}

template <class From>
Bytes widened(const std::string& raw) {
  std::vector<From> from(raw.size() / sizeof(From));
  std::memcpy(from.data(), raw.data(), from.size() * sizeof(From));
  return packed_elements<int32_t>(from);
}

inline Bytes data_of(const onnx::TensorProto& tensor, DType dtype) {
  if (tensor.has_raw_data()) switch (tensor.data_type()) {
      case onnx::TensorProto::UINT8:
        return widened<uint8_t>(tensor.raw_data());
      case onnx::TensorProto::INT8:
        return widened<int8_t>(tensor.raw_data());
      case onnx::TensorProto::UINT16:
        return widened<uint16_t>(tensor.raw_data());
      case onnx::TensorProto::INT16:
        return widened<int16_t>(tensor.raw_data());
      default:
        break;
    }
  if (tensor.has_raw_data())
    return Bytes::copy_of(tensor.raw_data().data(), tensor.raw_data().size());
  switch (dtype) {
    case DType::kF32:
      return packed_elements<float>(tensor.float_data());
    case DType::kF64:
      return packed_elements<double>(tensor.double_data());
    case DType::kI64:
      return packed_elements<int64_t>(tensor.int64_data());
    case DType::kI32:
      return packed_elements<int32_t>(tensor.int32_data());
    case DType::kBool:
      return packed_elements<uint8_t>(tensor.int32_data());
    default:
      return packed_elements<uint16_t>(tensor.int32_data());
  }
}

inline TensorType type_of(const onnx::TensorProto& tensor) {
  return {*dtype_of(tensor.data_type()), {tensor.dims().begin(), tensor.dims().end()}};
}

// Through a file; no dim of its inputs counts samples.
inline Result<Imported> import_model(const onnx::ModelProto& model) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("piper-test-model-{}.onnx", getpid()))
          .string();
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
  ImportOptions options;
  for (const onnx::ValueInfoProto& input : model.graph().input()) {
    options.inputs.push_back({.name = input.name(), .batch_dim = -1});
  }
  Result<Imported> out = import_onnx(path, options);
  std::filesystem::remove(path);
  return out;
}

}  // namespace piper::test
