// Weights packed once a step for products of few rows: the same bits, in the memory that the plan
// states; and what the verifier says where a copy is not what it should be.
#include "equivalence/jobs.h"
#include "piper/verify.h"

namespace piper {
namespace {

using jobs::Shape2;

const std::string kModel = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";

// The sample GPT: 128 tokens a sample, linear layers of 128 to 512 features.
Result<Compiled> compile_gpt(const Shape2& shape, int64_t samples, bool fuse,
                             const std::string& more = "") {
  const Folder folder;
  std::string text =
      "piper: 1\ninclude: " PIPER_SOURCE_DIR "/strategies/" + shape.order + ".yaml\n";
  text += fmt::format("train: {{global_batch: {}, {}}}\n", samples, jobs::kAdamW) + more;
  CompileOptions options;
  options.model = kModel;
  options.strategy = folder.write("strategy.yaml", text);
  options.defines = jobs::definitions_of(jobs::library_text(shape.order), shape);
  options.oracles = false;
  options.fuse = fuse;
  return compile(options);
}

Result<jobs::Trained> train_gpt(const PlanSet& set, int64_t steps) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 20000; ++i) text += static_cast<char>(i * 7919 % 251);
  DataOptions options;
  options.sources = {folder.write("tokens", text) + ":u8"};
  PIPER_ASSIGN(const auto needs, data_needs(set));
  PIPER_ASSIGN(const auto data, open_data(options, needs, set.roles[0].batch));
  JobOptions job;
  job.steps = steps;
  PIPER_ASSIGN(JobResult result, run_job(set, data.get(), nullptr, nullptr, job));
  jobs::Trained trained;
  for (const StepMetrics& step : result.steps) trained.losses.push_back(step.loss.value_or(NAN));
  for (NamedTensor& tensor : result.parameters) trained.parameters[tensor.name] = std::move(tensor);
  return trained;
}

int64_t packed_bytes(const PlanSet& set) {
  int64_t bytes = 0;
  for (const RoleProgram& role : set.roles) bytes += role.packed_bytes();
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
  const auto packed = compile_gpt(shape, samples, true), plain = compile_gpt(shape, samples, false);
  ASSERT_TRUE(packed) << print_error(packed.error());
  ASSERT_TRUE(plain) << print_error(plain.error());
  EXPECT_GT(packed_bytes(packed->set), 0);
  EXPECT_EQ(packed_bytes(plain->set), 0);
  const int64_t steps = kSanitized ? 1 : 2;
  const auto got = train_gpt(packed->set, steps), want = train_gpt(plain->set, steps);
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
  const auto made = compile_gpt({1, 1, 32, "1f1b"}, 32, true);
  ASSERT_TRUE(made) << print_error(made.error());
  const RoleProgram& role = made->set.roles[0];
  std::map<std::string, int64_t> copies;
  int64_t bytes = 0;
  for (const Buffer& buffer : role.buffers) {
    const Tensor& tensor = role.tensor(buffer);
    if (tensor.packed_of < 0) continue;
    ++copies[role.tensor(tensor.packed_of).param];
    bytes += tensor.type.bytes();
    EXPECT_LE(buffer.offset + tensor.type.bytes(), role.arena_bytes);
  }
  EXPECT_GE(copies.size(), 16u);
  EXPECT_EQ(bytes, role.packed_bytes());
}

TEST(Packed, OnlyWhereItPays) {
  for (const auto& [shape, samples] : {std::pair{Shape2{1, 1, 16, "1f1b"}, 16},  // few microbatches
                                       {Shape2{1, 1, 32, "1f1b"}, 64}}) {        // of many rows
    const auto made = compile_gpt(shape, samples, true);
    ASSERT_TRUE(made) << print_error(made.error());
    EXPECT_EQ(packed_bytes(made->set), 0) << samples;
  }
}

// ---- The verifier
// --------------------------------------------------------------------------------

