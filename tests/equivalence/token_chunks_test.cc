// Chunks of tokens and shares of samples that are tasks of their own: they train as whole samples
// and microbatches do, chunks keep less memory, shares are on devices of their own, and what mixes
// tokens or samples is refused.
#include <gmock/gmock.h>

#include <map>

#include "equivalence/jobs.h"
#include "piper/inspect/summary.h"
#include "piper/plan/verify.h"

namespace piper::token_chunks_test {
namespace {

using namespace jobs;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kBatch = "  - split: {dim: batch, into: 2}\n";
const std::string kChunks = "  - split: {dim: tokens, into: 4}\n";
const std::string kSequence = "  - shard: {scope: \"**/ln_*\", dim: 1, over: tp}\n";
const std::string kContext = R"(  - shard: {input: "*", dim: 1, over: cp}
  - shard: {match: "**", dim: none, over: cp}
)";
const std::string kTwoChunks = "  - split: {dim: tokens, into: 2}\n";
const std::string kZigzag = R"(  - shard: {input: "*", dim: 1, over: cp, order: zigzag}
  - shard: {match: "**", dim: none, over: cp}
)";
const std::string kRing = "  - shard: {attention: \"**\", by: ring, over: cp}\n";
// Tokens of each chunk over two axes: heads are exchanged along `b`, and keys go round along `cp`.
std::string two_axes(const std::string& order, const std::string& by = "heads") {
  return fmt::format(R"(  - shard: {{input: "*", dim: 1, over: [cp, b], order: {}}}
  - shard: {{match: "**", dim: none, over: [cp, b]}}
  - shard: {{attention: "**", by: {}, over: b}}
)",
                     order, by) +
         kRing;
}
// Hidden units of two products, or samples of whole blocks, in turn.
const std::string kUnits =
    R"(  - split: {scope: ["**/h/{layer}/fc", "**/h/{layer}/fc_out"], tensor: "**/fc/*", dim: 0, into: 4}
)";
const std::string kSamplesInTurn = R"(  - split: {scope: "**/h/{layer}/**", dim: 0, into: 2}
)";
const std::string kAgain = "  - recompute: {match: \"**/h/{layer}/**\"}\n";

// Backwards in halves; each device keeps weight halves back, so that those of chunks of both
// microbatches alternate, and are added in another order than on one device.
const std::string kStages = "annotate: [{balance: {tag: stage, into: 2}}]\n";
const std::string kHalves = R"(  - place: {where: {stage: s}, on: {pp: s}}
  - order:
      each: pp
      program: |
        repeat 5:     F
        repeat M*4-5: BI F
        repeat 5:     BI
        repeat M*4:   BW
)";

// Items that say no chunk take those of the backward that comes first.
const std::string kInTurn = R"(  - place: {where: {stage: s}, on: {pp: s}}
  - order:
      each: pp
      program: |
        repeat M*4: F
        repeat M*4: R BI BW
)";

// One device has three of the four samples of a microbatch, the other has one.
const std::string kShares = kBatch + "  - split: {dim: samples, into: 2, sizes: [3, 1]}\n";
const std::string kTwoRanks = "  - place: {where: {share: k}, on: {q: k}}\n";
// A stage on one rank beside one on two; a pipeline of two replicas.
const std::string kNarrowThenWide =
    "  - place: {where: {stage: 0}, on: {q: 0}}\n"
    "  - place: {where: {stage: 1, share: k}, on: {q: 1 + k}}\n";
const std::string kWideThenNarrow =
    "  - place: {where: {stage: 0, share: k}, on: {q: k}}\n"
    "  - place: {where: {stage: 1}, on: {q: 2}}\n";
const std::string kBothAxes = R"(  - place: {where: {stage: s, share: k}, on: {pp: s, q: k}}
  - order:
      each: pp
      program: |
        repeat min(M, P-r-1):      F
        repeat M - min(M, P-r-1):  F B
        repeat min(M, P-r-1):      B
)";

// A pipeline of the library, each of whose devices has both shares; and what names them, backwards
// in the order of the forwards.
const std::string kOneF1b = "include: <schedules/1f1b>\nparams: {stages: 2, microbatches: 2}\n";
const std::string kUnequal = "  - split: {dim: samples, into: 2, sizes: [3, 1]}\n";
const std::string kOneByOne = R"(  - name: order
    order:
      each: pp
      program: |
        for i in 0..M:
          F[mb=i, share=1] F[mb=i, share=0]
        for i in 0..M:
          B[mb=i, share=0] B[mb=i, share=1]
)";

// Items name parts of the loss for some chunks of tokens, or shares of samples, and others whole.
const std::string kLossInParts = "  - split: {scope: \"**/lm_head\", dim: 1, into: 2, as: part}\n";
const std::string kLossOfChunks = kLossInParts + R"(  - place: {where: {stage: s}, on: {pp: s}}
  - order:
      each: pp
      program: |
        if r == 0:
          repeat M*4: F
          repeat M*4: B
        else:
          repeat M:
            F F F
            for p in 0..2: F[seq=3, part=p]
            B[seq=3, part=0] B B B B
)";
const std::string kLossOfShares = kLossInParts + R"(  - place: {where: {stage: s}, on: {pp: s}}
  - order:
      each: pp
      program: |
        if r == 0:
          F F B B
        else:
          repeat M:
            F[share=0] B[share=0]
            for p in 0..2: F[share=1, part=p] B[share=1, part=p]
)";

