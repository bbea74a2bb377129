// Local steps: sites that train by themselves, joined by an outer optimizer, train as the plan for
// one device does, which plays all sites; other outer optimizers and intervals do not.
#include <gmock/gmock.h>

#include "equivalence/jobs.h"
#include "equivalence/sample_jobs.h"
#include "piper/base/memory.h"
#include "piper/plan/flops.h"
#include "piper/plan/outer_updates.h"
#include "piper/plan/sites.h"
#include "piper/plan/verify.h"

namespace piper::local_steps_test {
namespace {

using namespace jobs;

constexpr int64_t kEvery = 3, kSteps = 7;  // two outer updates, and a step more

std::string local_steps(int64_t every = kEvery, const char* momentum = "0.9") {
  return fmt::format(
      "  - local_steps: {{over: site, every: {}, outer: {{sgd: {{lr: 0.7, momentum: {}, nesterov: "
      "{}}}}}}}\n",
      every, momentum, std::string(momentum) == "0" ? "false" : "true");
}

// Joins weights at steps 3 and 6, the rest at steps 1, 3, 5 and 7, by another optimizer.
std::string fragments(int64_t offset = 1) {
  return fmt::format(
      "  - local_steps: {{over: site, match: '**/weight', every: 3, outer: {{sgd: {{lr: 0.7, "
      "momentum: 0.9, nesterov: true}}}}}}\n"
      "  - local_steps: {{over: site, every: 2, offset: {}, outer: {{adamw: {{lr: 0.01, eps: "
      "1e-3}}}}}}\n",
      offset);
}

// Returns a strategy whose updates run beside the steps after they are due; sites get them after
// the last of these.
std::string delayed(int64_t delay = 2, double mix = 0.25, int64_t every = kEvery) {
  return fmt::format(
      "  - local_steps: {{over: site, every: {}, delay: {}, mix: {}, outer: {{sgd: {{lr: 0.7, "
      "momentum: 0.9, nesterov: true}}}}}}\n",
      every, delay, mix);
}
// The same in two fragments. Without an offset both are due at the same steps.
std::string delayed_fragments(int64_t offset = 1, int64_t delay = 2) {
  return fmt::format(
      "  - local_steps: {{over: site, match: '**/weight', every: 3, delay: 1, outer: {{sgd: {{lr: "
      "0.7, momentum: 0.9, nesterov: true}}}}}}\n"
      "  - local_steps: {{over: site, every: 3, offset: {}, delay: {}, mix: 0.5, outer: {{adamw: "
      "{{lr: 0.01, eps: 1e-3}}}}}}\n",
      offset, delay);
}

struct Way {
  const char* name;
  const char* text;  // before the directive
  const char* model = "mlp";
  const char* train = "optimizer: {adamw: {lr: 3e-3, weight_decay: 0.1}}";
  bool same_sums = true;  // as the single-device plan forms them
};
const std::string kTensor = std::string("mesh: {site: 2, tp: 2}\ndirectives:\n") + kGptTensor;
const std::string kTensor3 =
    "mesh: {site: 2, dp: 2, tp: 2}\ndirectives:\n"
    "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n" +
    std::string(kGptTensor);
// Pads the classes with zeros, and the heads of each projection of a weight.
const std::string kPads =
    "  - shard: {match: ['**/wte/*', '**/qkv/*', '**/fc/*'], dim: 0, over: tp, pad: true}\n"
    "  - shard: {match: ['**/proj/weight', '**/fc_out/weight'], dim: 1, over: tp, pad: true}\n";
const std::string kPadded = "mesh: {site: 2, tp: 3}\ndirectives:\n" + kPads;
const std::string kPadded3 =
    "mesh: {site: 2, dp: 2, tp: 3}\ndirectives:\n"
    "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n" +
    kPads;
// Sites have norms of their own, all of which are larger.
const char* const kClip = "clip_norm: 0.05, optimizer: {sgd: {lr: 0.5, momentum: 0.9}}";
const Way kWays[] = {
    {"sites", "mesh: {site: 2}\ndirectives:\n"},
    {"four_sites", "mesh: {site: 4}\ndirectives:\n"},
    {"sgd", "mesh: {site: 2}\ndirectives:\n", "mlp", "optimizer: {sgd: {lr: 0.05}}"},
    {"microbatches", "mesh: {site: 2}\ndirectives:\n  - split: {dim: batch, into: 2, as: mb}\n"},
    {"stages",
     "include: <1f1b>\nparams: {stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n"},
    {"dp", "include: <ddp>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"},
    {"zero1", "include: <zero1>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"},
    {"zero2", "include: <zero2>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"},
    {"zero3", "include: <zero3>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"},
    {"zero3_stages",
     "include: <zero3>\nparams: {dp: 2, stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n",
     kSmallGpt},
    {"zero3_of_four",  // parts of two elements
     "mesh: {site: 2, dp: 4}\ndirectives:\n"
     "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n"},
    {"zero3_bf16",
     "include: <zero3>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"
     "  - precision: {compute: bf16}\n"},
    {"zero3_in_8_bits",
     "mesh: {site: 2, dp: 2}\ndirectives:\n"
     "  - replicate: {over: dp, shard: [optimizer, gradients, parameters], gather: {dtype: int8, "
     "lossy: true, block: 32}, reduce: {dtype: int8, lossy: true, block: 32}}\n"},
    {"zero3_in_16_bits",
     "mesh: {site: 2, dp: 2}\ndirectives:\n"
     "  - replicate: {over: dp, shard: [optimizer, gradients, parameters], gather: {dtype: bf16, "
     "lossy: true}}\n"},
    {"shares",
     "mesh: {site: 2}\ndirectives:\n"
     "  - split: {dim: samples, into: 2, sizes: [3, 1], as: share}\n"},
    {"zero3_in_zero2",
     "mesh: {site: 2, node: 2, gpu: 2}\ndirectives:\n"
     "  - replicate: {over: node, shard: [optimizer, gradients]}\n"
     "  - replicate: {over: gpu, shard: [optimizer, gradients, parameters]}\n",
     "mlp", "optimizer: {adamw: {lr: 3e-3}}", false},  // the norm's squares are in other groups
    {"zero3_tp", kTensor3.c_str(), kSmallGpt, "optimizer: {adamw: {lr: 3e-3, eps: 1e-5}}", false},
    // Some parameters lie in parts over both axes, others over one.
    {"zero3_sequence",
     "include: [<memory/zero3>, <tensor/sequence>]\nparams: {dp: 2, tp: 2}\nmesh: {site: 2}\n"
     "directives:\n",
     kSmallGpt, "optimizer: {adamw: {lr: 3e-3, eps: 1e-5}}, ema: {decay: 0.9}", false},
    {"zero3_sequence_stages",
     "include: [<schedules/1f1b>, <memory/zero3>, <tensor/sequence>]\n"
     "params: {stages: 2, microbatches: 2, dp: 2, tp: 2}\nmesh: {site: 2}\ndirectives:\n",
     kSmallGpt, "optimizer: {adamw: {lr: 3e-3, eps: 1e-5}}", false},
    {"by_parameter_experts",
     "include: [<memory/by-parameter>, <experts/experts>]\nparams: {dp: 2, ep: 2}\n"
     "mesh: {site: 2}\ndirectives:\n",
     "qwen3-moe-hf", "optimizer: {adamw: {lr: 3e-3, eps: 1e-5}}", false},
    {"folded_experts",  // over both axes, those of attention over the second
     "mesh: {site: 2, dp: 2, tp: 2}\ndirectives:\n"
     "  - shard: {match: \"**/{q,k,v}_proj/weight\", dim: 0, over: tp}\n"
     "  - shard: {match: \"**/experts/*\", dim: 0, over: [dp, tp]}\n"
     "  - replicate: {over: dp}\n",
     "qwen3-moe-hf", "optimizer: {adamw: {lr: 3e-3, eps: 1e-5}}", false},
    {"runs_of_runs",  // a bias of one element over four ranks
     "include: <memory/hpz>\nparams: {nodes: 2, gpus: 2}\nmesh: {site: 2}\ndirectives:\n",
     "two-tower", "optimizer: {adamw: {lr: 3e-3, eps: 1e-5}}", false},
    {"runs_of_runs_stages",
     "include: [<schedules/1f1b>, <memory/hpz>]\n"
     "params: {stages: 2, microbatches: 1, nodes: 2, gpus: 2}\nmesh: {site: 2}\ndirectives:\n",
     "two-tower", "optimizer: {adamw: {lr: 3e-3, eps: 1e-5}}", false},
    {"ema", "include: <zero3>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n", "mlp",
     "optimizer: {adamw: {lr: 3e-3}}, ema: {decay: 0.9}"},
    {"ema_of_16_bits", "mesh: {site: 2}\ndirectives:\n", "gpt-bf16",
     "optimizer: {sgd: {lr: 0.1}}, ema: {decay: 0.9}"},
    {"ema_of_16_bits_stages",
     "include: [<schedules/1f1b>, <memory/zero3>]\n"
     "params: {dp: 2, stages: 2, microbatches: 2}\nmesh: {site: 2}\ndirectives:\n",
     "gpt-bf16", "optimizer: {sgd: {lr: 0.1}}, ema: {decay: 0.9}"},
    {"rate_by_tokens", "mesh: {site: 2}\ndirectives:\n", kSmallGpt,
     "optimizer: {sgd: {lr: 0.5}}, schedule: \"lr * max(0, 1 - tokens / 4096)\""},
    {"chunks", "mesh: {site: 2}\ndirectives:\n  - split: {dim: tokens, into: 4}\n", kSmallGpt},
    {"chunks_stages",
     "include: <tokens/seq1f1b>\nparams: {stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n",
     kSmallGpt},
    {"parts",  // each site has regions of its own
     "include: <zero3>\nparams: {dp: 2, stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n  - split: {scope: '**/h/{layer}/fc', dim: 1, into: 2, as: part}\n",
     kSmallGpt, kClip},
    {"parts_in_an_order",
     "mesh: {site: 2}\n"
     "directives:\n  - split: {scope: '**/h/0/fc', dim: 1, into: 2, as: part}\n"
     "  - order: {program: 'F[part=1] F[part=0] B'}\n",
     kSmallGpt},
    {"states_on_the_host",
     "include: <zero3>\nparams: {dp: 2, stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n  - offload: {what: optimizer}\n",
     "mlp", "optimizer: {adamw: {lr: 3e-3}}, ema: {decay: 0.9}"},
    {"parameters_on_the_host",
     "include: <zero3>\nparams: {dp: 2, stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n  - offload: {what: parameters}\n  - offload: {what: optimizer}\n"},
    {"some_parameters_on_the_host",
     "mesh: {site: 2}\ndirectives:\n  - offload: {what: parameters, match: 'model/0/*'}\n"},
    {"vocabulary_pipeline",
     "include: <parts/vocabulary-pipeline>\nparams: {stages: 2, microbatches: 2, embedding: 1}\n"
     "mesh: {site: 2}\ndirectives:\n",
     kSmallGpt},
    {"vocabulary_of_products",  // its embedding, which is tied, reads all parts
     "include: <parts/vocabulary-pipeline>\nparams: {stages: 2, microbatches: 2}\n"
     "mesh: {site: 2}\ndirectives:\n",
     kSmallGpt},
    {"parts_with_a_bias",  // which each part reads
     "mesh: {site: 2, pp: 2}\nannotate: [{balance: {tag: stage, into: 2}}]\ndirectives:\n"
     "  - split: {scope: model/4, tensor: model/4/weight, dim: 0, into: 2, as: part}\n"
     "  - place: {where: {stage: s, part: absent}, on: {pp: s}}\n"
     "  - place: {where: {part: k}, on: {pp: k}}\n"},
    {"pipedream",  // steps of a site overlap
     "include: <schedules/pipedream>\nparams: {stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n"},
    {"pipedream_2bw_zero1",
     "include: [<schedules/pipedream-2bw>, <memory/zero1>]\n"
     "params: {stages: 2, microbatches: 2, dp: 2}\nmesh: {site: 2}\ndirectives:\n"},
    {"pipedream_zero3",
     "include: [<schedules/pipedream>, <memory/zero3>]\n"
     "params: {stages: 2, microbatches: 2, dp: 2}\nmesh: {site: 2}\ndirectives:\n"},
    {"old_weights",  // of steps that do not overlap
     "weight_versions: 3\nmesh: {site: 2}\ndirectives:\n"},
    {"next_step_after_updates",
     "mesh: {site: 2, pp: 2}\nannotate: [{balance: {tag: stage, into: 2}}]\ndirectives:\n"
     "  - split: {dim: batch, into: 2}\n  - place: {where: {stage: s}, on: {pp: s}}\n"
     "  - order: {each: pp, program: 'B B U[stage=r] F[step=1] F[step=1]'}\n"},
    {"dualpipe",  // each stage is on two devices
     "include: <schedules/dualpipe>\nparams: {stages: 2, microbatches: 4}\nmesh: {site: 2}\n"
     "directives:\n"},
    {"bf16",
     "include: <ddp>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"
     "  - precision: {compute: bf16}\n"},
    {"tied",
     "include: <1f1b>\nparams: {stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n  - recompute: {where: {stage: 0}}\n",
     kSmallGpt},
    {"tp", kTensor.c_str(), kSmallGpt, "optimizer: {adamw: {lr: 3e-3, eps: 1e-5}}", false},
    {"padded", kPadded.c_str(), kSmallGpt, "optimizer: {adamw: {lr: 3e-3, eps: 1e-5}}", false},
    {"padded_zero3", kPadded3.c_str(), kSmallGpt,
     "optimizer: {adamw: {lr: 3e-3, eps: 1e-5}}, ema: {decay: 0.9}", false},
    {"clip", "mesh: {site: 2}\ndirectives:\n", "mlp", kClip},
    {"clip_four", "mesh: {site: 4}\ndirectives:\n", "mlp", kClip},
    {"clip_stages",
     "include: <1f1b>\nparams: {stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
     "directives:\n",
     kSmallGpt, kClip},
    {"clip_zero2", "include: <zero2>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n", "mlp",
     kClip},
    {"clip_zero3", "include: <zero3>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n", "mlp",
     kClip},
    {"clip_tp", kTensor.c_str(), kSmallGpt, kClip, false},
    {"clip_muon", "mesh: {site: 2}\ndirectives:\n", "mlp",
     "clip_norm: 0.05, optimizer: {adamw: {lr: 3e-3}}, groups: [{match: '**/weight', optimizer: "
     "{muon: {lr: 0.02}}}]"},
    {"skip", "mesh: {site: 2}\ndirectives:\n", "mlp",
     "skip_nonfinite: true, optimizer: {adamw: {lr: 3e-3}}"},
    {"f16",
     "include: <ddp>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n"
     "  - precision: {compute: f16, loss_scale: dynamic}\n",
     "mlp", kClip}};

Result<Compiled> compile_way(const Way& way, const std::string& directive, bool evaluates = false,
                             bool oracles = true) {
  CompileOptions options;
  options.library = {PIPER_SOURCE_DIR "/strategies"};
  options.oracles = oracles;
  options.evaluation = evaluates;
  return compile_text(way.model, "piper: 1\n" + std::string(way.text) + directive, way.train,
                      options);
}

class LocalSteps : public ::testing::TestWithParam<Way> {};

// Returns what the sites train, beside one device.
Result<Trained> train_as_one_device(const Way& way, const std::string& directive) {
  PIPER_ASSIGN(const Compiled compiled, compile_way(way, directive));
  PIPER_ASSIGN(Trained ours, train(compiled.set, way.model, kSteps));
  PIPER_ASSIGN(const Trained single, train(compiled.single.value(), way.model, kSteps));
  if (way.same_sums) expect_equal_bits(ours, single, way.name);
  EXPECT_LE(largest_difference(ours, single), way.same_sums ? 0 : 3e-4) << way.name;
  return ours;
}
void expect_one_device(const Way& way, const std::string& directive) {
  const auto ours = train_as_one_device(way, directive);
  EXPECT_TRUE(ours) << print_error(ours.error());
}

// The controls, by turns: without momentum, and at other steps, the outer optimizer leads
// elsewhere.
TEST_P(LocalSteps, EqualOneDeviceAndNoOtherOuterOptimizer) {
  const Way& way = GetParam();
  NEED_MODEL(way.model);
  const auto ours = train_as_one_device(way, local_steps());
  ASSERT_TRUE(ours) << print_error(ours.error());
  const auto number = std::ranges::find(kWays, std::string_view(way.name), &Way::name) - kWays;
  const auto compiled =
      compile_way(way, number % 2 == 0 ? local_steps(kEvery, "0") : local_steps(kEvery - 1),
                  /*evaluates=*/false, /*oracles=*/false);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto other = train(compiled->set, way.model, kSteps);
  ASSERT_TRUE(other) << print_error(other.error());
  EXPECT_GT(largest_difference(*other, *ours), 1e-4) << way.name;
}

// Parameters that are joined at steps of their own; updates that sites get later, mixed with what
// they have come to; and both. Every second way has one of the first two alone, too.
class LocalStepsInFragments : public LocalSteps {};
TEST_P(LocalStepsInFragments, EqualOneDevice) {
  NEED_MODEL(GetParam().model);
  expect_one_device(GetParam(), fragments());
}
class LocalStepsDelayed : public LocalSteps {};
TEST_P(LocalStepsDelayed, EqualOneDevice) {
  NEED_MODEL(GetParam().model);
  expect_one_device(GetParam(), delayed());
}
TEST_P(LocalSteps, DelayedFragmentsEqualOneDevice) {
  NEED_MODEL(GetParam().model);
  expect_one_device(GetParam(), delayed_fragments());
}

std::vector<Way> every_second(size_t first) {
  std::vector<Way> ways;
  for (size_t k = first; k < std::size(kWays); k += 2) ways.push_back(kWays[k]);
  return ways;
}
std::string name_of_way(const ::testing::TestParamInfo<Way>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Ways, LocalSteps, ::testing::ValuesIn(kWays), name_of_way);
INSTANTIATE_TEST_SUITE_P(Ways, LocalStepsInFragments, ::testing::ValuesIn(every_second(0)),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(Ways, LocalStepsDelayed, ::testing::ValuesIn(every_second(1)),
                         name_of_way);

// The control of fragments: other steps of one of them change its parameters, and thereby all.
TEST(LocalStepsFragments, OtherStepsDiverge) {
  NEED_MODEL("mlp");
  std::vector<Trained> trained;
  for (const int64_t offset : {1, 0}) {
    const auto compiled = compile_way(kWays[0], fragments(offset));
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    auto one = train(compiled->set, "mlp", kSteps);
    ASSERT_TRUE(one) << print_error(one.error());
    trained.push_back(*std::move(one));
  }
  EXPECT_GT(largest_difference(trained[1], trained[0]), 1e-4);
}

// The controls of delays: sites that get an update at another step, or mix it otherwise, and
// updates by what sites have come to later, lead elsewhere.
TEST(LocalStepsDelay, OthersDiverge) {
  NEED_MODEL("mlp");
  std::vector<Trained> trained;
  for (const std::string& directive :
       {delayed(), delayed(1), delayed(2, 0.5), delayed(0), local_steps()}) {
    const auto compiled = compile_way(kWays[0], directive);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    auto one = train(compiled->set, "mlp", kSteps);
    ASSERT_TRUE(one) << print_error(one.error());
    trained.push_back(*std::move(one));
  }
  for (size_t i = 1; i < trained.size(); ++i)
    EXPECT_GT(largest_difference(trained[i], trained[0]), 1e-4) << i;
  EXPECT_GT(largest_difference(trained[4], trained[3]), 1e-4) << "a mixture without a delay";
}

// What sites send rounded, in place of what kWays has.
std::string in_blocks(const char* type, std::string directive = local_steps()) {
  for (size_t at = 0; (at = directive.find("}}}\n", at)) != std::string::npos; at += 4)
    directive.insert(at + 2, fmt::format(", reduce: {{dtype: {}, lossy: true, block: 32}}", type));
  return directive;
}

// Returns whether ranks have parts of the parameters, which 'reduce' refuses.
bool cuts_parameters(const Way& way) {
  const std::string text = way.text;
  return std::ranges::any_of(
      std::array{"zero3", "parameters]", "hpz", "by-parameter", "tp: "},
      [&](const char* word) { return text.find(word) != std::string::npos; });
}
std::vector<Way> ways_of_whole_parameters() {
  std::vector<Way> ways;
  std::ranges::copy_if(kWays, std::back_inserter(ways), std::not_fn(cuts_parameters));
  return ways;
}
class LocalStepsInBlocks : public LocalSteps {};
TEST_P(LocalStepsInBlocks, EqualOneDevice) {
  NEED_MODEL(GetParam().model);
  expect_one_device(GetParam(), in_blocks("int8"));
}
INSTANTIATE_TEST_SUITE_P(Ways, LocalStepsInBlocks, ::testing::ValuesIn(ways_of_whole_parameters()),
                         name_of_way);

TEST(LocalStepsRounded, TypesDelaysAndFragmentsEqualOneDevice) {
  NEED_MODEL("mlp");
  for (const std::string& directive : {local_steps(), delayed(), delayed_fragments()})
    for (const size_t way : {0, 4}) {
      SCOPED_TRACE(fmt::format("{} {}", kWays[way].name, directive));
      expect_one_device(kWays[way], in_blocks("float8", directive));
    }
}

TEST(LocalStepsRounded, OtherTypesEndElsewhereAndNear) {
  NEED_MODEL("mlp");
  std::vector<Trained> trained;
  for (const std::string& directive : {local_steps(), in_blocks("int8"), in_blocks("float8")}) {
    const auto compiled = compile_way(kWays[0], directive);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    auto one = train(compiled->set, "mlp", kSteps);
    ASSERT_TRUE(one) << print_error(one.error());
    trained.push_back(*std::move(one));
  }
  for (size_t a = 0; a < trained.size(); ++a)
    for (size_t b = 0; b < a; ++b) {
      EXPECT_GT(largest_difference(trained[a], trained[b]), 0) << a << " " << b;
      EXPECT_LT(largest_difference(trained[a], trained[b]), 3e-2) << a << " " << b;
    }
}

// Both what sites send to the last one and what that sends to them takes a quarter.
TEST(LocalStepsRounded, SendAQuarterOfTheBytes) {
  NEED_MODEL("gpt-deep");
  Way way = kWays[0];
  way.model = "gpt-deep";
  const auto bytes = [&](const std::string& directive) {
    const auto compiled = compile_way(way, directive);
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    int64_t sum = 0;
    for (const RoleProgram& role : compiled->set.roles)
      for (const OuterUpdate& update : role.outer_updates)
        for (const Instruction& one : update.instructions)
          if (one.kind == InstructionKind::kSend)
            for (const int32_t arg : one.args) sum += role.tensor(arg).type.bytes();
    return sum;
  };
  const int64_t exact = bytes(local_steps()), int8 = bytes(in_blocks("int8"));
  EXPECT_GT(exact, 0);
  EXPECT_LT(int8 * 32, exact * 36 * 5 / 16);
}

TEST(LocalStepsRounded, PlansThatRoundOtherwiseAreRefused) {
  NEED_MODEL("mlp");
  const auto rounded = compile_way(kWays[0], in_blocks("int8")),
             exact = compile_way(kWays[0], local_steps());
  ASSERT_TRUE(rounded && exact);
  const auto verified = [](const PlanSet& set, const Compiled& of) {
    const auto report = verify_plan_set(set, &*of.single);
    return report && report->findings.empty();
  };
  EXPECT_TRUE(verified(rounded->set, *rounded));
  EXPECT_FALSE(verified(rounded->set, *exact));
  EXPECT_FALSE(verified(exact->set, *rounded));
  for (const char* op : {"ToBlocks", "FromBlocks"}) {
    PlanSet wrong = rounded->set;
    int tried = 0;
    for (RoleProgram& role : wrong.roles)
      for (Program& program : role.programs)
        for (ProgramOp& one : program.ops)
          if (one.op == op) one.attrs.set("to", std::string("float8")), ++tried;
    EXPECT_GT(tried, 0);
    EXPECT_FALSE(verified(wrong, *rounded)) << op;
  }
}

TEST(LocalStepsRounded, PartsOfParametersAreRefused) {
  NEED_MODEL("mlp");
  for (const Way& way : kWays) {
    if (!cuts_parameters(way)) continue;
    const auto compiled = compile_way(way, in_blocks("int8"), false, /*oracles=*/false);
    ASSERT_FALSE(compiled) << way.name;
    const std::string error = print_error(compiled.error());
    EXPECT_NE(error.find("not supported: outer gradients that travel rounded, of parameters that"),
              std::string::npos)
        << error;
  }
}

// Two updates are due at the same steps: one runs beside the next step. The other runs beside later
// steps or, if sites get it before these, before the next step.
TEST(LocalStepsDelay, SeveralUpdatesAtOneStep) {
  NEED_MODEL("mlp");
  for (const int64_t delay : {1, 2}) {
    expect_one_device(kWays[0], delayed_fragments(0, delay));
    expect_one_device(*std::ranges::find(kWays, std::string_view("stages"), &Way::name),
                      delayed_fragments(0, delay));
  }
}

// Each of the steps before sites get an update has a part of it beside it, of about as many bytes
// of each stage's parameters. What another update is beside is left to that.
TEST(LocalStepsDelay, RunsBesideAllSteps) {
  NEED_MODEL("gpt");
  Way way = *std::ranges::find(kWays, std::string_view("zero3_stages"), &Way::name);
  way.model = "gpt";  // of parts that are not too large to share out
  const auto compiled = compile_way(way, delayed(4, 0.5, 9));
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  for (const RoleProgram& role : compiled->set.roles) {
    const std::vector<OuterUpdate>& updates = role.outer_updates;
    ASSERT_EQ(updates.size(), 6u);
    std::vector<int64_t> bytes;
    for (size_t u = 1; u < 5; ++u) {
      EXPECT_EQ(updates[u].offset, 9 + static_cast<int64_t>(u));
      EXPECT_TRUE(runs_beside(role, updates[u])) << u;
      bytes.push_back(outer_bytes(role, updates[u]));
    }
    EXPECT_LE(*std::ranges::max_element(bytes), 2 * *std::ranges::min_element(bytes));
  }
  const auto both = compile_way(kWays[0], delayed_fragments(0));
  ASSERT_TRUE(both) << print_error(both.error());
  std::set<int64_t> steps;
  size_t beside = 0;
  for (const OuterUpdate& update : both->set.roles[0].outer_updates)
    if (runs_beside(both->set.roles[0], update)) ++beside, steps.insert(update.offset % 3);
  EXPECT_EQ(steps.size(), beside);
}

// A trace has the whole of each step: its body, and the outer updates after it or beside it.
TEST(LocalStepsTrace, HasOuterUpdatesOnce) {
  NEED_MODEL("mlp");
  for (const std::string& directive : {local_steps(), delayed(), delayed_fragments(0)})
    for (const HelperThread helper : {HelperThread::kOff, HelperThread::kOn}) {
      const auto compiled = compile_way(kWays[0], directive);
      ASSERT_TRUE(compiled) << print_error(compiled.error());
      const auto data = open_batches(compiled->set, "mlp");
      ASSERT_TRUE(data) << print_error(data.error());
      JobOptions options;
      options.steps = kSteps;
      options.trace_steps = kSteps - 2;
      options.threads = 1;
      options.helper = helper;
      const auto job = run_job(compiled->set, data->get(), nullptr, nullptr, options);
      ASSERT_TRUE(job) << print_error(job.error());
      ASSERT_EQ(job->traces.size(), 2u);
      for (const RankTrace& trace : job->traces) {
        const RoleProgram& role = *trace.role;
        std::map<std::tuple<int64_t, int32_t, int32_t>, int> times;
        std::map<int64_t, double> last;  // by step: when its body ended
        for (const TraceEvent& event : trace.events) {
          ++times[{event.step, event.update, event.instruction}];
          if (event.update < 0) last[event.step] = std::max(last[event.step], event.end_us);
        }
        size_t all = 0;
        for (int64_t step = 2; step < kSteps; ++step) {
          for (size_t i = 0; i < role.body.size(); ++i, ++all)
            EXPECT_EQ((times[{step, -1, static_cast<int32_t>(i)}]), 1) << directive << step;
          for (size_t u = 0; u < role.outer_updates.size(); ++u)
            for (size_t i = 0; runs_at(role.outer_updates[u], step + 1) &&
                               i < role.outer_updates[u].instructions.size();
                 ++i, ++all)
              EXPECT_EQ((times[{step, static_cast<int32_t>(u), static_cast<int32_t>(i)}]), 1)
                  << directive << step;
        }
        EXPECT_EQ(trace.events.size(), all) << directive;
        for (const TraceEvent& event : trace.events) {
          if (event.update < 0 ||
              runs_beside(role, role.outer_updates[static_cast<size_t>(event.update)]))
            continue;
          EXPECT_GE(event.start_us, last[event.step]);
        }
      }
      const std::string text = print_trace(job->traces);
      EXPECT_NE(text.find("\"outer_update\":0"), std::string::npos);
    }
}

// The control: the norm of all sites, and none, clip otherwise than each site's own.
TEST(LocalStepsClip, ByTheNormOfEachSite) {
  NEED_MODEL("mlp");
  std::vector<Trained> trained;
  for (const char* clip : {"clip_norm: 0.05, ", "clip_norm: 0.1, ", ""}) {
    const std::string text = clip + std::string("optimizer: {sgd: {lr: 0.5}}");
    const Way way{.name = "clip", .text = "mesh: {site: 2}\ndirectives:\n", .train = text.c_str()};
    const auto compiled = compile_way(way, local_steps());
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    auto one = train(compiled->set, way.model, kSteps);
    ASSERT_TRUE(one) << print_error(one.error());
    trained.push_back(*std::move(one));
  }
  EXPECT_GT(largest_difference(trained[1], trained[0]), 1e-3);
  EXPECT_GT(largest_difference(trained[2], trained[0]), 1e-3);
}

// ---- Samples of sites ---------------------------------------------------------------------------

// Writes the tensors of a file again, each changed by `change`.
template <class Change>
std::string changed(const Folder& folder, const std::string& path, Change change) {
  auto tensors = read_safetensors(path);
  EXPECT_TRUE(tensors) << print_error(tensors.error());
  for (NamedTensor& tensor : *tensors) {
    std::string bytes(as_text(tensor.data.span()));
    change(tensor.name, bytes);
    tensor.data = Bytes::copy_of(bytes.data(), bytes.size());
  }
  const std::string to = folder.path() + "/batches.safetensors";
  EXPECT_TRUE(write_safetensors(to, *tensors, {}));
  return to;
}
void repeat_first_half(const std::string&, std::string& bytes) {
  std::copy_n(bytes.begin(), bytes.size() / 2, bytes.begin() + std::ssize(bytes) / 2);
}
// Returns the largest difference of parameters between the first two sites.
double difference_of_sites(const Trained& trained) {
  Trained first, second;
  for (const auto& [name, tensor] : trained.parameters) {
    if (name.starts_with("site.0.")) first.parameters[name.substr(7)] = tensor;
    if (name.starts_with("site.1.")) second.parameters[name.substr(7)] = tensor;
  }
  EXPECT_FALSE(first.parameters.empty());
  return largest_difference(first, second);
}

// Sites with the same samples drop other elements of them, as the plan for one device does. The
// control: a model that draws nothing trains alike on both.
TEST(LocalStepsDraws, EachSiteItsOwn) {
  NEED_MODEL("mlp");
  const Folder folder;
  CompileOptions options;
  options.model = PIPER_SOURCE_DIR "/tests/data/dropout/dynamo.onnx";
  options.library = {PIPER_SOURCE_DIR "/strategies"};
  for (const char* text :
       {"mesh: {site: 2}\ndirectives:\n",
        "include: <ddp>\nparams: {dp: 2}\nmesh: {site: 2}\n"
        "directives:\n",
        "include: <1f1b>\nparams: {stages: 2, microbatches: 2}\nmesh: {site: 2}\ndirectives:\n"}) {
    options.strategy =
        folder.write("strategy.yaml",
                     "piper: 1\n" + std::string(text) + local_steps() +
                         "train: {global_batch: 8, optimizer: {sgd: {lr: 0.5}}, clip_norm: 1}\n");
    const auto compiled = compile(options);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const std::string data = changed(
        folder, PIPER_SOURCE_DIR "/tests/data/evaluation/training.safetensors", repeat_first_half);
    for (const int64_t steps : {int64_t{2}, kSteps}) {
      const auto ours = train_on(compiled->set, data, steps),
                 single = train_on(*compiled->single, data, steps);
      ASSERT_TRUE(ours) << print_error(ours.error());
      ASSERT_TRUE(single) << print_error(single.error());
      expect_equal_bits(*ours, *single, text);
      if (steps < kEvery) {
        EXPECT_GT(difference_of_sites(*ours), 1e-3) << text;
      }
    }
  }
  const auto alike = compile_way(kWays[0], local_steps());
  ASSERT_TRUE(alike) << print_error(alike.error());
  const auto plain =
      train_on(alike->set,
               changed(folder, model_path("mlp", "reference.safetensors"), repeat_first_half), 2);
  ASSERT_TRUE(plain) << print_error(plain.error());
  EXPECT_EQ(difference_of_sites(*plain), 0);
}

// One number that is none, in a sample of the second site: nobody takes the step.
TEST(LocalStepsSkip, AllSitesSkipWhatOneCannotTake) {
  NEED_MODEL("mlp");
  const Folder folder;
  const Way& way = *std::ranges::find(kWays, std::string_view("clip"), &Way::name);
  const auto compiled = compile_way(way, local_steps());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const std::string path = changed(
      folder, model_path("mlp", "reference.safetensors"), [](const auto& name, auto& bytes) {
        const float none = NAN;
        if (name.starts_with("batch/1/"))
          std::memcpy(bytes.data() + bytes.size() - sizeof none, &none, sizeof none);
      });
  const auto run = [&](const PlanSet& set, int64_t steps) {
    const auto data = open_file(set, path);
    EXPECT_TRUE(data) << print_error(data.error());
    JobOptions options;
    options.steps = steps;
    options.threads = 1;
    options.on_nan = OnNan::kSkip;
    return run_job(set, data->get(), nullptr, nullptr, options);
  };
  std::vector<Trained> trained;
  for (const auto& [set, steps] : {std::pair(&compiled->set, int64_t{1}),
                                   {&compiled->set, 2},
                                   {&compiled->set, 3},
                                   {&*compiled->single, 3}}) {
    auto job = run(*set, steps);
    ASSERT_TRUE(job) << print_error(job.error());
    for (const StepMetrics& step : job->steps)
      EXPECT_EQ(step.skipped.value_or(0), step.step == 1 ? 1 : 0) << step.step;
    trained.push_back(trained_by(*std::move(job)));
  }
  EXPECT_EQ(largest_difference(trained[1], trained[0]), 0);
  EXPECT_GT(largest_difference(trained[2], trained[1]), 1e-4);
  EXPECT_EQ(largest_difference(trained[3], trained[2]), 0);
}

// ---- Evaluation ---------------------------------------------------------------------------------

std::vector<double> evaluated_losses(const PlanSet& set, const std::string& model, int64_t steps) {
  const auto data = open_batches(set, model);
  EXPECT_TRUE(data) << print_error(data.error());
  JobOptions options;
  options.steps = steps;
  options.threads = 1;
  options.evaluation = {{"valid", data->get(), 1}};
  options.evaluate_every = 1;
  const auto job = run_job(set, data->get(), nullptr, nullptr, options);
  EXPECT_TRUE(job) << print_error(job.error());
  std::vector<double> losses;
  if (job)
    for (const EvaluationMetrics& one : job->evaluations) losses.push_back(one.loss);
  return losses;
}

// Sites share a batch of the set, whose later samples have fewer labels: its loss is that of all
// labels, by the outer parameters, which change with outer updates only.
TEST(LocalStepsEvaluation, IsOfTheOuterParameters) {
  for (const char* model : {"mlp", "gpt-deep"}) {
    const std::string path = model_path(model, "reference.json");
    if (!read_text_file(path, 1 << 24)) GTEST_SKIP() << path;
    for (const Way& way :
         {Way{.name = "sites", .text = "mesh: {site: 2}\ndirectives:\n", .model = model},
          Way{.name = "replicas",
          .text = "include: <zero2>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n",
          .model = model},
          Way{.name = "parts",
          .text = "include: <zero3>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n",
          .model = model},
          Way{.name = "stages",
          .text = "include: <1f1b>\nparams: {stages: 2, microbatches: 2}\nmesh: {site: 2}\n"
                  "directives:\n",
          .model = model,
          .train = kClip}}) {
      const auto compiled = compile_way(way, local_steps(), true);
      ASSERT_TRUE(compiled) << print_error(compiled.error());
      const auto alone = compile_way({.name = "alone", .text = "", .model = model}, "", true);
      ASSERT_TRUE(alone) << print_error(alone.error());
      const auto first = evaluated_losses(compiled->set, model, 0),
                 plain = evaluated_losses(alone->set, model, 0),
                 own = evaluated_losses(compiled->set, model, kSteps),
                 single = evaluated_losses(*compiled->single, model, kSteps);
      ASSERT_EQ(first.size(), 1u);
      ASSERT_EQ(plain.size(), 1u);
      EXPECT_NEAR(first[0], plain[0], 1e-6) << model << " " << way.name;
      ASSERT_EQ(own.size(), static_cast<size_t>(kSteps));
      EXPECT_EQ(own, single) << model << " " << way.name;
      for (int64_t k = 0; k < kSteps; ++k)
        EXPECT_EQ(own[static_cast<size_t>(k)] == first[0], k + 1 < kEvery) << k;
    }
  }
}

// A sweep over the number of sites begins with one.
TEST(LocalStepsEvaluation, OfOneSiteIsMade) {
  NEED_MODEL("mlp");
  const auto compiled = compile_way(
      {.name = "one", .text = "include: <zero1>\nparams: {dp: 2}\nmesh: {site: 1}\ndirectives:\n"},
      local_steps(), true);
  EXPECT_TRUE(compiled) << print_error(compiled.error());
}

// ---- Running statistics -------------------------------------------------------------------------

// Each site keeps statistics of its own samples, and an outer update joins them by their mean.
constexpr int64_t kNormBatch = 8, kNormSteps = 5;  // of the files

std::string norms_file(const std::string& model, const char* ending) {
  return PIPER_SOURCE_DIR "/tests/data/batch_norm/" + model + ending;
}

// Writes the batches of a file for several sites: site k has those of k steps later.
std::string norms_of_sites(const Folder& folder, const std::string& model, int64_t sites) {
  std::map<std::string, NamedTensor> file;
  auto read = read_safetensors(norms_file(model, ".safetensors"));
  EXPECT_TRUE(read) << print_error(read.error());
  for (NamedTensor& tensor : *read) file[tensor.name] = std::move(tensor);
  std::vector<NamedTensor> joined;
  for (const auto& [name, tensor] : file) {
    if (!name.starts_with("batch/")) continue;
    const int64_t step = name[6] - '0';
    std::vector<std::byte> bytes;
    for (int64_t site = 0; site < sites; ++site) {
      const NamedTensor& own =
          file.at(fmt::format("batch/{}{}", (step + site) % kNormSteps, name.substr(7)));
      bytes.insert(bytes.end(), own.data.data, own.data.data + own.data.size);
    }
    NamedTensor& all = joined.emplace_back(tensor);
    all.type.shape[0] *= sites;
    all.data = Bytes::copy_of(bytes.data(), bytes.size());
  }
  const std::string path = folder.path() + "/batches.safetensors";
  EXPECT_TRUE(write_safetensors(path, joined));
  return path;
}

Result<Compiled> compile_norms(const std::string& model, const std::string& text, int64_t sites) {
  const Folder folder;
  CompileOptions options;
  options.library = {PIPER_SOURCE_DIR "/strategies"};
  options.model = norms_file(model, ".onnx");
  options.strategy = folder.write(
      "strategy.yaml",
      fmt::format("piper: 1\ntrain: {{global_batch: {}, optimizer: {{sgd: {{lr: 0.05, momentum: "
                  "0.9}}}}}}\n{}",
                  kNormBatch * sites, text));
  return compile(options);
}

struct NormWay {
  const char* name;
  const char* model;
  const char* text;
  int64_t sites = 2;
  bool same_sums = true;  // replicas add up statistics of the batch
};
const NormWay kNormWays[] = {
    {"sites", "residual", "mesh: {site: 2}\ndirectives:\n"},
    {"stages", "residual", "include: <1f1b>\nparams: {stages: 2}\nmesh: {site: 2}\ndirectives:\n"},
    {"replicas", "residual", "include: <zero3>\nparams: {dp: 2}\nmesh: {site: 2}\ndirectives:\n", 2,
     false},
    {"twice", "twice", "mesh: {site: 2}\ndirectives:\n"},
    {"spectral", "spectral", "mesh: {site: 2}\ndirectives:\n"},
    {"router", "router", "mesh: {site: 4}\ndirectives:\n", 4},
};
class LocalStepsNormWays : public ::testing::TestWithParam<NormWay> {};
INSTANTIATE_TEST_SUITE_P(Models, LocalStepsNormWays, ::testing::ValuesIn(kNormWays),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(LocalStepsNormWays, EqualOneDeviceBitForBit) {
  const auto& [name, model, text, sites, same_sums] = GetParam();
  const Folder folder;
  const std::string data = norms_of_sites(folder, model, sites);
  std::vector<Trained> all;
  for (const std::string& directive :
       {local_steps(), delayed_fragments(), local_steps(kEvery - 1)}) {
    const auto compiled = compile_norms(model, text + directive, sites);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    auto ours = train_on(compiled->set, data, kNormSteps);
    const auto single = train_on(*compiled->single, data, kNormSteps);
    ASSERT_TRUE(ours) << print_error(ours.error());
    ASSERT_TRUE(single) << print_error(single.error());
    if (same_sums) expect_equal_bits(*ours, *single, name);
    EXPECT_LE(largest_difference(*ours, *single), same_sums ? 0 : 2e-5) << name;
    all.push_back(*std::move(ours));
  }
  EXPECT_GT(largest_difference(all[2], all[0]), 1e-4) << "joined at other steps";
}

// By hand: models that train alone on the samples of one site each, and then the mean.
TEST(LocalStepsStatistics, AreTheMeanOfThoseOfTheSites) {
  const auto joined = compile_norms("residual", kNormWays[0].text + local_steps(), 2),
             alone = compile_norms("residual", "", 1);
  ASSERT_TRUE(joined) << print_error(joined.error());
  ASSERT_TRUE(alone) << print_error(alone.error());
  const Folder folder, later;
  const auto ours = train_on(joined->set, norms_of_sites(folder, "residual", 2), kEvery);
  ASSERT_TRUE(ours) << print_error(ours.error());
  std::vector<Trained> of_sites;
  const auto own = read_safetensors(norms_file("residual", ".safetensors"));
  ASSERT_TRUE(own) << print_error(own.error());
  for (const int64_t site : {0, 1}) {
    std::vector<NamedTensor> batches;
    for (const NamedTensor& tensor : *own)
      if (tensor.name.starts_with("batch/")) {
        const int64_t step = (tensor.name[6] - '0' + kNormSteps - site) % kNormSteps;
        batches.push_back(tensor);
        batches.back().name = fmt::format("batch/{}{}", step, tensor.name.substr(7));
      }
    const std::string path = fmt::format("{}/{}.safetensors", later.path(), site);
    ASSERT_TRUE(write_safetensors(path, batches));
    auto trained = train_on(alone->set, path, kEvery);
    ASSERT_TRUE(trained) << print_error(trained.error());
    of_sites.push_back(*std::move(trained));
  }
  size_t compared = 0;
  for (const auto& [name, tensor] : ours->parameters) {
    if (site_of(name) || name.find("running_") == std::string::npos) continue;
    const auto values = [](const NamedTensor& one) {
      const auto* first = reinterpret_cast<const float*>(one.data.data);
      return std::vector<float>(first, first + num_elements(one.type.shape));
    };
    const auto got = values(tensor), a = values(of_sites[0].parameters.at(name)),
               b = values(of_sites[1].parameters.at(name));
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], (a[i] + b[i]) / 2, 1e-6) << name;
    EXPECT_GT(tensor_error(of_sites[0].parameters.at(name), tensor), 1e-4) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 6u);
}

// ---- Proof --------------------------------------------------------------------------------------

std::string first_finding(const PlanSet& set, const PlanSet& single) {
  const auto report = verify_plan_set(set, &single);
  if (!report) return print_error(report.error());
  return report->findings.empty() ? "" : report->findings.front().text;
}

// Leaves an instruction out; says which.
std::string without(std::vector<Instruction>& section, size_t i) {
  std::string what = fmt::format("without '{}'", section[i].label);
  section.erase(section.begin() + static_cast<std::ptrdiff_t>(i));
  for (Instruction& one : section) {
    std::erase(one.waits, static_cast<int32_t>(i));
    for (int32_t& wait : one.waits) wait -= wait > static_cast<int32_t>(i) ? 1 : 0;
  }
  return what;
}

class LocalStepsProof : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(WholeAndInParts, LocalStepsProof, ::testing::Values("sites", "zero3"));

TEST_P(LocalStepsProof, FindsOuterUpdatesThatAreWrong) {
  NEED_MODEL("mlp");
  const auto compiled =
      compile_way(*std::ranges::find(kWays, GetParam(), &Way::name), local_steps());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& single = *compiled->single;
  EXPECT_EQ(first_finding(compiled->set, single), "");
  ASSERT_EQ(compiled->set.roles.size(), 2u);

  PlanSet other = compiled->set;
  for (RoleProgram& role : other.roles) role.outer_updates[0].every = kEvery + 1;
  EXPECT_NE(first_finding(other, single), "") << "at other steps";

  other = compiled->set;
  other.roles[1].outer_updates[0].every = kEvery + 1;
  EXPECT_NE(first_finding(other, single), "") << "one rank at other steps";

  other = compiled->set;
  for (RoleProgram& role : other.roles) role.outer_updates.clear();
  EXPECT_NE(first_finding(other, single), "") << "none at all";

  for (size_t r = 0; r < 2; ++r)
    for (size_t i = 0; i < compiled->set.roles[r].outer_updates[0].instructions.size(); ++i) {
      other = compiled->set;
      const std::string what = without(other.roles[r].outer_updates[0].instructions, i);
      EXPECT_NE(first_finding(other, single), "") << fmt::format("{} of role {}", what, r);
    }
}

// What an outer update does of both copies of a stage, of older versions, and of values on the
// host.
class LocalStepsProofOfPlaces : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Ways, LocalStepsProofOfPlaces,
                         ::testing::Values("dualpipe", "pipedream", "parameters_on_the_host"));
TEST_P(LocalStepsProofOfPlaces, FindsWhatIsLeftOut) {
  NEED_MODEL("mlp");
  const auto compiled =
      compile_way(*std::ranges::find(kWays, GetParam(), &Way::name), local_steps());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  EXPECT_EQ(first_finding(compiled->set, *compiled->single), "");
  for (size_t r = 0; r < 2; ++r)
    for (size_t i = 0; i < compiled->set.roles[r].outer_updates[0].instructions.size(); ++i) {
      PlanSet other = compiled->set;
      const std::string what = without(other.roles[r].outer_updates[0].instructions, i);
      EXPECT_NE(first_finding(other, *compiled->single), "")
          << fmt::format("{} of role {}", what, r);
    }
}

// The parts of a vocabulary that an outer update takes from each other.
TEST(LocalStepsParts, AreProven) {
  NEED_MODEL(kSmallGpt);
  const auto compiled =
      compile_way(*std::ranges::find(kWays, std::string_view("vocabulary_pipeline"), &Way::name),
                  local_steps());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet other = compiled->set;
  size_t changed = 0;
  for (RoleProgram& role : other.roles) {
    const auto buffer_of = [&](std::string_view param) {
      for (size_t b = 0; b < role.buffers.size(); ++b)
        if (role.tensor(static_cast<int32_t>(b)).param == param) return static_cast<int32_t>(b);
      return -1;
    };
    for (const char* part : {"part.0.model.wte.weight", "part.1.model.wte.weight"}) {
      const int32_t own = buffer_of(std::string("site.0.") + part),
                    others = buffer_of(std::string("site.1.") + part);
      if (own < 0 || others < 0) continue;
      for (Instruction& one : role.outer_updates[0].instructions)
        for (int32_t& arg : one.args)
          if (arg == own) arg = others, ++changed;
    }
    for (Tensor& tensor : role.tensors)
      if (tensor.param == "part.0.model.wte.weight")
        for (std::string* name : {&tensor.name, &tensor.param, &tensor.init})
          if (!name->empty()) (*name)[5] = '1', ++changed;
  }
  EXPECT_GT(changed, 0U);
  EXPECT_NE(first_finding(other, *compiled->single), "");
}

TEST(LocalStepsStatistics, AreProven) {
  const auto compiled = compile_norms("residual", kNormWays[0].text + local_steps(), 2);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& single = *compiled->single;
  EXPECT_EQ(first_finding(compiled->set, single), "");
  for (size_t r = 0; r < compiled->set.roles.size(); ++r) {
    const RoleProgram& role = compiled->set.roles[r];
    const auto is_of_mean = [&](int32_t arg) {
      return role.tensor(arg).param.ends_with("running_mean");
    };
    for (size_t i = 0; i < role.outer_updates[0].instructions.size(); ++i) {
      if (std::ranges::none_of(role.outer_updates[0].instructions[i].args, is_of_mean)) continue;
      PlanSet other = compiled->set;
      const std::string what = without(other.roles[r].outer_updates[0].instructions, i);
      EXPECT_NE(first_finding(other, single), "") << fmt::format("{} of role {}", what, r);
    }
  }
  // A site that goes on with its own statistics.
  PlanSet other = compiled->set;
  for (RoleProgram& role : other.roles)
    for (Instruction& one : role.outer_updates[0].instructions)
      for (int32_t& arg : one.args)
        if (role.tensor(arg).param == "site.1.bn1.running_mean")
          for (size_t b = 0; b < role.buffers.size(); ++b)
            if (role.tensor(static_cast<int32_t>(b)).param == "site.1.bn1.running_var")
              arg = static_cast<int32_t>(b);
  EXPECT_NE(first_finding(other, single), "");
}

// Fragments: at other steps, one in place of the other, one that does nothing.
TEST(LocalStepsFragments, AreProven) {
  NEED_MODEL("mlp");
  const auto compiled = compile_way(kWays[0], fragments());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& single = *compiled->single;
  EXPECT_EQ(first_finding(compiled->set, single), "");
  const auto finding_of = [&](auto&& change) {
    PlanSet other = compiled->set;
    for (RoleProgram& role : other.roles) change(role.outer_updates);
    return first_finding(other, single);
  };
  EXPECT_NE(finding_of([](auto& all) { all[1].offset = 0; }), "") << "at other steps";
  EXPECT_NE(finding_of([](auto& all) { all[0].instructions.swap(all[1].instructions); }), "");
  EXPECT_NE(finding_of([](auto& all) { std::swap(all[0], all[1]); }), "") << "in another order";
  EXPECT_NE(finding_of([](auto& all) { all[1].instructions.clear(); }), "");
  EXPECT_NE(finding_of([](auto& all) { all.pop_back(); }), "") << "one fragment alone";
  EXPECT_NE(finding_of([](auto& all) { all.push_back(all[1]); }), "") << "one fragment twice";
  EXPECT_NE(finding_of([](auto& all) { all[0].instructions = all[1].instructions; }), "");
}

// What surrounds a delayed update, and what it runs beside.
TEST_P(LocalStepsProof, FindsDelayedUpdatesThatAreWrong) {
  NEED_MODEL("mlp");
  const auto compiled = compile_way(*std::ranges::find(kWays, GetParam(), &Way::name), delayed());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& single = *compiled->single;
  EXPECT_EQ(first_finding(compiled->set, single), "");
  const std::vector<OuterUpdate>& updates = compiled->set.roles[0].outer_updates;
  ASSERT_EQ(updates.size(), 4u);
  for (const size_t u : {1, 2}) EXPECT_TRUE(runs_beside(compiled->set.roles[0], updates[u])) << u;
  const auto finding_of = [&](auto&& change) {
    PlanSet other = compiled->set;
    for (RoleProgram& role : other.roles) change(role);
    return first_finding(other, single);
  };
  for (size_t u = 0; u < updates.size(); ++u) {
    EXPECT_NE(finding_of([&](auto& role) { ++role.outer_updates[u].offset; }), "") << u;
    EXPECT_NE(finding_of([&](auto& role) { role.outer_updates[u].instructions.clear(); }), "") << u;
    for (size_t r = 0; r < 2; ++r)
      for (size_t i = 0; i < compiled->set.roles[r].outer_updates[u].instructions.size(); ++i) {
        PlanSet other = compiled->set;
        const std::string what = without(other.roles[r].outer_updates[u].instructions, i);
        EXPECT_NE(first_finding(other, single), "") << fmt::format("{} of role {}", what, r);
      }
  }
  // What it makes lies where the body's begins: they run at the same time.
  const std::string race = finding_of([](RoleProgram& role) {
    const auto first_of = [&](const std::vector<Instruction>& section) {
      int64_t first = INT64_MAX;
      for (const Instruction& one : section)
        for (const int32_t arg : one.args)
          if (role.tensor(arg).kind == BufferKind::kStep)
            first = std::min(first, role.buffers[static_cast<size_t>(arg)].offset);
      return first;
    };
    const int64_t down = first_of(role.outer_updates[1].instructions) - first_of(role.body);
    std::set<int32_t> own;
    for (const Instruction& one : role.outer_updates[1].instructions)
      for (const int32_t arg : one.args)
        if (role.tensor(arg).kind == BufferKind::kStep) own.insert(arg);
    for (const int32_t buffer : own) role.buffers[static_cast<size_t>(buffer)].offset -= down;
    role.arena_bytes = 0;
    for (const Buffer& buffer : role.buffers)
      role.arena_bytes =
          std::max(role.arena_bytes, align_up(buffer.offset + role.tensor(buffer).type.bytes()));
  });
  EXPECT_NE(race.find("a step beside an outer update"), std::string::npos) << race;
}

// Lets each op that `wanted` names read what `choose` says in place of each of its inputs.
template <class Choose>
PlanSet with_inputs(PlanSet set, std::string_view op, size_t input, Choose choose) {
  for (RoleProgram& role : set.roles)
    for (Program& program : role.programs)
      for (ProgramOp& one : program.ops)
        if (one.op == op && one.inputs.size() > input) {
          const int32_t other = choose(program, one);
          if (other >= 0) one.inputs[input] = other;
        }
  return set;
}

// Returns what the ops of this name make in a program.
std::vector<int32_t> made_by(const Program& program, std::string_view op) {
  std::vector<int32_t> made;
  for (const ProgramOp& one : program.ops)
    if (one.op == op) made.push_back(one.outputs[0]);
  return made;
}

// Without the plan for one device to compare with.
bool finds(const PlanSet& set, const char* text) {
  const auto report = verify_plan_set(set, nullptr);
  EXPECT_TRUE(report) << print_error(report.error());
  return report && std::ranges::any_of(report->findings, [&](const Finding& one) {
           return one.text.find(text) != std::string::npos;
         });
}

TEST(LocalStepsNames, AreAnyNamesWithoutSites) {
  NEED_MODEL(kSmallGpt);
  const Result<Compiled> compiled =
      compile_text(kSmallGpt,
                   "piper: 1\nmesh: {dp: 2}\n"
                   "parameters: [{rename: {from: 'model/h/{i}/**', to: 'site/{i}/**'}}]\n"
                   "directives: [{replicate: {over: dp}}]\n",
                   "clip_norm: 1.0, optimizer: {sgd: {lr: 0.1}}", {});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  // One that is frozen has nothing to do with a trained one of the rest of its name.
  const Result<Compiled> frozen =
      compile_text(kSmallGpt,
                   "piper: 1\nmesh: {dp: 2}\n"
                   "parameters:\n  - rename: {from: 'model/h/0/**', to: 'site/0/h/**'}\n"
                   "  - rename: {from: 'model/h/1/**', to: 'h/**'}\n"
                   "  - freeze: 'model/h/0/**'\n"
                   "directives: [{replicate: {over: dp}}]\n",
                   "optimizer: {sgd: {lr: 0.1}}", {});
  ASSERT_TRUE(frozen) << print_error(frozen.error());
}

TEST(LocalStepsNames, CopiesThatAreReplicasAreRefused) {
  NEED_MODEL("mlp");
  const auto compiled = compile_text(
      "mlp",
      "piper: 1\ninclude: <schedules/dualpipe>\nparams: {stages: 2, microbatches: 4}\n"
      "mesh: {site: 2}\ndirectives:\n  - replicate: {over: dir, shard: [optimizer]}\n" +
          local_steps(),
      "optimizer: {sgd: {lr: 0.1}}", {});
  ASSERT_FALSE(compiled);
  EXPECT_THAT(print_error(compiled.error()),
              ::testing::AllOf(::testing::HasSubstr("strategy.yaml:6:"),
                               ::testing::HasSubstr("not supported: replicas that the tag 'dir' "
                                                    "tells apart beside local_steps"),
                               ::testing::HasSubstr("help: without the entry")));
}

TEST(LocalStepsNames, ThoseOfSitesAndOuterStatesAreRefused) {
  NEED_MODEL("mlp");
  for (const auto& [to, name] : {std::pair("step", "step"),
                                 {"outer/step", "outer.step"},
                                 {"outer/step/1", "outer.step.1"},
                                 {"site/0/weight", "site.0.weight"}}) {
    const Result<Compiled> compiled =
        compile_text("mlp",
                     fmt::format("piper: 1\nmesh: {{site: 2}}\n"
                                 "parameters: [{{rename: {{from: 'model/0/weight', to: '{}'}}}}]\n",
                                 to) +
                         "directives:\n" + local_steps(),
                     "optimizer: {sgd: {lr: 0.1}}", {});
    ASSERT_FALSE(compiled) << name;
    EXPECT_NE(compiled.error().message.find(
                  fmt::format("not supported: a parameter '{}' beside local_steps", name)),
              std::string::npos)
        << print_error(compiled.error());
    EXPECT_GT(compiled.error().at.line, 0);
  }
}

TEST(LocalStepsNorms, OfOtherSitesAreFound) {
  NEED_MODEL("mlp");
  const Way& way = *std::ranges::find(kWays, std::string_view("clip"), &Way::name);
  const auto compiled = compile_way(way, local_steps());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& set = compiled->set;
  const PlanSet& single = *compiled->single;
  EXPECT_EQ(first_finding(set, single), "");

  // On one device: the norms are of all sites, of the first, of the second.
  const auto made = [](const char* op, size_t which) {
    return [op, which](const Program& program, const ProgramOp&) {
      const std::vector<int32_t> all = made_by(program, op);
      return which < all.size() ? all[which] : -1;
    };
  };
  const auto norm = [&](size_t which) { return made("GlobalNorm", which); };
  for (const size_t which : {0, 1})
    EXPECT_TRUE(finds(with_inputs(single, "ClipFactor", 0, norm(which)), "by the norm of another"))
        << "all sites clipped by norm " << which;
  PlanSet one_says = with_inputs(single, "NotFinite", 0, norm(1));
  for (Program& program : one_says.roles[0].programs) {  // once that norm is made
    const auto says = std::ranges::find(program.ops, "NotFinite", &ProgramOp::op);
    if (says == program.ops.end()) continue;
    std::rotate(says, says + 1, std::ranges::find(program.ops, "Sgd", &ProgramOp::op));
  }
  EXPECT_TRUE(finds(one_says, "lets all sites skip a step by the norm of one"));

  // On two ranks each takes its own squares out of those of all.
  for (size_t r = 0; r < 2; ++r) {
    PlanSet other = set;
    int changed = 0;
    for (Program& program : other.roles[r].programs) {
      int64_t all = 0;
      const auto bound = [](const ProgramOp& op, const char* which) {
        return op.attrs.integers(which)[0];
      };
      const std::vector<int32_t> norms = made_by(program, "GlobalNorm");
      for (const bool finds : {true, false})
        for (ProgramOp& op : program.ops) {
          if (op.op != "Slice" || op.attrs.integers("starts").size() != 1 || norms.empty())
            continue;
          const int64_t count = bound(op, "ends") - bound(op, "starts");
          if (finds) all = std::max(all, count);
          if (finds || count == all || count * 2 != all) continue;
          const int64_t first = bound(op, "starts") == 0 ? count : 0;
          op.attrs.set("starts", std::vector<int64_t>{first});
          op.attrs.set("ends", std::vector<int64_t>{first + count});
          ++changed;
        }
    }
    EXPECT_EQ(changed, 1) << "role " << r;
    EXPECT_TRUE(finds(other, "by the norm of another")) << "role " << r;
  }
}

// ---- Checkpoints --------------------------------------------------------------------------------

class LocalStepsJobs : public SampleJobs {
 protected:
  // Expects that a job that ends after `part` steps goes on with stages as one that ran on. Plans
  // and checkpoints have `prefix` before their names: here, there; all, part, rest.
  static void expect_to_go_on(const std::string& prefix, const std::string& directives,
                              const std::string& train, int part) {
    compile(prefix + "here",
            "mesh: {site: 2}\ndirectives:\n  - split: {dim: batch, into: 6, as: mb}\n" + directives,
            train);
    compile(
        prefix + "there",
        "include: <1f1b>\nparams: {stages: 2, microbatches: 6}\nmesh: {site: 2}\ndirectives:\n" +
            directives,
        train);
    const auto saved = [&](const char* name) { return path(prefix + name); };
    const auto whole = run(prefix + "there", "--steps 8 --checkpoint " + saved("all")),
               first = run(prefix + "here",
                           fmt::format("--steps {} --checkpoint {}", part, saved("part"))),
               rest = run(prefix + "there",
                          "--steps 8 --resume " + saved("part") + " --checkpoint " + saved("rest"));
    for (const auto& one : {whole, first, rest}) ASSERT_EQ(one.first, 0) << one.second;
    EXPECT_TRUE(tensors_of(prefix + "rest") == tensors_of(prefix + "all"));
  }
};
constexpr const char* kDecaying =
    "train: {{global_batch: 12, optimizer: {{adamw: {{lr: 2e-3}}}}, ema: {{decay: {}}}}}\n";

// A job that ends between two outer updates goes on with other stages, and one that is killed from
// its last checkpoint: both end with all states of one that ran on.
TEST_F(LocalStepsJobs, GoOnElsewhereBetweenOuterUpdates) {
  expect_to_go_on("", local_steps(),
                  "train: {global_batch: 12, clip_norm: 0.5, optimizer: {adamw: {lr: 2e-3}}}\n", 5);
  const auto wanted = tensors_of("all");
  const auto killed = run("there", "--steps 8 --every 2 --checkpoint " + path("killed"),
                          "kill@1:7:step"),
             resumed = run("there", "--steps 8 --resume " + path("killed") + " --checkpoint " +
                                        path("killed"));
  EXPECT_NE(killed.first, 0) << killed.second;
  ASSERT_EQ(resumed.first, 0) << resumed.second;
  EXPECT_TRUE(tensors_of("killed") == wanted);
  // The control: without the outer states.
  const auto fresh =
      run("there", "--steps 3 --init " + path("part") + " --checkpoint " + path("fresh"));
  ASSERT_EQ(fresh.first, 0) << fresh.second;
  EXPECT_FALSE(tensors_of("fresh") == wanted);
}

// The same with fragments: each counts its own updates.
TEST_F(LocalStepsJobs, InFragmentsGoOnElsewhere) {
  expect_to_go_on("fragments_", fragments(),
                  "train: {global_batch: 12, optimizer: {adamw: {lr: 2e-3}}}\n", 4);
  const auto simulated = run_shell(
      fmt::format("{}/bin/piper-sim {} --cluster {}/strategies/clusters/two-cores.yaml 2>&1",
                  PIPER_BINARY_DIR, path("fragments_here"), PIPER_SOURCE_DIR));
  EXPECT_NE(simulated.second.find("an update each 2 steps from step 1 on"), std::string::npos)
      << simulated.second;
}

// A job that ends where an update is due, or where sites do not have it yet: what they kept and
// what it has become are states. piper-sim says how much longer the step beside it takes.
TEST_F(LocalStepsJobs, DelayedGoOnElsewhere) {
  for (const int part : {3, 4}) {
    SCOPED_TRACE(part);
    expect_to_go_on(fmt::format("delayed_{}_", part), delayed(),
                    "train: {global_batch: 12, optimizer: {adamw: {lr: 2e-3}}}\n", part);
  }
  const auto simulated = run_shell(
      fmt::format("{}/bin/piper-sim {} --cluster {}/strategies/clusters/two-cores.yaml 2>&1",
                  PIPER_BINARY_DIR, path("delayed_3_here"), PIPER_SOURCE_DIR));
  EXPECT_NE(simulated.second.find("an update each 3 steps from step 4 on, beside a step, which "
                                  "takes "),
            std::string::npos)
      << simulated.second;
}

// Averages move with outer updates, and are of the outer parameters, in parts or whole.
TEST_F(LocalStepsJobs, AveragesAreOfTheOuterParameters) {
  const std::string train = fmt::format(kDecaying, 0.75);
  compile("whole", "mesh: {site: 2}\ndirectives:\n" + local_steps(), train);
  compile("parts",
          "mesh: {site: 2, dp: 2}\ndirectives:\n" + local_steps() +
              "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n",
          train);
  const auto after = [&](const std::string& plans, int64_t steps) {
    const std::string folder = fmt::format("{}-{}", plans, steps);
    const auto [code, output] =
        run(plans, fmt::format("--steps {} --checkpoint {}", steps, path(folder)));
    EXPECT_EQ(code, 0) << output;
    return tensors_of(folder);
  };
  const auto before = after("whole", kEvery - 1), moved = after("whole", kEvery),
             parts = after("parts", kEvery);
  size_t averages = 0;
  for (const auto& [name, bytes] : moved) {
    if (!name.ends_with(".ema")) continue;
    ++averages;
    EXPECT_FALSE(site_of(name)) << name;
    const std::string param = name.substr(0, name.size() - 4);
    const std::string &then = before.at(name), &now = moved.at(param);
    EXPECT_EQ(then, before.at(param)) << name;
    ASSERT_EQ(bytes.size(), now.size());
    for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
      float average = 0, first = 0, next = 0;
      std::memcpy(&average, bytes.data() + i, sizeof average);
      std::memcpy(&first, then.data() + i, sizeof first);
      std::memcpy(&next, now.data() + i, sizeof next);
      ASSERT_NEAR(average, 0.75f * first + 0.25f * next, 1e-6) << name;
    }
    ASSERT_TRUE(parts.contains(name)) << name;
  }
  EXPECT_GT(averages, 0u);
  // The control: another decay.
  compile("other", "mesh: {site: 2}\ndirectives:\n" + local_steps(), fmt::format(kDecaying, 0.5));
  EXPECT_FALSE(after("other", kEvery) == moved);
}

