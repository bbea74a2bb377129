// Plans by hand whose states and values are blocks of dims, over one axis and two: they train what
// the same plan trains on one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "communicators.h"
#include "folder.h"
#include "piper/base/data.h"
#include "piper/base/memory.h"
#include "piper/inspect/diff.h"
#include "piper/runtime/job.h"
#include "sanitizer.h"
#include "shell.h"

namespace piper::blocks_test {
namespace {

constexpr int64_t kSteps = 4;

float wave(int64_t number) {
  return static_cast<float>(std::sin(static_cast<double>(number) * 0.7));
}

// Every element of every sample is another number.
class Waves final : public BatchSource {
 public:
  explicit Waves(int64_t width) : width_(width) {}
  Status read(int64_t step, int, int64_t first, int64_t count, std::byte* to) const override {
    for (int64_t i = 0; i < count * width_; ++i) {
      const float value = wave(1000 * step + first * width_ + i);
      std::memcpy(to + 4 * i, &value, 4);
    }
    return ok_status();
  }
  int64_t steps() const override { return kSteps; }
  int64_t tokens_per_step() const override { return 1; }

 private:
  int64_t width_;
};

// Where buffers and values lie, which the texts leave out; what the states start with.
PlanSet set_of(const std::string& text) {
  auto parsed = parse_plan(text);
  EXPECT_TRUE(parsed) << (parsed ? "" : print_error(parsed.error()));
  RoleProgram role = *std::move(parsed);
  const auto place = [](int64_t& offset, const TensorType& type, int64_t& end) {
    offset = align_up(end);
    end = offset + type.bytes();
  };
  for (Buffer& buffer : role.buffers)
    place(buffer.offset, role.tensor(buffer).type, role.arena_bytes);
  role.arena_bytes = align_up(role.arena_bytes);
  role.workspace_bytes = {int64_t{1} << 20};  // enough for their programs
  role.staging_bytes = staging_of(role);
  PlanSet set;
  for (const Tensor& tensor : role.tensors) {
    if (tensor.init.empty()) continue;
    const TensorType type = tensor.whole_type();
    std::vector<float> values;
    for (int64_t i = 0; i < num_elements(type.shape); ++i)
      values.push_back(0.3f * wave(static_cast<int64_t>(tensor.init.back()) * 100 + i));
    set.tensor_types.emplace_back(tensor.init, type);
    set.tensors.emplace_back(tensor.init, Bytes::copy_of(values.data(), values.size() * 4));
  }
  int64_t world = 1;
  for (const auto& [axis, size] : role.mesh) world *= size;
  set.manifest.mesh = role.mesh;
  set.manifest.set_id = "hand-made";
  set.role_of_rank.assign(static_cast<size_t>(world), 0);
  set.roles = {std::move(role)};
  give_communicators(set);
  const Status checked = check_role(set.roles[0]);
  EXPECT_TRUE(checked) << checked.error().message;
  return set;
}

// The weight becomes itself minus 2^-6 times its gradient.
std::string update_program(int number, const std::string& shape) {
  return fmt::format(R"(program {} label="U" args=2
  value 0 f32{} read written
  value 1 f32{} read
  value 2 f32 literal=0x000080bc
  value 3 f32{}
  op Mul in=[1,2] out=[3]
  op Add in=[0,3] out=[0]
)",
                     number, shape, shape, shape);
}

// y = x · w1 · w2, loss the sum of y²: w1 cut by columns over `tp`, w2 by rows, so that y is summed
// over `tp`. Over `dp` the batch is cut, w1 lives in flat runs of its columns, w2 in blocks of a
// second dim. The norm reported is the greatest element of y.
PlanSet products(int64_t tp, int64_t dp) {
  const int64_t b = 12 / dp, h = 8 / tp, run = (5 * h + dp - 1) / dp, n = 6 / dp;
  std::string text = fmt::format(R"(plan batch=12
axis "tp" {tp}
axis "dp" {dp}
stream 0 "compute"
group 0 "tp" axes=[0]
group 1 "dp" axes=[1]
input "x" f32[12,5]
buffer 0 "w1" f32[{run}] state at=0 init="w1" param="w1" cuts=[S1@0] part_of=1 whole=[5,8]
buffer 1 "w2" f32[{h},{n}] state at=0 init="w2" param="w2" cuts=[S0@0,S1@1] whole=[8,6]
buffer 2 "x" f32[{b},5] step at=0
buffer 3 "w1 gathered" f32[5,{h}] step at=0
buffer 4 "w2 gathered" f32[{h},6] step at=0
buffer 5 "h" f32[{b},{h}] step at=0
buffer 6 "y" f32[{b},6] step at=0
buffer 7 "dw1" f32[5,{h}] step at=0
buffer 8 "dw2" f32[{h},6] step at=0
buffer 9 "dw1 part" f32[{run}] step at=0
buffer 10 "dw2 part" f32[{h},{n}] step at=0
buffer 11 "loss" f32 step at=0
buffer 12 "norm" f32 step at=0
program 0 label="F" args=5
  value 0 f32[{b},5] read
  value 1 f32[5,{h}] read
  value 2 f32[{h},6] read
  value 3 f32[{b},{h}] written
  value 4 f32[{b},6] written
  op MatMul in=[0,1] out=[3]
  op MatMul in=[3,2] out=[4]
program 1 label="B" args=8
  value 0 f32[{b},5] read
  value 1 f32[{b},{h}] read
  value 2 f32[{b},6] read
  value 3 f32[{h},6] read
  value 4 f32[5,{h}] written
  value 5 f32[{h},6] written
  value 6 f32 written
  value 7 f32 written
  value 8 f32[{b},{h}]
  value 9 f32[{b},6]
  op MatMul in=[1,2] out=[5] {{trans_a=1}}
  op MatMul in=[2,3] out=[8] {{trans_b=1}}
  op MatMul in=[0,8] out=[4] {{trans_a=1}}
  op Mul in=[2,2] out=[9]
  op ReduceSum in=[9] out=[6] {{axes=[0,1], keepdims=0}}
  op ReduceMax in=[2] out=[7] {{axes=[0,1], keepdims=0}}
)",
                                 fmt::arg("tp", tp), fmt::arg("dp", dp), fmt::arg("run", run),
                                 fmt::arg("h", h), fmt::arg("n", n), fmt::arg("b", b));
  text += update_program(2, fmt::format("[{}]", run));
  text += update_program(3, fmt::format("[{},{}]", h, n));
  text += fmt::format(R"(body
  0 input label="x" args=[2] input="x" count={b} stride=[0,{b}]
  1 all_gather label="w1" args=[0,3] group=1
  2 all_gather label="w2" args=[1,4] group=1 dim=1
  3 compute label="F" program=0 args=[2,3,4,5,6]
  4 all_reduce label="y" args=[6] group=0
  5 compute label="B" program=1 args=[2,5,6,4,7,8,11,12]
  6 reduce_scatter label="dw1" args=[7,9] group=1
  7 reduce_scatter label="dw2" args=[8,10] group=1 dim=1
  8 all_reduce label="loss" args=[11] group=1
  9 all_reduce label="norm" args=[12] group=1 max
  10 compute label="U" program=2 args=[0,9]
  11 compute label="U" program=3 args=[1,10]
report "loss" buffer=11
report "grad_norm" buffer=12
)",
                      fmt::arg("b", b));
  return set_of(text);
}