class Broken : public testing::Test {
 protected:
  void SetUp() override {
    auto made = compile_gpt({1, 1, 32, "1f1b"}, 32, true);
    ASSERT_TRUE(made) << print_error(made.error());
    set_ = std::move(made->set);
  }
  RoleProgram& role() { return set_.roles[0]; }
  std::string found() {
    const auto report = verify_plan_set(set_);
    if (!report) return print_error(report.error());
    return report->findings.empty() ? ""
                                    : report->findings[0].rule + ": " + report->findings[0].text;
  }
  int32_t packed(const std::string& name) {
    for (size_t b = 0; b < role().buffers.size(); ++b)
      if (role().name(b) == name) return static_cast<int32_t>(b);
    ADD_FAILURE() << "no buffer " << name;
    return 0;
  }
  Instruction& pack_of(int32_t buffer) {
    for (Instruction& one : role().body)
      if (one.label.starts_with("pack ") && one.args[1] == buffer) return one;
    ADD_FAILURE() << "nothing packs it";
    return role().body[0];
  }
  // The first that reads the buffer, and its argument.
  std::pair<Instruction*, size_t> reader(int32_t buffer) {
    for (Instruction& one : role().body)
      for (size_t a = 0; a < one.args.size(); ++a)
        if (!one.label.starts_with("pack ") && one.args[a] == buffer) return {&one, a};
    ADD_FAILURE() << "nothing reads it";
    return {&role().body[0], 0};
  }

  PlanSet set_;
  const std::string one_ = "model.h.0.proj.weight", other_ = "model.h.1.proj.weight";
};

TEST_F(Broken, Control) { EXPECT_EQ(found(), ""); }

TEST_F(Broken, PacksAnotherMatrix) {
  pack_of(packed(one_ + ".packed")).args[0] = role().tensor(packed(other_ + ".packed")).packed_of;
  EXPECT_EQ(found(),
            "structure: 'pack model.h.0.proj.weight' on rank 0 writes "
            "'model.h.0.proj.weight.packed', but does not pack 'model.h.0.proj.weight' into it");
}
TEST_F(Broken, PacksAnotherWay) {
  pack_of(packed(one_ + ".packed")).program = pack_of(packed(one_ + ".packed_transposed")).program;
  EXPECT_EQ(found(),
            "structure: 'B stage=0 mb=0' on rank 0 reads the packed copy "
            "'model.h.0.proj.weight.packed' as one of [128,128], not of [128,128]ᵀ");
}
TEST_F(Broken, IsNotPacked) {
  auto& body = role().body;
  body.erase(body.begin() + (&pack_of(packed(one_ + ".packed")) - body.data()));
  EXPECT_EQ(found(),
            "order: 'B stage=0 mb=0' on rank 0 reads 'model.h.0.proj.weight.packed' before "
            "anything writes it");
}
TEST_F(Broken, PacksBehindTheUpdate) {
  auto& body = role().body;
  const auto at = body.begin() + (&pack_of(packed(one_ + ".packed")) - body.data());
  std::rotate(at, at + 1, body.end());
  EXPECT_EQ(found(),
            "order: 'B stage=0 mb=0' on rank 0 reads 'model.h.0.proj.weight.packed' before "
            "anything writes it; later 'pack model.h.0.proj.weight' writes it");
}
TEST_F(Broken, ReadsAnotherCopy) {
  const auto [one, arg] = reader(packed(one_ + ".packed"));
  one->args[arg] = packed(other_ + ".packed");
  EXPECT_EQ(found(),
            "microbatch: 'B stage=0 mb=1' on rank 0 adds to 'model.wte.weight.grad' something else "
            "than 'B stage=0 mb=0' on rank 0 does");
}
TEST_F(Broken, ReadsTheMatrixItself) {
  const auto [one, arg] = reader(packed(one_ + ".packed"));
  one->args[arg] = role().tensor(packed(one_ + ".packed")).packed_of;
  EXPECT_EQ(
      found(),
      "structure: 'B stage=0 mb=0' on rank 0 takes 'model.h.0.proj.weight' for a packed copy");
}

}  // namespace
}  // namespace piper
