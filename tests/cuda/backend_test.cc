// The backend cuda on libraries that are faked (fake_cuda/fake.h): a session of it in any legal
// order, with each call failing once, and its code from the folder that keeps it. And NVRTC itself,
// where it is.
#include <gmock/gmock.h>

#include <fstream>

#include "folder.h"
#include "shell.h"

namespace piper {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

class CudaSession : public testing::Test {
 protected:
  // What the session said on both of its outputs, and its exit code: 86 for a leak or misuse.
  std::pair<int, std::string> run(const std::string& variables) {
    return run_shell(fmt::format(
        "env PIPER_CUDA_PATH={}/all XDG_CACHE_HOME={} {} timeout 120 {}/tests/cuda_session 2>&1",
        PIPER_FAKE_CUDA, cache_.path(), variables, PIPER_BINARY_DIR));
  }
  std::string session(const std::string& variables) {
    const auto [code, output] = run(variables);
    EXPECT_EQ(code, 0) << variables << ": " << output;
    return output;
  }
  int64_t calls(const std::string& more = "") {
    const std::string output = session(more + " FAKE_CUDA_COUNT=1");
    const size_t at = output.find("fake cuda: ");
    EXPECT_NE(at, std::string::npos) << output;
    return at == std::string::npos ? 0 : std::atoll(output.c_str() + at + 11);
  }
  std::vector<fs::path> kept() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(fs::path(cache_.path()) / "piper"))
      files.push_back(entry.path());
    return files;
  }

  Folder cache_;
};

TEST_F(CudaSession, IsRightInAnyOrder) {
  for (int seed = 1; seed <= 8; ++seed)
    EXPECT_EQ(session(fmt::format("FAKE_CUDA_SEED={} FAKE_CUDA_CHECK=1", seed)), "right\n");
}

TEST_F(CudaSession, KeepsItsCodeAndMakesDamagedCodeAnew) {
  EXPECT_EQ(session(""), "right\n");
  const std::vector<fs::path> files = kept();
  ASSERT_EQ(files.size(), 1u);
  const std::string code = *read_text_file(files[0].string(), 64 << 20);
  const auto written = [&](const std::string& text) {
    std::ofstream(files[0], std::ios::binary) << text;
  };
  std::string damaged = code;
  damaged.back() ^= 1;
  for (const std::string& text : {damaged, code.substr(0, code.size() / 2), std::string()}) {
    written(text);
    EXPECT_EQ(session(""), "right\n");
    EXPECT_EQ(*read_text_file(files[0].string(), 64 << 20), code);
    EXPECT_EQ(kept(), files);
  }
}

// Each word switches off the calls that it names, and the session is right without them.
TEST_F(CudaSession, DoesWithoutWhatIsSwitchedOff) {
  for (const auto& [word, call] :
       {std::pair("vmm", "cuMemCreate"), {"green", "cuGreenCtx"}, {"graphs", "cuGraph"}}) {
    const std::string counted = fmt::format("FAKE_CUDA_COUNT={}", call);
    EXPECT_THAT(session(counted), Not(HasSubstr("fake cuda: 0 calls"))) << word;
    const std::string without = session(fmt::format("PIPER_CUDA_WITHOUT={} {}", word, counted));
    EXPECT_THAT(without, AllOf(HasSubstr("right\n"), HasSubstr("fake cuda: 0 calls\n"))) << word;
  }
  EXPECT_EQ(session("PIPER_CUDA_WITHOUT=vmm,cudnn,green,windows,graphs"), "right\n");
  EXPECT_EQ(session("PIPER_CUDA_WITHOUT=vmm,graph"),
            "PIPER_CUDA_WITHOUT: 'graph' is no part that can be switched off (did you mean "
            "'graphs'?); there are vmm, cudnn, green, windows, graphs\n");
}

