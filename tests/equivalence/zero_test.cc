// ZeRO: whatever of the training state is cut over the replicas, and however often it travels, the
// model trains as on one device with the same cut of the batch.
#include "equivalence/covering.h"
#include "equivalence/entries.h"

namespace piper::zero_test {
namespace {

using namespace jobs;

struct Case {
  const char* name;
  const char* order;  // a file of strategies/
  // Definitions beside its sizes.
  std::vector<Definition> more = {};
};

Result<JobResult> train_beside_oracle(const std::string& model, const std::string& optimizer,
                                      const Shape2& shape, const std::vector<Definition>& more,
                                      int64_t steps, VerifyAgainst against) {
  PIPER_ASSIGN(const Compiled compiled,
               compile_model(model, strategy_text(model, optimizer), shape, true, more));
  const PlanSet& reference = against == VerifyAgainst::kSingle ? *compiled.single : *compiled.uncut;
  PIPER_ASSIGN(const auto data, open_batches(compiled.set, model));
  PIPER_ASSIGN(const auto reference_data, open_batches(reference, model));
  JobOptions options;
  options.steps = steps;
  options.threads = 1;
  options.verify.against = against;
  if (optimizer == kAdamW) expect_same_when_queued(compiled.set, model, shape.order);
  return run_job(compiled.set, data.get(), &reference, reference_data.get(), options);
}

void expect_same_training(const std::string& model, const std::string& optimizer,
                          const Shape2& shape, const Case& of, int64_t steps,
                          VerifyAgainst against) {
  const auto job = train_beside_oracle(model, optimizer, shape, of.more, steps, against);
  EXPECT_TRUE(job) << fmt::format("{} {} pp={} dp={} mb={}\n", model, of.name, shape.pp, shape.dp,
                                  shape.mb)
                   << print_error(job.error());
}

class Zero : public ::testing::TestWithParam<Case> {};

const std::string kAveragedLion =
    "optimizer: {lion: {lr: 1e-3, weight_decay: 0.1}}, ema: {decay: 0.9}";
const std::string kClippedSgd = std::string(kSgd) + ", clip_norm: 0.5";

TEST_P(Zero, EqualsOneDeviceBitForBit) {
  NEED_MODEL("mlp");
  struct Job {
    Shape2 shape;
    std::string optimizer;
  };
  std::vector<Job> jobs;
  for (const int64_t dp : {2, 4})
    for (const int64_t pp : {1, 2})
      for (const int64_t mb : {int64_t{1}, 8 / dp})
        for (const std::string& optimizer : {std::string(kAdamW), kClippedSgd, kAveragedLion})
          if (!kSanitized || (dp == 2 && mb > 1))
            jobs.push_back({{pp, dp, mb, GetParam().order}, optimizer});
  const auto values_of = [](const Job& job) {
    return Values{std::to_string(job.shape.dp), std::to_string(job.shape.pp),
                  job.shape.mb == 1 ? "whole" : "cut", job.optimizer};
  };
  for (const Job& job : covering(jobs, values_of))
    expect_same_training("mlp", job.optimizer, job.shape, GetParam(), 5, VerifyAgainst::kSingle);
}

// With tied embeddings, which two stages hold.
TEST_P(Zero, TiedWeightsToo) {
  NEED_MODEL(kSmallGpt);
  const int64_t steps = kSanitized ? 1 : 5;
  const Shape2 two{2, 2, 2, GetParam().order}, four{1, 4, 2, GetParam().order};
  expect_same_training(kSmallGpt, kAdamW, two, GetParam(), steps, VerifyAgainst::kSingle);
  if (kSanitized) return;
  expect_same_training(kSmallGpt, kAdamW, four, GetParam(), steps, VerifyAgainst::kSingle);
  expect_same_training(kSmallGpt, kAdamW, two, GetParam(), steps, VerifyAgainst::kUncut);
}

const std::vector<Definition> kSmall{{"bucket_kib", "1"}},
    kEachPass{{"bucket_kib", "1"}, {"prefetch", "0"}},
    kFarAhead{{"bucket_kib", "1"}, {"prefetch", "3"}},
    kEachMicrobatch{{"bucket_kib", "1"}, {"gather", "per_microbatch"}},
    kEachStep{{"bucket_kib", "1"}, {"gather", "per_step"}};

INSTANTIATE_TEST_SUITE_P(Library, Zero,
                         ::testing::Values(Case{"zero0", "1f1b"}, Case{"zero1", "zero1"},
                                           Case{"zero2", "zero2"},
                                           Case{"zero2_buckets", "zero2", kSmall},
                                           Case{"zero3", "zero3"},
                                           Case{"zero3_buckets", "zero3", kSmall},
                                           Case{"zero3_no_prefetch", "zero3", kEachPass},
                                           Case{"zero3_far_ahead", "zero3", kFarAhead},
                                           Case{"zero3_per_microbatch", "zero3", kEachMicrobatch},
                                           Case{"zero3_per_step", "zero3", kEachStep}),
                         [](const auto& info) { return info.param.name; });

// The schedule makes no difference; overlapped passes and split backwards included.
TEST(ZeroSchedules, EqualOneDeviceBitForBit) {
  NEED_MODEL("gpt-deep");
  for (const char* file :
       {"interleaved-1f1b", "zb-h1", "zbv", "dualpipev", "dualpipe", "chimera"}) {
    const Folder folder;
    const std::string text = fmt::format(
        "piper: 1\ninclude: [{0}/schedules/{1}.yaml, {0}/memory/zero3.yaml]\n"
        "params: {{bucket_kib: 1}}\ntrain: {{global_batch: 8, {2}}}\n",
        PIPER_SOURCE_DIR "/strategies", file, kAdamW);
    CompileOptions options;
    options.model = model_path("gpt-deep", "model.onnx");
    options.strategy = folder.write("strategy.yaml", text);
    options.defines = {{"stages", "2"}, {"dp", "2"}, {"microbatches", "4"}};
    const auto compiled = compile(options);
    ASSERT_TRUE(compiled) << file << print_error(compiled.error());
    auto data = open_batches(compiled->set, "gpt-deep");
    auto reference_data = open_batches(*compiled->single, "gpt-deep");
    ASSERT_TRUE(data && reference_data);
    JobOptions job;
    job.steps = kSanitized ? 1 : 5;
    job.threads = 1;
    job.verify.against = VerifyAgainst::kSingle;
    const auto result =
        run_job(compiled->set, data->get(), &*compiled->single, reference_data->get(), job);
    expect_same_when_queued(compiled->set, "gpt-deep", file);
    EXPECT_TRUE(result) << file << "\n" << print_error(result.error());
    if (kSanitized) return;
  }
}

// What is saved is whole, under the names that plans without parts save.
TEST(ZeroSave, PutsPartsTogether) {
  NEED_MODEL(kSmallGpt);
  std::vector<Trained> trained;
  for (const char* order : {"1f1b", "zero3"}) {
    const auto compiled =
        compile_model(kSmallGpt, strategy_text(kSmallGpt, kAdamW), {2, 2, 2, order});
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    auto result = train(compiled->set, kSmallGpt, 1);
    ASSERT_TRUE(result) << print_error(result.error());
    trained.push_back(*std::move(result));
  }
  ASSERT_EQ(trained[0].parameters.size(), trained[1].parameters.size());
  for (const auto& [name, tensor] : trained[0].parameters) {
    const NamedTensor& other = trained[1].parameters.at(name);
    EXPECT_EQ(tensor.type, other.type) << name;
    EXPECT_TRUE(as_text(tensor.data.span()) == as_text(other.data.span())) << name;
  }
}

// Sums over replicas in every microbatch add the same numbers in another order: within bounds of
// the uncut plan, and of the plan with the same cut, but not its bits. With one microbatch there is
// no other order.
TEST(ZeroEachMicrobatch, DiffersByRoundingAlone) {
  NEED_MODEL(kSmallGpt);
  for (const char* order : {"zero2", "zero3"}) {
    const Case of{order, order, {{"reduce", "per_microbatch"}, {"bucket_kib", "1"}}};
    const Shape2 one{2, 2, 1, order}, many{2, 2, 4, order};
    expect_same_training("mlp", kAdamW, one, of, 5, VerifyAgainst::kSingle);
    expect_same_training("mlp", kClippedSgd, many, of, 5, VerifyAgainst::kUncut);
    expect_same_training(kSmallGpt, kAdamW, {2, 2, 2, order}, of, kSanitized ? 1 : 5,
                         VerifyAgainst::kUncut);
    const auto other = train_beside_oracle("mlp", kAdamW, many, of.more, 5, VerifyAgainst::kSingle);
    ASSERT_TRUE(other) << print_error(other.error());
    EXPECT_FALSE(other->bitwise);
    EXPECT_GT(other->worst_param_error, 0);
    // Uses of a tied parameter are added behind the replicas, too.
    const auto tied =
        train_beside_oracle(kSmallGpt, kSgd, {1, 2, 1, order}, of.more, 2, VerifyAgainst::kSingle);
    EXPECT_TRUE(tied) << print_error(tied.error());
  }
}

// States cut inside a node, whole copies between nodes: sums nest.
TEST(ZeroNested, EqualsOneDeviceBitForBit) {
  NEED_MODEL("mlp");
  const Case of{"hsdp", "hsdp", {{"nodes", "2"}, {"gpus", "2"}, {"bucket_kib", "1"}}};
  for (const int64_t pp : {1, 2})
    expect_same_training("mlp", kAdamW, {pp, 0, 2, "hsdp"}, of, 5, VerifyAgainst::kSingle);
}

// ---- Entries of `replicate` by kind of state and by parameter -----------------------------------

const Entries kEntries[] = {
    {"inside_nodes", "node: 2, gpu: 2",
     "  - replicate: {over: node, shard: [optimizer, gradients]}\n"
     "  - replicate: {over: gpu, bucket: 1KiB, shard: [optimizer, gradients, parameters]}\n"},
    {"three_levels", "rack: 2, node: 2, gpu: 2",
     "  - replicate: {over: rack, shard: [optimizer]}\n"
     "  - replicate: {over: node, shard: [optimizer, gradients]}\n"
     "  - replicate: {over: gpu, shard: [optimizer, gradients, parameters]}\n",
     1},
    {"parameters_whole", "node: 4, gpu: 2",
     "  - replicate: {over: node, shard: [optimizer, gradients]}\n"
     "  - replicate: {over: gpu, shard: [optimizer], bucket: 1KiB}\n",
     1},
    {"inner_axis_last", "gpu: 2, node: 2",
     "  - replicate: {over: node, shard: [optimizer]}\n"
     "  - replicate: {over: gpu, shard: [optimizer, gradients, parameters]}\n"},
    {"by_layer", "dp: 4",
     "  - replicate: {over: dp, match: \"**/weight\", shard: [optimizer, gradients, parameters]}\n"
     "  - replicate: {over: dp, match: \"model/2/bias\", shard: [optimizer], bucket: 1MiB}\n"
     "  - replicate: {over: dp}\n"},
    {"over_axes_of_their_own", "node: 2, gpu: 2",
     "  - replicate: {over: gpu, match: \"model/0/*\", shard: [optimizer, gradients, parameters]}\n"
     "  - replicate: {over: [node, gpu], match: \"model/2/*\", shard: [optimizer, gradients, "
     "parameters]}\n"
     "  - replicate: {over: node, match: \"model/4/weight\", shard: [optimizer]}\n"},
    {"small_stay_whole", "node: 2, gpu: 2",
     "  - replicate: {over: node, shard: [optimizer], persist: 1KiB}\n"
     "  - replicate: {over: gpu, shard: [optimizer, gradients, parameters], persist: 1KiB}\n"},
    {"rounded", "node: 2, gpu: 2",
     "  - replicate: {over: node, shard: [optimizer], reduce: {dtype: bf16}}\n"
     "  - replicate: {over: gpu, shard: [optimizer, gradients, parameters]}\n"},
    {"gathered_in_halves", "dp: 4",
     "  - replicate: {over: dp, bucket: 1KiB, shard: [optimizer, gradients, parameters], gather: "
     "{dtype: bf16, lossy: true}}\n"},
    {"gathered_in_halves_once", "node: 2, gpu: 2",
     "  - replicate: {over: node, match: \"**/weight\", shard: [optimizer], gather: {dtype: f16, "
     "lossy: true}}\n"
     "  - replicate: {over: gpu, shard: [optimizer, gradients]}\n"},
    {"some_over_two_axes", "node: 2, gpu: 2",
     "  - replicate: {over: node, match: \"model/0/*\", shard: [optimizer]}\n"
     "  - replicate: {over: gpu, match: \"model/0/*\", shard: [optimizer]}\n"},
    {"some_beside_the_host", "dp: 2",
     "  - replicate: {over: dp, match: \"model/0/*\", shard: [optimizer]}\n"
     "  - offload: {what: parameters}\n"},
    {"on_the_host", "dp: 4",
     "  - replicate: {over: dp}\n  - offload: {what: parameters, distance: 2}\n"},
    {"parts_on_the_host", "node: 2, gpu: 2",
     "  - precision: {compute: bf16}\n  - offload: {what: parameters}\n"
     "  - offload: {what: optimizer}\n  - replicate: {over: node, shard: [optimizer]}\n"
     "  - replicate: {over: gpu, shard: [optimizer, gradients, parameters]}\n"},
    {"halves", "node: 2, gpu: 2",
     "  - precision: {compute: bf16}\n"
     "  - replicate: {over: node, shard: [optimizer, gradients]}\n"
     "  - replicate: {over: gpu, shard: [optimizer, gradients, parameters]}\n"},
    {"halves_whole", "node: 2, gpu: 2",
     "  - precision: {compute: bf16}\n"
     "  - replicate: {over: node, shard: [optimizer]}\n"
     "  - replicate: {over: gpu, shard: [optimizer]}\n"}};

class ZeroEntries : public ::testing::TestWithParam<Entries> {};

// Also with a norm of all gradients, whose squares are added in f64 by other runs.
TEST_P(ZeroEntries, EqualOneDeviceBitForBit) {
  NEED_MODEL("mlp");
  for (const int64_t pp : {1, 2})
    for (const std::string& train : {kAveragedLion, std::string(kAdamW)}) {
      CompileOptions options;
      options.oracles = true;
      const auto compiled = compile_text("mlp", text_of(GetParam(), pp), train, options);
      ASSERT_TRUE(compiled) << print_error(compiled.error());
      const auto result = train_beside_single(*compiled, "mlp", 5);
      EXPECT_TRUE(result) << print_error(result.error());
      EXPECT_TRUE(result && result->bitwise);
    }
}

INSTANTIATE_TEST_SUITE_P(Replicate, ZeroEntries, ::testing::ValuesIn(kEntries),
                         [](const auto& info) { return info.param.name; });

// What these comparisons could not see would be no proof: sums that nest the other way, and
// parameters that travel rounded, end with other bits.
TEST(ZeroEntriesControl, OtherSumsAndRoundedParametersAreSeen) {
  NEED_MODEL("mlp");
  const auto trained = [](const Entries& of) {
    CompileOptions options;
    options.oracles = false;
    const auto compiled = compile_text("mlp", text_of(of, 1), kAdamW, options);
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    auto result = train(compiled->set, "mlp", 5);
    EXPECT_TRUE(result) << print_error(result.error());
    std::string bits;
    for (const auto& [name, tensor] : result->parameters) bits += as_text(tensor.data.span());
    return bits;
  };
  const std::string all = "shard: [optimizer, gradients, parameters]";
  const auto entries = [&](const std::string& node, const std::string& gpu) {
    return fmt::format("  - replicate: {{over: node, {}}}\n  - replicate: {{over: gpu, {}}}\n",
                       node, gpu);
  };
  const std::string inside = entries("shard: [optimizer]", all), hsdp = entries("bucket: 0", all),
                    between = entries(all, "shard: [optimizer]"),
                    rounded =
                        entries("shard: [optimizer]", all + ", gather: {dtype: bf16, lossy: true}");
  const auto of = [&](const std::string& text) {
    return trained({"control", "node: 2, gpu: 2", text.c_str()});
  };
  const std::string want = of(inside);
  EXPECT_TRUE(of(hsdp) == want);  // the same sums, of states that are cut less
  EXPECT_FALSE(of(between) == want);
  EXPECT_FALSE(of(rounded) == want);
}

// Each parameter is gathered as far ahead as its own task says.
TEST(ZeroPrefetch, IsOfEachParameter) {
  NEED_MODEL("mlp");
  CompileOptions options;
  options.oracles = true;
  const auto compiled =
      compile_text("mlp",
                   "piper: 1\nmesh: {dp: 2}\ndirectives:\n  - split: {dim: batch, into: 2}\n"
                   "  - replicate: {over: dp, shard: [optimizer, gradients, parameters], gather: "
                   "{prefetch: 0}}\n"
                   "  - prefetch: {where: {kind: all_gather, value: \"model.4.*\"}, distance: 3}\n",
                   kAdamW, options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const RoleProgram& role = compiled->set.roles[0];
  std::set<std::string> ahead, beside;  // of the first microbatch's forward
  for (size_t i = 0; i < role.body.size() && role.body[i].pass != TaskPass::kB; ++i) {
    if (role.body[i].kind != InstructionKind::kAllGather) continue;
    const auto next =
        std::find_if(role.body.begin() + static_cast<std::ptrdiff_t>(i), role.body.end(),
                     [](const Instruction& one) { return one.kind == InstructionKind::kCompute; });
    for (size_t a = 1; a < role.body[i].args.size(); a += 2) {
      const int32_t whole = role.body[i].args[a];
      const bool reads = std::count(next->args.begin(), next->args.end(), whole) > 0;
      (reads ? beside : ahead).insert(role.tensor(whole).param);
    }
  }
  EXPECT_EQ(ahead, (std::set<std::string>{"model.4.bias", "model.4.weight"}));
  EXPECT_EQ(beside, (std::set<std::string>{"model.0.bias", "model.0.weight", "model.2.bias",
                                           "model.2.weight"}));
  const auto result = train_beside_single(*compiled, "mlp", 3);
  EXPECT_TRUE(result) << print_error(result.error());
}

// Parameters below a size stay whole; all others are cut.
TEST(ZeroPersist, KeepsSmallParametersWholeAndEveryBit) {
  NEED_MODEL(kSmallGpt);
  constexpr int64_t kBytes = 2048;
  CompileOptions options;
  options.oracles = true;
  const auto compiled = compile_text(
      kSmallGpt,
      "piper: 1\nmesh: {pp: 2, dp: 2}\nannotate: [{balance: {tag: stage, into: 2}}]\n"
      "directives:\n"
      "  - place: {where: {stage: s}, on: {pp: s}}\n  - split: {dim: batch, into: 2}\n"
      "  - replicate: {over: dp, shard: [optimizer, gradients, parameters], persist: 2KiB}\n",
      kAdamW, options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  int64_t whole = 0, cut = 0;
  for (const RoleProgram& role : compiled->set.roles)
    for (const Tensor& tensor : role.tensors) {
      if (tensor.kind != BufferKind::kState || tensor.param.empty()) continue;
      const int64_t bytes = TensorType{tensor.type.dtype,
                                       tensor.part_of < 0 ? tensor.type.shape : Shape(tensor.whole)}
                                .bytes();
      EXPECT_EQ(tensor.part_of < 0, bytes < kBytes) << tensor.param << " " << bytes;
      (tensor.part_of < 0 ? whole : cut) += 1;
    }
  EXPECT_GT(whole, 10);
  EXPECT_GT(cut, 5);
  const auto data = open_batches(compiled->set, kSmallGpt);
  const auto reference_data = open_batches(*compiled->single, kSmallGpt);
  ASSERT_TRUE(data && reference_data);
  JobOptions job;
  job.steps = kSanitized ? 1 : 5;
  job.threads = 1;
  job.verify.against = VerifyAgainst::kSingle;
  const auto done =
      run_job(compiled->set, data->get(), &*compiled->single, reference_data->get(), job);
  EXPECT_TRUE(done) << print_error(done.error());
}

}  // namespace
}  // namespace piper::zero_test
