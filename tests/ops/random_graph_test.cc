// Random models (tests/fuzz/random_models.py drew them; onnxruntime computed their outputs), and uses
// of operators that the importer writes out in others: forward in double against their outputs, and
// every gradient against central differences in double.
//
// Each float input gets a parameter of zeros added to it, so that gradients of inputs are seen too;
// the loss is the sum of all outputs, each element with a weight of its own. A difference is taken
// along one random direction a parameter.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>

#include "evaluate.h"
#include "node_cases.h"
#include "piper/frontend/autodiff.h"
#include "piper/frontend/patterns.h"

namespace piper {
namespace {

using test::NodeCase;

constexpr uint64_t kSeed = 20240611;

// ---- The model in double ----------------------------------------------------------------------

void widen(onnx::TensorProto& tensor) {
  if (tensor.data_type() != onnx::TensorProto::FLOAT) return;
  const Bytes data = test::data_of(tensor, DType::kF32);
  std::vector<double> wide(data.size / sizeof(float));
  for (size_t i = 0; i < wide.size(); ++i) {
    float element;
    std::memcpy(&element, data.data + i * sizeof element, sizeof element);
    wide[i] = element;
  }
  tensor.clear_float_data();
  tensor.set_data_type(onnx::TensorProto::DOUBLE);
  tensor.set_raw_data(wide.data(), wide.size() * sizeof(double));
}

void widen(onnx::GraphProto& graph);
void widen(onnx::NodeProto& node) {
  for (onnx::AttributeProto& attr : *node.mutable_attribute()) {
    if (attr.has_t()) widen(*attr.mutable_t());
    if (attr.has_g()) widen(*attr.mutable_g());  // a body
    const bool to_float = attr.name() == "to" && attr.i() == onnx::TensorProto::FLOAT;
    if (to_float) attr.set_i(onnx::TensorProto::DOUBLE);
  }
}

void widen(onnx::GraphProto& graph) {
  for (onnx::TensorProto& tensor : *graph.mutable_initializer()) widen(tensor);
  for (onnx::NodeProto& node : *graph.mutable_node()) widen(node);
}

onnx::NodeProto& add_node(onnx::GraphProto& graph, const std::string& op,
                          const std::vector<std::string>& inputs, const std::string& output) {
  onnx::NodeProto& node = *graph.add_node();
  node.set_op_type(op);
  for (const std::string& name : inputs) node.add_input(name);
  node.add_output(output);
  return node;
}

onnx::TensorProto doubles(const std::string& name, const Shape& shape,
                          const std::vector<double>& values) {
  onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::DOUBLE);
  for (const int64_t d : shape) tensor.add_dims(d);
  tensor.set_raw_data(values.data(), values.size() * sizeof(double));
  return tensor;
}

Shape shape_of(const onnx::TensorProto& tensor) {
  return {tensor.dims().begin(), tensor.dims().end()};
}

bool is_real(const onnx::TensorProto& tensor) {
  return tensor.data_type() == onnx::TensorProto::FLOAT ||
         tensor.data_type() == onnx::TensorProto::DOUBLE;
}

// Of nodes, and of those of bodies, which see the graph around them.
void read_instead(onnx::GraphProto& graph, const std::string& name, const std::string& other) {
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    for (std::string& input : *node.mutable_input()) {
      if (input == name) input = other;
    }
    for (onnx::AttributeProto& attr : *node.mutable_attribute()) {
      const auto& own = attr.g().input();
      const bool hides = std::any_of(own.begin(), own.end(),
                                     [&](const auto& input) { return input.name() == name; });
      if (attr.has_g() && !hides) read_instead(*attr.mutable_g(), name, other);
    }
  }
}

// Inputs become "INPUT" + the parameter "p.INPUT", which is up to `most` away from 0; those that are
// no numbers are known.
void add_parameters(onnx::GraphProto& graph, const NodeCase& c, double most = 0) {
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> near(-most, most);
  std::vector<onnx::ValueInfoProto> inputs(graph.input().begin(), graph.input().end());
  graph.clear_input();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = inputs[i].name(), moved = name + "_moved";
    const Shape shape = shape_of(c.inputs[i]);
    if (!is_real(c.inputs[i])) {
      onnx::TensorProto& known = *graph.add_initializer();
      known = c.inputs[i];
      known.set_name(name);
      continue;
    }
    read_instead(graph, name, moved);
    std::vector<double> values(static_cast<size_t>(num_elements(shape)));
    for (double& value : values) value = most > 0 ? near(random) : 0;
    *graph.add_initializer() = doubles("p." + name, shape, values);
    add_node(graph, "Add", {name, "p." + name}, moved);
    inputs[i].mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::DOUBLE);
    *graph.add_input() = inputs[i];
  }
}

