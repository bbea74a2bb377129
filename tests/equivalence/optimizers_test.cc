// Optimizers that take matrices as wholes (Muon, Adafactor) under strategies that cut these: the
// model trains as on one device.
#include "equivalence/jobs.h"
#include "piper/plan/verify.h"

namespace piper::optimizers_test {
namespace {

using namespace jobs;

constexpr int64_t kSteps = 3;

const std::string kMuon =
    "optimizer: {muon: {lr: 0.02, adjust_lr: match_rms_adamw}}, clip_norm: 1.0, groups: [{of: "
    "[vectors, embeddings], optimizer: {adamw: {lr: 3e-3, eps: 1e-6}}}]";
const std::string kAdafactor =
    "optimizer: {adafactor: {lr: 0.05, weight_decay: 0.1, eps1: 1e-6}}, clip_norm: 1.0";
// Matrices of one layer are frozen, those of another one have other settings.
const std::string kMuonOfSome =
    "optimizer: {muon: {lr: 0.02, weight_decay: 0.2, nesterov: false}}, ema: {decay: 0.9}, groups: "
    "[{of: [vectors, embeddings], optimizer: {adamw: {lr: 3e-3, eps: 1e-6, states: [bf16, f32]}}}, "
    "{match: \"**/h/1/**\", optimizer: {muon: {lr: 0.01, ns_steps: 3}}}]";
// Lion takes signs, and a bias of keys has a gradient of nothing but rounding: not under Lion.
const std::string kLion =
    "optimizer: {lion: {lr: 1e-3, weight_decay: 0.1}}, clip_norm: 1.0, groups: [{of: vectors, "
    "optimizer: {adamw: {lr: 3e-3, eps: 1e-6}}}]";

const std::string kNarrow =
    "optimizer: {adamw: {lr: 3e-3, eps: 1e-6, states: [bf16, f32]}}, ema: {decay: 0.9}";
// Its average is the only state.
const std::string kAveraged = "optimizer: {sgd: {lr: 0.05}}, ema: {decay: 0.9}";

// Rows of a vocabulary that the ranks do not divide.
constexpr const char* kRows = "  - shard: {match: \"**/wte/*\", dim: 0, over: tp, pad: true}\n";
constexpr const char* kExperts =
    "  - shard: {input: \"*\", dim: 0, over: tp}\n"
    "  - shard: {match: [\"**/w_in\", \"**/w_out\"], dim: 0, over: tp}\n";
constexpr const char* kLookedUp =
    "  - shard: {input: \"*\", dim: 0, over: tp}\n"
    "  - shard: {match: \"**/experts/*\", dim: 0, over: tp}\n";
// Some parameters' states are cut, the others' are whole.
constexpr const char* kSome =
    ", match: \"**/qkv/*\", shard: [optimizer]}\n  - replicate: {over: dp";

// The states of vectors alone are cut.
constexpr const char* kVectors =
    ", match: \"**/ln_f/*\", shard: [optimizer]}\n  - replicate: {over: dp";

struct Case {
  const char* name;
  int pp = 1, dp = 1, tp = 1;
  const char* states = "";  // what `shard` of replicate lists
  const char* tensors = "";
  const char* model = "gpt-deep";
};

std::string text_of(const Case& c, const std::string& train, bool wide) {
  const std::string stages =
      c.pp == 1 ? "" : fmt::format("annotate:\n  - balance: {{tag: stage, into: {}}}\n", c.pp);
  std::string text = fmt::format(
      "piper: 1\n{}mesh: {{pp: {}, dp: {}, tp: {}}}\ntrain: {{global_batch: 8, "
      "{}}}\n{}directives:\n",
      wide ? "include: <numerics/f64>\n" : "", c.pp, c.dp, c.tp, train, stages);
  if (c.pp > 1 || c.dp > 1) text += "  - split: {dim: batch, into: 2, as: mb}\n";
  if (c.pp > 1) text += "  - place: {on: {pp: stage}}\n";
  if (c.dp > 1) text += fmt::format("  - replicate: {{over: dp{}}}\n", c.states);
  text += c.tensors;
  if (text.ends_with("directives:\n")) text.resize(text.size() - std::size("directives:"));
  return text;
}

Result<Compiled> compile_case(const Case& c, const std::string& train, bool wide) {
  const Folder folder;
  CompileOptions options;
  options.model = model_path(c.model, "model.onnx");
  options.strategy = folder.write("s.yaml", text_of(c, train, wide));
  return compile(options);
}

class Optimizers : public ::testing::TestWithParam<Case> {};

bool has_models() { return std::filesystem::exists(model_path("gpt-deep", "model.onnx")); }

TEST_P(Optimizers, TrainAsOnOneDevice) {
  if (!has_models()) GTEST_SKIP() << "no models in " << models_folder();
  const Case& c = GetParam();
  for (const std::string& train : {kMuon, kAdafactor, kLion, kAveraged, kNarrow, kMuonOfSome}) {
    const bool wide = c.tp > 1;           // where sums differ by rounding
    if (wide && train == kNarrow) break;  // it has no states in f64
    if (train == kMuonOfSome && c.model == std::string_view("two-tower")) break;  // of no layers
    const auto compiled = compile_case(c, train, wide);
    ASSERT_TRUE(compiled) << train << "\n" << print_error(compiled.error());
    if (wide) {
      const auto one = compile_case({.name = "one", .model = c.model}, train, wide);
      ASSERT_TRUE(one) << print_error(one.error());
      const auto all = jobs::train(compiled->set, c.model, kSteps),
                 single = jobs::train(one->set, c.model, kSteps);
      ASSERT_TRUE(all && single);
      EXPECT_LT(largest_difference(*all, *single), 1e-9) << train;
      continue;
    }
    const auto data = open_batches(compiled->set, c.model),
               reference_data = open_batches(*compiled->single, c.model);
    ASSERT_TRUE(data && reference_data);
    JobOptions options;
    options.steps = kSteps;
    options.threads = 1;
    options.verify.against = VerifyAgainst::kSingle;
    const auto job =
        run_job(compiled->set, data->get(), &*compiled->single, reference_data->get(), options);
    EXPECT_TRUE(job) << train << "\n" << print_error(job.error());
    expect_same_when_queued(compiled->set, c.model, c.name);
  }
}

constexpr const char* kZero1 = ", shard: [optimizer]";
// The states are cut over dp and then over tp, of which the ranks are replicas, too.
constexpr const char* kNested =
    ", bucket: 1KiB, shard: [optimizer]}\n  - replicate: {over: tp, bucket: 1KiB, shard: "
    "[optimizer]";
constexpr const char* kNestedZero3 =
    ", shard: [optimizer]}\n  - replicate: {over: tp, shard: [optimizer, gradients, parameters]";
constexpr const char* kZero2 = ", shard: [optimizer, gradients], bucket: 1KiB";
constexpr const char* kZero3 = ", shard: [optimizer, gradients, parameters]";

INSTANTIATE_TEST_SUITE_P(
    Strategies, Optimizers,
    ::testing::Values(
        Case{"pp", 2}, Case{"dp", 1, 2}, Case{"zero1", 1, 2, 1, kZero1},
        Case{"zero1_of_some", 1, 2, 1, kSome}, Case{"zero1_of_vectors", 1, 2, 1, kVectors},
        Case{"zero2", 1, 4, 1, kZero2}, Case{"zero3", 1, 2, 1, kZero3},
        Case{"zero1_of_rows", 1, 2, 1, kZero1, "", "two-tower"}, Case{"pp_zero3", 2, 2, 1, kZero3},
        Case{"tp", 1, 1, 2, "", kGptTensor}, Case{"tp3_rows", 1, 1, 3, "", kRows},
        Case{"pp_tp", 2, 1, 2, "", kGptTensor}, Case{"zero1_tp", 1, 2, 2, kZero1, kGptTensor},
        Case{"zero3_tp", 1, 2, 2, kZero3, kGptTensor}, Case{"zero1_twice", 1, 2, 2, kNested},
        Case{"zero1_in_zero3", 1, 2, 2, kNestedZero3},
        Case{"experts", 1, 1, 2, "", kExperts, "moe-gshard"},
        Case{"experts_zero1", 1, 2, 2, kZero1, kExperts, "moe-gshard"},
        Case{"experts_zero3", 1, 2, 2, kZero3, kLookedUp, "qwen3-moe-hf"}),
    [](const auto& info) { return info.param.name; });

// ---- Directions that are spread over ranks ------------------------------------------------------

bool is_exchange(const Instruction& one) {
  return one.kind == InstructionKind::kAllToAll && (one.dim < 0 || one.to_dim < 0);
}
std::vector<Instruction*> exchanges_of(RoleProgram& role) {
  std::vector<Instruction*> all;
  for (Instruction& one : role.body)
    if (is_exchange(one)) all.push_back(&one);
  return all;
}
int64_t products_of_updates(const RoleProgram& role) {
  int64_t products = 0;
  for (const Instruction& one : role.body)
    if (one.kind == InstructionKind::kCompute && one.pass == TaskPass::kU)
      for (const ProgramOp& op : role.programs[static_cast<size_t>(one.program)].ops)
        products += op.op == "MatMul" ? 1 : 0;
  return products;
}
std::string found_in(const PlanSet& set, const Compiled& compiled) {
  const auto report = verify_plan_set(set, &*compiled.single);
  if (!report) return print_error(report.error());
  std::string text;
  for (const Finding& finding : report->findings) text += finding.rule + " " + finding.text + "\n";
  return text;
}

class SpreadDirections : public ::testing::TestWithParam<Case> {};

// An update has two messages. Ranks together do the products of one device, and less than a tenth
// of these again, where a shape has fewer matrices than ranks are left.
TEST_P(SpreadDirections, EachRankComputesItsOwn) {
  if (!has_models()) GTEST_SKIP() << "no models in " << models_folder();
  const Case& c = GetParam();
  const auto compiled = compile_case(c, kMuon, false);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  EXPECT_EQ(found_in(compiled->set, *compiled), "");
  const int64_t all = products_of_updates(compiled->single->roles[0]);
  int64_t own = 0;
  PlanSet set = compiled->set;
  for (RoleProgram& role : set.roles) {
    EXPECT_EQ(exchanges_of(role).size(), 2u);
    own += products_of_updates(role);
  }
  EXPECT_GE(own * c.dp, all);
  EXPECT_LT(own * c.dp, all + all / 10);
}

INSTANTIATE_TEST_SUITE_P(Strategies, SpreadDirections,
                         ::testing::Values(Case{"zero1", 1, 2, 1, kZero1},
                                           Case{"zero2", 1, 4, 1, kZero2},
                                           Case{"zero3", 1, 2, 1, kZero3},
                                           Case{"pp_zero3", 2, 2, 1, kZero3},
                                           Case{"zero1_twice", 1, 2, 2, kNested},
                                           Case{"zero1_in_zero3", 1, 2, 2, kNestedZero3}),
                         [](const auto& info) { return info.param.name; });

// Finds the ops with this name in the programs that update.
std::vector<ProgramOp*> update_ops(RoleProgram& role, std::string_view name) {
  std::vector<ProgramOp*> ops;
  for (const Instruction& one : role.body)
    if (one.kind == InstructionKind::kCompute && one.pass == TaskPass::kU)
      for (ProgramOp& op : role.programs[static_cast<size_t>(one.program)].ops)
        if (op.op == name) ops.push_back(&op);
  return ops;
}

struct Wrong {
  const char* name;
  bool (*change)(RoleProgram& role);  // false: there is nothing to change
};

class SpreadDirectionsControl : public ::testing::TestWithParam<Wrong> {};

TEST_P(SpreadDirectionsControl, IsFound) {
  if (!has_models()) GTEST_SKIP() << "no models in " << models_folder();
  const auto compiled = compile_case({"zero1", 1, 2, 1, kZero1}, kMuon, false);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet set = compiled->set;
  for (RoleProgram& role : set.roles) ASSERT_TRUE(GetParam().change(role));
  EXPECT_NE(found_in(set, *compiled), "");
}

std::vector<ProgramOp*> stacks_of(RoleProgram& role) {
  std::vector<ProgramOp*> stacks = update_ops(role, "Concat");
  std::erase_if(stacks, [](const ProgramOp* op) { return op->inputs.size() != 2; });
  return stacks;
}
bool swap_rows(RoleProgram& role) {  // a matrix is sent to the other rank
  const auto stacks = stacks_of(role);
  if (stacks.empty()) return false;
  std::swap(stacks[0]->inputs[0], stacks[0]->inputs[1]);
  return true;
}
bool repeat_row(RoleProgram& role) {  // both ranks compute one direction
  const auto stacks = stacks_of(role);
  if (stacks.empty()) return false;
  stacks[0]->inputs[1] = stacks[0]->inputs[0];
  return true;
}
bool take_neighbours(RoleProgram& role) {  // a parameter gets the direction of another one
  for (ProgramOp* row : update_ops(role, "Slice"))
    if (row->attrs.integers("starts") == std::vector<int64_t>{0, 0}) {
      const int64_t columns = row->attrs.integers("ends")[1];
      row->attrs.set("starts", std::vector<int64_t>{1, 0});
      row->attrs.set("ends", std::vector<int64_t>{2, columns});
      return true;
    }
  return false;
}
bool bring_back_matrix(RoleProgram& role) {  // what came, without the iterations
  const auto both = exchanges_of(role);
  if (both.size() != 2 || both[0]->args.size() < 2) return false;
  both[1]->args[0] = both[0]->args[1];
  return true;
}
bool leave_on_the_rank(RoleProgram& role) {  // runs are not exchanged
  const auto both = exchanges_of(role);
  if (both.size() != 2) return false;
  both[1]->args[1] = both[0]->args[0];
  return true;
}
bool exchange_blocks(RoleProgram& role) {  // as blocks of the two dims of one value
  const auto both = exchanges_of(role);
  if (both.size() != 2) return false;
  both[0]->dim = 1, both[1]->to_dim = 1;
  return true;
}
bool exchange_pairs(RoleProgram& role) {  // two groups of one shape, if there are such
  const auto both = exchanges_of(role);
  for (size_t a = 0; !both.empty() && a < both[0]->args.size(); a += 2)
    for (size_t b = a + 2; b < both[0]->args.size(); b += 2)
      if (role.tensor(both[0]->args[a]).type == role.tensor(both[0]->args[b]).type) {
        std::swap(both[0]->args[a], both[0]->args[b]);
        return true;
      }
  return false;
}
INSTANTIATE_TEST_SUITE_P(Wrong, SpreadDirectionsControl,
                         ::testing::Values(Wrong{"swap_rows", swap_rows},
                                           Wrong{"repeat_row", repeat_row},
                                           Wrong{"take_neighbours", take_neighbours},
                                           Wrong{"bring_back_matrix", bring_back_matrix},
                                           Wrong{"leave_on_the_rank", leave_on_the_rank},
                                           Wrong{"exchange_blocks", exchange_blocks},
                                           Wrong{"exchange_pairs", exchange_pairs}),
                         [](const auto& info) { return info.param.name; });

// A rank has its matrix before the padding of the runs, which may be nearly as long.
TEST(SpreadDirectionsUneven, AreFoundWithOtherElements) {
  const Folder folder;
  CompileOptions options;
  options.model = PIPER_SOURCE_DIR "/tests/data/families/fresh-parts/model.onnx";
  options.strategy = folder.write(
      "s.yaml", fmt::format("piper: 1\nmesh: {{dp: 15}}\ntrain: {{global_batch: 15, {}}}\n"
                            "directives: [{{replicate: {{over: dp{}}}}}]\n",
                            kMuon, kZero1));
  const auto compiled = compile(options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  EXPECT_EQ(found_in(compiled->set, *compiled), "");
  struct Elements {
    int64_t first, end, step;
  };
  for (const auto& [first, end, step] :
       {Elements{0, 15, 2}, Elements{1, 9, 1}, Elements{7, 15, 1}}) {
    PlanSet set = compiled->set;
    size_t changed = 0;
    for (RoleProgram& role : set.roles)
      for (ProgramOp* slice : update_ops(role, "Slice"))
        if (slice->attrs.integers("ends") == std::vector<int64_t>{1, 8}) {
          slice->attrs.set("starts", std::vector<int64_t>{0, first});
          slice->attrs.set("ends", std::vector<int64_t>{1, end});
          slice->attrs.set("steps", std::vector<int64_t>{1, step});
          ++changed;
        }
    EXPECT_GT(changed, 0u);
    EXPECT_NE(found_in(set, *compiled), "") << first << " to " << end << " by " << step;
  }
}

// Where ranks do not divide the elements of a matrix, its runs end in padding: a rank leaves that
// out of its own matrix, and adds it to the direction.
TEST(SpreadDirectionsUneven, TrainAsOnOneDevice) {
  if (!has_models()) GTEST_SKIP() << "no models in " << models_folder();
  for (const char* states : {kZero1, kZero3}) {
    const Folder folder;
    CompileOptions options;
    options.model = model_path("gpt-deep", "model.onnx");
    options.strategy = folder.write(
        "s.yaml", fmt::format("piper: 1\nmesh: {{dp: 3}}\ntrain: {{global_batch: 6, {}}}\n"
                              "directives: [{{replicate: {{over: dp{}}}}}]\n",
                              kMuon, states));
    const auto compiled = compile(options);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    EXPECT_EQ(found_in(compiled->set, *compiled), "");
    const int64_t all = products_of_updates(compiled->single->roles[0]);
    for (RoleProgram role : compiled->set.roles) {
      EXPECT_EQ(exchanges_of(role).size(), 2u);
      EXPECT_LT(products_of_updates(role), all / 2);
    }
    std::vector<NamedTensor> batches;
    for (int64_t step = 0; step < 3; ++step)
      for (const DataInput& input : compiled->single->roles[0].inputs) {
        const int64_t count = num_elements(input.type.shape);
        std::vector<int64_t> tokens;
        for (int64_t k = 0; k < count; ++k) tokens.push_back((k * k + 7 * step) % 97);
        batches.push_back({fmt::format("batch/{}/{}", step, input.name), input.type,
                           Bytes::copy_of(tokens.data(), tokens.size() * sizeof(int64_t))});
      }
    const std::string path = folder.path() + "/batches.safetensors";
    ASSERT_TRUE(write_safetensors(path, batches));
    const auto ours = train_on(compiled->set, path, 3), one = train_on(*compiled->single, path, 3);
    ASSERT_TRUE(ours && one) << print_error((ours ? one : ours).error());
    expect_equal_bits(*ours, *one, states);

    PlanSet wrong = compiled->set;  // from the second element on, with one of the padding
    size_t changed = 0;
    for (RoleProgram& role : wrong.roles)
      for (ProgramOp* row : update_ops(role, "Slice")) {
        const int64_t end = row->attrs.integers("ends")[1];
        if (row->attrs.integers("starts") != std::vector<int64_t>{0, 0} || end % 3 == 0) continue;
        row->attrs.set("starts", std::vector<int64_t>{0, 1});
        row->attrs.set("ends", std::vector<int64_t>{1, end + 1});
        ++changed;
      }
    EXPECT_GT(changed, 0u);
    EXPECT_NE(found_in(wrong, *compiled), "");
  }
}

// The comparison sees another momentum, or another second moment.
TEST(OptimizersControl, OtherSettingsDiffer) {
  if (!has_models()) GTEST_SKIP() << "no models in " << models_folder();
  const auto trained = [](const std::string& train) {
    const auto compiled = compile_case({.name = "one"}, train, true);
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    auto result = jobs::train(compiled->set, "gpt-deep", kSteps);
    EXPECT_TRUE(result) << print_error(result.error());
    return *std::move(result);
  };
  for (const auto& [train, other] : {std::pair{kMuon, "muon: {momentum: 0.9, "},
                                     {kAdafactor, "adafactor: {beta2_decay: -0.7, "}}) {
    std::string changed = train;
    const std::string_view name(other, std::string_view(other).find('{') + 1);
    changed.replace(changed.find(name), name.size(), other);
    EXPECT_GT(largest_difference(trained(changed), trained(train)), 1e-5) << changed;
  }
}

}  // namespace
}  // namespace piper::optimizers_test
