// Chunks of tokens that are tasks of their own: they train as whole samples do, keep less memory,
// and what mixes tokens is refused.
#include <gmock/gmock.h>

#include "equivalence/jobs.h"
#include "piper/inspect/summary.h"
#include "piper/plan/verify.h"

namespace piper {
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
    const Result<VerifyReport> report = verify_plan_set(compiled->set, &*compiled->single);
    ASSERT_TRUE(report) << print_error(report.error());
    for (const Finding& finding : report->findings)
      ADD_FAILURE() << finding.rule << " " << finding.text;
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
        Case{"tensor", kBatch + kChunks + kGptTensor, "{tp: 2}"},
        Case{"replicas",
             kChunks + "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n",
             "{dp: 2}"},
        pipeline("seq1f1b", "seq1f1b", ""),
        pipeline("seq1f1b_dp", "seq1f1b", "  - replicate: {over: dp}\n", "{dp: 2}",
                 ", token_chunks: 2"),
        pipeline("terapipe", "terapipe", ""),
        Case{"sizes",
             kBatch + "  - split: {dim: tokens, into: 4, sizes: [13, 9, 7, 3]}\n" + kAgain},
        Case{"by_cost", std::string("  - split: {dim: tokens, into: 4, by: cost}\n") + kGptTensor,
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
  refused({"", kChunks + "  - split: {dim: tokens, into: 2, as: more}\n"},
          "tokens are split twice");
  refused({"", kChunks + "  - split: {scope: \"**/fc\", dim: 1, into: 2}\n"},
          "a split of tokens together with a split by scope");
  refused({"", "  - split: {scope: \"**/fc\", dim: tokens, into: 2}\n"},
          "'dim: tokens' beside 'scope'");
  refused({"", "  - split: {dim: tokens, into: 2, sizes: [16, 15]}\n"}, "are 31 in all");
  refused({"", "  - split: {dim: tokens, into: 2, sizes: [32]}\n"}, "1 sizes of 2 chunks");
  refused({"", "  - split: {dim: tokens, into: 2, sizes: [16, 16], by: cost}\n"},
          "'by' beside 'sizes'");
  refused({"", "  - split: {dim: batch, into: 2, by: cost}\n"}, "'by' is for chunks of tokens");
  refused(
      {"", kChunks + kContext + "  - shard: {attention: \"**\", by: ring, over: cp}\n", "{cp: 2}"},
      "ring attention together with a split of tokens");
  refused(
      {"", kChunks + "  - place: {where: {stage: s, seq: k}, on: {pp: s}}\n", "{pp: 2}", kStages},
      "chunks of one sample on several devices");
}

}  // namespace
}  // namespace piper
