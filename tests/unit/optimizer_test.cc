// Optimizers and learning rates against their definitions in double.
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "evaluate.h"
#include "piper/ir/ops.h"
#include "support/forms/parse_graph.h"
#include "unit/train_text.h"

namespace piper {
namespace {

using test::must;
using test::parse_train;
using test::Tensor;
using test::Values;

// loss = sum(w·x) with one sample: the gradient of w is x.
constexpr const char* kLine = R"(graph batch=1 shards=1
input %x:f64[1,4] batch_dim=0
state %w:f64[4] = [1,-2,3,0.5]
%y:f64[1,4] = Mul(%x, %w) pass=F
%loss:f64[] = ReduceSum(%y) {axes=[0,1], keepdims=0} pass=F
param w %w
loss %loss
)";

std::vector<double> gradient_at(int step) {
  return {0.5 + step, -0.25, 0.125 * (step + 1), 2.0 - step};
}

// w after some steps of the graph, with all state carried over.
std::vector<double> train_line(const std::string& spec, int steps, const std::string& of = "w") {
  const Graph graph = must(differentiate(must(parse_graph(kLine)), parse_train(spec))).graph;
  Values state(graph.values.size());
  for (int step = 0; step < steps; ++step) {
    state[graph.inputs[0].index()] = Tensor{{DType::kF64, {1, 4}}, gradient_at(step)};
    const Values values = evaluate(graph, state);
    for (const StateUpdate& update : graph.updates) {
      state[update.state.index()] = values[update.next.index()];
    }
  }
  EXPECT_EQ(state[graph.step.index()]->values[0], steps);
  return state[graph.find_value(of).index()]->values;
}

void expect_close(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-12) << i;
}

constexpr int kSteps = 4;
const std::vector<double> kStart{1, -2, 3, 0.5};

TEST(Optimizer, PlainSgd) {
  std::vector<double> w = kStart;
  for (int t = 0; t < kSteps; ++t) {
    const std::vector<double> g = gradient_at(t);
    for (size_t i = 0; i < 4; ++i) w[i] -= 0.1 * (g[i] + 0.01 * w[i]);
  }
  expect_close(train_line("optimizer=sgd lr=0.1 wd=0.01", kSteps), w);
}

TEST(Optimizer, SgdWithMomentum) {
  for (const bool nesterov : {false, true}) {
    const double dampening = nesterov ? 0 : 0.2;
    std::vector<double> w = kStart, buffer(4, 0.0);
    for (int t = 0; t < kSteps; ++t) {
      const std::vector<double> g = gradient_at(t);
      for (size_t i = 0; i < 4; ++i) {
        const double d = g[i] + 0.01 * w[i];
        buffer[i] = t == 0 ? d : 0.9 * buffer[i] + (1 - dampening) * d;
        w[i] -= 0.1 * (nesterov ? d + 0.9 * buffer[i] : buffer[i]);
      }
    }
    const std::string spec =
        fmt::format("optimizer=sgd lr=0.1 wd=0.01 momentum=0.9 dampening={} nesterov={}", dampening,
                    int{nesterov});
    expect_close(train_line(spec, kSteps), w);
  }
}

std::vector<double> adam(bool decoupled, std::optional<double> clip,
                         const std::function<double(int)>& rate) {
  std::vector<double> w = kStart, m(4, 0.0), v(4, 0.0);
  for (int t = 0; t < kSteps; ++t) {
    std::vector<double> g = gradient_at(t);
    double norm = 0;
    for (double x : g) norm += x * x;
    const double factor = clip ? std::min(1.0, *clip / (std::sqrt(norm) + 1e-6)) : 1;
    for (size_t i = 0; i < 4; ++i) {
      g[i] *= factor;
      if (decoupled) w[i] *= 1 - rate(t) * 0.1;
      if (!decoupled) g[i] += 0.1 * w[i];
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
      const double m_hat = m[i] / (1 - std::pow(0.9, t + 1));
      const double v_hat = v[i] / (1 - std::pow(0.999, t + 1));
      w[i] -= rate(t) * m_hat / (std::sqrt(v_hat) + 1e-6);
    }
  }
  return w;
}

