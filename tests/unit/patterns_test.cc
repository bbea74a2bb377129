#include "piper/frontend/patterns.h"

#include <gtest/gtest.h>

#include <cstring>

#include "piper/ir/ops.h"

namespace piper {
namespace {

// x · ½(1 + tanh(k(x + c x³))) as an exporter writes it.
struct WrittenOut {
  Graph graph;
  ValueId x, out;
};
WrittenOut written_out(double cubic, bool extra_reader) {
  WrittenOut w;
  Value input;
  input.name = "x";
  input.type = {DType::kF32, {2, 3}};
  input.kind = ValueKind::kInput;
  input.batch_dim = 0;
  w.x = w.graph.add_value(input);
  w.graph.inputs = {w.x};
  Builder b(w.graph);
  const auto scalar = [&](double v) { return b.scalar(v, DType::kF32); };
  const ValueId cube = b.mul(b.mul(w.x, w.x), w.x);
  const ValueId inner = b.add(w.x, b.mul(scalar(cubic), cube));
  const ValueId bent = b.op1("Tanh", {b.mul(scalar(0.7978845608), inner)});
  w.out = b.mul(w.x, b.mul(scalar(0.5), b.add(bent, scalar(1))));
  w.graph.outputs = {w.out};
  if (extra_reader) w.graph.outputs.push_back(b.neg(bent));
  return w;
}

std::vector<std::string> ops_of(const Graph& graph) {
  std::vector<std::string> ops;
  for (const Node& node : graph.nodes) ops.push_back(node.op);
  return ops;
}
using Ops = std::vector<std::string>;
template <class T>
T must(Result<T> result) {
  EXPECT_TRUE(result) << print_error(result.error());
  return *std::move(result);
}

TEST(Patterns, GeluWrittenOutBecomesOneOp) {
  const auto found = recognise(written_out(0.044715, false).graph);
  ASSERT_TRUE(found) << print_error(found.error());
  EXPECT_EQ(ops_of(found->graph), Ops({"Gelu"}));
  EXPECT_EQ(found->graph.nodes[0].attrs.text("approximate"), "tanh");
  EXPECT_EQ(found->counts, (std::vector<std::pair<std::string, int64_t>>{{"Gelu", 1}}));
}

// Means of f16 are summed in f32, and round once: what the importer writes is a norm none the less.
TEST(Patterns, ANormOfSixteenBitsBecomesOneOp) {
  Graph graph;
  Value input;
  input.name = "x";
  input.type = {DType::kF16, {2, 8}};
  input.kind = ValueKind::kInput;
  const ValueId x = graph.add_value(input);
  graph.inputs = {x};
  Builder b(graph);
  const auto mean = [&](ValueId of) {
    const ValueId sum = b.reduce_sum(b.cast(of, DType::kF32), {1}, true);
    return b.cast(b.mul(sum, b.scalar(0.125, DType::kF32)), DType::kF16);
  };
  const ValueId middle = b.sub(x, mean(x));
  const ValueId shifted = b.add(mean(b.mul(middle, middle)), b.scalar(1e-3, DType::kF16));
  graph.outputs = {b.div(middle, b.op1("Sqrt", {shifted}))};
  const auto found = recognise(graph);
  ASSERT_TRUE(found) << print_error(found.error());
  EXPECT_EQ(found->counts, (std::vector<std::pair<std::string, int64_t>>{{"LayerNorm", 1}}));
}

TEST(Patterns, AnotherCoefficientIsNoGelu) {
  const auto found = recognise(written_out(0.05, false).graph);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->counts.empty());
  EXPECT_EQ(found->graph.nodes.size(), 9u);
}

TEST(Patterns, AnInnerValueThatOthersReadKeepsThePattern) {
  const auto found = recognise(written_out(0.044715, true).graph);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->counts.empty());
}

struct Two {
  Graph graph;
  ValueId a, b;
};
Two two_inputs(const Shape& a, const Shape& b) {
  Two two;
  for (const auto& [name, shape, id] : {std::tuple("a", a, &two.a), std::tuple("b", b, &two.b)}) {
    Value value;
    value.name = name;
    value.type = {DType::kF32, shape};
    value.kind = ValueKind::kInput;
    value.batch_dim = 0;
    *id = two.graph.add_value(value);
    two.graph.inputs.push_back(*id);
  }
  return two;
}