struct Case {
  std::string name, directives, mesh = "{}", include = "", model = "gpt-deep";
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

// A pipeline of the library over two stages.
Case pipeline(const std::string& name, const std::string& schedule, const std::string& directives,
              const std::string& mesh = "{}", const std::string& params = "") {
  return {name, directives, mesh,
          fmt::format("include: <tokens/{}>\nparams: {{stages: 2, microbatches: 2{}}}\n", schedule,
                      params)};
}

Result<Compiled> compile_chunks(const Case& c, bool wide = false) {
  const Folder folder;
  const std::string directives = (wide ? "  - precision: {compute: f64}\n" : "") + c.directives;
  CompileOptions options;
  options.model = model_path(c.model, "model.onnx");
  options.strategy = folder.write(
      "strategy.yaml",
      fmt::format("piper: 1\n{}mesh: {}\ntrain: {{global_batch: 8, {}}}\n{}{}", c.include, c.mesh,
                  kAdamW, directives.empty() ? "" : "directives:\n", directives));
  options.library = {PIPER_SOURCE_DIR "/strategies"};
  return compile(options);
}

class TokenChunks : public ::testing::TestWithParam<Case> {};

// The single-device plan works through the same chunks, so bits are the same where no axis cuts
// tensors.
TEST_P(TokenChunks, TrainAsOneDeviceDoes) {
  NEED_MODEL("gpt");
  const Case& c = GetParam();
  const bool axes = c.mesh.find("tp") != c.mesh.npos || c.mesh.find("cp") != c.mesh.npos;
  for (const bool wide : {true, false}) {
    SCOPED_TRACE(wide ? "f64" : "f32");
    const Result<Compiled> compiled = compile_chunks(c, wide);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const Result<Trained> uncut = train(*compiled->uncut, c.model, 4),
                          single = train(*compiled->single, c.model, 4),
                          spread = train(compiled->set, c.model, 4);
    ASSERT_TRUE(uncut && single && spread);
    EXPECT_LT(largest_difference(*spread, *uncut), wide ? 1e-11 : 1e-3);
    for (size_t k = 0; k < uncut->losses.size(); ++k)
      EXPECT_NEAR(spread->losses[k], uncut->losses[k], wide ? 1e-12 : 1e-5) << "step " << k;
    if (!axes && c.name != "halves") expect_equal_bits(*spread, *single, "single device");
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TokenChunks,
    ::testing::Values(
        Case{"alone", kChunks}, Case{"batch", kBatch + kChunks},
        Case{"again", kBatch + kChunks + kAgain},
        Case{"sequence", kChunks + kGptTensor + kSequence, "{tp: 2}"},
        Case{"context", kChunks + kContext, "{cp: 2}"},
        Case{"heads", kChunks + kContext + "  - shard: {attention: \"**\", by: heads, over: cp}\n",
             "{cp: 2}"},
        Case{"heads_of_two",
             kTwoChunks + kContext + "  - shard: {attention: \"**\", by: heads, over: cp}\n",
             "{cp: 2}"},
        Case{"zigzag", kBatch + kTwoChunks + kZigzag, "{cp: 2}"},
        Case{"ring", kChunks + kContext + kRing, "{cp: 4}"},
        Case{"ring_zigzag", kBatch + kTwoChunks + kZigzag + kRing + kAgain, "{cp: 2}"},
        Case{"ring_zero3",
             kTwoChunks + kContext + kRing +
                 "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n",
             "{dp: 2, cp: 2}"},
        Case{"ring_tensor", kBatch + kTwoChunks + kGptTensor + kContext + kRing, "{tp: 2, cp: 2}"},
        Case{"ring_routed", kTwoChunks + kContext + kRing, "{cp: 2}", "", "qwen3-moe-hf"},
        pipeline("ring_seq1f1b", "seq1f1b", kContext + kRing, "{cp: 2}"),
        pipeline("usp_seq1f1b", "seq1f1b",
                 two_axes("zigzag") + kAgain +
                     "  - replicate: {over: dp, shard: [optimizer, gradients]}\n",
                 "{dp: 2, cp: 2, b: 2}", ", token_chunks: 2"),
        Case{"usp_sizes",
             "  - split: {dim: tokens, into: 2, sizes: [24, 8]}\n" + two_axes("contiguous"),
             "{b: 2, cp: 2}", "", "llama-hf"},
        Case{"two_rings_of_sizes",
             "  - split: {dim: tokens, into: 3, sizes: [16, 8, 8]}\n" + two_axes("zigzag", "ring"),
             "{cp: 2, b: 2}"},
        Case{"usp_of_shares",
             "  - split: {dim: samples, into: 2, sizes: [5, 3]}\n" + two_axes("zigzag"),
             "{cp: 2, b: 2}"},
        Case{"ring_sizes",
             "  - split: {dim: tokens, into: 4, sizes: [12, 8, 8, 4]}\n" + kContext + kRing,
             "{cp: 2}"},
        Case{"ring_of_shares",
             "  - split: {dim: samples, into: 2, sizes: [5, 3]}\n" + kContext + kRing, "{cp: 2}"},
        Case{"units", kBatch + kChunks + kUnits}, Case{"samples_in_turn", kChunks + kSamplesInTurn},
        Case{"units_ring", kTwoChunks + kUnits + kContext + kRing, "{cp: 2}"},
        Case{"units_tensor", kChunks + kGptTensor + kUnits, "{tp: 2}"},
        pipeline("units_seq1f1b", "seq1f1b", kUnits + kAgain),
        Case{"units_of_shares", kShares + kTwoRanks + kUnits, "{q: 2}"},
        Case{"tensor", kBatch + kChunks + kGptTensor, "{tp: 2}"},
        Case{"replicas",
             kChunks + "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n",
             "{dp: 2}"},
        pipeline("seq1f1b", "seq1f1b", ""),
        Case{"loss_of_chunks", kBatch + kChunks + kLossOfChunks, "{pp: 2}", kStages},
        Case{"loss_of_shares", kShares + kLossOfShares, "{pp: 2}", kStages},
        pipeline("seq1f1b_dp", "seq1f1b", "  - replicate: {over: dp}\n", "{dp: 2}",
                 ", token_chunks: 2"),
        pipeline("seq1f1b_zb", "seq1f1b-zb", ""), pipeline("terapipe", "terapipe", ""),
        Case{"shares_in_turn", kShares}, Case{"shares", kShares + kTwoRanks, "{q: 2}"},
        Case{"shares_in_a_pipeline", kUnequal, "{}", kOneF1b},
        Case{"shares_one_by_one", kUnequal + kOneByOne, "{}", kOneF1b},
        Case{"shares_narrow", kShares + kNarrowThenWide, "{q: 3}", kStages, "bert-hf"},
        Case{"shares_wide", kShares + kWideThenNarrow + kAgain, "{q: 3}", kStages},
        Case{"shares_1f1b", kShares + kBothAxes + "  - recompute: {}\n", "{pp: 2, q: 2}", kStages,
             "llama-hf"},
        Case{"shares_tensor",
             kShares + kTwoRanks + kGptTensor + "  - replicate: {over: dp, shard: [optimizer]}\n",
             "{q: 2, dp: 1, tp: 2}"},
        Case{"shares_zero3",
             "  - split: {dim: samples, into: 2, sizes: [3, 1]}\n" + kTwoRanks +
                 "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n",
             "{q: 2, dp: 2}"},
        Case{"sizes",
             kBatch + "  - split: {dim: tokens, into: 4, sizes: [13, 9, 7, 3]}\n" + kAgain},
        Case{"sizes_that_three_do_not_divide",
             kBatch + "  - split: {dim: tokens, into: 3, sizes: [16, 8, 8]}\n" + kAgain},
        Case{"sizes_ring",
             "  - split: {dim: tokens, into: 3, sizes: [16, 12, 4]}\n" + kContext + kRing,
             "{cp: 2}"},
        Case{"three_of_eight_samples",
             "  - split: {dim: samples, into: 3, sizes: [4, 3, 1]}\n" + kTwoRanks, "{q: 3}"},
        Case{"three_by_cost", "  - split: {dim: tokens, into: 3, by: cost}\n"},
        Case{"three_by_cost_of_ranks", "  - split: {dim: tokens, into: 3, by: cost}\n" + kContext,
             "{cp: 2}"},
        Case{"by_cost",
             std::string("  - split: {dim: tokens, into: 4, by: cost}\n") + kGptTensor + kSequence,
             "{tp: 2}"},
        Case{"llama", kBatch + "  - split: {dim: tokens, into: 2, sizes: [20, 12]}\n", "{}", "",
             "llama-hf"},
        Case{"routed", kBatch + kChunks, "{}", "", "qwen3-moe-hf"},
        Case{"in_turn", kBatch + kChunks + kAgain + kInTurn, "{pp: 2}", kStages},
        Case{"halves", kBatch + kChunks + kHalves, "{pp: 2}", kStages}),
    [](const auto& info) { return info.param.name; });

// ---- Controls -----------------------------------------------------------------------------------

bool is_found(const PlanSet& wrong, const Compiled& compiled) {
  const Result<VerifyReport> report = verify_plan_set(wrong, &*compiled.single);
  return !report || !report->findings.empty();
}

// Carried keys that are dropped, so that a chunk sees its own in their place, diverge.
TEST(TokenChunksControl, DroppedKeysDiverge) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled = compile_chunks({"", kBatch + kChunks});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet wrong = compiled->set;
  size_t changed = 0;
  for (RoleProgram& role : wrong.roles)
    for (Program& program : role.programs)
      for (ProgramOp& op : program.ops) {
        if (op.op != "Concat" || op.inputs.size() < 2 || op.attrs.integer("axis") == 0) continue;
        for (int32_t& input : op.inputs) input = op.inputs.back();
        ++changed;
      }
  ASSERT_GT(changed, 0U);
  EXPECT_TRUE(is_found(wrong, *compiled));
  const Result<Trained> single = train(*compiled->single, "gpt-deep", 2),
                        other = train(wrong, "gpt-deep", 2);
  ASSERT_TRUE(single && other);
  EXPECT_GT(largest_difference(*other, *single), 1e-3);
}

// Each value that one task of a device hands to another: another one of its type in its place is
// found, as is one that is not made yet.
TEST(TokenChunksControl, WrongCarriedValuesAreFound) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled = compile_chunks(pipeline("", "seq1f1b", ""));
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& set = compiled->set;
  size_t tried = 0;
  for (size_t r = 0; r < set.roles.size(); ++r) {
    const RoleProgram& role = set.roles[r];
    std::map<int32_t, size_t> made_by;  // by buffer: the instruction
    for (size_t i = 0; i < role.body.size(); ++i) {
      const Instruction& one = role.body[i];
      if (one.kind != InstructionKind::kCompute || !is_ordered(one.pass)) continue;
      for (size_t a = 0; a < one.args.size(); ++a) {
        const auto from = made_by.find(one.args[a]);
        const bool carried = from != made_by.end() && role.body[from->second].pass == one.pass &&
                             role.body[from->second].label != one.label;
        if (!carried || ++tried % 7 != 0) continue;  // some of them
        for (const int32_t other : {one.args[a] - 1, one.args[a] + 1}) {
          if (other < 0 || other >= std::ssize(role.buffers) ||
              role.tensor(other).type != role.tensor(one.args[a]).type)
            continue;
          PlanSet wrong = set;
          wrong.roles[r].body[i].args[a] = other;
          EXPECT_TRUE(is_found(wrong, *compiled)) << role.tensor(one.args[a]).name;
        }
      }
      for (size_t a = 0; a < one.args.size(); ++a) made_by.try_emplace(one.args[a], i);
    }
  }
  EXPECT_GT(tried, 50U);
}

