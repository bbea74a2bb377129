// Parts of a region on devices of their own, with parameters of their own: they train as one device
// does, are one tensor in files, and wrong ones are found.
#include <gmock/gmock.h>

#include "equivalence/jobs.h"
#include "equivalence/sample_jobs.h"
#include "piper/inspect/summary.h"
#include "piper/plan/verify.h"

namespace piper::placed_parts_test {
namespace {

using namespace jobs;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string cut(int64_t into, const std::string& module, const std::string& tensor) {
  return fmt::format(
      "  - split: {{scope: \"**/{}\", tensor: \"**/{}/*\", dim: 0, into: {}, as: part}}\n", module,
      tensor, into);
}

// A vocabulary over the stages of a pipeline; `more`: further directives.
std::string vocabulary(int64_t stages, const std::string& splits, const std::string& more = "",
                       int64_t ahead = 1) {
  return fmt::format(R"(annotate: [{{balance: {{tag: stage, into: {0}}}}}]
directives:
  - split: {{dim: batch, into: 4}}
  - place: {{where: {{stage: s, part: absent}}, on: {{pp: s}}}}
  - place: {{where: {{part: k}}, on: {{pp: k}}}}
  - order:
      each: pp
      program: |
        repeat min(M, P-r-1+{1}):      F
        repeat M - min(M, P-r-1+{1}):  F B
        repeat min(M, P-r-1+{1}):      B
{2}{3})",
                     stages, ahead, splits, more);
}
const std::string kHead2 = cut(2, "lm_head", "lm_head"), kHead4 = cut(4, "lm_head", "lm_head"),
                  kBoth2 = kHead2 + cut(2, "wte", "wte"), kBoth4 = kHead4 + cut(4, "wte", "wte");

struct Case {
  std::string name, model, mesh, directives;
  std::string train = kAdamW;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

Result<Compiled> compile_case(const Case& c) {
  return compile_text(c.model, "piper: 1\nmesh: " + c.mesh + "\n" + c.directives, c.train, {});
}

class PlacedParts : public ::testing::TestWithParam<Case> {};

TEST_P(PlacedParts, TrainAsOneDeviceDoes) {
  const Case& c = GetParam();
  NEED_MODEL(c.model);
  const Result<Compiled> compiled = compile_case(c);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Result<VerifyReport> report = verify_plan_set(compiled->set, &*compiled->single);
  ASSERT_TRUE(report) << print_error(report.error());
  for (const Finding& finding : report->findings)
    ADD_FAILURE() << finding.rule << " " << finding.text;
  const bool in_half = c.directives.find("bf16") != std::string::npos;
  const Result<Trained> uncut = train(*compiled->uncut, c.model, 4),
                        single = train(*compiled->single, c.model, 4),
                        spread = train(compiled->set, c.model, 4);
  ASSERT_TRUE(uncut && single && spread);
  expect_equal_bits(*spread, *single, "single device");
  EXPECT_LT(largest_difference(*spread, *uncut), in_half ? 5e-2 : 1e-3);
  for (size_t k = 0; k < uncut->losses.size(); ++k)
    EXPECT_NEAR(spread->losses[k], uncut->losses[k], in_half ? 3e-2 : 1e-4) << "step " << k;
}

// Returns a strategy of placed parts beside chunks of tokens; the compiler makes its order.
std::string chunks(const std::string& splits, int64_t stages = 4) {
  return fmt::format("annotate: [{{balance: {{tag: stage, into: {}}}}}]\ndirectives:\n", stages) +
         "  - split: {dim: batch, into: 2}\n"
         "  - split: {dim: tokens, into: 4, as: seq}\n"
         "  - place: {where: {stage: s, part: absent}, on: {pp: s % P}}\n"
         "  - place: {where: {part: k}, on: {pp: k}}\n" +
         splits;
}
// It is the strategy above in the order of Seq1F1B: an item takes one chunk, with what of it is in
// no part.
const std::string kChunksInOrder = R"(  - order:
      each: pp
      program: |
        let ahead = P-r-1 + 3
        repeat ahead:       F
        repeat M*4 - ahead: F B
        repeat ahead:       B
)";
const std::string kPp2 = "{pp: 2}", kPp4 = "{pp: 4}", kDp = "{pp: 2, dp: 2}";

INSTANTIATE_TEST_SUITE_P(
    All, PlacedParts,
    ::testing::Values(
        Case{"llama2", "llama-hf", kPp2, vocabulary(2, kHead2)},
        Case{"llama2_in_turn", "llama-hf", kPp2, vocabulary(2, kHead2, "", 0)},
        Case{"gpt2", "gpt-deep", kPp2, vocabulary(2, kHead2)},
        Case{"gpt2_tied", "gpt-deep", kPp2, vocabulary(2, kBoth2)},
        Case{"gpt4_tied", "gpt-deep", kPp4, vocabulary(4, kBoth4)},
        Case{"gpt4_sgd", "gpt-deep", kPp4, vocabulary(4, kHead4), kSgd},
        Case{"gpt4_again", "gpt-deep", kPp4,
             vocabulary(4, kBoth4, "  - recompute: {where: {part: \"*\"}}\n")},
        Case{"llama2_layers_again", "llama-hf", kPp2,
             vocabulary(2, kHead2, "  - recompute: {match: \"**/layers/{layer}/**\"}\n")},
        Case{"llama2_bf16", "llama-hf", kPp2,
             vocabulary(2, kHead2, "  - precision: {compute: bf16}\n")},
        Case{"llama2_chunks", "llama-hf", kPp2, chunks(kHead2)},
        Case{"llama2_chunks_in_order", "llama-hf", kPp2, chunks(kHead2, 2) + kChunksInOrder},
        Case{"gpt2_tied_chunks_in_order", "gpt-deep", kPp2, chunks(kBoth2, 2) + kChunksInOrder},
        Case{"gpt2_chunks", "gpt-deep", kPp2, chunks(kHead2)},
        Case{"gpt2_tied_chunks", "gpt-deep", kPp2, chunks(kBoth2)},
        Case{"gpt2_dp", "gpt-deep", kDp, vocabulary(2, kBoth2, "  - replicate: {over: dp}\n")},
        Case{"gpt2_zero1", "gpt-deep", kDp,
             vocabulary(2, kBoth2, "  - replicate: {over: dp, shard: [optimizer]}\n")},
        Case{"llama2_zero1_bf16", "llama-hf", kDp,
             vocabulary(2, kHead2,
                        "  - precision: {compute: bf16}\n"
                        "  - replicate: {over: dp, shard: [optimizer]}\n")}),
    [](const auto& info) { return info.param.name; });

// ---- Balance ------------------------------------------------------------------------------------

// Returns where each stage begins, as `balance` says.
std::vector<std::string> begins_of(const std::string& directives, const char* by) {
  std::string text = directives;
  text.replace(text.find("}}]"), 3, fmt::format(", by: {}}}}}]", by));
  const auto compiled = compile_case({"", "llama-hf", "{pp: 4}", text});
  EXPECT_TRUE(compiled) << print_error(compiled.error());
  std::vector<std::string> begins;
  for (const Explanation& each : compiled->explanations)
    for (const std::string& line : each.lines)
      if (const size_t from = line.find(", from "); each.directive == "balance")
        begins.push_back(line.substr(from + 7, line.find(" to ") - from - 7));
  return begins;
}

// Parts of the head are on all devices: stages have a layer each, as if there were no head.
TEST(PlacedPartsBalance, CountsPartsWhereTheyAre) {
  NEED_MODEL("llama-hf");
  std::string whole = vocabulary(4, "");
  const std::string of_part = ", part: absent";
  whole.replace(whole.find(of_part), of_part.size(), "");
  const size_t second = whole.find("  - place: {where: {part");
  whole.erase(second, whole.find('\n', second) + 1 - second);
  const std::vector<std::string> layers{
      "model/model/embed_tokens", "model/model/layers/1/input_layernorm",
      "model/model/layers/2/input_layernorm", "model/model/layers/3/input_layernorm"};
  EXPECT_EQ(begins_of(vocabulary(4, kHead4), "time"), layers);
  EXPECT_NE(begins_of(whole, "time"), layers);
  for (const char* by : {"weights", "memory"})
    EXPECT_NE(begins_of(vocabulary(4, kHead4), by), begins_of(whole, by)) << by;
}

// ---- Controls -----------------------------------------------------------------------------------

bool is_found(const PlanSet& wrong, const PlanSet& single) {
  const Result<VerifyReport> report = verify_plan_set(wrong, &single);
  return !report || !report->findings.empty();
}

const std::string kOverTp =
    R"(  - shard: {match: "**/{q_proj,k_proj,v_proj,gate_proj,up_proj}/*", dim: 0, over: tp}
  - shard: {match: "**/{o_proj,down_proj}/weight", dim: 1, over: tp}
  - shard: {match: "**/{lm_head,embed_tokens}/*", dim: 0, over: tp}
)";
const Case kWhole{"whole", "llama-hf", kPp2, vocabulary(2, kHead2)},
    kCut{"cut", "llama-hf", "{pp: 2, tp: 2}", vocabulary(2, kHead2, kOverTp)};

