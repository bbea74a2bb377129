// Weights of 16 bits beside their masters: the update rounds them, and no pass of a microbatch
// does.
#include <algorithm>
#include <cstring>
#include <thread>

#include "equivalence/jobs.h"
#include "piper/base/float16.h"
#include "piper/devices/cpu.h"
#include "piper/inspect/summary.h"
#include "piper/plan/verify.h"

namespace piper::copies_test {
namespace {

using namespace jobs;

#define NEEDS_MODELS()                                           \
  if (!std::filesystem::exists(model_path("mlp", "model.onnx"))) \
  GTEST_SKIP() << "no models in " << models_folder()

constexpr const char* kBf16 = "  - precision: {compute: bf16}\n";
// The first steps overflow, and are skipped.
constexpr const char* kOverflow =
    "  - precision: {compute: f16, loss_scale: {init_scale: 1e9, backoff_factor: 0.01, "
    "growth_interval: 3}}\n";

Compiled compiled_of(const std::string& model, const Shape2& shape, const std::string& directives,
                     bool oracles = false) {
  std::string text = strategy_text(model, kAdamW);
  if (!directives.empty()) text += "directives:\n" + directives;
  auto compiled = compile_model(model, text, shape, oracles);
  EXPECT_TRUE(compiled) << shape.order << print_error(compiled.error());
  return compiled ? *std::move(compiled) : Compiled();
}

// A parameter, or a version, copy or gathered whole of one.
bool is_weight(const RoleProgram& role, int32_t buffer) {
  return !role.original(role.tensor(buffer)).param.empty();
}

struct Reads {
  int64_t copies = 0, rounded = 0;  // by computations of microbatches: args; casts of args
};
void add_reads(const RoleProgram& role, Reads& reads) {
  for (const auto* list : {&role.prologue, &role.body, &role.epilogue})
    for (const Instruction& one : *list) {
      if (one.kind != InstructionKind::kCompute || one.micro < 0) continue;
      for (int32_t arg : one.args) {
        const Tensor& tensor = role.tensor(arg);
        reads.copies += is_weight(role, arg) && info(tensor.type.dtype).bytes == 2;
      }
      const Program& program = role.programs[static_cast<size_t>(one.program)];
      for (const ProgramOp& op : program.ops)
        reads.rounded += op.op == "Cast" && op.inputs[0] < program.num_args &&
                         is_weight(role, one.args[static_cast<size_t>(op.inputs[0])]);
    }
}
Reads reads_of(const PlanSet& set) {
  Reads reads;
  for (const RoleProgram& role : set.roles) add_reads(role, reads);
  return reads;
}

class Copies : public ::testing::TestWithParam<Shape2> {};

TEST_P(Copies, NoPassRoundsAWeight) {
  NEEDS_MODELS();
  for (const char* model : {"mlp", "gpt-unoptimized"}) {
    const Reads reads = reads_of(compiled_of(model, GetParam(), kBf16).set);
    EXPECT_GT(reads.copies, 0) << model;
    EXPECT_EQ(reads.rounded, 0) << model;
    EXPECT_EQ(reads_of(compiled_of(model, GetParam(), "").set).copies, 0) << model;
  }
}

// The weight of a convolution is a matrix for its product: the copy is reshaped, not what it
// rounds.
TEST(Reads, OfAParameterInAnotherShapeAreOfItsCopy) {
  NEEDS_MODELS();
  std::string text = strategy_text("vit-hf", kAdamW);
  const auto made =
      compile_model("vit-hf", text + "directives:\n" + kBf16, {1, 2, 2, "zero3"}, true);
  ASSERT_TRUE(made) << print_error(made.error());
  const RoleProgram& role = made->set.roles[0];
  const auto found = std::find_if(role.tensors.begin(), role.tensors.end(), [](const Tensor& each) {
    return each.kind == BufferKind::kStep &&
           each.name == "model.vit.embeddings.patch_embeddings.projection.weight.bf16";
  });
  ASSERT_NE(found, role.tensors.end());
  const auto got = train(made->set, "vit-hf", 3), want = train(*made->single, "vit-hf", 3);
  ASSERT_TRUE(got && want);
  expect_equal_bits(*got, *want, "vit-hf");
}

// Every copy against the elements of its master that the rank holds; how many it found.
int64_t compare_copies(const Executor& executor) {
  const RoleProgram& role = executor.role();
  int64_t compared = 0;
  for (const Tensor& tensor : role.tensors) {
    if (tensor.kind != BufferKind::kState || tensor.copy_of < 0) continue;
    const Tensor& master = role.tensor(tensor.copy_of);
    if (tensor.type.shape != master.type.shape) continue;  // of a part of the optimizer's
    const auto copy = executor.buffer(tensor.name), from = executor.buffer(master.name);
    std::vector<std::byte> rounded(copy.size());
    round_to_halves(tensor.type.dtype, reinterpret_cast<const float*>(from.data()), rounded.data(),
                    num_elements(tensor.type.shape));
    EXPECT_TRUE(std::equal(copy.begin(), copy.end(), rounded.begin())) << tensor.name;
    ++compared;
  }
  return compared;
}
Status follow_rank(const PlanSet& set, int64_t rank, const BatchSource& data,
                   Transport& transport) {
  PIPER_TRY(transport.control().agree({set.manifest.set_id, rank, set.world(), "test", "cpu"}));
  const auto backend = make_cpu_backend();
  PIPER_ASSIGN(const auto executor, Executor::load({&set, rank, &data}, *backend,
                                                   transport.control(), transport.fabric()));
  EXPECT_GT(compare_copies(*executor), 0);
  PIPER_TRY(executor->run_prologue(0));
  for (int64_t step = 0; step < 6; ++step) {
    PIPER_TRY(executor->run_step(step, 6));
    EXPECT_GT(compare_copies(*executor), 0);
  }
  return ok_status();
}

// At the start, after each step, and after steps that are skipped.
TEST(Values, AreTheRoundedMasters) {
  NEEDS_MODELS();
  for (const char* precision : {kBf16, kOverflow})
    for (const Shape2& shape :
         {Shape2{1, 1, 2}, Shape2{1, 2, 2, "zero3"}, Shape2{2, 1, 4, "pipedream-2bw"}}) {
      const Compiled made = compiled_of("gpt-unoptimized", shape, precision);
      const auto data = open_batches(made.set, "gpt-unoptimized");
      ASSERT_TRUE(data) << print_error(data.error());
      const auto world = make_inproc_world(made.set.world(), TransportOptions{});
      std::vector<std::thread> ranks;
      for (int64_t rank = 0; rank < made.set.world(); ++rank)
        ranks.emplace_back([&, rank] {
          const Status status = follow_rank(made.set, rank, **data, world->rank(rank));
          EXPECT_TRUE(status) << print_error(status.error());
          if (!status) world->rank(rank).control().abort(status.error());
        });
      for (std::thread& each : ranks) each.join();
    }
}

TEST_P(Copies, TrainAsOneDeviceDoes) {
  NEEDS_MODELS();
  const Compiled made = compiled_of("mlp", GetParam(), kBf16, true);
  const auto got = train(made.set, "mlp", 5), want = train(*made.single, "mlp", 5);
  ASSERT_TRUE(got) << print_error(got.error());
  ASSERT_TRUE(want) << print_error(want.error());
  expect_equal_bits(*got, *want, GetParam().order);
  expect_same_when_queued(made.set, "mlp", GetParam().order);
}

INSTANTIATE_TEST_SUITE_P(Plans, Copies,
                         ::testing::Values(Shape2{2, 2, 4, "1f1b"}, Shape2{1, 2, 4, "zero1"},
                                           Shape2{1, 2, 4, "zero2"}, Shape2{2, 2, 4, "zero3"},
                                           Shape2{2, 2, 4, "pipedream-2bw"}),
                         [](const auto& info) { return identifier(info.param.order); });

// All of this model's parameters are read in 16 bits alone.
TEST(Gathers, AreHalfAsLarge) {
  NEEDS_MODELS();
  const auto gathered = [](const PlanSet& set) {
    std::map<DType, int64_t> bytes;
    for (const TrafficSummary& each : summarise(set).roles[0].traffic)
      if (each.kind == InstructionKind::kAllGather) bytes[each.dtype] += each.bytes;
    return bytes;
  };
  for (const char* order : {"zero1", "zero2", "zero3"}) {
    const auto wide = gathered(compiled_of("mlp", {1, 2, 2, order}, "").set);
    ASSERT_EQ(wide.size(), 1u);
    EXPECT_EQ(gathered(compiled_of("mlp", {1, 2, 2, order}, kBf16).set),
              (std::map<DType, int64_t>{{DType::kBF16, wide.at(DType::kF32) / 2}}))
        << order;
  }
}

// Masters of which nobody reads all lie in parts, and so do copies where they are gathered.
TEST(Memory, IsTwoBytesForEachElement) {
  NEEDS_MODELS();
  const auto kept = [](const std::string& order) {
    std::pair<int64_t, int64_t> bytes;  // masters, copies
    const Compiled made = compiled_of("mlp", {1, 2, 2, order}, kBf16);
    for (const Tensor& tensor : made.set.roles[0].tensors) {
      if (tensor.kind != BufferKind::kState) continue;
      if (!tensor.param.empty()) bytes.first += tensor.type.bytes();
      if (tensor.copy_of >= 0) bytes.second += tensor.type.bytes();
    }
    return bytes;
  };
  const int64_t all = kept("1f1b").first;
  EXPECT_EQ(kept("1f1b"), std::pair(all, all / 2));
  EXPECT_EQ(kept("zero1"), std::pair(all / 2, all / 2));
  EXPECT_EQ(kept("zero3"), std::pair(all / 2, all / 4));
}

// ---- What is refused ----------------------------------------------------------------------------

std::string finding_of(const PlanSet& set, const std::string& wanted) {
  const auto report = verify_plan_set(set, nullptr);
  if (!report) return report.error().message;
  for (const Finding& finding : report->findings)
    if (finding.text.find(wanted) != std::string::npos) return wanted;
  return report->findings.empty() ? "" : report->findings[0].text;
}

// The first program that rounds several parameters, and where it does.
struct Rounding {
  Instruction* update = nullptr;
  Program* program = nullptr;
  std::vector<size_t> casts;
};
Rounding rounding_of(RoleProgram& role) {
  for (Instruction& one : role.body) {
    if (one.kind != InstructionKind::kCompute || one.micro >= 0) continue;
    Rounding found{&one, &role.programs[static_cast<size_t>(one.program)], {}};
    for (size_t i = 0; i < found.program->ops.size(); ++i)
      if (const ProgramOp& op = found.program->ops[i];
          op.op == "Cast" && op.outputs[0] < found.program->num_args &&
          role.tensor(one.args[static_cast<size_t>(op.outputs[0])]).copy_of >= 0)
        found.casts.push_back(i);
    if (found.casts.size() > 1) return found;
  }
  ADD_FAILURE() << "nothing rounds two parameters";
  return {};
}

class Refused : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_MODELS();
    made_ = compiled_of("gpt-unoptimized", {1, 1, 2}, kBf16, true);
    role_ = &made_.set.roles[0];
    rounding_ = rounding_of(*role_);
    EXPECT_EQ(finding_of(made_.set, ""), "");
  }
  ProgramOp& cast(size_t i) { return rounding_.program->ops[rounding_.casts[i]]; }
  Compiled made_;
  RoleProgram* role_ = nullptr;
  Rounding rounding_;
};