// Averages of 16-bit parameters begin with the same values in 32 bits.
TEST(LocalStepsAverages, OfHalvesBeginWithTheirValues) {
  NEED_MODEL("gpt-bf16");
  const Way& way = *std::ranges::find(kWays, std::string_view("ema_of_16_bits"), &Way::name);
  const auto compiled = compile_way(way, local_steps());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  std::map<std::string, Bytes> begins;
  for (const auto& [name, bytes] : compiled->set.tensors) begins[name] = bytes.made();
  size_t averages = 0;
  for (const auto& [name, wide] : begins) {
    if (!name.ends_with(".ema")) continue;
    ++averages;
    const Bytes& halves = begins.at(name.substr(0, name.size() - 4));
    ASSERT_EQ(wide.size, 2 * halves.size) << name;
    std::string widened;  // a bf16 is the upper half of an f32
    for (size_t i = 0; i < halves.size; i += 2)
      widened += std::string(2, '\0') + std::string(as_text(halves.span()).substr(i, 2));
    EXPECT_TRUE(as_text(wide.span()) == widened) << name;
  }
  EXPECT_GT(averages, 0u);
}

// Parameters in parts over several axes, and their outer states: a job that ends between two outer
// updates goes on with the same bits, and where they are whole, as far as sums in another order let
// it. The control: an outer state that is lost leads further away.
TEST_F(LocalStepsJobs, InPartsOverSeveralAxesGoOn) {
  const std::string train = fmt::format(kDecaying, 0.75), mesh = "mesh: {site: 2}\ndirectives:\n";
  compile("cut",
          "include: [<memory/zero3>, <tensor/sequence>]\nparams: {dp: 2, tp: 2}\n" + mesh +
              local_steps(),
          train);
  compile("plain", mesh + local_steps(), train);
  const auto saved = [&](const char* name) { return " --checkpoint " + path(name); };
  const auto all = run("cut", "--steps 8" + saved("all_cut")),
             first = run("cut", "--steps 5" + saved("five")),
             same = run("cut", "--steps 8 --resume " + path("five") + saved("same")),
             whole = run("plain", "--steps 8 --resume " + path("five") + saved("whole")),
             lost = run("plain", "--steps 3 --init " + path("five") + saved("lost"));
  for (const auto& one : {all, first, same, whole, lost}) ASSERT_EQ(one.first, 0) << one.second;
  const auto wanted = tensors_of("all_cut");
  EXPECT_TRUE(tensors_of("same") == wanted);
  const auto distance = [&](const char* name) {
    double largest = 0;
    for (const auto& [tensor, bytes] : tensors_of(name)) {
      const std::string& other = wanted.at(tensor);
      EXPECT_EQ(bytes.size(), other.size()) << tensor;
      if (tensor.ends_with("step")) continue;  // an integer
      for (size_t i = 0; i + sizeof(float) <= bytes.size(); i += sizeof(float)) {
        float a = 0, b = 0;
        std::memcpy(&a, bytes.data() + i, sizeof a), std::memcpy(&b, other.data() + i, sizeof b);
        largest = std::max(largest, std::abs(static_cast<double>(a) - b));
      }
    }
    return largest;
  };
  EXPECT_LE(distance("whole"), 3e-4);
  EXPECT_GT(distance("lost"), 1e-3);
}