// The rows of each part are cut over the ranks of an axis, too.
// A table stays in parts also where fewer bytes would put it together than add up what it gives.
TEST(PlacedPartsCut, TablesStayInPartsBesideManyTokens) {
  NEED_MODEL("gpt-deep");
  std::string directives = vocabulary(2, kBoth2);
  directives.replace(directives.find("into: 4"), 7, "into: 1");
  const Result<Compiled> compiled = compile_case({"", "gpt-deep", "{pp: 2}", directives});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Result<Trained> single = train(*compiled->single, "gpt-deep", 3),
                        spread = train(compiled->set, "gpt-deep", 3);
  ASSERT_TRUE(single && spread);
  expect_equal_bits(*spread, *single, "single device");
}

TEST(PlacedPartsCut, TrainWithinBounds) {
  NEED_MODEL("llama-hf");
  const auto compiled = compile_case(kCut);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Result<Trained> uncut = train(*compiled->uncut, "llama-hf", 4),
                        spread = train(compiled->set, "llama-hf", 4);
  ASSERT_TRUE(uncut && spread);
  EXPECT_LT(largest_difference(*spread, *uncut), 1e-3);
  for (size_t k = 0; k < uncut->losses.size(); ++k)
    EXPECT_NEAR(spread->losses[k], uncut->losses[k], 1e-4) << "step " << k;
}

