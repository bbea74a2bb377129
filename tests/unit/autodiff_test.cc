#include "piper/frontend/autodiff.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "evaluate.h"
#include "golden.h"
#include "piper/ir/ops.h"
#include "support/forms/parse_graph.h"
#include "unit/train_text.h"

namespace piper {
namespace {

using test::must;
using test::parse_train;
using test::Tensor;
using test::Values;

TEST(Autodiff, Golden) {
  golden::run("autodiff/*.test", {"after", "error"}, [](const golden::Case& c) -> golden::Section {
    Graph graph = must(parse_graph(c.text("graph")));
    must(check_graph(graph));
    Result<Differentiated> made = differentiate(std::move(graph), parse_train(c.text("train")));
    if (!made) return {"error", print_error(made.error())};
    must(check_graph(made->graph));
    std::string text = print_graph(made->graph);
    for (const std::string& name : made->without_gradient) {
      text += "without gradient: " + name + "\n";
    }
    return {"after", text};
  });
}

// ---- Passes -----------------------------------------------------------------------------------

// What DESIGN says of passes, seen from outside: a weight gradient can wait, nothing else waits for
// it.
void check_passes(const Graph& graph) {
  const auto read_by = readers(graph);
  size_t split = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    bool forward = false, inputs = false;
    for (ValueId id : node.outputs) {
      for (NodeId reader : read_by[id.index()]) {
        forward = forward || graph.node(reader).pass == Pass::kF;
        inputs = inputs || graph.node(reader).pass == Pass::kBI;
      }
    }
    const bool waits = node.pass == Pass::kBW || node.pass == Pass::kU;
    EXPECT_FALSE(waits && (forward || inputs)) << "something waits for " << node.name;
    EXPECT_FALSE(node.pass == Pass::kBI && forward) << node.name;
    split += node.pass == Pass::kBW;
  }
  EXPECT_GT(split, 0u);
}

// ---- Finite differences of a whole model ------------------------------------------------------

// A language model in small: an embedding tied to the head, a norm, an MLP with a residual, labels
// that are ignored.
constexpr const char* kTied = R"(graph batch=2 shards=1
input %ids:i64[2,3] batch_dim=0
input %labels:i64[2,3] batch_dim=0
constant %half:f64[] = [0.5]
state %wte:f64[5,4] = fill 0
state %scale:f64[4] = fill 1
state %bias:f64[4] = fill 0
state %w1:f64[6,4] = fill 0
state %b1:f64[6] = fill 0
state %w2:f64[6,4] = fill 0
%e:f64[2,3,4] = Gather(%wte, %ids) {axis=0} pass=F
%n:f64[2,3,4] %mean:f64[2,3,1] %rstd:f64[2,3,1] = LayerNorm(%e, %scale, %bias) {axis=2, epsilon=1e-05} pass=F
%u:f64[2,3,6] = MatMul(%n, %w1) {trans_b=1} pass=F
%v:f64[2,3,6] = Add(%u, %b1) pass=F
%g:f64[2,3,6] = Gelu(%v) {approximate="none"} pass=F
%o:f64[2,3,4] = MatMul(%g, %w2) pass=F
%r:f64[2,3,4] = Add(%e, %o) pass=F
%turned:f64[4,5] = Transpose(%wte) {perm=[1,0]} pass=F
%soft:f64[4,5] = Mul(%turned, %half) pass=F
%logits:f64[2,3,5] = MatMul(%r, %soft) pass=F
%sum:f64[] %lse:f64[2,3] = CrossEntropySum(%logits, %labels) {ignore_index=-100} pass=F
%labelled:f32[] = LabelCount(%labels) {ignore_index=-100} pass=F
%count:f64[] = Cast(%labelled) {to="f64"} pass=F
%loss:f64[] = Div(%sum, %count) pass=F
param wte.weight %wte
param norm.weight %scale
param norm.bias %bias
param fc.weight %w1
param fc.bias %b1
param proj.weight %w2
loss %loss
)";