// Of tokens that ranks have blocks of, within a chunk: where one begins is not where its chunk
// does.
TEST(TokenChunksControl, WrongPositionsAreFound) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled = compile_chunks({"", kChunks + kContext, "{cp: 2}"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& set = compiled->set;
  size_t tried = 0;
  for (size_t r = 0; r < set.roles.size(); ++r)
    for (size_t p = 0; p < set.roles[r].programs.size(); ++p) {
      const std::vector<ProgramOp>& ops = set.roles[r].programs[p].ops;
      for (size_t o = 0; o < ops.size(); ++o)
        for (const ProgramOp& add : ops) {
          if (ops[o].op != "Attention" || ops[o].inputs.size() < 5 || add.op != "Add" ||
              add.outputs[0] != ops[o].inputs[4])
            continue;
          ++tried;
          for (const int32_t input : add.inputs) {
            PlanSet wrong = set;
            wrong.roles[r].programs[p].ops[o].inputs[4] = input;
            EXPECT_TRUE(is_found(wrong, *compiled)) << "op " << o;
          }
        }
    }
  EXPECT_GE(tried, 4U);
}

// Keys of several chunks that go round: a turn that is left out, or of another rank, and numbers of
// other keys.
TEST(TokenChunksControl, WrongTurnsOfKeysAreFound) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled =
      compile_chunks({"", kTwoChunks + kContext + kRing, "{cp: 4}"}, true);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Result<Trained> uncut = train(*compiled->uncut, "gpt-deep", 2);
  ASSERT_TRUE(uncut) << print_error(uncut.error());
  const std::vector<Instruction>& body = compiled->set.roles[0].body;
  size_t tried = 0, trained = 0;
  for (size_t i = 0; i < body.size(); ++i) {
    const bool rotates = body[i].kind == InstructionKind::kRotate;
    if (!rotates && (body[i].kind != InstructionKind::kPosition || body[i].turn == 0)) continue;
    for (const bool left_out : {false, true}) {
      PlanSet wrong = compiled->set;
      Instruction& one = wrong.roles[0].body[i];
      if (left_out && rotates)
        one.kind = InstructionKind::kCopy, one.group = -1, one.turn = 0;
      else if (left_out)
        one.outer = 3 - one.outer;  // as many stretches as the keys of another chunk have
      else
        one.turn = one.turn % 3 + 1;
      EXPECT_TRUE(is_found(wrong, *compiled)) << i << " " << body[i].label;
      if (!rotates || ++tried % 50 != 0) continue;
      const Result<Trained> ran = train(wrong, "gpt-deep", 2);
      ASSERT_TRUE(ran) << print_error(ran.error());
      EXPECT_GT(largest_difference(*ran, *uncut), 1e-9) << i << " " << body[i].label;
      ++trained;
    }
  }
  EXPECT_GT(tried, 100U);
  EXPECT_GT(trained, 1U);
}

