// Regions of ops that run in parts on one device: they train as uncut ones do, keep less memory,
// and what mixes all of a dim is refused.
#include <gmock/gmock.h>

#include "equivalence/jobs.h"
#include "piper/inspect/summary.h"
#include "piper/plan/verify.h"

namespace piper::parts_test {
namespace {

using namespace jobs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBatch = "  - split: {dim: batch, into: 2}\n";
// Tokens of two products and what is between them (ALST); of the loss; hidden units of the same
// products (nnScaler's co-shard); heads; samples of whole blocks (Domino); columns of one product.
const std::string kTokens =
    R"(  - split: {scope: ["**/h/{layer}/fc", "**/h/{layer}/fc_out"], dim: 1, into: 4}
)";
const std::string kLoss = R"(  - split: {scope: "**/lm_head", dim: 1, into: 4}
)";
const std::string kUnits =
    R"(  - split: {scope: ["**/h/{layer}/fc", "**/h/{layer}/fc_out"], tensor: "**/fc/*", dim: 0, into: 4}
)";
const std::string kSamplesInTurn = R"(  - split: {scope: "**/h/{layer}/**", dim: 0, into: 2}
)";
const std::string kColumns =
    R"(  - split: {scope: "**/h/{layer}/fc_out", tensor: "**/fc_out/*", dim: 0, into: 2}
)";
const std::string kAgain = R"(  - recompute: {where: {part: "*"}}
)";

// Tokens in blocks between the norms, of each of which a part has its share (AsyncTP).
const std::string kPieces =
    R"(  - split: {scope: ["**/h/{layer}/fc", "**/h/{layer}/fc_out"], dim: 1, into: 4, within: tp}
  - shard: {scope: "**/ln_*", dim: 1, over: tp}
)";

// The other products of a layer, too.
const std::string kBeside =
    R"(  - split: {scope: "**/h/{layer}/qkv", dim: 1, into: 4, within: tp, as: read}
  - split: {scope: "**/h/{layer}/proj", dim: 1, into: 4, within: tp, as: written}
)";

// Blocks over two axes, of which one has another use.
const std::string kPiecesOfAxes =
    R"(  - split: {scope: ["**/h/{layer}/fc", "**/h/{layer}/fc_out"], dim: 1, into: 2, within: [tp, u]}
  - shard: {scope: "**/ln_*", dim: 1, over: [tp, u]}
  - shard: {match: "**/fc/*", dim: 0, over: [tp, u]}
  - shard: {match: "**/fc_out/weight", dim: 1, over: [tp, u]}
  - shard: {match: "**/qkv/*", dim: 0, over: tp}
  - shard: {match: "**/proj/weight", dim: 1, over: tp}
)";

// Runs of states are cut once more from runs.
const std::string kNested = R"(  - replicate: {over: node, shard: [optimizer]}
  - replicate: {over: gpu, shard: [optimizer, gradients]}
)";
// Orders that name parts: each part of the loss backward right after its forward; parts of layers
// one by one, where two microbatches meet as well; halves of whole blocks in pairs.
const std::string kTwoStages = "annotate:\n  - balance: {tag: stage, into: 2}\n";
const std::string kOnStages = R"(  - place: {where: {stage: s}, on: {pp: s}}
  - order:
      each: pp
      program: |
)";
const std::string kOneDevice = R"(  - place: {on: {pp: 0}}
  - order:
      each: pp
      program: |
)";
const std::string kLossInTurn = kLoss + kOnStages + R"(        if r == 0:
          F F B B
        else:
          repeat M:
            for p in 0..4: F[part=p] B[part=p]
)";
const std::string kLossInHalves = kLoss + kOnStages + R"(        if r == 0:
          F F BI BI BW BW
        else:
          repeat M:
            for p in 0..4: F[part=p] BI[part=p]
            BW
)";
const std::string kPartByPart = kTokens + kOneDevice + R"(        for l in 0..8:
          for p in 0..4: F[part=p, mb=0]
        F[part=0] F[part=1] & B[part=0] F
        B
        B
)";

