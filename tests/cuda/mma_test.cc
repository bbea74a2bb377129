// Products of a warp's fragments and the tiles that they are read from, on the host: what they
// make beside a plain product, and which faults are named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "fake_cuda/elements.h"
#include "fake_cuda/fragments.h"
#include "fake_cuda/grid.h"
#include "piper/devices/cuda_kernels.h"

namespace piper::emulator {
namespace {

using ::testing::HasSubstr;

constexpr char kText[] = R"(
// D [16, 8] = A [16, 16] · B [16, 8], from and to memory. kWrong: rows of A with those 8 below
// them in other registers than the device has them.
template <class T, bool kWrong>
DEVICE void by_lanes(const T* a, const T* b, float* d) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const auto pair = [](T first, T second) {
    return first.bits | static_cast<uint32_t>(second.bits) << 16;
  };
  uint32_t of_a[4], of_b[2];
  for (int r = 0; r < 4; ++r) {
    const int down = kWrong ? r / 2 : r % 2, along = kWrong ? r % 2 : r / 2;
    const T* from = a + (g + 8 * down) * 16 + 2 * t + 8 * along;
    of_a[r] = pair(from[0], from[1]);
  }
  for (int r = 0; r < 2; ++r)
    of_b[r] = pair(b[(2 * t + 8 * r) * 8 + g], b[(2 * t + 8 * r + 1) * 8 + g]);
  float sum[4] = {1, 2, 3, 4};
  multiply_fragments(T{}, sum, of_a, of_b[0], of_b[1]);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i] - (i + 1);
}
KERNEL(lanes_bf16, 3, 32) {
  by_lanes<bf16, false>(p.at<const bf16>(0), p.at<const bf16>(1), p.at<float>(2));
}
KERNEL(lanes_f16, 3, 32) {
  by_lanes<f16, false>(p.at<const f16>(0), p.at<const f16>(1), p.at<float>(2));
}
KERNEL(wrong_bf16, 3, 32) {
  by_lanes<bf16, true>(p.at<const bf16>(0), p.at<const bf16>(1), p.at<float>(2));
}
KERNEL(wrong_f16, 3, 32) {
  by_lanes<f16, true>(p.at<const f16>(0), p.at<const f16>(1), p.at<float>(2));
}

// The same by way of tiles, of which each factor is one, or its transposed.
template <class T, bool kTransposed>
DEVICE void by_tiles(const T* a, const T* b, float* d) {
  using namespace mma;
  typedef Tile<16, 16> Square;
  SHARED(Eight, shared, 2 * Square::kEights);
  const Square left{shared}, right{shared + Square::kEights};
  for (int e = threadIdx.x; e < 512; e += 32) {
    const int row = e % 256 / 16, column = e % 16;
    const uint32_t x = e < 256 ? a[row * 16 + column].bits : column < 8 ? b[row * 8 + column].bits : 0;
    const int at = kTransposed ? column : row, along = kTransposed ? row : column;
    Eight& eight = (e < 256 ? left : right).at[at * Square::kPitch + along / 8];
    reinterpret_cast<uint16_t*>(eight.x)[along % 8] = static_cast<uint16_t>(x);
  }
  __syncthreads();
  uint32_t of_a[4], of_b[4];
  if (kTransposed) {
    left.left_transposed(of_a, 0, 0);
    right.right_transposed(of_b, 0, 0);
  } else {
    left.left(of_a, 0, 0);
    right.right(of_b, 0, 0);
  }
  float sum[4] = {}, other[4] = {};
  multiply_fragments(T{}, sum, of_a, of_b[0], of_b[1]);
  multiply_fragments(T{}, other, of_a, of_b[2], of_b[3]);
  for (int i = 0; i < 4; ++i)
    d[(lane() / 4 + i / 2 * 8) * 8 + 2 * (lane() % 4) + i % 2] = sum[i] + other[i];
}
KERNEL(tiles_bf16, 3, 32) {
  by_tiles<bf16, false>(p.at<const bf16>(0), p.at<const bf16>(1), p.at<float>(2));
}
KERNEL(tiles_f16, 3, 32) {
  by_tiles<f16, true>(p.at<const f16>(0), p.at<const f16>(1), p.at<float>(2));
}

KERNEL(part_of_warp, 3, 32) {
  float d[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x != 20) multiply_fragments(bf16{}, d, a, 0u, 0u);
}
KERNEL(elsewhere, 3, 32) {
  float d[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x < 16)
    multiply_fragments(bf16{}, d, a, 0u, 0u);
  else
    multiply_fragments(bf16{}, d, a, 1u, 1u);
}
KERNEL(small_block, 3, 16) {
  float d[4] = {};
  const uint32_t a[4] = {};
  multiply_fragments(f16{}, d, a, 0u, 0u);
}
KERNEL(off_rows, 3, 32) {
  SHARED(uint32_t, shared, 64);
  for (int i = threadIdx.x; i < 64; i += 32) shared[i] = 0u;
  __syncthreads();
  uint32_t x[4];
  load_fragments(x, shared + 1);
}
KERNEL(early, 3, 32) {
  SHARED(uint32_t, shared, 128);
  for (int i = threadIdx.x; i < 128; i += 32) shared[i] = 0u;
  uint32_t x[4];
  load_transposed(x, shared + threadIdx.x * 4);
}
KERNEL(past_all, 3, 32) {
  SHARED(uint32_t, shared, 124);
  for (int i = threadIdx.x; i < 124; i += 32) shared[i] = 0u;
  __syncthreads();
  uint32_t x[4];
  load_fragments(x, shared + threadIdx.x * 4);
}
)";