// Tokens of chunks over two axes: blocks, numbers and heads along the other axis, and keys that do
// not go round.
TEST(TokenChunksControl, BlocksOfTheOtherAxisAreFound) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled =
      compile_chunks({"", kTwoChunks + two_axes("zigzag"), "{cp: 2, b: 2}"}, true);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Result<Trained> uncut = train(*compiled->uncut, "gpt-deep", 2);
  ASSERT_TRUE(uncut) << print_error(uncut.error());
  const std::vector<Instruction>& body = compiled->set.roles[0].body;
  const auto first = [&](InstructionKind kind) {
    return *std::ranges::find(body, kind, &Instruction::kind);
  };
  const Instruction round = first(InstructionKind::kRotate),
                    heads = first(InstructionKind::kAllToAll);
  std::map<InstructionKind, size_t> met, tried;
  for (size_t i = 0; i < body.size(); ++i) {
    const InstructionKind kind = body[i].kind;
    const bool of_one_axis = body[i].group == round.group || body[i].group == heads.group;
    const bool is_meant = kind == round.kind || kind == heads.kind ||
                          kind == InstructionKind::kPosition || kind == InstructionKind::kOwnPart;
    if (!is_meant || !of_one_axis || met[kind]++ % 7 != 0) continue;  // layers are alike
    PlanSet wrong = compiled->set;
    Instruction& one = wrong.roles[0].body[i];
    if (kind == InstructionKind::kRotate) {
      one.kind = InstructionKind::kCopy, one.group = one.communicator = -1, one.turn = 0;
    } else {
      const Instruction& other = one.group == round.group ? heads : round;
      one.group = other.group;
      if (one.communicator >= 0) one.communicator = other.communicator;
    }
    EXPECT_TRUE(is_found(wrong, *compiled)) << i << " " << one.label;
    if (++tried[kind] != 2) continue;
    const Result<Trained> ran = train(wrong, "gpt-deep", 2);
    ASSERT_TRUE(ran) << print_error(ran.error());
    EXPECT_GT(largest_difference(*ran, *uncut), 1e-9) << i << " " << one.label;
  }
  EXPECT_EQ(tried.size(), 4U);
  for (const auto& [kind, count] : tried) EXPECT_GE(count, 2U) << static_cast<int>(kind);
}