class WrongRows : public ::testing::TestWithParam<Case> {};

// Each part looks classes up from where its rows begin; another number is found, and trains
// otherwise.
TEST_P(WrongRows, AreFoundAndDiverge) {
  NEED_MODEL("llama-hf");
  const auto compiled = compile_case(GetParam());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  EXPECT_FALSE(is_found(compiled->set, *compiled->single));
  size_t tried = 0;
  PlanSet all = compiled->set;
  for (size_t r = 0; r < all.roles.size(); ++r)
    for (size_t p = 0; p < all.roles[r].programs.size(); ++p) {
      Program& program = all.roles[r].programs[p];
      const bool is_of_loss = std::ranges::any_of(
          program.ops, [](const ProgramOp& op) { return op.op.starts_with("CrossEntropy"); });
      for (size_t l = 0; l < program.literals.size() && is_of_loss; ++l) {
        if (program.values[static_cast<size_t>(program.literals[l].first)].dtype != DType::kI64)
          continue;
        PlanSet wrong = compiled->set;
        for (PlanSet* set : {&wrong, &all}) set->roles[r].programs[p].literals[l].second[0] ^= 1;
        ++tried;
        EXPECT_TRUE(is_found(wrong, *compiled->single)) << "role " << r << " program " << p;
      }
    }
  ASSERT_GT(tried, 0U);
  const Result<Trained> right = train(compiled->set, "llama-hf", 2),
                        other = train(all, "llama-hf", 2);
  ASSERT_TRUE(right && other);
  EXPECT_GT(largest_difference(*other, *right), 1e-3);
}

