// Gradients that travel, or are added up, in 16 bits: the same bits under every plan of one cut,
// near what f32 gives and yet not it, in half the bytes.
#include "equivalence/jobs.h"

namespace piper::reduce_test {
namespace {

using namespace jobs;

std::string text_in(const std::string& model, const std::string& train, const std::string& type,
                    const std::string& compute = "f32") {
  return strategy_text(model, train) +
         fmt::format("directives: [{{precision: {{compute: {}, reduce: {}}}}}]\n", compute, type);
}

Compiled compiled_in(const std::string& model, const std::string& text, const Shape2& shape,
                     const std::vector<Definition>& more = {}) {
  auto compiled = compile_model(model, text, shape, true, more);
  EXPECT_TRUE(compiled) << text << print_error(compiled.error());
  return compiled ? *std::move(compiled) : Compiled{};
}

// Whether a plan set trains as another one does, bit for bit or within a bound.
Status same_training(const std::string& model, const PlanSet& set, const PlanSet& reference,
                     int64_t steps, double bound = 0) {
  PIPER_ASSIGN(const auto data, open_batches(set, model));
  PIPER_ASSIGN(const auto reference_data, open_batches(reference, model));
  JobOptions options;
  options.steps = steps;
  options.threads = 1;
  options.verify.against = bound > 0 ? VerifyAgainst::kUncut : VerifyAgainst::kSingle;
  if (bound > 0) options.verify.loss_bound = options.verify.param_bound = bound;
  const auto job = run_job(set, data.get(), &reference, reference_data.get(), options);
  return job ? ok_status() : Status(job.error());
}

struct Case {
  const char* name;
  const char* order;
  std::vector<Definition> more = {};
};

class Reduce : public ::testing::TestWithParam<Case> {};

const std::string kClippedSgd = std::string(kSgd) + ", clip_norm: 0.5";

TEST_P(Reduce, EqualsOneDeviceBitForBit) {
  NEED_MODEL("mlp");
  const bool nested = std::string_view(GetParam().order) == "hsdp";
  for (const char* type : {"bf16", "f16"})
    for (const int64_t dp : {2, 4})
      for (const int64_t pp : {1, 2}) {
        if ((kSanitized && dp != 2) || (nested && dp != 4)) continue;
        const Shape2 shape{pp, nested ? 0 : dp, 2, GetParam().order};
        for (const std::string& train : {std::string(kAdamW), kClippedSgd}) {
          const Compiled one =
              compiled_in("mlp", text_in("mlp", train, type), shape, GetParam().more);
          const Status same = same_training("mlp", one.set, *one.single, 5);
          if (train == kAdamW) expect_same_when_queued(one.set, "mlp", GetParam().order);
          EXPECT_TRUE(same) << type << " dp=" << dp << " pp=" << pp << "\n"
                            << print_error(same.error());
        }
      }
}

// With tied embeddings, which two stages hold, and products in 16 bits.
TEST_P(Reduce, TiedWeightsToo) {
  const std::string model = kSmallGpt;
  NEED_MODEL(model);
  const bool nested = std::string_view(GetParam().order) == "hsdp";
  const Compiled one = compiled_in(model, text_in(model, kAdamW, "bf16", "bf16"),
                                   {2, nested ? 0 : 2, 2, GetParam().order}, GetParam().more);
  const Status same = same_training(model, one.set, *one.single, kSanitized ? 1 : 3);
  EXPECT_TRUE(same) << print_error(same.error());
}

const std::vector<Definition> kSmall{{"bucket_kib", "1"}},
    kNested{{"nodes", "2"}, {"gpus", "2"}, {"bucket_kib", "1"}};

INSTANTIATE_TEST_SUITE_P(
    Library, Reduce,
    ::testing::Values(Case{"zero0", "1f1b"}, Case{"zero1", "zero1"}, Case{"zero2", "zero2"},
                      Case{"zero2_buckets", "zero2", kSmall}, Case{"zero3", "zero3"},
                      Case{"zero3_buckets", "zero3", kSmall}, Case{"hsdp", "hsdp", kNested}),
    [](const auto& info) { return info.param.name; });

// Each microbatch's sums are rounded, as one device rounds them.
TEST(ReduceEachMicrobatch, RoundsEverySum) {
  NEED_MODEL("mlp");
  const std::vector<Definition> each{{"reduce", "per_microbatch"}, {"bucket_kib", "1"}};
  for (const char* order : {"zero2", "zero3"}) {
    const std::string text = text_in("mlp", kClippedSgd, "bf16");
    const Compiled one = compiled_in("mlp", text, {2, 2, 1, order}, each);
    const Status same = same_training("mlp", one.set, *one.single, 5);
    EXPECT_TRUE(same) << print_error(same.error());
    const Compiled four = compiled_in("mlp", text, {2, 2, 4, order}, each);
    const Status near = same_training("mlp", four.set, *four.uncut, 5, 2e-2);
    EXPECT_TRUE(near) << print_error(near.error());
    const Status rounded = same_training("mlp", four.set, *four.single, 5);
    EXPECT_TRUE(rounded) << print_error(rounded.error());
    const Compiled once = compiled_in("mlp", text, {2, 2, 4, order});
    EXPECT_FALSE(same_training("mlp", four.set, *once.single, 5, 1e-7));
  }
}

// Two axes, the inner one in f32, the outer one in 16 bits.
Compiled compiled_with(const std::string& reduce) {
  const Folder folder;
  const std::string text = "piper: 1\nmesh: {dp: 2}\ntrain: {global_batch: 8, " +
                           std::string(kAdamW) +
                           "}\ndirectives:\n  - split: {dim: batch, into: 2, as: mb}\n  - "
                           "replicate: {over: dp, " +
                           reduce + "}\n";
  auto compiled = compile(
      {.model = model_path("mlp", "model.onnx"), .strategy = folder.write("strategy.yaml", text)});
  EXPECT_TRUE(compiled) << text << print_error(compiled.error());
  return compiled ? *std::move(compiled) : Compiled{};
}

// A CPU has no library that forms sums faster: it says so, and the bits are those of sums in order.
TEST(FastSums, AreSumsInOrderOnACpu) {
  NEED_MODEL("mlp");
  for (const std::string shard : {"", "shard: [optimizer, gradients], "}) {
    const Compiled fast = compiled_with(shard + "reduce: {sum: fast}"),
                   ordered = compiled_with(shard + "reduce: {sum: ordered}");
    ASSERT_TRUE(!fast.set.roles.empty() && !ordered.set.roles.empty());
    const auto count = [](const Compiled& one) {
      return std::ranges::count_if(one.set.roles[0].body,
                                   [](const Instruction& i) { return i.fast; });
    };
    EXPECT_GT(count(fast), 0);
    EXPECT_EQ(count(ordered), 0);
    for (const Instruction& one : fast.set.roles[0].body)
      EXPECT_FALSE(one.fast && one.label.find("loss") != std::string::npos) << one.label;
    const Status same = same_training("mlp", fast.set, *fast.single, 5);
    EXPECT_TRUE(same) << print_error(same.error());
    const auto says = [](const Compiled& one) {
      return explain(one, *parse_topics("all")).find("they are formed in rank order") !=
             std::string::npos;
    };
    EXPECT_TRUE(says(fast));
    EXPECT_FALSE(says(ordered));
  }
}

TEST(ReduceNested, EachAxisHasItsType) {
  NEED_MODEL("mlp");
  const Folder folder;
  std::optional<Compiled> before;
  for (const char* types : {"f32 bf16", "bf16 f32", "bf16 bf16"}) {
    const std::vector<std::string> type = split_text(types, ' ');
    CompileOptions options;
    options.model = model_path("mlp", "model.onnx");
    options.strategy = folder.write(
        "strategy.yaml",
        fmt::format("piper: 1\nmesh: {{node: 2, gpu: 2}}\n"
                    "train: {{global_batch: 8, {}}}\ndirectives:\n"
                    "  - replicate: {{over: node, reduce: {{dtype: {}}}}}\n"
                    "  - replicate: {{over: gpu, shard: [optimizer], reduce: {{dtype: {}}}}}\n",
                    kAdamW, type[1], type[0]));
    auto compiled = compile(options);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const Status same = same_training("mlp", compiled->set, *compiled->single, 5);
    EXPECT_TRUE(same) << types << print_error(same.error());
    if (before) {
      EXPECT_FALSE(same_training("mlp", compiled->set, *before->single, 5)) << types;
    }
    before = *std::move(compiled);
  }
}

// Gradients that are added up in 16 bits, and travel so or wider.
TEST(Accumulate, EqualsOneDeviceBitForBit) {
  NEED_MODEL("mlp");
  const auto text = [](const char* types) {
    return strategy_text("mlp", kAdamW) +
           fmt::format("directives: [{{precision: {{compute: f32, {}}}}}]\n", types);
  };
  for (const char* types :
       {"accumulate: bf16", "accumulate: bf16, reduce: f32", "accumulate: f16, reduce: bf16"})
    for (const char* order : {"1f1b", "zero1", "zero2", "zero3"})
      for (const int64_t dp : {2, 4}) {
        if (kSanitized && dp == 4) continue;
        const Compiled one = compiled_in("mlp", text(types), {2, dp, 2, order});
        const Status same = same_training("mlp", one.set, *one.single, 5);
        EXPECT_TRUE(same) << types << " " << order << " dp=" << dp << "\n"
                          << print_error(same.error());
      }
  const Shape2 shape{1, 2, 4, "1f1b"};
  const Compiled wide = compiled_in("mlp", strategy_text("mlp", kAdamW), shape),
                 narrow = compiled_in("mlp", text("accumulate: bf16"), shape);
  EXPECT_FALSE(same_training("mlp", narrow.set, *wide.single, 5)) << "the key changes nothing";
  EXPECT_TRUE(same_training("mlp", narrow.set, *wide.uncut, 5, 2e-2));
  for (const Explanation& one : narrow.explanations)
    if (one.directive == "precision") {
      EXPECT_EQ(one.lines.back(), "gradients are added up in bf16");
    }
  for (const Compiled* one : {&wide, &narrow})
    for (const Tensor& tensor : one->set.roles[0].tensors)
      if (tensor.name.find(".grad.use") != std::string::npos) {
        EXPECT_EQ(tensor.type.dtype, one == &wide ? DType::kF32 : DType::kBF16) << tensor.name;
      }
}

// Halves of the backward, groups of microbatches by device, and parameters gathered once a step.
TEST(Accumulate, UnderOtherSchedulesToo) {
  NEED_MODEL("mlp");
  const std::string text =
      strategy_text("mlp", kAdamW) +
      "directives: [{precision: {compute: bf16, accumulate: bf16, loss_scale: dynamic}}]\n";
  const std::pair<Shape2, std::vector<Definition>> cases[] = {
      {{2, 2, 4, "zb-h1"}, {}},
      {{2, 2, 4, "dualpipe"}, {}},
      {{2, 2, 2, "zero3"}, {{"gather", "per_step"}, {"bucket_kib", "1"}}}};
  for (const auto& [shape, more] : cases) {
    const auto one = compile_model("mlp", text, shape, true, more);
    ASSERT_TRUE(one) << shape.order << print_error(one.error());
    const Status same = same_training("mlp", one->set, *one->single, 5);
    EXPECT_TRUE(same) << shape.order << print_error(same.error());
  }
}

// Optimizers that look at whole tensors compute their direction in f32.
TEST(Accumulate, WhereDirectionsAreOfWholeTensors) {
  NEED_MODEL("mlp");
  const char* const optimizers[] = {
      "optimizer: {adafactor: {}}, clip_norm: 1.0",
      "optimizer: {muon: {}}, groups: [{of: [vectors], optimizer: {adamw: {}}}]"};
  for (const char* optimizer : optimizers)
    for (const char* order : {"1f1b", "zero2"}) {
      const Compiled one = compiled_in("mlp",
                                       strategy_text("mlp", optimizer) +
                                           "directives: [{precision: {compute: f32, accumulate: "
                                           "bf16}}]\n",
                                       {2, 2, 2, order});
      const Status same = same_training("mlp", one.set, *one.single, 3);
      EXPECT_TRUE(same) << optimizer << " " << order << "\n" << print_error(same.error());
    }
}

// With tied embeddings: two uses, on two stages.
TEST(Accumulate, TiedWeightsToo) {
  const std::string model = "gpt-unoptimized";
  NEED_MODEL(model);
  const std::string text =
      strategy_text(model, kAdamW) +
      "directives: [{precision: {compute: bf16, accumulate: bf16, reduce: bf16}}]\n";
  for (const char* order : {"zero1", "zero3"}) {
    const Compiled one = compiled_in(model, text, {2, 4, 2, order});
    const Status same = same_training(model, one.set, *one.single, kSanitized ? 1 : 3);
    EXPECT_TRUE(same) << order << print_error(same.error());
  }
}

// What each type gives is not what another gives, though near it.
TEST(ReduceControl, TypesDiffer) {
  NEED_MODEL("mlp");
  const Shape2 shape{1, 2, 2, "1f1b"};
  std::vector<Compiled> all;
  for (const char* type : {"f32", "bf16", "f16"})
    all.push_back(compiled_in(
        "mlp",
        type == std::string_view("f32") ? strategy_text("mlp", kSgd) : text_in("mlp", kSgd, type),
        shape));
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t k = 0; k < all.size(); ++k) {
      const Status same = same_training("mlp", all[i].set, *all[k].single, 5);
      EXPECT_EQ(static_cast<bool>(same), i == k) << i << " " << k;
      if (!same) {
        EXPECT_EQ(same.error().code, ExitCode::kNumeric) << print_error(same.error());
      }
      EXPECT_TRUE(same_training("mlp", all[i].set, *all[k].single, 5, 2e-2));
    }
}

// Stored, computed with and summed in 16 bits.
TEST(ReduceProduct, TrainsAModelInBf16) {
  const std::string model = "gpt-bf16";
  if (!std::filesystem::exists(model_path(model, "model.onnx")) || kSanitized)
    GTEST_SKIP() << "no models in " << models_folder();
  const Compiled one = compiled_in(model, text_in(model, kSgd, "bf16", "bf16"), {2, 2, 2, "zero2"});
  const auto trained = train(one.set, model, 20);
  ASSERT_TRUE(trained) << print_error(trained.error());
  for (const auto& [name, want] : reference_tensors(model))
    if (name.starts_with("sgd/")) {
      EXPECT_LE(tensor_error(trained->parameters.at(name.substr(4)), want), 2e-2) << name;
    }
}

}  // namespace
}  // namespace piper::reduce_test