// A chunk that runs before the one whose keys it reads.
TEST(TokenChunksControl, EarlyChunksAreFound) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled = compile_chunks({"", kBatch + kChunks});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const std::vector<Instruction>& body = compiled->set.roles[0].body;
  std::vector<size_t> begins;  // of tasks
  for (size_t i = 0; i < body.size(); ++i)
    if (i == 0 || body[i].label != body[i - 1].label) begins.push_back(i);
  size_t tried = 0;
  for (size_t t = 0; t + 2 < begins.size(); ++t) {
    const Instruction &before = body[begins[t]], &one = body[begins[t + 1]];
    if (one.kind != InstructionKind::kCompute || before.kind != one.kind ||
        one.pass != before.pass || one.micro != before.micro || !is_ordered(one.pass))
      continue;
    PlanSet wrong = compiled->set;
    const auto at = [&](size_t task) {
      return wrong.roles[0].body.begin() + static_cast<std::ptrdiff_t>(begins[task]);
    };
    std::rotate(at(t), at(t + 1), at(t + 2));
    ++tried;
    EXPECT_TRUE(is_found(wrong, *compiled)) << one.label;
  }
  EXPECT_GT(tried, 4U);
}

// A share that takes other samples than its own: the plan is refused beside the single-device plan.
// It trains another model, unless it only counts labels and both samples have as many.
TEST(TokenChunksControl, SamplesOfAnotherShareAreFound) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled = compile_chunks({"", kShares + kTwoRanks, "{q: 2}"}, true);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Result<Trained> uncut = train(*compiled->uncut, "gpt-deep", 2);
  ASSERT_TRUE(uncut) << print_error(uncut.error());
  size_t tried = 0, others = 0;
  for (size_t r = 0; r < compiled->set.roles.size(); ++r)
    for (size_t p = 0; p < compiled->set.roles[r].programs.size(); ++p)
      for (size_t o = 0; o < compiled->set.roles[r].programs[p].ops.size(); ++o) {
        PlanSet wrong = compiled->set;
        ProgramOp& slice = wrong.roles[r].programs[p].ops[o];
        std::vector<int64_t> starts{3, 0}, ends{4, 32};
        if (slice.op != "Slice" || slice.attrs.integers("starts") != starts ||
            slice.attrs.integers("ends") != ends)
          continue;
        slice.attrs.set("starts", std::vector<int64_t>{2, 0});
        slice.attrs.set("ends", std::vector<int64_t>{3, 32});
        ++tried;
        EXPECT_TRUE(is_found(wrong, *compiled)) << slice.op;
        const Result<Trained> ran = train(wrong, "gpt-deep", 2);
        ASSERT_TRUE(ran) << print_error(ran.error());
        others += largest_difference(*ran, *uncut) > 1e-6;
      }
  EXPECT_GE(others, 2U);
  EXPECT_LE(tried, 2 * others);
}