// A weight that is made of two parameters, one of them through two paths, and serves two uses.
constexpr const char* kMade = R"(graph batch=2 shards=1
input %ids:i64[2,3] batch_dim=0
input %labels:i64[2,3] batch_dim=0
state %table:f64[5,4] = fill 0
state %u:f64[2,4] = fill 0
state %v:f64[3,4] = fill 0
%e:f64[2,3,4] = Gather(%table, %ids) {axis=0} pass=F
%bent:f64[2,4] = Tanh(%u) pass=F
%square:f64[2,4] = Mul(%u, %bent) pass=F
%w:f64[5,4] = Concat(%square, %v) {axis=0} pass=F
%a:f64[2,3,5] = MatMul(%e, %w) {trans_b=1} pass=F
%b:f64[2,3,4] = MatMul(%a, %w) pass=F
%logits:f64[2,3,4] = Mul(%b, %b) pass=F
%total:f64[] = ReduceSum(%logits) {axes=[0,1,2], keepdims=0} pass=F
%penalty:f64[] = ReduceSum(%w) {axes=[0,1], keepdims=0} pass=F
%loss:f64[] = Sub(%total, %penalty) pass=F
param table %table
param u %u
param v %v
loss %loss
)";

Values tied_inputs(const Graph& graph, std::mt19937_64& random) {
  Values values(graph.values.size());
  const ValueId ids = graph.find_value("ids"), labels = graph.find_value("labels");
  values[ids.index()] = Tensor{graph.value(ids).type, {0, 1, 1, 4, 2, 3}};
  values[labels.index()] = Tensor{graph.value(labels).type, {1, -100, 3, 0, 4, -100}};
  for (const Param& param : graph.params) {
    values[param.value.index()] = test::draw(graph.value(param.value).type, random, -1, 1, 1);
  }
  return values;
}

double loss_of(const Graph& graph, const Values& inputs) {
  return evaluate(graph, inputs)[graph.loss.index()]->values[0];
}

void check_gradients(const char* text) {
  const Graph forward = must(parse_graph(text));
  const Graph whole = must(differentiate(forward, parse_train("optimizer=sgd lr=0.1"))).graph;
  std::mt19937_64 random(7);
  const Values inputs = tied_inputs(forward, random);
  Values all(whole.values.size());
  for (size_t i = 0; i < forward.values.size(); ++i) {
    const ValueId id = whole.find_value(forward.values[i].name);
    if (inputs[i]) all[id.index()] = inputs[i];
  }
  all = evaluate(whole, std::move(all));
  EXPECT_DOUBLE_EQ(all[whole.loss.index()]->values[0], loss_of(forward, inputs));
  double squares = 0;
  for (size_t p = 0; p < forward.params.size(); ++p) {
    const size_t at = forward.params[p].value.index();
    const Tensor& gradient = *all[whole.params[p].gradient.index()];
    for (size_t e = 0; e < gradient.values.size(); ++e) {
      Values moved = inputs;
      moved[at]->values[e] += 1e-6;
      const double above = loss_of(forward, moved);
      moved[at]->values[e] -= 2e-6;
      const double below = loss_of(forward, moved);
      EXPECT_NEAR(gradient.values[e], (above - below) / 2e-6, 1e-7)
          << forward.params[p].name << " element " << e << " (seed 7)";
      squares += gradient.values[e] * gradient.values[e];
    }
  }
  EXPECT_DOUBLE_EQ(all[whole.grad_norm.index()]->values[0], std::sqrt(squares));
}

TEST(Autodiff, GradientsOfATiedModelAgreeWithDifferences) { check_gradients(kTied); }

TEST(Autodiff, GradientsThroughMadeWeightsAgreeWithDifferences) {
  check_gradients(kMade);
  const Graph whole =
      must(differentiate(must(parse_graph(kMade)), parse_train("optimizer=sgd lr=0.1"))).graph;
  check_passes(whole);
  for (const Param& param : whole.params) {
    const Node& sum = whole.node(whole.value(param.gradient).producer);
    EXPECT_EQ(sum.inputs.size(), param.name == "table" ? 1u : 3u) << param.name;
  }
}

// What the backward ops of a step read of forward values.
std::set<std::string> kept(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& node : graph.nodes)
    for (ValueId input : node.inputs)
      if (is_backward(node) && graph.value(input).producer.valid() &&
          graph.node(graph.value(input).producer).pass == Pass::kF)
        names.insert(graph.value(input).name);
  return names;
}

