// Several versions of the weights: gradients are taken at the weights before the last update or
// updates, so that steps may overlap. Whole models against a single device under the same rule.
#include "equivalence/against_single.h"
#include "equivalence/commands.h"
#include "equivalence/layouts.h"
#include "piper/base/data.h"
#include "piper/plan/verify.h"

namespace piper::two_versions_test {
namespace {

using namespace jobs;

struct Sizes {
  int64_t pp, dp, mb;
};

// `text` as strategy_text() makes it, with two versions where the library's file has not.
std::string delayed(std::string text) { return text + "weight_versions: 2\n"; }

class Models : public OfModels {};

TEST_P(Models, EqualTheSingleDeviceUnderTheSameRule) {
  const std::string model = GetParam();
  const std::vector<Sizes> sizes =
      kSanitized ? std::vector<Sizes>{{2, 2, 2}}
                 : std::vector<Sizes>{{2, 1, 4}, {2, 2, 2}, {4, 1, 8}, {4, 2, 4}};
  for (const char* train : {kSgd, kAdamW})
    for (const Sizes& s : sizes)
      for (const char* order : {"pipedream-2bw", "1f1b"}) {
        const std::string what =
            fmt::format("{} {} pp={} dp={} mb={}", order, train, s.pp, s.dp, s.mb);
        std::string text = strategy_text(model, train);
        if (order == std::string("1f1b")) text = delayed(text);
        const auto compiled = compile_model(model, text, {s.pp, s.dp, s.mb, order}, true);
        ASSERT_TRUE(compiled) << what << "\n" << print_error(compiled.error());
        const Status same = run_against(compiled->set, *compiled->single, model, 5);
        EXPECT_TRUE(same) << what << "\n" << print_error(same.error());
        if (train == kAdamW) expect_same_when_queued(compiled->set, model, what);
      }
}

// Each pair follows another rule: they agree on the first step, and on no other.
TEST_P(Models, DifferFromTheSynchronousRule) {
  const std::string model = GetParam(), text = strategy_text(model, kSgd);
  const auto two = compile_model(model, text, {2, 1, 4, "pipedream-2bw"}, true);
  const auto one = compile_model(model, text, {2, 1, 4, "1f1b"}, true);
  ASSERT_TRUE(two && one);
  for (const auto& [set, reference] :
       {std::pair(&two->set, &*one->single), std::pair(&one->set, &*two->single)}) {
    EXPECT_TRUE(run_against(*set, *reference, model, 1));
    const Status other = run_against(*set, *reference, model, 3);
    ASSERT_FALSE(other);
    EXPECT_TRUE(other.error().message.starts_with("step 2: the loss differs"))
        << other.error().message;
  }
}

// A plan that reads the newest version where the previous one is due is refused, and differs.
TEST_P(Models, OneVersionReadElsewhereIsSeen) {
  const std::string model = GetParam();
  const auto compiled =
      compile_model(model, strategy_text(model, kSgd), {2, 1, 4, "pipedream-2bw"}, true);
  ASSERT_TRUE(compiled);
  PlanSet wrong = compiled->set;
  for (RoleProgram& role : wrong.roles)
    for (auto* list : {&role.prologue, &role.body, &role.epilogue})
      for (Instruction& one : *list)
        for (int32_t& arg : one.args)
          if (one.kind == InstructionKind::kCompute && role.tensor(arg).previous_of >= 0)
            arg = role.tensor(arg).previous_of;
  const auto report = verify_plan_set(wrong);
  ASSERT_TRUE(report);
  EXPECT_TRUE(std::any_of(report->findings.begin(), report->findings.end(),
                          [](const Finding& finding) { return finding.rule == "sum"; }));
  EXPECT_FALSE(run_against(wrong, *compiled->single, model, 3));
}

TEST_P(Models, TrainAsManyStepsAsAskedFor) {
  const std::string model = GetParam();
  const auto compiled =
      compile_model(model, strategy_text(model, kAdamW), {2, 1, 4, "pipedream-2bw"}, true);
  ASSERT_TRUE(compiled);
  for (const int64_t steps : {1, 2, 4}) {
    const auto got = train(compiled->set, model, steps);
    const auto want = train(*compiled->single, model, steps);
    ASSERT_TRUE(got && want);
    ASSERT_EQ(static_cast<int64_t>(got->losses.size()), steps);
    expect_equal_bits(*got, *want, fmt::format("{} steps", steps));
  }
}

// What is computed in 16 bits is so under every plan; a step that is skipped for its gradients
// changes neither version.
TEST_P(Models, EqualTheSingleDeviceInMixedPrecision) {
  const std::string model = GetParam();
  const std::string bf16 = "  - precision: {compute: bf16}\n",
                    overflows =
                        "  - precision: {compute: f16, loss_scale: {init_scale: 1e9, "
                        "backoff_factor: 0.01, growth_interval: 2}}\n";
  for (const std::string& precision : {bf16, overflows})
    for (const Sizes& s : {Sizes{2, 2, 2}, Sizes{4, 1, 8}}) {
      if (kSanitized && s.pp == 4) continue;
      const std::string text = strategy_text(model, kAdamW) + "directives:\n" + precision;
      const auto compiled = compile_model(model, text, {s.pp, s.dp, s.mb, "pipedream-2bw"}, true);
      ASSERT_TRUE(compiled) << precision << "\n" << print_error(compiled.error());
      EXPECT_EQ(compiled->set.roles[0].steps_ahead, 1);
      const Status same = run_against(compiled->set, *compiled->single, model, 6);
      EXPECT_TRUE(same) << precision << "\n" << print_error(same.error());
    }
}

// ---- Pairs of two steps -------------------------------------------------------------------------

// 1F1B without a pause whose forwards run beside backwards, of the same step or of the one before.
std::string paired_text() {
  std::string text = library_text("pipedream-2bw");
  const size_t program = text.find("program: |");
  return text.substr(0, program) +
         "program: |\n"
         "        for k in 0..M:\n"
         "          if k < M - (P-r-1) && r == P-1: F B\n"
         "          if k < M - (P-r-1) && r < P-1: F & B\n"
         "          if k >= M - (P-r-1): F[step=1] & B\n";
}

TEST_P(Models, EqualTheSingleDeviceWithPairs) {
  const std::string model = GetParam(), text = paired_text();
  for (const Sizes& s : {Sizes{2, 2, 2}, Sizes{4, 1, 8}}) {
    if (kSanitized && s.pp == 4) continue;
    CompileOptions options;
    options.defines = definitions_of(text, {s.pp, s.dp, s.mb});
    options.oracles = true;
    const auto compiled = compile_text(model, text, kAdamW, options);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const RoleProgram& role = compiled->set.roles[0];
    EXPECT_EQ(role.streams.back().name, "overlap");
    const auto second = static_cast<int32_t>(role.streams.size() - 1);
    EXPECT_GT(std::count_if(role.body.begin(), role.body.end(),
                            [&](const Instruction& one) { return one.stream == second; }),
              0);
    const Status same = run_against(compiled->set, *compiled->single, model, 5);
    EXPECT_TRUE(same) << print_error(same.error());
  }
}

// Devices that run further ahead, the last one too: what two steps need at once, the sums of the
// loss and of its labels, then activations and gradients, has two buffers.
TEST_P(Models, EqualTheSingleDeviceWhereTheLastStageRunsAhead) {
  const std::string model = GetParam(), library = library_text("pipedream-2bw");
  const size_t program = library.find("program: |");
  ASSERT_LT(program, library.size());
  struct Case {
    const char* program;
    Sizes sizes;
    std::string more;
  };
  const char *one = "        repeat M - (P-r): F B\n        repeat P-r: F[step=1] B\n",
             *all = "        repeat M: F[step=1] B\n";
  for (const auto& [order, s, more] : {Case{one, {2, 1, 4}, ""}, Case{one, {4, 2, 4}, ""},
                                       Case{one, {2, 2, 2}, "  - recompute: {}\n"},
                                       Case{all, {2, 1, 4}, ""}, Case{all, {1, 2, 2}, ""}}) {
    if (kSanitized && s.pp == 4) continue;
    SCOPED_TRACE(fmt::format("{} pp={} dp={} mb={}", order, s.pp, s.dp, s.mb));
    CompileOptions options;
    const std::string text = library.substr(0, program) + "program: |\n" + order + more;
    options.defines = definitions_of(text, {s.pp, s.dp, s.mb});
    options.oracles = true;
    const auto compiled = compile_text(model, text, kAdamW, options);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    for (const RoleProgram& role : compiled->set.roles)
      EXPECT_TRUE(std::any_of(role.body.begin(), role.body.end(),
                              [](const Instruction& one) { return one.ahead > 0; }));
    const Status same = run_against(compiled->set, *compiled->single, model, 5);
    EXPECT_TRUE(same) << print_error(same.error());
    expect_same_when_queued(compiled->set, model, text);
  }
}

// Messages on streams of their own, beside pairs, offloading and receives that come ahead.
// Devices that have shares of the samples count their labels before a step, and send each other the
// counts.
TEST_P(Models, EqualTheSingleDeviceWithShares) {
  CompileOptions options;
  options.oracles = true;
  const auto compiled = compile_text(
      GetParam(),
      "piper: 1\nweight_versions: 2\nmesh: {pp: 2, sh: 2}\n"
      "annotate: [{balance: {tag: stage, into: 2}}]\n"
      "directives:\n  - split: {dim: batch, into: 2}\n"
      "  - split: {dim: samples, into: 2, sizes: [3, 1], as: share}\n"
      "  - place: {where: {stage: s}, on: {pp: s}}\n"
      "  - place: {where: {share: k}, on: {sh: k}}\n"
      "  - order: {each: pp, program: \"repeat M - (P-r-1): F B; repeat P-r-1: F[step=1] B\"}\n",
      kAdamW, options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  EXPECT_GT(compiled->set.roles[0].steps_ahead, 0);
  const Status same = run_against(compiled->set, *compiled->single, GetParam(), 5);
  EXPECT_TRUE(same) << print_error(same.error());
  expect_same_when_queued(compiled->set, GetParam(), "shares");
}

TEST_P(Models, EqualTheSingleDeviceWithMessagesOnStreams) {
  const std::string model = GetParam(), library = library_text("pipedream-2bw");
  const std::string one = layouts::kLayouts[1].directives, two = layouts::kLayouts[2].directives,
                    passes = layouts::kLayouts[3].directives;
  const auto compiled_with = [&](const std::string& text, const Sizes& s) {
    CompileOptions options;
    options.defines = definitions_of(text, {s.pp, s.dp, s.mb});
    options.oracles = true;
    return compile_text(model, text, kAdamW, options);
  };
  for (const std::string& text :
       {library + one, paired_text() + one, library + two, library + passes,
        library + two + "  - offload: {what: optimizer}\n",
        library + two + "  - prefetch: {where: {kind: recv, pass: F}, distance: 1}\n",
        paired_text() + two})
    for (const Sizes& s : {Sizes{2, 2, 2}, Sizes{4, 1, 8}}) {
      if (kSanitized && s.pp == 4) continue;
      const auto compiled = compiled_with(text, s);
      ASSERT_TRUE(compiled) << text << print_error(compiled.error());
      EXPECT_GE(compiled->set.roles[0].streams.size(), text.find(one) < text.size() ? 2U : 3U);
      const Status same = run_against(compiled->set, *compiled->single, model, 4);
      EXPECT_TRUE(same) << text << print_error(same.error());
    }
  // Where both ways share a stream and receives come late, messages wait for each other.
  const auto late = compiled_with(
      library + one + "  - prefetch: {where: {kind: recv}, distance: lazy}\n", {2, 1, 4});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ExitCode::kInput);
  EXPECT_NE(late.error().message.find("messages that wait for their receives block each other"),
            std::string::npos)
      << late.error().message;
}

// ---- States cut over the replicas ---------------------------------------------------------------

// Compiles the library's order with k versions, these keys of its entry of replicas, and further
// directives.
Result<Compiled> compile_older(const std::string& model, const std::string& train, int64_t versions,
                               const std::string& cut, const std::string& directives,
                               const Sizes& s) {
  std::string text = library_text("pipedream-2bw");
  const std::string two = "weight_versions: 2", bucket = "bucket: 25MiB";
  text.replace(text.find(two), two.size(), fmt::format("weight_versions: {}", versions));
  text.replace(text.find(bucket), bucket.size(), "bucket: 1KiB" + cut);
  text += directives;
  CompileOptions options;
  options.defines = definitions_of(text, {s.pp, s.dp, s.mb});
  options.oracles = true;
  return compile_text(model, text, train, options);
}

Result<Compiled> compile_cut(const std::string& model, const std::string& train,
                             const std::string& shard, const Sizes& s) {
  return compile_older(model, train, 2, ", shard: " + shard, "", s);
}

TEST_P(Models, EqualTheSingleDeviceWithStatesCut) {
  const std::string model = GetParam();
  for (const char* train : {kSgd, kAdamW})
    for (const char* shard : {"[optimizer]", "[optimizer, gradients]"})
      for (const Sizes& s : {Sizes{2, 2, 2}, Sizes{1, 2, 4}, Sizes{4, 2, 4}}) {
        if (kSanitized && s.pp != 2) continue;
        const std::string what =
            fmt::format("{} {} pp={} dp={} mb={}", shard, train, s.pp, s.dp, s.mb);
        const auto compiled = compile_cut(model, train, shard, s);
        ASSERT_TRUE(compiled) << what << "\n" << print_error(compiled.error());
        const auto& tensors = compiled->set.roles[0].tensors;
        EXPECT_TRUE(std::any_of(tensors.begin(), tensors.end(),
                                [](const Tensor& tensor) { return tensor.part_of >= 0; }));
        const Status same = run_against(compiled->set, *compiled->single, model, 5);
        EXPECT_TRUE(same) << what << "\n" << print_error(same.error());
      }
}

// Gradients are summed over replicas as soon as they are finished, also where the next step has
// begun: while layers before are still in their backward.
TEST(TwoVersionsReductions, StandWhereTheirGradientsAreFinished) {
  NEED_MODEL("gpt-deep");
  const auto compiled = compile_cut("gpt-deep", kSgd, "[optimizer]", {2, 2, 4});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  for (const RoleProgram& role : compiled->set.roles) {
    size_t early = 0, last = 0;
    for (size_t i = 0; i < role.body.size(); ++i)
      if (role.body[i].pass == TaskPass::kB && role.body[i].ahead == 0) last = i;
    for (size_t i = 0; i < last; ++i) early += role.body[i].kind == InstructionKind::kReduceScatter;
    EXPECT_GE(early, 8U);
  }
}

// Parameters that are gathered before their previous version is kept: seen, and another training.
TEST_P(Models, APreviousVersionKeptTooLateIsSeen) {
  const std::string model = GetParam();
  const auto compiled = compile_cut(model, kSgd, "[optimizer]", {2, 2, 2});
  ASSERT_TRUE(compiled);
  PlanSet wrong = compiled->set;
  for (RoleProgram& role : wrong.roles)
    for (auto* list : {&role.body, &role.epilogue}) {
      const auto copies = std::stable_partition(
          list->begin(), list->end(),
          [](const Instruction& one) { return one.kind != InstructionKind::kCopy; });
      ASSERT_NE(copies, list->end());
      for (Instruction& one : *list) one.waits.clear();
    }
  const auto report = verify_plan_set(wrong);
  ASSERT_TRUE(report);
  EXPECT_TRUE(std::any_of(report->findings.begin(), report->findings.end(), [](const auto& found) {
    return found.rule == "sum" &&
           found.text.find("the newest version before its update") != std::string::npos;
  }));
}

// ---- Parameters cut over the replicas -----------------------------------------------------------

constexpr const char* kAll = "[optimizer, gradients, parameters]";

// Both versions live in parts; a microbatch gathers the one that it reads, forward and backward.
TEST_P(Models, EqualTheSingleDeviceWithParametersCut) {
  const std::string model = GetParam();
  struct Case {
    Sizes sizes;
    std::string gather;
  };
  for (const auto& [s, gather] :
       {Case{{2, 2, 4}, "gather: {prefetch: 0}"}, Case{{4, 2, 4}, "gather: {prefetch: 1}"},
        Case{{1, 2, 4}, "gather: {prefetch: 1}"}, Case{{2, 2, 4}, "gather: {when: per_microbatch}"},
        Case{{2, 2, 2}, "gather: {when: per_step, prefetch: 2}"},
        Case{{4, 2, 4}, "persist: 2KiB"}}) {
    if (kSanitized && s.pp != 2) continue;
    const std::string what = fmt::format("{} pp={} dp={} mb={}", gather, s.pp, s.dp, s.mb);
    const auto compiled = compile_cut(model, kAdamW, fmt::format("{}, {}", kAll, gather), s);
    ASSERT_TRUE(compiled) << what << "\n" << print_error(compiled.error());
    const Status same = run_against(compiled->set, *compiled->single, model, 5);
    EXPECT_TRUE(same) << what << "\n" << print_error(same.error());
    for (const RoleProgram& role : compiled->set.roles)
      for (const Tensor& tensor : role.tensors)
        if (tensor.previous_of >= 0 && gather != "persist: 2KiB") {
          EXPECT_GE(tensor.part_of, 0) << tensor.name;
        }
  }
}

// Parameters that nothing trains have one version, which both steps gather; over two levels of
// replicas parts are cut over the first.
TEST_P(Models, EqualTheSingleDeviceWithFrozenPartsAndOverTwoLevels) {
  const std::string model = GetParam();
  std::string frozen = library_text("pipedream-2bw"), nested = library_text("hsdp");
  const std::string bucket = "bucket: 25MiB";
  frozen.replace(frozen.find(bucket), bucket.size(), fmt::format("bucket: 1KiB, shard: {}", kAll));
  frozen += "parameters:\n  - freeze: \"**/bias\"\n";
  for (const auto& [text, s] :
       {std::pair(frozen, Sizes{2, 2, 4}), std::pair(delayed(nested), Sizes{1, 4, 2})}) {
    CompileOptions options;
    options.defines = definitions_of(text, {s.pp, s.dp, s.mb});
    options.oracles = true;
    const auto compiled = compile_text(model, text, kAdamW, options);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const Status same = run_against(compiled->set, *compiled->single, model, 4);
    EXPECT_TRUE(same) << print_error(same.error());
  }
}

// Microbatches may differ in what they make again.
TEST_P(Models, EqualTheSingleDeviceWithRecompute) {
  const std::string model = GetParam();
  for (const char* where :
       {"{}", "{where: {stage: s, mb: \">=stages-s\"}}", "{budget: 64KiB, where: {mb: 0}}"})
    for (const char* shard : {"[optimizer]", kAll}) {
      if (kSanitized && shard != kAll) continue;
      std::string text = library_text("pipedream-2bw");
      const std::string bucket = "bucket: 25MiB";
      text.replace(text.find(bucket), bucket.size(), fmt::format("bucket: 1KiB, shard: {}", shard));
      text += fmt::format("  - recompute: {}\n", where);
      CompileOptions options;
      options.defines = definitions_of(text, {2, 2, 4});
      options.oracles = true;
      const auto compiled = compile_text(model, text, kAdamW, options);
      ASSERT_TRUE(compiled) << where << "\n" << print_error(compiled.error());
      const Status same = run_against(compiled->set, *compiled->single, model, 4);
      EXPECT_TRUE(same) << where << "\n" << print_error(same.error());
    }
}

// Every step of 1F1B without a pause gathers from both, and the verifier tells them apart: read
// elsewhere they make another training.
TEST_P(Models, APartOfTheOtherVersionIsSeen) {
  const std::string model = GetParam();
  const auto compiled =
      compile_cut(model, kSgd, std::string(kAll) + ", gather: {prefetch: 1}", {2, 2, 4});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  for (const bool ahead : {false, true}) {
    PlanSet wrong = compiled->set;
    int64_t changed = 0;
    for (RoleProgram& role : wrong.roles) {
      std::map<int32_t, int32_t> other;
      for (size_t b = 0; b < role.buffers.size(); ++b)
        if (const int32_t newest = role.tensor(b).previous_of; newest >= 0)
          other[ahead ? newest : static_cast<int32_t>(b)] =
              ahead ? static_cast<int32_t>(b) : newest;
      for (Instruction& one : role.body)
        if (one.kind == InstructionKind::kAllGather && (one.ahead > 0) == ahead)
          for (size_t a = 0; a < one.args.size(); a += 2)
            if (const auto known = other.find(one.args[a]); known != other.end()) {
              one.args[a] = known->second;
              ++changed;
            }
    }
    EXPECT_GT(changed, 0);
    const auto report = verify_plan_set(wrong);
    ASSERT_TRUE(report);
    EXPECT_TRUE(std::any_of(report->findings.begin(), report->findings.end(), [](const auto& one) {
      return one.rule == "sum" && one.text.find("as it is before step") != std::string::npos;
    })) << ahead;
    EXPECT_FALSE(run_against(wrong, *compiled->single, model, 4)) << ahead;
  }
}

// ---- More than two versions ---------------------------------------------------------------------

TEST_P(Models, EqualTheSingleDeviceWithOlderVersions) {
  const std::string model = GetParam();
  struct Case {
    int64_t versions;
    const char* train;
    std::string cut, directives;
    Sizes sizes;
  };
  const std::string all = fmt::format(", shard: {}, gather: {{prefetch: 1}}", kAll);
  for (const auto& [versions, train, cut, directives, s] :
       {Case{3, kSgd, "", "", {4, 1, 8}}, Case{4, kAdamW, "", "", {2, 2, 4}},
        Case{3, kAdamW, ", shard: [optimizer]", "", {2, 2, 4}},
        Case{4, kAdamW, ", shard: [optimizer, gradients]", "  - recompute: {}\n", {4, 2, 4}},
        Case{3, kAdamW, all, "  - recompute: {}\n", {2, 2, 4}}, Case{4, kSgd, all, "", {1, 2, 2}},
        Case{3, kAdamW, "", "  - precision: {compute: bf16}\n", {2, 2, 4}},
        Case{4, kAdamW, all, "  - precision: {compute: bf16}\n", {2, 2, 4}}}) {
    if (kSanitized && s.pp == 4) continue;
    SCOPED_TRACE(
        fmt::format("k={} {} pp={} dp={} mb={}", versions, cut + directives, s.pp, s.dp, s.mb));
    const auto compiled = compile_older(model, train, versions, cut, directives, s);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    int64_t older = 0;
    for (const RoleProgram& role : compiled->set.roles) {
      std::vector<int64_t> bytes(static_cast<size_t>(versions));  // by age
      for (const Tensor& tensor : role.tensors)
        if (tensor.previous_of >= 0 && tensor.type.dtype != DType::kI64)
          bytes.at(static_cast<size_t>(role.age(tensor))) += tensor.type.bytes();
      for (size_t age = 2; age < bytes.size(); ++age) EXPECT_EQ(bytes[age], bytes[1]) << age;
      older += bytes[1];  // a stage may have no parameters
    }
    EXPECT_GT(older, 0);
    const Status same = run_against(compiled->set, *compiled->single, model, 7);
    EXPECT_TRUE(same) << print_error(same.error());
    if (train == kAdamW) expect_same_when_queued(compiled->set, model, cut + directives);
  }
}

// Three versions and four agree until the first weights that three have learned are due.
TEST_P(Models, DifferFromAnotherNumberOfVersions) {
  const std::string model = GetParam();
  const auto three = compile_older(model, kSgd, 3, "", "", {2, 1, 4}),
             four = compile_older(model, kSgd, 4, "", "", {2, 1, 4});
  ASSERT_TRUE(three && four);
  EXPECT_TRUE(run_against(three->set, *four->single, model, 3));
  const Status other = run_against(three->set, *four->single, model, 5);
  ASSERT_FALSE(other);
  EXPECT_TRUE(other.error().message.starts_with("step 4: the loss differs"))
      << other.error().message;
}

// Reads of each other version, and copies in the other order, which lose a version.
TEST_P(Models, AnotherVersionAndOneOverwrittenEarlyAreSeen) {
  const std::string model = GetParam();
  const auto compiled = compile_older(model, kSgd, 4, "", "", {2, 1, 4});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto found = [](const PlanSet& set, const std::string& words) {
    const auto report = verify_plan_set(set);
    return report && std::any_of(report->findings.begin(), report->findings.end(),
                                 [&](const Finding& finding) {
                                   return finding.rule == "sum" &&
                                          finding.text.find(words) != std::string::npos;
                                 });
  };
  for (int32_t newer = 1; newer <= 3; ++newer) {
    PlanSet wrong = compiled->set;
    for (RoleProgram& role : wrong.roles)
      for (auto* list : {&role.prologue, &role.body, &role.epilogue})
        for (Instruction& one : *list)
          for (int32_t& arg : one.args)
            if (one.kind == InstructionKind::kCompute &&
                role.age(role.tensor(arg)) == (one.ahead > 0 ? 2 : 3))
              for (int32_t n = newer; n > 0 && role.tensor(arg).previous_of >= 0; --n)
                arg = role.tensor(arg).previous_of;
    EXPECT_TRUE(found(wrong, "as it is before step")) << newer;
    EXPECT_FALSE(run_against(wrong, *compiled->single, model, 5)) << newer;
  }
  PlanSet wrong = compiled->set;
  for (RoleProgram& role : wrong.roles)
    for (auto* list : {&role.body, &role.epilogue}) {
      std::vector<Instruction*> copies;
      for (Instruction& one : *list) {
        one.waits.clear();
        if (one.kind == InstructionKind::kCopy && role.tensor(one.args[1]).previous_of >= 0)
          copies.push_back(&one);
      }
      ASSERT_GE(copies.size(), 3U);
      for (size_t i = 0; i < copies.size() / 2; ++i)
        std::swap(*copies[i], *copies[copies.size() - 1 - i]);
    }
  EXPECT_TRUE(found(wrong, "which must get the next newer version"));
  EXPECT_FALSE(run_against(wrong, *compiled->single, model, 6));
}

// ---- Values that wait on the host ---------------------------------------------------------------

Result<Compiled> compile_offloaded(const std::string& model, const std::string& directives,
                                   const Sizes& s, bool pairs = false) {
  const std::string text = (pairs ? paired_text() : library_text("pipedream-2bw")) + directives;
  CompileOptions options;
  options.defines = definitions_of(text, {s.pp, s.dp, s.mb});
  options.oracles = true;
  return compile_text(model, text, kAdamW, options);
}

// What a value waits on the host for may be a task of the next run of the body.
TEST_P(Models, EqualTheSingleDeviceWithOffload) {
  const std::string model = GetParam();
  const std::string optimizer = "  - offload: {what: optimizer}\n",
                    activations = "  - offload: {what: activations}\n",
                    near = "  - offload: {what: activations, distance: 0, in_flight: 0}\n";
  // The layers of the small model keep nothing else.
  const std::string again = model == "mlp" ? "" : "  - recompute: {}\n";
  struct Case {
    std::string directives;
    Sizes sizes;
    bool pairs = false;
  };
  for (const auto& [directives, s, pairs] :
       {Case{optimizer, {1, 2, 4}}, Case{optimizer, {4, 1, 8}}, Case{activations, {4, 2, 4}},
        Case{near, {4, 1, 8}, true}, Case{near + optimizer + again, {4, 1, 8}},
        Case{near + optimizer, {2, 2, 4}}}) {
    if (kSanitized && s.pp != 2) continue;
    SCOPED_TRACE(fmt::format("{} pp={} dp={} mb={}", directives, s.pp, s.dp, s.mb));
    const auto compiled = compile_offloaded(model, directives, s, pairs);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    int64_t host = 0, leave_ahead = 0;
    for (const RoleProgram& role : compiled->set.roles) {
      host += role.host_bytes;
      for (const Instruction& one : role.body)
        leave_ahead += one.kind == InstructionKind::kCopy && one.ahead > 0;
    }
    EXPECT_GT(host, 0);
    EXPECT_EQ(leave_ahead > 0, directives != optimizer);
    const Status same = run_against(compiled->set, *compiled->single, model, 5);
    EXPECT_TRUE(same) << print_error(same.error());
  }
}

// A value that does not come back, of the step under way or of the one before: seen, and another
// training.
TEST_P(Models, ACopyFromTheHostLeftOutIsSeen) {
  const std::string model = GetParam();
  for (const char* what : {"optimizer", "activations"}) {
    const auto compiled =
        compile_offloaded(model, fmt::format("  - offload: {{what: {}}}\n", what), {4, 1, 8});
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    PlanSet wrong = compiled->set;
    RoleProgram& role = wrong.roles[0];
    std::string label;
    for (const Instruction& one : role.body)
      if (label.empty() && one.kind == InstructionKind::kCopy && role.tensor(one.args[0]).host)
        label = one.label;
    ASSERT_FALSE(label.empty());
    for (auto* list : {&role.prologue, &role.body, &role.epilogue}) {
      const auto at = std::find_if(list->begin(), list->end(),
                                   [&](const Instruction& one) { return one.label == label; });
      if (at == list->end()) continue;
      const auto index = static_cast<int32_t>(at - list->begin());
      list->erase(at);
      for (Instruction& one : *list) {
        std::erase(one.waits, index);
        for (int32_t& wait : one.waits) wait -= wait > index ? 1 : 0;
      }
    }
    const auto report = verify_plan_set(wrong);
    ASSERT_TRUE(report);
    EXPECT_FALSE(report->findings.empty()) << what;
    EXPECT_FALSE(run_against(wrong, *compiled->single, model, 4)) << what;
  }
}

// What a step that begins early cannot have, with the place of the order.
TEST_P(Models, WhatCannotOverlapIsRefused) {
  const std::string text = strategy_text(GetParam(), kSgd);
  const auto scale = compile_text(GetParam(),
                                  "piper: 1\nmesh: {pp: 1}\nweight_versions: 2\n"
                                  "annotate:\n  - balance: {tag: stage, into: 1}\n"
                                  "directives:\n"
                                  "  - precision: {compute: f16, loss_scale: dynamic}\n"
                                  "  - split: {dim: batch, into: 4}\n"
                                  "  - place: {where: {stage: s}, on: {pp: s}}\n"
                                  "  - order:\n      each: pp\n      program: |\n"
                                  "        repeat M - 1: F B\n"
                                  "        F[step=1] B[step=1]\n",
                                  kSgd, {});
  ASSERT_FALSE(scale);
  EXPECT_NE(scale.error().message.find(
                "of the next step reads 'loss_scale' before this step's update of it"),
            std::string::npos)
      << scale.error().message;
  EXPECT_GT(scale.error().at.line, 0);
}

// ---- Ends of a job ------------------------------------------------------------------------------

// Asked to stop after step 2, a job finishes what has begun: its parameters are those of as many
// steps as it says.
TEST_P(Models, StopBetweenSteps) {
  const std::string model = GetParam();
  const auto compiled =
      compile_model(model, strategy_text(model, kAdamW), {2, 1, 4, "pipedream-2bw"}, true);
  ASSERT_TRUE(compiled);
  const auto data = open_batches(compiled->set, model);
  ASSERT_TRUE(data);
  std::atomic<bool> stop = false;
  JobOptions options;
  options.steps = 50;
  options.threads = 1;
  options.stop = &stop;
  options.on_step = [&](const StepMetrics& metrics) {
    stop = metrics.step >= 2;
    return ok_status();
  };
  const auto job = run_job(compiled->set, data->get(), nullptr, nullptr, options);
  ASSERT_TRUE(job) << print_error(job.error());
  EXPECT_TRUE(job->interrupted);
  const auto steps = static_cast<int64_t>(job->steps.size());
  EXPECT_GE(steps, 4);
  EXPECT_LE(steps, 5);
  const auto single = train(*compiled->single, model, steps);
  ASSERT_TRUE(single);
  ASSERT_EQ(job->parameters.size(), single->parameters.size());
  for (const NamedTensor& tensor : job->parameters)
    EXPECT_EQ(as_text(tensor.data.span()), as_text(single->parameters.at(tensor.name).data.span()))
        << tensor.name;
}

// Ranks as threads and as processes save the same file, of the newest versions alone.
TEST_P(Models, ThreadsAndProcessesSaveTheSameBytes) {
  const std::string model = GetParam();
  const auto compiled =
      compile_model(model, strategy_text(model, kAdamW), {2, 2, 2, "pipedream-2bw"}, true);
  ASSERT_TRUE(compiled);
  const std::string threads = expect_processes_save_the_same(*compiled, model);
  EXPECT_EQ(threads.find(".previous"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(TwoVersions, Models, ::testing::Values("mlp", "gpt-deep"),
                         [](const auto& info) { return identifier(info.param); });

}  // namespace
}  // namespace piper::two_versions_test