void add_loss(onnx::GraphProto& graph, const NodeCase& c, std::mt19937_64& random) {
  std::uniform_real_distribution<double> weight(-1, 1);
  std::vector<std::string> terms;
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    if (!is_real(c.outputs[i])) continue;
    const std::string name = "term" + std::to_string(i);
    const Shape shape = shape_of(c.outputs[i]);
    std::vector<double> weights(static_cast<size_t>(num_elements(shape)));
    for (double& w : weights) w = weight(random);
    onnx::AttributeProto& value =
        *add_node(graph, "Constant", {}, name + "_weights").add_attribute();
    value.set_name("value");
    value.set_type(onnx::AttributeProto::TENSOR);
    *value.mutable_t() = doubles("", shape, weights);
    add_node(graph, "Mul", {graph.output(static_cast<int>(i)).name(), name + "_weights"},
             name + "_weighted");
    onnx::AttributeProto& keep =
        *add_node(graph, "ReduceSum", {name + "_weighted"}, name).add_attribute();
    keep.set_name("keepdims");
    keep.set_type(onnx::AttributeProto::INT);
    keep.set_i(0);
    terms.push_back(name);
  }
  add_node(graph, "Sum", terms, "loss");
  graph.clear_output();
  graph.add_output()->set_name("loss");
}

// ---- Values -----------------------------------------------------------------------------------

test::Values input_values(const Graph& graph, const NodeCase& c) {
  test::Values values(graph.values.size());
  for (int i = 0; i < c.model.graph().input_size(); ++i) {
    const ValueId id = graph.find_value(c.model.graph().input(i).name());
    if (!id.valid() || graph.value(id).kind != ValueKind::kInput) continue;
    onnx::TensorProto data = c.inputs[static_cast<size_t>(i)];
    if (graph.value(id).type.dtype == DType::kF64) widen(data);
    values[id.index()] =
        test::to_tensor(graph.value(id).type, test::data_of(data, graph.value(id).type.dtype));
  }
  return values;
}

// Largest difference ÷ largest element expected, or 0.01.
double error_of(const std::vector<double>& made, const std::vector<double>& expected) {
  double size = 1e-2, most = 0;
  for (size_t i = 0; i < made.size(); ++i) {
    size = std::max(size, std::abs(expected[i]));
    most = std::max(most, std::isfinite(made[i]) ? std::abs(made[i] - expected[i]) : 1e9);
  }
  return most / size;
}

std::string check_forward(const NodeCase& c, const onnx::ModelProto& model) {
  const Result<Imported> imported = test::import_model(model);
  if (!imported) return print_error(imported.error());
  const Graph& graph = imported->graph;
  const test::Values values = test::evaluate(graph, input_values(graph, c));
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    const TensorType type = test::type_of(c.outputs[i]);
    const double error =
        error_of(values[graph.outputs[i].index()]->values,
                 test::to_tensor(type, test::data_of(c.outputs[i], type.dtype)).values);
    // Theirs is in single precision, ours not.
    if (error > 1e-3) return fmt::format("output {} differs by {:.3g}", i, error);
  }
  return {};
}

// ---- Gradients --------------------------------------------------------------------------------

struct Checked {
  int gradients = 0, absent = 0;
  double worst = 0;
};

class Differences {
 public:
  Differences(const NodeCase& c, const Graph& forward, std::mt19937_64& random)
      : case_(c), forward_(forward), random_(random) {}

  // The slope of the loss at parameter p along a random direction, and that the gradient says.
  std::pair<double, double> slopes(size_t p, const test::Tensor* gradient, double step) {
    const Value& value = forward_.value(forward_.params[p].value);
    const test::Tensor at = test::to_tensor(value.type, value.data);
    std::vector<double> direction(at.values.size());
    std::uniform_real_distribution<double> real(-1, 1);
    double expected = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      direction[i] = real(random_);
      if (gradient) expected += direction[i] * gradient->values[i];
    }
    double loss[2];
    for (int side = 0; side < 2; ++side) {
      test::Tensor moved = at;
      for (size_t i = 0; i < direction.size(); ++i) {
        moved.values[i] += (side == 0 ? -step : step) * direction[i];
      }
      loss[side] = loss_with(p, moved);
    }
    return {(loss[1] - loss[0]) / (2 * step), expected};
  }

 private:
  double loss_with(size_t p, const test::Tensor& moved) {
    test::Values values = input_values(forward_, case_);
    values[forward_.params[p].value.index()] = moved;
    return test::evaluate(forward_, std::move(values))[forward_.loss.index()]->values[0];
  }

  const NodeCase& case_;
  const Graph& forward_;
  std::mt19937_64& random_;
};

