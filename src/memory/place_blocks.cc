#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

#include "piper/memory.h"

namespace piper {
namespace {

struct Range {
  int64_t begin = 0, end = 0;
};

// The free bytes from some byte on: sorted ranges that do not touch, the last without end.
class Free {
 public:
  explicit Free(int64_t begin) : gaps_{{begin, std::numeric_limits<int64_t>::max()}} {}

  // The begin of the smallest gap that has so many bytes, the lowest of equals; takes them.
  int64_t take(int64_t bytes) {
    size_t best = gaps_.size() - 1;
    int64_t least = size(best);
    for (size_t g = 0; g + 1 < gaps_.size(); ++g)
      if (size(g) >= bytes && size(g) < least) least = size(best = g);
    const int64_t begin = gaps_[best].begin;
    gaps_[best].begin += bytes;
    if (least == bytes) gaps_.erase(gaps_.begin() + static_cast<std::ptrdiff_t>(best));
    return begin;
  }
  void give(Range range) {
    const auto next = std::partition_point(
        gaps_.begin(), gaps_.end(), [&](const Range& gap) { return gap.begin < range.begin; });
    const bool joins_next = next->begin == range.end;
    if (next != gaps_.begin() && next[-1].end == range.begin) {
      next[-1].end = joins_next ? next->end : range.end;
      if (joins_next) gaps_.erase(next);
    } else if (joins_next) {
      next->begin = range.begin;
    } else {
      gaps_.insert(next, range);
    }
  }

 private:
  int64_t size(size_t gap) const { return gaps_[gap].end - gaps_[gap].begin; }

  std::vector<Range> gaps_;
};

struct Layout {
  std::vector<int64_t> offsets;
  int64_t end = 0;   // the greatest of a block
  int64_t peak = 0;  // of live bytes: no end is lower
};

// One block after another as time passes, or as it goes back, from byte `base` on; of those that
// begin together the largest first.
Layout place_in_time(const std::vector<Block>& blocks, int64_t base, bool back) {
  const auto begin_of = [&](size_t i) { return back ? -blocks[i].last : blocks[i].first; };
  const auto end_of = [&](size_t i) { return back ? -blocks[i].first : blocks[i].last; };
  using Key = std::tuple<int64_t, int64_t, int64_t, size_t>;
  std::vector<Key> order;
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].offset < 0) order.emplace_back(begin_of(i), -blocks[i].bytes, -end_of(i), i);
  std::sort(order.begin(), order.end());

  Layout layout{std::vector<int64_t>(blocks.size()), base, base};
  Free free(base);
  int64_t live = base;
  using End = std::tuple<int64_t, int64_t, int64_t>;  // time, range
  std::priority_queue<End, std::vector<End>, std::greater<End>> ends;
  for (const auto& [begin, unused_bytes, unused_end, i] : order) {
    for (; !ends.empty() && std::get<0>(ends.top()) < begin; ends.pop()) {
      const auto [time, first, last] = ends.top();
      free.give({first, last});
      live -= last - first;
    }
    const int64_t bytes = align_up(blocks[i].bytes);
    if (bytes == 0) continue;
    const int64_t offset = layout.offsets[i] = free.take(bytes);
    ends.emplace(end_of(i), offset, offset + bytes);
    layout.end = std::max(layout.end, offset + bytes);
    layout.peak = std::max(layout.peak, live += bytes);
  }
  return layout;
}

}  // namespace

int64_t align_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t place_blocks(std::vector<Block>& blocks) {
  int64_t base = 0;
  for (const Block& block : blocks)
    if (block.offset >= 0) base = std::max(base, block.offset + align_up(block.bytes));
  Layout best = place_in_time(blocks, base, false);
  if (best.end > best.peak) {
    Layout other = place_in_time(blocks, base, true);
    if (other.end < best.end) best = std::move(other);
  }
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].offset < 0) blocks[i].offset = best.offsets[i];
  return best.end;
}

}  // namespace piper
