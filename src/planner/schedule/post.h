// Receives and inputs that are issued some compute tasks ahead of their use.
#pragma once

#include "piper/planner/schedule.h"

namespace piper {

// Moves them towards the front of their cell's order. `sent_at`, by receive: how many tasks of its
// own cell had been issued when its send was; it moves no further, so that one order over all cells
// still holds both. `orders` and `overlaps` (positions in them): by cell. Returns how many of them
// `sent_at` holds back.
int64_t post_ahead(const Dag& dag, const std::vector<int32_t>& sent_at,
                   std::vector<std::vector<TaskId>>& orders,
                   std::vector<std::vector<Overlap>>& overlaps);

}  // namespace piper
