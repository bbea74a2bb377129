#include <algorithm>
#include <span>
#include <tuple>

#include "piper/memory.h"

namespace piper {
namespace {

// A range of bytes [begin, end).
struct Range {
  int64_t begin = 0, end = 0;
};

// Bytes that are taken: sorted ranges that do not touch each other. Blocks lie close together, so
// there are few, however many blocks there are.
struct Taken {
  std::vector<Range> ranges;

  void add(Range range) {
    const auto first = std::partition_point(
        ranges.begin(), ranges.end(), [&](const Range& other) { return other.end < range.begin; });
    auto last = first;
    for (; last != ranges.end() && last->begin <= range.end; ++last) {
      range.begin = std::min(range.begin, last->begin);
      range.end = std::max(range.end, last->end);
    }
    if (first == last) {
      ranges.insert(first, range);
    } else {
      *first = range;
      ranges.erase(first + 1, last);
    }
  }
};

// What is taken, from some byte on.
struct Rest {
  const Range *at, *end;
  int64_t head;  // where the next range begins

  explicit Rest(const std::vector<Range>& ranges)
      : at(ranges.data()), end(at + ranges.size()), head(at->begin) {}

  // The lowest begin, not below `begin`, of so many free bytes. Calls go upwards.
  int64_t skip(int64_t begin, int64_t bytes) {
    while (head < begin + bytes) {
      begin = std::max(begin, at->end);
      head = ++at == end ? INT64_MAX : at->begin;
    }
    return begin;
  }
};

// A binary tree over the times at which blocks begin. A block is kept at the O(log n) nodes whose
// times it fills, and all that a node's subtree holds is joined there too: whether bytes are free
// over an interval of times takes O(log n) looks.
class Timeline {
 public:
  explicit Timeline(const std::vector<Block>& blocks) {
    for (const Block& block : blocks) begins_.push_back(block.first);
    std::sort(begins_.begin(), begins_.end());
    begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());
    while (leaves_ < begins_.size()) leaves_ *= 2;
    all_of_.resize(2 * leaves_);
    some_of_.resize(2 * leaves_);
  }

  // `range` is taken while the block is alive.
  void add(const Block& block, Range range) {
    const auto [first, last] = times_of(block);
    if (range.begin < range.end && first < last) add(1, 0, leaves_, first, last, range);
  }
  // Finds places for blocks of one size and lifetime, each at the lowest offset that is free, and
  // takes them.
  void place(std::vector<Block>& blocks, std::span<const size_t> alike) {
    const Block& one = blocks[alike[0]];
    const auto [first, last] = times_of(one);
    rests_.clear();
    if (first < last) collect(1, 0, leaves_, first, last);
    const int64_t bytes = align_up(one.bytes);
    std::vector<Range> taken{{0, 0}};
    for (size_t i : alike) {
      const int64_t offset = blocks[i].offset = lowest(taken.back().end, bytes);
      if (offset == taken.back().end)
        taken.back().end += bytes;
      else
        taken.push_back({offset, offset + bytes});
    }
    for (const Range& range : taken) add(one, range);
  }

 private:
  // Positions in begins_, [first, last): blocks meet where one of them begins.
  std::pair<size_t, size_t> times_of(const Block& block) const {
    const auto first = std::lower_bound(begins_.begin(), begins_.end(), block.first);
    const auto last = std::upper_bound(first, begins_.end(), block.last);
    return {static_cast<size_t>(first - begins_.begin()),
            static_cast<size_t>(last - begins_.begin())};
  }
  // At `node`, which covers the times [begin, end).
  void add(size_t node, size_t begin, size_t end, size_t first, size_t last, Range range) {
    if (last <= begin || end <= first) return;
    some_of_[node].add(range);
    if (first <= begin && end <= last) return all_of_[node].add(range);
    const size_t middle = (begin + end) / 2;
    add(2 * node, begin, middle, first, last, range);
    add(2 * node + 1, middle, end, first, last, range);
  }
  void collect(size_t node, size_t begin, size_t end, size_t first, size_t last) {
    if (last <= begin || end <= first) return;
    const bool inside = first <= begin && end <= last;
    const std::vector<Range>& taken = (inside ? some_of_ : all_of_)[node].ranges;
    if (!taken.empty()) rests_.emplace_back(taken);
    if (inside) return;
    const size_t middle = (begin + end) / 2;
    collect(2 * node, begin, middle, first, last);
    collect(2 * node + 1, middle, end, first, last);
  }
  // Where all of rests_ agree.
  int64_t lowest(int64_t offset, int64_t bytes) {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rest& rest : rests_) {
        const int64_t found = rest.skip(offset, bytes);
        moved |= found != offset;
        offset = found;
      }
    }
    return offset;
  }

  std::vector<int64_t> begins_;
  size_t leaves_ = 1;
  std::vector<Taken> all_of_, some_of_;  // by node: taken all its time; at some of its times
  std::vector<Rest> rests_;
};

}  // namespace

int64_t align_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t place_blocks(std::vector<Block>& blocks) {
  Timeline timeline(blocks);
  std::vector<size_t> order;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    if (block.offset < 0)
      order.push_back(i);
    else
      timeline.add(block, {block.offset, block.offset + align_up(block.bytes)});
  }
  const auto rank = [&](size_t i) {
    return std::tuple(-blocks[i].bytes, blocks[i].first - blocks[i].last, i);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  for (size_t i = 0, next = 0; i < order.size(); i = next) {
    const auto is_like = [&](const Block& other) {
      const Block& one = blocks[order[i]];
      return one.bytes == other.bytes && one.first == other.first && one.last == other.last;
    };
    while (next < order.size() && is_like(blocks[order[next]])) ++next;
    timeline.place(blocks, std::span(order).subspan(i, next - i));
  }
  int64_t end = 0;
  for (const Block& block : blocks) end = std::max(end, block.offset + align_up(block.bytes));
  return end;
}

}  // namespace piper
