// Parameters and gradients that travel in 8 bits, in blocks with a scale each: the plans train as
// those for one device, which round at the same places, and a plan that rounds otherwise is
// refused.
#include "equivalence/entries.h"
#include "piper/plan/flops.h"
#include "piper/plan/verify.h"

namespace piper::in_blocks_test {
namespace {

using namespace jobs;

const std::string kInt8 = "gather: {dtype: int8, lossy: true}",
                  kFloat8 = "gather: {dtype: float8, block: 32, lossy: true}",
                  kReduced = "reduce: {dtype: int8, lossy: true}",
                  kReducedSmall = "reduce: {dtype: float8, block: 32, lossy: true}",
                  kParts = "shard: [optimizer, gradients, parameters]";

std::string over(const std::string& axis, const std::string& rest) {
  return fmt::format("  - replicate: {{over: {}, {}}}\n", axis, rest);
}

const Entries kCases[] = {
    {"zero1", "dp: 4", over("dp", "shard: [optimizer], " + kInt8)},
    {"zero1_float8", "dp: 2", over("dp", "bucket: 1MiB, shard: [optimizer], " + kFloat8)},
    {"zero2", "dp: 4", over("dp", "shard: [optimizer, gradients], " + kInt8)},
    {"zero3", "dp: 4", over("dp", "bucket: 1KiB, " + kParts + ", " + kInt8)},
    {"zero3_float8", "dp: 2", over("dp", kParts + ", " + kFloat8)},
    {"in_blocks_of_32", "dp: 4",
     over("dp", kParts + ", gather: {dtype: int8, block: 32, lossy: true, when: per_microbatch}")},
    {"once_a_step", "dp: 4",
     over("dp", kParts + ", gather: {dtype: int8, lossy: true, when: per_step}")},
    {"hpz", "node: 2, gpu: 2",
     over("node", "shard: [optimizer, gradients]") + over("gpu", kParts + ", " + kInt8)},
    {"hsdp", "node: 2, gpu: 2", over("node", "bucket: 0") + over("gpu", kParts + ", " + kFloat8)},
    {"small_stay_whole", "dp: 4", over("dp", kParts + ", persist: 256B, " + kInt8)},
    {"some", "dp: 4",
     over("dp", "match: \"**/weight\", " + kParts + ", " + kInt8) + over("dp", "bucket: 0")},
    {"bf16", "dp: 4",
     "  - precision: {compute: bf16}\n" + over("dp", "bucket: 1KiB, " + kParts + ", " + kInt8)},
    {"bf16_zero1", "dp: 2",
     "  - precision: {compute: bf16}\n" + over("dp", "shard: [optimizer], " + kFloat8)},
    {"bf16_hpz", "node: 2, gpu: 2",
     "  - precision: {compute: bf16}\n" + over("node", "shard: [optimizer, gradients]") +
         over("gpu", kParts + ", " + kInt8)},
    {"gradients_zero1", "dp: 4", over("dp", "shard: [optimizer], " + kReduced)},
    {"gradients_zero2", "dp: 2",
     over("dp", "bucket: 1MiB, shard: [optimizer, gradients], " + kReducedSmall)},
    {"gradients_zero3", "dp: 4", over("dp", "bucket: 1KiB, " + kParts + ", " + kReduced)},
    {"both_ways", "dp: 4", over("dp", kParts + ", " + kInt8 + ", " + kReducedSmall)},
    {"gradients_some", "dp: 4",
     over("dp", "match: \"**/weight\", " + kParts + ", " + kReduced) + over("dp", "bucket: 0")},
    {"gradients_small_stay_whole", "dp: 4",
     over("dp", kParts + ", persist: 256B, " + kReducedSmall)},
    {"gradients_hpz", "node: 2, gpu: 2",
     over("node", "shard: [optimizer, gradients]") + over("gpu", kParts + ", " + kReduced)},
    {"gradients_hsdp", "node: 2, gpu: 2",
     over("node", "bucket: 0") + over("gpu", kParts + ", " + kReduced)},
    {"gradients_between_nodes", "node: 2, gpu: 2",
     over("node", "shard: [optimizer], " + kReduced) + over("gpu", kParts)},
    {"gradients_at_both_levels", "node: 2, gpu: 2",
     over("node", "bucket: 1KiB, shard: [optimizer, gradients], " + kReducedSmall) +
         over("gpu", "bucket: 1KiB, " + kParts + ", " + kReduced)},
    {"gradients_at_both_levels_zero1", "node: 2, gpu: 2",
     over("node", "shard: [optimizer], " + kReducedSmall) +
         over("gpu", "shard: [optimizer], " + kReduced)},
    {"gradients_between_nodes_bf16", "node: 2, gpu: 2",
     "  - precision: {compute: bf16}\n" + over("node", "shard: [optimizer], " + kReduced) +
         over("gpu", kParts + ", reduce: {dtype: bf16}")},
    {"gradients_bf16", "dp: 4",
     "  - precision: {compute: bf16}\n" + over("dp", "bucket: 1KiB, " + kParts + ", " + kReduced)},
    {"gradients_added_in_bf16", "dp: 2",
     "  - precision: {compute: bf16, accumulate: bf16}\n" +
         over("dp", "bucket: 1KiB, shard: [optimizer], " + kReduced)},
    {"reduced_in_bf16", "dp: 4", over("dp", kParts + ", reduce: {dtype: bf16}, " + kInt8)},
};

Result<Compiled> compiled_with_oracles(const std::string& model, const std::string& text) {
  CompileOptions options;
  options.oracles = true;
  return compile_text(model, text, kAdamW, options);
}

class InBlocksCase : public ::testing::TestWithParam<Entries> {};

TEST_P(InBlocksCase, TrainsAsOneDeviceBitForBit) {
  NEED_MODEL("mlp");
  for (const int64_t pp : {1, 2}) {
    const auto compiled = compiled_with_oracles("mlp", text_of(GetParam(), pp));
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const auto result = train_beside_single(*compiled, "mlp", 5);
    EXPECT_TRUE(result) << print_error(result.error());
    EXPECT_TRUE(result && result->bitwise);
    expect_same_when_queued(compiled->set, "mlp", GetParam().name);
  }
}

INSTANTIATE_TEST_SUITE_P(Replicate, InBlocksCase, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// With a tied parameter.
TEST(InBlocks, TrainLanguageModelsAsOneDevice) {
  NEED_MODEL("gpt-deep");
  for (const char* precision : {"", "  - precision: {compute: bf16}\n"})
    for (const std::string& how : {kInt8, kFloat8}) {
      const Entries of{"", "dp: 2",
                       precision + over("dp", "bucket: 64KiB, " + kParts + ", " + how)};
      const auto compiled = compiled_with_oracles("gpt-deep", text_of(of, 1));
      ASSERT_TRUE(compiled) << print_error(compiled.error());
      const auto result = train_beside_single(*compiled, "gpt-deep", 4);
      EXPECT_TRUE(result && result->bitwise) << print_error(result.error());
    }
}

// Axes of `shard` cut what then travels in blocks, and add in another order: in f64 nothing is seen
// of that.
TEST(InBlocks, BesideTensorParallelismTrainAsOneDevice) {
  NEED_MODEL("gpt-deep");
  const std::string rows = "  - shard: {match: \"**/wte/*\", dim: 0, over: tp, pad: true}\n";
  for (const int tp : {2, 3})
    for (const std::string& states : {std::string("shard: [optimizer]"), kParts}) {
      if (tp == 3 && states != kParts) continue;
      SCOPED_TRACE(fmt::format("tp={} {}", tp, states));
      const Entries of{
          "", fmt::format("dp: 2, tp: {}", tp),
          "  - precision: {compute: f64}\n" + (tp == 3 ? rows : rows + std::string(kGptTensor)) +
              over("dp", "bucket: 64KiB, " + states + ", " + kInt8 + ", " + kReducedSmall)};
      const auto compiled = compiled_with_oracles("gpt-deep", text_of(of, 1));
      ASSERT_TRUE(compiled) << print_error(compiled.error());
      const auto want = train(*compiled->single, "gpt-deep", 4),
                 got = train(compiled->set, "gpt-deep", 4);
      ASSERT_TRUE(want && got);
      EXPECT_LT(largest_difference(*got, *want), 1e-12);
    }
}

// Ranks of other axes have terms of the same sums, each for itself: those are added up, unrounded,
// before replicas send each other 8 bits. In f64 nothing is seen of the order of sums.
struct Beside {
  const char *name, *model, *mesh, *text, *replicas;
};
void PrintTo(const Beside& of, std::ostream* out) { *out << of.name; }
const char* const kExperts = R"(  - shard: {input: "*", dim: 0, over: ep}
  - shard: {match: ["**/w_in", "**/w_out"], dim: 0, over: ep}
)";
const char* const kRing = R"(  - shard: {input: "*", dim: 1, over: cp}
  - shard: {match: "**", dim: none, over: cp}
  - shard: {attention: "**", by: ring, over: cp}
)";
const Beside kBeside[] = {
    {"experts", "moe-gshard", "dp: 2, ep: 2", kExperts, "dp"},
    {"experts_before", "moe-gshard", "ep: 2, dp: 2", kExperts, "dp"},
    {"ring", "gpt-deep", "dp: 2, cp: 2", kRing, "dp"},
    {"ring_of_replicas", "gpt-deep", "dp: 2, cp: 2", kRing, "[dp, cp]"},
};

class InBlocksBeside : public ::testing::TestWithParam<Beside> {};

TEST_P(InBlocksBeside, TermsOfOtherAxesAreAddedUpBefore) {
  const Beside& beside = GetParam();
  NEED_MODEL(beside.model);
  const auto compiled = [&](const std::string& sent) {
    const Entries of{"", beside.mesh,
                     "  - precision: {compute: f64}\n" + std::string(beside.text) +
                         over(beside.replicas, "bucket: 16KiB, " + sent)};
    return compiled_with_oracles(beside.model, text_of(of, 1));
  };
  for (const std::string& states : {std::string("shard: [optimizer]"), kParts}) {
    SCOPED_TRACE(states);
    const auto rounded = compiled(states + ", " + kReduced), exact = compiled(states);
    ASSERT_TRUE(rounded) << print_error(rounded.error());
    ASSERT_TRUE(exact) << print_error(exact.error());
    const auto want = train(*rounded->single, beside.model, 3),
               got = train(rounded->set, beside.model, 3),
               other = train(exact->set, beside.model, 3);
    ASSERT_TRUE(want && got && other);
    EXPECT_LT(largest_difference(*got, *want), 1e-12);
    EXPECT_GT(largest_difference(*other, *want), 1e-5);
    if (states == kParts) expect_same_when_queued(rounded->set, beside.model, beside.name);
    const auto findings = [&](const PlanSet& set, const Compiled& of) {
      const auto report = verify_plan_set(set, &*of.single);
      return report ? std::ssize(report->findings) : -1;
    };
    EXPECT_EQ(findings(rounded->set, *rounded), 0);
    EXPECT_NE(findings(rounded->set, *exact), 0);
    EXPECT_NE(findings(exact->set, *rounded), 0);
    // A sum of terms that were rounded one by one is another one.
    PlanSet wrong = rounded->set;
    int64_t in_blocks = 0, before = 0;
    for (RoleProgram& role : wrong.roles)
      for (Instruction& one : role.body) {
        if (one.kind != InstructionKind::kReduceScatter) continue;
        (one.scaled == Scaled::kNone ? before : in_blocks) += 1;
        if (one.scaled == Scaled::kNone) one.scaled = Scaled::kInt8, one.block = 256;
      }
    EXPECT_GT(in_blocks, 0);
    EXPECT_GT(before, 0);
    EXPECT_NE(findings(wrong, *rounded), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Replicate, InBlocksBeside, ::testing::ValuesIn(kBeside),
                         [](const auto& info) { return std::string(info.param.name); });

std::string bits_of(const std::string& text) {
  CompileOptions options;
  options.oracles = false;
  const auto compiled = compile_text("mlp", text, kAdamW, options);
  EXPECT_TRUE(compiled) << print_error(compiled.error());
  auto result = train(compiled->set, "mlp", 4);
  EXPECT_TRUE(result) << print_error(result.error());
  std::string bits;
  for (const auto& [name, tensor] : result->parameters) bits += as_text(tensor.data.span());
  return bits;
}

// What these comparisons could not see would be no proof.
TEST(InBlocksControl, OtherRoundingsEndWithOtherBits) {
  NEED_MODEL("mlp");
  const auto of = [](const std::string& gather, const std::string& states = kParts) {
    return bits_of(text_of({"", "dp: 4", over("dp", states + ", " + gather)}, 1));
  };
  const std::string exact = of("bucket: 0"), int8 = of(kInt8);
  EXPECT_FALSE(int8 == exact);
  EXPECT_FALSE(of(kFloat8) == int8);
  EXPECT_FALSE(of("gather: {dtype: int8, block: 32, lossy: true}") == int8);
  EXPECT_TRUE(of(kInt8, "shard: [optimizer]") == int8);  // the same parts
  const std::string reduced = of(kReduced);
  EXPECT_FALSE(reduced == exact);
  EXPECT_FALSE(of(kReducedSmall) == reduced);
  EXPECT_FALSE(of("reduce: {dtype: int8, block: 32, lossy: true}") == reduced);
  EXPECT_TRUE(of(kReduced, "shard: [optimizer]") == reduced);
}

PlanSet changed(PlanSet set, bool all, void (*change)(Instruction&)) {
  for (size_t r = 0; r < (all ? set.roles.size() : 1); ++r)
    for (Instruction& one : set.roles[r].body)
      if (one.scaled != Scaled::kNone) {
        change(one);
        if (!all) break;
      }
  return set;
}

TEST(InBlocks, PlansThatRoundOtherwiseAreRefused) {
  NEED_MODEL("mlp");
  using Change = void (*)(Instruction&);
  const Change changes[] = {
      [](Instruction& one) { one.scaled = Scaled::kFloat8; },
      [](Instruction& one) { one.block = 64; },
      [](Instruction& one) { one.scaled = Scaled::kNone, one.block = 0; },
      [](Instruction& one) { one.block = 48; },
      [](Instruction& one) { one.dim = 0; },
  };
  const std::string between = over("node", "shard: [optimizer], " + kReduced);
  for (const std::string& sent :
       {over("dp", kParts + ", " + kInt8), over("dp", kParts + ", " + kReduced), between}) {
    const bool nested = sent == between;
    const auto compiled =
        compiled_with_oracles("mlp", text_of({"", nested ? "node: 2, gpu: 2" : "dp: 2",
                                              nested ? sent + over("gpu", kParts) : sent},
                                             2));
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const auto verified = [&](const PlanSet& set) {
      const auto report = verify_plan_set(set, &*compiled->single);
      return report && report->findings.empty();
    };
    EXPECT_TRUE(verified(compiled->set));
    for (const Change change : changes)
      for (const bool all : {false, true})
        EXPECT_FALSE(verified(changed(compiled->set, all, change))) << sent;
  }
}

// All terms of a sum travel alike, also those of other microbatches.
TEST(InBlocks, TermsOfOneSumTravelAlike) {
  NEED_MODEL("mlp");
  const std::string each =
      kParts + ", reduce: {when: per_microbatch, dtype: int8, block: 64, lossy: true}";
  const auto compiled = compiled_with_oracles("mlp", text_of({"", "dp: 2", over("dp", each)}, 2));
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  for (const int32_t micro : {0, 1}) {
    PlanSet wrong = compiled->set;
    int changed = 0;
    for (RoleProgram& role : wrong.roles)
      for (Instruction& one : role.body)
        if (one.scaled != Scaled::kNone && one.kind == InstructionKind::kReduceScatter &&
            one.micro == micro)
          one.scaled = Scaled::kNone, one.block = 0, ++changed;
    EXPECT_GT(changed, 0);
    const auto report = verify_plan_set(wrong, &*compiled->single);
    EXPECT_FALSE(report && report->findings.empty()) << micro;
  }
}

// Terms are rounded to 16 bits where one device rounds them, and nowhere else.
TEST(InBlocks, TermsOf16BitsAreThoseOfOneDevice) {
  NEED_MODEL("mlp");
  const auto of = [](const std::string& sent) {
    return compiled_with_oracles("mlp", text_of({"", "dp: 2", over("dp", kParts + sent)}, 2));
  };
  const auto rounded = of(", reduce: {dtype: bf16}"), exact = of(""),
             f16 = of(", reduce: {dtype: f16}");
  ASSERT_TRUE(rounded && exact && f16);
  const auto verified = [](const PlanSet& set, const PlanSet& single) {
    const auto report = verify_plan_set(set, &single);
    return report && report->findings.empty();
  };
  EXPECT_TRUE(verified(rounded->set, *rounded->single));
  EXPECT_FALSE(verified(rounded->set, *exact->single));
  EXPECT_FALSE(verified(exact->set, *rounded->single));
  EXPECT_FALSE(verified(f16->set, *rounded->single));
}

// Where terms are rounded is compared, not only to which types: what a term holds then, at which
// level, and how often.
struct Way {
  std::string gpu, node;
};
void expect_told_apart(const std::vector<Way>& ways, const std::string& states) {
  std::vector<Compiled> all;
  for (const auto& [gpu, node] : ways) {
    const auto compiled = compiled_with_oracles(
        "mlp", text_of({"", "node: 2, gpu: 2",
                        over("gpu", kParts + ", reduce: {dtype: " + gpu + "}") +
                            over("node", states + "bucket: 1KiB, reduce: {dtype: " + node + "}")},
                       2));
    ASSERT_TRUE(compiled) << gpu << " " << node << print_error(compiled.error());
    const auto want = train(*compiled->single, "mlp", 3), got = train(compiled->set, "mlp", 3);
    ASSERT_TRUE(want && got);
    EXPECT_EQ(largest_difference(*got, *want), 0) << gpu << " " << node;
    all.push_back(*compiled);
  }
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = 0; b < all.size(); ++b) {
      const auto report = verify_plan_set(all[a].set, &*all[b].single);
      ASSERT_TRUE(report) << print_error(report.error());
      EXPECT_EQ(report->findings.empty(), a == b)
          << ways[a].gpu << ", " << ways[a].node << " as " << ways[b].gpu << ", " << ways[b].node;
      if (a == b || report->findings.empty()) continue;
      const std::string& text = report->findings[0].text;
      EXPECT_NE(text.find("rounds terms of 'model."), std::string::npos) << text;
    }
}

TEST(InBlocks, TermsAreRoundedWhereOneDeviceRoundsThem) {
  NEED_MODEL("mlp");
  expect_told_apart({{"f32", "bf16"},
                     {"bf16", "f32"},
                     {"bf16", "bf16"},
                     {"bf16", "f16"},
                     {"f16", "bf16"},
                     {"bf16, when: per_microbatch", "f32"},
                     {"bf16, when: per_microbatch", "bf16"},
                     {"int8, block: 64, lossy: true", "bf16"},
                     {"int8, block: 64, lossy: true, when: per_microbatch", "bf16"}},
                    "");
}

TEST(InBlocks, PartsOfPartsAreRoundedWhereOneDeviceRoundsThem) {
  NEED_MODEL("mlp");
  const std::string wide = "int8, block: 64, lossy: true", small = "int8, block: 32, lossy: true";
  expect_told_apart({{"f32", "f32"},
                     {"f32", wide},
                     {"f32", small},
                     {"f32", "float8, block: 64, lossy: true"},
                     {wide, "f32"},
                     {wide, wide},
                     {wide, small},
                     {wide + ", when: per_microbatch", wide},
                     {"bf16", wide}},
                    "shard: [optimizer], ");
}

// Of many replicas one device plays the first: how that rounds its terms is compared.
TEST(InBlocks, TheFirstOfManyReplicasRoundsItsTerms) {
  NEED_MODEL("mlp");
  const auto of = [](const std::string& sent) {
    CompileOptions options;
    options.largest_single = 1;
    const auto compiled =
        compile_text("mlp",
                     text_of({"", "node: 2, gpu: 2",
                              over("gpu", kParts + ", reduce: {" + sent + "}") +
                                  over("node", "bucket: 1KiB, reduce: {dtype: f16}")},
                             2),
                     kAdamW, options);
    EXPECT_TRUE(compiled) << sent << print_error(compiled.error());
    return *compiled;
  };
  const Compiled bf16 = of("dtype: bf16"), each = of("dtype: bf16, when: per_microbatch"),
                 int8 = of("dtype: int8, block: 64, lossy: true"), exact = of("sum: ordered");
  const std::vector<const Compiled*> all{&bf16, &each, &int8, &exact};
  for (const Compiled* set : all)
    for (const Compiled* single : all) {
      const auto report = verify_plan_set(set->set, &*single->single);
      EXPECT_EQ(report && report->findings.empty(), set == single);
    }
}

TEST(InBlocks, TheFirstOfManyReplicasRoundsInBlocksAtBothLevels) {
  NEED_MODEL("mlp");
  std::vector<Compiled> all;
  for (const std::string& gpu : {std::string(), kReduced})
    for (const std::string& node : {std::string(), kReducedSmall}) {
      CompileOptions options;
      options.largest_single = 1;
      const auto states = [](const std::string& cut, const std::string& reduced) {
        return cut + (reduced.empty() ? "" : ", " + reduced);
      };
      const auto compiled = compile_text(
          "mlp",
          text_of(
              {"", "node: 2, gpu: 2",
               over("gpu", states(kParts, gpu)) + over("node", states("shard: [optimizer]", node))},
              2),
          kAdamW, options);
      ASSERT_TRUE(compiled) << gpu << " " << node << print_error(compiled.error());
      all.push_back(*compiled);
    }
  // What the second level rounds are terms of several replicas.
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = 0; b < all.size(); ++b) {
      const auto report = verify_plan_set(all[a].set, &*all[b].single);
      EXPECT_EQ(report && report->findings.empty(), a / 2 == b / 2) << a << " " << b;
    }
}

// The norm's last bits are those of the runs in which squares are summed.
TEST(InBlocks, SquaresAreSummedInTheRunsOfOneDevice) {
  NEED_MODEL("mlp");
  const auto compiled = compiled_with_oracles("mlp", text_of({"", "dp: 2", over("dp", kParts)}, 1));
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet wrong = compiled->set;
  int changed = 0;
  for (RoleProgram& role : wrong.roles)
    for (Program& program : role.programs)
      for (ProgramOp& op : program.ops)
        if (op.op == "SumSquares")
          op.attrs.set("parts", 3 * std::max<int64_t>(op.attrs.integer("parts"), 1)), ++changed;
  EXPECT_GT(changed, 0);
  const auto report = verify_plan_set(wrong, &*compiled->single);
  ASSERT_TRUE(report) << print_error(report.error());
  EXPECT_FALSE(report->findings.empty());
}

// The plan for one device is refused, too, if it does not take terms out of blocks as it put them
// in.
TEST(InBlocks, PlansForOneDeviceThatRoundOtherwiseAreRefused) {
  NEED_MODEL("mlp");
  const auto compiled =
      compiled_with_oracles("mlp", text_of({"", "dp: 2", over("dp", kParts + ", " + kReduced)}, 1));
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  int tried = 0;
  for (const char* op : {"ToBlocks", "FromBlocks"})
    for (const char* attribute : {"block", "run", "to"}) {
      PlanSet single = *compiled->single;
      for (Program& program : single.roles[0].programs)
        for (ProgramOp& one : program.ops)
          if (one.op == op && attribute == std::string("to"))
            one.attrs.set(attribute, std::string("float8")), ++tried;
          else if (one.op == op)
            one.attrs.set(attribute, one.attrs.integer(attribute) * 2), ++tried;
      const auto alone = verify_plan_set(single);
      EXPECT_FALSE(alone && alone->findings.empty()) << op << " " << attribute;
      if (op != std::string("ToBlocks")) continue;  // ranks send other blocks than these
      const auto report = verify_plan_set(compiled->set, &single);
      EXPECT_FALSE(report && report->findings.empty()) << attribute;
    }
  EXPECT_GT(tried, 6);
}

TEST(InBlocks, TakeAQuarterOfTheBytes) {
  NEED_MODEL("gpt-deep");
  const auto bytes = [](InstructionKind kind, const std::string& sent) {
    CompileOptions options;
    options.oracles = false;
    const auto compiled = compile_text(
        "gpt-deep", text_of({"", "dp: 2", over("dp", kParts + ", " + sent)}, 1), kAdamW, options);
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    double all = 0;
    for (const Instruction& one : compiled->set.roles[0].body)
      if (one.kind == kind) all += static_cast<double>(bytes_through(compiled->set.roles[0], one));
    return all;
  };
  for (const auto& [kind, sent] : {std::pair(InstructionKind::kAllGather, kInt8),
                                   std::pair(InstructionKind::kReduceScatter, kReduced)}) {
    const double share = bytes(kind, sent) / bytes(kind, "bucket: 0");
    EXPECT_GT(share, 0.25);
    EXPECT_LT(share, 0.30);
  }
}

}  // namespace
}  // namespace piper::in_blocks_test
