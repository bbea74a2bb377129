// Shows who waits for whom, for messages about stuck ranks.
#pragma once

#include <functional>
#include <vector>

#include "piper/devices/fabric.h"

namespace piper {

// Returns the ranks that `peer` waits for, one after the other, `peer` first: until one that waits
// for nobody, that has not looked around for `stale_s` – it cannot run – or of which nothing is
// known (null). A ring ends with the rank where it closes, which is there twice, or is `from`.
std::vector<int64_t> chain_of_waits(int64_t from, int64_t peer, double stale_s,
                                    const std::function<const Seat*(int64_t rank)>& seat);

// Returns those ranks that have not looked around for `stale_s`, without those of which nothing is
// known.
std::vector<int64_t> stuck_ranks(std::span<const int64_t> ranks, double stale_s,
                                 const std::function<const Seat*(int64_t rank)>& seat);

}  // namespace piper
