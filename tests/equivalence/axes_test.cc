// Tensors cut over mesh axes, three steps of real exports: every rank of tensor-parallel,
// sequence-parallel and context-parallel meshes, beside pipelines, replicas and ZeRO, trains as one
// device does that cuts nothing, in f64 to the last digits.
#include "communicators.h"
#include "equivalence/jobs.h"
#include "piper/inspect/summary.h"
#include "piper/plan/verify.h"
#include "seed.h"

namespace piper::axes_test {
namespace {

using namespace jobs;

constexpr int64_t kSteps = 3;  // with two updates before the last

// What a user writes to cut a model's tensors; one directive a line.
const std::map<std::string, std::string> kTensor = {
    {"gpt-deep", jobs::kGptTensor},
    {"llama-hf", R"(  - shard: {match: "**/q_proj/weight", dim: 0, over: tp}
  - shard: {match: "**/k_proj/weight", dim: 0, over: tp}
  - shard: {match: "**/v_proj/weight", dim: 0, over: tp}
  - shard: {match: "**/o_proj/weight", dim: 1, over: tp}
  - shard: {match: "**/gate_proj/weight", dim: 0, over: tp}
  - shard: {match: "**/up_proj/weight", dim: 0, over: tp}
  - shard: {match: "**/down_proj/weight", dim: 1, over: tp}
)"},
};
const std::map<std::string, std::string> kSequence = {
    {"gpt-deep", R"(  - shard: {scope: "**/ln_*", dim: 1, over: tp}
)"},
    {"llama-hf", R"(  - shard: {scope: "**/*_layernorm", dim: 1, over: tp}
)"},
};

// Tokens in blocks, and heads where attention meets them all.
const std::string kTokens = R"(  - shard: {input: "*", dim: 1, over: cp}
  - shard: {match: "**", dim: none, over: cp}
)";
// Of twice as many blocks one from each end.
const std::string kZigzag = R"(  - shard: {input: "*", dim: 1, over: cp, order: zigzag}
  - shard: {match: "**", dim: none, over: cp}
)";
const std::string kZigzagHeads = kZigzag + "  - shard: {attention: \"**\", by: heads, over: cp}\n";
const std::string kZigzagRing = kZigzag + "  - shard: {attention: \"**\", by: ring, over: cp}\n";
const std::string kHeads = kTokens + "  - shard: {attention: \"**\", by: heads, over: cp}\n";
const std::string kRing = kTokens + "  - shard: {attention: \"**\", by: ring, over: cp}\n";

// Samples in blocks, and experts where they meet the tokens of all.
const std::string kExperts = R"(  - shard: {input: "*", dim: 0, over: ep}
  - shard: {match: ["**/w_in", "**/w_out"], dim: 0, over: ep}
)";
// Experts that are looked up for each token: of all tokens, or of samples in blocks.
const std::string kLookups = "  - shard: {match: \"**/experts/*\", dim: 0, over: ep}\n";
const std::string kSamples = "  - shard: {input: \"*\", dim: 0, over: ep}\n";
// Each expert's own products in blocks, too.
const std::string kLookedUpTensor = R"(  - shard: {match: "**/gate_up_proj", dim: 1, over: tp}
  - shard: {match: "**/down_proj", dim: 2, over: tp}
)";
const std::string kExpertTensor = R"(  - shard: {match: "**/w_in", dim: 2, over: tp}
  - shard: {match: "**/w_out", dim: 1, over: tp}
)";

const std::map<std::string, std::string> kRows = {
    {"gpt-deep", R"(  - shard: {match: "**/wte/*", dim: 0, over: tp}
)"},
    {"llama-hf", R"(  - shard: {match: ["**/embed_tokens/*", "**/lm_head/*"], dim: 0, over: tp}
)"},
};

// The same over `axis`, where that does not divide what is cut.
std::string with_zeros(std::string directives, const std::string& axis = "tp") {
  for (size_t at = 0; (at = directives.find(", over: ", at)) != directives.npos; ++at)
    directives.replace(at, 11, ", over: " + axis + ", pad: true}");
  return directives;
}

struct Case {
  std::string name, model, mesh, directives;
  std::string include = "";  // a file of the library
  bool in_f32 = true;        // it trains so, too, in orders that only devices that queue have
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

std::string strategy_of(const Case& c, const std::string& train, bool wide) {
  return fmt::format("piper: 1\n{}mesh: {}\ntrain: {{global_batch: 8, {}}}\ndirectives:\n{}{}",
                     c.include, c.mesh, train, wide ? "  - precision: {compute: f64}\n" : "",
                     c.directives);
}

Result<Compiled> compile_case(const Case& c, const std::string& train, bool wide) {
  const Folder folder;
  CompileOptions options;
  options.model = model_path(c.model, "model.onnx");
  options.strategy = folder.write("strategy.yaml", strategy_of(c, train, wide));
  return compile(options);
}

class Axes : public ::testing::TestWithParam<Case> {};

TEST_P(Axes, TrainAsOneDeviceDoes) {
  NEED_MODEL("gpt");
  const Case& c = GetParam();
  for (const bool wide : {true, false}) {
    if (!wide && !c.in_f32) continue;
    SCOPED_TRACE(wide ? "f64" : "f32");
    const Result<Compiled> compiled = compile_case(c, kAdamW, wide);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const Result<Trained> uncut = train(*compiled->uncut, c.model, kSteps);
    ASSERT_TRUE(uncut) << print_error(uncut.error());
    const Result<Trained> spread = train(compiled->set, c.model, kSteps);
    ASSERT_TRUE(spread) << print_error(spread.error());
    for (size_t k = 0; k < uncut->losses.size(); ++k) {
      EXPECT_NEAR(spread->losses[k], uncut->losses[k], wide ? 1e-12 : 1e-5) << "step " << k;
      EXPECT_NEAR(spread->norms[k], uncut->norms[k], wide ? 1e-11 : 1e-4) << "step " << k;
    }
    EXPECT_LT(largest_difference(*spread, *uncut), wide ? 1e-12 : 3e-4);
    if (!wide) expect_same_when_queued(compiled->set, c.model, c.name);
  }
}

// Of what a ring sends, which is what a rank counts: the whole, of which formulas speak.
int64_t whole_of(InstructionKind kind, int64_t sent, int64_t ranks) {
  if (kind == InstructionKind::kSend || kind == InstructionKind::kRotate) return sent;
  return sent * ranks / (ranks - 1) / (kind == InstructionKind::kAllReduce ? 2 : 1);
}

// What a step of a rank has over an axis: messages and whole bytes by kind.
std::map<InstructionKind, std::pair<int64_t, int64_t>> traffic(const Case& c,
                                                               std::string_view over = "tp",
                                                               size_t role = 0,
                                                               DType dtype = DType::kF32) {
  const Result<Compiled> compiled = compile_case(c, kSgd, false);
  EXPECT_TRUE(compiled) << print_error(compiled.error());
  std::map<InstructionKind, std::pair<int64_t, int64_t>> sent;
  const Summary summary = summarise(compiled->set);
  for (const TrafficSummary& each : summary.roles[role].traffic)
    if (each.over == over && each.dtype == dtype)
      for (const auto& [axis, ranks] : summary.mesh)
        if (axis == over) sent[each.kind] = {each.messages, whole_of(each.kind, each.bytes, ranks)};
  return sent;
}

// Shoeybi et al., 2019: 2 + 2 all-reduces a block of what a block hands on; Korthikanti et al.,
// 2022: each is a gather and a scatter, and what products read is gathered again for the gradients
// of their weights.
TEST(Axes, SendWhatTheirFormulasSay) {
  NEED_MODEL("gpt");
  const std::pair<std::string, int64_t> models[] = {{"gpt-deep", 8}, {"llama-hf", 4}};
  for (const auto& [model, layers] : models)
    for (const int64_t tp : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} over {}", model, tp));
      const int64_t kTokens = 8 * 32, kWidth = 32, bytes = kTokens * kWidth * 4;
      const std::string mesh = fmt::format("{{tp: {}}}", tp);
      if (model != "llama-hf" || tp == 2) {  // whose two heads of keys cannot be cut in four
        const auto tensor = traffic({"", model, mesh, kTensor.at(model)});
        EXPECT_EQ(tensor.size(), 1U);
        EXPECT_EQ(tensor.at(InstructionKind::kAllReduce),
                  std::pair(4 * layers, 4 * layers * bytes));
        // And what is looked up, the gradient of the last layer, and four numbers a token.
        const auto rows = traffic({"", model, mesh, kTensor.at(model) + kRows.at(model)});
        EXPECT_EQ(rows.at(InstructionKind::kAllReduce),
                  std::pair(4 * layers + 6, (4 * layers + 2) * bytes + 4 * kTokens * 4));
      }
      if (model == "llama-hf" && tp == 4) continue;
      const auto sequence = traffic({"", model, mesh, kTensor.at(model) + kSequence.at(model)});
      EXPECT_EQ(sequence.at(InstructionKind::kAllGather),
                std::pair(6 * layers, 6 * layers * bytes));
      EXPECT_EQ(sequence.at(InstructionKind::kReduceScatter),
                std::pair(4 * layers, 4 * layers * bytes));
      if (model == "llama-hf") continue;
      // The loss and the gradients of norms, of biases added to tokens and of both embeddings
      // travel once a step.
      const int64_t vocabulary = 96, positions = 32;
      const int64_t terms = (6 * layers + 2 + vocabulary + positions) * kWidth + 1;
      const auto step = sequence.at(InstructionKind::kAllReduce);
      for (const char* split : {"", "  - split: {dim: batch, into: 4}\n"})
        EXPECT_EQ(traffic({"", model, mesh, split + kTensor.at(model) + kSequence.at(model)})
                      .at(InstructionKind::kAllReduce),
                  step);
      EXPECT_EQ(step.second, terms * 4);
    }
}

// In bf16 they have half of the bytes: residuals and norms are f32, but ranks add up what products
// have made before it is cast to that, as Megatron-LM does.
TEST(Axes, SendHalfOfItIn16Bits) {
  NEED_MODEL("gpt");
  const std::string halves = "  - precision: {compute: bf16}\n";
  const std::pair<std::string, int64_t> models[] = {{"gpt-deep", 8}, {"llama-hf", 4}};
  for (const auto& [model, layers] : models) {
    SCOPED_TRACE(model);
    const int64_t bytes = 8 * 32 * 32 * 2;
    const auto sent = [&](const std::string& directives) {
      return traffic({"", model, "{tp: 2}", halves + directives}, "tp", 0, DType::kBF16);
    };
    EXPECT_EQ(sent(kTensor.at(model)).at(InstructionKind::kAllReduce),
              std::pair(4 * layers, 4 * layers * bytes));
    const auto sequence = sent(kTensor.at(model) + kSequence.at(model));
    EXPECT_EQ(sequence.at(InstructionKind::kAllGather), std::pair(6 * layers, 6 * layers * bytes));
    EXPECT_EQ(sequence.at(InstructionKind::kReduceScatter),
              std::pair(4 * layers, 4 * layers * bytes));
  }
}

// A norm reads the residual after its terms were added up over the axis, and the next addition
// takes the same value: a stage sends it alone, without the terms.
TEST(Axes, ResidualsAreSentOnce) {
  NEED_MODEL("gpt");
  for (const std::string& sequence : {std::string(), kSequence.at("gpt-deep")}) {
    SCOPED_TRACE(sequence);
    const Case c{"", "gpt-deep", "{tp: 2}",
                 kTensor.at("gpt-deep") + kRows.at("gpt-deep") + sequence,
                 fmt::format("include: [{}/strategies/schedules/1f1b.yaml]\n"
                             "params: {{stages: 2, microbatches: 4}}\n",
                             PIPER_SOURCE_DIR)};
    const Result<Compiled> compiled = compile_case(c, kAdamW, false);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    int64_t messages = 0, bytes = 0;
    const Summary summary = summarise(compiled->set);
    for (const TrafficSummary& each : summary.roles[0].traffic)
      if (each.kind == InstructionKind::kSend && each.of == "activations")
        messages += each.messages, bytes += each.bytes;
    EXPECT_EQ(messages, 4);
    EXPECT_EQ(bytes, 8 * 32 * 32 * 4 / (sequence.empty() ? 1 : 2));
  }
}

// Memory of gradients that are being reduced is not taken for the backward of other stages, which
// would wait for the reduction, and the stages before them with it.
TEST(Axes, BackwardsDoNotWaitForReductionsOfOtherStages) {
  NEED_MODEL("gpt");
  const Case c{
      "", "gpt-deep", "{tp: 2}", kTensor.at("gpt-deep"),
      fmt::format("include: [{0}/schedules/interleaved-1f1b.yaml, {0}/memory/zero2.yaml]\n"
                  "params: {{stages: 4, chunks: 2, dp: 2, microbatches: 4, bucket_kib: 8}}\n",
                  PIPER_SOURCE_DIR "/strategies")};
  const Result<Compiled> compiled = compile_case(c, kAdamW, false);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  int reductions = 0;
  for (const RoleProgram& role : compiled->set.roles)
    for (const Instruction& one : role.body) {
      reductions += one.kind == InstructionKind::kReduceScatter;
      if (one.kind != InstructionKind::kRecv && !one.label.starts_with("B stage=")) continue;
      for (int32_t wait : one.waits)
        EXPECT_NE(role.body[static_cast<size_t>(wait)].kind, InstructionKind::kReduceScatter)
            << one.label;
    }
  EXPECT_GT(reductions, 16);
}

// Between stages each rank of the axis sends its part of what all of them hold.
TEST(Axes, MessagesInPartsBringTheSameBits) {
  NEED_MODEL("gpt");
  const std::string more[] = {
      "", "  - prefetch: {where: {kind: recv}, distance: 1}\n",
      "  - fuse: {where: {kind: send}, microbatches: 2}\n",
      "  - stream: {where: {kind: [own_part, send, recv, all_gather]}, name: messages}\n",
      "  - prefetch: {where: {kind: [recv, all_gather]}, distance: 2}\n"};
  for (const char* schedule : {"1f1b", "zbv", "dualpipev"})
    for (const std::string& also : more) {
      SCOPED_TRACE(std::string(schedule) + also);
      Case c{"", "gpt-deep", "{tp: 2}", kTensor.at("gpt-deep") + also,
             fmt::format("include: [{}/strategies/schedules/{}.yaml]\n"
                         "params: {{stages: 2, microbatches: 4}}\n",
                         PIPER_SOURCE_DIR, schedule)};
      const Result<Compiled> whole = compile_case(c, kAdamW, false);
      ASSERT_TRUE(whole) << print_error(whole.error());
      c.directives += "  - shard: {sends: \"**\", over: tp}\n";
      const Result<Compiled> parts = compile_case(c, kAdamW, false);
      ASSERT_TRUE(parts) << print_error(parts.error());
      const auto sent = [](const Result<Compiled>& compiled) {
        int64_t bytes = 0;
        const Summary summary = summarise(compiled->set);
        for (const TrafficSummary& each : summary.roles[0].traffic)
          if (each.kind == InstructionKind::kSend && each.of != "sums of the step")
            bytes += each.bytes;
        return bytes;
      };
      EXPECT_EQ(2 * sent(parts), sent(whole));
      const Result<Trained> a = train(whole->set, c.model, 2), b = train(parts->set, c.model, 2);
      ASSERT_TRUE(a && b);
      EXPECT_EQ(a->losses, b->losses);
      for (const auto& [name, tensor] : a->parameters)
        EXPECT_EQ(as_text(tensor.data.span()), as_text(b->parameters.at(name).data.span())) << name;
    }
}

// Computations between a collective that has a stream and the first that needs what it makes.
int64_t count_beside(const RoleProgram& role) {
  int64_t count = 0;
  for (size_t i = 0; i < role.body.size(); ++i) {
    const Instruction& one = role.body[i];
    if (one.stream == 0 || one.group < 0) continue;
    const auto needs = [&](const Instruction& other) {
      return std::find(other.waits.begin(), other.waits.end(), static_cast<int32_t>(i)) !=
             other.waits.end();
    };
    for (size_t k = i + 1; k < role.body.size() && !needs(role.body[k]); ++k)
      count += role.body[k].kind == InstructionKind::kCompute;
  }
  return count;
}
int64_t count_collectives(const RoleProgram& role) {
  return std::count_if(role.body.begin(), role.body.end(),
                       [](const Instruction& one) { return one.group >= 0; });
}

// Narayanan et al., 2021 (Megatron's asynchronous all-reduce) and alike: collectives within a
// computation run beside products that do not need them, come ahead of their use, or share a
// message, and change no bit.
TEST(Axes, CollectivesMoveAndKeepTheirBits) {
  NEED_MODEL("gpt");
  struct Moved {
    const char* mesh;
    std::string shard, also;
    int64_t beside, fewer;  // computations; messages of a rank
    std::string model = "gpt-deep";
  };
  const std::string tensor = kTensor.at("gpt-deep"), sequence = tensor + kSequence.at("gpt-deep");
  const std::string tp = "  - stream: {where: {kind: all_reduce, pass: B}, name: tp}\n",
                    sp = "  - stream: {where: {kind: [all_gather, reduce_scatter]}, name: tp}\n"
                         "  - prefetch: {where: {kind: all_gather}, distance: 2}\n",
                    cp = "  - fuse: {where: {kind: [all_gather, reduce_scatter]}}\n",
                    on = "  - stream: {where: {kind: all_gather}, name: cp}\n";
  for (const char* schedule : {"", "1f1b", "zb-h1"})
    for (const Moved& m : {Moved{"{tp: 2}", tensor, tp, 16, 0},
                           {"{tp: 2}", sequence, sp, 48, 0},
                           {"{cp: 2}", kTokens, cp, 0, 24},
                           {"{cp: 2}", kTokens, cp + on, 0, 24},
                           {"{cp: 2}", kTokens, cp, 0, 8, "llama-hf"}}) {
      SCOPED_TRACE(schedule + m.also);
      Case c{"", m.model, m.mesh, m.shard};
      if (*schedule)
        c.include = fmt::format(
            "include: [{}/strategies/schedules/{}.yaml]\n"
            "params: {{stages: 2, microbatches: 4}}\n",
            PIPER_SOURCE_DIR, schedule);
      const Result<Compiled> plain = compile_case(c, kAdamW, false);
      c.directives += m.also;
      const Result<Compiled> moved = compile_case(c, kAdamW, false);
      ASSERT_TRUE(plain) << print_error(plain.error());
      ASSERT_TRUE(moved) << print_error(moved.error());
      const RoleProgram &before = plain->set.roles[0], &after = moved->set.roles[0];
      EXPECT_EQ(count_beside(before), 0);
      // Halves of a backward are tasks of their own: nothing is beside the first.
      const bool halves = *schedule == 'z';
      EXPECT_GE(count_beside(after), halves ? 0 : m.beside);
      EXPECT_GE(count_collectives(before) - count_collectives(after), m.fewer);
      const Result<Trained> a = train(plain->set, c.model, 2), b = train(moved->set, c.model, 2);
      ASSERT_TRUE(a && b);
      EXPECT_EQ(a->losses, b->losses);
      for (const auto& [name, tensor] : a->parameters)
        EXPECT_EQ(as_text(tensor.data.span()), as_text(b->parameters.at(name).data.span())) << name;
    }
}

// The first that needs a collective on a stream waits for it; the verifier knows if not.
TEST(Axes, CollectivesOnStreamsAreWaitedFor) {
  NEED_MODEL("gpt");
  const Case c{"", "gpt-deep", "{tp: 2}",
               kTensor.at("gpt-deep") + "  - stream: {where: {kind: all_reduce}, name: tp}\n"};
  const Result<Compiled> right = compile_case(c, kSgd, false);
  ASSERT_TRUE(right) << print_error(right.error());
  std::set<int32_t> awaited;
  for (size_t i = 0; i < right->set.roles[0].body.size(); ++i)
    for (const int32_t wait : right->set.roles[0].body[i].waits) {
      if (!awaited.insert(wait).second) continue;
      PlanSet wrong = right->set;
      Instruction& one = wrong.roles[0].body[i];
      std::erase(one.waits, wait);
      const Result<VerifyReport> report = verify_plan_set(wrong, nullptr);
      EXPECT_TRUE(!report || !report->findings.empty()) << one.label;
    }
  EXPECT_GE(awaited.size(), 32U);
}

// Jacobs et al., 2023 (DeepSpeed Ulysses): q, k, v and the result of attention change from tokens
// to heads or back, and their gradients the other way, each a message of 1/cp of the tensor.
TEST(Axes, HeadsForTokensAreExchanged) {
  NEED_MODEL("gpt");
  struct Model {
    std::string name;
    int64_t layers, widths;  // of a layer, each way
  };
  // Two heads of keys and values serve four of queries.
  for (const Model& m : {Model{"gpt-deep", 8, 4}, {"llama-hf", 4, 3}})
    for (const int64_t cp : {2, 4}) {
      if (m.name == "llama-hf" && cp == 4) continue;
      const auto sent = traffic({"", m.name, fmt::format("{{cp: {}}}", cp), kHeads}, "cp");
      const int64_t bytes = 8 * 32 * 32 * 4 / cp;
      EXPECT_EQ(sent.at(InstructionKind::kAllToAll).second, 2 * m.layers * m.widths * bytes);
      EXPECT_EQ(sent.count(InstructionKind::kReduceScatter), 0U);
    }
}

// Liu et al., 2023 (Ring Attention): blocks of keys and values go to the next rank n-1 times each
// way, and their gradients go with them and home.
TEST(Axes, KeysAndValuesGoRound) {
  NEED_MODEL("gpt");
  struct Model {
    std::string name;
    int64_t layers, width;
  };
  for (const Model& m : {Model{"gpt-deep", 8, 32}, {"llama-hf", 4, 16}})
    for (const int64_t cp : {2, 4}) {
      const auto sent = traffic({"", m.name, fmt::format("{{cp: {}}}", cp), kRing}, "cp");
      const int64_t messages = 3 * 2 * m.layers * (cp - 1), block = 8 * 32 * m.width * 4 / cp;
      EXPECT_EQ(sent.at(InstructionKind::kRotate), std::pair(messages, messages * block));
      EXPECT_EQ(sent.count(InstructionKind::kReduceScatter), 0U);
      EXPECT_EQ(sent.count(InstructionKind::kAllToAll), 0U);
    }
}

// Lepikhin et al., 2020 (GShard): what each sample sends to each expert's slots goes there and
// back, and its gradient; what is dense is summed once a step.
TEST(Axes, TokensGoToTheirExpertsAndBack) {
  NEED_MODEL("gpt");
  const int64_t layers = 4, samples = 8, experts = 4, slots = 24, width = 32;
  for (const int64_t ep : {2, 4}) {
    const auto sent = traffic({"", "moe-gshard", fmt::format("{{ep: {}}}", ep), kExperts}, "ep");
    EXPECT_EQ(sent.at(InstructionKind::kAllToAll),
              std::pair(4 * layers, 4 * layers * samples * experts * slots * width * 4 / ep));
    EXPECT_EQ(sent.count(InstructionKind::kAllGather), 0U);
    EXPECT_EQ(sent.count(InstructionKind::kReduceScatter), 0U);
  }
}

// Of experts that are looked up each token's row goes to each of its experts and back, and so do
// gradients; of the numbers by which they go all ranks have all.
TEST(Axes, RowsGoToTheirExpertsAndBack) {
  NEED_MODEL("gpt");
  const int64_t layers = 4, rows = 8 * 32 * 2, width = 32;
  for (const int64_t ep : {2, 4}) {
    const Case c{"", "qwen3-moe-hf", fmt::format("{{ep: {}}}", ep), kSamples + kLookups};
    const auto sent = traffic(c, "ep");
    for (const auto kind : {InstructionKind::kDispatch, InstructionKind::kCombine})
      EXPECT_EQ(sent.at(kind), std::pair(2 * layers, 2 * layers * rows * width * 4 / ep));
    EXPECT_EQ(sent.count(InstructionKind::kAllGather), 0U);
    EXPECT_EQ(sent.count(InstructionKind::kReduceScatter), 0U);
    EXPECT_EQ(traffic(c, "ep", 0, DType::kI64).at(InstructionKind::kAllGather),
              std::pair(layers, layers * rows * 8));
    // In 16 bits, too, rather than matrices that have become smaller than what goes to them.
    const Case halves{"", c.model, c.mesh, c.directives + "  - precision: {compute: bf16}\n"};
    EXPECT_EQ(traffic(halves, "ep", 0, DType::kBF16).at(InstructionKind::kDispatch),
              std::pair(2 * layers, 2 * layers * rows * width * 2 / ep));
  }
}

// Grattafiori et al., 2024 (Llama 3): keys and values are gathered, for the backward pass again,
// and their gradients scattered; all gradients are summed up once a step, but those of positions,
// each rank's own, whose table is gathered.
TEST(Axes, KeysAndValuesAreGathered) {
  NEED_MODEL("gpt");
  struct Model {
    std::string name;
    int64_t layers, width, parameters, positions;
  };
  for (const Model& m : {Model{"gpt-deep", 8, 32, 106816, 32 * 32}, {"llama-hf", 4, 16, 54560, 0}})
    for (const int64_t cp : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} over {}", m.name, cp));
      const auto sent = traffic({"", m.name, fmt::format("{{cp: {}}}", cp), kTokens}, "cp");
      const int64_t each = 2 * m.layers, bytes = each * 8 * 32 * m.width * 4;
      EXPECT_EQ(sent.at(InstructionKind::kReduceScatter), std::pair(each, bytes));
      EXPECT_EQ(sent.at(InstructionKind::kAllGather).second, 2 * bytes + 4 * m.positions);
      EXPECT_EQ(sent.at(InstructionKind::kAllReduce).second,
                4 * (m.parameters - m.positions) + 8);  // and the loss and its labels
    }
}

// Beside pipelines, replicas and microbatches each stage sends for its layers and its samples; a
// replica's messages are of the parameters that its stage and its part of the layers keep
// (Rajbhandari et al., 2020: one gather of each for a use, one sum scattered).
TEST(Axes, SendWhatTheirFormulasSayBesideOthers) {
  NEED_MODEL("gpt");
  const int64_t layers = 4, width = 32, tokens = 8 / 2 * 32,
                bytes = tokens * width * 4;                               // a rank's
  const int64_t cut = 12 * width * width + 7 * width, whole = 6 * width;  // of a layer
  const auto send = [&](const std::string& more, const std::string& over, int64_t microbatches,
                        size_t stage) {
    const Case c{"", "gpt-deep", "{dp: 2, tp: 2}", kTensor.at("gpt-deep") + more,
                 fmt::format("include: [{}/strategies/schedules/1f1b.yaml]\n"
                             "params: {{stages: 2, microbatches: {}}}\n",
                             PIPER_SOURCE_DIR, microbatches)};
    return traffic(c, over, stage);
  };
  const std::string replicas = "  - replicate: {over: dp}\n";
  const std::string zero =
      "  - replicate: {over: dp, shard: [optimizer, gradients, parameters], gather: {when: "
      "WHEN}}\n";
  const auto zero_when = [&](const char* when) {
    return std::string(zero).replace(zero.find("WHEN"), 4, when);
  };
  for (const int64_t microbatches : {2, 4}) {
    const int64_t kept = 4 * (layers * (cut / 2 + whole) + 32 * width);  // and positions
    for (const size_t stage : {0, 1}) {
      const auto tensor = send(replicas, "tp", microbatches, stage);
      EXPECT_EQ(tensor.at(InstructionKind::kAllReduce),
                std::pair(4 * layers * microbatches, 4 * layers * bytes));
      const auto sequence = send(replicas + kSequence.at("gpt-deep"), "tp", microbatches, stage);
      EXPECT_EQ(sequence.at(InstructionKind::kReduceScatter).second, 4 * layers * bytes);
      EXPECT_EQ(sequence.at(InstructionKind::kAllGather).second, 6 * layers * bytes);
    }
    EXPECT_EQ(send(replicas, "dp", microbatches, 0).at(InstructionKind::kAllReduce).second, kept);
    const auto per_step = send(zero_when("per_step"), "dp", microbatches, 0);
    EXPECT_EQ(per_step.at(InstructionKind::kReduceScatter).second, kept);
    const int64_t tied = 4 * 128 * width;  // whose gradient the other stage sums up
    EXPECT_EQ(per_step.at(InstructionKind::kAllGather).second, kept + tied);
    // On one stage, for each microbatch all of it.
    const int64_t all = 4 * (2 * layers * (cut / 2 + whole) + (2 + 128 + 32) * width);
    const std::string split = fmt::format("  - split: {{dim: batch, into: {}}}\n", microbatches);
    const Case alone{"", "gpt-deep", "{dp: 2, tp: 2}",
                     split + kTensor.at("gpt-deep") + zero_when("per_microbatch")};
    const auto gathers = traffic(alone, "dp").at(InstructionKind::kAllGather);
    EXPECT_EQ(gathers.second, microbatches * all);
  }
}

// What is written of padded states is what the model has; who reads it starts alike.
TEST(Axes, PaddedStatesAreStoredAsTheyAre) {
  NEED_MODEL("gpt");
  for (const char* model : {"gpt-deep", "llama-hf"}) {
    const Case c{"", model, "{tp: 3}", with_zeros(kTensor.at(model) + kRows.at(model))};
    const Result<Compiled> made = compile_case(c, kAdamW, true);
    ASSERT_TRUE(made) << print_error(made.error());
    const Folder folder;
    const std::string plans = folder.path() + "/plans";
    const Status written = write_plan_set(made->set, nullptr, &*made->uncut, plans, {});
    ASSERT_TRUE(written) << print_error(written.error());
    Result<PlanSet> read = read_plan_set(plans);
    ASSERT_TRUE(read) << print_error(read.error());
    const Status loaded = load_params(*read);
    ASSERT_TRUE(loaded) << print_error(loaded.error());
    const Result<Trained> here = train(made->set, model, 2), there = train(*read, model, 2),
                          uncut = train(*made->uncut, model, 2);
    ASSERT_TRUE(here && there && uncut);
    EXPECT_EQ(here->losses, there->losses);
    EXPECT_EQ(largest_difference(*here, *there), 0);
    EXPECT_LT(largest_difference(*there, *uncut), 1e-12);  // of types that are equal
  }
}

// Four heads over three ranks are six, and no more is sent than by four ranks.
TEST(Axes, WhatGoesOnIntoZerosIsReported) {
  NEED_MODEL("gpt");
  const Case c{"", "gpt-deep", "{tp: 3}", with_zeros(kTensor.at("gpt-deep"))};
  const auto [messages, bytes] = traffic(c).at(InstructionKind::kAllReduce);
  EXPECT_EQ(messages, 32);
  EXPECT_NEAR(static_cast<double>(bytes), 32 * 8192 * 4, 64);  // a third of it is no whole number
  const Result<Compiled> made = compile_case(c, kSgd, false);
  ASSERT_TRUE(made) << print_error(made.error());
  std::set<std::string> lines(made->layouts.begin(), made->layouts.end());
  for (const char* line :
       {"model.h.0.qkv.weight: f32[48,32] a rank, dim 0 over tp, in each of 3 parts, dim 0 is 96 "
        "and zeros",
        "model.h.0.proj.weight: f32[32,16] a rank, dim 1 over tp, dim 1 is 32 and zeros",
        "model.h.0.fc.bias: f32[43] a rank, dim 0 over tp, dim 0 is 128 and zeros"})
    EXPECT_TRUE(lines.contains(line)) << line;
}

// Experts are put in relation to one another: what helps is another number of ranks.
TEST(Axes, ExpertsThatDoNotDivideAreRefused) {
  NEED_MODEL("gpt");
  const auto refusal = [](const std::string& model, const std::string& directives) {
    const Result<Compiled> made = compile_case({"", model, "{ep: 3}", directives}, kSgd, false);
    std::string text = made ? "" : print_error(made.error());
    return text.substr(std::min(text.size(), text.find("yaml:") + 5));
  };
  const std::string experts = "  - shard: {match: \"**/w_in\", dim: 0, over: ep}\n",
                    at = "dim 0 of 'moe.0.w_in' (f32[4,32,64]) cannot be ",
                    rows =
                        "dim 0 of 'model.model.layers.0.mlp.experts.gate_up_proj' "
                        "(f32[4,64,32]) cannot be cut into 3 equal parts over 'ep'\n";
  EXPECT_EQ(
      refusal("moe-gshard", experts),
      "5:5: error: shard: " + at +
          "cut into 3 equal parts over 'ep'\n  = help: another dim, or together 2 or 4 ranks\n");
  EXPECT_EQ(refusal("moe-gshard", with_zeros(experts, "ep")),
            "5:5: error: " + at +
                "padded for 3 ranks over 'ep'\n  = note: elements past the end of 'softmax' "
                "(f32[8,32,4]) would count in TopK in moe/0\n");
  // No index names one behind the end.
  EXPECT_EQ(refusal("qwen3-moe-hf", kLookups),
            "5:5: error: shard: " + rows +
                "  = help: `pad: true` adds zeros after it that never count\n");
}

// Blocks of blocks are put together from the inside, or as stretches.
TEST(Axes, BlocksOfBlocksKeepTheirOrder) {
  const Folder folder;
  CompileOptions options;
  options.model = PIPER_SOURCE_DIR "/tests/data/mlp.onnx";
  options.strategy = folder.write("strategy.yaml", R"(piper: 1
mesh: {a: 2, b: 2}
train: {global_batch: 8, optimizer: {sgd: {lr: 0.1}}}
directives:
  - shard: {match: "model/0/*", dim: 0, over: a}
  - shard: {match: "model/0/*", dim: 0, over: b}
  - shard: {scope: "model/1", dim: none, over: a}
  - shard: {scope: "model/1", dim: none, over: b}
)");
  const Result<Compiled> right = compile(options);
  ASSERT_TRUE(right) << print_error(right.error());
  int changed = 0;
  for (size_t i = 0; i < right->set.roles[0].body.size(); ++i) {
    PlanSet wrong = right->set;
    Instruction& one = wrong.roles[0].body[i];
    if (one.kind != InstructionKind::kAllGather || one.dim < 0) continue;
    one.outer = one.outer == 1 ? 2 : 1;
    const Result<VerifyReport> report = verify_plan_set(wrong, nullptr);
    EXPECT_TRUE(!report || !report->findings.empty()) << one.label;
    ++changed;
  }
  EXPECT_GE(changed, 2);
}

// ---- Controls ---------------------------------------------------------------------------------

// Where a step's collectives over tp stand.
std::vector<size_t> over_tp(const RoleProgram& role) {
  std::vector<size_t> places;
  for (size_t i = 0; i < role.body.size(); ++i)
    if (const Instruction& one = role.body[i];
        is_collective(one.kind) && role.groups[static_cast<size_t>(one.group)].name == "tp")
      places.push_back(i);
  return places;
}
void move_to(RoleProgram& role, Instruction& one, const std::string& axis) {
  for (size_t a = 0; a < role.mesh.size(); ++a)
    if (role.mesh[a].first == axis) role.groups.push_back({axis, {static_cast<int32_t>(a)}});
  one.group = static_cast<int32_t>(role.groups.size()) - 1;
}
void over_replicas(RoleProgram& role, Instruction& one) { move_to(role, one, "dp"); }
// Sums of what a rank alone has; what is put together cannot be left out of a plan that runs.
void left_out(RoleProgram& role, Instruction& one) {
  if (one.kind == InstructionKind::kReduceScatter)
    one.kind = InstructionKind::kOwnPart;
  else
    move_to(role, one, one.kind == InstructionKind::kAllReduce ? "alone" : "dp");
}

double apart(const Trained& a, const Trained& b) {
  double worst = largest_difference(a, b);
  for (size_t k = 0; k < a.losses.size(); ++k)
    worst =
        std::max({worst, std::abs(a.losses[k] - b.losses[k]), std::abs(a.norms[k] - b.norms[k])});
  return worst;
}

// The verifier refuses every plan that has one collective wrong; of a few the numbers show it, too.
TEST(Axes, EachCollectiveCounts) {
  NEED_MODEL("gpt");
  const std::string replicas = "  - replicate: {over: dp}\n", gpt = kTensor.at("gpt-deep");
  for (const Case& c : {Case{"", "gpt-deep", "", gpt + replicas},
                        Case{"", "gpt-deep", "", gpt + kSequence.at("gpt-deep") + replicas},
                        Case{"", "llama-hf", "", kTensor.at("llama-hf") + replicas}}) {
    const Case on_mesh{"", c.model, "{dp: 2, tp: 2, alone: 1}", c.directives};
    const Result<Compiled> right = compile_case(on_mesh, kAdamW, true);
    ASSERT_TRUE(right) << print_error(right.error());
    const Result<Trained> uncut = train(*right->uncut, c.model, 2);
    ASSERT_TRUE(uncut) << print_error(uncut.error());
    ASSERT_EQ(right->set.roles.size(), 1U);
    const std::vector<size_t> places = over_tp(right->set.roles[0]);
    EXPECT_GE(places.size(), 16U);
    for (const auto& change : {over_replicas, left_out})
      for (size_t k = 0; k < places.size(); ++k) {
        PlanSet wrong = right->set;
        Instruction& one = wrong.roles[0].body[places[k]];
        SCOPED_TRACE(fmt::format("{} {}", one.label, change == left_out ? "left out" : "over dp"));
        change(wrong.roles[0], one);
        give_communicators(wrong);
        const Result<VerifyReport> report = verify_plan_set(wrong, nullptr);
        EXPECT_TRUE(!report || !report->findings.empty());
        if (k % (places.size() / 4) != 0) continue;
        const Result<Trained> trained = train(wrong, c.model, 2);
        ASSERT_TRUE(trained) << print_error(trained.error());
        EXPECT_GT(apart(*trained, *uncut), 1e-9);
      }
  }
}

// Each turn of the keys, and each number that says whose they are.
TEST(Axes, EachTurnCounts) {
  NEED_MODEL("gpt");
  const Case c{"", "gpt-deep", "{dp: 2, cp: 4}", kRing + "  - replicate: {over: dp}\n"};
  const Result<Compiled> right = compile_case(c, kAdamW, true);
  ASSERT_TRUE(right) << print_error(right.error());
  const Result<Trained> uncut = train(*right->uncut, c.model, 2);
  ASSERT_TRUE(uncut) << print_error(uncut.error());
  using Change = void (*)(RoleProgram&, Instruction&);
  const Change left_out = [](RoleProgram&, Instruction& one) {
    one.kind = InstructionKind::kCopy;
    one.group = -1;
    one.turn = 0;
  };
  const Change other_way = [](RoleProgram&, Instruction& one) { one.turn = 4 - one.turn; };
  const std::vector<Instruction>& body = right->set.roles[0].body;
  size_t changed = 0;
  for (size_t i = 0; i < body.size(); ++i) {
    const bool rotates = body[i].kind == InstructionKind::kRotate;
    if (!rotates && (body[i].kind != InstructionKind::kPosition || body[i].turn % 2 == 0)) continue;
    for (const Change& change : {left_out, other_way, Change(over_replicas)}) {
      if ((change == left_out && !rotates) || ++changed % 5 != 0) continue;
      PlanSet wrong = right->set;
      change(wrong.roles[0], wrong.roles[0].body[i]);
      give_communicators(wrong);
      const Result<VerifyReport> report = verify_plan_set(wrong, nullptr);
      EXPECT_TRUE(!report || !report->findings.empty()) << i << " " << body[i].label;
      if (changed % 100 != 0) continue;
      const Result<Trained> trained = train(wrong, c.model, 2);
      ASSERT_TRUE(trained) << print_error(trained.error());
      EXPECT_GT(apart(*trained, *uncut), 1e-9) << i << " " << body[i].label;
    }
  }
  EXPECT_GT(changed, 400U);
}

// Every second stretch from its end: of each own block, exchange and number where tokens begin.
TEST(Axes, EachMirroredStretchCounts) {
  NEED_MODEL("gpt");
  for (const std::string& how : {kZigzag, kZigzagHeads, kZigzagRing}) {
    const Case c{"", "gpt-deep", "{cp: 4}", how};
    const Result<Compiled> right = compile_case(c, kAdamW, true);
    ASSERT_TRUE(right) << print_error(right.error());
    const Result<Trained> uncut = train(*right->uncut, c.model, 2);
    ASSERT_TRUE(uncut) << print_error(uncut.error());
    size_t changed = 0, seen = 0;
    for (size_t i = 0; i < right->set.roles[0].body.size(); ++i)
      for (const bool flips : {true, false}) {
        PlanSet wrong = right->set;
        Instruction& one = wrong.roles[0].body[i];
        if ((!one.mirrored && !one.to_mirrored) || one.label.starts_with("count")) continue;
        if ((one.kind == InstructionKind::kPosition && !flips) || seen++ % 5 != 0) continue;
        SCOPED_TRACE(fmt::format("{} {} {}", i, one.label, flips));
        if (flips)
          (one.mirrored ? one.mirrored : one.to_mirrored) = false;
        else
          (one.mirrored ? one.outer : one.to_outer) = 4;
        const Result<VerifyReport> report = verify_plan_set(wrong, nullptr);
        EXPECT_TRUE(!report || !report->findings.empty());
        if (changed++ % 7 != 0) continue;
        const Result<Trained> trained = train(wrong, c.model, 2);
        ASSERT_TRUE(trained) << print_error(trained.error());
        EXPECT_GT(apart(*trained, *uncut), 1e-9);
      }
    EXPECT_GT(changed, 4U) << seen;
  }
}

TEST(Axes, AttentionIsReported) {
  NEED_MODEL("gpt");
  const Result<Compiled> made = compile_case({"", "llama-hf", "{cp: 2}", kRing}, kSgd, false);
  ASSERT_TRUE(made) << print_error(made.error());
  std::vector<std::string> lines;
  for (const Explanation& each : made->explanations)
    if (each.at.line == 7) lines.insert(lines.end(), each.lines.begin(), each.lines.end());
  EXPECT_EQ(lines, std::vector<std::string>{"attention over cp by ring: 4 of them"});
}

// Where tokens or heads do not lie so, both places are named.
TEST(Axes, AttentionThatCannotBeDoneSoIsRefused) {
  NEED_MODEL("gpt");
  const auto refusal = [](const std::string& mesh, const std::string& directives) {
    const Result<Compiled> made = compile_case({"", "llama-hf", mesh, directives}, kSgd, false);
    std::string text = made ? "" : print_error(made.error());
    return text.substr(std::min(text.size(), text.find("yaml:") + 5));
  };
  const std::string of_line = "  - shard: {attention: \"**\", by: ring, over: cp}\n";
  const std::string at = "shard: attention in model/model/layers/0/self_attn ",
                    sizes =
                        "  = note: its queries, keys and values are f32[8,32,4,8], "
                        "f32[8,32,2,8], f32[8,32,2,8]\n";
  EXPECT_EQ(refusal("{cp: 4}", kHeads),
            "7:5: error: " + at +
                "has 2 heads of keys, which cannot be cut into 4 equal blocks over 'cp'\n" + sizes +
                "  = help: `by: ring` or `by: gather` cuts no heads; <context/usp> goes by heads "
                "over some "
                "of the ranks, and by ring over the others\n");
  EXPECT_EQ(refusal("{cp: 32}", kZigzag),
            "5:5: error: shard: dim 1 of 'input_ids' (i64[8,32]) cannot be cut into 64 equal parts "
            "over 'cp', two a rank\n  = help: `order: contiguous` has one block a rank\n");
  EXPECT_EQ(refusal("{cp: 2}", of_line),
            "5:5: error: shard: nothing is cut over 'cp'\n"
            "  = help: `shard: {input: \"*\", dim: 1, over: cp}` cuts tokens\n");
  EXPECT_EQ(refusal("{cp: 2}", kRing + of_line),
            "8:5: error: shard: two directives say how attention in "
            "model/model/layers/0/self_attn is done over 'cp'\n"
            "  = note: the other one is at line 7\n");
  EXPECT_EQ(refusal("{cp: 2}", "  - shard: {input: \"*\", dim: 0, over: cp}\n" + of_line),
            "6:5: error: " + at + "has no tokens in blocks over 'cp'\n" + sizes +
                "  = note: its queries are cut at dim 0 over it\n"
                "  = note: 'input_ids' is cut at dim 0 over it at line 5\n"
                "  = note: 'labels' is cut at dim 0 over it at line 5\n"
                "  = help: `shard: {input: \"*\", dim: 1, over: cp}` cuts those of inputs\n");
  EXPECT_EQ(refusal("{cp: 2}", kTokens + "  - shard: {attention: nowhere, by: ring, over: cp}\n")
                .substr(0, 50),
            "7:24: error: shard: no attention matches 'nowhere'");
}

// Rows that go elsewhere, or by other numbers, are refused, and a few train otherwise.
TEST(Axes, EachRowCounts) {
  NEED_MODEL("gpt");
  const Case c{"", "qwen3-moe-hf", "{dp: 2, ep: 2, alone: 1}",
               kSamples + kLookups + "  - replicate: {over: dp}\n"};
  const Result<Compiled> right = compile_case(c, kAdamW, true);
  ASSERT_TRUE(right) << print_error(right.error());
  const Result<Trained> uncut = train(*right->uncut, c.model, 2);
  ASSERT_TRUE(uncut) << print_error(uncut.error());
  std::vector<size_t> places;
  for (size_t i = 0; i < right->set.roles[0].body.size(); ++i)
    if (takes_index(right->set.roles[0].body[i].kind)) places.push_back(i);
  ASSERT_EQ(places.size(), 16U);
  const int32_t last_index = right->set.roles[0].body[places[6]].args[2];
  for (size_t k = 0; k < places.size(); ++k)
    for (const char* change : {"over dp", "one owned less", "another index"}) {
      PlanSet wrong = right->set;
      Instruction& one = wrong.roles[0].body[places[k]];
      SCOPED_TRACE(one.label + ": " + change);
      if (change[0] == 'o' && change[1] == 'v') over_replicas(wrong.roles[0], one);
      if (change[0] == 'o' && change[1] == 'n') --one.owned;
      if (change[0] == 'a' && one.args[2] == last_index) continue;
      if (change[0] == 'a') one.args[2] = last_index;
      give_communicators(wrong);
      const Result<VerifyReport> report = verify_plan_set(wrong, nullptr);
      EXPECT_TRUE(!report || !report->findings.empty());
      if (k % 5 != 0) continue;
      const Result<Trained> trained = train(wrong, c.model, 2);
      if (trained)
        EXPECT_GT(apart(*trained, *uncut), 1e-9);
      else
        EXPECT_TRUE(trained.error().message.ends_with(" is nan"));  // of rows nobody owns
    }
}

std::vector<Case> cases() {
  const std::string split = "  - split: {dim: batch, into: 2}\n";
  const std::string zero = "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n";
  std::vector<Case> all;
  for (const auto& [model, tensor] : kTensor) {
    const std::string sequence = tensor + kSequence.at(model), id = identifier(model);
    all.push_back({"tensor2_" + id, model, "{tp: 2}", tensor});
    all.push_back({"sequence2_" + id, model, "{tp: 2}", sequence});
    all.push_back({"tensor2_data2_" + id, model, "{dp: 2, tp: 2}",
                   split + tensor + "  - replicate: {over: dp}\n"});
    all.push_back({"sequence2_zero2_" + id, model, "{dp: 2, tp: 2}", split + sequence + zero});
    all.push_back({"tensor2_zero2_inner_" + id, model, "{tp: 2, dp: 2}", tensor + zero});
    const auto pipeline = [&](const std::string& name, const std::string& mesh,
                              const std::string& file, const std::string& more) {
      const std::string sizes = "params: {stages: 2, microbatches: 4}\n";
      all.push_back({name + "_" + id, model, mesh, more,
                     fmt::format("include: [{}/strategies/schedules/{}.yaml]\n{}", PIPER_SOURCE_DIR,
                                 file, sizes)});
    };
    pipeline("pipeline2_tensor2", "{tp: 2}", "1f1b", tensor);
    pipeline("pipeline2_sequence2", "{tp: 2}", "zb-h1", sequence);
    pipeline("pipeline2_sequence2_zero2", "{tp: 2, dp: 2}", "zbv", sequence + zero);
    pipeline("pipeline2_sequence2_recompute", "{tp: 2}", "1f1b", sequence + "  - recompute: {}\n");
    pipeline("pipeline2_sequence2_offload", "{tp: 2}", "gpipe",
             sequence + "  - offload: {what: activations}\n");
    pipeline("pipeline2_tensor2_dualpipev", "{tp: 2}", "dualpipev", tensor);
    const std::string context =
        "  - shard: {input: input_ids, dim: 1, over: cp}\n  - shard: "
        "{input: labels, dim: 1, over: cp}\n";
    const std::string& rows = kRows.at(model);
    // 128 rows over 3 ranks.
    const std::string padded = rows.substr(0, rows.size() - 2) + ", pad: true}\n";
    all.push_back({"padded3_" + id, model, "{tp: 3}", padded});
    all.push_back({"padded3_data2_" + id, model, "{dp: 2, tp: 3}", split + padded + zero});
    pipeline("pipeline2_padded3", "{tp: 3}", "1f1b", padded);
    // Four heads, the rows of the FFN and the biases of both; rows of an embedding beside.
    const std::string heads3 = with_zeros(tensor);
    all.push_back({"padded_heads3_" + id, model, "{tp: 3}", heads3});
    all.push_back({"padded_heads3_data2_" + id, model, "{dp: 2, tp: 3}",
                   split + heads3 + with_zeros(rows) + zero});
    pipeline("pipeline2_padded_heads3_zero2", "{tp: 3, dp: 2}", "zb-h1", heads3 + zero);
    pipeline("pipeline2_padded_heads3_recompute", "{tp: 3}", "zbv", heads3 + "  - recompute: {}\n");
    all.push_back({"context2_padded_heads3_" + id, model, "{cp: 2, tp: 3}", context + heads3});
    all.push_back({"padded_heads3_ring2_" + id, model, "{tp: 3, cp: 2}", kRing + heads3});
    // Two axes in one dim, or in both dims of one.
    all.push_back({"padded_heads2x3_" + id, model, "{a: 2, b: 3}",
                   with_zeros(tensor + rows, "a") + with_zeros(tensor + rows, "b")});
    all.push_back({"padded_rows3_columns2_" + id, model, "{a: 2, b: 3}",
                   "  - shard: {match: [\"**/wte/*\", \"**/embed_tokens/*\"], dim: 1, over: a}\n" +
                       with_zeros(rows, "b")});
    all.push_back({"context2_" + id, model, "{cp: 2}", context});
    all.push_back({"context4_data2_" + id, model, "{dp: 2, cp: 4}", split + context + zero});
    all.push_back({"vocabulary2_" + id, model, "{tp: 2}", tensor + rows});
    all.push_back({"vocabulary4_data2_" + id, model, "{tp: 4, dp: 2}", sequence + rows + zero});
    all.push_back({"context2_tensor2_" + id, model, "{cp: 2, tp: 2}", context + tensor + rows});
    all.push_back({"context2_sequence2_data2_" + id, model, "{dp: 2, cp: 2, tp: 2}",
                   split + context + sequence + rows + zero});
    pipeline("pipeline2_context2_tensor2", "{cp: 2, tp: 2}", "zb-h1", context + tensor + rows);
    const std::string &heads = kHeads, &ring = kRing;
    all.push_back({"heads2_" + id, model, "{cp: 2}", heads});
    all.push_back({"heads2_data2_" + id, model, "{dp: 2, cp: 2}", split + heads + zero});
    all.push_back({"heads2_tensor2_" + id, model, "{cp: 2, tp: 2}", heads + tensor});
    pipeline("pipeline2_heads2_recompute", "{cp: 2}", "zbv", heads + "  - recompute: {}\n");
    if (model == "gpt-deep") all.push_back({"heads4_" + id, model, "{cp: 4}", heads});
    all.push_back({"ring2_" + id, model, "{cp: 2}", ring});
    all.push_back({"ring4_data2_" + id, model, "{dp: 2, cp: 4}", split + ring + zero});
    all.push_back({"ring2_tensor2_" + id, model, "{cp: 2, tp: 2}", ring + tensor + rows});
    all.push_back({"ring2_sequence2_data2_" + id, model, "{dp: 2, cp: 2, tp: 2}",
                   ring + sequence + rows + zero});
    pipeline("pipeline2_ring2", "{cp: 2}", "zb-h1", ring);
    pipeline("pipeline2_ring2_recompute", "{cp: 2}", "zbv", ring + "  - recompute: {}\n");
    pipeline("pipeline2_ring2_tensor2", "{cp: 2, tp: 2}", "dualpipev", ring + tensor);
    all.push_back({"zigzag2_" + id, model, "{cp: 2}", kZigzagRing});
    all.push_back({"zigzag4_data2_" + id, model, "{dp: 2, cp: 4}", split + kZigzagRing + zero});
    all.push_back({"zigzag2_tensor2_" + id, model, "{cp: 2, tp: 2}", kZigzagRing + tensor + rows});
    all.push_back({"zigzag2_sequence2_data2_" + id, model, "{dp: 2, cp: 2, tp: 2}",
                   kZigzagRing + sequence + rows + zero});
    pipeline("pipeline2_zigzag2", "{cp: 2}", "zb-h1", kZigzagRing);
    pipeline("pipeline2_zigzag2_tensor2", "{cp: 2, tp: 2}", "dualpipev", kZigzagRing + tensor);
    pipeline("pipeline2_zigzag2_tensor2_sends", "{cp: 2, tp: 2}", "1f1b",
             kZigzagRing + tensor + "  - shard: {sends: \"**\", over: tp}\n");
    // The order of axes in the mesh decides nothing.
    all.push_back({"sequence2_ring2_" + id, model, "{tp: 2, cp: 2}", sequence + ring});
    all.push_back({"zigzag4_gathered_" + id, model, "{cp: 4}", kZigzag});
    pipeline("pipeline2_zigzag2_gathered_tensor2", "{cp: 2, tp: 2}", "zb-h1",
             kZigzag + tensor + rows);
    all.push_back(
        {"zigzag2_heads_data2_" + id, model, "{dp: 2, cp: 2}", split + kZigzagHeads + zero});
    pipeline("pipeline2_zigzag2_heads_recompute", "{cp: 2}", "zbv",
             kZigzagHeads + "  - recompute: {}\n");
    // Some layers so, some otherwise.
    all.push_back({"ring_and_heads2_" + id, model, "{cp: 2}",
                   kTokens +
                       "  - shard: {attention: [\"**/0\", \"**/0/*\", \"**/2\", \"**/2/*\"], by: "
                       "ring, over: cp}\n"
                       "  - shard: {attention: [\"**/1\", \"**/1/*\"], by: heads, over: cp}\n"
                       "  - shard: {attention: [\"**/3\", \"**/3/*\"], by: gather, over: cp}\n"});
    all.push_back({"tensor4_" + id, model, "{tp: 4}", tensor});
    // Samples over two axes: one of replicas, one that cuts what each replica has.
    const std::string samples = "  - shard: {input: \"*\", dim: 0, over: ep}\n";
    const std::string replicas = "  - replicate: {over: edp, bucket: 16KiB";
    all.push_back(
        {"batch2_data2_" + id, model, "{edp: 2, ep: 2}", split + samples + replicas + "}\n"});
    all.push_back({"batch2_zero2_" + id, model, "{ep: 2, edp: 2}",
                   split + samples + replicas + ", shard: [optimizer, gradients, parameters]}\n"});
    // Reduced in every microbatch; and over a third axis, of whole replicas.
    all.push_back({"sequence2_zero2_each_" + id, model, "{dp: 2, tp: 2}",
                   split + sequence +
                       "  - replicate: {over: dp, shard: [optimizer, gradients], reduce: {when: "
                       "per_microbatch}}\n"});
    all.push_back({"batch2_hybrid4_" + id, model, "{dp: 2, edp: 2, ep: 2}",
                   samples + replicas + ", shard: [optimizer]}\n  - replicate: {over: dp}\n"});
    all.push_back({"batch2_tensor2_" + id, model, "{ep: 2, tp: 2}", split + samples + sequence});
    all.push_back({"sequence4_data2_" + id, model, "{dp: 2, tp: 4}",
                   sequence + "  - replicate: {over: dp, shard: [optimizer], bucket: 16KiB}\n"});
  }
  const auto experts = [&](const std::string& name, const std::string& mesh,
                           const std::string& more, const std::string& include = "") {
    all.push_back({name + "_moe", "moe-gshard", mesh, kExperts + more, include});
  };
  experts("experts2", "{ep: 2}", "");
  experts("experts4", "{ep: 4}", split);
  experts("experts2_zero2", "{edp: 2, ep: 2}",
          split + "  - replicate: {over: edp, shard: [optimizer]}\n");
  experts("experts2_tensor2", "{ep: 2, tp: 2}", kExpertTensor);
  const std::string nodes_of_experts =
      "  - shard: {match: [\"**/w_in\", \"**/w_out\"], dim: 0, over: node}\n"
      "  - shard: {input: \"*\", dim: 0, over: node}\n";
  experts("nodes2_experts2", "{node: 2, ep: 2}", nodes_of_experts);
  experts("experts2_padded_tensor3", "{ep: 2, tp: 3}", with_zeros(kExpertTensor));
  experts("experts2_pipeline2", "{ep: 2}", "",
          fmt::format("include: [{}/strategies/schedules/1f1b.yaml]\nparams: {{stages: 2, "
                      "microbatches: 4}}\n",
                      PIPER_SOURCE_DIR));
  experts("experts2_heads2", "{ep: 2, cp: 2}", kHeads);
  experts("experts2_ring2", "{ep: 2, cp: 2}", kRing);
  experts("experts2_zigzag2", "{ep: 2, cp: 2}", kZigzagRing);
  experts("experts2_pipeline2_zero2", "{edp: 2, ep: 2}",
          "  - replicate: {over: edp, shard: [optimizer, gradients, parameters]}\n",
          fmt::format("include: [{}/strategies/schedules/zb-h1.yaml]\nparams: {{stages: 2, "
                      "microbatches: 2}}\n",
                      PIPER_SOURCE_DIR));
  const auto lookups = [&](const std::string& name, const std::string& mesh,
                           const std::string& more, const std::string& include = "") {
    all.push_back({"lookups_" + name + "_qwen", "qwen3-moe-hf", mesh, kLookups + more, include});
  };
  const std::string edp = "  - replicate: {over: edp, shard: [optimizer]}\n";
  const auto schedule = [&](const char* file) {
    return fmt::format(
        "include: [{}/strategies/schedules/{}.yaml]\nparams: {{stages: 2, "
        "microbatches: 2}}\n",
        PIPER_SOURCE_DIR, file);
  };
  lookups("experts2", "{ep: 2}", "");
  lookups("experts4_data2", "{edp: 2, ep: 4}", split + edp);
  lookups("samples2", "{ep: 2}", kSamples);
  lookups("samples4", "{ep: 4}", split + kSamples);
  lookups("zigzag2", "{ep: 2}", "  - shard: {input: \"*\", dim: 1, over: ep, order: zigzag}\n");
  lookups("samples2_zero2", "{edp: 2, ep: 2}", split + kSamples + edp);
  lookups("samples2_tensor2", "{ep: 2, tp: 2}", kSamples + kLookedUpTensor);
  lookups("samples2_gather2", "{ep: 2, cp: 2}", kSamples + kTokens);
  lookups("samples2_zigzag2", "{ep: 2, cp: 2}", kSamples + kZigzagRing);
  all.push_back(
      {"lookups_padded_experts3_qwen", "qwen3-moe-hf", "{ep: 3}", with_zeros(kLookups, "ep")});
  // Nodes, and ranks of each: rows go to the node of their expert, whose ranks have a part each.
  const std::string nodes =
      "  - shard: {match: \"**/experts/*\", dim: 0, over: node}\n"
      "  - shard: {input: \"*\", dim: 0, over: node}\n";
  lookups("nodes2_experts2", "{node: 2, ep: 2}", nodes);
  lookups("nodes2_samples2", "{node: 2, ep: 2}", nodes + kSamples);
  lookups("samples2_padded_tensor3", "{ep: 2, tp: 3}", kSamples + with_zeros(kLookedUpTensor));
  lookups("tensor2_samples2", "{tp: 2, ep: 2}", kSamples + kLookedUpTensor);
  lookups("pipeline2_samples2_recompute", "{ep: 2}", kSamples + "  - recompute: {}\n",
          schedule("1f1b"));
  lookups("pipeline2_samples2_zero2", "{edp: 2, ep: 2}",
          kSamples + "  - replicate: {over: edp, shard: [optimizer, gradients, parameters]}\n",
          schedule("zb-h1"));
  const auto library = [&](const std::string& name, const std::string& model,
                           const std::string& file, const std::string& params) {
    all.push_back({"library_" + name, model, "{alone: 1}", split,
                   fmt::format("include: [{}/strategies/{}.yaml]\nparams: {{{}}}\n",
                               PIPER_SOURCE_DIR, file, params)});
  };
  library("tensor2_gpt2", "gpt2-hf", "tensor/tensor", "tp: 2, out: -1, in: 0");
  library("sequence2_gpt2", "gpt2-hf", "tensor/sequence", "tp: 2, out: -1, in: 0");
  library("vocabulary2_gpt", "gpt-deep", "tensor/vocabulary", "tp: 2");
  library("vocabulary2_llama", "llama-hf", "tensor/vocabulary", "tp: 2");
  library("gather2_gpt", "gpt-deep", "context/gather", "cp: 2");
  library("gather4_llama", "llama-hf", "context/gather", "cp: 4");
  library("heads2_llama", "llama-hf", "context/heads", "cp: 2");
  library("ring2_gpt2", "gpt2-hf", "context/ring", "cp: 2");
  library("ring4_llama", "llama-hf", "context/ring", "cp: 4");
  library("usp4_llama", "llama-hf", "context/usp", "cp: 2, heads: 2");
  library("usp2_gpt2", "gpt2-hf", "context/usp", "cp: 2");
  library("experts2_moe", "moe-gshard", "experts/experts", "ep: 2");
  // A mask of the data, which hides keys.
  all.push_back({"ring2_bert_hf", "bert-hf", "{cp: 2}", split + kRing});
  all.push_back({"zigzag4_bert_hf", "bert-hf", "{cp: 4}", kZigzagRing});
  // One sample a rank: a slice of it is a part of its block.
  for (const char* model : {"two-tower", "vit-hf"})
    all.push_back({"batch4_data2_" + identifier(model), model, "{dp: 2, ep: 4}",
                   "  - shard: {input: \"*\", dim: 0, over: ep}\n  - replicate: {over: dp}\n"});
  // Where several models are cut alike, one of them trains in f32, each time the next.
  std::map<std::string, std::vector<Case*>> alike;
  for (Case& one : all) {
    const std::string id = "_" + identifier(one.model);
    alike[one.name.ends_with(id) ? one.name.substr(0, one.name.size() - id.size()) : one.name]
        .push_back(&one);
  }
  size_t turn = 0;
  for (const auto& [name, cases] : alike) {
    if (cases.size() == 1 || given_count()) continue;
    for (size_t k = 0; k < cases.size(); ++k) cases[k]->in_f32 = k == turn % cases.size();
    ++turn;
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Axes, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace piper::axes_test