// Where NVRTC does not know the device, the driver finishes code for an older one; a device that is
// too old is refused, and so is an NVRTC that knows none that is old enough.
TEST_F(CudaSession, TakesPtxForADeviceThatNvrtcDoesNotKnow) {
  const auto compiled = [&](const char* capability, const char* known) {
    fs::remove_all(fs::path(cache_.path()) / "piper");
    return session(
        fmt::format("FAKE_CUDA_CAPABILITY={} FAKE_NVRTC_ARCHS={} FAKE_CUDA_COUNT=nvrtcGetPTX",
                    capability, known));
  };
  EXPECT_EQ(compiled("90", "75,80,90,100"), "fake cuda: 0 calls\nright\n");
  EXPECT_EQ(compiled("121", "80,90,120"), "fake cuda: 2 calls\nright\n");
  EXPECT_EQ(compiled("103", "75,80,90,120"), "fake cuda: 2 calls\nright\n");
  EXPECT_THAT(compiled("90", "70,75,100"),
              AllOf(HasSubstr("NVRTC 13.5 ("),
                    HasSubstr(") compiles neither for sm_90 nor for an older device that Piper can "
                              "use\n")));
  EXPECT_THAT(compiled("75", "75,80,90"),
              HasSubstr("cuda:0, Fake H100, has compute capability 7.5: Piper needs 8.0 or later, "
                        "whose tensor cores multiply bf16\n"));
}

// A table of algorithms with these lines.
std::string products(const std::string& lines) {
  return fmt::format("SESSION_PRODUCTS='products-cuda 1\n{}'", lines);
}

TEST_F(CudaSession, TakesTheAlgorithmThatIsListed) {
  const std::string product = "f32 -> f32 a·b 64x48x64 lines 64 48 48",
                    of_others = products("Fake H100 | 13.0.6 | " + product + " | id=3"),
                    listed =
                        products("Fake H100 | 13.0.7 | " + product + " | id=3 tile=20 inner=1");
  session("");  // its code is kept from here on
  const int64_t plain = calls();
  EXPECT_EQ(calls(of_others), plain);
  EXPECT_NE(calls(listed), plain);
  EXPECT_EQ(session(listed), "right\n");
  for (const auto& [line, problem] :
       {std::pair("A | 1 | p", "it is not DEVICE | VERSION | PRODUCT | NAME=NUMBER…"),
        {"A | 1 | p | tile=2", "id=NUMBER comes first"},
        {"A | 1 | p | id=2 tiles=1", "'tiles=1' is no NAME=NUMBER"},
        {"A | 1 | p | id=x", "'id=x' is no NAME=NUMBER"},
        {"A | 1 | p | id=2 split=2",
         "'split=2' needs 'reduction=2': partial sums are stored and added in a separate step"}})
    EXPECT_EQ(session(products(line)), fmt::format("the table of products: line 2: {}\n", problem));
  EXPECT_EQ(session("SESSION_PRODUCTS='A | 1 | p | id=2'"),
            "the table of products: line 1: it does not begin with 'products-cuda 1'\n");
}

// With NVRTC itself its code is a device's, which the faked driver does not take.
TEST_F(CudaSession, CompilesByNvrtc) {
  const Folder driver;
  fs::create_symlink(fs::path(PIPER_FAKE_CUDA) / "all/libcuda.so.1",
                     fs::path(driver.path()) / "libcuda.so.1");
  const std::string output = session(fmt::format("PIPER_CUDA_PATH={}", driver.path()));
  if (output.find("NVIDIA's NVRTC is not here") == 0) GTEST_SKIP() << output;
  EXPECT_EQ(output, "program 'a session': cuModuleLoadDataEx: CUDA_ERROR_INVALID_IMAGE (200)\n");
  const std::vector<fs::path> files = kept();
  ASSERT_EQ(files.size(), 1u);
  const std::string code = *read_text_file(files[0].string(), 64 << 20);
  EXPECT_EQ(code.substr(code.find('\n') + 1, 4),
            "\x7f"
            "ELF");
}

// Each of its calls fails once: the session is told which, or does without; nothing is left behind,
// and nothing is wrong. Only a graph under way can then neither be joined nor, where it is its end
// that does not come, be ended.
TEST_F(CudaSession, SaysWhichCallFailed) {
  const int64_t count = calls();
  ASSERT_GT(count, 50);
  int64_t told = 0;
  for (int64_t call = 1; call <= count; ++call) {
    const auto [code, output] = run(fmt::format("FAKE_CUDA_FAIL={}", call));
    SCOPED_TRACE(fmt::format("call {} of {}: {}", call, count, output));
    EXPECT_TRUE(code == 0 || output.find("cuStreamEndCapture: ") != std::string::npos) << code;
    if (output == "right\n") continue;
    ++told;
    EXPECT_THAT(output, AnyOf(HasSubstr(": an unknown error (999)"),
                              HasSubstr(": CUBLAS_STATUS_INTERNAL_ERROR (14)"),
                              HasSubstr(": NVRTC_ERROR_INTERNAL_ERROR (11)")));
  }
  EXPECT_GT(told, count / 2);
}

}  // namespace
}  // namespace piper