// The same product behind a scale, which runs on the own tokens of each sample: tokens are gathered
// before the product, whose sum is scattered, and back again. `dp` repeats the weights.
PlanSet tokens(int64_t tp, int64_t dp) {
  const int64_t b = 4 / dp, t = 4 / tp, h = 8 / tp;
  std::string text = fmt::format(R"(plan batch=4
axis "dp" {dp}
axis "tp" {tp}
stream 0 "compute"
group 0 "tp" axes=[1]
group 1 "dp" axes=[0]
group 2 "both" axes=[0,1]
input "x" f32[4,4,6]
buffer 0 "g" f32[6] state at=0 init="g" param="g"
buffer 1 "w1" f32[6,{h}] state at=0 init="w1" param="w1" cuts=[S1@1] whole=[6,8]
buffer 2 "w2" f32[{h},6] state at=0 init="w2" param="w2" cuts=[S0@1] whole=[8,6]
buffer 3 "x" f32[{b},4,6] step at=0
buffer 4 "own x" f32[{b},{t},6] step at=0
buffer 5 "own z" f32[{b},{t},6] step at=0
buffer 6 "z" f32[{b},4,6] step at=0
buffer 7 "h" f32[{b},4,{h}] step at=0
buffer 8 "y" f32[{b},4,6] step at=0
buffer 9 "own y" f32[{b},{t},6] step at=0
buffer 10 "dy" f32[{b},4,6] step at=0
buffer 11 "dz" f32[{b},4,6] step at=0
buffer 12 "own dz" f32[{b},{t},6] step at=0
buffer 13 "dg" f32[6] step at=0
buffer 14 "dw1" f32[6,{h}] step at=0
buffer 15 "dw2" f32[{h},6] step at=0
buffer 16 "loss" f32 step at=0
program 0 label="scale" args=3
  value 0 f32[{b},{t},6] read
  value 1 f32[6] read
  value 2 f32[{b},{t},6] written
  op Mul in=[0,1] out=[2]
program 1 label="F" args=5
  value 0 f32[{b},4,6] read
  value 1 f32[6,{h}] read
  value 2 f32[{h},6] read
  value 3 f32[{b},4,{h}] written
  value 4 f32[{b},4,6] written
  op MatMul in=[0,1] out=[3]
  op MatMul in=[3,2] out=[4]
program 2 label="loss" args=2
  value 0 f32[{b},{t},6] read
  value 1 f32 written
  value 2 f32[{b},{t},6]
  op Mul in=[0,0] out=[2]
  op ReduceSum in=[2] out=[1] {{axes=[0,1,2], keepdims=0}}
program 3 label="B" args=8
  value 0 f32[{b},4,6] read
  value 1 f32[{b},4,{h}] read
  value 2 f32[{b},4,6] read
  value 3 f32[6,{h}] read
  value 4 f32[{h},6] read
  value 5 f32[6,{h}] written
  value 6 f32[{h},6] written
  value 7 f32[{b},4,6] written
  value 8 f32[{rows},6]
  value 9 f32[{rows},{h}]
  value 10 f32[{rows},6]
  value 11 f32[{b},4,{h}]
  value 12 f32[{rows},{h}]
  op Reshape in=[1] out=[9] {{shape=[{rows},{h}]}}
  op Reshape in=[2] out=[10] {{shape=[{rows},6]}}
  op MatMul in=[9,10] out=[6] {{trans_a=1}}
  op MatMul in=[2,4] out=[11] {{trans_b=1}}
  op Reshape in=[0] out=[8] {{shape=[{rows},6]}}
  op Reshape in=[11] out=[12] {{shape=[{rows},{h}]}}
  op MatMul in=[8,12] out=[5] {{trans_a=1}}
  op MatMul in=[11,3] out=[7] {{trans_b=1}}
program 4 label="dg" args=3
  value 0 f32[{b},{t},6] read
  value 1 f32[{b},{t},6] read
  value 2 f32[6] written
  value 3 f32[{b},{t},6]
  op Mul in=[0,1] out=[3]
  op ReduceSum in=[3] out=[2] {{axes=[0,1], keepdims=0}}
)",
                                 fmt::arg("tp", tp), fmt::arg("dp", dp), fmt::arg("b", b),
                                 fmt::arg("t", t), fmt::arg("h", h), fmt::arg("rows", b * 4));
  text += update_program(5, "[6]");
  text += update_program(6, fmt::format("[6,{}]", h));
  text += update_program(7, fmt::format("[{},6]", h));
  text += fmt::format(R"(body
  0 input label="x" args=[3] input="x" count={b} stride=[{b},0]
  1 own_part label="x" args=[3,4] group=0 dim=1
  2 compute label="scale" program=0 args=[4,0,5] pass="F" micro=0
  3 all_gather label="z" args=[5,6] group=0 dim=1
  4 compute label="F" program=1 args=[6,1,2,7,8] pass="F" micro=0
  5 reduce_scatter label="y" args=[8,9] group=0 dim=1
  6 compute label="loss" program=2 args=[9,16]
  7 all_gather label="dy" args=[9,10] group=0 dim=1
  8 compute label="B" program=3 args=[6,7,10,1,2,14,15,11] pass="B" micro=0
  9 reduce_scatter label="dz" args=[11,12] group=0 dim=1
  10 compute label="dg" program=4 args=[12,4,13]
  11 all_reduce label="dg, loss" args=[13,16] group=2
  12 all_reduce label="dw" args=[14,15] group=1
  13 compute label="U" program=5 args=[0,13]
  14 compute label="U" program=6 args=[1,14]
  15 compute label="U" program=7 args=[2,15]
report "loss" buffer=16
)",
                      fmt::arg("b", b));
  return set_of(text);
}