TEST(Optimizer, AdamAndAdamW) {
  const auto constant = [](int) { return 0.05; };
  expect_close(train_line("optimizer=adam lr=0.05 wd=0.1 eps=1e-6", kSteps),
               adam(false, {}, constant));
  expect_close(train_line("optimizer=adamw lr=0.05 wd=0.1 eps=1e-6", kSteps),
               adam(true, {}, constant));
  expect_close(train_line("optimizer=adamw lr=0.05 wd=0.1 eps=1e-6 clip=0.5", kSteps),
               adam(true, 0.5, constant));
  expect_close(train_line("optimizer=adamw lr=0.05 wd=0.1 eps=1e-6 clip=50", kSteps),
               adam(true, {}, constant));
}

// a = decay a + (1 - decay) w after each update, from the first w on.
TEST(Optimizer, AveragesOfParameters) {
  for (const char* optimizer : {"sgd", "adamw", "adagrad", "lion", "sgd momentum=0.9"}) {
    const std::string spec = fmt::format("optimizer={} lr=0.05 wd=0.1 eps=1e-6", optimizer);
    std::vector<double> average = kStart;
    for (int steps = 1; steps <= kSteps; ++steps) {
      const std::vector<double> w = train_line(spec, steps);
      for (size_t i = 0; i < 4; ++i) average[i] = 0.9 * average[i] + 0.1 * w[i];
    }
    expect_close(train_line(spec + " ema=0.9", kSteps), train_line(spec, kSteps));
    expect_close(train_line(spec + " ema=0.9", kSteps, "w.ema"), average);
    EXPECT_GT(std::fabs(train_line(spec + " ema=0.8", kSteps, "w.ema")[0] - average[0]), 1e-4);
  }
}

// The line above, with a tensor of any shape in place of w.
Graph graph_of(const Shape& shape, const TrainSpec& train) {
  std::string dims, axes = "0";
  for (size_t d = 0; d < shape.size(); ++d) {
    dims += fmt::format("{}{}", d > 0 ? "," : "", shape[d]);
    axes += fmt::format(",{}", d + 1);
  }
  const std::string text = fmt::format(
      "graph batch=1 shards=1\ninput %x:f64[1,{0}] batch_dim=0\nstate %w:f64[{0}] = fill 0\n"
      "%y:f64[1,{0}] = Mul(%x, %w) pass=F\n"
      "%loss:f64[] = ReduceSum(%y) {{axes=[{1}], keepdims=0}} pass=F\nparam w %w\nloss %loss\n",
      dims, axes);
  return must(differentiate(must(parse_graph(text)), train)).graph;
}

TrainSpec spec_of(const nlohmann::json& of) {
  TrainSpec train;
  train.optimizer.name = of["optimizer"];
  train.groups = {{.match = "**"}};
  for (const auto& [key, value] : of["settings"].items()) {
    if (key == "lr") train.groups[0].lr = value;
    if (key == "weight_decay") train.groups[0].weight_decay = value;
    if (key == "lr" || key == "weight_decay") continue;
    if (value.is_string()) train.optimizer.settings.set(key, value.get<std::string>());
    if (value.is_boolean()) train.optimizer.settings.set(key, int64_t{value.get<bool>()});
    if (value.is_number_integer()) train.optimizer.settings.set(key, value.get<int64_t>());
    if (value.is_number_float()) train.optimizer.settings.set(key, value.get<double>());
  }
  return train;
}

// Returns w after each step on the gradients of the case.
std::vector<std::vector<double>> train_tensor(const nlohmann::json& of, const TrainSpec& train) {
  const Shape shape(of["shape"].begin(), of["shape"].end());
  const Graph graph = graph_of(shape, train);
  Shape one = shape;
  one.insert(one.begin(), 1);
  Values state(graph.values.size());
  state[graph.params[0].value.index()] = Tensor{{DType::kF64, shape}, of["start"]};
  std::vector<std::vector<double>> after;
  for (const auto& gradient : of["gradients"]) {
    state[graph.inputs[0].index()] = Tensor{{DType::kF64, one}, gradient};
    const Values values = evaluate(graph, state);
    for (const StateUpdate& update : graph.updates)
      state[update.state.index()] = values[update.next.index()];
    after.push_back(state[graph.params[0].value.index()]->values);
  }
  return after;
}

