// Experts that are looked up for each token, of which stacks and tokens are cut over axes of their
// own: the verifier accepts every plan, its ranks train as one device does that cuts nothing, and
// messages along other axes or of other blocks are refused.
#include "equivalence/jobs.h"
#include "equivalence/numbers.h"
#include "equivalence/random_model.h"
#include "piper/plan/verify.h"

namespace piper::experts_test {
namespace {

// Four tokens of four numbers, each of which goes through some of the experts of "up" and "down".
class Experts : public ModelMaker {
 public:
  Experts(int64_t experts, int64_t top, bool of_inputs)
      : ModelMaker(1), experts_(experts), top_(top) {
    scope_ = "a";
    input("x", {4, of_inputs ? 4 : 1});
    input("y", {3});
    const std::string tokens = of_inputs ? "x" : hidden();
    const std::string rows = shaped(tokens, {-1, 4});
    scope_ = "gate";
    onnx::NodeProto& scores = node("Softmax", {product(rows, 4, experts)});
    attribute(scores, "axis", {1}, false);
    onnx::NodeProto& chosen = node("TopK", {scores.output(0), integers({top})});
    const std::string weights = chosen.output(0);
    index_ = weights + "_index";
    chosen.add_output(index_);
    const std::string each = made("Expand", {shaped(rows, {-1, 1, 4}), integers({1, top, 4})});
    const std::string inside = made("Tanh", {looked_up("up", each, 4, 6)});
    const std::string out = looked_up("down", inside, 6, 4);
    const std::string weighed = made("Mul", {out, shaped(weights, {-1, 1})});
    const std::string sum = made("ReduceSum", {shaped(weighed, {-1, top, 4}), integers({1})});
    scope_ = "b";
    const std::string all = made("Add", {shaped(tokens, {-1, 16}), shaped(sum, {-1, 16})});
    squares(made("Sub", {product(all, 16, 3), "y"}), "loss");
    finish_with_loss();
  }

 private:
  std::string shaped(const std::string& from, const std::vector<int64_t>& shape) {
    return made("Reshape", {from, integers(shape)});
  }
  std::string product(const std::string& x, int64_t from, int64_t to) {
    return made("MatMul", {x, parameter({from, to}, 0, 0.5f)});
  }
  std::string hidden() {
    onnx::NodeProto& turned = node("Transpose", {parameter({16, 4}, 0, 0.5f)});
    attribute(turned, "perm", {1, 0}, true);
    const std::string product = made("MatMul", {shaped("x", {-1, 4}), turned.output(0)});
    return made("Tanh", {made("Add", {product, parameter({16}, 0, 0.3f)})});
  }
  std::string looked_up(const std::string& scope, const std::string& rows, int64_t from,
                        int64_t to) {
    scope_ = scope;
    onnx::NodeProto& each =
        node("Gather", {parameter({experts_, from, to}, 0, 0.5f), shaped(index_, {-1})});
    attribute(each, "axis", {0}, false);
    return shaped(made("MatMul", {shaped(rows, {-1, 1, from}), each.output(0)}), {-1, to});
  }