// A class behind the end of the vocabulary counts if an op takes it for longer.
TEST_P(WrongRows, OfAnotherVocabularyAreFound) {
  NEED_MODEL("llama-hf");
  const auto compiled = compile_case(GetParam());
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  size_t tried = 0;
  for (size_t r = 0; r < compiled->set.roles.size(); ++r)
    for (size_t p = 0; p < compiled->set.roles[r].programs.size(); ++p)
      for (size_t o = 0; o < compiled->set.roles[r].programs[p].ops.size(); ++o)
        for (const int64_t of : {96, 130, 256}) {
          PlanSet wrong = compiled->set;
          ProgramOp& op = wrong.roles[r].programs[p].ops[o];
          if (!op.op.starts_with("CrossEntropy") || !op.attrs.find("whole")) continue;
          op.attrs.set("whole", of);
          ++tried;
          EXPECT_TRUE(is_found(wrong, *compiled->single)) << op.op << " of " << of;
        }
  EXPECT_GT(tried, 0U);
}

INSTANTIATE_TEST_SUITE_P(All, WrongRows, ::testing::Values(kWhole, kCut),
                         [](const auto& info) { return info.param.name; });

// A part's sum that is left out, or counted twice.
TEST(PlacedPartsControl, WrongSumsAreFound) {
  NEED_MODEL("llama-hf");
  const auto compiled = compile_case({"", "llama-hf", kPp2, vocabulary(2, kHead2)});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  size_t tried = 0;
  for (size_t r = 0; r < compiled->set.roles.size(); ++r)
    for (size_t p = 0; p < compiled->set.roles[r].programs.size(); ++p) {
      const Program& program = compiled->set.roles[r].programs[p];
      if (program.ops.size() > 8) continue;  // joins are short
      for (size_t o = 0; o < program.ops.size(); ++o) {
        const ProgramOp& op = program.ops[o];
        if ((op.op != "Add" && op.op != "Max") || op.inputs.size() != 2) continue;
        for (const size_t kept : {0, 1}) {
          PlanSet wrong = compiled->set;
          std::vector<int32_t>& inputs = wrong.roles[r].programs[p].ops[o].inputs;
          if (inputs[0] == inputs[1]) continue;
          inputs[1 - kept] = inputs[kept];
          ++tried;
          EXPECT_TRUE(is_found(wrong, *compiled->single)) << program.label << " op " << o;
        }
      }
    }
  EXPECT_GE(tried, 6U);
}

// A part that says it is another, or is not there.
TEST(PlacedPartsControl, WrongPartsAreFound) {
  NEED_MODEL("llama-hf");
  const auto compiled = compile_case({"", "llama-hf", kPp2, vocabulary(2, kHead2)});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  size_t tried = 0;
  for (size_t r = 0; r < compiled->set.roles.size(); ++r)
    for (size_t t = 0; t < compiled->set.roles[r].tensors.size(); ++t) {
      const Tensor& tensor = compiled->set.roles[r].tensors[t];
      if (tensor.cuts.empty()) continue;
      PlanSet wrong = compiled->set;
      TensorCut& cut = wrong.roles[r].tensors[t].cuts[0];
      EXPECT_EQ(cut.axis, -1);
      cut.outer = 1 - cut.outer;
      ++tried;
      EXPECT_FALSE(check_role(wrong.roles[r])) << tensor.name;
      // With the names of the other one it is well made, and another device has its values, too.
      Tensor& other = wrong.roles[r].tensors[t];
      for (std::string* name : {&other.name, &other.param, &other.init})
        if (!name->empty()) (*name)[5] = static_cast<char>('0' + cut.outer);
      EXPECT_TRUE(check_role(wrong.roles[r])) << tensor.name;
      EXPECT_TRUE(is_found(wrong, *compiled->single)) << tensor.name;
    }
  EXPECT_EQ(tried, 6U);  // a matrix and two states, in two parts
}

