// The directives on small models: what each says it did, and the tasks that result on every device.
#include "piper/planner/directives.h"

#include <random>
#include <set>

#include "equivalence/jobs.h"
#include "golden.h"
#include "piper/inspect/summary.h"
#include "piper/planner/job_costs.h"
#include "support/forms/parse_graph.h"

namespace piper::directives_test {
namespace {

// The strategy that counts, as piperc prints it, makes the same plans.
void expect_same_plans(const CompileOptions& options, const PlanSet& plans,
                       const std::string& what) {
  const Folder folder;
  const auto strategy = parse_strategy(options.strategy, options.defines);
  ASSERT_TRUE(strategy) << what;
  const std::string text = print_strategy(*strategy);
  CompileOptions printed = options;
  printed.strategy = folder.write("printed.yaml", text);
  printed.defines.clear();
  printed.dump = {};
  const auto again = compile(printed);
  ASSERT_TRUE(again) << what << print_error(again.error()) << text;
  EXPECT_TRUE(again->set.roles == plans.roles) << what << text;
  EXPECT_EQ(again->set.role_of_rank, plans.role_of_rank) << what << text;
  EXPECT_EQ(again->set.manifest.seed, plans.manifest.seed) << what << text;
  EXPECT_EQ(again->set.manifest.strategy_digest, plans.manifest.strategy_digest) << what << text;
}

// Those of a job on devices of which nothing is known.
JobCosts unknown_costs() {
  static const Strategy kStrategy;
  return JobCosts(nullptr, kStrategy, {}, {});
}

CompileOptions options_of(const golden::Case& c, const Folder& folder) {
  CompileOptions options;
  std::string model = c.text("model");
  while (!model.empty() && (model.back() == '\n' || model.back() == ' ')) model.pop_back();
  options.model = fmt::format("{}/tests/data/{}.onnx", PIPER_SOURCE_DIR, model);
  options.strategy = folder.write("strategy.yaml", c.text("strategy"));
  return options;
}

golden::Section compile_case(const golden::Case& c) {
  const Folder folder;
  CompileOptions options = options_of(c, folder);
  options.oracles = false;
  std::string schedule;
  options.dump = [&](std::string_view step, const std::function<std::string()>& text) {
    if (step == "schedule") schedule = text();
  };
  const auto compiled = compile(options);
  if (!compiled) {
    const Error& error = compiled.error();
    std::string text =
        fmt::format("strategy:{}:{}: {}", error.at.line, error.at.column, error.message);
    for (const std::string& note : error.notes) text += "\n" + note;
    return {"error", text};
  }
  expect_same_plans(options, compiled->set, fmt::format("{}:{}\n", c.file, c.line));
  std::string text;
  for (const Explanation& e : compiled->explanations) {
    text += fmt::format("{}: {}\n", e.at.line, e.directive);
    for (const std::string& line : e.lines) text += fmt::format("  {}\n", line);
  }
  const bool reduces = std::any_of(compiled->explanations.begin(), compiled->explanations.end(),
                                   [](const Explanation& e) { return e.directive == "replicate"; });
  for (const std::string& line : traffic_lines(summarise(compiled->set)))
    if (reduces && line.find("has send of") == line.npos) text += line + "\n";
  return {"after", text + schedule};
}

// A mask of the input is read in two stages, a product of the input in one that another stage made:
// the mask's ops stand in both stages, the product stays where it was.
TEST(Directives, OpsOnDataAloneAreCopiedToTheirReaders) {
  auto graph = parse_graph(R"(graph batch=4 shards=1 tag=stage
input %x:f32[4,4] batch_dim=0
constant %zero:f32[] = [0]
state %w:f32[4,4] = fill 1
%mask:bool[4,4] = Greater(%x, %zero) tags={stage=0}
%open:f32[4,4] = Cast(%mask) {to="f32"} tags={stage=0}
%square:f32[4,4] = MatMul(%x, %x) tags={stage=0}
%a:f32[4,4] = Mul(%w, %open) tags={stage=0}
%b:f32[4,4] = Mul(%a, %open) tags={stage=1}
%c:f32[4,4] = Mul(%b, %square) tags={stage=1}
%loss:f32[] = ReduceSum(%c) {axes=[0,1], keepdims=0} tags={stage=1}
output %loss
loss %loss
)");
  ASSERT_TRUE(graph) << print_error(graph.error());
  Explanations explanations;
  const std::vector<std::string> tags{"stage"};
  const auto cloned = clone_data_ops(*std::move(graph), tags, SourceSpan{}, explanations);
  ASSERT_TRUE(cloned);
  ASSERT_TRUE(check_graph(*cloned));
  EXPECT_EQ(print_graph(*cloned), R"(graph batch=4 shards=1 tag=stage
input %x:f32[4,4] batch_dim=0
constant %zero:f32[] = [0]
state %w:f32[4,4] = fill 1
%mask:bool[4,4] = Greater(%x, %zero) pass=F tags={stage=0}
%open:f32[4,4] = Cast(%mask) {to="f32"} pass=F tags={stage=0}
%square:f32[4,4] = MatMul(%x, %x) pass=F tags={stage=0}
%a:f32[4,4] = Mul(%w, %open) pass=F tags={stage=0}
%mask_1:bool[4,4] = Greater(%x, %zero) pass=F name=mask tags={stage=1}
%open_1:f32[4,4] = Cast(%mask_1) {to="f32"} pass=F name=open tags={stage=1}
%b:f32[4,4] = Mul(%a, %open_1) pass=F tags={stage=1}
%c:f32[4,4] = Mul(%b, %square) pass=F tags={stage=1}
%loss:f32[] = ReduceSum(%c) {axes=[0,1], keepdims=0} pass=F tags={stage=1}
output %loss
loss %loss
)");
  ASSERT_EQ(explanations.size(), 1u);
  EXPECT_EQ(explanations[0].lines[0],
            "of the ops on data only 0 moved to the region that reads them, 2 were copied into "
            "further ones");
}

// What runs again is a chain that the stack of a thread would not hold call by call.
TEST(Directives, LongChainsRunAgain) {
  constexpr int kOps = 50'000;
  std::string text =
      "graph batch=4 shards=1\ninput %x:f32[4,4] batch_dim=0\nstate %w:f32[4,4] = fill 1\n"
      "%y0:f32[4,4] = MatMul(%x, %w) pass=F\n";
  for (int i = 0; i < kOps; ++i)
    text += fmt::format("%y{}:f32[4,4] = Tanh(%y{}) pass=F\n", i + 1, i);
  text += fmt::format(
      "%loss:f32[] = ReduceSum(%y{0}) {{axes=[0,1], keepdims=0}} pass=F\n"
      "%back:f32[4,4] = Mul(%y{0}, %y{0}) pass=BI\noutput %loss\nloss %loss\n",
      kOps);
  auto graph = parse_graph(text);
  ASSERT_TRUE(graph) << print_error(graph.error());
  Recompute all;
  all.match = *Glob::parse("**", {});
  Explanations explanations;
  const auto again =
      apply_recompute(*std::move(graph), {all}, TagsOfOps(), {}, 1, unknown_costs(), explanations);
  ASSERT_TRUE(again) << print_error(again.error());
  EXPECT_TRUE(check_graph(again->graph));
  EXPECT_GE(again->variants.copies.size(), size_t{kOps});
}

// A module that is called three times, each time by the same ops; another one is called once.
TEST(Directives, CallsOfAModuleAreCounted) {
  std::string text =
      "graph batch=4 shards=1\ninput %x:f32[4,4] batch_dim=0\nstate %w:f32[4,4] = fill 1\n";
  std::string from = "x";
  const auto add = [&](const std::string& name, const char* op, const std::string& scope) {
    text += fmt::format("%{}:f32[4,4] = {}(%{}{}) scope={}\n", name, op, from,
                        std::string_view(op) == "MatMul" ? ", %w" : "", scope);
    from = name;
  };
  add("begin", "MatMul", "in");
  for (int call = 0; call < 3; ++call) {
    add(fmt::format("a{}", call), "MatMul", "block/fc");
    add(fmt::format("b{}", call), "Relu", "block/act");
    add(fmt::format("c{}", call), "Relu", "block/act");
  }
  text += fmt::format(
      "%loss:f32[] = ReduceSum(%{}) {{axes=[0,1], keepdims=0}}\noutput %loss\nloss %loss\n", from);
  auto graph = parse_graph(text);
  ASSERT_TRUE(graph) << print_error(graph.error());
  Annotate annotate;
  const auto rule = [&](const char* match, const char* tag, const char* value) {
    annotate.rules.push_back(
        AnnotateRule{*Glob::parse(match, {}), {}, {{tag, *Expr::parse(value, {})}}, {}});
  };
  rule("block/**", "stage", "call * 2 / calls + calls * 10");
  rule("in", "stage", "call * 100 + calls");
  Explanations out;
  const auto tagged = apply_annotate(*std::move(graph), annotate, {}, unknown_costs(), out);
  ASSERT_TRUE(tagged) << print_error(tagged.error());
  std::vector<int32_t> stages;
  for (const Node& node : tagged->nodes) stages.push_back(tagged->tag(node, 0));
  stages.pop_back();  // the loss joins by dataflow
  EXPECT_EQ(stages, (std::vector<int32_t>{1, 30, 30, 30, 30, 30, 30, 31, 31, 31}));
  EXPECT_EQ(out[0].lines[0], "'block/**' matched 9 ops of 3 calls: stage = 30..31 (2 values)");
}

// ---- The budget of recompute
// A random dataflow: forward ops in any order of size, and backward ops that read some of the
// values.
Graph random_step(std::mt19937_64& random, size_t forward) {
  Graph graph;
  const auto type = [&] {
    return TensorType{DType::kF32, {1 + static_cast<int64_t>(random() % 20)}};
  };
  Value input;
  input.name = "x";
  input.kind = ValueKind::kInput;
  input.type = type();
  input.batch_dim = 0;
  std::vector<ValueId> values{graph.add_value(input)};
  graph.inputs = values;
  const auto add = [&](Pass pass, size_t inputs) {
    Node node;
    node.op = inputs == 1 ? "Tanh" : "Add";
    node.name = "v";
    node.pass = pass;
    for (size_t i = 0; i < inputs; ++i) node.inputs.push_back(values[random() % values.size()]);
    const TensorType made = type();
    return graph.node(graph.add_node(std::move(node), std::span(&made, 1))).outputs[0];
  };
  for (size_t i = 0; i < forward; ++i) values.push_back(add(Pass::kF, 1 + random() % 2));
  for (size_t i = 0; i < 1 + random() % 3; ++i) add(Pass::kBI, 1 + random() % 2);
  return graph;
}

// The fewest bytes from which everything that the backward ops read can be made: all subsets tried.
int64_t fewest_bytes(const Graph& graph, size_t values) {
  int64_t best = INT64_MAX;
  for (uint32_t set = 0; set < 1u << values; ++set) {
    std::vector<bool> known(values);
    int64_t bytes = 0;
    for (size_t v = 0; v < values; ++v) {
      const NodeId producer = graph.values[v].producer;
      known[v] = set >> v & 1;
      if (known[v]) bytes += graph.values[v].type.bytes();
      if (!known[v] && producer.valid())
        known[v] =
            std::all_of(graph.node(producer).inputs.begin(), graph.node(producer).inputs.end(),
                        [&](ValueId input) { return known[input.index()]; });
    }
    const bool enough = std::all_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
      return node.pass == Pass::kF ||
             std::all_of(node.inputs.begin(), node.inputs.end(),
                         [&](ValueId input) { return known[input.index()]; });
    });
    if (enough) best = std::min(best, bytes);
  }
  return best;
}