TEST(Autodiff, BackwardTakesPartsOfOneValueFromThatValue) {
  const auto step = [](const std::string& parts) {
    const std::string head =
        "graph batch=2\ninput %x:f32[2,6] batch_dim=0\n%h:f32[2,6] = Tanh(%x) pass=F\n";
    return must(parse_graph(head + parts));
  };
  const std::string left =
                        "%l:f32[2,3] = Slice(%h) {ends=[2,3], starts=[0,0], steps=[1,1]} pass=F\n",
                    right =
                        "%r:f32[2,3] = Slice(%h) {ends=[2,6], starts=[0,3], steps=[1,1]} pass=F\n",
                    shaped = "%s:f32[3,2] = Reshape(%r) {shape=[3,2]} pass=F\n",
                    reads_left = "%a:f32[2,3] = Neg(%l) pass=BI\n",
                    reads_shaped = "%b:f32[3,2] = Neg(%s) pass=BI\n";
  // Both halves are the whole; one half is less to keep than the whole.
  const Graph both = step(left + right + shaped + reads_left + reads_shaped);
  EXPECT_EQ(kept(both), (std::set<std::string>{"l", "s"}));
  const Graph renamed = rename_in_backward(both);
  EXPECT_EQ(kept(renamed), (std::set<std::string>{"h"}));
  EXPECT_TRUE(check_graph(renamed).ok());
  EXPECT_EQ(kept(rename_in_backward(step(right + shaped + reads_shaped))),
            (std::set<std::string>{"s"}));
  // Of another region, the value would have to be sent.
  Graph apart = both;
  const int stage = apart.add_tag("stage");
  for (Node& node : apart.nodes)
    if (node.pass == Pass::kBI) apart.set_tag(node, stage, 1);
  EXPECT_EQ(kept(rename_in_backward(apart)), (std::set<std::string>{"l", "s"}));
}

TEST(Autodiff, BackwardKeepsTheSlopeOfAGeluInPlaceOfItsInput) {
  const auto step = [](const std::string& type, const std::string& attrs, const std::string& more) {
    const auto line = [&](const char* name, const std::string& op) {
      return fmt::format("%{}:{}[2,6] = {}\n", name, type, op);
    };
    const std::string text =
        "graph batch=2\ninput %x:" + type + "[2,6] batch_dim=0\n" + line("h", "Tanh(%x) pass=F") +
        line("g", "Gelu(%h) {approximate=\"tanh\"} pass=F") + line("d", "Neg(%g) pass=BI") +
        line("dh", "GeluGrad(%h, %d) {approximate=\"" + attrs + "\"} pass=BI");
    return must(parse_graph(text + (more.empty() ? "" : line("m", more))));
  };
  const std::set<std::string> input = {"g", "h"};
  const Graph both = step("f32", "tanh", "");
  EXPECT_EQ(kept(both), input);
  const Graph slopes = keep_slopes(both);
  EXPECT_EQ(kept(slopes), (std::set<std::string>{"g", "h/slope"}));
  EXPECT_TRUE(check_graph(slopes).ok());
  EXPECT_EQ(slopes.nodes.back().op, "Mul");
  // Other readers, another gradient, and 16 bits.
  EXPECT_EQ(kept(keep_slopes(step("f32", "tanh", "Neg(%h) pass=BW"))), input);
  EXPECT_EQ(kept(keep_slopes(step("f32", "none", ""))), input);
  EXPECT_EQ(kept(keep_slopes(step("bf16", "tanh", ""))), input);
}

TEST(Autodiff, WeightGradientsCanWait) {
  const Graph whole =
      must(differentiate(must(parse_graph(kTied)), parse_train("optimizer=sgd lr=0.1"))).graph;
  check_passes(whole);
  // Each product of the backward is made once: three inputs' and three weights' gradients.
  std::map<Pass, int> products;
  for (const Node& node : whole.nodes) products[node.pass] += node.op == "MatMul";
  EXPECT_EQ(products[Pass::kF], 3);
  EXPECT_EQ(products[Pass::kBI], 3);
  EXPECT_EQ(products[Pass::kBW], 3);
  const Node& tied = whole.node(whole.value(whole.params[0].gradient).producer);
  EXPECT_EQ(tied.op, "StepSum");
  EXPECT_EQ(tied.inputs.size(), 2u);
}

TEST(Optimizer, OneLearningRateForEachBase) {
  const std::string spec =
      "optimizer=sgd group=fc.* lr=0.1 wd=0 group=norm.* lr=0.2 wd=0 group=** lr=0.1 wd=0.5";
  const Graph whole = must(differentiate(must(parse_graph(kTied)), parse_train(spec))).graph;
  int rates = 0, norms = 0;
  for (const Node& node : whole.nodes) {
    rates += node.op == "LearningRate";
    norms += node.op == "SumSquares";
  }
  EXPECT_EQ(rates, 2);
  EXPECT_EQ(norms, 6);
}

