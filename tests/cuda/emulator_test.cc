// The emulator of kernels: what is right runs, and each planted fault is named.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_cuda/grid.h"
#include "piper/devices/cuda_kernels.h"

namespace piper::emulator {
namespace {

using ::testing::HasSubstr;

constexpr const char kText[] = R"(
// Row sums of [blocks, 128], by way of shared memory.
template <bool kBarrier, bool kSecond>
DEVICE void add_rows(const float* x, float* y) {
  SHARED(float, parts, 4);
  for (int turn = 0; turn < 2; ++turn) {
    const float sum = over_warp<Sum>(x[blockIdx.x * 128 + threadIdx.x]);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    if (kBarrier) __syncthreads();
    float all = 0.0f;
    for (int i = 0; i < 4; ++i) all += parts[i];
    if (threadIdx.x == 0) y[blockIdx.x] = all;
    if (kSecond) __syncthreads();
  }
}
KERNEL(right, 2, 128) { add_rows<true, true>(p.at<const float>(0), p.at<float>(1)); }
KERNEL(no_first, 2, 128) { add_rows<false, true>(p.at<const float>(0), p.at<float>(1)); }
KERNEL(no_second, 2, 128) { add_rows<true, false>(p.at<const float>(0), p.at<float>(1)); }
KERNEL(by_block, 2, 128) {
  SHARED(float, parts, 4);
  const float sum = over_block<Sum, 128>(p.at<const float>(0)[blockIdx.x * 128 + threadIdx.x], parts);
  if (threadIdx.x == 0) p.at<float>(1)[blockIdx.x] = sum;
}

KERNEL(past_its_row, 2, 128) {
  if (threadIdx.x == 127)
    p.at<float>(1)[blockIdx.x] = p.at<const float>(0)[blockIdx.x * 128 + threadIdx.x + 8];
}
KERNEL(writes_past, 2, 128) {
  if (threadIdx.x < 5) p.at<float>(1)[threadIdx.x] = 1.0f;
}
KERNEL(shared_past, 2, 128) {
  SHARED(float, few, 8);
  if (threadIdx.x == 0) *(&few[0] + 8 + blockIdx.x) = 1.0f;
}
KERNEL(index_past, 2, 128) {
  SHARED(float, few, 8);
  few[threadIdx.x] = 1.0f;
}
KERNEL(reads_nothing, 2, 128) {
  SHARED(float, few, 8);
  if (threadIdx.x < 7) few[threadIdx.x] = 1.0f;
  __syncthreads();
  if (threadIdx.x < 4) p.at<float>(1)[threadIdx.x] = few[threadIdx.x * 2 + 1];
}
KERNEL(reads_output, 2, 128) {
  if (threadIdx.x == 0 && blockIdx.x == 1) p.at<float>(1)[0] = p.at<float>(1)[1];
}
KERNEL(writes_first, 2, 128) {
  if (threadIdx.x == 0 && blockIdx.x == 0) p.at<float>(1)[0] = 1.0f;
}
KERNEL(divergent, 2, 128) {
  if (threadIdx.x < 70) __syncthreads();
}
KERNEL(elsewhere, 2, 128) {
  if (threadIdx.x < 64) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
KERNEL(part_of_warp, 2, 128) {
  if (threadIdx.x != 40) p.at<float>(1)[0] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}
KERNEL(other_mask, 2, 128) {
  if (threadIdx.x < 16) p.at<float>(1)[0] = __shfl_xor_sync(0xffffu, 1.0f, 1);
}
KERNEL(between_blocks, 2, 128) {
  if (threadIdx.x == 0) p.at<float>(1)[0] = 1.0f;
}
KERNEL(misaligned, 2, 128) {
  const Pack<float, 4> four = *reinterpret_cast<const Pack<float, 4>*>(p.at<const float>(0) + 2);
  if (threadIdx.x < 4 && blockIdx.x == 0) p.at<float>(1)[threadIdx.x] = four.x[threadIdx.x];
}
KERNEL(overflows, 2, 128) {
  const int many = (static_cast<int>(threadIdx.x) + 1) * 0x1000000;
  if (many == 3) p.at<float>(1)[0] = 1.0f;
}
KERNEL(warp_order, 2, 128) {
  SHARED(float, all, 128);
  all[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncwarp();
  const float next = all[threadIdx.x ^ 1];
  if (blockIdx.x == 0 && threadIdx.x < 4) p.at<float>(1)[threadIdx.x] = next;
}
KERNEL(beyond_warp, 2, 128) {
  SHARED(float, all, 128);
  all[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncwarp();
  if (all[threadIdx.x ^ 32] == 300.0f) p.at<float>(1)[0] = 1.0f;
}
KERNEL(counts, 2, 128) {
  SHARED(unsigned, count, 1);
  if (threadIdx.x == 0) count[0] = 0u;
  __syncthreads();
  if (threadIdx.x % 3 == 0) atomicAdd(&count[0], 1u);
  const unsigned votes = __ballot_sync(0xffffffffu, threadIdx.x % 2 == 0);
  const int down = __shfl_down_sync(0xffffffffu, static_cast<int>(threadIdx.x), 3);
  const double first = __shfl_sync(0xffffffffu, static_cast<double>(threadIdx.x), 0);
  __syncthreads();
  if (threadIdx.x == 33 && blockIdx.x == 0) {
    p.at<float>(1)[0] = static_cast<float>(count[0]);
    p.at<float>(1)[1] = static_cast<float>(votes);
    p.at<float>(1)[2] = static_cast<float>(down);
    p.at<float>(1)[3] = static_cast<float>(first);
  }
}
KERNEL(dynamic, 2, 128) {
  DYNAMIC_SHARED(float, all);
  all[threadIdx.x] = 1.0f;
  __syncthreads();
  if (threadIdx.x == 0 && blockIdx.x < 4) p.at<float>(1)[blockIdx.x] = all[127];
}
)";

constexpr Order kOrders[] = {{Order::kForward}, {Order::kBackward}, {Order::kRandom, 7}};

class Emulator : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string source(device_texts()[0].text);
    source += kText;
    auto library = compile_for_host(source, std::string(PIPER_BINARY_DIR) + "/cuda_cache");
    ASSERT_TRUE(library.ok()) << library.error().message;
    auto opened = Module::open(*library);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    kernels = std::move(*opened);
  }
  static void TearDownTestSuite() { kernels.reset(); }

  // The four numbers that the kernel makes of 4 rows of 128, or its error.
  Result<std::vector<float>> run(const char* kernel, const Order& order, int64_t shared = 0) {
    WatchedMemory memory;
    std::vector<float> x(4 * 128 + 128), y(4 + 128, -1.0f);
    for (size_t i = 0; i < 4 * 128; ++i) x[i] = static_cast<float>(i % 7);
    memory.watch("x", x.data(), 4 * 128 * 4, true, 4);
    memory.watch("y", y.data(), 4 * 4, false, 4);
    PIPER_TRY(kernels->run({kernel,
                            4,
                            128,
                            shared,
                            {reinterpret_cast<char*>(x.data()), reinterpret_cast<char*>(y.data())}},
                           memory, order));
    unwritten = memory.first_unwritten(y.data());
    y.resize(4);
    return y;
  }
  // With which text it is refused, in each order of threads.
  void expect_refused(const char* kernel, const std::string& text) {
    for (const Order& order : kOrders) {
      const auto made = run(kernel, order);
      ASSERT_FALSE(made.ok()) << kernel;
      EXPECT_THAT(made.error().message, HasSubstr(text));
      EXPECT_THAT(made.error().message, HasSubstr(fmt::format("kernel {}, block ", kernel)));
    }
  }

  static std::unique_ptr<Module> kernels;
  int64_t unwritten = 0;
};
std::unique_ptr<Module> Emulator::kernels;

TEST_F(Emulator, RunsWhatIsRight) {
  std::vector<float> expected(4);
  for (size_t i = 0; i < 4 * 128; ++i) expected[i / 128] += static_cast<float>(i % 7);
  for (const Order& order : kOrders)
    for (const char* kernel : {"right", "by_block"}) {
      const auto made = run(kernel, order);
      ASSERT_TRUE(made.ok()) << made.error().message;
      EXPECT_EQ(*made, expected) << kernel;
      EXPECT_EQ(unwritten, -1);
    }
}

TEST_F(Emulator, KnowsTheWordsOfWarps) {
  for (const Order& order : kOrders) {
    const auto made = run("counts", order);
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(*made, (std::vector<float>{43, static_cast<float>(0x55555555u), 36, 32}));
    const auto swapped = run("warp_order", order);
    ASSERT_TRUE(swapped.ok()) << swapped.error().message;
    EXPECT_EQ(*swapped, (std::vector<float>{1, 0, 3, 2}));
  }
}

TEST_F(Emulator, HasAsMuchDynamicSharedMemoryAsTheLaunchSays) {
  EXPECT_TRUE(run("dynamic", {}, 512).ok());
  const auto made = run("dynamic", {}, 508);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, HasSubstr("thread 127: writes 4 bytes of no memory"));
}

TEST_F(Emulator, FindsMissingBarriers) {
  expect_refused("no_first", "parts[");
  expect_refused("no_second", "race on parts[");
  expect_refused("beyond_warp", "all[");
}

TEST_F(Emulator, FindsAccessesOutside) {
  expect_refused("past_its_row", "reads 4 bytes of no memory: the nearest is x");
  expect_refused("writes_past", "thread 4: writes 4 bytes of no memory: the nearest is y");
  expect_refused("shared_past", "thread 0: writes 4 bytes of no memory: the nearest is few");
  expect_refused("index_past", "an index outside of its array in line ");
  expect_refused("misaligned", "an address that is not aligned as its type in line ");
}

TEST_F(Emulator, FindsWhatNobodyWrote) {
  expect_refused("reads_nothing", "thread 3: reads few[7], which nobody wrote (line ");
  expect_refused("reads_output", "block 1, thread 0: reads y[1], which nobody wrote");
  ASSERT_TRUE(run("writes_first", {}).ok());
  EXPECT_EQ(unwritten, 4);
}

TEST_F(Emulator, FindsThreadsThatPart) {
  expect_refused("divergent", "and thread 70 has ended");
  expect_refused("elsewhere", "thread 0 is at the barrier of line ");
  expect_refused("part_of_warp", "thread 32 is at the shuffle of line ");
  expect_refused("other_mask", "a shuffle by a part of a warp");
}

TEST_F(Emulator, FindsBlocksThatDependOnEachOther) {
  expect_refused("between_blocks", "race on y[0] of another block and thread 0");
}

TEST_F(Emulator, FindsOverflow) { expect_refused("overflows", "a product that overflows"); }

TEST_F(Emulator, ChecksLaunches) {
  WatchedMemory memory;
  const auto refusal = [&](const Grid& grid) {
    const Status ran = kernels->run(grid, memory, {});
    return ran.ok() ? "" : ran.error().message;
  };
  EXPECT_EQ(refusal({"none", 1, 128, 0, {}}), "there is no kernel none");
  EXPECT_EQ(refusal({"right", 1, 128, 0, {nullptr}}),
            "kernel right is given 1 pointers and takes 2");
  EXPECT_EQ(refusal({"right", 1, 256, 0, {nullptr, nullptr}}),
            "kernel right is launched with 256 threads, and is for 128");
  EXPECT_EQ(refusal({"right", 0, 128, 0, {nullptr, nullptr}}),
            "kernel right is launched with 0 blocks");
}

}  // namespace
}  // namespace piper::emulator
