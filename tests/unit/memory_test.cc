#include "piper/base/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace piper {
namespace {

// The most bytes that are alive at once; those with an offset lie behind each other, always.
int64_t peak_of(const std::vector<Block>& blocks, int64_t base) {
  std::map<int64_t, int64_t> change;
  for (const Block& block : blocks) {
    if (block.offset >= 0) continue;
    change[block.first] += align_up(block.bytes);
    change[block.last + 1] -= align_up(block.bytes);
  }
  int64_t live = base, peak = base;
  for (const auto& [time, bytes] : change) peak = std::max(peak, live += bytes);
  return peak;
}

// Blocks alive at once do not overlap; the arena ends where the last does.
void check(const std::vector<Block>& blocks, int64_t arena, unsigned seed) {
  int64_t greatest = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& a = blocks[i];
    ASSERT_EQ(a.offset % kAlignment, 0) << "seed " << seed;
    greatest = std::max(greatest, a.offset + align_up(a.bytes));
    for (size_t k = 0; k < i; ++k) {
      const Block& b = blocks[k];
      const bool together = a.first <= b.last && b.first <= a.last;
      const bool apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
      ASSERT_TRUE(!together || apart || a.bytes == 0 || b.bytes == 0)
          << "seed " << seed << " blocks " << k << " and " << i;
    }
  }
  ASSERT_EQ(arena, greatest) << "seed " << seed;
}

TEST(Memory, RandomBlocksDoNotOverlapAndLieClose) {
  double arenas = 0, peaks = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    const int64_t times = 1 + below(40);
    std::vector<Block> blocks;
    int64_t base = 0;
    for (int64_t i = below(4); i > 0; --i) {
      blocks.push_back({.bytes = below(300), .first = -1, .last = times, .offset = base});
      base += align_up(blocks.back().bytes);
    }
    for (int64_t i = below(60); i >= 0; --i) {
      Block block{.bytes = below(3) * 64 + below(200) * below(2), .first = below(times)};
      block.last = block.first + below(times - block.first);
      blocks.push_back(block);
    }
    const int64_t peak = peak_of(blocks, base);
    const int64_t arena = place_blocks(blocks);
    check(blocks, arena, seed);
    ASSERT_GE(arena, peak) << "seed " << seed;
    arenas += static_cast<double>(arena);
    peaks += static_cast<double>(peak);
  }
  EXPECT_LT(arenas, 1.05 * peaks);
}

// A pipeline's activations: what a forward makes is given back by a backward some microbatches on,
// in reverse. Nothing is lost.
// Within a bound that holds, blocks lie as they do without one; one byte less is told.
TEST(Memory, GivesUpPastABound) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    std::vector<Block> blocks;
    for (int i = 0; i < 60; ++i) {
      const auto first = static_cast<int64_t>(random() % 40);
      blocks.push_back({static_cast<int64_t>(random() % 5000), first,
                        first + static_cast<int64_t>(random() % 20)});
    }
    std::vector<Block> free = blocks, bound = blocks, tight = blocks;
    const int64_t size = place_blocks(free);
    ASSERT_EQ(place_blocks(bound, kNoCircle, size), size) << "seed " << seed;
    EXPECT_TRUE(std::ranges::equal(free, bound, {}, &Block::offset, &Block::offset)) << seed;
    EXPECT_GT(place_blocks(tight, kNoCircle, size - 1), size - 1) << "seed " << seed;
  }
}

TEST(Memory, RingsAndNestsTakeNoMoreThanThePeak) {
  std::vector<Block> blocks;
  for (int64_t micro = 0; micro < 50; ++micro)
    for (int64_t layer = 0; layer < 4; ++layer)
      blocks.push_back({.bytes = 64 * (1 + layer * layer),
                        .first = 20 * micro + layer,
                        .last = 20 * (micro + 6) + 19 - layer});
  const int64_t peak = peak_of(blocks, 0);
  const int64_t arena = place_blocks(blocks);
  check(blocks, arena, 0);
  EXPECT_EQ(arena, peak);
}

// ---- On a circle --------------------------------------------------------------------------------

bool alive(const Block& block, int64_t circle, int64_t time) {
  return (block.first <= time && time <= block.last) || time + circle <= block.last;
}
void check_on_circle(const std::vector<Block>& blocks, int64_t arena, int64_t circle,
                     unsigned seed) {
  std::vector<Block> here;
  int64_t end = 0;
  for (int64_t time = 0; time < circle; ++time) {
    here.clear();
    for (const Block& block : blocks)
      if (alive(block, circle, time) && block.bytes > 0) here.push_back(block);
    std::sort(here.begin(), here.end(),
              [](const Block& a, const Block& b) { return a.offset < b.offset; });
    for (size_t i = 0; i < here.size(); ++i) {
      end = std::max(end, here[i].offset + align_up(here[i].bytes));
      if (i + 1 < here.size()) {
        ASSERT_LE(here[i].offset + here[i].bytes, here[i + 1].offset)
            << "seed " << seed << " at " << time;
      }
    }
  }
  ASSERT_EQ(arena, end) << "seed " << seed;
}
int64_t peak_on_circle(const std::vector<Block>& blocks, int64_t circle) {
  int64_t peak = 0;
  for (int64_t time = 0; time < circle; ++time) {
    int64_t live = 0;
    for (const Block& block : blocks)
      if (alive(block, circle, time)) live += align_up(block.bytes);
    peak = std::max(peak, live);
  }
  return peak;
}

TEST(Memory, RandomBlocksOfACircleDoNotOverlap) {
  double arenas = 0, peaks = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    const int64_t circle = 2 + below(40);
    std::vector<Block> blocks;
    for (int64_t i = below(60); i >= 0; --i) {
      Block block{.bytes = below(3) * 64 + below(200) * below(2), .first = below(circle)};
      block.last = block.first + below(below(2) ? circle : 1 + circle / 4);
      blocks.push_back(block);
    }
    const int64_t arena = place_blocks(blocks, circle);
    check_on_circle(blocks, arena, circle, seed);
    arenas += static_cast<double>(arena);
    peaks += static_cast<double>(peak_on_circle(blocks, circle));
  }
  EXPECT_LT(arenas, 1.25 * peaks);
}

// One microbatch after another for ever, each held for a while: as many slots as are needed where
// they come round evenly.
TEST(Memory, ARingThatClosesTakesNoMoreThanThePeak) {
  constexpr int64_t kMicrobatches = 24, kHeld = 6, kEach = 10;
  std::vector<Block> blocks;
  for (int64_t micro = 0; micro < kMicrobatches; ++micro)
    for (int64_t layer = 0; layer < 3; ++layer)
      blocks.push_back({.bytes = 64 * (1 + layer),
                        .first = kEach * micro + layer,
                        .last = kEach * (micro + kHeld) - 1 - layer});
  const int64_t circle = kMicrobatches * kEach, peak = peak_on_circle(blocks, circle);
  const int64_t arena = place_blocks(blocks, circle);
  check_on_circle(blocks, arena, circle, 0);
  EXPECT_EQ(arena, peak);
}

}  // namespace
}  // namespace piper
