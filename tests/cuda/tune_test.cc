// Which algorithms piper-run --tune finds, on a cuBLASLt that offers several, most of them no good
// (FAKE_CUDA_OFFERS in fake_cuda/cublaslt.cc): of wrong, varying, bulky and failing ones, and of
// those that add up parts of k in the result, none is kept; of two that are as fast the first, a
// faster way through the tiles, and more parts of a long k whose sums are stored.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

#include "evaluate.h"
#include "folder.h"
#include "piper/devices/cuda.h"
#include "shell.h"

namespace piper {
namespace {

using test::must;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kDevice = "Fake H100 | 13.0.7 | ";
// The sixth offer, with another way through the tiles.
constexpr const char* kBest =
    " | id=6 tile=7 split=0 reduction=0 swizzle=1 custom=0 stages=0 inner=0 cluster=0\n";

int32_t add(Program& program, const TensorType& type, bool is_read) {
  program.values.push_back(type);
  program.arg_read.push_back(is_read);
  program.arg_written.push_back(!is_read);
  return program.num_args++;
}
// a · b, added to what is there where `accumulate` says so.
Program product(DType type, int64_t m, int64_t n, int64_t k, const Attrs& attrs = {}) {
  Program program;
  program.label = "products";
  std::vector<int32_t> inputs{add(program, {type, {m, k}}, true),
                              add(program, {type, {k, n}}, true)};
  const DType result = attrs.text("to") == "f32" ? DType::kF32 : type;
  const int32_t out = add(program, {result, {m, n}}, false);
  if (attrs.integer("accumulate")) {
    inputs.push_back(out);
    program.arg_read[static_cast<size_t>(out)] = true;
  }
  program.ops = {{"MatMul", attrs, inputs, {out}}};
  return program;
}

class Tune : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("PIPER_CUDA_PATH", PIPER_FAKE_CUDA "/all", 1);
    setenv("XDG_CACHE_HOME", PIPER_FAKE_CUDA "/cache", 1);
    setenv("FAKE_CUDA_OFFERS", "1", 1);
  }
  std::string tune(const std::vector<Program>& programs) {
    notes_.clear();
    const Status tuned = tune_cuda_products(
        programs, file_, {.note = [&](const std::string& text) { notes_.push_back(text); }});
    EXPECT_TRUE(tuned.ok()) << tuned.error().message;
    return must(read_text_file(file_, 1 << 20));
  }
  void write(const std::string& text) { std::ofstream(file_) << text; }

  Folder folder_;
  const std::string file_ = std::string(folder_.path()) + "/products.txt";
  std::vector<std::string> notes_;
};

TEST_F(Tune, KeepsTheFastestThatIsRight) {
  const std::string name = "f32 -> f32 a·b 24x16x32 lines 32 16 16";
  const std::string table = tune({product(DType::kF32, 24, 16, 32)});
  EXPECT_THAT(table, HasSubstr(std::string("\nproducts-cuda 1\n") + kDevice + name + kBest));
  const auto about = [&](int id, const char* problem) {
    return Contains(AllOf(HasSubstr(fmt::format("{}: id={} ", name, id)), HasSubstr(problem)));
  };
  EXPECT_THAT(notes_, about(1, "differs by"));
  EXPECT_THAT(notes_, about(2, "takes 128.0 MiB for itself"));
  EXPECT_THAT(notes_, about(3, "CUBLAS_STATUS_NOT_SUPPORTED (15)"));
  EXPECT_THAT(notes_, about(4, "differs in 1 elements from its own run before"));
  EXPECT_THAT(notes_, about(8, "CUBLAS_STATUS_NOT_SUPPORTED (15)"));
  for (const int right : {0, 5, 7, 9})  // the fifth one is no candidate
    EXPECT_THAT(notes_, Not(about(right, ": ")));
  EXPECT_THAT(notes_.back(), AllOf(HasSubstr(": 2.2500 ms"), HasSubstr("with id=6 tile=7"),
                                   HasSubstr("swizzle=1"), HasSubstr("; the first 4.5000 ms")));
}