TEST_F(Refused, ACopyOfAnotherParameter) {
  NEEDS_MODELS();
  std::map<std::string, size_t> of_type;
  bool swapped = false;
  for (size_t i = 0; i < rounding_.casts.size() && !swapped; ++i) {
    const auto from = static_cast<size_t>(cast(i).inputs[0]);
    const auto [other, is_new] = of_type.emplace(to_string(rounding_.program->values[from]), i);
    if (!is_new) std::swap(cast(i).inputs[0], cast(other->second).inputs[0]), swapped = true;
  }
  ASSERT_TRUE(swapped) << "all parameters are of different types";
  const std::string wanted = "something else than '";
  EXPECT_EQ(finding_of(made_.set, wanted), wanted);
  // It trains something else, too.
  const auto got = train(made_.set, "gpt-unoptimized", 3),
             want = train(*made_.single, "gpt-unoptimized", 3);
  ASSERT_TRUE(got && want);
  EXPECT_GT(largest_difference(*got, *want), 0);
}

TEST_F(Refused, ACopyOfTheParameterBeforeItsUpdate) {
  NEEDS_MODELS();
  const auto at = rounding_.program->ops.begin() + static_cast<std::ptrdiff_t>(rounding_.casts[0]);
  std::rotate(rounding_.program->ops.begin(), at, at + 1);
  const std::string wanted = "after its update";
  EXPECT_EQ(finding_of(made_.set, wanted), wanted);
}