// tests/data/make_optimizers.py records what PyTorch computes.
TEST(Optimizer, MuonAndAdafactorAreThoseOfPyTorch) {
  std::ifstream file(PIPER_SOURCE_DIR "/tests/data/optimizers.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  EXPECT_GE(cases.size(), 6u);
  for (const nlohmann::json& of : cases) {
    SCOPED_TRACE(of["optimizer"].get<std::string>() + " " + of["settings"].dump());
    const auto after = train_tensor(of, spec_of(of));
    for (size_t k = 0; k < after.size(); ++k) expect_close(after[k], of["after"][k]);
    TrainSpec other = spec_of(of);
    other.optimizer.settings.set(other.optimizer.name == "muon" ? "momentum" : "beta2_decay",
                                 other.optimizer.name == "muon" ? 0.5 : -0.1);
    EXPECT_GT(std::fabs(train_tensor(of, other).back()[0] - after.back()[0]), 1e-6);
  }
}

// Experts, of which each is a matrix, beside the kernel of a convolution.
TEST(Optimizer, StacksAreWhatOpsMultiplyMatrixByMatrix) {
  const auto is_stack = [](const std::string& lines) -> bool {
    return stacks_of(must(parse_graph(
        "graph batch=2 shards=1\ninput %x:f64[2,3,4] batch_dim=0\n" + lines +
        "%loss:f64[] = ReduceSum(%y) {axes=[0,1,2], keepdims=0} pass=F\nparam w %w\nloss "
        "%loss\n")))[0];
  };
  EXPECT_TRUE(is_stack("state %w:f64[2,4,5] = fill 0.1\n%y:f64[2,3,5] = MatMul(%x, %w) pass=F\n"));
  EXPECT_FALSE(
      is_stack("state %w:f64[5,2,2] = fill 0.1\n%flat:f64[5,4] = Reshape(%w) {shape=[5,4]} pass=F\n"
               "%t:f64[4,5] = Transpose(%flat) {perm=[1,0]} pass=F\n"
               "%y:f64[2,3,5] = MatMul(%x, %t) pass=F\n"));
}

// There are 2^60 ways from the product to the loss.
TEST(Optimizer, HeadsAreFoundBehindSumsOfAValueWithItself) {
  std::string text =
      "graph batch=2 shards=1\ninput %x:f64[2,4] batch_dim=0\ninput %labels:i64[2] batch_dim=0\n"
      "state %w:f64[4,4] = fill 0.1\nstate %u:f64[4,4] = fill 0.1\n"
      "%h:f64[2,4] = MatMul(%x, %u) pass=F\n%y0:f64[2,4] = MatMul(%h, %w) pass=F\n";
  for (int i = 0; i < 60; ++i)
    text += fmt::format("%y{}:f64[2,4] = Add(%y{}, %y{}) pass=F\n", i + 1, i, i);
  text +=
      "%loss:f64[2] = CrossEntropy(%y60, %labels) {axis=1} pass=F\nparam w %w\nparam u %u\n"
      "loss %loss\n";
  const Graph graph = must(parse_graph(text));
  const std::vector<ParamGroup> groups{{.match = "**", .kinds = {ParamKind::kHead}},
                                       {.match = "**"}};
  const auto found = must(groups_of(graph, groups));
  EXPECT_EQ(found[0], &groups[0]);
  EXPECT_EQ(found[1], &groups[1]);
}

double rounded_to_bf16(double value) {
  const auto narrow = static_cast<float>(value);
  uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof bits);
  bits += 0x7FFF + (bits >> 16 & 1);  // to the nearest, or the even one
  bits &= 0xFFFF0000;
  float made = 0;
  std::memcpy(&made, &bits, sizeof made);
  return made;
}