TEST(Patterns, TransposedKeysBecomeAFlag) {
  Two t = two_inputs({2, 4, 8, 3}, {2, 4, 5, 3});
  Builder b(t.graph);
  const ValueId swapped =
      b.reshape(b.transpose(b.reshape(t.b, {8, 5, 3}), {0, 2, 1}), {2, 4, 3, 5});
  t.graph.outputs = {b.matmul(t.a, b.mul(swapped, b.scalar(0.25, DType::kF32)))};
  const auto found = recognise(std::move(t.graph));
  ASSERT_TRUE(found) << print_error(found.error());
  EXPECT_EQ(ops_of(found->graph), Ops({"Mul", "MatMul"}));
  EXPECT_EQ(found->graph.nodes[1].attrs.integer("trans_b"), 1);
  EXPECT_EQ(found->graph.value(found->graph.outputs[0]).type.shape, (Shape{2, 4, 8, 5}));
}

TEST(Patterns, APermutationOfOtherDimsStays) {
  Two t = two_inputs({4, 2, 8, 3}, {2, 4, 3, 5});
  Builder b(t.graph);
  t.graph.outputs = {b.matmul(b.transpose(t.a, {1, 0, 2, 3}), t.b)};
  const auto found = recognise(std::move(t.graph));
  ASSERT_TRUE(found);
  EXPECT_EQ(ops_of(found->graph), Ops({"Transpose", "MatMul"}));
}

Attrs pad(int64_t before, int64_t after) {
  Attrs attrs;
  attrs.set("before", std::vector<int64_t>{0, before});
  attrs.set("after", std::vector<int64_t>{0, after});
  attrs.set("value", 0.0);
  return attrs;
}

