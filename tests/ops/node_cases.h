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

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

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

}  // namespace piper::test
