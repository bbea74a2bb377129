// Who owns which bytes of an arena, in places that are numbered. Private to the verify room.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace piper {

// A set of numbers in [0, size): 64 to a word, and a bit for each word that is not empty above.
class NumberSet {
 public:
  explicit NumberSet(size_t size) {
    do levels_.emplace_back(size = (size + 63) / 64);
    while (size > 1);
  }
  void insert(size_t number) {
    for (auto& level : levels_) {
      level[number / 64] |= uint64_t{1} << number % 64;
      number /= 64;
    }
  }
  void erase(size_t number) {
    for (auto& level : levels_) {
      if ((level[number / 64] &= ~(uint64_t{1} << number % 64)) != 0) return;
      number /= 64;
    }
  }
  // The greatest that is not greater, or -1.
  int64_t last_until(size_t number) const {
    for (size_t l = 0; l < levels_.size(); ++l) {
      const uint64_t below = levels_[l][number / 64] & (~uint64_t{0} >> (63 - number % 64));
      if (below != 0) return descend(l, number / 64 * 64 + 63 - std::countl_zero(below));
      if (number < 64) return -1;
      number = number / 64 - 1;
    }
    return -1;
  }

 private:
  int64_t descend(size_t level, size_t number) const {
    while (level-- > 0) number = number * 64 + 63 - std::countl_zero(levels_[level][number]);
    return static_cast<int64_t>(number);
  }
  std::vector<std::vector<uint64_t>> levels_;
};

// Runs of places, each with its owner.
class Owners {
 public:
  explicit Owners(size_t places) : begins_(places), runs_(places) {}
  // Gives [begin, end) to `owner`. Returns those that it takes something from, in place order; good
  // until the next call.
  const std::vector<int32_t>& take(int32_t begin, int32_t end, int32_t owner) {
    taken_.clear();
    int64_t at = begins_.last_until(static_cast<size_t>(end) - 1);
    while (at >= 0 && runs_[at].end > begin) {
      const Run run = runs_[at];
      taken_.push_back(run.owner);
      if (run.end > end) put(end, run);
      if (at < begin) {
        runs_[at].end = begin;
        break;
      }
      begins_.erase(static_cast<size_t>(at));
      at = at == 0 ? -1 : begins_.last_until(static_cast<size_t>(at) - 1);
    }
    put(begin, {end, owner});
    std::reverse(taken_.begin(), taken_.end());
    return taken_;
  }

 private:
  struct Run {
    int32_t end = 0, owner = -1;
  };
  void put(int32_t begin, Run run) {
    begins_.insert(static_cast<size_t>(begin));
    runs_[begin] = run;
  }

  NumberSet begins_;
  std::vector<Run> runs_;  // by place where one begins
  std::vector<int32_t> taken_;
};

}  // namespace piper