// Sites share the samples of each stage of a batch that grows, and count outer updates over all of
// them: as plans for its batches do that the job changes between. The control: other batches.
TEST_F(LocalStepsJobs, BatchesGrow) {
  const std::string way =
      "include: <1f1b>\nparams: {stages: 2, microbatches: 2}\nmesh: {site: 2}\ndirectives:\n" +
      local_steps();
  const auto batch = [](const char* more) {
    return fmt::format("train: {{optimizer: {{adamw: {{lr: 2e-3}}}}, {}}}\n", more);
  };
  compile("grows", way, batch("global_batch: 12, rampup: [{steps: 2, global_batch: 4}]"));
  compile("small", way, batch("global_batch: 4"));
  compile("large", way, batch("global_batch: 12"));
  const auto grown = run("grows", "--steps 7 --checkpoint " + path("grown")),
             switched = run("small", "--steps 7 --accept global_batch --switch " + path("large") +
                                         "@2 --checkpoint " + path("switched")),
             small = run("small", "--steps 7 --checkpoint " + path("stayed"));
  for (const auto& one : {grown, switched, small}) ASSERT_EQ(one.first, 0) << one.second;
  EXPECT_TRUE(tensors_of("grown") == tensors_of("switched"));
  EXPECT_FALSE(tensors_of("grown") == tensors_of("stayed"));
}