TEST(Directives, ABudgetIsMetWithTheFewestBytes) {
  constexpr uint64_t kSeed = 11;
  std::mt19937_64 random(kSeed);
  for (int trial = 0; trial < 300; ++trial) {
    const size_t forward = 2 + random() % 8;
    const Graph graph = random_step(random, forward);
    const int64_t fewest = fewest_bytes(graph, forward + 1);
    const std::string text = fmt::format("seed {}, trial {}\n{}", kSeed, trial, print_graph(graph));
    for (const int64_t budget : {fewest, fewest - 1}) {
      Recompute recompute;
      recompute.budget_bytes = budget;
      Explanations explanations;
      const auto again =
          apply_recompute(graph, {recompute}, TagsOfOps(), {}, 1, unknown_costs(), explanations);
      ASSERT_EQ(again.ok(), budget == fewest) << text;
      if (!again) continue;
      ASSERT_TRUE(check_graph(again->graph)) << text;
    }
  }
}

// One device, on which one op is dear.
class OneDearOp : public DeviceCosts {
 public:
  explicit OneDearOp(std::string op) : op_(std::move(op)) {}
  Status check_world(int64_t) const override { return ok_status(); }
  int32_t kind_of(int64_t) const override { return 0; }
  std::string name_of(int32_t) const override { return "device"; }
  double memory_of(int32_t) const override { return 0; }
  Result<double> seconds_of(int32_t, const Program& op) const override {
    return op.ops[0].op == op_ ? 1.0 : 0.1;
  }
  double message_seconds(int64_t, int64_t, double) const override { return 0; }

