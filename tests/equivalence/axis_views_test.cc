// Products of mesh axes, as `over: [a, b]` writes them: three steps of real exports are those of
// one device. Axes that are named together only train with the bits of one axis; what is cut over
// axes with uses of their own is right to the last digits; plans with one collective over another
// axis are refused, and train another model.
#include <gmock/gmock.h>

#include "communicators.h"
#include "equivalence/jobs.h"
#include "piper/plan/verify.h"

namespace piper::axis_views_test {
namespace {

using namespace jobs;

constexpr int64_t kSteps = 3;  // with two updates before the last

struct Case {
  std::string name, model, mesh, directives;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

Result<Compiled> compile_case(const Case& c, bool wide = true) {
  const Folder folder;
  CompileOptions options;
  options.model = model_path(c.model, "model.onnx");
  options.strategy = folder.write(
      "strategy.yaml",
      fmt::format("piper: 1\nmesh: {}\ntrain: {{global_batch: 8, {}}}\ndirectives:\n{}{}", c.mesh,
                  kAdamW, wide ? "  - precision: {compute: f64}\n" : "", c.directives));
  return compile(options);
}

// Tokens over two axes, whose attention exchanges heads along one and keys along the other
// (USP; Fang and Zhao, 2024, arXiv 2405.07719).
std::string usp(const std::string& axes, const std::string& order) {
  return fmt::format(
      "  - shard: {{input: \"*\", dim: 1, over: [{0}], order: {1}}}\n"
      "  - shard: {{match: \"**\", dim: none, over: [{0}]}}\n"
      "  - shard: {{attention: \"**\", by: heads, over: u}}\n"
      "  - shard: {{attention: \"**\", by: ring, over: ring}}\n",
      axes, order);
}
// Products of tokens in pieces, of which each has its share of all blocks of both axes.
const std::string kPieces =
    R"(  - split: {scope: ["**/h/{layer}/fc", "**/h/{layer}/fc_out"], dim: 1, into: 2, within: [ring, u]}
)";
// A ring along each of two axes: while keys of one group go to the next, those of its ranks go
// round within it (LoongTrain; Gu et al., 2024, arXiv 2406.18485).
std::string two_rings(const std::string& axes, const std::string& order) {
  std::string text = fmt::format(
      "  - shard: {{input: \"*\", dim: 1, over: [{0}], order: {1}}}\n"
      "  - shard: {{match: \"**\", dim: none, over: [{0}]}}\n",
      axes, order);
  for (const char* axis : {"a", "b"})
    text += fmt::format("  - shard: {{attention: \"**\", by: ring, over: {}}}\n", axis);
  return text;
}
// Layers whose attentions meet tokens over both axes in different ways.
std::string by_layer(const std::string& order) {
  return fmt::format(
      "  - shard: {{input: \"*\", dim: 1, over: [a, b], order: {}}}\n"
      "  - shard: {{match: \"**\", dim: none, over: [a, b]}}\n"
      "  - shard: {{attention: \"**/h/{{0..1}}/**\", by: heads, over: b}}\n"
      "  - shard: {{attention: \"**/h/{{0..1,5}}/**\", by: ring, over: a}}\n"
      "  - shard: {{attention: \"**/h/{{2..3}}/**\", by: ring, over: a}}\n"
      "  - shard: {{attention: \"**/h/{{2..3}}/**\", by: ring, over: b}}\n"
      "  - shard: {{attention: \"**/h/4/**\", by: gather, over: a}}\n"
      "  - shard: {{attention: \"**/h/{{4,6}}/**\", by: gather, over: b}}\n",
      order);
}
const std::string kTensor = R"(  - shard: {match: "**/q_proj/weight", dim: 0, over: [a, b]}
  - shard: {match: "**/k_proj/weight", dim: 0, over: a}
  - shard: {match: "**/v_proj/weight", dim: 0, over: a}
  - shard: {match: "**/{gate,up}_proj/weight", dim: 0, over: [b, a]}
  - shard: {match: "**/down_proj/weight", dim: 1, over: [b, a]}
)";

// Layers of the first stages are cut over the replicas' ranks, too.
std::string by_stage(const std::string& schedule, const std::string& memory, int wide) {
  return fmt::format(
      "  - shard: {{match: [\"**/qkv/*\", \"**/{{q,k,v}}_proj/*\", \"**/fc/*\"], dim: 0, over: dp, "
      "where: {{stage: \"<{3}\"}}}}\n"
      "  - shard: {{match: [\"**/proj/weight\", \"**/fc_out/weight\", \"**/o_proj/weight\"], dim: "
      "1, "
      "over: dp, where: {{stage: \"<{3}\"}}}}\n"
      "include: [{0}/schedules/{1}.yaml, {0}/memory/{2}.yaml, {0}/memory/recompute.yaml, "
      "{0}/tensor/tensor.yaml]\n"
      "params: {{stages: 2, dp: 2, tp: 2, microbatches: 4}}\n",
      std::string(PIPER_SOURCE_DIR) + "/strategies", schedule, memory, wide);
}
// Two layers over both axes, two over one of them and with replicas over the other.
const std::string kDegrees = R"(  - shard: {match: "**/h/{0,1}/**/{qkv,fc}/*", dim: 0, over: [a, b]}
  - shard: {match: "**/h/{0,1}/**/{proj,fc_out}/weight", dim: 1, over: [a, b]}
  - shard: {match: "**/h/{2,3}/**/{qkv,fc}/*", dim: 0, over: a}
  - shard: {match: "**/h/{2,3}/**/{proj,fc_out}/weight", dim: 1, over: a}
  - replicate: {over: b, match: "**/h/{2,3}/**", shard: [optimizer, gradients, parameters]}
)";

