// Finds offsets of blocks by their lifetimes, in the smallest gap that fits.
#include <algorithm>

#include "piper/base/memory.h"

namespace piper {
namespace {

struct Range {
  int64_t begin = 0, end = 0;
};

// Keeps the free bytes from some byte on: gaps in order that do not touch, and all bytes from the
// tail on.
class Free {
 public:
  explicit Free(int64_t begin) : tail_(begin) {}

  // Takes the smallest gap after `floor` that has so many bytes, the lowest of equals, and returns
  // its begin.
  int64_t take(int64_t bytes, int64_t floor) {
    const auto first = static_cast<size_t>(std::lower_bound(begins_.begin(), begins_.end(), floor) -
                                           begins_.begin());
    size_t best = sizes_.size();
    int64_t least = 0;
    for (size_t g = first; g < sizes_.size(); ++g) {
      if (sizes_[g] < bytes || (best < sizes_.size() && sizes_[g] >= least)) continue;
      least = sizes_[best = g];
      if (least == bytes) break;
    }
    if (first > 0 && end(first - 1) - floor >= bytes &&
        (best == sizes_.size() || end(first - 1) - floor <= least))
      return take_within(first - 1, {floor, floor + bytes});
    if (best == sizes_.size()) {
      if (tail_ < floor) insert(best, {tail_, floor});
      tail_ = std::max(tail_, floor) + bytes;
      return tail_ - bytes;
    }
    return take_within(best, {begins_[best], begins_[best] + bytes});
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
      insert(next, range);
    }
    if (range.end == tail_) tail_ = range.begin;
  }

 private:
  static std::vector<int64_t>::iterator at(std::vector<int64_t>& list, size_t gap) {
    return list.begin() + static_cast<std::ptrdiff_t>(gap);
  }
  int64_t end(size_t gap) const { return begins_[gap] + sizes_[gap]; }
  int64_t take_within(size_t gap, Range range) {
    const Range behind{range.end, end(gap)};
    sizes_[gap] = range.begin - begins_[gap];
    if (sizes_[gap] > 0) {
      if (behind.begin < behind.end) insert(gap + 1, behind);
    } else if (behind.begin < behind.end) {
      begins_[gap] = behind.begin;
      sizes_[gap] = behind.end - behind.begin;
    } else {
      erase(gap);
    }
    return range.begin;
  }
  void insert(size_t gap, Range range) {
    begins_.insert(at(begins_, gap), range.begin);
    sizes_.insert(at(sizes_, gap), range.end - range.begin);
  }
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

// Counts the positions of blocks that have bytes and no offset yet, from the first one, or from
// that of a cycle. Where time goes back, they are counted from the last.
class Time {
 public:
  Time(const std::vector<Block>& blocks, int64_t circle) : blocks_(blocks), circle_(circle) {
    int64_t last = -1;
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].offset >= 0 || blocks[b].bytes == 0) continue;
      const auto [low, high] = std::minmax(blocks[b].first, blocks[b].last);
      first_ = open_.empty() ? low : std::min(first_, low);
      last = open_.empty() ? high : std::max(last, high);
      open_.push_back(b);
    }
    if (circle != kNoCircle) first_ = 0, last = circle - 1;
    if (!open_.empty()) positions_ = static_cast<size_t>(last - first_) + 1;
  }
  const std::vector<size_t>& open() const { return open_; }
  size_t positions() const { return positions_; }
  bool lives_on(size_t b) const { return blocks_[b].last >= circle_; }
  // Returns where a block begins; of what lives on from the cycle's end to its begin: that of its
  // second life there, the end of its first.
  size_t begin_of(size_t b, bool back) const {
    return back ? positions_ - 1 - last(b) : at(blocks_[b].first);
  }
  size_t end_of(size_t b, bool back) const {
    return back ? positions_ - 1 - at(blocks_[b].first) : last(b);
  }

 private:
  size_t at(int64_t position) const { return static_cast<size_t>(position - first_); }
  size_t last(size_t b) const {
    return at(lives_on(b) ? blocks_[b].last - circle_ : blocks_[b].last);
  }

  const std::vector<Block>& blocks_;
  const int64_t circle_;
  std::vector<size_t> open_;
  int64_t first_ = 0;
  size_t positions_ = 0;
};

