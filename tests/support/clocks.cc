#include "clocks.h"

#include <algorithm>

namespace piper::sim {

void Shadow::add(const std::byte* block, int64_t bytes) {
  const auto grains = static_cast<size_t>((bytes + kGrain - 1) / kGrain);
  blocks_[block] = {bytes, std::vector<Cell>(grains)};
}

std::optional<Use> Shadow::use(const Range& range, const Use& by, const Clock& clock) {
  auto next = blocks_.upper_bound(range.at);
  if (next == blocks_.begin() || range.bytes <= 0) return std::nullopt;
  auto& [start, block] = *std::prev(next);
  const int64_t first = range.at - start;
  if (first >= block.bytes) return std::nullopt;
  const int64_t last = std::min(first + range.bytes, block.bytes) - 1;
  for (int64_t g = first / kGrain; g <= last / kGrain; ++g)
    if (auto other = use(block.cells[static_cast<size_t>(g)], range.writes, by, clock))
      return other;
  return std::nullopt;
}

std::optional<Use> Shadow::use(Cell& cell, bool writes, const Use& by, const Clock& clock) {
  if (!cell.written.is_before(clock)) return cell.written;
  if (writes) {
    for (const Use& read : cell.read)
      if (!read.is_before(clock)) return read;
    cell.read.clear();
    cell.written = by;
    return std::nullopt;
  }
  auto same = std::find_if(cell.read.begin(), cell.read.end(),
                           [&](const Use& one) { return one.line == by.line; });
  if (same == cell.read.end())
    cell.read.push_back(by);
  else
    *same = by;
  return std::nullopt;
}

}  // namespace piper::sim