// Seen anew from each of its members, or by a call for each, a long chain would take minutes or
// overflow the stack.
TEST(Patterns, LongChainsOfSumsAndProductsTakeNoTime) {
  for (const char* op : {"Add", "Mul"}) {
    WrittenOut w = written_out(0.044715, false);
    Builder b(w.graph);
    for (int i = 0; i < 100'000; ++i) w.out = b.op1(op, {w.out, w.x});
    w.graph.outputs = {w.out};
    const auto found = recognise(std::move(w.graph));
    ASSERT_TRUE(found) << print_error(found.error());
    EXPECT_EQ(found->counts, (std::vector<std::pair<std::string, int64_t>>{{"Gelu", 1}}));
  }
}

TEST(Patterns, PaddedPartsThatTileADimAreConcatenated) {
  Two t = two_inputs({2, 3}, {2, 4});
  Builder b(t.graph);
  t.graph.outputs = {b.add(b.op1("Pad", {t.b}, pad(3, 0)), b.op1("Pad", {t.a}, pad(0, 4)))};
  const auto found = recognise(std::move(t.graph));
  ASSERT_TRUE(found) << print_error(found.error());
  EXPECT_EQ(ops_of(found->graph), Ops({"Concat"}));
  EXPECT_EQ(found->graph.nodes[0].inputs,
            (std::vector<ValueId>{found->graph.inputs[0], found->graph.inputs[1]}));
}

TEST(Patterns, PaddedPartsThatOverlapStayASum) {
  Two t = two_inputs({2, 3}, {2, 4});
  Builder b(t.graph);
  t.graph.outputs = {b.add(b.op1("Pad", {t.b}, pad(2, 1)), b.op1("Pad", {t.a}, pad(0, 4)))};
  const auto found = recognise(std::move(t.graph));
  ASSERT_TRUE(found);
  EXPECT_EQ(ops_of(found->graph), Ops({"Pad", "Pad", "Add"}));
}

// A sum that repeats the row of one term is no concatenation.
TEST(Patterns, PaddedPartsOfOtherShapesStayASum) {
  Two t = two_inputs({1, 3}, {2, 4});
  Builder b(t.graph);
  t.graph.outputs = {b.add(b.op1("Pad", {t.b}, pad(3, 0)), b.op1("Pad", {t.a}, pad(0, 4)))};
  const auto found = recognise(std::move(t.graph));
  ASSERT_TRUE(found) << print_error(found.error());
  EXPECT_EQ(ops_of(found->graph), Ops({"Pad", "Pad", "Add"}));
}

// The gradient of a softmax multiplies by its weights, so a row without keys needs weights that are
// numbers before a guard makes them zero.
TEST(Patterns, RowsWithoutKeysAreFoundBeforeTheSoftmax) {
  for (const bool guarded : {true, false}) {
    Two t = two_inputs({2, 3}, {2, 3});
    Builder b(t.graph);
    const ValueId weights = b.op1("Softmax", {b.add(t.a, t.b)}, {{"axis", int64_t{1}}});
    const ValueId zero = b.scalar(guarded ? 0 : 1, DType::kF32);
    t.graph.outputs = {b.op1("Where", {b.op1("IsNaN", {weights}), zero, weights})};
    const auto found = recognise(std::move(t.graph));
    ASSERT_TRUE(found) << print_error(found.error());
    EXPECT_EQ(ops_of(found->graph),
              guarded ? Ops({"Add", "ReduceMax", "Equal", "Where", "Softmax", "Where"})
                      : Ops({"Add", "Softmax", "IsNaN", "Where"}));
  }
}

// ---- Rounded once -----------------------------------------------------------------------------

// Gelu(x · w + b) as exporters write it, and its gradient by x, w and b.
struct LinearForm {
  DType dtype = DType::kBF16;
  Shape x{2, 4, 6}, w{6, 8}, bias{8};
  int64_t trans_a = 0, trans_b = 0;
  bool bias_first = false, reshapes = false, reads_product = false, gelu = true;
  int32_t stage_of_sum = 0;
};
Graph linear_form(const LinearForm& form) {
  Graph graph;
  const auto input = [&](const char* name, const Shape& shape) {
    Value value;
    value.name = name;
    value.type = {form.dtype, shape};
    value.kind = ValueKind::kInput;
    graph.inputs.push_back(graph.add_value(std::move(value)));
    return graph.inputs.back();
  };
  const ValueId x = input("x", form.x), w = input("w", form.w), bias = input("b", form.bias);
  Builder b(graph);
  graph.add_tag("stage");
  b.tags = {0};
  b.scope = "fc";
  const ValueId product = b.matmul(x, w, form.trans_a != 0, form.trans_b != 0);
  b.tags = {form.stage_of_sum};
  const ValueId sum = form.bias_first ? b.add(bias, product) : b.add(product, bias);
  const ValueId given = form.reshapes ? b.reshape(sum, {2, 2, 2, 8}) : sum;
  b.scope = "act";
  const ValueId y = form.gelu ? b.op1("Gelu", {given}, {{"approximate", "tanh"}}) : b.neg(given);
  graph.outputs = {y};
  if (form.reads_product) graph.outputs.push_back(b.neg(product));
  b.pass = Pass::kBI;
  const ValueId dy = input("dy", Shape(b.shape(y)));
  graph.outputs.push_back(form.gelu ? b.op1("GeluGrad", {given, dy}, {{"approximate", "tanh"}})
                                    : b.neg(dy));
  return graph;
}
Ops rounded_once(const LinearForm& form) {
  const Graph graph = must(in_topological_order(round_once(linear_form(form))));
  const Status status = check_graph(graph);
  EXPECT_TRUE(status) << print_error(status.error());
  return ops_of(graph);
}

TEST(RoundOnce, AProductItsBiasAndAGeluAreOneOpOf16Bits) {
  const Graph graph = round_once(linear_form({}));
  ASSERT_EQ(ops_of(graph), Ops({"Linear", "GeluGrad"}));
  const Node &linear = graph.nodes[0], &gradient = graph.nodes[1];
  EXPECT_EQ(linear.attrs.text("activation"), "gelu_tanh");
  EXPECT_EQ(linear.scope, "fc");
  EXPECT_EQ(linear.outputs[0], graph.outputs[0]);
  EXPECT_EQ(linear.outputs[1], gradient.inputs[0]);
  const Ops joined{"Linear", "GeluGrad"};
  EXPECT_EQ(rounded_once({.dtype = DType::kF16}), joined);
  EXPECT_EQ(rounded_once({.x = {4, 6}}), joined);
  EXPECT_EQ(rounded_once({.w = {8, 6}, .trans_b = 1}), joined);
  EXPECT_EQ(rounded_once({.bias_first = true}), joined);
  EXPECT_EQ(rounded_once({.gelu = false}), Ops({"Linear", "Neg", "Neg"}));
}

TEST(RoundOnce, AGeluOfAnotherShapeIsPartOfItToo) {
  const Graph graph = round_once(linear_form({.reshapes = true}));
  EXPECT_EQ(ops_of(graph), Ops({"Linear", "Reshape", "Reshape", "GeluGrad"}));
  EXPECT_EQ(graph.value(graph.outputs[0]).type.shape, (Shape{2, 2, 2, 8}));
}

TEST(RoundOnce, OthersStayAsTheyAre) {
  const Ops apart{"MatMul", "Add", "Gelu", "GeluGrad"};
  EXPECT_EQ(rounded_once({.dtype = DType::kF32}), apart);  // in which nothing is rounded again
  EXPECT_EQ(rounded_once({.x = {6, 4}, .trans_a = 1}), apart);
  EXPECT_EQ(rounded_once({.w = {2, 6, 8}}), apart);     // a matrix for each
  EXPECT_EQ(rounded_once({.bias = {2, 4, 8}}), apart);  // a residual
  EXPECT_EQ(rounded_once({.bias = {1}}), apart);        // a number
  EXPECT_EQ(rounded_once({.stage_of_sum = 1}), apart);  // of two chunks
  EXPECT_EQ(rounded_once({.reads_product = true}),
            Ops({"MatMul", "Add", "Gelu", "Neg", "GeluGrad"}));
}

// The loss of logits of 16 bits that are cast, and its gradient by them; `rows`: of rows that a
// Reshape makes.
Graph loss_form(DType logits, DType gradient, bool rows = false) {
  Graph graph;
  const auto input = [&](const char* name, TensorType type) {
    Value value;
    value.name = name;
    value.type = std::move(type);
    value.kind = ValueKind::kInput;
    graph.inputs.push_back(graph.add_value(std::move(value)));
    return graph.inputs.back();
  };
  const Shape lead = rows ? Shape{2, 2} : Shape{4}, shape = rows ? Shape{2, 2, 7} : Shape{4, 7};
  const ValueId x = input("x", {logits, shape}), all = input("labels", {DType::kI64, lead}),
                slope = input("slope", {DType::kF32, {}});
  Builder b(graph);
  const ValueId wide = b.cast(b.reshape(x, {4, 7}), DType::kF32), labels = b.reshape(all, {4});
  const std::vector<ValueId> sum = b.op("CrossEntropySum", {wide, labels});
  b.pass = Pass::kBI;
  const ValueId dx = b.op1("CrossEntropyGrad", {wide, labels, sum[1], slope});
  graph.outputs = {sum[0], b.reshape(b.cast(dx, gradient), shape)};
  return graph;
}

TEST(RoundOnce, ACrossEntropyReadsLogitsOf16Bits) {
  const Graph graph = round_once(loss_form(DType::kBF16, DType::kBF16));
  ASSERT_EQ(ops_of(graph), Ops({"CrossEntropySum", "CrossEntropyGrad"}));
  EXPECT_EQ(graph.value(graph.outputs[0]).type, (TensorType{DType::kF32, {}}));
  EXPECT_EQ(graph.value(graph.outputs[1]).type, (TensorType{DType::kBF16, {4, 7}}));
  const Status status = check_graph(graph);
  EXPECT_TRUE(status) << print_error(status.error());
  // So it does as they lie, whatever rows the loss is taken of.
  const Graph rows = round_once(loss_form(DType::kBF16, DType::kBF16, true));
  ASSERT_EQ(ops_of(rows), Ops({"CrossEntropySum", "CrossEntropyGrad"}));
  EXPECT_EQ(rows.nodes[1].inputs[0], rows.inputs[0]);
  EXPECT_EQ(rows.value(rows.outputs[1]).type, (TensorType{DType::kBF16, {2, 2, 7}}));
  // The gradient is wanted in another type: it is not rounded to that of the logits before.
  EXPECT_EQ(ops_of(round_once(loss_form(DType::kBF16, DType::kF16))),
            Ops({"Cast", "CrossEntropySum", "CrossEntropyGrad", "Cast"}));
  EXPECT_EQ(ops_of(round_once(loss_form(DType::kF64, DType::kF64))),
            Ops({"Cast", "CrossEntropySum", "CrossEntropyGrad", "Cast"}));
}

}  // namespace
}  // namespace piper