struct Model {
  const char* name;
  PlanSet (*make)(int64_t tp, int64_t dp);
  int64_t width;  // elements of a sample
  TensorType input;
  std::vector<std::pair<int64_t, int64_t>> meshes;  // of which dims are cut
};
const Model kModels[] = {
    {"products",
     products,
     5,
     {DType::kF32, {12, 5}},
     {{2, 1}, {4, 1}, {1, 3}, {2, 2}, {4, 2}, {2, 3}}},
    {"tokens", tokens, 24, {DType::kF32, {4, 4, 6}}, {{2, 1}, {4, 1}, {2, 2}, {4, 2}}}};

JobOptions options_of(VerifyAgainst against) {
  JobOptions options;
  options.steps = kSteps;
  options.threads = 1;
  options.check_replicas = 1;
  options.verify = {against, 1e-6, 1e-6};
  return options;
}

Result<JobResult> run(const Model& model, const PlanSet& set, const JobOptions& options) {
  const Waves data(model.width);
  const PlanSet reference = model.make(1, 1);
  return run_job(set, &data, &reference, &data, options);
}

std::string message_of(const Result<JobResult>& result) {
  return result ? "ok" : result.error().message;
}

TEST(Blocks, TrainAsOnOneRank) {
  for (const Model& model : kModels)
    for (const auto& [tp, dp] : model.meshes)
      for (const auto against : {VerifyAgainst::kSingle, VerifyAgainst::kUncut}) {
        const std::string what = fmt::format("{} tp {} dp {}", model.name, tp, dp);
        const auto result = run(model, model.make(tp, dp), options_of(against));
        ASSERT_TRUE(result) << what << ": " << message_of(result);
        EXPECT_EQ(result->compared_parameters, model.make(1, 1).tensors.size()) << what;
        EXPECT_FALSE(result->bitwise) << what;
        EXPECT_LT(*result->steps[3].loss, *result->steps[0].loss) << what;
      }
}