// Parameters of a file begin all sites, as they do where the compiler reads them. What is exported
// for others are the parameters that all sites have come to.
TEST_F(LocalStepsJobs, BeginWithAndExportTheModelsParameters) {
  const std::string train = "train: {global_batch: 12, optimizer: {adamw: {lr: 2e-3}}}\n",
                    mesh = "mesh: {site: 2}\ndirectives:\n";
  compile("plain", "", train);
  const auto plain = run("plain", "--steps 3 --save " + path("plain.safetensors"));
  ASSERT_EQ(plain.first, 0) << plain.second;
  const std::string init = "--init " + path("plain.safetensors");
  compile("random", mesh + local_steps(), train);
  compile("begun", mesh + local_steps(), train, init);
  const auto given = run("random", "--steps 4 " + init + " --checkpoint " + path("given")),
             compiled = run("begun", "--steps 4 --checkpoint " + path("compiled")),
             without = run("random", "--steps 4 --checkpoint " + path("without"));
  for (const auto& one : {given, compiled, without}) ASSERT_EQ(one.first, 0) << one.second;
  EXPECT_TRUE(tensors_of("given") == tensors_of("compiled"));
  EXPECT_FALSE(tensors_of("given") == tensors_of("without"));

  const auto exported =
      run_shell(fmt::format("{}/bin/piper-checkpoint export {} {} 2>&1", PIPER_BINARY_DIR,
                            path("given"), path("x.safetensors")));
  ASSERT_EQ(exported.first, 0) << exported.second;
  const auto wanted = read_safetensors(path("plain.safetensors")),
             found = read_safetensors(path("x.safetensors"));
  ASSERT_TRUE(wanted && found);
  const auto names_of = [](const std::vector<NamedTensor>& tensors) {
    std::set<std::string> names;
    for (const NamedTensor& tensor : tensors) names.insert(tensor.name);
    return names;
  };
  EXPECT_EQ(names_of(*found), names_of(*wanted));
}

