#include "piper/base/parallel.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace piper {
namespace {

TEST(InParallel, EachOnce) {
  for (size_t count : {0, 1, 2, 1000}) {
    std::vector<int> calls(count);
    in_parallel(count, [&](size_t i) { ++calls[i]; });
    EXPECT_EQ(calls, std::vector<int>(count, 1));
  }
}

TEST(InParallel, WorkMayCutItsOwn) {
  std::vector<std::vector<size_t>> rows(8, std::vector<size_t>(100));
  in_parallel(rows.size(), [&](size_t row) {
    in_parallel(rows[row].size(), [&](size_t i) { rows[row][i] = row * 100 + i; });
  });
  std::vector<size_t> all, expected(800);
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

}  // namespace
}  // namespace piper