// A cut over an axis of one rank cuts nothing.
TEST(Blocks, OnOneRankAreEqualBitForBit) {
  for (const Model& model : kModels) {
    const auto result = run(model, model.make(1, 1), options_of(VerifyAgainst::kSingle));
    ASSERT_TRUE(result) << message_of(result);
    EXPECT_TRUE(result->bitwise);
  }
}

TEST(Blocks, TheGreatestIsOfAllRanks) {
  const auto alone = run(kModels[0], products(1, 1), options_of(VerifyAgainst::kNone));
  const auto cut = run(kModels[0], products(1, 3), options_of(VerifyAgainst::kNone));
  ASSERT_TRUE(alone && cut);
  EXPECT_NEAR(*alone->steps[0].grad_norm, *cut->steps[0].grad_norm, 1e-6);
  PlanSet sum = products(1, 3);
  sum.roles[0].body[9].reduction = Reduction::kSum;
  const auto other = run(kModels[0], sum, options_of(VerifyAgainst::kNone));
  EXPECT_GT(std::abs(*alone->steps[0].grad_norm - *other->steps[0].grad_norm), 1e-3);
}

// What is saved is the whole under its name, put together from all blocks.
TEST(Blocks, AreSavedWhole) {
  for (const Model& model : kModels)
    for (const auto& [tp, dp] : model.meshes) {
      const PlanSet set = model.make(tp, dp);
      JobOptions options = options_of(VerifyAgainst::kNone);
      options.steps = 0;
      const auto result = run(model, set, options);
      ASSERT_TRUE(result) << message_of(result);
      ASSERT_EQ(result->parameters.size(), set.tensors.size());
      for (const NamedTensor& saved : result->parameters) {
        const auto initial =
            std::find_if(set.tensors.begin(), set.tensors.end(),
                         [&](const auto& each) { return each.first == saved.name; });
        ASSERT_NE(initial, set.tensors.end());
        EXPECT_EQ(as_text(saved.data.span()), as_text(initial->second.span()))
            << model.name << " " << saved.name << " tp " << tp << " dp " << dp;
      }
    }
}