constexpr Order kOrders[] = {{Order::kForward}, {Order::kBackward}, {Order::kRandom, 7}};

class Mma : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { open(true); }
  static void open(bool is_checked) {
    std::string source(device_texts()[0].text);
    for (const DeviceText& text : device_texts())
      if (text.name == "mma") source += text.text;
    auto library =
        compile_for_host(source + kText, std::string(PIPER_BINARY_DIR) + "/cuda_cache", is_checked);
    ASSERT_TRUE(library.ok()) << library.error().message;
    auto opened = Module::open(*library);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    kernels = std::move(*opened);
  }
  static void TearDownTestSuite() { kernels.reset(); }

  // Elements of different places differ.
  void draw(DType type) {
    std::mt19937_64 random(20250311);
    std::uniform_real_distribution<double> numbers(-2, 2);
    const auto half = [&](uint16_t& x) { x = half_of_number(half_of(type), numbers(random)); };
    std::for_each(a.begin(), a.end(), half);
    std::for_each(b.begin(), b.end(), half);
  }
  std::vector<float> plain(DType type) const {
    std::vector<float> made(16 * 8);
    for (size_t i = 0; i < made.size(); ++i) {
      double sum = 0;
      for (size_t k = 0; k < 16; ++k)
        sum += number_of_half(half_of(type), a[i / 8 * 16 + k]) *
               number_of_half(half_of(type), b[k * 8 + i % 8]);
      made[i] = static_cast<float>(sum);
    }
    return made;
  }
  Result<std::vector<float>> run(const char* kernel, const Order& order, int32_t threads = 32) {
    WatchedMemory memory;
    std::vector<float> d(16 * 8);
    memory.watch("a", a.data(), 2 * std::ssize(a), true, 2);
    memory.watch("b", b.data(), 2 * std::ssize(b), true, 2);
    memory.watch("d", d.data(), 4 * std::ssize(d), false, 4);
    const auto at = [](auto& x) { return reinterpret_cast<char*>(x.data()); };
    PIPER_TRY(kernels->run({kernel, 1, threads, 0, {at(a), at(b), at(d)}}, memory, order));
    return d;
  }
  void expect_refused(const char* kernel, const std::string& text, int32_t threads = 32) {
    for (const Order& order : kOrders) {
      const auto made = run(kernel, order, threads);
      ASSERT_FALSE(made.ok()) << kernel;
      EXPECT_THAT(made.error().message, HasSubstr(text));
    }
  }
  double furthest(const char* kernel, DType type, const Order& order) {
    draw(type);
    const auto made = run(kernel, order);
    if (!made) ADD_FAILURE() << kernel << ": " << made.error().message;
    if (!made) return 0;
    const std::vector<float> wanted = plain(type);
    double most = 0;
    for (size_t i = 0; i < wanted.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(made->at(i) - wanted[i])));
    return most;
  }

  static std::unique_ptr<Module> kernels;
  std::vector<uint16_t> a = std::vector<uint16_t>(16 * 16), b = std::vector<uint16_t>(16 * 8);
};
std::unique_ptr<Module> Mma::kernels;

TEST_F(Mma, IsAPlainProduct) {
  for (const Order& order : kOrders) {
    EXPECT_LT(furthest("lanes_bf16", DType::kBF16, order), 1e-5);
    EXPECT_LT(furthest("lanes_f16", DType::kF16, order), 1e-5);
    EXPECT_LT(furthest("tiles_bf16", DType::kBF16, order), 1e-5);
    EXPECT_LT(furthest("tiles_f16", DType::kF16, order), 1e-5);
  }
}

// Nor is memory watched where the compiler does not say what is touched.
TEST_F(Mma, IsTheSameWithoutChecks) {
  open(false);
  EXPECT_LT(furthest("tiles_bf16", DType::kBF16, {}), 1e-5);
  EXPECT_LT(furthest("lanes_f16", DType::kF16, {}), 1e-5);
  open(true);
}

// The control: fragments laid out otherwise are something else.
TEST_F(Mma, OfFragmentsInOtherPlacesIsSeen) {
  EXPECT_GT(furthest("wrong_bf16", DType::kBF16, {}), 0.5);
  EXPECT_GT(furthest("wrong_f16", DType::kF16, {}), 0.5);
  EXPECT_GT(furthest("lanes_f16", DType::kBF16, {}), 0.5);
}

TEST_F(Mma, IsOfAllLanesInOnePlace) {
  expect_refused("part_of_warp", "is at the product of line ");
  expect_refused("part_of_warp", "and thread 20 has ended");
  expect_refused("elsewhere", "thread 0 is at the product of line ");
  expect_refused("small_block", "a product by a part of a warp", 16);
}

TEST_F(Mma, LanesOfOneProductHaveOneType) {
  const uint32_t words[4] = {};
  float d[4] = {};
  std::array<Fragments, 32> lanes;
  lanes.fill({true, words, words, d});
  EXPECT_TRUE(multiply_fragments(lanes));
  lanes[17].is_bf16 = false;
  EXPECT_FALSE(multiply_fragments(lanes));
}

TEST_F(Mma, ReadsMatricesThatAreThere) {
  expect_refused("off_rows", "a row of a matrix that is not 16-byte aligned");
  expect_refused("early", "race on shared[");
  expect_refused("past_all", "reads 2 bytes of no memory: the nearest is shared");
}

}  // namespace
}  // namespace piper::emulator