// Walks that go up from a value once for each of its uses would never end here.
TEST(Evaluation, ALossMadeOfRepeatedSquaresIsRead) {
  Graph graph;
  Builder b(graph);
  Value x{.name = "x", .type = {DType::kF32, {4, 3}}, .kind = ValueKind::kInput};
  x.batch_dim = 0;
  const ValueId input = graph.add_value(x);
  graph.inputs = {input};
  ValueId loss = b.div(b.reduce_sum(input, {0, 1}, false), b.scalar(12, DType::kF32));
  for (int i = 0; i < 64; ++i) loss = b.mul(loss, loss);
  graph.loss = loss;
  graph.outputs = {loss};
  const auto made = evaluated(graph);
  ASSERT_TRUE(made) << print_error(made.error());
  EXPECT_EQ(made->nodes.size(), graph.nodes.size());
}

// ---- A loss named by the strategy -------------------------------------------------------------

constexpr const char* kLogits = R"(graph batch=4 shards=1
input %ids:i64[4,3] batch_dim=0
state %w:f32[5,6] = fill 0.5
%logits:f32[4,3,6] = Gather(%w, %ids) {axis=0} pass=F
param w %w
output %logits
)";

TEST(CrossEntropy, AddsLabelsAndAMean) {
  const std::vector<LossTerm> terms{{.kind = LossTerm::Kind::kCrossEntropy,
                                     .output = "logits",
                                     .target = "labels",
                                     .ignore_index = -1}};
  const Graph graph = must(add_loss(must(parse_graph(kLogits)), terms));
  must(check_graph(graph));
  EXPECT_EQ(print_graph(graph), R"(graph batch=4 shards=1
input %ids:i64[4,3] batch_dim=0
input %labels:i64[4,3] batch_dim=0
state %w:f32[5,6] = fill 0.5
%logits:f32[4,3,6] = Gather(%w, %ids) {axis=0} pass=F
%loss_CrossEntropySum_1:f32[] %loss_CrossEntropySum_1:1:f32[4,3] = CrossEntropySum(%logits, %labels) {ignore_index=-1} pass=F scope=loss
%loss_LabelCount_2:f32[] = LabelCount(%labels) {ignore_index=-1} pass=F scope=loss
%loss_Div_3:f32[] = Div(%loss_CrossEntropySum_1, %loss_LabelCount_2) pass=F scope=loss
param w %w
output %logits
output %loss_Div_3
loss %loss_Div_3
)");
}

TEST(Loss, ErrorsNameTheValues) {
  using enum LossTerm::Kind;
  auto error = [](LossTerm term) {
    const Result<Graph> made = add_loss(must(parse_graph(kLogits)), {&term, 1});
    return made ? "ok" : made.error().message;
  };
  EXPECT_EQ(error({.kind = kCrossEntropy, .output = "logit", .target = "labels"}),
            "loss: the model has no value 'logit' (did you mean 'logits'?)");
  EXPECT_EQ(error({.kind = kCrossEntropy, .output = "ids", .target = "labels"}),
            "loss: 'ids' is i64[4,3], not floats");
  EXPECT_EQ(error({.kind = kCrossEntropy, .output = "logits", .target = "w"}),
            "loss: the target of 'logits' must be i64[4,3], but 'w' is f32[5,6]");
  EXPECT_EQ(error({.kind = kCrossEntropy, .output = "logits", .target = "y", .dim = 3}),
            "loss: 'logits' is f32[4,3,6], which has no dim 3 of classes");
  EXPECT_EQ(error({.kind = kMse, .output = "logits", .target = "w"}),
            "loss: the target of 'logits' must be f32[4,3,6], but 'w' is f32[5,6]");
  EXPECT_EQ(error({.kind = kMse, .output = "w", .target = "y"}),
            "loss: the target of 'w' would be [5,6], and no dim counts the 4 samples of a batch");
  EXPECT_EQ(error({.kind = kOutput, .output = "logits"}),
            "loss: 'logits' is f32[4,3,6], not a scalar");
}

}  // namespace
}  // namespace piper
