#include <algorithm>
#include <numeric>

#include "piper/memory.h"

namespace piper {

int64_t align_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t place_blocks(std::vector<Block>& blocks) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto length = [&](size_t i) { return blocks[i].last - blocks[i].first; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (blocks[a].bytes != blocks[b].bytes) return blocks[a].bytes > blocks[b].bytes;
    return length(a) > length(b);
  });
  int64_t end = 0;
  std::vector<Block> placed;  // by offset; neighbours with one lifetime are one
  const auto add = [&](const Block& block) {
    end = std::max(end, block.offset + align_up(block.bytes));
    const auto at =
        std::upper_bound(placed.begin(), placed.end(), block,
                         [](const Block& a, const Block& b) { return a.offset < b.offset; });
    if (at != placed.begin()) {
      Block& before = at[-1];
      if (before.first == block.first && before.last == block.last &&
          before.offset + align_up(before.bytes) == block.offset) {
        before.bytes = block.offset + align_up(block.bytes) - before.offset;
        return;
      }
    }
    placed.insert(at, block);
  };
  for (const Block& block : blocks)
    if (block.offset >= 0) add(block);
  for (size_t i : order) {
    Block& block = blocks[i];
    if (block.offset >= 0) continue;
    const int64_t bytes = align_up(block.bytes);
    int64_t offset = 0;
    for (const Block& other : placed) {
      if (other.last < block.first || block.last < other.first) continue;
      if (offset + bytes <= other.offset) break;
      offset = std::max(offset, other.offset + align_up(other.bytes));
    }
    block.offset = offset;
    add(block);
  }
  return end;
}

}  // namespace piper