TEST_F(Tune, GoesThroughEveryProductOnce) {
  const std::vector<Program> programs = {
      product(DType::kF32, 8, 16, 8),
      product(DType::kBF16, 64, 16, 8, {{"to", "f32"}}),
      product(DType::kF32, 8, 16, 8),
      product(DType::kF16, 32, 16, 8, {{"accumulate", int64_t{1}}}),
      product(DType::kF64, 8, 24, 40),
      product(DType::kF32, 1, 256, 8)};  // the last is a tail
  const std::string table = tune(programs);
  size_t lines = 0;
  for (const char* name :
       {"bf16 -> f32 a·b 64x16x8 lines 8 16 16", "f16 -> f16 a·b 32x16x8 lines 8 16 16 + c",
        "f32 -> f32 a·b 8x16x8 lines 8 16 16", "f64 -> f64 a·b 8x24x40 lines 40 24 24"}) {
    EXPECT_THAT(table, HasSubstr(std::string(kDevice) + name + kBest));
    ++lines;
  }
  EXPECT_EQ(static_cast<size_t>(std::count(table.begin(), table.end(), '|')), 3 * lines);
  EXPECT_EQ(tune(programs), table);  // equal times, equal table
}

std::vector<float> run(const Program& program, const std::vector<float>& a,
                       const std::vector<float>& b) {
  const auto backend = must(make_cuda_backend());
  const int32_t loaded = must(backend->load(program)), end = must(backend->add_event());
  std::byte* const workspace = must(backend->allocate(backend->workspace_bytes(loaded)));
  std::vector<std::byte*> args;
  for (const TensorType& type : program.values)
    args.push_back(must(backend->allocate(type.bytes())));
  backend->copy(args[0], reinterpret_cast<const std::byte*>(a.data()), program.values[0].bytes());
  backend->copy(args[1], reinterpret_cast<const std::byte*>(b.data()), program.values[1].bytes());
  backend->launch(must(backend->bind(loaded, args, workspace)));
  std::vector<float> made(static_cast<size_t>(num_elements(program.values[2].shape)));
  backend->copy(reinterpret_cast<std::byte*>(made.data()), args[2], program.values[2].bytes());
  backend->record(end, 0);
  const Status finished = backend->finish(end);
  EXPECT_TRUE(finished.ok()) << finished.error().message;
  return made;
}

// With more parts than the library offers, in the workspace that their sums take.
TEST_F(Tune, SplitsALongSumIntoPartsThatAreStored) {
  constexpr int64_t kRows = 8, kColumns = 16, kTerms = 768;
  const Program program = product(DType::kF32, kRows, kColumns, kTerms);
  const std::string key = std::string(kDevice) + "f32 -> f32 a·b 8x16x768 lines 768 16 16";
  const std::string split =
      " | id=9 tile=9 split=8 reduction=2 swizzle=0 custom=0 stages=0 inner=0 cluster=0\n";
  EXPECT_THAT(tune({program}), HasSubstr(key + split));
  EXPECT_THAT(notes_.back(), HasSubstr(": 1.0000 ms"));
  const Status taken = take_cuda_products(file_);
  ASSERT_TRUE(taken.ok()) << taken.error().message;
  std::vector<float> a(kRows * kTerms), b(kTerms * kColumns);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 7) - 3;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 5) - 1;
  const std::vector<float> made = run(program, a, b);
  for (size_t i = 0; i < made.size(); ++i) {
    float sum = 0;  // of whole numbers: exact
    for (size_t k = 0; k < kTerms; ++k)
      sum += a[i / kColumns * kTerms + k] * b[k * kColumns + i % kColumns];
    ASSERT_EQ(made[i], sum) << "element " << i;
  }
  const Status restored =
      take_cuda_products(PIPER_SOURCE_DIR "/src/devices/cuda/products_cuda.txt");
  ASSERT_TRUE(restored.ok()) << restored.error().message;
}

// A part of an operand begins where it begins, and the table says what that is aligned to.
TEST_F(Tune, TellsApartHowOperandsAreAligned) {
  Program program = product(DType::kF32, 8, 16, 8);
  program.values[0] = {DType::kF32, {9, 8}};
  program.values.push_back({DType::kF32, {8, 8}});
  const Attrs rows{{"starts", std::vector<int64_t>{1, 0}},
                   {"ends", std::vector<int64_t>{9, 8}},
                   {"steps", std::vector<int64_t>{1, 1}}};
  program.ops.insert(program.ops.begin(), {"Slice", rows, {0}, {3}});
  program.ops[1].inputs[0] = 3;
  const std::string name = std::string(kDevice) + "f32 -> f32 a·b 8x16x8 lines 8 16 16";
  const std::string both = tune({program, product(DType::kF32, 8, 16, 8)});
  EXPECT_THAT(both, HasSubstr(name + kBest));
  EXPECT_THAT(both, HasSubstr(name + " aligned 32" + kBest));
}