TEST_F(Refused, ACopyThatNothingWrites) {
  NEEDS_MODELS();
  const auto to = static_cast<size_t>(cast(0).outputs[0]);
  // The update rounds into a buffer of the step.
  Tensor made{.name = "nowhere", .type = role_->tensor(rounding_.update->args[to]).type};
  rounding_.update->args[to] = role_->add_buffer(made);
  role_->buffers.back().offset = (role_->arena_bytes + 63) / 64 * 64;
  role_->arena_bytes = role_->buffers.back().offset + made.type.bytes();
  const std::string wanted = "nothing updates parameter '";
  EXPECT_EQ(finding_of(made_.set, wanted), wanted);
}

TEST_F(Refused, ACopyThatIsRoundedTwiceInAStep) {
  NEEDS_MODELS();
  std::vector<Instruction>& body = role_->body;
  const auto at = body.begin() + (rounding_.update - body.data());
  body.insert(at + 1, Instruction(*at));
  const std::string wanted = "in bf16', which 'U' has already written";
  EXPECT_EQ(finding_of(made_.set, wanted), wanted);
}

TEST_F(Refused, ACopyThatStartsOtherwise) {
  NEEDS_MODELS();
  const int32_t copy = rounding_.update->args[static_cast<size_t>(cast(0).outputs[0])];
  role_->tensor(copy).init.clear();
  const std::string wanted = "does not start with the values of parameter '";
  EXPECT_EQ(finding_of(made_.set, wanted), wanted);
}

// A pass that reads a copy behind its update.
TEST_F(Refused, ACopyThatIsTooNew) {
  NEEDS_MODELS();
  std::vector<Instruction>& body = role_->body;
  const auto at = body.begin() + (rounding_.update - body.data());
  std::rotate(body.begin(), at, at + 1);
  const auto report = verify_plan_set(made_.set, nullptr);
  EXPECT_TRUE(!report || !report->findings.empty());
}

}  // namespace
}  // namespace piper::copies_test
