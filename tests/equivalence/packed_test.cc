// Weights packed once a step for products of few rows: the same bits, in the memory that the plan
// states.
#include <set>

#include "equivalence/jobs.h"
#include "piper/base/data.h"
#include "piper/base/memory.h"
#include "piper/devices/cpu.h"
#include "piper/runtime/data.h"

namespace piper::packed_test {
namespace {

using jobs::Shape2;

const std::string kModel = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";

// The sample GPT: 128 tokens a sample, linear layers of 128 to 512 features.
Result<Compiled> compile_gpt(const Shape2& shape, int64_t samples) {
  const Folder folder;
  std::string text =
      "piper: 1\ninclude: " PIPER_SOURCE_DIR "/strategies/" + shape.order + ".yaml\n";
  text += fmt::format("train: {{global_batch: {}, {}}}\n", samples, jobs::kAdamW);
  CompileOptions options;
  options.model = kModel;
  options.strategy = folder.write("strategy.yaml", text);
  options.defines = jobs::definitions_of(jobs::library_text(shape.order), shape);
  options.oracles = false;
  return compile(options);
}

Result<jobs::Trained> train_gpt(const PlanSet& set, int64_t steps, bool fuse) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 20000; ++i) text += static_cast<char>(i * 7919 % 251);
  DataOptions options;
  options.sources = {folder.write("tokens", text) + ":u8"};
  PIPER_ASSIGN(const auto needs, data_needs(set));
  PIPER_ASSIGN(const auto data, open_data(options, needs, set.roles[0].batch));
  JobOptions job;
  job.steps = steps;
  job.fuse = fuse;
  PIPER_ASSIGN(JobResult result, run_job(set, data.get(), nullptr, nullptr, job));
  jobs::Trained trained;
  for (const StepMetrics& step : result.steps) trained.losses.push_back(step.loss.value_or(NAN));
  for (NamedTensor& tensor : result.parameters) trained.parameters[tensor.name] = std::move(tensor);
  return trained;
}

int64_t packed_bytes(const PlanSet& set) {
  int64_t bytes = 0;
  for (const RoleProgram& role : set.roles) bytes += role.packed_bytes;
  return bytes;
}

struct Case {
  const char* name;
  Shape2 shape;
};
class PackedWeights : public testing::TestWithParam<Case> {};

TEST_P(PackedWeights, TrainToTheSameBits) {
  const Shape2& shape = GetParam().shape;
  const int64_t samples = shape.dp * shape.mb;
  const auto made = compile_gpt(shape, samples);
  ASSERT_TRUE(made) << print_error(made.error());
  EXPECT_GT(packed_bytes(made->set), 0);
  const int64_t steps = kSanitized ? 1 : 2;
  const auto got = train_gpt(made->set, steps, true), want = train_gpt(made->set, steps, false);
  ASSERT_TRUE(got) << print_error(got.error());
  ASSERT_TRUE(want) << print_error(want.error());
  jobs::expect_equal_bits(*got, *want, "without packing");
}

INSTANTIATE_TEST_SUITE_P(Plans, PackedWeights,
                         testing::Values(Case{"stages", {2, 1, 32, "1f1b"}},
                                         Case{"split_backward", {2, 1, 32, "zb-h1"}},
                                         Case{"both_ways", {2, 1, 32, "dualpipe"}},
                                         Case{"sharded_states", {1, 2, 32, "zero1"}}),
                         [](const auto& info) { return std::string(info.param.name); });

// The four matrices of each of the 4 layers at least.
TEST(Packed, CopiesAreWhatThePlanStates) {
  const auto made = compile_gpt({1, 1, 32, "1f1b"}, 32);
  ASSERT_TRUE(made) << print_error(made.error());
  const RoleProgram& plan = made->set.roles[0];
  const RoleProgram role = make_cpu_backend()->prepare(plan);
  std::set<int32_t> packed;
  int64_t end = 0;
  for (const Instruction& one : role.body)
    if (one.label.starts_with("pack ")) packed.insert(one.args[0]);
  for (size_t b = plan.buffers.size(); b < role.buffers.size(); ++b) {
    EXPECT_GE(role.buffers[b].offset, plan.arena_bytes);
    end = std::max(end, role.buffers[b].offset + role.tensor(role.buffers[b]).type.bytes());
  }
  EXPECT_GE(packed.size(), 16u);
  EXPECT_EQ(align_up(end), role.arena_bytes);
  EXPECT_EQ(role.arena_bytes, plan.arena_bytes + plan.packed_bytes);
}

// A matrix that an update has changed before a product reads it is not packed.
TEST(Packed, NotWhereTheMatrixChangesBefore) {
  const auto made = compile_gpt({1, 1, 32, "1f1b"}, 32);
  ASSERT_TRUE(made) << print_error(made.error());
  RoleProgram role = made->set.roles[0];
  const auto packs = [&] {
    const RoleProgram prepared = make_cpu_backend()->prepare(role);
    return std::ranges::count_if(prepared.body,
                                 [](const auto& one) { return one.label.starts_with("pack "); });
  };
  ASSERT_GT(packs(), 0);
  std::stable_partition(role.body.begin(), role.body.end(),
                        [](const Instruction& one) { return one.pass == TaskPass::kU; });
  EXPECT_EQ(packs(), 0);
}

TEST(Packed, OnlyWhereItPays) {
  for (const auto& [shape, samples] : {std::pair{Shape2{1, 1, 16, "1f1b"}, 16},  // few microbatches
                                       {Shape2{1, 1, 32, "1f1b"}, 64}}) {        // of many rows
    const auto made = compile_gpt(shape, samples);
    ASSERT_TRUE(made) << print_error(made.error());
    EXPECT_EQ(packed_bytes(made->set), 0) << samples;
  }
}

}  // namespace
}  // namespace piper::packed_test
