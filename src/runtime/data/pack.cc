// Packs documents into sequences, once for all epochs: a function of their lengths alone.
#include "pack.h"

#include <algorithm>
#include <deque>
#include <set>

namespace piper {
namespace {

// Returns all parts of documents, the longest first.
std::vector<PackedPart> cut(std::span<const std::pair<int64_t, int64_t>> documents, int64_t length,
                            int64_t& left_out) {
  std::vector<PackedPart> parts;
  for (const auto& [first, tokens] : documents) {
    if (tokens < 2) ++left_out;
    for (int64_t at = 0; at + 1 < tokens; at += length)
      parts.push_back({first + at, static_cast<int32_t>(std::min(length, tokens - 1 - at))});
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const PackedPart& a, const PackedPart& b) { return a.count > b.count; });
  return parts;
}

// Chooses the sequence of each part: those with room, by room, the oldest first.
class Rooms {
 public:
  explicit Rooms(int64_t length) : length_(length), by_room_(static_cast<size_t>(length) + 1) {}

  int64_t choose(int32_t count) {
    const auto least = rooms_.lower_bound(count);
    int64_t room = length_, sequence = sequences_;
    if (least == rooms_.end()) {
      ++sequences_;
    } else {
      room = *least;
      std::deque<int64_t>& with = by_room_[static_cast<size_t>(room)];
      sequence = with.front();
      with.pop_front();
      if (with.empty()) rooms_.erase(least);
    }
    room -= count;
    if (room > 0) {
      by_room_[static_cast<size_t>(room)].push_back(sequence);
      rooms_.insert(room);
    }
    return sequence;
  }
  int64_t sequences() const { return sequences_; }

 private:
  int64_t length_, sequences_ = 0;
  std::vector<std::deque<int64_t>> by_room_;
  std::set<int64_t> rooms_;  // that some sequence has
};

}  // namespace

Packing Packing::pack(std::span<const std::pair<int64_t, int64_t>> documents, int64_t length) {
  Packing packing;
  const std::vector<PackedPart> parts = cut(documents, length, packing.left_out_);
  Rooms rooms(length);
  std::vector<int64_t> sequence_of;
  sequence_of.reserve(parts.size());
  for (const PackedPart& part : parts) {
    sequence_of.push_back(rooms.choose(part.count));
    packing.filled_ += part.count;
  }
  packing.begin_.assign(static_cast<size_t>(rooms.sequences()) + 1, 0);
  for (const int64_t sequence : sequence_of) ++packing.begin_[static_cast<size_t>(sequence) + 1];
  for (size_t s = 1; s < packing.begin_.size(); ++s) packing.begin_[s] += packing.begin_[s - 1];
  std::vector<size_t> next(packing.begin_.begin(), packing.begin_.end() - 1);
  packing.segments_.resize(parts.size());
  for (size_t p = 0; p < parts.size(); ++p)
    packing.segments_[next[static_cast<size_t>(sequence_of[p])]++] = parts[p];
  return packing;
}

}  // namespace piper