// Moments that are kept in bf16 are rounded after each step, each by its own type.
TEST(Optimizer, AdamWithMomentsInBf16) {
  for (const auto& [first, second] :
       {std::pair{DType::kBF16, DType::kF32}, {DType::kBF16, DType::kBF16}}) {
    std::string text = kLine;
    for (size_t at = 0; (at = text.find("f64", at)) != text.npos;) text.replace(at, 3, "f32");
    TrainSpec train = parse_train("optimizer=adamw lr=0.05 wd=0.1 eps=1e-6");
    train.optimizer.states = {first, second};
    const Graph graph = must(differentiate(must(parse_graph(text)), train)).graph;
    Values state(graph.values.size());
    std::vector<double> w = kStart, m(4, 0.0), v(4, 0.0);
    for (int t = 0; t < kSteps; ++t) {
      const std::vector<double> g = gradient_at(t);
      state[graph.inputs[0].index()] = Tensor{{DType::kF32, {1, 4}}, g};
      const Values values = evaluate(graph, state);
      for (const StateUpdate& update : graph.updates)
        state[update.state.index()] = values[update.next.index()];
      for (size_t i = 0; i < 4; ++i) {
        const double next = 0.9 * m[i] + 0.1 * g[i], square = 0.999 * v[i] + 0.001 * g[i] * g[i];
        w[i] -= 0.05 * (0.1 * w[i] + next / (1 - std::pow(0.9, t + 1)) /
                                         (std::sqrt(square / (1 - std::pow(0.999, t + 1))) + 1e-6));
        m[i] = rounded_to_bf16(next);
        v[i] = second == DType::kBF16 ? rounded_to_bf16(square) : square;
      }
      const std::vector<double>& trained = state[graph.params[0].value.index()]->values;
      for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(trained[i], w[i], 2e-6) << t << " " << i;
    }
    const std::vector<double> exact = train_line("optimizer=adamw lr=0.05 wd=0.1 eps=1e-6", kSteps);
    EXPECT_GT(std::fabs(exact[0] - w[0]), 1e-5);
  }
}

// Algorithm 2 of the paper.
TEST(Optimizer, Lion) {
  std::vector<double> w = kStart, m(4, 0.0);
  for (int t = 0; t < kSteps; ++t) {
    const std::vector<double> g = gradient_at(t);
    for (size_t i = 0; i < 4; ++i) {
      const double c = 0.9 * m[i] + (1 - 0.9) * g[i];
      w[i] -= 0.05 * ((c > 0 ? 1 : c < 0 ? -1 : 0) + 0.1 * w[i]);
      m[i] = 0.99 * m[i] + (1 - 0.99) * g[i];
    }
  }
  expect_close(train_line("optimizer=lion lr=0.05 wd=0.1", kSteps), w);
  // A longer average keeps its sign for longer.
  const std::vector<double> other = train_line("optimizer=lion lr=0.05 wd=0.1 beta1=0.99", kSteps);
  EXPECT_GT(std::fabs(other[3] - w[3]), 1e-3);
}

// PyTorch's Adagrad, which is that of ai.onnx.preview.training with T from 0.
TEST(Optimizer, Adagrad) {
  std::vector<double> w = kStart, sum(4, 0.3);
  for (int t = 0; t < kSteps; ++t) {
    const std::vector<double> g = gradient_at(t);
    for (size_t i = 0; i < 4; ++i) {
      const double d = g[i] + 0.1 * w[i];
      sum[i] += d * d;
      w[i] -= 0.05 / (1 + t * 0.2) * d / (std::sqrt(sum[i]) + 1e-6);
    }
  }
  expect_close(
      train_line("optimizer=adagrad lr=0.05 wd=0.1 eps=1e-6 lr_decay=0.2 accumulator=0.3", kSteps),
      w);
}

// The pseudo code of ai.onnx.preview.training for Adam and Momentum, T counting from `count`.
TEST(Optimizer, OnnxAdamAndMomentum) {
  for (const int count : {0, 1, 5}) {
    std::vector<double> a = kStart, v(4, 0.0), h(4, 0.0), b = kStart, buffer(4, 0.0);
    for (int t = count; t < count + kSteps; ++t) {
      const std::vector<double> g = gradient_at(t - count);
      const double rate =
          t > 0 ? 0.05 * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t)) : 0.05;
      for (size_t i = 0; i < 4; ++i) {
        const double d = 0.1 * a[i] + g[i];
        v[i] = 0.9 * v[i] + (1 - 0.9) * d;
        h[i] = 0.999 * h[i] + (1 - 0.999) * d * d;
        a[i] = (1 - 0.02) * (a[i] - rate * v[i] / (std::sqrt(h[i]) + 1e-3));
        const double e = 0.1 * b[i] + g[i];
        buffer[i] = 0.9 * buffer[i] + (t > 0 ? 0.8 : 1) * e;
        b[i] -= 0.05 * (e + 0.9 * buffer[i]);
      }
    }
    expect_close(train_line(fmt::format("optimizer=onnx_adam lr=0.05 wd=0.1 eps=1e-3 "
                                        "wd_after=0.02 count={}",
                                        count),
                            kSteps),
                 a);
    expect_close(train_line(fmt::format("optimizer=sgd lr=0.05 wd=0.1 momentum=0.9 dampening=0.2 "
                                        "nesterov=1 count={}",
                                        count),
                            kSteps),
                 b);
  }
}