// Experts over one axis with replicas over the other, all else with replicas over both (the meshes
// of FSDP and experts in TorchTitan, 2025).
std::string experts_beside(const std::string& shard) {
  return fmt::format(
      "  - split: {{dim: batch, into: 2}}\n"
      "  - shard: {{match: [\"**/w_in\", \"**/w_out\"], dim: 0, over: ep}}\n"
      "  - replicate: {{over: edp, match: [\"**/w_in\", \"**/w_out\"], shard: {0}}}\n"
      "  - replicate: {{over: [edp, ep], match: [\"**\", \"!**/w_in\", \"!**/w_out\"], shard: "
      "{0}, bucket: 8KiB}}\n",
      shard);
}
const std::string kAllStates = "[optimizer, gradients, parameters]";

std::vector<Case> cases() {
  return {
      {"usp", "llama-hf", "{ring: 2, u: 2}", usp("ring, u", "contiguous")},
      {"usp_zigzag", "llama-hf", "{ring: 2, u: 2}", usp("ring, u", "zigzag")},
      {"usp_in_pieces", "gpt-deep", "{ring: 2, u: 2}", usp("ring, u", "zigzag") + kPieces},
      {"heads_over_two_apart", "gpt-deep", "{a: 2, b: 2}",
       "  - shard: {input: \"*\", dim: 1, over: [b, a]}\n"
       "  - shard: {match: [\"**\", \"!**/wte/*\"], dim: none, over: [a, b]}\n"
       "  - shard: {match: \"**/wte/*\", dim: none, over: a}\n"
       "  - shard: {attention: \"**\", by: heads, over: [a, b]}\n"},
      {"usp_other_mesh", "gpt-deep", "{u: 2, ring: 2}", usp("ring, u", "contiguous")},
      // Heads over the axis with the longer blocks.
      {"usp_longer_heads", "llama-hf", "{u: 2, ring: 2}", usp("u, ring", "contiguous")},
      {"usp_longer_heads_zigzag", "gpt-deep", "{ring: 2, u: 2}",
       usp("u, ring", "zigzag") + kPieces},
      {"usp_zero3", "gpt-deep", "{dp: 2, ring: 2, u: 2}",
       usp("ring, u", "zigzag") +
           "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n"},
      {"gather_and_ring", "llama-hf", "{g: 2, ring: 2}",
       "  - shard: {input: \"*\", dim: 1, over: [ring, g]}\n"
       "  - shard: {match: \"**\", dim: none, over: [ring, g]}\n"
       "  - shard: {attention: \"**\", by: gather, over: g}\n"
       "  - shard: {attention: \"**\", by: ring, over: ring}\n"},
      {"gather_within_ring", "gpt-deep", "{a: 2, b: 2}",
       "  - shard: {input: \"*\", dim: 1, over: [b, a]}\n"
       "  - shard: {match: \"**\", dim: none, over: [a, b]}\n"
       "  - shard: {attention: \"**\", by: gather, over: a}\n"
       "  - shard: {attention: \"**\", by: ring, over: b}\n"},
      {"two_rings", "llama-hf", "{a: 2, b: 2}", two_rings("a, b", "contiguous")},
      {"two_rings_zigzag", "gpt-deep", "{a: 2, b: 2}", two_rings("b, a", "zigzag")},
      {"two_rings_of_all_keys", "bert-hf", "{b: 2, a: 4}", two_rings("a, b", "contiguous")},
      {"two_rings_tensor", "gpt-deep", "{a: 2, tp: 2, b: 2}",
       two_rings("a, b", "zigzag") + jobs::kGptTensor},
      {"two_rings_zero3", "gpt-deep", "{dp: 2, a: 2, b: 2}",
       two_rings("a, b", "zigzag") +
           "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n"},
      {"two_rings_and_heads", "gpt-deep", "{a: 2, b: 2, u: 2}",
       two_rings("a, b, u", "contiguous") + "  - shard: {attention: \"**\", by: heads, over: u}\n"},
      {"ways_by_layer", "gpt-deep", "{a: 2, b: 2}", by_layer("contiguous")},
      {"ways_by_layer_zigzag", "gpt-deep", "{b: 2, a: 2}", by_layer("zigzag")},
      {"ring_within_gather", "gpt-deep", "{ring: 2, g: 2}",
       "  - shard: {input: \"*\", dim: 1, over: [g, ring], order: zigzag}\n"
       "  - shard: {match: \"**\", dim: none, over: [g, ring]}\n"
       "  - shard: {attention: \"**\", by: gather, over: g}\n"
       "  - shard: {attention: \"**\", by: ring, over: ring}\n"},
      {"weights", "llama-hf", "{a: 2, b: 2}", kTensor},
      {"degrees", "gpt-deep", "{a: 2, b: 2}", kDegrees},
      {"degrees_by_stage", "gpt-deep", "{pp: 2, dp: 2, tp: 2}", by_stage("1f1b", "zero1", 1)},
      {"degrees_by_chunk", "gpt-deep", "{pp: 2, dp: 2, tp: 2}",
       by_stage("interleaved-1f1b", "zero3", 3)},
      {"degrees_by_stage_llama", "llama-hf", "{pp: 2, tp: 2, dp: 2}", by_stage("zb-h1", "ddp", 1)},
      {"states_over_tokens", "gpt-deep", "{cp: 2}",
       "  - shard: {input: \"*\", dim: 1, over: cp, order: zigzag}\n"
       "  - shard: {match: \"**\", dim: none, over: cp}\n"
       "  - shard: {attention: \"**\", by: ring, over: cp}\n"
       "  - replicate: {over: cp, shard: [optimizer, gradients, parameters]}\n"},
      {"classes_behind_the_end", "vit-hf", "{dp: 4}",
       "  - replicate: {over: dp, shard: [optimizer]}\n"
       "  - shard: {match: \"**/classifier/*\", dim: 0, over: dp, pad: true}\n"},
      {"padded_heads_in_a_ring", "gpt-deep", "{tp: 3, cp: 4}",
       "  - shard: {match: \"**/qkv/*\", dim: 0, over: tp, pad: true}\n"
       "  - shard: {input: \"*\", dim: 1, over: cp}\n"
       "  - shard: {match: \"**\", dim: none, over: cp}\n"
       "  - shard: {attention: \"**\", by: ring, over: cp}\n"},
      {"experts_over_replicas", "moe-gshard", "{dp: 4}",
       "  - replicate: {over: dp, shard: [optimizer]}\n"
       "  - shard: {match: [\"**/w_in\", \"**/w_out\"], dim: 0, over: dp}\n"},
      {"samples_and_experts", "moe-gshard", "{dp: 2, ep: 2}",
       "  - shard: {input: \"*\", dim: 0, over: [dp, ep]}\n"
       "  - shard: {match: [\"**/w_in\", \"**/w_out\"], dim: 0, over: ep}\n"},
      {"experts_and_fsdp", "moe-gshard", "{edp: 2, ep: 2}", experts_beside(kAllStates)},
      {"experts_and_zero1", "moe-gshard", "{edp: 2, ep: 2}", experts_beside("[optimizer]")},
      {"fsdp_over_tokens", "gpt-deep", "{dp: 2, cp: 2}",
       "  - shard: {input: \"*\", dim: 1, over: cp}\n"
       "  - replicate: {over: [dp, cp], bucket: 8KiB, shard: " +
           kAllStates + "}\n"},
      {"experts_over_nodes", "moe-gshard", "{node: 2, ep: 2}",
       "  - shard: {input: \"*\", dim: 0, over: [node, ep]}\n"
       "  - shard: {match: [\"**/w_in\", \"**/w_out\"], dim: 0, over: [node, ep]}\n"}};
}

