// Values that wait on the host: less memory on the device, the same bits.
#include <set>

#include "equivalence/jobs.h"
#include "piper/base/memory.h"
#include "piper/plan/verify.h"

namespace piper::offload_test {
namespace {

using jobs::Shape2;

constexpr int64_t kSteps = 5;
constexpr const char* kModel = "gpt-deep";

Result<Compiled> compile_with(const std::string& directives, const Shape2& shape,
                              bool oracles = false) {
  std::string text = jobs::strategy_text(kModel, jobs::kAdamW);
  if (!directives.empty()) text += "directives:\n" + directives;
  return jobs::compile_model(kModel, text, shape, oracles);
}

struct Case {
  const char* name;
  const char* directives;
  Shape2 shape;
};

class Offload : public testing::TestWithParam<Case> {};

TEST_P(Offload, SavesMemoryAndKeepsEveryBit) {
  NEED_MODEL(kModel);
  const Case& c = GetParam();
  const auto plain = compile_with("", c.shape, true), moved = compile_with(c.directives, c.shape);
  ASSERT_TRUE(plain) << print_error(plain.error());
  ASSERT_TRUE(moved) << print_error(moved.error());
  int64_t before = 0, after = 0, host = 0;
  for (const RoleProgram& role : plain->set.roles) before += role.arena_bytes + role.host_bytes;
  for (const RoleProgram& role : moved->set.roles) {
    after += role.arena_bytes;
    host += role.host_bytes;
  }
  EXPECT_LT(after, before);
  EXPECT_GT(host, 0);
  const int64_t steps = kSanitized ? 2 : kSteps;
  const auto want = jobs::train(*plain->single, kModel, steps);
  const auto got = jobs::train(moved->set, kModel, steps);
  ASSERT_TRUE(want) << print_error(want.error());
  ASSERT_TRUE(got) << print_error(got.error());
  jobs::expect_equal_bits(*got, *want, "single device");
  jobs::expect_same_when_queued(moved->set, kModel, c.directives);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, Offload,
    testing::Values(
        Case{"activations_1f1b_dp2", "  - offload: {what: activations}\n", {4, 2, 4}},
        Case{"optimizer_1f1b_dp2", "  - offload: {what: optimizer}\n", {4, 2, 4}},
        Case{"both_with_recompute",
             "  - offload: {what: activations, where: {stage: 0}, distance: 0, in_flight: 0}\n"
             "  - offload: {what: optimizer, distance: 2, in_flight: 0}\n"
             "  - recompute: {match: \"model/h/{layer}/**\"}\n",
             {2, 2, 4, "gpipe"}},
        Case{"states_of_some",
             "  - offload: {what: optimizer, where: {stage: 1}}\n"
             "  - offload: {what: optimizer, match: \"**/h/0/**\", distance: 2}\n"
             "  - offload: {what: parameters, match: \"**/h/0/**\", min: 1KiB}\n",
             {4, 2, 4}},
        Case{"both_split_backward",
             "  - offload: {what: activations}\n  - offload: {what: optimizer}\n",
             {4, 1, 8, "zb-h1"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(OffloadZero, WorksOnParts) {
  NEED_MODEL(kModel);
  std::string text = jobs::strategy_text(kModel, jobs::kAdamW);
  for (const char* file : {"zero1", "zero3"}) {
    const Shape2 shape{1, 2, 2, file};
    const auto plain = jobs::compile_model(kModel, text, shape, true);
    const auto moved =
        jobs::compile_model(kModel, text + "directives:\n  - offload: {what: optimizer}\n", shape);
    ASSERT_TRUE(plain) << print_error(plain.error());
    ASSERT_TRUE(moved) << print_error(moved.error());
    EXPECT_LT(moved->set.roles[0].arena_bytes, plain->set.roles[0].arena_bytes);
    const auto want = jobs::train(plain->set, kModel, 3), got = jobs::train(moved->set, kModel, 3);
    ASSERT_TRUE(want && got);
    jobs::expect_equal_bits(*got, *want, file);
    jobs::expect_same_when_queued(moved->set, kModel, file);
  }
}

// Bytes of the step's buffers that are alive on the device when the first backward begins.
int64_t alive_at_backward(const RoleProgram& role) {
  const auto first = std::find_if(role.body.begin(), role.body.end(),
                                  [](const Instruction& one) { return one.pass == TaskPass::kB; });
  std::set<int32_t> before, after;
  for (auto one = role.body.begin(); one != role.body.end(); ++one)
    for (int32_t arg : one->args) (one < first ? before : after).insert(arg);
  int64_t bytes = 0;
  for (int32_t arg : before) {
    const Tensor& tensor = role.tensor(arg);
    if (after.contains(arg) && !tensor.host && tensor.kind == BufferKind::kStep)
      bytes += tensor.type.bytes();
  }
  return bytes;
}

// All forwards come first: without the copies the values of eight microbatches lie on the device
// then, with them those of one.
TEST(OffloadMemory, TheArenaLosesWhatTheDirectiveMoves) {
  NEED_MODEL(kModel);
  const Shape2 shape{1, 1, 8, "gpipe"};
  const auto plain = compile_with("", shape);
  const auto moved =
      compile_with("  - offload: {what: activations, distance: 0, in_flight: 0}\n", shape);
  ASSERT_TRUE(plain && moved);
  const RoleProgram &before = plain->set.roles[0], &after = moved->set.roles[0];
  std::map<std::string, int64_t> copies;  // by direction
  int64_t bytes = 0, places = 0;
  for (const Instruction& one : after.body)
    if (one.kind == InstructionKind::kCopy) {
      ++copies[after.streams[static_cast<size_t>(one.stream)].name];
      const Tensor& to = after.tensor(one.args[1]);
      if (to.host) bytes += to.type.bytes(), places += align_up(to.type.bytes());
    }
  EXPECT_EQ(copies["offload"], copies["load"]);
  EXPECT_EQ(copies["offload"] % 8, 0);
  EXPECT_EQ(after.host_bytes, places);
  EXPECT_EQ(alive_at_backward(before) - alive_at_backward(after), bytes / 8 * 7);
  EXPECT_LE(after.arena_bytes, before.arena_bytes - bytes / 8 * 6);
}

void erase(std::vector<Instruction>& body, int32_t index) {
  body.erase(body.begin() + index);
  for (Instruction& one : body) {
    std::erase(one.waits, index);
    for (int32_t& wait : one.waits) wait -= wait > index ? 1 : 0;
  }
}

// A value that does not come back, or of which the host keeps what it had: the verifier says so,
// and the bits differ.
TEST(OffloadControls, ACopyLeftOutIsCaught) {
  NEED_MODEL(kModel);
  for (const char* what : {"activations", "optimizer"})
    for (const bool back : {false, true}) {
      auto compiled = compile_with(fmt::format("  - offload: {{what: {}}}\n", what), {4, 1, 4});
      ASSERT_TRUE(compiled) << print_error(compiled.error());
      const auto right = jobs::train(compiled->set, kModel, 3);
      RoleProgram& role = compiled->set.roles[0];
      const auto copy = std::find_if(role.body.begin(), role.body.end(), [&](const auto& one) {
        return one.kind == InstructionKind::kCopy && role.tensor(one.args[back]).host;
      });
      ASSERT_NE(copy, role.body.end());
      if (back)
        copy->args[0] = copy->args[1];
      else
        erase(role.body, static_cast<int32_t>(copy - role.body.begin()));
      const auto report = verify_plan_set(compiled->set);
      ASSERT_TRUE(report);
      // What it had waited for is not waited for by its reader either.
      const bool is_state = back && std::string_view(what) == "optimizer";
      EXPECT_TRUE(std::any_of(report->findings.begin(), report->findings.end(),
                              [&](const Finding& f) {
                                return is_state ? f.rule == "update"
                                                : f.rule == "order" || f.rule == "memory";
                              }))
          << what;
      const auto wrong = jobs::train(compiled->set, kModel, 3);
      EXPECT_TRUE(!wrong || wrong->losses != right->losses) << what;
    }
}

}  // namespace
}  // namespace piper::offload_test
