// Sets of ids, which have ids themselves: equal sets have equal ids. Unions are computed once and
// then looked up. Private to the verify room.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include "piper/base/base.h"

namespace piper {

class IdSets {
 public:
  static constexpr int32_t kEmpty = 0;

  IdSets() : sets_{&ids_.emplace(std::vector<int32_t>(), kEmpty).first->first} {}
  int32_t single(int32_t value) {
    if (static_cast<size_t>(value) >= singles_.size())
      singles_.resize(static_cast<size_t>(value) + 1, -1);
    if (singles_[value] < 0) singles_[value] = id_of({value});
    return singles_[value];
  }
  int32_t unite(int32_t a, int32_t b) {
    if (a > b) std::swap(a, b);
    if (a == b || a == kEmpty) return b;
    const uint64_t key = static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b);
    if (const auto known = unions_.find(key); known != unions_.end()) return known->second;
    std::vector<int32_t> both;
    std::set_union(at(a).begin(), at(a).end(), at(b).begin(), at(b).end(),
                   std::back_inserter(both));
    return unions_[key] = id_of(std::move(both));
  }
  bool contains(int32_t set, int32_t value) const {
    return std::binary_search(sets_[set]->begin(), sets_[set]->end(), value);
  }
  const std::vector<int32_t>& at(int32_t set) const { return *sets_[set]; }  // ascending

 private:
  int32_t id_of(std::vector<int32_t> set) {
    const auto [known, is_new] =
        ids_.try_emplace(std::move(set), static_cast<int32_t>(sets_.size()));
    if (is_new) sets_.push_back(&known->first);
    return known->second;
  }

  std::map<std::vector<int32_t>, int32_t> ids_;
  std::vector<const std::vector<int32_t>*> sets_;  // by id
  std::vector<int32_t> singles_;                   // by value
  std::unordered_map<uint64_t, int32_t> unions_;   // by the two ids, the lesser first
};

}  // namespace piper
