// Sets of ids, which have ids themselves: equal sets have equal ids. Private to the verify room.
#pragma once

#include <bit>
#include <unordered_map>
#include <vector>

#include "piper/base/base.h"

namespace piper {

// Sets are binary tries of shared nodes (Okasaki and Gill, Fast mergeable integer maps, 1998): what
// unions of n sets in a row take grows as n log n, where lists of their ids would grow as n².
class IdSets {
 public:
  static constexpr int32_t kEmpty = 0;

  // `value` is 0 or more.
  int32_t single(int32_t value) {
    if (static_cast<size_t>(value) >= singles_.size())
      singles_.resize(static_cast<size_t>(value) + 1, kEmpty);
    if (singles_[value] == kEmpty) singles_[value] = add({.least = value});
    return singles_[value];
  }
  int32_t unite(int32_t a, int32_t b) {
    if (a > b) std::swap(a, b);
    if (a == b || a == kEmpty) return b;
    const uint64_t key = key_of(a, b);
    if (const auto known = unions_.find(key); known != unions_.end()) return known->second;
    const int32_t both = merge(a, b);
    return unions_[key] = both;
  }
  bool contains(int32_t set, int32_t value) const {
    while (nodes_[set].bit != 0) set = child(set, value);
    return set != kEmpty && nodes_[set].least == value;
  }
  std::vector<int32_t> at(int32_t set) const {  // ascending
    std::vector<int32_t> values;
    list(set, values);
    return values;
  }

 private:
  // Holds a value, or two subtries: of the values without and with `bit`, alike in higher bits.
  struct Node {
    int32_t least = 0;
    uint32_t bit = 0;  // 0: a value
    int32_t without = kEmpty, with = kEmpty;
  };
  static uint64_t key_of(int32_t a, int32_t b) {
    return static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b);
  }
  int32_t child(int32_t set, int32_t value) const {
    const Node& node = nodes_[set];
    return static_cast<uint32_t>(value) & node.bit ? node.with : node.without;
  }
  int32_t add(const Node& node) {
    nodes_.push_back(node);
    return static_cast<int32_t>(nodes_.size() - 1);
  }
  int32_t branch(uint32_t bit, int32_t without, int32_t with) {
    int32_t& known = branches_[key_of(without, with)];
    if (known == kEmpty) known = add({nodes_[without].least, bit, without, with});
    return known;
  }
  int32_t merge(int32_t a, int32_t b) {
    if (nodes_[a].bit < nodes_[b].bit) std::swap(a, b);
    const Node outer = nodes_[a], inner = nodes_[b];
    const uint32_t apart = std::bit_floor(static_cast<uint32_t>(outer.least ^ inner.least));
    if (apart > outer.bit) {
      if (outer.least > inner.least) std::swap(a, b);
      return branch(apart, a, b);
    }
    if (outer.bit == inner.bit)
      return branch(outer.bit, unite(outer.without, inner.without), unite(outer.with, inner.with));
    return static_cast<uint32_t>(inner.least) & outer.bit
               ? branch(outer.bit, outer.without, unite(outer.with, b))
               : branch(outer.bit, unite(outer.without, b), outer.with);
  }
  void list(int32_t set, std::vector<int32_t>& values) const {
    if (set == kEmpty) return;
    if (nodes_[set].bit == 0) return values.push_back(nodes_[set].least);
    list(nodes_[set].without, values);
    list(nodes_[set].with, values);
  }

  std::vector<Node> nodes_{Node()};                 // by id of a set; the first is empty
  std::vector<int32_t> singles_;                    // by value
  std::unordered_map<uint64_t, int32_t> branches_;  // by subtries
  std::unordered_map<uint64_t, int32_t> unions_;    // by the two ids, the lesser first
};

}  // namespace piper
