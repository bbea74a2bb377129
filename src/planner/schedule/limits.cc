// The limits of a policy and those that are tighter.
#include <algorithm>

#include "lines.h"

namespace piper {

TighterLimits::TighterLimits(const ListPolicy& policy, const Lines& lines, int64_t stride)
    : wide_(policy), stride_(stride), now_(policy) {
  std::vector<int64_t> forwards(lines.of_cell.size());
  for (const Line& line : lines.all) {
    if (line.pass != TaskPass::kF || line.slots == 0) continue;
    room_ = std::max(room_, line.room);
    need_ = std::max(need_, line.bytes);
    forwards[line.cell] += static_cast<int64_t>(line.end - line.first);
    for (size_t p = line.first; p < line.end; ++p)
      if (const int64_t held = lines.places[p].held; held > 0)
        chunk_ = chunk_ > 0 ? std::min(chunk_, held) : held;
  }
  bool is_limited = false;
  for (size_t cell = 0; cell < forwards.size(); ++cell)
    is_limited = is_limited || policy.in_flight[cell] < forwards[cell];
  by_chunks_ = is_limited || policy.memory <= 0;
  by_bytes_ = chunk_ > 0 && (policy.memory > 0 || !is_limited);
  if (policy.memory > 0 && by_bytes_) set_memory(policy.memory + 1, 1);
}

void TighterLimits::set_memory(int64_t below, int64_t stride) {
  int64_t step = (below - need_) * kSteps / chunk_;
  step -= step % stride;
  while (step >= 0 && level(step) >= below) step -= stride;
  if (step < 0)
    by_bytes_ = false;
  else
    now_.memory = level(step);
}

bool TighterLimits::exclude(const Used& used) const {
  return used.chunks > *std::max_element(now_.in_flight.begin(), now_.in_flight.end()) ||
         (now_.memory > 0 && used.bytes > now_.memory);
}

bool TighterLimits::tighten(const Used& used) {
  if (!of_wide_) of_wide_ = used;
  if (by_chunks_) {
    const int64_t most = *std::max_element(now_.in_flight.begin(), now_.in_flight.end());
    const int64_t below = std::min(most, used.chunks) - 1, next = below - below % stride_;
    by_chunks_ = next >= room_;
    for (size_t cell = 0; by_chunks_ && cell < now_.in_flight.size(); ++cell)
      now_.in_flight[cell] = std::min(wide_.in_flight[cell], next);
    if (by_chunks_) return true;
    now_.in_flight = wide_.in_flight;
    if (by_bytes_) set_memory(of_wide_->bytes, stride_);
  } else if (by_bytes_) {
    set_memory(std::min(now_.memory, used.bytes), stride_);
  }
  return by_bytes_;
}

}  // namespace piper