class AxisViews : public ::testing::TestWithParam<Case> {};

TEST_P(AxisViews, TrainAsOneDeviceDoes) {
  NEED_MODEL("gpt");
  const Case& c = GetParam();
  const Result<Compiled> compiled = compile_case(c);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Result<Trained> uncut = train(*compiled->uncut, c.model, kSteps);
  ASSERT_TRUE(uncut) << print_error(uncut.error());
  const Result<Trained> spread = train(compiled->set, c.model, kSteps);
  ASSERT_TRUE(spread) << print_error(spread.error());
  for (size_t k = 0; k < uncut->losses.size(); ++k) {
    EXPECT_NEAR(spread->losses[k], uncut->losses[k], 1e-12) << "step " << k;
    EXPECT_NEAR(spread->norms[k], uncut->norms[k], 1e-11) << "step " << k;
  }
  EXPECT_LT(largest_difference(*spread, *uncut), 1e-12);
  expect_same_when_queued(compiled->set, c.model, c.name);
}

INSTANTIATE_TEST_SUITE_P(Models, AxisViews, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// An axis with two uses: what `shard` cuts is no parameter of replicas, and needs samples for all.
TEST(AxisViews, AnEntryForReplicasNamesWhatIsLeft) {
  NEED_MODEL("gpt");
  const auto refused = [](const std::string& directives) {
    const Result<Compiled> compiled = compile_case({"", "gpt-deep", "{dp: 2}", directives}, false);
    return compiled ? std::string("compiled") : print_error(compiled.error());
  };
  const std::string cut = "  - shard: {match: \"**/fc/*\", dim: 0, over: dp}\n",
                    all = "  - replicate: {over: dp}\n";
  EXPECT_THAT(refused("  - replicate: {over: dp, match: \"**/fc/*\"}\n" + all + cut),
              ::testing::AllOf(::testing::HasSubstr("strategy.yaml:5:5"),
                               ::testing::HasSubstr("no gradient that it names is summed")));
  EXPECT_THAT(refused("  - split: {dim: batch, into: 8}\n" + all + cut),
              ::testing::AllOf(::testing::HasSubstr("strategy.yaml:7:5"),
                               ::testing::HasSubstr("a microbatch has 1 sample")));
}

// Classes that are padded are proven in 16 bits, too, where one device has rows in more dims.
TEST(AxisViews, ClassesIn16BitsAreProven) {
  NEED_MODEL("gpt");
  const Result<Compiled> compiled =
      compile_case({"", "gpt-deep", "{tp: 3}",
                    "  - precision: {compute: bf16}\n"
                    "  - shard: {match: \"**/wte/*\", dim: 0, over: tp, pad: true}\n"},
                   false);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const Result<VerifyReport> report = verify_plan_set(compiled->set, &*compiled->single);
  ASSERT_TRUE(report) << print_error(report.error());
  for (const Finding& finding : report->findings)
    ADD_FAILURE() << finding.rule << " " << finding.text;
}

// Axes that are named together only are the axis of all their ranks: the same bits, one message.
TEST(AxisViews, AxesNamedTogetherAreOneAxis) {
  NEED_MODEL("gpt");
  const std::pair<const char*, const char*> kUses[] = {
      {"gpt-deep", "  - replicate: {over: OVER, bucket: 1KiB}\n"},
      {"gpt-deep", "  - replicate: {over: OVER, shard: [optimizer, gradients, parameters]}\n"},
      {"llama-hf",
       "  - shard: {match: \"**/{q,k,v,gate,up}_proj/weight\", dim: 0, over: OVER}\n"
       "  - shard: {match: \"**/{o,down}_proj/weight\", dim: 1, over: OVER}\n"}};
  for (const auto& [model, directives] : kUses) {
    const auto over = [&](const std::string& axes) {
      std::string text = directives;
      for (size_t at = 0; (at = text.find("OVER")) != text.npos;) text.replace(at, 4, axes);
      return text;
    };
    const bool four = std::string(model) == "gpt-deep";
    const Result<Compiled> two = compile_case(
                               {"", model, four ? "{pod: 2, dp: 2}" : "{pod: 2, dp: 1}",
                                over("[pod, dp]")},
                               false),
                           one = compile_case({"", model, four ? "{dp: 4}" : "{dp: 2}", over("dp")},
                                              false);
    ASSERT_TRUE(two) << print_error(two.error());
    ASSERT_TRUE(one) << print_error(one.error());
    EXPECT_EQ(two->set.roles[0].body.size(), one->set.roles[0].body.size());
    const Result<Trained> a = train(two->set, model, kSteps), b = train(one->set, model, kSteps);
    ASSERT_TRUE(a) << print_error(a.error());
    ASSERT_TRUE(b) << print_error(b.error());
    expect_equal_bits(*a, *b, directives);
  }
}

// The verifier refuses every plan in which one collective is over the other axis, or over one of
// both; of a few the numbers show it, too.
class OneAxis : public ::testing::TestWithParam<Case> {};

TEST_P(OneAxis, EachCollectiveIsOverItsAxis) {
  NEED_MODEL("gpt");
  const Case& c = GetParam();
  const Result<Compiled> right = compile_case(c);
  ASSERT_TRUE(right) << print_error(right.error());
  const Result<Trained> uncut = train(*right->uncut, c.model, 2);
  ASSERT_TRUE(uncut) << print_error(uncut.error());
  const RoleProgram& role = right->set.roles[0];
  size_t changed = 0, trained = 0;
  for (size_t i = 0; i < role.body.size(); ++i) {
    const Instruction& was = role.body[i];
    if (was.group < 0) continue;
    PlanSet wrong = right->set;
    RoleProgram& of = wrong.roles[0];
    const std::vector<int32_t> axes = of.groups[static_cast<size_t>(was.group)].axes;
    const int32_t axis = axes.size() == 1 ? 1 - axes[0] : axes[i % 2];  // of both: one of them
    of.groups.push_back({of.mesh[static_cast<size_t>(axis)].first, {axis}});
    of.body[i].group = static_cast<int32_t>(of.groups.size()) - 1;
    give_communicators(wrong);
    const Result<VerifyReport> report = verify_plan_set(wrong, nullptr);
    const bool is_refused = !report || !report->findings.empty();
    if (!is_refused && was.kind == InstructionKind::kOwnPart) {
      // All blocks of the gradient of a term without samples are alike.
      const Result<Trained> same = train(wrong, c.model, 2);
      ASSERT_TRUE(same) << print_error(same.error());
      EXPECT_LT(largest_difference(*same, *uncut), 1e-12) << i << " " << was.label;
      continue;
    }
    EXPECT_TRUE(is_refused) << i << " " << was.label;
    if (++changed % 16 != 0) continue;
    const Result<Trained> ran = train(wrong, c.model, 2);
    if (!ran) continue;  // not to be run at all
    ++trained;
    EXPECT_GT(largest_difference(*ran, *uncut), 1e-9) << i << " " << was.label;
  }
  EXPECT_GT(changed, 40U);
  EXPECT_GT(trained, 0U);
}

// Each turn along each of two axes, and each block of keys: one that does not come, comes from
// elsewhere, or is read in place of another.
TEST(AxisViews, EachBlockOfTwoRingsCounts) {
  NEED_MODEL("gpt");
  const Result<Compiled> right =
      compile_case({"", "llama-hf", "{a: 2, b: 4}", two_rings("a, b", "contiguous")});
  ASSERT_TRUE(right) << print_error(right.error());
  const Result<Trained> uncut = train(*right->uncut, "llama-hf", 2);
  ASSERT_TRUE(uncut) << print_error(uncut.error());
  const RoleProgram& role = right->set.roles[0];
  size_t changed = 0, trained = 0;
  const auto expect_caught = [&](const std::string& what, const auto& change) {
    PlanSet wrong = right->set;
    change(wrong.roles[0]);
    give_communicators(wrong);
    const Result<VerifyReport> report = verify_plan_set(wrong, &*right->single);
    EXPECT_TRUE(!report || !report->findings.empty()) << what;
    if (++changed % 60 != 0) return;
    const Result<Trained> ran = train(wrong, "llama-hf", 2);
    if (!ran) return;  // not to be run at all
    ++trained;
    EXPECT_GT(largest_difference(*ran, *uncut), 1e-9) << what;
  };
  // Of the arguments that are the same tensors in other turns: two blocks of keys.
  std::map<std::string, std::vector<int32_t>> turns;
  for (const Instruction& one : role.body)
    for (size_t a = 1; one.kind == InstructionKind::kRotate && a < one.args.size(); a += 2)
      turns[to_string(role.tensor(one.args[a]).type)].push_back(one.args[a]);
  for (size_t i = 0; i < role.body.size(); ++i) {
    const Instruction& one = role.body[i];
    if (one.kind == InstructionKind::kRotate) {
      expect_caught(one.label + " left out", [&](RoleProgram& of) {
        of.body[i].kind = InstructionKind::kCopy, of.body[i].group = -1, of.body[i].turn = 0;
      });
      const int64_t ranks =
          role.mesh[static_cast<size_t>(role.groups[static_cast<size_t>(one.group)].axes[0])]
              .second;
      if (2 * one.turn != ranks)
        expect_caught(one.label + " the other way",
                      [&](RoleProgram& of) { of.body[i].turn = ranks - one.turn; });
    } else if (one.kind == InstructionKind::kCompute) {
      const Program& program = role.programs[static_cast<size_t>(one.program)];
      for (size_t a = 0; a < one.args.size(); ++a) {
        const auto others = turns.find(to_string(role.tensor(one.args[a]).type));
        if (!program.arg_read[a] || program.arg_written[a] || others == turns.end()) continue;
        const auto at = std::ranges::find(others->second, one.args[a]);
        if (at == others->second.end() || at == others->second.begin()) continue;
        expect_caught(fmt::format("{} reads {} again", one.label, role.name(at[-1])),
                      [&](RoleProgram& of) { of.body[i].args[a] = at[-1]; });
      }
    }
  }
  EXPECT_GT(changed, 100U);
  EXPECT_GT(trained, 0U);
}

// A strategy for a whole mesh, on one device: the plan is that of no directive over the mesh, and
// each of them says so.
TEST(AxisViews, AxesOfOneRankChangeNothing) {
  NEED_MODEL("gpt");
  const std::string split = "  - split: {dim: batch, into: 2}\n";
  const char* const kOver[] = {
      "replicate: {over: dp, shard: [optimizer, gradients, parameters], bucket: 1KiB, reduce: "
      "{stream: r}, gather: {stream: g, prefetch: 2}}",
      "replicate: {over: [pod, dp], shard: [optimizer], persist: 1KiB}",
      "shard: {match: \"**/qkv/*\", dim: 0, over: tp}",
      "shard: {match: \"**/qkv/*\", dim: 0, over: [tp, cp]}",
      "shard: {scope: \"**/ln_*\", dim: 1, over: tp}",
      "shard: {match: \"**/wte/*\", dim: 0, over: tp, pad: true}",
      "shard: {input: \"*\", dim: 1, over: cp, order: zigzag}",
      "shard: {attention: \"**\", by: ring, over: cp}",
      "shard: {sends: \"**\", over: tp}",
      "stream: {where: {kind: rotate}, name: ring, priority: high}",
      "stream: {where: {kind: all_reduce, pass: B, mb: m}, name: \"tp{m}\", sms: 20}",
      "prefetch: {where: {kind: all_gather}, distance: 2}",
      "fuse: {where: {kind: reduce_scatter}, microbatches: 2}"};
  const std::string mesh = "{pod: 1, dp: 1, tp: 1, cp: 1}";
  const Result<Compiled> without = compile_case({"", "gpt-deep", mesh, split}, false);
  ASSERT_TRUE(without) << print_error(without.error());
  for (const std::string directive : kOver) {
    const Result<Compiled> with =
        compile_case({"", "gpt-deep", mesh, split + "  - " + directive + "\n"}, false);
    ASSERT_TRUE(with) << directive << print_error(with.error());
    ASSERT_EQ(with->set.roles.size(), 1U);
    EXPECT_EQ(print_plan(with->set.roles[0]), print_plan(without->set.roles[0])) << directive;
    const bool said = std::any_of(
        with->explanations.begin(), with->explanations.end(), [&](const Explanation& one) {
          return std::any_of(one.lines.begin(), one.lines.end(), [&](const std::string& line) {
            return one.directive == directive.substr(0, directive.find(':')) &&
                   (line.find("has one rank") != line.npos ||
                    line.find("have one rank each") != line.npos);
          });
        });
    EXPECT_TRUE(said) << directive;
  }
}

INSTANTIATE_TEST_SUITE_P(
    AxisViews, OneAxis,
    ::testing::Values(Case{"usp", "llama-hf", "{ring: 2, u: 2}", usp("ring, u", "zigzag")},
                      Case{"usp_longer_heads", "llama-hf", "{ring: 2, u: 2}",
                           usp("u, ring", "zigzag")},
                      Case{"two_rings", "llama-hf", "{a: 2, b: 2}", two_rings("a, b", "zigzag")},
                      Case{"degrees", "gpt-deep", "{a: 2, b: 2}", kDegrees},
                      Case{"experts", "moe-gshard", "{edp: 2, ep: 2}", experts_beside(kAllStates)}),
    [](const auto& info) { return info.param.name; });

std::string refusal(const std::string& mesh, const std::string& directives) {
  const Result<Compiled> compiled = compile_case({"", "llama-hf", mesh, directives});
  return compiled ? "" : print_error(compiled.error());
}

TEST(AxisViews, WhatIsNoProductIsRefused) {
  NEED_MODEL("gpt");
  const auto says = [](const std::string& text, const char* words) {
    return text.find(words) != text.npos ? "" : text;
  };
  EXPECT_EQ(says(refusal("{a: 2, x: 2, b: 2}",
                         "  - replicate: {over: [a, b]}\n  - replicate: {over: x}\n"),
                 "6:23: error: not supported: replicas over [a, b], which are no axis together"),
            "");
  EXPECT_EQ(says(refusal("{ring: 2, u: 2}",
                         usp("ring, u", "zigzag") +
                             "  - split: {scope: [\"**/{layer}/mlp/**\"], dim: 1, into: 2}\n"),
                 "names all axes that cut these, so that a part has its share"),
            "");
  EXPECT_EQ(says(refusal("{pp: 2, a: 2}",
                         "  - place: {where: {stage: s}, on: {pp: s}}\n"
                         "  - shard: {match: \"**/q_proj/weight\", dim: 0, over: a, where: "
                         "{stage: 7}}\nannotate:\n  - balance: {tag: stage, into: 2}\n"),
                 "error: shard: no parameter that matches '**/q_proj/weight' is read only where "
                 "'where' says"),
            "");
  EXPECT_EQ(says(refusal("{a: 2}",
                         "  - shard: {input: \"*\", dim: 0, over: a, where: {stage: 0}}\n"
                         "annotate:\n  - balance: {tag: stage, into: 2}\n"),
                 "error: shard: 'where' is for 'match' and 'scope'"),
            "");
}

}  // namespace
}  // namespace piper::axis_views_test
