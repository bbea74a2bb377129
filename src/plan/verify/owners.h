// Which buffer owns which bytes of an arena. Private to the verify room.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace piper {

class Owners {
 public:
  // Gives [begin, end) to `owner`. Returns the owners that lose bytes, in the order of bytes; valid
  // until the next call.
  const std::vector<int32_t>& take(int64_t begin, int64_t end, int32_t owner) {
    taken_.clear();
    auto at = runs_.lower_bound(begin);
    if (at != runs_.end() && at->first == begin && at->second.end == end) {  // most are like that
      taken_.push_back(std::exchange(at->second.owner, owner));
      return taken_;
    }
    if (at != runs_.begin() && std::prev(at)->second.end > begin) --at;
    while (at != runs_.end() && at->first < end) {
      const auto [first, run] = *at;
      taken_.push_back(run.owner);
      at = runs_.erase(at);
      if (first < begin) runs_.emplace_hint(at, first, Run{begin, run.owner});
      if (run.end > end) at = runs_.emplace_hint(at, end, run);
    }
    runs_.emplace_hint(at, begin, Run{end, owner});
    return taken_;
  }

 private:
  struct Run {
    int64_t end = 0;
    int32_t owner = -1;
  };
  std::map<int64_t, Run> runs_;  // by the first byte
  std::vector<int32_t> taken_;
};

}  // namespace piper
