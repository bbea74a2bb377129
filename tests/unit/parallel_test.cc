#include "piper/base/parallel.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "piper/base/memo.h"

namespace piper {
namespace {

TEST(InParallel, EachOnce) {
  for (size_t count : {0, 1, 2, 1000}) {
    std::vector<int> calls(count);
    in_parallel(count, [&](size_t i) { ++calls[i]; });
    EXPECT_EQ(calls, std::vector<int>(count, 1));
  }
}

// Work inside of work is done by the thread that has it, and all of it.
TEST(InParallel, WorkMayCutItsOwn) {
  for (const size_t most : {0, 3}) {
    std::vector<std::vector<size_t>> rows(8, std::vector<size_t>(100));
    const auto fill = [&](size_t row) {
      in_parallel(rows[row].size(), [&](size_t i) { rows[row][i] = row * 100 + i; });
    };
    in_parallel(rows.size(), fill, most);
    std::vector<size_t> all, expected(800);
    for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected);
  }
}

// Work that decides by what others have come to: how many had ended when it began, and in which
// order they count, which is that of one thread.
TEST(InParallelInOrder, CallsOfBeforeAndAfterDoNotOverlap) {
  for (const size_t threads : {1, 4}) {
    constexpr size_t kCount = 200;
    std::vector<size_t> begun(kCount), results(kCount), order;
    in_parallel_in_order(
        kCount, [&](size_t i) { begun[i] = order.size() + 1; },
        [&](size_t i) {
          for (size_t k = 0; k < i % 7 * 100; ++k) results[i] += k;  // some take longer
        },
        [&](size_t i) {
          EXPECT_GE(begun[i], 1u);
          order.push_back(i);
        },
        threads);
    std::vector<size_t> expected(kCount);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(order, expected) << threads;
    for (size_t i = 0; i < kCount; ++i) EXPECT_LE(begun[i], i + 1);
    EXPECT_EQ(results[6], 599u * 600 / 2);
  }
}

TEST(Memo, ThreadsThatAskForOneKeyGetWhatOneOfThemMade) {
  Memo<std::vector<int>> memo;
  std::vector<int> made(3);  // by key
  std::vector<std::vector<int>> got(60);
  in_parallel(
      got.size(),
      [&](size_t i) {
        const size_t key = i % made.size();
        got[i] = *memo.get(std::to_string(key), [&]() -> Result<std::vector<int>> {
          return std::vector<int>(1000, ++made[key]);
        });
      },
      4);
  EXPECT_EQ(made, std::vector<int>(3, 1));
  for (const std::vector<int>& each : got) EXPECT_EQ(each, std::vector<int>(1000, 1));
}

TEST(Memo, KeepsTheLastFourAndErrors) {
  Memo<int> memo;
  int made = 0;
  const auto get = [&](const char* key) {
    return *memo.get(key, [&] { return Result<int>(++made); });
  };
  for (const char* key : {"a", "b", "c", "d"}) get(key);
  EXPECT_EQ(get("a"), 1);
  EXPECT_EQ(get("e"), 5);
  EXPECT_EQ(get("a"), 6);
  EXPECT_EQ(get("e"), 5);
  for (int k = 0; k < 2; ++k)
    EXPECT_EQ(memo.get("f", [&]() -> Result<int> { return fail("{}", ++made); }).error().message,
              "7");
}

}  // namespace
}  // namespace piper
