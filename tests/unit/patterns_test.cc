#include "piper/patterns.h"

#include <gtest/gtest.h>

#include <cstring>

#include "piper/ops.h"

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

TEST(Patterns, GeluWrittenOutBecomesOneOp) {
  const auto found = recognise(written_out(0.044715, false).graph);
  ASSERT_TRUE(found) << print_error(found.error());
  EXPECT_EQ(ops_of(found->graph), Ops({"Gelu"}));
  EXPECT_EQ(found->graph.nodes[0].attrs.text("approximate"), "tanh");
  EXPECT_EQ(found->counts, (std::vector<std::pair<std::string, int64_t>>{{"Gelu", 1}}));
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

}  // namespace
}  // namespace piper