// Places one block after another, from byte `base` on, as time passes or goes back; of those that
// begin together, the largest first. Blocks that live past the end of a cycle come before all
// others. Gives up once a block ends past `most`.
class Pass {
 public:
  Pass(const std::vector<Block>& blocks, const Time& time, int64_t base, bool back, int64_t most)
      : blocks_(blocks),
        time_(time),
        back_(back),
        most_(most),
        begins_(time.open(), time.positions(), [&](size_t b) { return begin_of(b); }),
        ends_(time.open(), time.positions(), [&](size_t b) { return end_of(b); }),
        base_(base),
        live_(base),
        free_(base),
        layout_{std::vector<int64_t>(blocks.size()), base, base} {}

  Layout run() {
    keep();
    for (size_t now = 0; now < time_.positions() && layout_.end <= most_; ++now) {
      if (now > 0)
        for (size_t b : ends_[now - 1])
          if (!never(b)) give(b);
      const std::span<size_t> together = begins_[now];
      std::ranges::sort(together, [&](size_t a, size_t b) { return is_before(a, b); });
      for (size_t b : together) {
        if (time_.lives_on(b)) continue;
        take(b, floor_of(b));
        if (never(b)) give(b);
      }
    }
    return std::move(layout_);
  }

 private:
  struct Kept {
    size_t from = 0;  // needed again from that position on
    int64_t end = 0;  // of its bytes, which begin where those of the one before end
  };

  size_t begin_of(size_t b) const { return time_.begin_of(b, back_); }
  size_t end_of(size_t b) const { return time_.end_of(b, back_); }
  bool never(size_t b) const { return blocks_[b].last < blocks_[b].first; }
  // Orders blocks that begin together: larger ones and those that live longer come first.
  bool is_before(size_t a, size_t b) const {
    const Block &x = blocks_[a], &y = blocks_[b];
    if (x.bytes != y.bytes) return x.bytes > y.bytes;
    const int64_t longer = back_ ? y.first - x.first : x.last - y.last;
    return longer != 0 ? longer > 0 : a < b;
  }

  void keep() {
    std::vector<size_t> kept;
    for (size_t b : time_.open())
      if (time_.lives_on(b)) kept.push_back(b);
    std::stable_sort(kept.begin(), kept.end(),
                     [&](size_t a, size_t b) { return begin_of(a) < begin_of(b); });
    for (size_t b : kept) {
      take(b, base_);
      kept_.push_back({begin_of(b), layout_.end});
    }
  }
  // Returns the byte past all blocks that are needed again before this block ends.
  int64_t floor_of(size_t b) const {
    const auto later =
        std::upper_bound(kept_.begin(), kept_.end(), end_of(b),
                         [](size_t position, const Kept& kept) { return position < kept.from; });
    return later == kept_.begin() ? base_ : later[-1].end;
  }
  void take(size_t b, int64_t floor) {
    const int64_t bytes = align_up(blocks_[b].bytes);
    layout_.offsets[b] = free_.take(bytes, floor);
    layout_.end = std::max(layout_.end, layout_.offsets[b] + bytes);
    layout_.peak = std::max(layout_.peak, live_ += bytes);
  }
  void give(size_t b) {
    const int64_t bytes = align_up(blocks_[b].bytes);
    free_.give({layout_.offsets[b], layout_.offsets[b] + bytes});
    live_ -= bytes;
  }

  const std::vector<Block>& blocks_;
  const Time& time_;
  const bool back_;
  const int64_t most_;
  Lists begins_, ends_;
  const int64_t base_;
  int64_t live_;  // without what waits to be needed again
  Free free_;
  std::vector<Kept> kept_;  // ascending
  Layout layout_;
};

}  // namespace

int64_t align_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t place_blocks(std::vector<Block>& blocks, int64_t circle, int64_t most) {
  int64_t base = 0;
  for (const Block& block : blocks)
    if (block.offset >= 0) base = std::max(base, block.offset + align_up(block.bytes));
  const Time time(blocks, circle);
  Layout best = Pass(blocks, time, base, false, most).run();
  if (best.end > best.peak || best.end > most) {
    Layout other = Pass(blocks, time, base, true, std::min(best.end - 1, most)).run();
    if (other.end < best.end) best = std::move(other);
  }
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].offset < 0) blocks[i].offset = best.offsets[i];
  return best.end;
}

}  // namespace piper