 private:
  const std::string op_;
};

TEST(Directives, ABudgetRepeatsWhatIsCheapOnTheDevice) {
  std::string text = "graph batch=4 shards=1\ninput %x:f32[4] batch_dim=0\n";
  const std::vector<std::string> ops = {"Tanh", "Exp", "Neg"};
  for (const std::string& op : ops) text += fmt::format("%{0}:f32[4] = {0}(%x)\n", op);
  for (const std::string& op : ops) text += fmt::format("%d{0}:f32[4] = {0}(%{0}) pass=BI\n", op);
  const auto graph = parse_graph(text);
  ASSERT_TRUE(graph) << print_error(graph.error());
  const Strategy strategy;
  Recompute recompute;
  recompute.budget_bytes = 2 * 16;  // of x, and of one more
  for (const std::string& dear : ops) {
    const OneDearOp device(dear);
    Explanations out;
    const auto made = apply_recompute(*graph, {recompute}, TagsOfOps(), {}, 1,
                                      JobCosts(&device, strategy, {}, {}), out);
    ASSERT_TRUE(made) << print_error(made.error());
    std::multiset<std::string> again;
    for (const Node& node : made->graph.nodes)
      if (is_backward(node) && node.inputs[0] == made->graph.inputs[0]) again.insert(node.op);
    EXPECT_EQ(again.size(), 2u) << print_graph(made->graph);
    EXPECT_EQ(again.count(dear), 0u) << print_graph(made->graph);
  }
}

