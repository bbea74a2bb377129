// Which documents share a sequence, where sources pack them. Private to the data room.
#pragma once

#include <vector>

#include "piper/base/base.h"

namespace piper {

// Describes a document or a part of one: `count` tokens from `start` on are ids, and those one
// further are labels.
struct PackedPart {
  int64_t start = 0;
  int32_t count = 0;
};

// Holds which segments each sequence of `length` has, in their order: 16 bytes for each.
class Packing {
 public:
  // Takes the documents of a list of tokens, each as first token and length. One that is longer
  // than a sequence is cut into parts of its length and a rest; of one token there is nothing to
  // predict, and it is left out. The longest part comes first and goes where least room is left
  // that suffices (best fit decreasing); of equal parts the earlier one, of
  // equal rooms the one that has been so for longest.
  static Packing pack(std::span<const std::pair<int64_t, int64_t>> documents, int64_t length);
  int64_t sequences() const { return static_cast<int64_t>(begin_.size()) - 1; }
  int64_t segments() const { return static_cast<int64_t>(segments_.size()); }
  int64_t left_out() const { return left_out_; }  // documents of one token
  int64_t filled() const { return filled_; }      // tokens of all sequences that are no padding
  std::span<const PackedPart> sequence(int64_t index) const {
    const size_t first = begin_[static_cast<size_t>(index)];
    return std::span(segments_).subspan(first, begin_[static_cast<size_t>(index) + 1] - first);
  }

 private:
  std::vector<PackedPart> segments_;
  std::vector<size_t> begin_{0};
  int64_t left_out_ = 0, filled_ = 0;
};

}  // namespace piper
