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
using testing::AnyOf;
using testing::HasSubstr;

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
  int64_t calls() {
    const std::string output = session("FAKE_CUDA_COUNT=1");
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
                              HasSubstr(": CUBLAS_STATUS_INTERNAL_ERROR (14)")));
  }
  EXPECT_GT(told, count / 2);
}

}  // namespace
}  // namespace piper
