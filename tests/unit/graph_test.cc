#include "piper/ir/graph.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/forms/parse_graph.h"

namespace piper {
namespace {

template <class T>
T must(Result<T> result) {
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : print_error(result.error()));
  if (!result.ok()) std::abort();
  return *std::move(result);
}

std::string error_of(const Status& status) { return status.ok() ? "ok" : status.error().message; }

// y = x·w; loss = sum(y); a dead node; w takes w2.
constexpr const char* kSmall =
    R"(graph batch=8 shards=1 tag=stage tag=layer
input %x:f32[8,4] batch_dim=0
input %labels:i64[8] batch_dim=0
state %w:f32[4,2] = fill 0.5
constant %scale:f32[] = [0.125]
constant %flag:bool[2] = [1,0]
constant %half:bf16[1] = [0x3f80]
state %step:i64[] = [0]
%y:f32[8,2] = MatMul(%x, %w) {trans_b=0} pass=F scope=h/0/mlp tags={stage=0,layer=7}
%loss:f32[] = ReduceSum(%y, _, %scale) pass=F name=/model/sum scope=loss
%top:f32[1] %top:1:i64[1] = TopK(%y) {axis=1} pass=F tags={layer=3}
%w2:f32[4,2] = Step(%w, %w) pass=U
param model.w %w alias=model.tied scope=model/w evidence="by \"name\", yes" gradient=%w2
param "odd name" %step frozen=1
update %w %w2
output %y
output %loss
loss %loss
step %step
)";

TEST(GraphText, PrintsAndParsesTheSame) {
  Graph graph = must(parse_graph(kSmall));
  EXPECT_EQ(print_graph(graph), kSmall);
  EXPECT_EQ(graph.nodes.size(), 4u);
  EXPECT_EQ(graph.params[1].name, "odd name");
  EXPECT_EQ(graph.params[0].evidence, "by \"name\", yes");
  EXPECT_FALSE(graph.nodes[1].inputs[1].valid());
  EXPECT_EQ(graph.value(graph.nodes[2].outputs[1]).name, "top:1");
  EXPECT_EQ(graph.tag(graph.nodes[0], 1), 7);
  EXPECT_EQ(graph.tag(graph.nodes[2], 0), kNoTag);
  EXPECT_EQ(graph.tag(graph.nodes[3], 1), kNoTag);
}

TEST(GraphText, PrintsLayouts) {
  constexpr const char* kText =
      R"(graph batch=8 shards=4
input %x:f32[2,3] batch_dim=0 layout=S0
%a:f32[6] = Reshape(%x) {shape=[6]} pass=F layout=S0
%b:f32[3,2] %c:f32[] = Odd(%a) pass=BI layout=S1/2,P
)";
  Graph graph = must(parse_graph(kText));
  EXPECT_EQ(print_graph(graph), kText);
  Layout expected{LayoutKind::kSharded, 1, 2};
  EXPECT_EQ(graph.value(graph.find_value("b")).layout, expected);
}

TEST(GraphText, LargeDataIsItsDigest) {
  Graph graph;
  std::vector<float> data(32, 1.5f);
  graph.add_constant("table", {DType::kF32, {32}}, Bytes::copy_of(data.data(), 128));
  std::string text = print_graph(graph);
  EXPECT_NE(text.find("constant %table:f32[32] = digest:"), std::string::npos) << text;
  Graph again = must(parse_graph(text));
  EXPECT_EQ(again.values[0].data.size, 0u);
  EXPECT_EQ(print_graph(again), text);
}

TEST(GraphText, KeepsForeignNames) {
  Graph graph;
  for (const char* name :
       {"a b", "quo\"te", "back\\slash", "line\nbreak", "x:f32", "/m/h.0/q_1", "é"}) {
    Value value;
    value.name = name;
    value.kind = ValueKind::kState;
    value.type = {DType::kF32, {2}};
    graph.add_value(std::move(value));
  }
  std::string text = print_graph(graph);
  Graph again = must(parse_graph(text));
  EXPECT_EQ(print_graph(again), text);
  for (size_t i = 0; i < graph.values.size(); ++i) {
    EXPECT_EQ(again.values[i].name, graph.values[i].name);
  }
}

TEST(GraphText, KeepsFloatsExactly) {
  Graph graph;
  std::vector<float> data{0.1f, -0.0f, 1e-45f, 3.4028235e38f, INFINITY, -INFINITY};
  graph.add_constant("c", {DType::kF32, {6}}, Bytes::copy_of(data.data(), 24));
  Graph again = must(parse_graph(print_graph(graph)));
  EXPECT_EQ(as_text(again.values[0].data.span()), as_text(graph.values[0].data.span()));
}