int64_t step_bytes(const Compiled& compiled) {
  int64_t most = 0;
  for (const RoleSummary& role : summarise(compiled.set).roles)
    most = std::max(most, role.step_bytes);
  return most;
}

// The first of four stages holds four samples, or seven chunks of which a sample has four.
TEST(TokenChunksOfSamples, KeepLessThanWholeSamples) {
  NEED_MODEL("gpt");
  const auto of = [](const std::string& schedule, const std::string& more) {
    return compile_chunks(
        {"", "", "{}",
         fmt::format("include: <{}>\nparams: {{stages: 4, microbatches: 8{}}}\n", schedule, more)});
  };
  const Result<Compiled> whole = of("schedules/1f1b", ""),
                         chunks = of("tokens/seq1f1b", ", token_chunks: 4");
  ASSERT_TRUE(whole && chunks);
  EXPECT_LT(step_bytes(*chunks), step_bytes(*whole));
}

TEST(TokenChunksOfSamples, SayThatOneChunkCutsNothing) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled = compile_chunks({"", "  - split: {dim: tokens, into: 1}\n"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  std::string text;
  for (const Explanation& each : compiled->explanations)
    for (const std::string& line : each.lines) text += line + "\n";
  EXPECT_THAT(text, HasSubstr("nothing is cut"));
}

// Two chunks of a causal attention leave each rank its tokens, as four do.
// Backwards go in reverse, also where no chunk needs the gradients of a later one.
TEST(TokenChunks, WhatIsTrainedBehindTheLastAttentionIsAddedUpInReverse) {
  NEED_MODEL("gpt");
  const std::string params = "params: {stages: 2, microbatches: 1, token_chunks: 4}\n";
  for (const std::string order :
       {"", "include: <tokens/seq1f1b>\n", "include: <tokens/terapipe>\n"})
    for (const char* trained : {"h/7/fc", "ln_f"}) {
      SCOPED_TRACE(order + trained);
      const Result<Compiled> compiled =
          compile_chunks({"", order.empty() ? kChunks : "", "{}",
                          fmt::format("{}parameters: [{{freeze: ['**', '!**/{}/*']}}]\n",
                                      order.empty() ? "" : order + params, trained)});
      ASSERT_TRUE(compiled) << print_error(compiled.error());
      const Result<Trained> single = train(*compiled->single, "gpt-deep", 3),
                            spread = train(compiled->set, "gpt-deep", 3);
      ASSERT_TRUE(single && spread);
      expect_equal_bits(*spread, *single, order + trained);
    }
}

TEST(TokenChunks, EachRankHasItsTokensOfEachChunk) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled = compile_chunks({"", kTwoChunks + kContext, "{cp: 2}"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  int64_t rows = 0;  // of products of the forward
  for (const RoleProgram& role : compiled->set.roles)
    for (const Program& program : role.programs)
      for (const ProgramOp& op : program.ops)
        if (op.op == "LayerNorm")
          rows = std::max(rows, program.values[static_cast<size_t>(op.inputs[0])].shape[1]);
  EXPECT_EQ(rows, 8);  // of 32 tokens in two chunks over two ranks
}

// All gradients of a stage are an S, of whichever chunk its terms are put together last.
// The keys of all chunks of one sample look like those of several samples.
// Rows of each chunk go to the ranks of their experts, whose samples an axis cuts.
TEST(TokenChunks, SendRowsToExperts) {
  NEED_MODEL("gpt");
  size_t sent[2] = {};
  for (const bool in_chunks : {false, true}) {
    const Result<Compiled> compiled =
        compile_chunks({"",
                        std::string(in_chunks ? kTwoChunks : "") +
                            "  - shard: {input: \"*\", dim: 0, over: ep}\n"
                            "  - shard: {match: \"**/experts/*\", dim: 0, over: ep}\n",
                        "{ep: 2}", "", "qwen3-moe-hf"});
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    for (const Instruction& one : compiled->set.roles[0].body)
      sent[in_chunks] += one.kind == InstructionKind::kDispatch;
  }
  EXPECT_GT(sent[0], 0U);
  EXPECT_EQ(sent[1], 2 * sent[0]);
}

TEST(TokenChunks, ARankMayHaveOneSample) {
  NEED_MODEL("gpt");
  const Folder folder;
  CompileOptions options;
  options.model = model_path("gpt-deep", "model.onnx");
  options.strategy = folder.write("strategy.yaml",
                                  "piper: 1\nmesh: {dp: 2}\ntrain: {global_batch: 8, optimizer: "
                                  "{adafactor: {}}}\ndirectives:\n  - split: {dim: batch, into: "
                                  "4}\n  - replicate: {over: dp, shard: [optimizer]}\n" +
                                      kTwoChunks);
  const Result<Compiled> compiled = compile(options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Result<Trained> single = train(*compiled->single, "gpt-deep", 3),
                        spread = train(compiled->set, "gpt-deep", 3);
  ASSERT_TRUE(single && spread);
  expect_equal_bits(*spread, *single, "single device");
}

TEST(TokenChunks, AStageHasOneS) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled =
      compile_chunks({"", kBatch + kTwoChunks + R"(  - replicate: {over: dp}
  - place: {where: {stage: s}, on: {pp: s}}
  - order: {each: pp, program: "repeat 2*M: F; repeat 2*M: B; S"}
)",
                      "{pp: 2, dp: 2}", kStages});
  EXPECT_TRUE(compiled) << print_error(compiled.error());
}

// A limit of microbatches lets all chunks, or shares, of so many through.
TEST(TokenChunks, CountAsPartsOfAMicrobatchInFlight) {
  NEED_MODEL("gpt");
  for (const std::string& cut : {kBatch + kTwoChunks, kShares}) {
    const Result<Compiled> compiled =
        compile_chunks({"", cut + R"(  - place: {where: {stage: s}, on: {pp: s}}
  - order: {each: pp, policy: {prefer: [B, F], in_flight: 1}}
)",
                        "{pp: 2}", kStages});
    EXPECT_TRUE(compiled) << cut << print_error(compiled.error());
  }
}

