// Every import rule against ONNX's own reference evaluator: tests/data/import_rules.json holds uses
// of operators with their results (made by make_import_rules.py beside it).
#include "piper/frontend/import.h"

#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "evaluate.h"

namespace piper::import_ops_test {
namespace {

using Json = nlohmann::json;

Json read_cases() {
  std::ifstream in(std::string(PIPER_SOURCE_DIR) + "/tests/data/import_rules.json");
  return Json::parse(in);
}

int onnx_type(const std::string& name) {
  if (name == "f32") return onnx::TensorProto::FLOAT;
  if (name == "i32") return onnx::TensorProto::INT32;
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
    } else if (tensor["type"] == "i32") {
      out->add_int32_data(v.get<int32_t>());
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
  } else if (!value.empty() && value[0].is_string()) {
    attr->set_type(onnx::AttributeProto::STRINGS);
    for (const Json& v : value) attr->add_strings(v.get<std::string>());
  } else if (!value.empty() && value[0].is_number_float()) {
    attr->set_type(onnx::AttributeProto::FLOATS);
    for (const float v : value) attr->add_floats(v);
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
    const bool is_infinite = std::isinf(made.values[i]);
    if (is_infinite && values[i] == std::copysign(1e39, made.values[i])) continue;
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

std::string temporary_path() {
  return (std::filesystem::temp_directory_path() /
          fmt::format("piper-import-rules-{}.onnx", getpid()))
      .string();
}

onnx::NodeProto& add_node(auto& list, const std::string& op, std::vector<std::string> inputs,
                          std::vector<std::string> outputs) {
  onnx::NodeProto& node = *list.add_node();
  node.set_op_type(op);
  for (const std::string& name : inputs) node.add_input(name);
  for (const std::string& name : outputs) node.add_output(name);
  return node;
}

// Of the values x = [1, -2, 3] of a model with that input and one output.
std::vector<double> result_of(const onnx::ModelProto& model, std::string* error = nullptr) {
  const std::string path = temporary_path();
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
  ImportOptions options;
  options.inputs.push_back({.name = "x", .batch_dim = -1});
  Result<Imported> imported = import_onnx(path, options);
  std::filesystem::remove(path);
  if (!imported) {
    if (error) *error = imported.error().message;
    EXPECT_NE(error, nullptr) << print_error(imported.error());
    return {};
  }
  const Graph& graph = imported->graph;
  test::Values values(graph.values.size());
  const ValueId x = graph.find_value("x");
  if (x.valid()) values[x.index()] = test::Tensor{graph.value(x).type, {1, -2, 3}};
  values = test::evaluate(graph, std::move(values));
  return values[graph.outputs[0].index()]->values;
}

onnx::ModelProto empty_model() {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(18);
  add_input(*model.mutable_graph(), "x", Json{{"type", "f32"}, {"shape", {3}}});
  model.mutable_graph()->add_output()->set_name("y");
  return model;
}

// An omitted output has the name of an omitted input, and is none the less no operand of it.
TEST(ImportNodes, OmittedOutputsAreNoOperands) {
  onnx::ModelProto model = empty_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  add_node(graph, "Dropout", {"x", "", ""}, {"d", ""});
  add_node(graph, "Dropout", {"d", "", ""}, {"", "kept"});
  onnx::NodeProto& cast = add_node(graph, "Cast", {"kept"}, {"ones"});
  add_attribute(cast, "to", int64_t{onnx::TensorProto::FLOAT});
  add_node(graph, "Clip", {"d", "", "ones"}, {"y"});
  EXPECT_EQ(result_of(model), (std::vector<double>{1, -2, 1}));
}

// ---- Files and inputs ---------------------------------------------------------------------------

std::string error_of(const onnx::ModelProto& model, const ImportOptions& options) {
  const std::string path = temporary_path();
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
  const Result<Imported> imported = import_onnx(path, options);
  std::filesystem::remove(path);
  return imported ? "" : imported.error().message;
}

TEST(ImportFiles, AreReadUpToWhatProtobufReads) {
  const std::string path = temporary_path();
  const auto error_at = [&](uintmax_t bytes) {
    std::ofstream(path).close();
    std::filesystem::resize_file(path, bytes);  // zeros that take no room
    const std::string error = import_onnx(path, {}).error().message;
    std::filesystem::remove(path);
    return error;
  };
  EXPECT_EQ(error_at(uintmax_t{600} << 20), "not an ONNX model, or a truncated one");
  EXPECT_EQ(error_at(uintmax_t{1} << 31), "the model file has 2.0 GiB; at most 2.0 GiB are read");
}

TEST(ImportInputs, TakeShapesFromTheStrategy) {
  onnx::ModelProto model = empty_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  add_node(graph, "Neg", {"x"}, {"y"});
  auto* type = graph.mutable_input(0)->mutable_type()->mutable_tensor_type();
  ImportOptions options;
  options.inputs.push_back({.name = "x", .shape = Shape{3}, .batch_dim = -1});
  const auto shape_of = [&](const ImportOptions& with) {
    const std::string path = temporary_path();
    std::ofstream(path, std::ios::binary) << model.SerializeAsString();
    const Result<Imported> imported = import_onnx(path, with);
    return imported ? imported->graph.value(imported->graph.inputs[0]).type.shape : Shape{};
  };
  type->mutable_shape()->mutable_dim(0)->set_dim_value(-1);
  EXPECT_EQ(shape_of(options), Shape{3});
  EXPECT_EQ(shape_of({.batch = 5}), Shape{5});
  type->mutable_shape()->mutable_dim(0)->set_dim_value(0);
  EXPECT_EQ(error_of(model, {}), "input 'x' has no samples: its dim 0 is 0");
  type->mutable_shape()->mutable_dim(0)->set_dim_value(-2);
  EXPECT_EQ(error_of(model, options), "input 'x' has a negative dim: -2");
  type->clear_shape();
  EXPECT_EQ(shape_of(options), Shape{3});
  EXPECT_EQ(error_of(model, {}), "input 'x' has no shape in the file: the strategy must say it");
}

TEST(ImportInputs, ThatAreNotSupportedAreNamedByTheirTypes) {
  onnx::ModelProto model = empty_model();
  add_node(*model.mutable_graph(), "Neg", {"x"}, {"y"});
  auto* type = model.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type();
  for (const auto& [code, name] :
       {std::pair(12, "uint32"), std::pair(8, "string"), std::pair(17, "float8e4m3fn")}) {
    type->set_elem_type(code);
    EXPECT_EQ(error_of(model, {}),
              fmt::format("input 'x' has elements of {}, which is not supported", name));
  }
  type->set_elem_type(onnx::TensorProto::FLOAT);
  add_attribute(*model.mutable_graph()->mutable_node(0), "to", int64_t{12});
  model.mutable_graph()->mutable_node(0)->set_op_type("Cast");
  EXPECT_NE(error_of(model, {.batch = 3}).find("casts to uint32, which is not supported"),
            std::string::npos);
}

// What is computed in f64 takes the number itself, not what it became in the model's type.
TEST(ImportNumbers, KeepWhatWasRounded) {
  onnx::ModelProto model = empty_model();
  add_node(*model.mutable_graph(), "ReduceMean", {"x"}, {"y"});
  const std::string path = temporary_path();
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
  const Result<Imported> imported = import_onnx(path, {.batch = 3});
  std::filesystem::remove(path);
  ASSERT_TRUE(imported) << print_error(imported.error());
  for (const Value& value : imported->graph.values) {
    if (value.kind != ValueKind::kConstant || !info(value.type.dtype).is_float) continue;
    double exact = 0;
    ASSERT_EQ(value.exact.size, sizeof exact);
    std::memcpy(&exact, value.exact.data, sizeof exact);
    EXPECT_EQ(exact, 1.0 / 3);
  }
}

// leaky(x){slope}: LeakyRelu with the attribute of the call, or the default of the operator;
// twice(x) calls leaky with 0.5 and doubles what comes out.
TEST(ImportFunctions, BecomeTheirNodes) {
  onnx::ModelProto model = empty_model();
  onnx::FunctionProto& leaky = *model.add_functions();
  leaky.set_name("leaky");
  leaky.set_domain("own");
  leaky.add_input("a");
  leaky.add_output("b");
  leaky.add_output("same");
  leaky.add_attribute("slope");
  onnx::AttributeProto& alpha = *add_node(leaky, "LeakyRelu", {"a"}, {"b"}).add_attribute();
  alpha.set_name("alpha");
  alpha.set_type(onnx::AttributeProto::FLOAT);
  alpha.set_ref_attr_name("slope");
  add_node(leaky, "Identity", {"a"}, {"same"});
  onnx::FunctionProto& twice = *model.add_functions();
  twice.set_name("twice");
  twice.set_domain("own");
  twice.add_input("v");
  twice.add_output("w");
  onnx::NodeProto& call = add_node(twice, "leaky", {"v"}, {"t"});
  call.set_domain("own");
  add_attribute(call, "slope", 0.5);
  add_node(twice, "Add", {"t", "t"}, {"w"});
  onnx::GraphProto& graph = *model.mutable_graph();
  add_node(graph, "twice", {"x"}, {"p"}).set_domain("own");
  add_node(graph, "leaky", {"p"}, {"q", "r"}).set_domain("own");
  add_node(graph, "Sub", {"q", "r"}, {"y"});
  // p = [2, -2, 6], q = [2, -0.02, 6], r = p
  const std::vector<double> y = result_of(model);
  ASSERT_EQ(y.size(), 3u);
  EXPECT_EQ(y[0], 0);
  EXPECT_NEAR(y[1], 1.98, 1e-6);
  EXPECT_EQ(y[2], 0);
}

// Samples named by their numbers, as the older exporter writes x[b, t] for all b: no lookup is
// left, which would couple them.
TEST(ImportIndices, OfAllRowsInOrderAreNone) {
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{0, 1, 2}, {0, 2, 1}}) {
    onnx::ModelProto model = empty_model();
    onnx::GraphProto& graph = *model.mutable_graph();
    add_initializer(graph, "rows", Json{{"type", "i64"}, {"shape", {3, 1}}, {"data", rows}});
    add_node(graph, "Gather", {"x", "rows"}, {"z"});
    add_node(graph, "Neg", {"z"}, {"y"});
    const std::string path = temporary_path();
    std::ofstream(path, std::ios::binary) << model.SerializeAsString();
    const Result<Imported> imported = import_onnx(path, {});
    ASSERT_TRUE(imported) << print_error(imported.error());
    EXPECT_EQ(imported->graph.nodes[0].op, rows[1] == 1 ? "Reshape" : "Gather");
    EXPECT_EQ(imported->graph.value(imported->graph.outputs[0]).type.shape, (Shape{3, 1}));
    const double first = -1, second = rows[1] == 1 ? 2 : -3;
    const std::vector<double> y = result_of(model);
    ASSERT_EQ(y.size(), 3u);
    EXPECT_EQ(std::pair(y[0], y[1]), std::pair(first, second));
  }
}

// The range of f16 ends at 65504: what is divided, or a root of, is summed beyond it.
TEST(ImportNumbers, OfSixteenBitsAreSummedInMore) {
  const auto result = [](const std::string& op, double scale, const Json& attrs) {
    onnx::ModelProto model = empty_model();
    onnx::GraphProto& graph = *model.mutable_graph();
    add_initializer(graph, "scale",
                    Json{{"type", "f32"}, {"shape", Json::array()}, {"data", {scale}}});
    add_initializer(graph, "shape", Json{{"type", "i64"}, {"shape", {3}}, {"data", {1, 1, 3}}});
    add_node(graph, "Mul", {"x", "scale"}, {"a"});
    add_node(graph, "Abs", {"a"}, {"b"});
    add_node(graph, "Reshape", {"b", "shape"}, {"c"});
    add_attribute(add_node(graph, "Cast", {"c"}, {"half"}), "to",
                  int64_t{onnx::TensorProto::FLOAT16});
    onnx::NodeProto& node = add_node(graph, op, {"half"}, {"made"});
    for (const auto& [name, value] : attrs.items()) add_attribute(node, name, value);
    add_attribute(add_node(graph, "Cast", {"made"}, {"y"}), "to",
                  int64_t{onnx::TensorProto::FLOAT});
    return result_of(model)[0];
  };
  const double root = std::sqrt(14);  // of 1 + 4 + 9
  const Json three{{"kernel_shape", {3}}}, none = Json::object();
  EXPECT_NEAR(result("ReduceMean", 2e4, none), 4e4, 40);
  EXPECT_NEAR(result("GlobalAveragePool", 2e4, none), 4e4, 40);
  EXPECT_NEAR(result("AveragePool", 2e4, three), 4e4, 40);
  EXPECT_NEAR(result("ReduceLogSum", 2e4, none), std::log(12e4), 0.01);
  EXPECT_NEAR(result("ReduceL2", 1e4, none), 1e4 * root, 40);
  EXPECT_NEAR(result("LpPool", 1e4, three), 1e4 * root, 40);
  EXPECT_NEAR(result("GlobalLpPool", 1e4, none), 1e4 * root, 40);
  EXPECT_NEAR(result("LpNormalization", 1e4, {{"axis", 2}}), 1 / root, 1e-3);
  EXPECT_NEAR(result("MeanVarianceNormalization", 2e4, {{"axes", {1, 2}}}), -std::sqrt(1.5), 2e-3);
}

// Sums of integers of few bits wrap around, wherever they come from.
TEST(ImportIntegers, OfFewBitsAreNotAdded) {
  const auto error_after = [](auto make) {
    onnx::ModelProto model = empty_model();
    onnx::GraphProto& graph = *model.mutable_graph();
    add_initializer(graph, "shape", Json{{"type", "i64"}, {"shape", {2}}, {"data", {3, 3}}});
    add_initializer(graph, "scale",
                    Json{{"type", "f32"}, {"shape", Json::array()}, {"data", {0.1}}});
    add_initializer(graph, "zero", Json{{"type", "i64"}, {"shape", Json::array()}, {"data", {0}}});
    make(graph);
    add_node(graph, "Add", {"few", "few"}, {"sum"}).set_name("the sum");
    add_attribute(add_node(graph, "Cast", {"sum"}, {"wide"}), "to",
                  int64_t{onnx::TensorProto::FLOAT});
    add_node(graph, "Add", {"wide", "x"}, {"y"});
    std::string error;
    result_of(model, &error);
    return error;
  };
  const std::string refused =
      "node 'the sum' (Add): is not supported of integers of 8 bits: cast them before";
  constexpr int64_t kByte = onnx::TensorProto::UINT8;
  const auto bytes = [](onnx::GraphProto& graph, const std::string& name) {
    onnx::AttributeProto& attr =
        *add_node(graph, "ConstantOfShape", {"shape"}, {name}).add_attribute();
    attr.set_name("value");
    attr.set_type(onnx::AttributeProto::TENSOR);
    attr.mutable_t()->set_data_type(onnx::TensorProto::UINT8);
    attr.mutable_t()->add_dims(1);
    attr.mutable_t()->add_int32_data(200);
  };
  EXPECT_EQ(error_after([&](auto& graph) { bytes(graph, "few"); }), refused);
  EXPECT_EQ(error_after([&](auto& graph) {
              bytes(graph, "a");
              add_node(graph, "SequenceConstruct", {"a", "a"}, {"list"});
              add_attribute(add_node(graph, "ConcatFromSequence", {"list"}, {"few"}), "axis",
                            int64_t{0});
            }),
            refused);
  EXPECT_EQ(error_after([&](auto& graph) {
              bytes(graph, "a");
              add_node(graph, "SplitToSequence", {"a"}, {"list"});
              add_node(graph, "SequenceAt", {"list", "zero"}, {"few"});
            }),
            refused);
  EXPECT_EQ(error_after([&](auto& graph) {
              add_node(graph, "QuantizeLinear", {"x", "scale"}, {"few"});
            }),
            refused);
  EXPECT_EQ(error_after([&](auto& graph) {
              add_node(graph, "Abs", {"x"}, {"size"});
              add_node(graph, "Mul", {"size", "scale"}, {"p"});
              add_attribute(add_node(graph, "Bernoulli", {"p"}, {"few"}), "dtype", kByte);
            }),
            refused);
  EXPECT_EQ(error_after([&](auto& graph) {
              add_node(graph, "ConstantOfShape", {"shape"}, {"square"});
              add_attribute(add_node(graph, "EyeLike", {"square"}, {"few"}), "dtype", kByte);
            }),
            refused);
}

// Operands that would enlarge the result are no bias and no slope.
TEST(ImportNodes, DoNotGrowByTheirSecondOperand) {
  for (const std::string op : {"PRelu", "Gemm"}) {
    onnx::ModelProto model = empty_model();
    onnx::GraphProto& graph = *model.mutable_graph();
    add_initializer(graph, "other",
                    Json{{"type", "f32"}, {"shape", {2, 1, 3}}, {"data", {1, 2, 3, 4, 5, 6}}});
    add_initializer(graph, "row", Json{{"type", "i64"}, {"shape", {2}}, {"data", {1, 3}}});
    add_initializer(graph, "w",
                    Json{{"type", "f32"}, {"shape", {3, 3}}, {"data", std::vector<int>(9, 1)}});
    add_node(graph, "Reshape", {"x", "row"}, {"a"});
    if (op == "Gemm")
      add_node(graph, op, {"a", "w", "other"}, {"y"}).set_name("n");
    else
      add_node(graph, op, {"a", "other"}, {"y"}).set_name("n");
    std::string error;
    result_of(model, &error);
    EXPECT_EQ(error, op == "Gemm" ? "node 'n' (Gemm): adds [2,1,3] to [1,3]"
                                  : "node 'n' (PRelu): slopes [2,1,3] of [1,3]");
  }
}

// A scale of more bits than what is normalised, and a type that is asked for, make the result's.
TEST(ImportNodes, MakeTheTypesThatTheySay) {
  onnx::ModelProto model = empty_model();
  model.mutable_opset_import(0)->set_version(23);
  onnx::GraphProto& graph = *model.mutable_graph();
  add_initializer(graph, "scale", Json{{"type", "f32"}, {"shape", {3}}, {"data", {1, 1, 1}}});
  add_initializer(graph, "one", Json{{"type", "f32"}, {"shape", Json::array()}, {"data", {1}}});
  add_attribute(add_node(graph, "Cast", {"x"}, {"half"}), "to",
                int64_t{onnx::TensorProto::FLOAT16});
  add_node(graph, "RMSNormalization", {"half", "scale"}, {"y"});
  add_node(graph, "QuantizeLinear", {"x", "one"}, {"few"});
  add_attribute(add_node(graph, "DequantizeLinear", {"few", "one"}, {"z"}), "output_dtype",
                int64_t{onnx::TensorProto::FLOAT16});
  graph.add_output()->set_name("z");
  const std::string path = temporary_path();
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
  const Result<Imported> imported = import_onnx(path, {});
  std::filesystem::remove(path);
  ASSERT_TRUE(imported) << print_error(imported.error());
  const Graph& made = imported->graph;
  EXPECT_EQ(made.value(made.outputs[0]).type.dtype, DType::kF32);
  EXPECT_EQ(made.value(made.outputs[1]).type.dtype, DType::kF16);
}

// Rows of a value that two dims were made one in, by i · 2 + v: places of sample i's own rows,
// where v is known to be in [0, 2), and those of others otherwise.
TEST(ImportIndices, OfOwnRowsAreKnownToBeInside) {
  for (const bool inside : {false, true}) {
    onnx::ModelProto model = empty_model();
    onnx::GraphProto& graph = *model.mutable_graph();
    const auto integers = [&](const char* name, const Shape& shape, std::vector<int64_t> values) {
      add_initializer(graph, name, Json{{"type", "i64"}, {"shape", shape}, {"data", values}});
    };
    integers("column", {2}, {3, 1});
    integers("flat", {1}, {6});
    integers("own", {3}, {0, 2, 4});
    integers("two", {}, {2});
    add_node(graph, "Reshape", {"x", "column"}, {"a"});
    add_node(graph, "Neg", {"a"}, {"b"});
    add_attribute(add_node(graph, "Concat", {"a", "b"}, {"rows"}), "axis", int64_t{1});
    add_node(graph, "Reshape", {"rows", "flat"}, {"all"});  // 1 -1 -2 2 3 -3
    add_node(graph, "Sign", {"x"}, {"sign"});
    add_attribute(add_node(graph, "Cast", {"sign"}, {"places"}), "to",
                  int64_t{onnx::TensorProto::INT64});
    if (inside) add_node(graph, "Mod", {"places", "two"}, {"rest"});
    add_node(graph, "Add", {"own", inside ? "rest" : "places"}, {"index"});
    add_node(graph, "Gather", {"all", "index"}, {"y"});
    EXPECT_EQ(result_of(model),
              inside ? (std::vector<double>{-1, 2, -3}) : (std::vector<double>{-1, -1, -3}));
    const std::string path = temporary_path();
    std::ofstream(path, std::ios::binary) << model.SerializeAsString();
    const Result<Imported> imported = import_onnx(path, {});
    ASSERT_TRUE(imported) << print_error(imported.error());
    EXPECT_EQ(imported->graph.nodes.back().op, inside ? "GatherND" : "Gather");
  }
}

// y = If(size of x == n, then x + x, else Frobnicate(x)): the branch not taken need not be
// supported.
onnx::ModelProto branching(int64_t n) {
  onnx::ModelProto model = empty_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  add_initializer(graph, "n", Json{{"type", "i64"}, {"shape", Json::array()}, {"data", {n}}});
  add_node(graph, "Size", {"x"}, {"size"});
  add_node(graph, "Equal", {"size", "n"}, {"is"});
  onnx::NodeProto& node = add_node(graph, "If", {"is"}, {"y"});
  node.set_name("choice");
  for (const char* name : {"then_branch", "else_branch"}) {
    onnx::AttributeProto& attr = *node.add_attribute();
    attr.set_name(name);
    attr.set_type(onnx::AttributeProto::GRAPH);
    const bool then = attr.name() == "then_branch";
    if (then) {
      add_node(*attr.mutable_g(), "Add", {"x", "x"}, {"z"});
    } else {
      add_node(*attr.mutable_g(), "Frobnicate", {"x"}, {"z"});
    }
    attr.mutable_g()->add_output()->set_name("z");
  }
  return model;
}

TEST(ImportBranches, OfAKnownConditionAreTaken) {
  EXPECT_EQ(result_of(branching(3)), (std::vector<double>{2, -4, 6}));
  std::string error;
  result_of(branching(4), &error);
  EXPECT_EQ(error, "the model uses 1 operator of opset 18 that is not supported");
}

// Each body names what it likes.
TEST(ImportBranches, MayNameTheirValuesAlike) {
  onnx::ModelProto model = empty_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  add_initializer(graph, "one", Json{{"type", "i64"}, {"shape", Json::array()}, {"data", {1}}});
  add_node(graph, "Equal", {"one", "one"}, {"is"});
  for (const auto& [from, to, factor] : {std::tuple("x", "h", 2.0), {"h", "y", 3.0}}) {
    onnx::NodeProto& node = add_node(graph, "If", {"is"}, {to});
    for (const char* name : {"then_branch", "else_branch"}) {
      onnx::AttributeProto& attr = *node.add_attribute();
      attr.set_name(name);
      attr.set_type(onnx::AttributeProto::GRAPH);
      onnx::GraphProto& branch = *attr.mutable_g();
      add_initializer(branch, "k",
                      Json{{"type", "f32"}, {"shape", Json::array()}, {"data", {factor}}});
      add_node(branch, "Mul", {from, "k"}, {"z"});
      add_node(branch, "Neg", {"z"}, {"w"});
      branch.add_output()->set_name("w");
    }
  }
  EXPECT_EQ(result_of(model), (std::vector<double>{6, -12, 18}));
}

TEST(ImportBranches, OfAnUnknownConditionAreRefused) {
  onnx::ModelProto model = branching(3);
  onnx::GraphProto& graph = *model.mutable_graph();
  add_node(graph, "ReduceSum", {"x"}, {"sum"});
  onnx::NodeProto& cast = add_node(graph, "Cast", {"sum"}, {"positive"});
  add_attribute(cast, "to", int64_t{onnx::TensorProto::BOOL});
  graph.mutable_node(2)->set_input(0, "positive");
  std::string error;
  result_of(model, &error);
  EXPECT_EQ(error, "node 'choice' (If): is not supported where its condition depends on the data");
}

// A loop of so many turns that carries x: of `inner` loops, each in the body of the one before, and
// -x in the last one's.
void add_loop(auto& graph, const std::vector<int64_t>& turns, size_t at, const std::string& from,
              const std::string& to) {
  onnx::NodeProto& loop = add_node(graph, "Loop", {fmt::format("turns{}", at), "", from}, {to});
  onnx::AttributeProto& attr = *loop.add_attribute();
  attr.set_name("body");
  attr.set_type(onnx::AttributeProto::GRAPH);
  onnx::GraphProto& body = *attr.mutable_g();
  const auto own = [&](const char* name) { return fmt::format("{}{}", name, at); };
  for (const char* input : {"turn", "before", "in"}) body.add_input()->set_name(own(input));
  add_node(body, "Identity", {own("before")}, {own("after")});
  if (at + 1 < turns.size())
    add_loop(body, turns, at + 1, own("in"), own("out"));
  else
    add_node(body, "Neg", {own("in")}, {own("out")});
  for (const char* output : {"after", "out"}) body.add_output()->set_name(own(output));
}
onnx::ModelProto loops(const std::vector<int64_t>& turns) {
  onnx::ModelProto model = empty_model();
  for (size_t i = 0; i < turns.size(); ++i)
    add_initializer(*model.mutable_graph(), fmt::format("turns{}", i),
                    Json{{"type", "i64"}, {"shape", Json::array()}, {"data", {turns[i]}}});
  add_loop(*model.mutable_graph(), turns, 0, "x", "y");
  return model;
}

// Behind the turns of the outer loop stand as many inner ones in a row, and none decides another.
TEST(ImportLoops, InARowAreNotDeep) {
  EXPECT_EQ(result_of(loops({151, 3})), (std::vector<double>{-1, 2, -3}));
}

TEST(ImportLoops, TogetherHaveABound) {
  std::string error;
  result_of(loops({1000, 1000, 1000}), &error);
  EXPECT_NE(error.find("can still be written one by one"), std::string::npos) << error;
}

// y = op(x as [1, 3, 1], scale, as many more of its shape as the op has).
std::string error_with_scale(const std::string& op, size_t inputs, const Shape& shape) {
  onnx::ModelProto model = empty_model();
  model.mutable_opset_import(0)->set_version(23);
  onnx::GraphProto& graph = *model.mutable_graph();
  add_initializer(graph, "dims", Json{{"type", "i64"}, {"shape", {3}}, {"data", {1, 3, 1}}});
  const std::vector<double> ones(static_cast<size_t>(num_elements(shape)), 1);
  std::vector<std::string> names{"r"};
  for (size_t i = 1; i < inputs; ++i) {
    names.push_back(fmt::format("scale{}", i));
    add_initializer(graph, names.back(), Json{{"type", "f32"}, {"shape", shape}, {"data", ones}});
  }
  add_node(graph, "Reshape", {"x", "dims"}, {"r"});
  onnx::NodeProto& node = add_node(graph, op, names, {"y"});
  node.set_name("node");
  if (op == "GroupNormalization") add_attribute(node, "num_groups", 3);
  std::string error;
  result_of(model, &error);
  return error;
}

TEST(ImportRules, ScalesOfAnyShapeFitOrAreRefused) {
  const std::pair<const char*, size_t> ops[] = {
      {"LayerNormalization", 3},    {"RMSNormalization", 2},   {"GroupNormalization", 3},
      {"InstanceNormalization", 3}, {"BatchNormalization", 5}, {"PRelu", 2}};
  const std::vector<Shape> shapes{{},     {0},    {1},       {3},       {7},
                                  {1, 1}, {3, 1}, {1, 3, 1}, {2, 3, 1}, {1, 1, 1, 1}};
  for (const auto& [op, inputs] : ops)
    for (const Shape& shape : shapes) {
      const std::string error = error_with_scale(op, inputs, shape);
      EXPECT_TRUE(error.empty() || error.starts_with(fmt::format("node 'node' ({}): ", op)))
          << op << to_string(shape) << ": " << error;
    }
  EXPECT_EQ(error_with_scale("RMSNormalization", 2, {1, 3, 1}), "");
  EXPECT_EQ(error_with_scale("RMSNormalization", 2, {2, 3, 1}),
            "node 'node' (RMSNormalization): [2,3,1] cannot be expanded to [1,3,1]");
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
}  // namespace piper::import_ops_test