// What the backward pass reads is a view of what the op makes: it goes with the op.
TEST(Directives, ViewsOfRecomputedOpsAreNotKept) {
  const auto graph = parse_graph(
      "graph batch=4 shards=1\ninput %x:f32[4,6] batch_dim=0\n%a:f32[4,6] = Tanh(%x)\n"
      "%view:f32[24] = Reshape(%a) {shape=[24]}\n%b:f32[24] = Exp(%view)\n"
      "%d:f32[24] = Neg(%view) pass=BI\n%e:f32[24] = Add(%d, %b) pass=BI\n");
  ASSERT_TRUE(graph) << print_error(graph.error());
  Recompute recompute;
  recompute.ops = {{"Tanh", {}}};
  Explanations out;
  const auto made = apply_recompute(*graph, {recompute}, TagsOfOps(), {}, 1, unknown_costs(), out);
  ASSERT_TRUE(made) << print_error(made.error());
  std::multiset<std::string> again;
  for (const Node& node : made->graph.nodes)
    if (is_backward(node)) again.insert(node.op);
  EXPECT_EQ(again, (std::multiset<std::string>{"Add", "Neg", "Reshape", "Tanh"}))
      << print_graph(made->graph);
}

TEST(Directives, OfTheLibraryPrintAsTheyAre) {
  for (const std::string& file : jobs::library_files()) {
    const Folder folder;
    CompileOptions options;
    options.model = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";
    options.strategy =
        folder.write("strategy.yaml", fmt::format("piper: 1\ninclude: {}/strategies/{}.yaml\n"
                                                  "train: {{global_batch: 16}}\n",
                                                  PIPER_SOURCE_DIR, file));
    options.defines = jobs::definitions_of(jobs::library_text(file), {2, 2, 4});
    options.oracles = false;
    const auto compiled = compile(options);
    ASSERT_TRUE(compiled) << file << print_error(compiled.error());
    expect_same_plans(options, compiled->set, file);
  }
}