struct Case {
  std::string name, directives, mesh = "{}", include = "";
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

Result<Compiled> compile_parts(const Case& c, bool wide) {
  const Folder folder;
  CompileOptions options;
  options.model = model_path("gpt-deep", "model.onnx");
  options.strategy = folder.write(
      "strategy.yaml",
      fmt::format("piper: 1\n{}mesh: {}\ntrain: {{global_batch: 8, {}}}\ndirectives:\n{}{}",
                  c.include, c.mesh, kAdamW, wide ? "  - precision: {compute: f64}\n" : "",
                  c.directives));
  return compile(options);
}

class Parts : public ::testing::TestWithParam<Case> {};

// The single-device plan runs the same parts, so bits are the same where no axis cuts tensors.
TEST_P(Parts, TrainAsOneDeviceDoes) {
  NEED_MODEL("gpt");
  const Case& c = GetParam();
  const bool axes = c.mesh.find("tp") != c.mesh.npos;
  for (const bool wide : {true, false}) {
    SCOPED_TRACE(wide ? "f64" : "f32");
    const Result<Compiled> compiled = compile_parts(c, wide);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const Result<Trained> uncut = train(*compiled->uncut, "gpt-deep", 4),
                          single = train(*compiled->single, "gpt-deep", 4),
                          spread = train(compiled->set, "gpt-deep", 4);
    ASSERT_TRUE(uncut && single && spread);
    EXPECT_LT(largest_difference(*spread, *uncut), wide ? 1e-12 : 3e-4);
    for (size_t k = 0; k < uncut->losses.size(); ++k)
      EXPECT_NEAR(spread->losses[k], uncut->losses[k], wide ? 1e-12 : 1e-5) << "step " << k;
    // Over two nested axes the norm's squares are added up in other groups.
    const bool nested = c.mesh.find("node") != c.mesh.npos;
    if (nested) {
      EXPECT_LT(largest_difference(*spread, *single), wide ? 1e-12 : 1e-6);
    }
    if (!axes && !nested) expect_equal_bits(*spread, *single, "single device");
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Parts,
    ::testing::Values(
        Case{"tokens", kBatch + kTokens}, Case{"loss", kBatch + kLoss},
        Case{"loss_again", kBatch + kLoss + kAgain}, Case{"units", kBatch + kUnits},
        Case{"units_again", kUnits + kAgain}, Case{"samples", kSamplesInTurn},
        Case{"columns", kBatch + kColumns},
        Case{"two", kBatch + kTokens +
                        R"(  - split: {scope: "**/lm_head", dim: 1, into: 2, as: rows}
)"},
        Case{"tokens_dp", kBatch + kTokens + "  - replicate: {over: dp}\n", "{dp: 2}"},
        Case{"samples_nested", kSamplesInTurn + kNested, "{node: 2, gpu: 2}"},
        Case{"pieces_of_three", kPieces + kBeside + kGptTensor, "{tp: 2}"},
        Case{"tokens_tp", kTokens + kGptTensor, "{tp: 2}"},
        Case{"units_tp", kUnits + kGptTensor, "{tp: 2}"},
        Case{"samples_tp", kSamplesInTurn + kGptTensor, "{tp: 2}"},
        Case{"pieces_tp", kPieces + kGptTensor, "{tp: 2}"},
        Case{"pieces_of_axes", kPiecesOfAxes, "{tp: 2, u: 2}"},
        Case{"columns_tp", kColumns + kGptTensor, "{tp: 2}"},
        Case{"again_in_some", kBatch + kTokens +
                                  R"(  - recompute: {where: {part: "<2"}}
)"},
        Case{"streams_tp",
             kSamplesInTurn + kGptTensor +
                 R"(  - stream: {where: {kind: all_reduce, part: p}, name: "half{p}"}
)",
             "{tp: 2}"},
        Case{"loss_in_turn", kBatch + kLossInTurn, "{pp: 2}", kTwoStages},
        Case{"loss_in_turn_again", kBatch + kAgain + kLossInTurn, "{pp: 2}", kTwoStages},
        Case{"loss_in_turn_dp",
             kBatch + kLossInTurn +
                 "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n",
             "{pp: 2, dp: 2}", kTwoStages},
        Case{"loss_in_halves", kBatch + kLossInHalves, "{pp: 2}", kTwoStages},
        Case{"part_by_part", kBatch + kPartByPart, "{pp: 1}"},
        Case{"part_by_part_again", kBatch + kAgain + kPartByPart, "{pp: 1}"},
        Case{"part_by_part_tp", kBatch + kPartByPart + kGptTensor, "{pp: 1, tp: 2}"}),
    [](const auto& info) { return info.param.name; });

// What a part does must differ from another's: without its own tokens training diverges.
void expect_divergence(const Case& c) {
  const Result<Compiled> compiled = compile_parts(c, false);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet wrong = compiled->set;
  size_t changed = 0;
  for (RoleProgram& role : wrong.roles)
    for (Program& program : role.programs)
      for (ProgramOp& op : program.ops) {
        std::vector<int64_t> starts = op.attrs.integers("starts"), ends = op.attrs.integers("ends");
        const size_t dim = starts.size() == 4 ? 2 : 1;  // in blocks, or of all tokens
        if (op.op != "Slice" || starts.size() < 2 || starts[dim] == 0) continue;
        ends[dim] -= starts[dim], starts[dim] = 0;  // the first part again
        op.attrs.set("starts", starts), op.attrs.set("ends", ends);
        ++changed;
      }
  ASSERT_GT(changed, 0U);
  const Result<VerifyReport> report = verify_plan_set(wrong, &*compiled->single);
  ASSERT_TRUE(report) << print_error(report.error());
  EXPECT_FALSE(report->findings.empty());
  const Result<Trained> single = train(*compiled->single, "gpt-deep", 2),
                        other = train(wrong, "gpt-deep", 2);
  ASSERT_TRUE(single && other);
  EXPECT_GT(largest_difference(*other, *single), 1e-3);
}

TEST(PartsControl, OtherNumbersDiverge) {
  NEED_MODEL("gpt");
  expect_divergence({"", kBatch + kTokens});
  expect_divergence({"", kBatch + kPartByPart, "{pp: 1}"});
  expect_divergence({"", kPiecesOfAxes, "{tp: 2, u: 2}"});
}

// A wrong part in a plan is found, wherever it is: one used twice in a sum or a concatenation, or
// not at all.
TEST(PartsControl, WrongPartsAreFound) {
  NEED_MODEL("gpt");
  for (const std::string& directives : {kBatch + kTokens, kBatch + kUnits}) {
    const Result<Compiled> compiled = compile_parts({"", directives}, false);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    size_t tried = 0;
    for (size_t r = 0; r < compiled->set.roles.size(); ++r)
      for (size_t p = 0; p < compiled->set.roles[r].programs.size(); ++p) {
        const Program& program = compiled->set.roles[r].programs[p];
        for (size_t o = 0; o < program.ops.size(); ++o) {
          const ProgramOp& op = program.ops[o];
          if (op.op != "Concat" || op.inputs.size() != 4) continue;
          PlanSet wrong = compiled->set;
          std::vector<int32_t>& inputs = wrong.roles[r].programs[p].ops[o].inputs;
          inputs[tried % 3 + 1] = inputs[0];
          ++tried;
          const Result<VerifyReport> report = verify_plan_set(wrong, &*compiled->single);
          EXPECT_TRUE(!report || !report->findings.empty()) << "op " << o;
        }
      }
    EXPECT_GT(tried, 0U);
  }
}

// Messages of a kind over an axis in a step, and their bytes.
std::pair<int64_t, int64_t> sent(const Compiled& compiled, InstructionKind kind,
                                 const std::string& axis = "tp") {
  std::pair<int64_t, int64_t> all;
  for (const TrafficSummary& each : summarise(compiled.set).roles[0].traffic)
    if (each.kind == kind && each.over == axis && each.dtype == DType::kF32)
      all.first += each.messages, all.second += each.bytes;
  return all;
}

// Each part sends its own share: more messages, and no byte more.
TEST(PartsOfRegions, SendTheirSharesByThemselves) {
  NEED_MODEL("gpt");
  const auto whole = compile_parts({"", kGptTensor, "{tp: 2}"}, false),
             halves = compile_parts({"", kSamplesInTurn + kGptTensor, "{tp: 2}"}, false);
  ASSERT_TRUE(whole && halves);
  const auto once = sent(*whole, InstructionKind::kAllReduce),
             twice = sent(*halves, InstructionKind::kAllReduce);
  EXPECT_EQ(twice.first, 2 * once.first);
  EXPECT_EQ(twice.second, once.second);
  const std::string norms = "  - shard: {scope: \"**/ln_*\", dim: 1, over: tp}\n";
  const auto blocks = compile_parts({"", norms + kGptTensor, "{tp: 2}"}, false),
             pieces = compile_parts({"", kPieces + kGptTensor, "{tp: 2}"}, false);
  ASSERT_TRUE(blocks && pieces);
  for (const InstructionKind kind :
       {InstructionKind::kAllGather, InstructionKind::kReduceScatter}) {
    EXPECT_GT(sent(*pieces, kind).first, sent(*blocks, kind).first);
    EXPECT_EQ(sent(*pieces, kind).second, sent(*blocks, kind).second) << to_string(kind);
  }
}

// So do the parts of several splits: a scatter of each part of a layer's four, and no whole one.
TEST(PartsOfRegions, OfSeveralSplitsSendByThemselves) {
  NEED_MODEL("gpt");
  const auto all = compile_parts({"", kPieces + kBeside + kGptTensor, "{tp: 2}"}, false);
  ASSERT_TRUE(all) << print_error(all.error());
  EXPECT_EQ(sent(*all, InstructionKind::kReduceScatter).first, 8 * 4 * 4);
}

// So do parts of blocks over two axes, along each of them.
TEST(PartsOfRegions, OfBlocksOverTwoAxesSendByThemselves) {
  NEED_MODEL("gpt");
  std::string once = kPiecesOfAxes;
  once.replace(once.find("into: 2"), 7, "into: 1");
  const auto whole = compile_parts({"", once, "{tp: 2, u: 2}"}, false),
             parts = compile_parts({"", kPiecesOfAxes, "{tp: 2, u: 2}"}, false);
  ASSERT_TRUE(whole && parts) << print_error(whole ? parts.error() : whole.error());
  for (const char* const axis : {"tp", "u"})
    for (const InstructionKind kind :
         {InstructionKind::kAllGather, InstructionKind::kReduceScatter}) {
      const auto one = sent(*whole, kind, axis), two = sent(*parts, kind, axis);
      EXPECT_GE(two.first, one.first + 8) << axis << " " << to_string(kind);
      EXPECT_EQ(two.second, one.second) << axis << " " << to_string(kind);
    }
}

int64_t step_bytes(const Compiled& compiled) {
  int64_t bytes = 0;
  for (const RoleSummary& role : summarise(compiled.set).roles)
    bytes += role.step_bytes + role.workspace_bytes;
  return bytes;
}

// The logits of one part at a time, if each part runs again; and hidden units likewise.
TEST(PartsOfRegions, SaveMemory) {
  NEED_MODEL("gpt");
  for (const std::string& split : {kLoss, kTokens}) {
    const Result<Compiled> whole = compile_parts({"", kBatch}, false),
                           parts = compile_parts({"", kBatch + split + kAgain}, false);
    ASSERT_TRUE(whole && parts);
    EXPECT_LT(step_bytes(*parts), step_bytes(*whole)) << split;
  }
}

// One part of the loss forward and backward at a time keeps fewer logits, and makes none again.
TEST(PartsOfRegions, InTurnSaveMemory) {
  NEED_MODEL("gpt");
  const auto bytes = [](const std::string& directives) {
    const auto compiled = compile_parts({"", kBatch + directives, "{pp: 2}", kTwoStages}, false);
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    return compiled ? step_bytes(*compiled) : 0;
  };
  const std::string after = kOnStages + "        repeat M: F\n        repeat M: B\n";
  const std::string alternating =
      kOnStages + "        if r == 0:\n          F F B B\n        else:\n          F B F B\n";
  EXPECT_LT(bytes(kLossInTurn), bytes(kLoss + alternating));
  EXPECT_LT(bytes(kLoss + alternating), bytes(kLoss + after));
}

// Sums of each half of the samples travel on a stream of their own.
TEST(PartsOfRegions, HaveStreamsOfTheirOwn) {
  NEED_MODEL("gpt");
  const auto compiled =
      compile_parts({"",
                     kSamplesInTurn + kGptTensor +
                         "  - stream: {where: {kind: all_reduce, part: 1}, name: second}\n",
                     "{tp: 2}"},
                    false);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const RoleProgram& role = compiled->set.roles[0];
  std::map<std::string, int64_t> sums;  // by stream
  for (const Instruction& each : role.body)
    if (each.kind == InstructionKind::kAllReduce)
      ++sums[role.streams[static_cast<size_t>(each.stream)].name];
  EXPECT_EQ(sums["second"], 32);  // of 8 layers, 2 each way
}

TEST(PartsOfRegions, RefuseWrongOrders) {
  NEED_MODEL("gpt");
  const std::string head = kBatch + kLoss + kOneDevice;
  const std::pair<std::string, std::string> refused[] = {
      {head + "        repeat M: F[part=4] B\n", "no task of this device has part=4"},
      {head + "        repeat M: F[parts=0] B\n",
       "tasks have no tag 'parts' (did you mean 'part'?)"},
      {head + "        repeat M: F[part=0] B\n", "the program leaves 6 of 22 tasks out"},
      {head + "        repeat M: F B[part=1] B[part=0] B\n",
       "B of part 1 comes after that of part 0, whose results it needs"},
      {head + "        repeat M: F[part=0] F B\n        S\n",
       "not supported: 'S' in an order that names parts: 'part'"},
      {head + "        repeat M: F[part=0] F R? B\n",
       "not supported: 'R' in an order that names parts: 'part'"},
      {kBatch + kLoss + "  - stream: {where: {kind: compute, part: 1}, name: other}\n",
       "stream: matches nothing"},
  };
  for (const auto& [directives, message] : refused) {
    const Result<Compiled> compiled = compile_parts({"", directives, "{pp: 1}"}, false);
    ASSERT_FALSE(compiled) << message;
    const std::string text = print_error(compiled.error());
    EXPECT_THAT(
        text, AllOf(HasSubstr(message), HasSubstr("strategy.yaml:"), Not(HasSubstr("parts.span"))))
        << text;
  }
}

// An order that names parts goes with one part as well, as a sweep may ask for.
TEST(PartsOfRegions, MayBeOne) {
  NEED_MODEL("gpt");
  std::string one = kBatch + kLossInTurn;
  for (size_t at; (at = one.find("into: 4")) != one.npos;) one.replace(at, 7, "into: 1");
  one.replace(one.find("0..4"), 4, "0..1");
  const Result<Compiled> compiled = compile_parts({"", one, "{pp: 2}", kTwoStages}, false);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
}

TEST(PartsOfRegions, RefuseWhatMixesADim) {
  NEED_MODEL("gpt");
  const std::pair<std::string, std::string> wrong[] = {
      {R"(  - split: {scope: ["**/h/{layer}/qkv", "**/h/{layer}/proj"], dim: 1, into: 4}
)",
       "Attention"},
      {R"(  - split: {scope: ["**/h/{layer}/ln_2", "**/h/{layer}/fc"], dim: 2, into: 4}
)",
       "LayerNorm"},
  };
  for (const auto& [directive, op] : wrong) {
    const Result<Compiled> compiled = compile_parts({"", directive}, false);
    ASSERT_FALSE(compiled) << op;
    const std::string text = print_error(compiled.error());
    EXPECT_THAT(text, AllOf(HasSubstr("needs all of"), HasSubstr(op), HasSubstr(":5:5"))) << text;
  }
  const std::pair<std::string, std::string> refused[] = {
      {R"(  - split: {scope: "**/fcs", dim: 1, into: 4})", "no op's scope matches '**/fcs'"},
      {R"(  - split: {scope: "**/h/{layer}/fc", dim: 3, into: 4})", "has no dim 3"},
      {R"(  - split: {scope: "**/h/{layer}/fc", dim: 1, into: 5})",
       "cannot be cut into 5 equal parts"},
      {R"(  - split: {scope: "**/h/{layer}/fc", tensor: "**/proj/*", dim: 0, into: 2})",
       "no parameter that the scope reads matches"},
      {R"(  - split: {scope: "**/fc", dim: batch, into: 2})",
       "'dim: batch' cannot be combined with 'scope'"},
      {R"(  - split: {dim: 1, into: 2})", "dim 1 needs a scope"},
      {kTokens + R"(  - split: {scope: "**/h/{layer}/fc", dim: 1, into: 2, as: other})",
       "is in parts already"},
  };
  for (const auto& [directive, message] : refused) {
    const Result<Compiled> compiled = compile_parts({"", directive + "\n"}, false);
    ASSERT_FALSE(compiled) << message;
    EXPECT_THAT(print_error(compiled.error()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace piper::parts_test