TEST(TokenChunksOfSamples, RefuseWhatMixesTokens) {
  NEED_MODEL("gpt");
  const auto refused = [](Case c, const std::string& message) {
    const Result<Compiled> compiled = compile_chunks(c);
    ASSERT_FALSE(compiled) << message;
    const std::string text = print_error(compiled.error());
    EXPECT_THAT(text, AllOf(HasSubstr(message), HasSubstr("strategy.yaml:"))) << text;
  };
  refused({"", kChunks, "{}", "", "bert-hf"}, "is not causal");
  refused({"", kChunks, "{}", "", "moe-gshard"}, "CumSum");
  refused({"", kChunks, "{}", "", "mlp"}, "no input has tokens");
  refused({"", "  - split: {dim: tokens, into: 5}\n"}, "cannot be cut into 5 chunks");
  refused({"", "  - split: {dim: tokens, into: 40, by: cost}\n"}, "each has one or more");
  refused({"", kChunks + "  - split: {dim: tokens, into: 2, as: more}\n"},
          "tokens are split twice");
  refused({"", "  - split: {scope: \"**/fc\", dim: tokens, into: 2}\n"},
          "'dim: tokens' cannot be combined with 'scope'");
  refused({"", "  - split: {dim: tokens, into: 2, sizes: [16, 15]}\n"}, "are 31 in all");
  refused({"", "  - split: {dim: tokens, into: 2, sizes: [32]}\n"}, "1 sizes of 2 chunks");
  refused({"", "  - split: {dim: tokens, into: 2, sizes: [16, 16], by: cost}\n"},
          "'by' cannot be combined with 'sizes'");
  refused({"", "  - split: {dim: batch, into: 2, by: cost}\n"}, "'by' is for chunks of tokens");
  refused({"", "  - split: {dim: samples, into: 3}\n"},
          "8 samples a microbatch cannot be cut into 3 shares");
  refused({"", "  - split: {dim: samples, into: 2, sizes: [3, 4]}\n"},
          "shares of 3, 4 samples are 7 in all, but a microbatch has 8");
  refused({"", "  - split: {dim: samples, into: 2, by: cost}\n"}, "'by' is for chunks of tokens");
  refused({"", kShares + kChunks}, "not supported: chunks of tokens beside shares of samples");
  refused({"", kShares + "  - split: {dim: samples, into: 2, as: more}\n"},
          "samples are split twice");
  refused({"", kShares + "  - replicate: {over: q}\n" + kTwoRanks, "{q: 2}"},
          "axis 'q' is already used by place");
  refused({"", kBatch + kTwoChunks + R"(  - place: {where: {stage: s}, on: {pp: s}}
  - order:
      each: pp
      program: |
        repeat M: F
        repeat M: B
)",
           "{pp: 2}", kStages},
          "so a stage has M*2 forwards");
  refused({"", "  - split: {dim: tokens, into: 2, sizes: [28, 4]}\n" + two_axes("zigzag"),
           "{cp: 2, b: 2}"},
          "28 are left of dim 1 of 'input_ids', which cannot be cut into 8 equal parts");
  refused(
      {"", kChunks + "  - place: {where: {stage: s, seq: k}, on: {pp: s}}\n", "{pp: 2}", kStages},
      "chunks of one sample on several devices");
}

}  // namespace
}  // namespace piper::token_chunks_test
