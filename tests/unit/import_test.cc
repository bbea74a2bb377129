// Imports of real exports, compared with what PyTorch says of them. The models are not part of the
// repository: the cases that read them are skipped where the folder PIPER_MODELS is absent.
#include "piper/frontend/import.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "evaluate.h"
#include "piper/base/data.h"
#include "piper/frontend/onnx.h"
#include "seed.h"

namespace piper::import_test {
namespace {

using Json = nlohmann::ordered_json;

std::string models_folder() {
  const char* named = std::getenv("PIPER_MODELS");
  return named ? named : std::string(PIPER_SOURCE_DIR) + "/../shared/models";
}
std::string file_of(const std::string& model, const std::string& file) {
  return models_folder() + "/" + model + "/" + file;
}
Json reference(const std::string& model) {
  std::ifstream in(file_of(model, "reference.json"));
  return Json::parse(in);
}

constexpr const char* kBertBias = "model.cls.predictions.decoder.bias";

// What every model needs to be read with.
ImportOptions options_for_batch(int64_t batch) {
  ImportOptions options;
  options.batch = batch;
  return options;
}

std::string text_of(const Error& error) {
  std::string out = error.message;
  for (const std::string& note : error.notes) out += "\n" + note;
  return out;
}

struct ImportOf : testing::TestWithParam<std::string> {
  void SetUp() override {
    if (!std::filesystem::exists(file_of(GetParam(), "model.onnx"))) {
      GTEST_SKIP() << "no " << file_of(GetParam(), "model.onnx");
    }
    Result<Imported> result = import_onnx(file_of(GetParam(), "model.onnx"), options_for_batch(8));
    ASSERT_TRUE(result.ok()) << text_of(result.error());
    imported = *std::move(result);
  }
  Imported imported;
};

// ---- Parameters ---------------------------------------------------------------------------------

TEST_P(ImportOf, HasTheParametersOfTheModuleInItsOrder) {
  const Json expected = reference(GetParam());
  std::vector<std::string> names, expected_names;
  int64_t elements = 0;
  std::map<std::string, std::string> tied, expected_tied;
  for (const Param& param : imported.graph.params) {
    names.push_back(param.name);
    elements += num_elements(imported.graph.value(param.value).type.shape);
    for (const std::string& alias : param.aliases) tied[alias] = param.name;
  }
  for (const auto& [name, norm] : expected["grad_norm_of"].items()) expected_names.push_back(name);
  for (const auto& [alias, name] : expected["tied"].items()) expected_tied[alias] = name;
  if (GetParam() == "bert-hf") {
    // The file names the second in a call and the first nowhere: it goes by the second.
    std::erase(expected_names, "model.cls.predictions.bias");
    expected_names.push_back(kBertBias);
    std::sort(expected_names.begin(), expected_names.end());
    std::sort(names.begin(), names.end());
    expected_tied.erase(kBertBias);
    expected_tied["model.cls.predictions.bias"] = kBertBias;
  }
  EXPECT_EQ(names, expected_names);
  EXPECT_EQ(static_cast<int64_t>(names.size()), expected["parameters"].get<int64_t>());
  EXPECT_EQ(elements, expected["elements"].get<int64_t>());
  EXPECT_EQ(tied, expected_tied);
}

TEST_P(ImportOf, HasTheValuesOfTheModuleBitForBit) {
  const Result<std::vector<NamedTensor>> tensors =
      read_safetensors(file_of(GetParam(), "reference.safetensors"));
  ASSERT_TRUE(tensors.ok()) << text_of(tensors.error());
  std::map<std::string, const NamedTensor*> init;
  for (const NamedTensor& tensor : *tensors) {
    if (tensor.name.rfind("init/", 0) == 0) init[tensor.name.substr(5)] = &tensor;
  }
  if (init.empty()) GTEST_SKIP() << "the reference has no initial values";
  EXPECT_EQ(init.size(), imported.graph.params.size());
  for (const Param& param : imported.graph.params) {
    const Value& value = imported.graph.value(param.value);
    const std::string name = param.name == kBertBias ? "model.cls.predictions.bias" : param.name;
    ASSERT_TRUE(init.count(name)) << name;
    const NamedTensor& expected = *init[name];
    EXPECT_EQ(to_string(value.type), to_string(expected.type)) << param.name;
    const Bytes data = value.data.size > 0 ? value.data.made() : Bytes::zeros(expected.data.size);
    EXPECT_TRUE(as_text(data.span()) == as_text(expected.data.span())) << param.name;
  }
}

TEST_P(ImportOf, EveryParameterIsUsedAndNoneIsAConstantToo) {
  const std::vector<std::vector<NodeId>> read_by = readers(imported.graph);
  for (const Param& param : imported.graph.params) {
    EXPECT_FALSE(read_by[param.value.index()].empty()) << param.name;
    EXPECT_FALSE(param.evidence.empty()) << param.name;
  }
  for (const Value& value : imported.graph.values) {
    if (value.kind != ValueKind::kConstant || !info(value.type.dtype).is_float) continue;
    EXPECT_LE(value.type.shape.size() < 2 ? num_elements(value.type.shape) : 0, 1)
        << value.name << ": a vector that might be a bias";
  }
}

// ---- The graph ----------------------------------------------------------------------------------

TEST_P(ImportOf, ScopesNameTheModuleOfEachParameter) {
  const std::vector<std::vector<NodeId>> read_by = readers(imported.graph);
  for (const Param& param : imported.graph.params) {
    std::set<std::string> scopes;
    for (const NodeId node : read_by[param.value.index()]) {
      scopes.insert(imported.graph.node(node).scope);
    }
    EXPECT_EQ(param.scope.find('.'), std::string::npos);
    // The lookup of a folded table is gone from the file, and its scope with it.
    if (param.evidence.rfind("folded", 0) == 0) continue;
    EXPECT_TRUE(scopes.count(param.scope.substr(0, param.scope.rfind('/')))) << param.scope;
  }
}

// Constants must not grow with the batch: it is cut later.
TEST_P(ImportOf, NoConstantKnowsTheBatch) {
  const bool bound =
      std::string(GetParam()) == "moe-gshard";  // its capacities follow from the batch
  if (bound || !reference(GetParam())["batch_is_dynamic"].get<bool>())
    GTEST_SKIP() << "a static batch";
  Result<Imported> other = import_onnx(file_of(GetParam(), "model.onnx"), options_for_batch(6));
  ASSERT_TRUE(other.ok()) << text_of(other.error());
  auto constants = [](const Graph& graph) {
    std::vector<std::string> out;
    for (const Value& value : graph.values) {
      if (value.kind != ValueKind::kConstant) continue;
      // The reciprocal of a mean's number of elements is the one number that may depend on it.
      out.push_back(to_string(value.type) +
                    (value.type.shape.empty() ? "" : digest(as_text(value.data.span()))));
    }
    return out;
  };
  EXPECT_EQ(constants(imported.graph), constants(other->graph));
  EXPECT_EQ(other->graph.batch, 6);
}

TEST_P(ImportOf, IsTheSameEveryTime) {
  Result<Imported> again = import_onnx(file_of(GetParam(), "model.onnx"), options_for_batch(8));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(print_graph(imported.graph), print_graph(again->graph));
}

// ---- Forward, one op after the other, on the first batch ----------------------------------------

// Mean cross-entropy in double, for the model without a loss.
double cross_entropy(const std::vector<double>& logits, const Bytes& labels, int64_t classes) {
  const double* x = logits.data();
  const auto* y = reinterpret_cast<const int64_t*>(labels.data);
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 0; i < labels.size / sizeof(int64_t); ++i, x += classes) {
    if (y[i] == -100) continue;
    double total = 0;
    for (int64_t c = 0; c < classes; ++c) total += std::exp(x[c]);
    sum += std::log(total) - x[y[i]];
    ++count;
  }
  return sum / static_cast<double>(count);
}

TEST_P(ImportOf, ComputesTheLossOfTheFirstBatch) {
  const Result<std::vector<NamedTensor>> tensors =
      read_safetensors(file_of(GetParam(), "reference.safetensors"));
  ASSERT_TRUE(tensors.ok());
  std::map<std::string, Bytes> batch;
  for (const NamedTensor& tensor : *tensors) {
    if (tensor.name.rfind("batch/0/", 0) == 0) batch[tensor.name.substr(8)] = tensor.data;
  }
  const Graph& graph = imported.graph;
  test::Values values(graph.values.size());
  for (const ValueId id : graph.inputs) {
    ASSERT_TRUE(batch.count(graph.value(id).name)) << graph.value(id).name;
    values[id.index()] = test::to_tensor(graph.value(id).type, batch[graph.value(id).name]);
  }
  values = test::evaluate(graph, std::move(values));
  const double expected = reference(GetParam())["sgd"]["losses"][0];
  double loss = 0;
  if (graph.loss.valid()) {
    loss = values[graph.loss.index()]->values[0];
  } else {
    const ValueId logits = graph.outputs.at(0);
    const int64_t classes = graph.value(logits).type.shape.back();
    loss = cross_entropy(values[logits.index()]->values, batch.at("labels"), classes);
  }
  EXPECT_NEAR(loss / expected, 1, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Models, ImportOf,
                         testing::Values("mlp", "two-tower", "gpt", "gpt-deep", "gpt-unoptimized",
                                         "gpt-logits", "gpt-ts17", "gpt-opset23", "gpt-static",
                                         "gpt-parallel", "gpt2-hf", "llama-hf", "bert-hf", "vit-hf",
                                         "moe-gshard"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// ---- Single facts -------------------------------------------------------------------------------

std::string histogram(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Node& node : graph.nodes) ++counts[node.op];
  std::string out;
  for (const auto& [op, count] : counts)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", op, count);
  return out;
}

Imported import_model(const std::string& model) {
  Result<Imported> result = import_onnx(file_of(model, "model.onnx"), options_for_batch(8));
  EXPECT_TRUE(result.ok()) << text_of(result.error());
  return result.ok() ? *std::move(result) : Imported();
}

struct Import : testing::Test {
  void SetUp() override {
    if (!std::filesystem::exists(models_folder())) GTEST_SKIP() << "no " << models_folder();
  }
};

TEST_F(Import, OpsOfEachModel) {
  const std::pair<const char*, const char*> kExpected[] = {
      {"mlp", "Add 3, MatMul 3, Mul 2, ReduceSum 1, Relu 1, Sub 1, Tanh 1"},
      {"two-tower",
       "Add 8, Concat 1, Div 1, Erf 1, MatMul 6, Mul 6, ReduceSum 1, Relu 1, Reshape 1, Sigmoid 2, "
       "Sub 1, Tanh 1"},
      {"gpt",
       "Add 37, CrossEntropySum 1, Div 1, Gather 2, LabelCount 1, LayerNorm 9, MatMul 25, Mul 32, "
       "Reshape 26, Slice 12, Softmax 4, Tanh 4, Transpose 20"},
      {"gpt-deep",
       "Add 73, CrossEntropySum 1, Div 1, Gather 1, LabelCount 1, LayerNorm 17, MatMul 49, Mul 64, "
       "Reshape 50, Slice 24, Softmax 8, Tanh 8, Transpose 40"},
      // All shape arithmetic, sequences and casts are gone: the same ops as of the optimised
      // export.
      {"gpt-unoptimized",
       "Add 37, CrossEntropySum 1, Div 1, Gather 2, LabelCount 1, LayerNorm 9, MatMul 25, Mul 32, "
       "Reshape 26, Slice 12, Softmax 4, Tanh 4, Transpose 20"},
      {"gpt-logits",
       "Add 37, Gather 1, LayerNorm 9, MatMul 25, Mul 32, Reshape 24, Slice 12, Softmax 4, Tanh 4, "
       "Transpose 20"},
      {"gpt-ts17",
       "Add 37, CrossEntropySum 1, Div 1, Gather 2, LabelCount 1, LayerNorm 9, MatMul 25, Mul 32, "
       "Reshape 18, Slice 12, Softmax 4, Tanh 4, Transpose 16"},
      {"gpt-parallel",
       "Add 33, CrossEntropySum 1, Div 5, Erf 4, Gather 1, LabelCount 1, LayerNorm 9, MatMul 25, "
       "Mul 16, "
       "Reshape 26, Slice 12, Softmax 4, Transpose 20"},
  };
  for (const auto& [model, ops] : kExpected)
    EXPECT_EQ(histogram(import_model(model).graph), ops) << model;
}

TEST_F(Import, SaysByWhatEvidenceEachParameterWasFound) {
  std::map<std::string, std::string> lines;
  auto read = [&](const std::string& model) {
    lines.clear();
    for (const ParamReport& p : import_model(model).parameters)
      lines[p.name] = p.evidence + " | " + p.initializer;
  };
  read("gpt");
  EXPECT_EQ(lines["model.wte.weight"], "signature + call embedding | model.lm_head.weight");
  EXPECT_EQ(lines["model.h.0.qkv.weight"], "signature + call linear | val_9 (transposed)");
  EXPECT_EQ(lines["model.ln_f.bias"], "signature + call layer_norm_8 | model.h.0.ln_1.bias");
  read("gpt-logits");
  EXPECT_EQ(lines["model.wte.weight"],
            "signature + call embedding | model.lm_head.weight, val_381 (transposed)");
  EXPECT_EQ(lines["model.wpe.weight"], "folded from it, as embedding_1 | embedding_1");
  read("gpt-ts17");
  EXPECT_EQ(lines["model.h.0.qkv.weight"], "the name of its bias | onnx::MatMul_562 (transposed)");
  EXPECT_EQ(lines["model.h.0.qkv.bias"], "kept name | model.h.0.qkv.bias");
  read("gpt2-hf");
  EXPECT_EQ(lines["model.transformer.h.0.attn.c_attn.bias"],
            "signature + call addmm | zeros, deleted by the exporter");
  read("gpt-parallel");
  EXPECT_EQ(lines["model.h.0.ln2.bias"],
            "call layer_norm_1 merged into layer_norm | model.h.0.ln1.bias");
}

TEST_F(Import, ReadsBfloat16) {
  const Imported gpt = import_model("gpt-bf16");
  const Json expected = reference("gpt-bf16");
  EXPECT_EQ(gpt.graph.params.size(), expected["parameters"].get<size_t>());
  for (const Param& param : gpt.graph.params) {
    EXPECT_TRUE(expected["grad_norm_of"].contains(param.name)) << param.name;
    EXPECT_EQ(gpt.graph.value(param.value).type.dtype, DType::kBF16) << param.name;
  }
  EXPECT_TRUE(gpt.graph.loss.valid());
}

TEST_F(Import, ReportsMergedParametersAndConstants) {
  const Imported gpt = import_model("gpt");
  ASSERT_EQ(gpt.separated.size(), 2u);
  EXPECT_EQ(gpt.separated[0].substr(0, 60),
            "model.h.0.ln_1.weight: 9 parameters: model.h.0.ln_1.weight, ");
  EXPECT_EQ(gpt.constants.size(), 8u);
  EXPECT_EQ(gpt.constants[1], "val_50 f32[]: a literal");
  // Merged ones are separate tensors now, each with its own gradient.
  std::set<int32_t> ids;
  for (const Param& param : gpt.graph.params) ids.insert(param.value.value);
  EXPECT_EQ(ids.size(), gpt.graph.params.size());
  const Imported llama = import_model("llama-hf");
  EXPECT_TRUE(
      std::any_of(llama.constants.begin(), llama.constants.end(), [](const std::string& line) {
        return line.rfind("unsqueeze_14 f32[1,1,32,8]", 0) == 0;  // a rotary table
      }));
}

TEST_F(Import, ScopesOfBothExportersAgree) {
  auto scopes = [](const Imported& imported) {
    std::set<std::string> out;
    for (const Node& node : imported.graph.nodes) out.insert(node.scope);
    return out;
  };
  const std::set<std::string> dynamo = scopes(import_model("gpt-unoptimized"));
  EXPECT_EQ(dynamo, scopes(import_model("gpt-ts17")));
  EXPECT_EQ(dynamo.size(),
            2u + 2u + 2u + 4u * 7u);  // none, model; wte, wpe; ln_f, lm_head; 4 blocks
  EXPECT_TRUE(dynamo.count("model/h/3/fc_out"));
}

TEST_F(Import, WeightsStayInPyTorchsOrientation) {
  const Imported gpt = import_model("gpt");
  for (const Node& node : gpt.graph.nodes) {
    for (const ValueId id : node.inputs) {
      const bool matrix = gpt.graph.value(id).kind == ValueKind::kState &&
                          gpt.graph.value(id).type.shape.size() == 2;
      if (!matrix || node.op == "Gather") continue;
      EXPECT_EQ(node.op, "MatMul");
      EXPECT_EQ(node.attrs.integer("trans_b"), 1);
    }
  }
}

TEST_F(Import, BindsTheBatch) {
  auto message = [](const std::string& model, const ImportOptions& options) {
    Result<Imported> result = import_onnx(file_of(model, "model.onnx"), options);
    return result.ok() ? "ok" : text_of(result.error());
  };
  EXPECT_EQ(
      message("gpt", {}),
      "input 'input_ids' has a dynamic batch 'batch': the strategy must say how many samples "
      "a batch has\n"
      "help: train: {global_batch: 8}; for a strategy of the library, in a file of your own that "
      "includes it");
  EXPECT_EQ(message("gpt-static", {}), "ok");
  EXPECT_EQ(message("gpt-static", options_for_batch(6)),
            "a batch of 6 samples, but the model was exported for 8 (input 'input_ids')\n"
            "help: export it with a dynamic batch dim, or use a batch of 8");
  ImportOptions options = options_for_batch(8);
  options.inputs.push_back({.name = "label"});
  EXPECT_EQ(message("gpt", options),
            "the model has no input 'label' (it has input_ids, labels) (did you mean 'labels'?)");
  options.inputs = {{.name = "labels", .shape = Shape{8, 64}}};
  EXPECT_EQ(message("gpt", options), "input 'labels' has 128 in dim 1, not 64");
  options.inputs = {{.name = "labels", .dtype = DType::kI32}};
  EXPECT_EQ(message("gpt", options), "input 'labels' is i64 in the model, not i32");
  options.inputs = {{.name = "labels", .batch_dim = 2}};
  EXPECT_EQ(message("gpt", options), "input 'labels' has 2 dims, and no dim 2");
}

// What the module has beside its parameters comes with its values, and so does a buffer that no
// step reads: an evaluation may, before the first step.
TEST(UntouchedTensors, ComeWithTheirValues) {
  const Result<Imported> imported =
      import_onnx(PIPER_SOURCE_DIR "/tests/data/parameters/untouched.onnx", options_for_batch(2));
  ASSERT_TRUE(imported) << text_of(imported.error());
  std::map<std::string, std::string> types;
  for (const NamedTensor& tensor : imported->untouched) types[tensor.name] = to_string(tensor.type);
  EXPECT_EQ(types, (std::map<std::string, std::string>{
                       {"also", "f32[2]"}, {"idle", "f32[2]"}, {"order", "i64[3]"}}));
  EXPECT_EQ(as_text(imported->untouched[0].data.span()),
            as_text(imported->untouched[1].data.span()));
  const auto last = std::find_if(imported->graph.params.begin(), imported->graph.params.end(),
                                 [](const Param& param) { return param.name == "last"; });
  ASSERT_NE(last, imported->graph.params.end());
  const Bytes& data = imported->graph.value(last->value).data;
  ASSERT_EQ(data.size, 16U);
  float first = 0;
  std::memcpy(&first, data.data, sizeof first);
  EXPECT_NE(first, 0);
}

// Blocks of a transposition: of extents below, at and above a block's, and of all sizes of
// elements.
TEST(Constants, PermutationsMoveEachElement) {
  const uint64_t seed = given_seed().value_or(1);
  SCOPED_TRACE(fmt::format("PIPER_SEED={}", seed));
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t most) { return static_cast<int64_t>(random() % most); };
  for (int n = given_count().value_or(300); n > 0; --n) {
    const DType dtype =
        std::array{DType::kBool, DType::kF16, DType::kF32, DType::kF64}[random() % 4];
    const int64_t size = info(dtype).bytes;
    Shape shape(random() % 5);
    for (int64_t& extent : shape) extent = 1 + below(shape.size() < 3 ? 70 : 9);
    std::vector<int64_t> perm(shape.size());
    std::iota(perm.begin(), perm.end(), 0);
    std::shuffle(perm.begin(), perm.end(), random);
    std::string bytes;
    for (int64_t i = 0; i < num_elements(shape) * size; ++i) bytes += static_cast<char>(random());
    const Bytes moved =
        onnx_import::permute_bytes(Bytes::copy_of(bytes.data(), bytes.size()), shape, perm, dtype);
    ASSERT_EQ(moved.size, bytes.size());
    for (int64_t i = 0; i < num_elements(shape); ++i) {
      std::vector<int64_t> index(shape.size());  // of the source
      int64_t left = i, from = 0;
      for (size_t d = shape.size(); d-- > 0;) {
        const auto dim = static_cast<size_t>(perm[d]);
        index[dim] = left % shape[dim];
        left /= shape[dim];
      }
      for (size_t d = 0; d < shape.size(); ++d) from = from * shape[d] + index[d];
      ASSERT_EQ(
          as_text(moved.span()).substr(static_cast<size_t>(i * size), static_cast<size_t>(size)),
          std::string_view(bytes).substr(static_cast<size_t>(from * size),
                                         static_cast<size_t>(size)))
          << "case " << n << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace piper::import_test