// The operands of ONNX's own node tests, and what the functions of the onnx package make of them.
TEST(Optimizer, OnnxNodeTests) {
  const auto of = [](std::vector<double> values) {
    return Tensor{{DType::kF64, {static_cast<int64_t>(values.size())}}, values};
  };
  const auto step = [](int64_t t) { return Tensor{{DType::kI64, {}}, {static_cast<double>(t)}}; };
  const Tensor rate{{DType::kF64, {}}, {0.1}};
  const auto run = [&](std::string_view op, const Attrs& attrs, std::vector<Tensor> operands,
                       int64_t t) {
    std::vector<std::optional<Tensor>> inputs(operands.begin(), operands.end());
    inputs.insert(inputs.end(), {rate, std::nullopt, step(t)});
    return evaluate(op, attrs, inputs,
                    std::vector<TensorType>(operands.size() - 1, operands[0].type));
  };
  const Attrs adam{{"beta1", 0.95},
                   {"beta2", 0.1},
                   {"eps", 1e-7},
                   {"weight_decay", 0.001},
                   {"weight_decay_after", 0.01}};
  const Attrs adagrad{{"eps", 1e-5}, {"weight_decay", 0.001}, {"lr_decay", 0.1}};
  const Attrs momentum{{"momentum", 0.95}, {"dampening", 0.9}, {"weight_decay", 0.001}};
  const Attrs nesterov{
      {"momentum", 0.95}, {"dampening", 0.0}, {"weight_decay", 0.01}, {"nesterov", int64_t{1}}};
  const std::vector<Tensor> four{of({1.2, 2.8}), of({-0.94, -2.5}), of({1.7, 3.6}), of({0.1, 0.1})};
  const std::vector<Tensor> three(four.begin(), four.end() - 1);
  const std::vector<Tensor> squares{of({1.0, 2.0}), of({-1.0, -3.0}), of({2.0, 3.5})};
  const std::pair<int64_t, std::vector<double>> adam_steps[] = {
      {0, {1.0147859856255719, 2.634422344269029}},
      {1, {-2.098504848506025, 0.16164751646169692}},
      {3, {-0.025864229305214113, 1.8078713430514006}}};
  for (const auto& [t, x] : adam_steps) {
    const std::vector<Tensor> out = run("OnnxAdam", adam, four, t);
    expect_close(out[0].values, x);
    expect_close(out[1].values, {1.56806, 3.29514});
    expect_close(out[2].values, {0.803210896, 5.622407056});
  }
  const std::pair<int64_t, std::vector<double>> adagrad_steps[] = {
      {0, {1.0576961844316204, 2.0848367230699654}},
      {1, {1.0524510767560185, 2.0771242936999683}},
      {3, {1.0443816803320156, 2.0652590177461274}}};
  for (const auto& [t, x] : adagrad_steps) {
    const std::vector<Tensor> out = run("Adagrad", adagrad, squares, t);
    expect_close(out[0].values, x);
    expect_close(out[1].values, {2.998001, 12.488004});
  }
  expect_close(run("Sgd", momentum, three, 1)[0].values, {1.047888, 2.482972});
  expect_close(run("Sgd", momentum, three, 1)[1].values, {1.52112, 3.17028});
  expect_close(run("Sgd", nesterov, three, 3)[0].values, {1.227535, 2.95714});
  expect_close(run("Sgd", nesterov, three, 3)[1].values, {0.687, 0.948});
}

TEST(Optimizer, WarmUpAndCosine) {
  const auto rate = [](int t) {
    if (t < 2) return 0.05 * (t + 1) / 2;
    const double cosine = (1 + std::cos(std::acos(-1.0) * (t - 2) / (4.0 - 2))) / 2;
    return 0.05 * (0.1 + 0.9 * cosine);
  };
  expect_close(
      train_line("optimizer=adamw lr=0.05 wd=0.1 eps=1e-6 "
                 "rate=lr_step_2_<_step_1_+_2_/_step_4_<_0.1_0.9_1_3.141592653589793_step_2_-_"
                 "2_/_*_cos_+_*_2_/_+_0.1_?_?_*",
                 kSteps),
      adam(true, {}, rate));
}

}  // namespace
}  // namespace piper
