// Random numbers: the generator against its authors' vectors, what ops draw against the generator,
// their statistics, and gradients through them.
#include <cmath>
#include <fstream>

#include "evaluate.h"
#include "folder.h"
#include "onnx/onnx_pb.h"
#include "piper/frontend/autodiff.h"
#include "piper/frontend/import.h"
#include "piper/ir/ops.h"

namespace piper::ops_draws_test {
namespace {

using test::must;
using test::Tensor;

// From kat_vectors of Random123, philox4x32 of 10 rounds.
TEST(Philox, MakesTheWordsOfItsAuthors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, ~uint64_t{0}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

Tensor number(int64_t value) { return {{DType::kI64, {}}, {static_cast<double>(value)}}; }

struct Where {
  int64_t key = 0, step = 0;
  int64_t rows = 1, shards = 1, shard = 0;
};
Attrs place(Attrs attrs, const Where& at) {
  if (at.shards > 1) attrs.set("rows", at.rows);
  if (at.shards > 1) attrs.set("shards", at.shards);
  return attrs;
}
test::Operands operands(const Where& at) {
  test::Operands result{number(at.key), number(at.step)};
  constexpr int64_t kSamples = 3;  // of a shard
  if (at.shards > 1)
    result.push_back(
        Tensor{{DType::kI64, {kSamples}}, std::vector<double>(3, at.shard * kSamples)});
  return result;
}

std::vector<double> draw(const char* kind, const Shape& shape, const Where& at,
                         DType dtype = DType::kF64) {
  const Attrs attrs{{"shape", shape},
                    {"dtype", std::string(info(dtype).name)},
                    {"distribution", std::string(kind)},
                    {"shift", 0.0},
                    {"scale", 1.0}};
  return test::evaluate("Random", place(attrs, at), operands(at), {{dtype, shape}})[0].values;
}

std::vector<double> drop(const std::vector<double>& x, double ratio, const Where& at,
                         DType dtype = DType::kF64) {
  const TensorType type{dtype, {static_cast<int64_t>(x.size())}};
  test::Operands inputs = operands(at);
  inputs.insert(inputs.begin(), Tensor{type, x});
  return test::evaluate("Dropout", place({{"ratio", ratio}}, at), inputs, {type})[0].values;
}

TEST(Random, ElementsAreWordsOfTheirPlace) {
  constexpr int64_t kKey = 0x123456789abcdef, kStep = (int64_t{7} << 32) + 5;
  for (const int64_t n : {1, 3, 4, 17, 256, 1001, 20000}) {
    const std::vector<double> drawn = draw("uniform", {n}, {.key = kKey, .step = kStep});
    // Doubles of a step would lose its upper bits in this test's tensors otherwise.
    ASSERT_EQ(static_cast<int64_t>(static_cast<double>(kStep)), kStep);
    const auto key = static_cast<uint64_t>(static_cast<int64_t>(static_cast<double>(kKey)));
    for (int64_t i = 0; i < n; ++i) {
      const PhiloxWords words = philox({static_cast<uint32_t>(i / 4), 0, 5, 7}, key);
      ASSERT_EQ(drawn[i], (words[i % 4] >> 8) / 16777216.0) << i << " of " << n;
    }
  }
}

TEST(Random, PiecesAreThoseOfTheWhole) {
  for (const char* kind : {"uniform", "normal"}) {
    const std::vector<double> whole = draw(kind, {5, 12, 7}, {.key = 3, .step = 2});
    for (int64_t shard = 0; shard < 4; ++shard) {
      const std::vector<double> part =
          draw(kind, {5, 3, 7}, {.key = 3, .step = 2, .rows = 5, .shards = 4, .shard = shard});
      for (int64_t i = 0; i < 5 * 21; ++i)
        ASSERT_EQ(part[i], whole[(i / 21 * 4 + shard) * 21 + i % 21]) << kind << " " << i;
    }
  }
}

TEST(Random, OtherPrecisionsDrawTheSame) {
  const std::vector<double> wide = draw("normal", {1000}, {.key = 1});
  const std::vector<double> narrow = draw("normal", {1000}, {.key = 1}, DType::kF32);
  for (size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(narrow[i], static_cast<float>(wide[i]));
}

struct Moments {
  double mean = 0, variance = 0;
};
Moments moments(const std::vector<double>& x) {
  Moments m;
  for (double v : x) m.mean += v / static_cast<double>(x.size());
  for (double v : x) m.variance += (v - m.mean) * (v - m.mean) / static_cast<double>(x.size());
  return m;
}
double correlation(const std::vector<double>& x, const std::vector<double>& y, size_t shift = 0) {
  const Moments a = moments(x), b = moments(y);
  double sum = 0;
  const size_t n = x.size() - shift;
  for (size_t i = 0; i < n; ++i) sum += (x[i] - a.mean) * (y[i + shift] - b.mean);
  return sum / static_cast<double>(n) / std::sqrt(a.variance * b.variance);
}

constexpr int64_t kMany = 200'000;
// Five standard deviations of a mean of that many.
const double kFive = 5 / std::sqrt(static_cast<double>(kMany));

TEST(Random, HasTheMomentsOfItsDistribution) {
  const Moments uniform = moments(draw("uniform", {kMany}, {.key = 11}));
  EXPECT_NEAR(uniform.mean, 0.5, kFive * std::sqrt(1 / 12.0));
  EXPECT_NEAR(uniform.variance, 1 / 12.0, kFive * 0.08);
  const std::vector<double> z = draw("normal", {kMany}, {.key = 11});
  EXPECT_NEAR(moments(z).mean, 0, kFive);
  EXPECT_NEAR(moments(z).variance, 1, kFive * std::sqrt(2.0));
  std::vector<double> fourth;
  for (double v : z) fourth.push_back(v * v * v * v);
  EXPECT_NEAR(moments(fourth).mean, 3, kFive * std::sqrt(96.0));
  EXPECT_NEAR(
      static_cast<double>(std::count_if(z.begin(), z.end(), [](double v) { return v > 2; })) /
          kMany,
      0.02275, kFive * 0.15);
}

TEST(Random, ElementsStepsAndKeysAreIndependent) {
  for (const char* kind : {"uniform", "normal"}) {
    const std::vector<double> x = draw(kind, {kMany}, {.key = 5, .step = 1});
    for (const size_t lag : {1, 2, 3, 4, 5, 256, 1000})
      EXPECT_LE(std::abs(correlation(x, x, lag)), kFive) << kind << " " << lag;
    EXPECT_LE(std::abs(correlation(x, draw(kind, {kMany}, {.key = 5, .step = 2}))), kFive);
    EXPECT_LE(std::abs(correlation(x, draw(kind, {kMany}, {.key = 6, .step = 1}))), kFive);
    EXPECT_EQ(x, draw(kind, {kMany}, {.key = 5, .step = 1}));
  }
}

TEST(Dropout, KeepsAndScales) {
  const std::vector<double> ones(kMany, 1.0);
  for (const double ratio : {0.1, 0.5, 0.9}) {
    const std::vector<double> y = drop(ones, ratio, {.key = 4});
    for (double v : y) ASSERT_TRUE(v == 0 || v == 1 / (1 - ratio)) << v;
    const double kept = static_cast<double>(kMany - std::count(y.begin(), y.end(), 0.0)) / kMany;
    EXPECT_NEAR(kept, 1 - ratio, kFive * std::sqrt(ratio * (1 - ratio)));
    EXPECT_LE(std::abs(correlation(y, y, 1)), kFive);
    EXPECT_LE(std::abs(correlation(y, drop(ones, ratio, {.key = 4, .step = 1}))), kFive);
    EXPECT_LE(std::abs(correlation(y, drop(ones, ratio, {.key = 5}))), kFive);
    // The mask is what an op of the same key draws, whatever the precision.
    const std::vector<double> uniform = draw("uniform", {kMany}, {.key = 4});
    const std::vector<double> single = drop(ones, ratio, {.key = 4}, DType::kF32);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(y[i] != 0, uniform[i] >= ratio) << i;
      ASSERT_EQ(single[i] != 0, y[i] != 0) << i;
    }
  }
  EXPECT_EQ(drop({1, 2, 3}, 0, {}), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(drop({1, INFINITY, NAN}, 1, {}), (std::vector<double>{0, 0, 0}));
}

// ---- Models -------------------------------------------------------------------------------------

const std::string kFolder = PIPER_SOURCE_DIR "/tests/data/dropout/";

int64_t count(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return node.op == op; });
}

ImportOptions of_batch(int64_t batch, uint64_t seed = 0) {
  ImportOptions options;
  options.batch = batch;
  options.seed = seed;
  return options;
}

TEST(DrawingModels, BothExportersAreRead) {
  for (const char* file : {"dynamo.onnx", "torchscript.onnx"}) {
    const Imported imported = must(import_onnx(kFolder + file, of_batch(8)));
    EXPECT_EQ(count(imported.graph, "Dropout"), 13) << file;
    EXPECT_EQ(count(imported.graph, "Random"), 6) << file;
    EXPECT_EQ(imported.parameters.size(), 53u) << file;
    EXPECT_TRUE(imported.graph.step.valid()) << file;
  }
}

// What the file leaves out is in the calls that the exporter notes.
TEST(DrawingModels, AttentionHasTheDropoutOfItsCall) {
  for (const char* file : {"attention18.onnx", "attention23.onnx"}) {
    const Graph graph = must(import_onnx(kFolder + file, of_batch(8))).graph;
    std::vector<double> ratios;
    for (const Node& node : graph.nodes)
      if (node.op == "Dropout") {
        EXPECT_EQ(graph.node(graph.value(node.inputs[0]).producer).op, "Softmax") << file;
        ratios.push_back(node.attrs.real("ratio"));
      }
    EXPECT_EQ(ratios, (std::vector<double>{0.1, 0.3})) << file;
  }
}

// The exporter took dropouts of one value for one: adapters have a draw each again. Of what an
// encoder draws in its second run the file has no trace.
TEST(DrawingModels, MergedDrawsComeApart) {
  const Graph graph = must(import_onnx(kFolder + "adapters.onnx", of_batch(8))).graph;
  std::set<ValueId> inputs, keys;
  int of_one_value = 0;
  for (const Node& node : graph.nodes)
    if (node.op == "Dropout") {
      of_one_value += !inputs.insert(node.inputs[0]).second;
      keys.insert(node.inputs[1]);
    }
  EXPECT_EQ(count(graph, "Dropout"), 5);
  EXPECT_EQ(of_one_value, 2);
  EXPECT_EQ(keys.size(), 5u);
  const auto refused = import_onnx(kFolder + "contrast.onnx", of_batch(8));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().message.ends_with(
      "the exporter took 'add_45' for 'add_20', as if both had drawn the same random numbers"))
      << refused.error().message;
  EXPECT_EQ(refused.error().notes,
            std::vector<std::string>{"help: export the module by tools/export.py, which loses "
                                     "nothing; or with optimize=False"});
}

// Multinomial of logarithms of probabilities [2, 4].
struct ClassDraws {
  static constexpr int64_t kCount = 40'000;
  std::vector<double> of(int64_t step, uint64_t seed = 0) const {
    onnx::ModelProto model;
    model.set_ir_version(8);
    model.add_opset_import()->set_version(17);
    onnx::GraphProto& graph = *model.mutable_graph();
    auto& type = *graph.add_input()->mutable_type()->mutable_tensor_type();
    graph.mutable_input(0)->set_name("x");
    type.set_elem_type(onnx::TensorProto::FLOAT);
    for (const int64_t dim : {2, 4}) type.mutable_shape()->add_dim()->set_dim_value(dim);
    onnx::NodeProto& node = *graph.add_node();
    node.set_op_type("Multinomial");
    node.add_input("x");
    node.add_output("y");
    onnx::AttributeProto& count = *node.add_attribute();
    count.set_name("sample_size");
    count.set_type(onnx::AttributeProto::INT);
    count.set_i(kCount);
    graph.add_output()->set_name("y");
    const Folder folder;
    ImportOptions options = of_batch(2, seed);
    options.inputs = {{.name = "x", .batch_dim = -1}};
    const std::string path = folder.write("model.onnx", model.SerializeAsString());
    const Graph made = must(import_onnx(path, options)).graph;
    test::Values inputs(made.values.size());
    std::vector<double> logs;
    for (const auto& row : probabilities)
      for (const double p : row) logs.push_back(std::log(p) + 3);  // up to a constant
    inputs[made.inputs[0].index()] = Tensor{{DType::kF32, {2, 4}}, logs};
    inputs[made.step.index()] = number(step);
    return test::evaluate(made, inputs)[made.outputs[0].index()]->values;
  }
  const std::vector<std::vector<double>> probabilities{{0.1, 0.2, 0.3, 0.4}, {0.6, 0, 0.39, 0.01}};
};

TEST(DrawingModels, ClassesAreDrawnByTheirProbabilities) {
  const ClassDraws draws;
  const std::vector<double> drawn = draws.of(3);
  ASSERT_EQ(drawn.size(), 2u * ClassDraws::kCount);
  for (size_t row = 0; row < 2; ++row) {
    const auto begin = drawn.begin() + static_cast<std::ptrdiff_t>(row * ClassDraws::kCount);
    double squares = 0;
    for (size_t k = 0; k < 4; ++k) {
      const double wanted = draws.probabilities[row][k] * ClassDraws::kCount;
      const auto found = static_cast<double>(std::count(begin, begin + ClassDraws::kCount, k));
      ASSERT_TRUE(wanted > 0 || found == 0) << row;
      if (wanted > 0) squares += (found - wanted) * (found - wanted) / wanted;
    }
    EXPECT_LE(squares, 21.1) << row;  // of 3 degrees of freedom, one in 10,000 is more
    EXPECT_GE(squares, 1e-3) << row;  // and no counts are so even by chance
  }
}

TEST(DrawingModels, ClassesAreThoseOfTheStepAndTheSeed) {
  const ClassDraws draws;
  const std::vector<double> drawn = draws.of(3);
  EXPECT_EQ(drawn, draws.of(3));
  const auto agreeing = [&](const std::vector<double>& other) {
    double count = 0;
    for (size_t i = 0; i < ClassDraws::kCount; ++i) count += drawn[i] == other[i];
    return count / ClassDraws::kCount;
  };
  // Of independent draws, as many agree as the squares of the first row's probabilities.
  EXPECT_NEAR(agreeing(draws.of(4)), 0.3, 0.012);
  EXPECT_NEAR(agreeing(draws.of(3, 1)), 0.3, 0.012);
}

TEST(DrawingModels, EveryOpHasAKeyOfItsOwnAndOfTheSeed) {
  std::set<std::string> keys;
  for (const uint64_t seed : {0, 1}) {
    const Graph graph = must(import_onnx(kFolder + "dynamo.onnx", of_batch(8, seed))).graph;
    for (const Node& node : graph.nodes)
      if (const int draws = find_op(node.op)->draws; draws >= 0)
        keys.insert(std::string(as_text(graph.value(node.inputs[draws]).data.span())));
  }
  EXPECT_EQ(keys.size(), 2u * 19u);
}

// In double, so that differences tell.
void widen(onnx::TensorProto& tensor) {
  if (tensor.data_type() != onnx::TensorProto::FLOAT) return;
  std::vector<float> narrow(tensor.float_data().begin(), tensor.float_data().end());
  if (narrow.empty()) {
    narrow.resize(tensor.raw_data().size() / sizeof(float));
    std::memcpy(narrow.data(), tensor.raw_data().data(), tensor.raw_data().size());
  }
  const std::vector<double> wide(narrow.begin(), narrow.end());
  tensor.clear_float_data();
  tensor.set_data_type(onnx::TensorProto::DOUBLE);
  tensor.set_raw_data(wide.data(), wide.size() * sizeof(double));
}

std::string widened(const Folder& folder, const std::string& file) {
  onnx::ModelProto model;
  std::ifstream in(kFolder + file, std::ios::binary);
  EXPECT_TRUE(model.ParseFromIstream(&in));
  for (onnx::TensorProto& tensor : *model.mutable_graph()->mutable_initializer()) widen(tensor);
  for (onnx::NodeProto& node : *model.mutable_graph()->mutable_node())
    for (onnx::AttributeProto& attr : *node.mutable_attribute()) {
      if (attr.has_t()) widen(*attr.mutable_t());
      const bool names_type = attr.name() == "to" || attr.name() == "dtype";
      if (names_type && attr.i() == onnx::TensorProto::FLOAT) attr.set_i(onnx::TensorProto::DOUBLE);
    }
  return folder.write(file, model.SerializeAsString());
}

// With the step held, what is drawn stays, and the loss has a slope.
TEST(DrawingModels, GradientsAgreeWithDifferences) {
  const Folder folder;
  const Graph forward = must(import_onnx(widened(folder, "dynamo.onnx"), of_batch(2, 9))).graph;
  TrainSpec train;
  train.groups = {{.match = "**", .at = {}, .lr = 0.1}};
  const Graph step = must(differentiate(forward, train)).graph;
  std::mt19937_64 random(5);
  test::Values inputs(step.values.size());
  for (ValueId id : step.inputs)
    inputs[id.index()] = test::draw(step.value(id).type, random, 0, 1, 24);
  inputs[step.step.index()] = number(3);
  const auto loss = [&](const test::Values& from) {
    return test::evaluate(step, from)[step.loss.index()]->values[0];
  };
  const test::Values at = test::evaluate(step, inputs);
  test::Values later = inputs;
  later[step.step.index()] = number(4);
  EXPECT_NE(loss(inputs), loss(later));
  int checked = 0;
  for (const Param& param : step.params) {
    const Tensor& value = *at[param.value.index()];
    const Tensor& gradient = *at[param.gradient.index()];
    double slope = 0, sides[2];
    std::vector<double> direction;
    std::uniform_real_distribution<double> real(-1, 1);
    for (double g : gradient.values) {
      direction.push_back(real(random));
      slope += g * direction.back();
    }
    for (int side = 0; side < 2; ++side) {
      test::Values moved = inputs;
      Tensor beside = value;
      for (size_t i = 0; i < direction.size(); ++i)
        beside.values[i] += (side == 0 ? -1e-6 : 1e-6) * direction[i];
      moved[param.value.index()] = beside;
      sides[side] = loss(moved);
    }
    ASSERT_NEAR((sides[1] - sides[0]) / 2e-6, slope, 1e-7) << param.name;
    ++checked;
  }
  EXPECT_EQ(checked, 53);
}

}  // namespace
}  // namespace piper::ops_draws_test