// A kink may lie within the step: another direction with a smaller one decides.
std::string check_slope(Differences& differences, size_t p, const test::Tensor* gradient,
                        double& worst) {
  std::string text;
  for (const double step : {1e-6, 3e-7, 1e-7}) {
    const auto [difference, expected] = differences.slopes(p, gradient, step);
    const double error = std::abs(difference - expected) / std::max({1.0, std::abs(difference)});
    if (error <= 1e-5) {
      worst = std::max(worst, error);
      return {};
    }
    text = fmt::format("a slope of {} by differences, {} by the gradient", difference, expected);
  }
  return text;
}

std::string check_gradients(const NodeCase& c, onnx::ModelProto model, Checked& checked) {
  std::mt19937_64 random(kSeed);
  add_loss(*model.mutable_graph(), c, random);
  Result<Imported> imported = test::import_model(model);
  if (!imported) return print_error(imported.error());
  const Graph forward = imported->graph;
  TrainSpec train;
  train.groups.push_back({.match = "**"});
  const Result<Differentiated> made = differentiate(forward, train);
  // What only places depend on has no slope anywhere: the differences must say so too.
  const bool flat = !made && made.error().message.ends_with("depends on no trained parameter");
  if (!made && !flat) return print_error(made.error());
  const Graph& whole = flat ? forward : made->graph;
  const test::Values values = test::evaluate(whole, input_values(whole, c));
  Differences differences(c, forward, random);
  for (size_t p = 0; p < whole.params.size(); ++p) {
    const Param& param = whole.params[p];
    const test::Tensor* gradient =
        param.gradient.valid() ? &*values[param.gradient.index()] : nullptr;
    ++(gradient ? checked.gradients : checked.absent);
    const std::string text = check_slope(differences, p, gradient, checked.worst);
    if (!text.empty()) return fmt::format("parameter '{}': {}", param.name, text);
  }
  return {};
}

std::vector<NodeCase> random_cases() {
  if (const char* folder = std::getenv("PIPER_ONNX_CASES")) return test::folder_cases(folder);
  return test::packed_cases(std::string(PIPER_SOURCE_DIR) + "/tests/data/random_models.gz");
}

onnx::ModelProto moved_model(const NodeCase& c, double most) {
  onnx::ModelProto model = c.model;
  widen(*model.mutable_graph());
  add_parameters(*model.mutable_graph(), c, most);
  return model;
}

// `most`: how far from their inputs gradients are looked at, where these may lie at kinks.
void check_cases(const std::vector<NodeCase>& cases, double most = 0) {
  ASSERT_FALSE(cases.empty());
  Checked checked;
  size_t passed = 0, nodes = 0;
  for (const NodeCase& c : cases) {
    nodes += static_cast<size_t>(c.model.graph().node_size());
    std::string problem = check_forward(c, moved_model(c, 0));
    if (problem.empty()) problem = check_gradients(c, moved_model(c, most), checked);
    if (problem.empty()) ++passed;
    EXPECT_EQ(problem, "") << c.name;
  }
  fmt::print(
      "{} of {} models ({} nodes) pass; {} gradients, the worst off by {:.2g}; {} parameters have "
      "none\n",
      passed, cases.size(), nodes, checked.gradients, checked.worst, checked.absent);
}

TEST(RandomGraphs, ForwardAndGradientsAreRight) { check_cases(random_cases()); }

// ---- Operators that are written out ----------------------------------------------------------

class WrittenOutOperators : public ::testing::TestWithParam<const char*> {};

// Masked scores may be among the results.
bool is_finite(const onnx::TensorProto& tensor) {
  const TensorType type = test::type_of(tensor);
  const std::vector<double> values = test::to_tensor(type, test::data_of(tensor, type.dtype)).values;
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

bool has(const NodeCase& c, std::string_view op) {
  const auto& nodes = c.model.graph().node();
  const auto is_short = [](const auto& tensor) {
    const std::optional<DType> type = test::dtype_of(tensor.data_type());
    return !type || test::is_16_bit(*type);
  };
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const onnx::NodeProto& node) { return node.op_type() == op; }) &&
         std::any_of(c.inputs.begin(), c.inputs.end(), is_real) && is_real(c.outputs[0]) &&
         std::none_of(c.inputs.begin(), c.inputs.end(), is_short) &&
         std::all_of(c.outputs.begin(), c.outputs.end(), is_finite);
}

