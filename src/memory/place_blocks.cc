#include <algorithm>

#include "piper/memory.h"

namespace piper {
namespace {

struct Range {
  int64_t begin = 0, end = 0;
};

// The free bytes from some byte on: gaps in order that do not touch, and all from the tail on.
class Free {
 public:
  explicit Free(int64_t begin) : tail_(begin) {}

  // The begin of the smallest gap that has so many bytes, the lowest of equals; takes them.
  int64_t take(int64_t bytes) {
    size_t best = sizes_.size();
    int64_t least = 0;
    for (size_t g = 0; g < sizes_.size(); ++g) {
      if (sizes_[g] < bytes || (best < sizes_.size() && sizes_[g] >= least)) continue;
      least = sizes_[best = g];
      if (least == bytes) break;
    }
    if (best == sizes_.size()) {
      tail_ += bytes;
      return tail_ - bytes;
    }
    const int64_t begin = begins_[best];
    begins_[best] += bytes;
    sizes_[best] -= bytes;
    if (sizes_[best] == 0) erase(best);
    return begin;
  }
  void give(Range range) {
    const auto next = static_cast<size_t>(
        std::lower_bound(begins_.begin(), begins_.end(), range.begin) - begins_.begin());
    const bool joins_next = next < begins_.size() && begins_[next] == range.end;
    if (next > 0 && end(next - 1) == range.begin) {
      range.begin = begins_[next - 1];
      sizes_[next - 1] = (joins_next ? end(next) : range.end) - range.begin;
      if (joins_next) erase(next);
      if (range.end == tail_) erase(next - 1);
    } else if (joins_next) {
      sizes_[next] += range.end - range.begin;
      begins_[next] = range.begin;
    } else if (range.end != tail_) {
      begins_.insert(at(begins_, next), range.begin);
      sizes_.insert(at(sizes_, next), range.end - range.begin);
    }
    if (range.end == tail_) tail_ = range.begin;
  }

 private:
  static std::vector<int64_t>::iterator at(std::vector<int64_t>& list, size_t gap) {
    return list.begin() + static_cast<std::ptrdiff_t>(gap);
  }
  int64_t end(size_t gap) const { return begins_[gap] + sizes_[gap]; }
  void erase(size_t gap) {
    begins_.erase(at(begins_, gap));
    sizes_.erase(at(sizes_, gap));
  }

  std::vector<int64_t> begins_, sizes_;  // sizes are looked through: they stand alone
  int64_t tail_;
};

// Blocks by a position of theirs, ascending for each.
class Lists {
 public:
  template <class Position>
  Lists(const std::vector<size_t>& blocks, size_t positions, const Position& position_of)
      : first_(positions + 1), blocks_(blocks.size()) {
    for (size_t b : blocks) ++first_[position_of(b) + 1];
    for (size_t p = 0; p < positions; ++p) first_[p + 1] += first_[p];
    std::vector<size_t> next(first_.begin(), first_.end() - 1);
    for (size_t b : blocks) blocks_[next[position_of(b)]++] = b;
  }
  std::span<size_t> operator[](size_t position) {
    return {blocks_.data() + first_[position], first_[position + 1] - first_[position]};
  }

 private:
  std::vector<size_t> first_, blocks_;
};

struct Layout {
  std::vector<int64_t> offsets;
  int64_t end = 0;   // the greatest of a block
  int64_t peak = 0;  // of live bytes: no end is lower
};

// The positions of blocks that have bytes and no offset yet, counted from the first.
class Time {
 public:
  explicit Time(const std::vector<Block>& blocks) : blocks_(blocks) {
    int64_t last = 0;
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].offset >= 0 || blocks[b].bytes == 0) continue;
      const auto [low, high] = std::minmax(blocks[b].first, blocks[b].last);
      first_ = open_.empty() ? low : std::min(first_, low);
      last = open_.empty() ? high : std::max(last, high);
      open_.push_back(b);
    }
    if (!open_.empty()) positions_ = static_cast<size_t>(last - first_) + 1;
  }
  // One block after another as time passes, or as it goes back, from byte `base` on; of those that
  // begin together the largest first.
  Layout place(int64_t base, bool back) const;

 private:
  // Where time goes back, positions are counted from the last.
  size_t begin_of(size_t b, bool back) const {
    return back ? positions_ - 1 - at(blocks_[b].last) : at(blocks_[b].first);
  }
  size_t end_of(size_t b, bool back) const {
    return back ? positions_ - 1 - at(blocks_[b].first) : at(blocks_[b].last);
  }
  size_t at(int64_t position) const { return static_cast<size_t>(position - first_); }

  const std::vector<Block>& blocks_;
  std::vector<size_t> open_;
  int64_t first_ = 0;
  size_t positions_ = 0;
};

Layout Time::place(int64_t base, bool back) const {
  Lists begins(open_, positions_, [&](size_t b) { return begin_of(b, back); });
  Lists ends(open_, positions_, [&](size_t b) { return end_of(b, back); });
  Layout layout{std::vector<int64_t>(blocks_.size()), base, base};
  Free free(base);
  int64_t live = base;
  const auto give = [&](size_t b) {
    const int64_t bytes = align_up(blocks_[b].bytes);
    free.give({layout.offsets[b], layout.offsets[b] + bytes});
    live -= bytes;
  };
  const auto never = [&](size_t b) { return blocks_[b].last < blocks_[b].first; };
  for (size_t now = 0; now < positions_; ++now) {
    if (now > 0)
      for (size_t b : ends[now - 1])
        if (!never(b)) give(b);
    const std::span<size_t> together = begins[now];
    std::sort(together.begin(), together.end(), [&](size_t a, size_t b) {
      const Block &x = blocks_[a], &y = blocks_[b];
      if (x.bytes != y.bytes) return x.bytes > y.bytes;
      const int64_t longer = back ? y.first - x.first : x.last - y.last;
      return longer != 0 ? longer > 0 : a < b;
    });
    for (size_t b : together) {
      const int64_t bytes = align_up(blocks_[b].bytes);
      layout.offsets[b] = free.take(bytes);
      layout.end = std::max(layout.end, layout.offsets[b] + bytes);
      layout.peak = std::max(layout.peak, live += bytes);
      if (never(b)) give(b);
    }
  }
  return layout;
}

}  // namespace

int64_t align_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t place_blocks(std::vector<Block>& blocks) {
  int64_t base = 0;
  for (const Block& block : blocks)
    if (block.offset >= 0) base = std::max(base, block.offset + align_up(block.bytes));
  const Time time(blocks);
  Layout best = time.place(base, false);
  if (best.end > best.peak) {
    Layout other = time.place(base, true);
    if (other.end < best.end) best = std::move(other);
  }
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].offset < 0) blocks[i].offset = best.offsets[i];
  return best.end;
}

}  // namespace piper