std::string parse_error(const std::string& line) {
  Result<Graph> graph = parse_graph("graph batch=1 shards=1\ninput %x:f32[2]\n" + line + "\n");
  if (graph.ok()) return "ok";
  return fmt::format("{}: {}", graph.error().at.line, graph.error().message);
}

TEST(GraphText, RefusesWrongText) {
  EXPECT_EQ(parse_error("%y:f32[2] = Relu(%z) pass=F"), "3: no value has the name 'z'");
  EXPECT_EQ(parse_error("%x:f32[2] = Relu(%x) pass=F"), "3: two values have the name 'x'");
  EXPECT_EQ(parse_error("%y:f33[2] = Relu(%x) pass=F"), "3: 'f33[2]' is no type");
  EXPECT_EQ(parse_error("%y:f32[2] = Relu(%x) pass=G"), "3: 'G' is not a pass");
  EXPECT_EQ(parse_error("%y:f32[2] = Relu(%x) pass=F tags={a=1}"), "3: no tag has the name 'a'");
  EXPECT_EQ(parse_error("%y:f32[-2] = Relu(%x) pass=F"), "3: '[-2]' is not a shape");
  EXPECT_EQ(parse_error("%y:f32[2] = Relu(%x) pass=F layout=Q"), "3: 'Q' is not a layout");
  EXPECT_EQ(parse_error("constant %c:f32[2] = [1]"), "3: 1 elements for f32[2]");
  EXPECT_EQ(parse_error("constant %c:i64[1] = [x]"), "3: 'x' is not an element of i64[1]");
  EXPECT_EQ(parse_error("frob %x"), "3: 'frob' does not start a line");
  EXPECT_EQ(parse_error("loss %x more"), "3: 'more' is not expected here");
  EXPECT_EQ(parse_error("%\"open"), "3: expected a name at '\"open'");
}

TEST(GraphText, NeverCrashesOnTornText) {
  std::string text = kSmall;
  for (size_t length = 0; length < text.size(); ++length) {
    (void)parse_graph(text.substr(0, length));
    std::string torn = text;
    torn.erase(length, 1);
    (void)parse_graph(torn);
    torn = text;
    torn[length] = '"';
    (void)parse_graph(torn);
  }
}

TEST(Graph, NamesAreUnique) {
  Graph graph;
  auto add = [&](const char* name) {
    Value value;
    value.name = name;
    value.kind = ValueKind::kState;
    return graph.value(graph.add_value(std::move(value))).name;
  };
  EXPECT_EQ(add("a"), "a");
  EXPECT_EQ(add("a_1"), "a_1");
  EXPECT_EQ(add("a"), "a_2");
  EXPECT_EQ(add("a"), "a_3");
  EXPECT_EQ(add(""), "v");
  EXPECT_EQ(graph.find_value("a_3"), ValueId(3));
  EXPECT_FALSE(graph.find_value("b").valid());
  graph.values[0].name = "renamed";
  EXPECT_EQ(graph.find_value("renamed"), ValueId(0));
  EXPECT_FALSE(graph.find_value("a").valid());
  graph.values.resize(1);  // removed by hand
  EXPECT_EQ(add("a_1"), "a_1");
  EXPECT_EQ(error_of(check_graph(graph)), "ok");
}

// A pass of quadratic time would meet the time limit of tests.
TEST(Graph, ManyNodesOfOneNameTakeLinearTime) {
  Graph graph;
  TensorType type{DType::kF32, {2}};
  Value input;
  input.name = "x";
  input.kind = ValueKind::kInput;
  input.type = type;
  ValueId last = graph.add_value(input);
  graph.inputs = {last};
  for (int i = 0; i < 300000; ++i) {
    Node node;
    node.op = "Relu";
    node.inputs = {last};
    last = graph.node(graph.add_node(node, std::span(&type, 1))).outputs[0];
  }
  graph.outputs = {last};
  EXPECT_EQ(error_of(check_graph(graph)), "ok");
  graph = without_dead_nodes(must(in_topological_order(std::move(graph))), true);
  EXPECT_EQ(graph.nodes.size(), 300000u);
}

