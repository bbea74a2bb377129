// Every import rule against ONNX's own reference evaluator: tests/data/import_rules.json holds uses
// of operators with their results (made by make_import_rules.py beside it).
#include "piper/import.h"

#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "evaluate.h"

namespace piper {
namespace {

using Json = nlohmann::json;

Json read_cases() {
  std::ifstream in(std::string(PIPER_SOURCE_DIR) + "/tests/data/import_rules.json");
  return Json::parse(in);
}

int onnx_type(const std::string& name) {
  if (name == "f32") return onnx::TensorProto::FLOAT;
  return name == "i64" ? onnx::TensorProto::INT64 : onnx::TensorProto::BOOL;
}

void add_initializer(onnx::GraphProto& graph, const std::string& name, const Json& tensor) {
  onnx::TensorProto* out = graph.add_initializer();
  out->set_name(name);
  out->set_data_type(onnx_type(tensor["type"]));
  for (const int64_t d : tensor["shape"]) out->add_dims(d);
  for (const Json& v : tensor["data"]) {
    if (tensor["type"] == "f32") {
      out->add_float_data(v.get<float>());
    } else {
      out->add_int64_data(v.get<int64_t>());
    }
  }
}

void add_input(onnx::GraphProto& graph, const std::string& name, const Json& tensor) {
  onnx::ValueInfoProto* out = graph.add_input();
  out->set_name(name);
  auto* type = out->mutable_type()->mutable_tensor_type();
  type->set_elem_type(onnx_type(tensor["type"]));
  type->mutable_shape();
  for (const int64_t d : tensor["shape"]) type->mutable_shape()->add_dim()->set_dim_value(d);
}

void add_attribute(onnx::NodeProto& node, const std::string& name, const Json& value) {
  onnx::AttributeProto* attr = node.add_attribute();
  attr->set_name(name);
  if (value.is_string()) {
    attr->set_type(onnx::AttributeProto::STRING);
    attr->set_s(value.get<std::string>());
  } else if (value.is_number_integer()) {
    attr->set_type(onnx::AttributeProto::INT);
    attr->set_i(value.get<int64_t>());
  } else if (value.is_number()) {
    attr->set_type(onnx::AttributeProto::FLOAT);
    attr->set_f(value.get<float>());
  } else {
    attr->set_type(onnx::AttributeProto::INTS);
    for (const int64_t v : value) attr->add_ints(v);
  }
}

onnx::ModelProto model_of(const Json& use) {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(use["opset"].get<int64_t>());
  onnx::GraphProto& graph = *model.mutable_graph();
  onnx::NodeProto& node = *graph.add_node();
  node.set_name("node");
  node.set_op_type(use["op"].get<std::string>());
  for (const auto& [name, value] : use["attrs"].items()) add_attribute(node, name, value);
  for (size_t i = 0; i < use["inputs"].size(); ++i) {
    const Json& tensor = use["inputs"][i];
    const std::string name = tensor.is_null() ? "" : fmt::format("in{}", i);
    node.add_input(name);
    if (tensor.is_null()) continue;
    if (tensor["constant"]) {
      add_initializer(graph, name, tensor);
    } else {
      add_input(graph, name, tensor);
    }
  }
  for (size_t i = 0; i < use["outputs"].size(); ++i) {
    node.add_output(fmt::format("out{}", i));
    graph.add_output()->set_name(fmt::format("out{}", i));
  }
  return model;
}

ImportOptions options_of(const Json& use) {
  ImportOptions options;
  for (size_t i = 0; i < use["inputs"].size(); ++i) {
    const Json& tensor = use["inputs"][i];
    // No dim counts samples here.
    if (!tensor.is_null() && !tensor["constant"]) {
      options.inputs.push_back({.name = fmt::format("in{}", i), .batch_dim = -1});
    }
  }
  return options;
}

std::vector<double> numbers(const Json& data) {
  std::vector<double> out;
  for (const Json& v : data)
    out.push_back(v.is_boolean() ? (v.get<bool>() ? 1 : 0) : v.get<double>());
  return out;
}

void expect_output(const test::Tensor& made, const Json& expected) {
  EXPECT_EQ(info(made.type.dtype).name, expected["type"].get<std::string>());
  EXPECT_EQ(made.type.shape, expected["shape"].get<Shape>());
  const std::vector<double> values = numbers(expected["data"]);
  ASSERT_EQ(made.values.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(made.values[i], values[i], 3e-6 * std::max(1.0, std::fabs(values[i])))
        << "element " << i;
  }
}

void check_case(const Json& use, const std::string& path) {
  std::ofstream(path, std::ios::binary) << model_of(use).SerializeAsString();
  Result<Imported> imported = import_onnx(path, options_of(use));
  ASSERT_TRUE(imported.ok()) << print_error(imported.error());
  const Graph& graph = imported->graph;
  test::Values values(graph.values.size());
  for (const ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    const size_t i = static_cast<size_t>(value.name[2] - '0');
    values[id.index()] = test::Tensor{value.type, numbers(use["inputs"][i]["data"])};
  }
  values = test::evaluate(graph, std::move(values));
  ASSERT_EQ(graph.outputs.size(), use["outputs"].size());
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    expect_output(*values[graph.outputs[i].index()], use["outputs"][i]);
  }
}

TEST(ImportRules, AgreeWithOnnxsReferenceEvaluator) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("piper-import-rules-{}.onnx", getpid()))
          .string();
  for (const Json& use : read_cases()) {
    SCOPED_TRACE(use["op"].get<std::string>() + " " + use["attrs"].dump());
    check_case(use, path);
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace piper