// What rounds is not among them: its gradient is not its slope (written_out_test compares it).
TEST_P(WrittenOutOperators, HaveTheGradientsOfTheirDifferences) {
  std::vector<NodeCase> cases;
  const std::string folder = std::string(PIPER_SOURCE_DIR) + "/tests/data/";
  for (const char* file : {"onnxruntime_cases.gz", "onnx_node_cases.gz"})
    for (NodeCase& c : test::packed_cases(folder + file)) {
      if (has(c, GetParam())) cases.push_back(std::move(c));
    }
  check_cases(cases, 0.05);
}

INSTANTIATE_TEST_SUITE_P(
    Operators, WrittenOutOperators,
    ::testing::Values("Attention", "BiasGelu", "Col2Im", "DFT", "DeformConv", "Det", "FastGelu",
                      "FusedMatMul", "GRU", "Gelu", "GridSample", "GroupQueryAttention", "LSTM",
                      "Loop", "MultiHeadAttention", "QuickGelu", "RNN", "RotaryEmbedding", "STFT",
                      "Scan", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    [](const auto& info) { return std::string(info.param); });

// ---- Slopes at kinks, ties and zeros ----------------------------------------------------------

// By parameter: the gradient that PyTorch has (tests/data/make_slopes.py).
std::map<std::string, test::Tensor> take_gradients(onnx::ModelProto& model) {
  constexpr std::string_view kPrefix = "grad:";
  std::map<std::string, test::Tensor> out;
  auto* all = model.mutable_graph()->mutable_initializer();
  const auto taken = std::stable_partition(all->begin(), all->end(), [&](const auto& tensor) {
    return !tensor.name().starts_with(kPrefix);
  });
  for (auto it = taken; it != all->end(); ++it) {
    const TensorType type = test::type_of(*it);
    out[it->name().substr(kPrefix.size())] = test::to_tensor(type, test::data_of(*it, type.dtype));
  }
  all->erase(taken, all->end());
  return out;
}

// Infinities and NaN are expected where PyTorch has them.
bool is_near(double made, double expected) {
  if (std::isnan(expected)) return std::isnan(made);
  return made == expected || std::abs(made - expected) <= 2e-6 * std::max(1.0, std::abs(expected));
}

std::string text_of(const std::vector<double>& values) {
  std::string text;
  for (const double v : values) text += fmt::format(" {:.6g}", v);
  return text;
}

void check_slopes(const NodeCase& c, const std::map<std::string, test::Tensor>& expected,
                  bool recognised) {
  Result<Imported> imported = test::import_model(c.model);
  ASSERT_TRUE(imported.ok()) << c.name << ": " << print_error(imported.error());
  Graph forward = imported->graph;
  if (recognised) forward = test::must(recognise(std::move(forward))).graph;
  TrainSpec train;
  train.groups.push_back({.match = "**"});
  const Result<Differentiated> made = differentiate(forward, train);
  const bool flat = !made && made.error().message.ends_with("depends on no trained parameter");
  ASSERT_TRUE(made || flat) << c.name << ": " << print_error(made.error());
  const Graph& whole = flat ? forward : made->graph;
  const test::Values values = test::evaluate(whole, input_values(whole, c));
  for (const auto& [name, gradient] : expected) {
    const auto param = std::find_if(whole.params.begin(), whole.params.end(),
                                    [&, n = &name](const Param& p) { return p.name == *n; });
    ASSERT_NE(param, whole.params.end()) << c.name << ": no parameter " << name;
    std::vector<double> slopes(gradient.values.size());
    if (param->gradient.valid()) slopes = values[param->gradient.index()]->values;
    EXPECT_TRUE(std::equal(slopes.begin(), slopes.end(), gradient.values.begin(),
                           gradient.values.end(), is_near))
        << c.name << (recognised ? " recognised, " : ", ") << name << "\n  made    "
        << text_of(slopes) << "\n  expected" << text_of(gradient.values);
  }
}

TEST(Slopes, AreThoseOfPyTorchAtKinksTiesAndZeros) {
  std::vector<NodeCase> cases =
      test::packed_cases(std::string(PIPER_SOURCE_DIR) + "/tests/data/slopes.gz");
  ASSERT_FALSE(cases.empty());
  for (NodeCase& c : cases) {
    const auto expected = take_gradients(c.model);
    for (const bool recognised : {false, true}) check_slopes(c, expected, recognised);
  }
}

}  // namespace
}  // namespace piper
