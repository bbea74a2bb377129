// Kernels on a device whose libraries are faked: what their texts declare of shared memory counts
// beside what their launches ask for.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>

#include "evaluate.h"
#include "folder.h"
#include "piper/devices/cuda.h"

namespace piper {
namespace {

using test::must;
using testing::HasSubstr;

// The gradient of rows of 20,000 classes, which asks for 39 KiB to keep a row.
Program gradient() {
  const TensorType logits{DType::kBF16, {3, 20000}};
  Program program;
  program.label = "gradient";
  program.values = {logits, {DType::kI64, {3}}, {DType::kF32, {3}}, {DType::kF32, {}}, logits};
  program.num_args = 5;
  program.arg_read = {true, true, true, true, false};
  program.arg_written = {false, false, false, false, true};
  program.ops = {{"CrossEntropyGrad", {{"ignore_index", int64_t{-100}}}, {0, 1, 2, 3}, {4}}};
  return program;
}

// Runs it where each kernel's text declares so many bytes.
Status run(int64_t declared) {
  setenv("FAKE_CUDA_SHARED", std::to_string(declared).c_str(), 1);
  const Program program = gradient();
  const std::vector<std::byte> zeros(static_cast<size_t>(program.values[0].bytes()));
  PIPER_ASSIGN(const std::unique_ptr<Backend> backend, make_cuda_backend());
  PIPER_ASSIGN(const int32_t loaded, backend->load(program));
  PIPER_ASSIGN(const int32_t end, backend->add_event());
  PIPER_ASSIGN(std::byte* const workspace, backend->allocate(backend->workspace_bytes(loaded)));
  std::vector<std::byte*> args;
  for (const TensorType& type : program.values) {
    PIPER_ASSIGN(args.emplace_back(), backend->allocate(type.bytes()));
    backend->copy(args.back(), zeros.data(), type.bytes());
  }
  PIPER_ASSIGN(const int32_t bound, backend->bind(loaded, args, workspace));
  backend->launch(bound);
  backend->record(end, 0);
  return backend->finish(end);
}

TEST(SharedMemory, ThatTextsDeclareCounts) {
  const Folder cache;
  setenv("PIPER_CUDA_PATH", PIPER_FAKE_CUDA "/all", 1);
  setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  for (const int64_t declared : {int64_t{0}, int64_t{20} << 10, int64_t{180} << 10}) {
    const Status ran = run(declared);
    EXPECT_TRUE(ran.ok()) << declared << ": " << ran.error().message;
  }
  const Status refused = run(int64_t{200} << 10);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message,
              HasSubstr("a kernel takes 239.1 KiB of shared memory, and a block of the Fake H100 "
                        "has 227.0 KiB"));
}

}  // namespace
}  // namespace piper