// Each collective left out, over the other axis, or of the other dim makes a difference.
TEST(Blocks, WrongCollectivesAreFound) {
  for (const Model& model : kModels) {
    const PlanSet right = model.make(2, 2);
    const std::vector<Instruction>& body = right.roles[0].body;
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i].group < 0 || body[i].label == "norm") continue;
      PlanSet without = right, elsewhere = right;
      without.roles[0].body.erase(without.roles[0].body.begin() + static_cast<ptrdiff_t>(i));
      elsewhere.roles[0].body[i].group = body[i].group == 0 ? 1 : 0;
      for (PlanSet* wrong : {&without, &elsewhere}) {
        give_communicators(*wrong);
        JobOptions options = options_of(VerifyAgainst::kUncut);
        options.check_replicas = 0;
        EXPECT_FALSE(run(model, *wrong, options))
            << model.name << ": " << body[i].label << " of " << to_string(body[i].kind);
      }
    }
  }
}

// Ranks that hold the same block are compared with each other, not with those of other blocks.
TEST(Blocks, ReplicasOfABlockAreCompared) {
  JobOptions options = options_of(VerifyAgainst::kNone);
  options.before_step = [](int64_t rank, int64_t step, const Executor& executor) {
    if (rank == 3 && step == 1)
      const_cast<std::byte*>(executor.buffer("w2").data())[6] ^= std::byte{16};
    return ok_status();
  };
  const auto flipped = run(kModels[1], tokens(2, 2), options);
  EXPECT_EQ(message_of(flipped), "step 2: 'w2' on rank 3 differs from its replica on rank 1");
  options.check_replicas = 0;
  options.verify = {VerifyAgainst::kUncut, 1e9, 1e9};  // that nothing misses
  EXPECT_EQ(message_of(run(kModels[1], tokens(2, 2), options)).substr(0, 50),
            "step 2: parameter 'w2' differs between ranks at [4");
  // Rank 3 of products(2, 2) has a block of w2 that nobody else has.
  EXPECT_EQ(message_of(run(kModels[0], products(2, 2), options)), "ok");
}

