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
  std::vector<size_t> placed;  // by offset
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].offset >= 0) {
      placed.push_back(i);
      end = std::max(end, blocks[i].offset + align_up(blocks[i].bytes));
    }
  const auto by_offset = [&](size_t a, size_t b) { return blocks[a].offset < blocks[b].offset; };
  std::stable_sort(placed.begin(), placed.end(), by_offset);
  for (size_t i : order) {
    Block& block = blocks[i];
    if (block.offset >= 0) continue;
    const int64_t bytes = align_up(block.bytes);
    int64_t offset = 0;
    for (size_t p : placed) {
      const Block& other = blocks[p];
      if (other.last < block.first || block.last < other.first) continue;
      if (offset + bytes <= other.offset) break;
      offset = std::max(offset, other.offset + align_up(other.bytes));
    }
    block.offset = offset;
    end = std::max(end, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i, by_offset), i);
  }
  return end;
}

}  // namespace piper