  const int64_t experts_, top_;
  std::string index_;
};

struct Case {
  const char* name;
  int64_t experts, top;
  bool of_inputs;
  const char* mesh;
  std::vector<const char*> shards;
  int microbatches = 1;
};

Result<Compiled> compile_case(const Case& of, const Folder& folder, const std::string& more = "") {
  CompileOptions options;
  options.model = folder.write("model.onnx", Experts(of.experts, of.top, of.of_inputs).bytes());
  std::string text = fmt::format(
      "piper: 1\nmesh: {}\ntrain: {{skip_nonfinite: true, global_batch: 4, optimizer: {{sgd: {{lr: "
      "0.05, momentum: "
      "0.9}}}}}}\ndirectives:\n  - precision: {{compute: f64}}\n  - split: {{dim: batch, into: "
      "{}}}\n",
      of.mesh, of.microbatches);
  for (const char* shard : of.shards) text += fmt::format("  - shard: {{{}}}\n", shard);
  text += more;
  options.strategy = folder.write("strategy.yaml", text);
  return compile(options);
}

constexpr const char *kUpA = "match: \"up.*\", dim: 0, over: a",
                     *kUpB = "match: \"up.*\", dim: 0, over: b",
                     *kUpZeros = "match: \"up.*\", dim: 0, over: a, pad: true",
                     *kUpZerosB = "match: \"up.*\", dim: 0, over: b, pad: true",
                     *kUpColumns = "match: \"up.*\", dim: 2, over: b",
                     *kDownA = "match: \"down.*\", dim: 0, over: a",
                     *kDownB = "match: \"down.*\", dim: 0, over: b",
                     *kDownRows = "match: \"down.*\", dim: 1, over: a",
                     *kUpRoom = "match: \"up.*\", dim: 0, over: a, capacity: 2",
                     *kDownRoom = "match: \"down.*\", dim: 0, over: a, capacity: 2",
                     *kUpRoom4 = "match: \"up.*\", dim: 0, over: a, capacity: 4",
                     *kUpZerosRoom = "match: \"up.*\", dim: 0, over: a, pad: true, capacity: 2",
                     *kUpFewer = "match: \"up.*\", dim: 0, over: a, capacity: 1",
                     *kFirst = "match: \"a.*\", dim: 0, over: a",
                     *kLastB = "match: \"b.*\", dim: 0, over: b",
                     *kTokensA = "input: x, dim: 1, over: a",
                     *kWidthB = "input: x, dim: 2, over: b",
                     *kSamplesA = "input: x, dim: 0, over: a",
                     *kSamplesB = "input: x, dim: 0, over: b",
                     *kTargetsA = "input: y, dim: 0, over: a";

// Two stacks over two axes, with tokens or samples in blocks along these.
const Case kTwoAxes{
    "stacks-over-two-axes", 4, 2, true, "{a: 2, b: 2}", {kUpB, kDownA, kTokensA, kSamplesB}};

class ExpertsCut : public ::testing::TestWithParam<Case> {};

TEST_P(ExpertsCut, TrainAsOneDevice) {
  const Folder folder;
  const auto compiled = compile_case(GetParam(), folder);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const jobs::Trained got = train_on_numbers(compiled->set, GetParam().name),
                      want = train_on_numbers(*compiled->uncut, GetParam().name);
  ASSERT_EQ(want.losses.size(), 3U);
  EXPECT_LT(jobs::largest_difference(got, want), 1e-12);
  EXPECT_GT(std::abs(want.losses[2] - want.losses[0]), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    All, ExpertsCut,
    ::testing::Values(
        kTwoAxes,
        Case{"a-stack-beside-a-product",
             4,
             2,
             true,
             "{a: 2, b: 2}",
             {kUpColumns, kTargetsA, kDownA, kSamplesB}},
        // Experts that ranks do not divide, and of the other stack as many as there are.
        Case{"zeros-in-one-stack", 3, 2, false, "{a: 2}", {kUpZeros, kSamplesA}},
        Case{"zeros-beside-rows", 3, 2, false, "{a: 2}", {kUpZeros, kDownRows, kFirst}},
        Case{"zeros-of-other-numbers",
             6,
             2,
             false,
             "{a: 2, b: 2}",
             {kUpZerosB, kUpZeros, kSamplesB}},
        // Rows of an input, which every rank has all of.
        Case{"one-expert-of-inputs", 4, 1, true, "{a: 2}", {kUpA, kTokensA}},
        Case{"one-expert-of-samples", 4, 1, true, "{a: 2}", {kUpA, kDownA, kSamplesA}},
        // A rank has one row of a microbatch.
        Case{"one-row", 4, 1, true, "{a: 4, b: 2}", {kDownB, kLastB, kWidthB, kTokensA}, 4},
        // Room for as many rows as there can be.
        Case{"room", 4, 2, false, "{a: 2}", {kUpRoom, kDownA, kSamplesA}},
        Case{"room-of-four", 4, 1, false, "{a: 4}", {kUpRoom4, kDownA, kSamplesA}},
        Case{"room-and-zeros", 3, 2, false, "{a: 2}", {kUpZerosRoom, kSamplesA}},
        Case{"room-beside-columns",
             4,
             2,
             false,
             "{a: 2, b: 2}",
             {kUpRoom, kUpColumns, kDownA, kSamplesA}},
        Case{"room-in-microbatches", 4, 2, false, "{a: 2}", {kUpRoom, kDownRoom, kSamplesA}, 2},
        Case{"room-of-tokens", 4, 2, true, "{a: 2}", {kUpRoom, kDownA, kTokensA}},
        Case{"more-ranks-than-experts", 3, 2, false, "{a: 2, b: 4}", {kUpZeros, kUpZerosB}}),
    [](const auto& info) { return jobs::identifier(info.param.name); });

// Rows that are kept go with the choice of experts by which they were sent, whatever else is made
// again.
TEST(ExpertsAgain, KeptRowsGoWithTheirChoice) {
  const Case samples{"again", 4, 2, false, "{a: 2}", {kUpA, kDownA, kSamplesA}};
  std::set<int64_t> kept;
  for (const int64_t bytes : {1400, 1800, 2200, 2600, 3000, 3400, 3800, 4600}) {
    const Folder folder;
    const auto compiled =
        compile_case(samples, folder, fmt::format("  - recompute: {{budget: {}}}\n", bytes));
    ASSERT_TRUE(compiled) << bytes << ": " << print_error(compiled.error());
    kept.insert(compiled->set.roles[0].arena_bytes);
    const jobs::Trained got = train_on_numbers(compiled->set, samples.name),
                        want = train_on_numbers(*compiled->uncut, samples.name);
    EXPECT_LT(jobs::largest_difference(got, want), 1e-12) << bytes;
  }
  EXPECT_GT(kept.size(), 2U);
}

// Where no rank has more rows than there is room for, the room changes no bit.
TEST(ExpertsRoom, ChangesNoBit) {
  const Folder a, b;
  const auto all = compile_case({"all", 4, 2, false, "{a: 2}", {kUpA, kDownA, kSamplesA}}, a),
             some = compile_case({"some", 4, 2, false, "{a: 2}", {kUpRoom, kDownA, kSamplesA}}, b);
  ASSERT_TRUE(all) << print_error(all.error());
  ASSERT_TRUE(some) << print_error(some.error());
  jobs::expect_equal_bits(train_on_numbers(some->set, "some"), train_on_numbers(all->set, "all"),
                          "room");
}

// Beside replicas that shard their states, and where all or some of the forward runs again.
TEST(ExpertsRoom, GoesWithReplicasAndRecomputation) {
  const Case room{"beside", 4, 2, false, "{d: 2, a: 2}", {kUpRoom, kDownA, kSamplesA}};
  for (const char* more : {"  - replicate: {over: d, shard: [optimizer]}\n",
                           "  - replicate: {over: d}\n  - recompute: {match: \"**\"}\n",
                           "  - replicate: {over: d}\n  - recompute: {budget: 1100}\n"}) {
    const Folder folder;
    const auto compiled = compile_case(room, folder, more);
    ASSERT_TRUE(compiled) << more << print_error(compiled.error());
    EXPECT_LT(jobs::largest_difference(train_on_numbers(compiled->set, more),
                                       train_on_numbers(*compiled->uncut, more)),
              1e-12)
        << more;
  }
}

TEST(ExpertsRoom, IsRefusedWhereItWouldMeanNothing) {
  const auto refused = [](const char* shard, const char* more) {
    const Folder folder;
    const auto compiled = compile_case({"refused", 4, 2, false, "{a: 2}", {shard}}, folder, more);
    return compiled ? "" : compiled.error().message;
  };
  EXPECT_EQ(refused(kUpRoom, ""),
            "shard: 'capacity' over 'a', along which no rows are sent to what they look up");
  EXPECT_EQ(refused(kSamplesA, "  - shard: {input: y, dim: 0, over: a, capacity: 2}\n"),
            "shard: 'capacity' is for parameters that rows look up");
  EXPECT_EQ(refused(kUpRoom, "  - shard: {match: \"down.*\", dim: 0, over: a, capacity: 3}\n"),
            "shard: two capacities over 'a'");
}

// More rows than there is room for: no rank makes the update, and the job says how much room it is.
// Rows that travel packed are in the order of one device, which stretches of tokens are not.
TEST(ExpertsRoom, IsRefusedWhereTokensAreCutToo) {
  NEED_MODEL("qwen3-moe-hf");
  for (const char* tokens : {"dim: 1, over: cp", "dim: 0, over: cp"}) {
    CompileOptions options;
    const auto compiled = jobs::compile_text(
        "qwen3-moe-hf",
        fmt::format("piper: 1\nmesh: {{ep: 2, cp: 2}}\ndirectives:\n"
                    "  - shard: {{input: \"*\", dim: 0, over: ep}}\n"
                    "  - shard: {{match: \"**/experts/*\", dim: 0, over: ep, capacity: 2}}\n"
                    "  - shard: {{input: \"*\", {}}}\n",
                    tokens),
        jobs::kAdamW, options);
    if (std::string(tokens).starts_with("dim: 0")) {
      EXPECT_TRUE(compiled) << print_error(compiled.error());
      continue;
    }
    ASSERT_FALSE(compiled);
    EXPECT_TRUE(compiled.error().message.starts_with("not supported: 'capacity' for rows of "))
        << print_error(compiled.error());
    EXPECT_GT(compiled.error().at.line, 0);
  }
}

TEST(ExpertsRoom, StepWithMoreRowsIsNotTaken) {
  const Folder folder;
  const auto compiled =
      compile_case({"fewer", 4, 1, false, "{a: 2}", {kUpFewer, kDownA, kSamplesA}}, folder);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  auto needs = data_needs(compiled->set);
  const Numbers data(*std::move(needs));
  const auto run = [&](OnNan on_nan, int64_t steps) {
    JobOptions options;
    options.threads = 1;
    options.steps = steps;
    options.on_nan = on_nan;
    return run_job(compiled->set, &data, nullptr, nullptr, options);
  };
  const auto stopped = run(OnNan::kStop, 3), once = run(OnNan::kSkip, 1),
             thrice = run(OnNan::kSkip, 3);
  ASSERT_TRUE(stopped) << print_error(stopped.error());
  ASSERT_TRUE(stopped->ended_by);
  EXPECT_EQ(stopped->ended_by->message, "step 1: the loss is nan");
  EXPECT_EQ(stopped->ended_by->notes.at(1),
            "a rank has room for 4 rows of experts of each rank, and a step that routes more of "
            "them to one rank is not finite. help: a larger 'capacity' in the strategy; one as "
            "large as the number of ranks is room for all rows");
  ASSERT_TRUE(once) << print_error(once.error());
  ASSERT_TRUE(thrice) << print_error(thrice.error());
  for (const StepMetrics& step : thrice->steps) EXPECT_EQ(step.skipped, 1);
  const auto bits = [](const JobResult& job) {
    std::map<std::string, std::string> all;
    for (const NamedTensor& one : job.parameters) all[one.name] = as_text(one.data.span());
    return all;
  };
  EXPECT_EQ(bits(*thrice), bits(*once));
  EXPECT_EQ(bits(*stopped), bits(*once));
}

// Rows that are packed otherwise than they come back, or for others than those that own them, are
// found from the plans.
TEST(ExpertsControl, OtherPlacesAreRefused) {
  const Folder folder;
  const auto compiled = compile_case(
      {"places", 4, 2, false, "{a: 2, b: 2}", {kUpRoom, kUpColumns, kDownA, kSamplesA}}, folder);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet set = compiled->set;
  const auto is_refused = [&] {
    const auto report = verify_plan_set(set, &*compiled->single);
    return !report || !report->findings.empty();
  };
  ASSERT_FALSE(is_refused());
  int places = 0, exchanges = 0;
  for (Program& program : set.roles[0].programs)
    for (ProgramOp& op : program.ops) {
      if (op.op != "RowPlaces") continue;
      const ProgramOp was = op;
      for (const auto& [name, value] : {std::pair("over", 1), std::pair("owned", 1),
                                        std::pair("owned", 4), std::pair("owned", 3)}) {
        op.attrs.set(name, int64_t{value});
        EXPECT_TRUE(is_refused()) << name << " " << value;
        op = was;
        ++places;
      }
    }
  for (Program& program : set.roles[0].programs)
    for (ProgramOp& op : program.ops) {
      if (op.op != "GatherGrad" && op.op != "Gather") continue;
      const ProgramOp was = op;
      op.op = "Softmax";
      EXPECT_TRUE(is_refused());
      op = was;
    }
  for (Instruction& one : set.roles[0].body) {
    if (one.kind != InstructionKind::kAllToAll) continue;
    const Instruction was = one;
    std::swap(one.dim, one.to_dim);
    EXPECT_TRUE(is_refused());
    one = was;
    one.kind = InstructionKind::kCopy;
    one.group = one.dim = one.to_dim = one.communicator = -1;
    EXPECT_TRUE(is_refused());
    one = was;
    ++exchanges;
  }
  EXPECT_GT(places, 3);
  EXPECT_GT(exchanges, 3);
}

// Whatever moves values along the other axis, or in other blocks, is found from the plans.
TEST(ExpertsControl, OtherAxesAndOtherBlocksAreRefused) {
  const Folder folder;
  const auto compiled = compile_case(kTwoAxes, folder);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet set = compiled->set;
  int axes = 0, blocks = 0;
  const auto is_refused = [&] {
    const auto report = verify_plan_set(set, &*compiled->single);
    return !report || !report->findings.empty();
  };
  ASSERT_FALSE(is_refused());
  for (Instruction& one : set.roles[0].body) {
    const Instruction was = one;
    if (one.group < 0 || one.dim < 0) continue;
    for (int32_t group = 0; group < std::ssize(set.roles[0].groups); ++group) {
      if (group == was.group || set.roles[0].groups[static_cast<size_t>(group)].axes.size() != 1)
        continue;
      one.group = group;
      if (one.communicator >= 0) one.communicator = 1 - one.communicator;
      EXPECT_TRUE(is_refused()) << to_string(was.kind) << " along " << group;
      ++axes;
      one = was;
    }
    for (const int64_t outer : {was.outer / 2, was.outer * 2}) {
      if (outer == 0) continue;
      one.outer = outer;
      EXPECT_TRUE(is_refused()) << to_string(was.kind) << " of " << outer;
      ++blocks;
      one = was;
    }
  }
  EXPECT_GT(axes, 8);
  EXPECT_GT(blocks, 8);
}

}  // namespace
}  // namespace piper::experts_test