TEST(Blocks, AreSummarised) {
  const Summary cut = summarise(products(2, 2)), alone = summarise(products(1, 1));
  const auto named = [&](const Summary& summary, const char* name) {
    const auto found = std::find_if(summary.parameters.begin(), summary.parameters.end(),
                                    [&](const auto& one) { return one.name == name; });
    EXPECT_NE(found, summary.parameters.end());
    return *found;
  };
  EXPECT_EQ(named(cut, "w1").type, named(alone, "w1").type);
  EXPECT_EQ(named(cut, "w1").layout, "dim 1 over tp");
  EXPECT_EQ(named(cut, "w1").weight_bytes, 40);
  EXPECT_EQ(named(cut, "w2").layout, "dim 0 over tp, dim 1 over dp");
  EXPECT_EQ(named(cut, "w2").weight_bytes, 48);
  EXPECT_EQ(named(alone, "w2").layout, "");
  const std::vector<std::string> lines = train_lines(cut);
  EXPECT_EQ(
      std::count(lines.begin(), lines.end(), "cut along dim 1 over tp: 1 parameter, 40 elements"),
      1);
  EXPECT_EQ(traffic_lines(cut),
            (std::vector<std::string>{
                "all: a step of a rank has all_reduce over dp: 2 messages of f32, 8 B sent",
                "all: a step of a rank has all_reduce over tp: 1 message of f32, 144 B sent",
                "all: a step of a rank has reduce_scatter over dp: 2 messages of f32, 88 B sent",
                "all: a step of a rank has all_gather over dp: 2 messages of f32, 88 B sent"}));
  EXPECT_EQ(traffic_lines(alone), std::vector<std::string>());
  // z and dy, which forward made in parts, and h.
  EXPECT_EQ(summarise(tokens(2, 2)).stages.at(0).kept_bytes, 4.0 * (48 + 48 + 32));
  const Diff diff = compare(alone, cut);
  ASSERT_TRUE(diff.find("parameters"));
  const auto& changes = diff.find("parameters")->changes;
  EXPECT_TRUE(std::any_of(changes.begin(), changes.end(), [](const Change& change) {
    return change.what == "along dims" && change.where == std::vector<std::string>{"w1"} &&
           change.before == DiffValue("whole") && change.after == DiffValue("dim 1 over tp");
  }));
}

// The same as processes, with whatever they have in files.
class BlocksAsProcesses : public testing::Test {
 protected:
  void SetUp() override { SKIP_UNDER_THREAD_SANITIZER(); }

  void write(const Model& model, const PlanSet& set) {
    const PlanSet reference = model.make(1, 1);
    const Status written = write_plan_set(set, &reference, &reference, path("plans"), {true});
    ASSERT_TRUE(written) << print_error(written.error());
    const Waves waves(model.width);
    std::vector<NamedTensor> batches;
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<float> x(static_cast<size_t>(num_elements(model.input.shape)));
      ASSERT_TRUE(
          waves.read(step, 0, 0, model.input.shape[0], reinterpret_cast<std::byte*>(x.data())));
      batches.push_back(
          {fmt::format("batch/{}/x", step), model.input, Bytes::copy_of(x.data(), x.size() * 4)});
    }
    ASSERT_TRUE(write_safetensors(path("data.safetensors"), batches));
  }
  std::pair<int, std::string> run(const std::string& launcher, const std::string& save) {
    return run_shell(fmt::format(
        "{}{} {}/bin/piper-run {} --data {} --steps {} --threads 1 --verify-against single "
        "--loss-bound 1e-6 --param-bound 1e-6 --check-replicas 1 --save {} 2>&1",
        kMpi, launcher, PIPER_BINARY_DIR, path("plans"), path("data.safetensors"), kSteps,
        path(save)));
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  const Folder folder_;
};

TEST_F(BlocksAsProcesses, TrainAndSaveTheSame) {
  for (const Model& model : kModels) {
    write(model, model.make(2, 2));
    std::string saved[2];
    for (const bool processes : {false, true}) {
      const auto [code, output] = run(processes ? "mpirun -n 4" : "", "saved");
      EXPECT_EQ(code, 0) << output;
      EXPECT_NE(output.find("within bounds of the single-device plan after each of 4 steps, as "
                            "sums are formed in another order here: loss within "),
                std::string::npos)
          << output;
      const auto bytes = read_text_file(path("saved"), 1 << 20);
      ASSERT_TRUE(bytes);
      saved[processes ? 1 : 0] = *bytes;
    }
    EXPECT_TRUE(saved[0] == saved[1]) << model.name;
  }
}

TEST_F(BlocksAsProcesses, WrongCollectivesAreFound) {
  PlanSet set = tokens(2, 2);
  set.roles[0].body.erase(set.roles[0].body.begin() + 12);  // the gradients over dp
  write(kModels[1], set);
  const auto [code, output] = run("mpirun -n 4", "saved");
  EXPECT_EQ(code, static_cast<int>(ExitCode::kNumeric)) << output;
  EXPECT_NE(output.find("step 1: "), std::string::npos) << output;
}

}  // namespace
}  // namespace piper::blocks_test