TEST(PlacedPartsControl, RefuseWhatIsNotDone) {
  NEED_MODEL("llama-hf");
  const std::string plain = vocabulary(2, kHead2);
  const auto with = [&](std::string what, const std::string& by) {
    std::string text = plain;
    const size_t at = text.find(what);
    return text.replace(at, what.size(), by);
  };
  const std::pair<std::string, std::string> refused[] = {
      {"weight_versions: 2\n" + plain,
       "not supported: several versions of the weights beside parts that 'place' puts on devices"},
      {with(plain.substr(plain.find("      program"),
                         plain.find("  - split: {scope") - plain.find("      program")),
            "      policy: {prefer: [B, F]}\n"),
       "not supported: a policy beside parts that 'place' puts on devices"},
      {with("F B\n", "F & B\n"),
       "not supported: pairs ('&') beside parts that 'place' puts on devices"},
      {with("B\n", "B\n        S\n"), "not supported: 'S' in an order beside placed parts: 'part'"},
      {with("into: 2, as: part", "into: 3, as: part"), "cannot be cut into 3 equal parts"},
      {with("{pp: k}", "{pp: 0}"), ""},  // on one device: works
  };
  for (const auto& [directives, message] : refused) {
    const auto compiled = compile_case({"", "llama-hf", kPp2, directives});
    if (message.empty()) {
      EXPECT_TRUE(compiled) << print_error(compiled.error());
      continue;
    }
    ASSERT_FALSE(compiled) << message;
    EXPECT_THAT(print_error(compiled.error()),
                AllOf(HasSubstr(message), HasSubstr("strategy.yaml:")));
  }
  const auto compiled = compile_case({"", "llama-hf", kPp2, plain,
                                      "optimizer: {muon: {lr: 1e-2}}, groups: [{of: [vectors], "
                                      "optimizer: {adamw: {lr: 1e-3}}}]"});
  ASSERT_FALSE(compiled);
  EXPECT_THAT(print_error(compiled.error()),
              HasSubstr("not supported: muon of a part of a matrix"));
}

// ---- What it is for -----------------------------------------------------------------------------

// No device holds more than its share of the matrix and its states.
TEST(PlacedPartsUse, EachDeviceHoldsItsShare) {
  NEED_MODEL("llama-hf");
  const auto compiled = compile_case({"", "llama-hf", kPp2, vocabulary(2, kHead2)});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  for (const RoleProgram& role : compiled->set.roles) {
    int64_t parts = 0;
    for (const Tensor& tensor : role.tensors)
      if (!tensor.cuts.empty()) {
        ++parts;
        EXPECT_EQ(2 * num_elements(tensor.type.shape), num_elements(tensor.whole)) << tensor.name;
      }
    EXPECT_EQ(parts, 3);
  }
}

// ---- Files --------------------------------------------------------------------------------------

class PlacedPartsJobs : public SampleJobs {};

// A job goes on with its vocabulary cut otherwise or not at all, bit for bit where it adds up
// alike.
TEST_F(PlacedPartsJobs, GoOnCutOtherwise) {
  const std::string train = "train: {global_batch: 8, optimizer: {adamw: {lr: 2e-3}}}\n",
                    pipeline = "include: <1f1b>\nparams: {stages: 2, microbatches: 4}\n",
                    parts =
                        "include: <parts/vocabulary-pipeline>\n"
                        "params: {stages: 2, microbatches: 4}\n";
  compile("whole", pipeline, train);
  compile("parts", parts, train);
  const auto all = run("parts",
                       "--steps 6 --checkpoint " + path("all") + " --save " + path("all.st")),
             begin = run("parts", "--steps 3 --checkpoint " + path("begin")),
             rest = run("parts", "--steps 6 --resume " + path("begin") + " --checkpoint " +
                                     path("rest") + " --save " + path("rest.st"));
  for (const auto& one : {all, begin, rest}) ASSERT_EQ(one.first, 0) << one.second;
  EXPECT_TRUE(tensors_of("rest") == tensors_of("all"));
  // What was written by parts is read whole, and the other way round.
  const auto whole = run("whole", "--steps 4 --resume " + path("begin") + " --checkpoint " +
                                      path("whole.ck")),
             back = run("parts",
                        "--steps 6 --resume " + path("whole.ck") + " --checkpoint " + path("back"));
  for (const auto& one : {whole, back}) ASSERT_EQ(one.first, 0) << one.second;
}

}  // namespace
}  // namespace piper::placed_parts_test