TEST(Graph, DeadNodesGo) {
  Graph graph = must(parse_graph(kSmall));
  graph.loss = {};
  Graph kept = without_dead_nodes(graph, true);
  EXPECT_EQ(kept.nodes.size(), 3u);  // all but TopK
  Graph live = without_dead_nodes(graph, false);
  EXPECT_EQ(print_graph(live), R"(graph batch=8 shards=1 tag=stage tag=layer
input %x:f32[8,4] batch_dim=0
input %labels:i64[8] batch_dim=0
state %w:f32[4,2] = fill 0.5
state %step:i64[] = [0]
%w2:f32[4,2] = Step(%w, %w) pass=U
param model.w %w alias=model.tied scope=model/w evidence="by \"name\", yes" gradient=%w2
param "odd name" %step frozen=1
update %w %w2
step %step
)");
  EXPECT_EQ(error_of(check_graph(live)), "ok");
  Value value;
  value.name = "y";  // free again
  value.kind = ValueKind::kState;
  EXPECT_EQ(live.value(live.add_value(value)).name, "y");
}

TEST(Graph, OrderIsRestoredAndKept) {
  Graph graph = must(parse_graph(kSmall));
  std::string before = print_graph(must(in_topological_order(graph)));
  EXPECT_EQ(before, kSmall);
  // y's node moves behind its readers.
  std::swap(graph.nodes[0], graph.nodes[3]);
  for (size_t i : {0u, 3u}) graph.value(graph.nodes[i].outputs[0]).producer = NodeId(i);
  EXPECT_EQ(error_of(check_graph(graph)),
            "node '/model/sum' (ReduceSum) reads 'y' before it is made");
  Graph ordered = must(in_topological_order(graph));
  EXPECT_EQ(error_of(check_graph(ordered)), "ok");
  std::vector<std::string> ops;
  for (const Node& node : ordered.nodes) ops.push_back(node.op);
  EXPECT_EQ(join(ops, " "), "Step MatMul ReduceSum TopK");
}

TEST(Graph, CyclesAreNamed) {
  Graph graph = must(parse_graph(R"(graph batch=1 shards=1
input %x:f32[2]
%a:f32[2] = Add(%x, %x) pass=F
%b:f32[2] = Relu(%a) pass=F
%c:f32[2] = Neg(%b) pass=F
)"));
  graph.nodes[0].inputs[1] = graph.find_value("b");
  Result<Graph> ordered = in_topological_order(graph);
  ASSERT_FALSE(ordered.ok());
  EXPECT_EQ(ordered.error().message, "the graph has a cycle through node 'a' (Add)");
}

TEST(Graph, CheckFindsEachFault) {
  auto fault = [](auto&& change) {
    Graph graph = must(parse_graph(kSmall));
    change(graph);
    return error_of(check_graph(graph));
  };
  EXPECT_EQ(fault([](Graph&) {}), "ok");
  EXPECT_EQ(fault([](Graph& g) { g.values[1].name = "x"; }), "two values have the name 'x'");
  EXPECT_EQ(fault([](Graph& g) { g.values[3].data = {}; }),
            "value 'scale' of type f32[] has 0 bytes of data");
  EXPECT_EQ(fault([](Graph& g) { g.inputs.pop_back(); }),
            "value 'labels' is 0 times among the inputs, not 1");
  EXPECT_EQ(fault([](Graph& g) { g.value(g.find_value("y")).producer = {}; }),
            "value 'y' has no producer");
  EXPECT_EQ(fault([](Graph& g) { g.nodes[0].inputs[0] = ValueId(99); }),
            "node 'y' (MatMul) reads a value that does not exist");
  EXPECT_EQ(fault([](Graph& g) { g.updates.push_back(g.updates[0]); }), "two updates of 'w'");
  EXPECT_EQ(fault([](Graph& g) { g.updates[0].next = g.find_value("y"); }),
            "state 'w' of type f32[4,2] cannot become 'y' of type f32[8,2]");
  EXPECT_EQ(fault([](Graph& g) { g.params[1].value = g.params[0].value; }),
            "parameter 'odd name' has the value of another one");
  EXPECT_EQ(fault([](Graph& g) { g.params[0].gradient = g.find_value("y"); }),
            "the gradient of parameter 'model.w' has shape [8,2], the parameter [4,2]");
  EXPECT_EQ(fault([](Graph& g) { g.values[0].batch_dim = 2; }),
            "input 'x' of type f32[8,4] has no dim 2");
  EXPECT_EQ(fault([](Graph& g) {
              g.values[0].layout = {LayoutKind::kSharded, 2, 1};
            }),
            "value 'x' of type f32[8,4] cannot lie as S2");
}

}  // namespace
}  // namespace piper
