// What entries of a strategy that move messages cost. Private to the compile room.
#pragma once

#include "piper/directives.h"
#include "piper/schedule.h"

namespace piper {

// Says by how much `prefetch` and `stream` make the order idle for longer, on devices that wait for
// each message in its place: nothing where they do not. Leaves the Dag as it is.
void explain_idle(Dag& dag, const TaskLists& deps, const Schedule& schedule,
                  const Strategy& strategy, Explanations& explain);

}  // namespace piper