// Tools say how often there is an outer update, and what it sends.
TEST_F(LocalStepsJobs, AreCountedByTools) {
  const std::string train = "train: {global_batch: 12, optimizer: {adamw: {lr: 2e-3}}}\n",
                    mesh = "mesh: {site: 2}\ndirectives:\n";
  compile("three", mesh + local_steps(), train);
  compile("four", mesh + local_steps(4), train);
  const auto tool = [](const std::string& words) {
    return run_shell(fmt::format("{}/bin/{} 2>&1", PIPER_BINARY_DIR, words));
  };
  const auto proved = tool("piper-verify " + path("three"));
  EXPECT_EQ(proved.first, 0) << proved.second;
  const auto simulated =
      tool(fmt::format("piper-sim {} --cluster {}/strategies/clusters/two-cores.yaml",
                       path("three"), PIPER_SOURCE_DIR));
  EXPECT_EQ(simulated.first, 0) << simulated.second;
  EXPECT_NE(simulated.second.find("an update each 3 steps"), std::string::npos) << simulated.second;
  const auto differ = tool(fmt::format("piper-diff {} {}", path("three"), path("four")));
  EXPECT_EQ(differ.first, 1) << differ.second;
  EXPECT_NE(differ.second.find("local_steps"), std::string::npos) << differ.second;
}

}  // namespace
}  // namespace piper::local_steps_test
