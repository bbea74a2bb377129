#include "piper/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace piper {
namespace {

bool together(const Block& a, const Block& b) { return a.first <= b.last && b.first <= a.last; }

// The same rule, by trying every offset.
void place_slowly(std::vector<Block>& blocks) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto rank = [&](size_t i) {
      return std::pair(-blocks[i].bytes, blocks[i].first - blocks[i].last);
    };
    return rank(a) < rank(b);
  });
  for (size_t i : order) {
    Block& block = blocks[i];
    if (block.offset >= 0) continue;
    const auto is_free = [&](int64_t offset) {
      return std::none_of(blocks.begin(), blocks.end(), [&](const Block& other) {
        return other.offset >= 0 && together(block, other) && offset < other.offset + other.bytes &&
               other.offset < offset + block.bytes;
      });
    };
    int64_t offset = 0;
    while (!is_free(offset)) offset += kAlignment;
    block.offset = offset;
  }
}

TEST(Memory, BlocksLieWhereTheSlowSearchPutsThem) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    std::vector<Block> blocks;
    int64_t end = 0;
    const int64_t times = 1 + below(40);
    for (int64_t i = below(40); i >= 0; --i) {
      Block block{.bytes = 1 + below(3) * 64 + below(200) * below(2), .first = below(times)};
      block.last = block.first + below(times - block.first);
      if (below(8) == 0) {
        block.offset = end;
        end += align_up(block.bytes);
      }
      blocks.push_back(block);
    }
    std::vector<Block> expected = blocks;
    place_slowly(expected);
    const int64_t arena = place_blocks(blocks);
    int64_t greatest = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      ASSERT_EQ(blocks[i].offset, expected[i].offset) << "seed " << seed << " block " << i;
      greatest = std::max(greatest, blocks[i].offset + align_up(blocks[i].bytes));
    }
    ASSERT_EQ(arena, greatest) << "seed " << seed;
  }
}

}  // namespace
}  // namespace piper
