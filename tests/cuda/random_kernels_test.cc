// Random graphs of ops, joined as the cuda backend joins them and run on the host in three orders
// of threads, give what the CPU gives op by op: every bit where all ops promise it.
#include "random_ops.h"
#include "seed.h"

namespace piper::random_kernels_test {
namespace {

using namespace test;  // NOLINT: the helpers of this test

// Graphs are compiled several at once. PIPER_GRAPHS says how many there are in all, PIPER_SEED at
// which the first begin.
constexpr size_t kTogether = 16;
int packs() {
  const char* const wanted = std::getenv("PIPER_GRAPHS");
  const size_t graphs = wanted ? std::strtoull(wanted, nullptr, 10) : 3 * kTogether;
  return static_cast<int>((graphs + kTogether - 1) / kTogether);
}

class RandomKernels : public ::testing::TestWithParam<int> {};

TEST_P(RandomKernels, AgreeWithTheCpu) {
  const uint64_t first = given_seed().value_or(1) + static_cast<uint64_t>(GetParam()) * kTogether;
  SCOPED_TRACE(fmt::format("PIPER_SEED={} PIPER_GRAPHS={}", first, kTogether));
  RandomOps graphs(first);
  for (size_t g = 0; g < kTogether; ++g) graphs.add_graph(first + g);
  const Program program = graphs.made();
  const std::vector<size_t> places = graphs.places();
  std::vector<Bytes> before;
  for (const emulator::Order& order : kOrders) {
    SCOPED_TRACE(fmt::format("order of threads {}", static_cast<int>(order.kind)));
    const auto made = emulator::run_on_host(program, graphs.arguments(), order);
    ASSERT_TRUE(made.ok()) << made.error().message;
    for (size_t s = 0; s < places.size(); ++s) {
      const Bytes& result = made->at(places[s]);
      if (before.size() <= s) {
        const std::string wrong = graphs.difference(graphs.shown()[s], result);
        EXPECT_TRUE(wrong.empty()) << wrong;
        before.push_back(result);
      }
      EXPECT_EQ(as_text(result.span()), as_text(before[s].span()))
          << "result " << s << " depends on the order of threads";
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomKernels, ::testing::Range(0, packs()));

}  // namespace
}  // namespace piper::random_kernels_test