TEST_F(Tune, LeavesWhatTheTableHasForOthers) {
  const std::string comment = "# mine\n", other = "A100 | 13.0.7 | f32 -> f32 a·b 8x16x8 | id=3\n",
                    old = std::string(kDevice) + "f32 -> f32 a·b 8x16x8 lines 8 16 16";
  write(comment + "products-cuda 1\n" + old + " | id=1\n" + other);
  EXPECT_EQ(tune({product(DType::kF32, 8, 16, 8)}),
            comment + "products-cuda 1\n" + other + old + kBest);
  write("products-cuda 1\nA | 1 | p | tile=2\n");
  const Status refused = tune_cuda_products({}, file_, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, file_ + ": line 2: id=NUMBER comes first");
}

// ---- As a command -------------------------------------------------------------------------------

class TuneCommand : public Tune {
 protected:
  // A small GPT-2's plans.
  void SetUp() override {
    const auto [code, output] = run_shell(
        fmt::format("cd {1} && mkdir model && {0}/tests/make_models gpt2 1 model layers=1 width=16 "
                    "heads=2 kv_heads=2 hidden=64 context=8 vocabulary=128 2>&1 && {0}/bin/piperc "
                    "model/model.onnx model/bf16.yaml --target cuda --no-oracles -o plans 2>&1",
                    PIPER_BINARY_DIR, folder_.path()));
    ASSERT_EQ(code, 0) << output;
    std::ofstream(std::string(folder_.path()) + "/text.bin") << std::string(999, 'a');
  }
  std::pair<int, std::string> run(const std::string& flags, const std::string& variables = "") {
    return run_shell(fmt::format("cd {} && {} timeout 100 {}/bin/piper-run plans {} 2>&1",
                                 folder_.path(), variables, PIPER_BINARY_DIR, flags));
  }
  std::string train(const std::string& flags) {
    const auto [code, output] =
        run("--data text.bin:u8 --steps 2 --save saved.safetensors --backend cuda " + flags);
    EXPECT_EQ(code, 0) << output;
    return output;
  }
  std::string saved() const {
    return must(read_text_file(std::string(folder_.path()) + "/saved.safetensors", 1 << 24));
  }
};

TEST_F(TuneCommand, IsTakenByARunThatIsToldSo) {
  const auto [code, output] = run("--tune table.txt");
  EXPECT_EQ(code, 0) << output;
  const std::string table =
      must(read_text_file(std::string(folder_.path()) + "/table.txt", 1 << 20));
  EXPECT_THAT(table, HasSubstr("bf16 -> bf16 a·b 8x64x16 lines 16 64 64 + bias gelu_tanh pre" +
                               std::string(kBest)));
  const std::string plain = train("");
  const std::string bits = saved();
  EXPECT_THAT(plain, Not(HasSubstr("were compiled with table")));
  for (const std::string& told :
       {train("--products table.txt"), (setenv("PIPER_CUDA_PRODUCTS", "table.txt", 1), train(""))})
    EXPECT_THAT(told, HasSubstr("; the plans were compiled with table " +
                                cuda_table().substr(0, 8) + ", not "));
  unsetenv("PIPER_CUDA_PRODUCTS");
  EXPECT_EQ(saved(), bits);  // the algorithms that are right have the same bits there
  write("products-cuda 1\nA | 1 | p | id=2 split=2\n");
  EXPECT_THAT(run("--products " + file_),
              testing::Pair(1, HasSubstr("line 2: 'split=2' needs 'reduction=2'")));
  write("products-cuda 1\nA | 1 | p | id=2 split=2 reduction=1\n");
  EXPECT_THAT(run("--products " + file_),
              testing::Pair(1, HasSubstr("line 2: 'reduction=1': expected 0, no partial sums, or "
                                         "2, which are stored and added in a separate step")));
}

TEST_F(TuneCommand, SaysWhatFailed) {
  EXPECT_THAT(run("--tune table.txt", "FAKE_CUDA_DEVICES=0"),
              testing::Pair(1, HasSubstr("no device")));
  for (int64_t call = 20; call < 4000; call *= 2) {  // a leak or misuse ends with 86
    const auto [code, output] = run("--tune table.txt", fmt::format("FAKE_CUDA_FAIL={}", call));
    EXPECT_THAT(code, testing::AnyOf(0, 1, 12)) << call << ": " << output;
  }
}

}  // namespace
}  // namespace piper
