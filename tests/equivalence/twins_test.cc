// Replicas that `place` makes: the two devices of each stage of a bidirectional pipeline, over
// which states are cut.
#include <algorithm>

#include "equivalence/entries.h"
#include "piper/plan/verify.h"

namespace piper::twins_test {
namespace {

using namespace jobs;

struct Pair {
  const char* name;
  const char* schedule;
  int64_t stages = 2, microbatches = 4;
  std::string more = "";  // directives
  std::string mesh = "";  // further axes
  const char* model = "gpt-deep";
  std::string train = kAdamW;
  friend std::ostream& operator<<(std::ostream& out, const Pair& pair) { return out << pair.name; }
};

std::string text_of(const Pair& of) {
  return fmt::format(
      "piper: 1\ninclude: [{}/strategies/schedules/{}.yaml]\n"
      "params: {{stages: {}, microbatches: {}}}\n{}{}{}",
      PIPER_SOURCE_DIR, of.schedule, of.stages, of.microbatches,
      of.mesh.empty() ? "" : fmt::format("mesh: {{{}}}\n", of.mesh),
      of.more.empty() ? "" : "directives:\n", of.more);
}

std::string over(const std::string& axes, const std::string& shard, const std::string& more = "") {
  return fmt::format("  - replicate: {{over: {}, bucket: 4KiB{}{}}}\n", axes,
                     shard.empty() ? "" : ", shard: [" + shard + "]", more);
}
const std::string kZero2 = "optimizer, gradients", kZero3 = kZero2 + ", parameters";
const std::string kHalves = "  - precision: {compute: bf16}\n";

Result<Compiled> compiled_of(const Pair& of, bool oracles = true) {
  CompileOptions options;
  options.oracles = oracles;
  return compile_text(of.model, text_of(of), of.train, options);
}

class Twins : public ::testing::TestWithParam<Pair> {};

TEST_P(Twins, TrainAsOneDevice) {
  const Pair& of = GetParam();
  NEED_MODEL(of.model);
  const auto compiled = compiled_of(of);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto job = train_beside_single(*compiled, of.model, kSanitized ? 1 : 5);
  EXPECT_TRUE(job) << print_error(job.error());
  expect_same_when_queued(compiled->set, of.model, of.name);
}

std::vector<Pair> pairs() {
  const std::string plain = "optimizer: {adamw: {lr: 3e-3, weight_decay: 0.1}}";
  std::vector<Pair> all{
      {"whole", "dualpipe", 2, 4, over("dir", "")},
      {"zero1", "dualpipe", 2, 4, over("dir", "optimizer")},
      {"zero2", "dualpipe", 2, 4, over("dir", kZero2)},
      {"zero3", "dualpipe", 2, 4, over("dir", kZero3)},
      {"zero3_per_step", "dualpipe", 2, 4, over("dir", kZero3, ", gather: {when: per_step}")},
      {"four_stages", "dualpipe", 4, 8, over("dir", "optimizer")},
      {"four_stages_zero3", "dualpipe", 4, 8, over("dir", kZero3)},
      {"chimera", "chimera", 2, 4, over("dir", "optimizer")},
      {"chimera_four_stages", "chimera", 4, 8, over("dir", "optimizer")},
      {"chimera_zero3", "chimera", 4, 4, over("dir", kZero3)},
      {"unclipped", "dualpipe", 2, 4, over("dir", "optimizer"), "", "gpt-deep", plain},
      {"bf16", "dualpipe", 2, 4, over("dir", "optimizer") + kHalves},
      {"bf16_zero3", "dualpipe", 2, 4, over("dir", kZero3) + kHalves},
      {"reduced_in_bf16", "dualpipe", 2, 4, over("dir", "optimizer", ", reduce: {dtype: bf16}")},
      {"beside_ddp", "dualpipe", 2, 2 * 2, over("dir", "optimizer") + over("dp", ""), "dp: 2"},
      {"nested", "dualpipe", 2, 4, over("dir", "optimizer") + over("dp", "optimizer"), "dp: 2",
       "gpt-deep", plain},
      {"nested_in_replicas", "chimera", 2, 4, over("dir", "optimizer") + over("dp", kZero2),
       "dp: 2", "gpt-deep", plain},
      {"as_one", "dualpipe", 2, 4, over("[dp, dir]", "optimizer"), "dp: 2", "gpt-deep", plain},
      {"as_one_zero3", "dualpipe", 2, 4, over("[dp, dir]", kZero3), "dp: 2", "gpt-deep", plain},
      {"some", "dualpipe", 2, 4,
       "  - replicate: {over: dir, match: \"**/qkv/*\", shard: [optimizer]}\n"},
      {"offloaded", "dualpipe", 2, 4,
       over("dir", "optimizer") + "  - offload: {what: parameters}\n"},
      {"offloaded_zero3", "chimera", 2, 4,
       over("dir", kZero3) + "  - offload: {what: parameters}\n"},
      {"tied", "dualpipe", 2, 4, over("dir", "optimizer"), "", kSmallGpt},
      {"tied_far", "dualpipe", 4, 8, over("dir", "optimizer"), "", "gpt-deep"},
      {"mlp", "chimera", 2, 4, over("dir", "optimizer"), "", "mlp"}};
  if (kSanitized) all.resize(4);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, Twins, ::testing::ValuesIn(pairs()),
                         [](const auto& info) { return std::string(info.param.name); });

// Each rank has half of the optimizer's states, and with ZeRO-3 of the parameters, too.
TEST(TwinsMemory, IsHalf) {
  NEED_MODEL("gpt-deep");
  const auto held = [](const std::string& entry) {
    const auto compiled = compiled_of({"", "dualpipe", 2, 4, entry}, false);
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    std::array<std::vector<int64_t>, 2> bytes;  // of states of the optimizer; of parameters
    for (const RoleProgram& role : compiled->set.roles) {
      bytes[0].push_back(0), bytes[1].push_back(0);
      for (const Buffer& buffer : role.buffers)
        if (const Tensor& tensor = role.tensor(buffer);
            tensor.kind == BufferKind::kState && !tensor.type.shape.empty())
          bytes[tensor.param.empty() ? 0 : 1].back() += tensor.type.bytes();
    }
    return bytes;
  };
  const auto whole = held(""), first = held(over("dir", "optimizer")),
             all = held(over("dir", kZero3));
  ASSERT_EQ(whole[0].size(), first[0].size());
  for (size_t r = 0; r < whole[0].size(); ++r) {
    EXPECT_EQ(2 * first[0][r], whole[0][r]);
    EXPECT_EQ(first[1][r], whole[1][r]);
    EXPECT_EQ(2 * all[1][r], whole[1][r]);
  }
}

// A plan that adds microbatches in another order does not agree.
TEST(TwinsControl, AnotherOrderDiffers) {
  NEED_MODEL("gpt-deep");
  const auto own = compiled_of({"", "dualpipe", 2, 4, over("dir", "optimizer")});
  const auto other = compiled_of({"", "1f1b", 2, 4, ""});
  ASSERT_TRUE(own && other);
  Compiled mixed = *own;
  mixed.single = other->single;
  const auto job = train_beside_single(mixed, "gpt-deep", 4);
  ASSERT_FALSE(job);
  EXPECT_EQ(job.error().code, ExitCode::kNumeric) << print_error(job.error());
}

// What goes wrong with halves is found: a half that is updated by that of another gradient, one
// that is gathered in another's place, terms of another gradient, and states that are in no halves.
void expect_refused(PlanSet set, const char* what) {
  const auto report = verify_plan_set(set);
  ASSERT_TRUE(report) << print_error(report.error());
  EXPECT_FALSE(report->findings.empty()) << what;
}

template <class Change>
PlanSet changed(const PlanSet& set, InstructionKind kind, Change change) {
  PlanSet made = set;
  for (Instruction& one : made.roles[0].body)
    if (one.kind == kind && !made.roles[0].groups[static_cast<size_t>(one.group)].axes.empty() &&
        change(made.roles[0], one))
      return made;
  ADD_FAILURE() << "nothing to change";
  return made;
}

TEST(TwinsVerified, FindsWrongHalves) {
  NEED_MODEL("gpt-deep");
  const auto compiled = compiled_of({"", "dualpipe", 2, 4, over("dir", "optimizer")}, false);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& set = compiled->set;
  const auto clean = verify_plan_set(set);
  ASSERT_TRUE(clean && clean->findings.empty());
  const auto same_pairs = [](const RoleProgram& role, const Instruction& one, size_t first) {
    return one.args.size() >= 4 &&
           role.tensor(one.args[first]).type == role.tensor(one.args[first + 2]).type;
  };
  // Two gradients change places on one device: it updates a half with that of another.
  expect_refused(changed(set, InstructionKind::kReduceScatter,
                         [&](const RoleProgram& role, Instruction& one) {
                           if (!same_pairs(role, one, 1)) return false;
                           std::swap(one.args[1], one.args[3]);
                           return true;
                         }),
                 "a half of another gradient");
  expect_refused(changed(set, InstructionKind::kAllGather,
                         [&](const RoleProgram& role, Instruction& one) {
                           if (!same_pairs(role, one, 0)) return false;
                           std::swap(one.args[0], one.args[2]);
                           return true;
                         }),
                 "a half of another parameter");
  expect_refused(changed(set, InstructionKind::kReduceScatter,
                         [&](const RoleProgram& role, Instruction& one) {
                           if (!same_pairs(role, one, 0)) return false;
                           std::swap(one.args[0], one.args[2]);
                           return true;
                         }),
                 "a term of another gradient");
  PlanSet apart = set;  // the states of one device are said to be the half of the other
  for (Tensor& tensor : apart.roles[0].tensors)
    if (tensor.part_of >= 0) tensor.part_of = -1, tensor.whole.clear();
  expect_refused(apart, "states that are whole on one device");
}

TEST(TwinsRefused, AtTheirPlace) {
  NEED_MODEL("gpt-deep");
  const std::string odd =
      "piper: 1\nmesh: {pp: 3}\nannotate: [{balance: {tag: stage, into: 3}}]\ndirectives:\n"
      "  - split: {dim: batch, into: 4, as: mb}\n"
      "  - place: {where: {stage: s}, tags: {dir: \"mb >= M/2\"}, on: {pp: \"dir ? P-1-s : s\"}}\n"
      "  - replicate: {over: dir, shard: [optimizer]}\n";
  std::string turned = odd;
  turned.replace(turned.find("P-1-s : s"), 9, "(s+1)%P : s");
  std::string of_stage = odd;
  of_stage.replace(of_stage.find("mb >= M/2"), 9, "s < mb");
  for (const auto& [text, error] :
       {std::pair(odd,
                  "7:23: error: not supported: replicas over 'dir', where stages are not on 2 "
                  "devices each"),
        {turned, "7:23: error: not supported: replicas over 'dir', where stages are not on"},
        {of_stage,
         "6:45: error: not supported: replicas told apart by a tag that depends on "
         "more than the microbatch"}}) {
    const auto compiled = compile_text("gpt-deep", text, kAdamW, {});
    ASSERT_FALSE(compiled);
    EXPECT_NE(print_error(compiled.error()).find(error), std::string::npos)
        << print_error(compiled.error());
  }
  for (const auto& [entry, error] :
       {std::pair(over("dir", kZero2, ", reduce: {when: per_microbatch}"),
                  "not supported: gradients that the places of a stage sum in each microbatch"),
        {over("dir", "optimizer", ", reduce: {dtype: int8, lossy: true}"),
         "not supported: sums over the places of a stage that travel in int8"},
        {over("stage", "optimizer"), "unknown mesh axis 'stage'"},
        // Without an order each device begins with the stage that the other one ends with.
        {over("dir", kZero3) + "  - drop: order\n",
         "not supported: parameters in parts on the devices of a stage, which do not need them in "
         "one order"},
        {over("dir", "optimizer") + "weight_versions: 2\n",
         "help: without `replicate: {over: dir}` each place of a stage holds all its states"}}) {
    const auto compiled = compiled_of({"", "dualpipe", 2, 4, entry}, false);
    ASSERT_FALSE(compiled);
    EXPECT_NE(print_error(compiled.error()).find(error), std::string::npos)
        << print_error(compiled.error());
  }
  const auto muon = compiled_of(
      {"", "dualpipe", 2, 4, over("dir", "optimizer"), "", "gpt-deep",
       "optimizer: {muon: {lr: 1e-2}}, groups: [{of: [vectors, embeddings, heads], optimizer: "
       "{adamw: {lr: 1e-3}}}]"},
      false);
  ASSERT_FALSE(muon);
  EXPECT_NE(print_error(muon.error())
                .find("cut over the places of a stage, with an optimizer that "
                      "looks at whole tensors (Muon)"),
            std::string::npos)
      << print_error(muon.error());
}

}  // namespace
}  // namespace piper::twins_test