TEST(Directives, Golden) { golden::run("directives/*.test", {"after", "error"}, compile_case); }

// Three batches of drawn numbers for all inputs; labels are of the first class.
std::string draw_batches(const Folder& folder, const PlanSet& set) {
  std::mt19937 draw(1);
  std::normal_distribution<float> normal;
  std::vector<NamedTensor> tensors;
  const auto needs = data_needs(set);
  EXPECT_TRUE(needs) << print_error(needs.error());
  for (int k = 0; k < 3; ++k)
    for (const InputNeed& need : *needs) {
      std::vector<float> numbers(static_cast<size_t>(need.type.bytes()) / sizeof(float));
      for (float& number : numbers) number = need.type.dtype == DType::kF32 ? normal(draw) : 0;
      tensors.push_back({fmt::format("batch/{}/{}", k, need.name), need.type,
                         Bytes::copy_of(numbers.data(), numbers.size() * sizeof(float))});
    }
  std::string path = folder.path() + "/batches.safetensors";
  EXPECT_TRUE(write_safetensors(path, tensors, {}));
  return path;
}

// Trains by the strategy of a case. Returns the section that it has, or how a rank differs from a
// single device.
golden::Section train_case(const golden::Case& c) {
  const golden::Section& expected = c.sections.back();
  if (expected.name == "error") return expected;
  const Folder folder;
  const auto compiled = compile(options_of(c, folder));
  if (!compiled) return {"error", print_error(compiled.error())};
  const std::string path = draw_batches(folder, *compiled->single);
  const auto data = jobs::open_file(compiled->set, path),
             of_single = jobs::open_file(*compiled->single, path);
  if (!data || !of_single) return {"error", print_error((data ? of_single : data).error())};
  JobOptions options;
  options.steps = 3 + compiled->set.roles[0].steps_ahead;
  options.threads = 1;
  options.verify.against = VerifyAgainst::kSingle;
  const auto job =
      run_job(compiled->set, data->get(), &*compiled->single, of_single->get(), options);
  return job ? expected : golden::Section{"error", print_error(job.error())};
}

// A directive whose strategies are golden tests is trained with here, without a test of its own.
TEST(Directives, GoldenTrain) {
  const auto root = std::filesystem::path(PIPER_SOURCE_DIR) / "tests/golden";
  int trained = 0;
  const auto train = [&](const golden::Case& c) {
    trained += c.sections.back().name == "after";
    return train_case(c);
  };
  for (const std::string& problem :
       golden::check_files(root, "directives/*.test", {"after", "error"}, train, false))
    ADD_FAILURE() << problem;
  EXPECT_GT(trained, 70);
}

}  // namespace
}  // namespace piper::directives_test
