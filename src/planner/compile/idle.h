// What entries of a strategy that move messages cost. Private to the compile room.
#pragma once

#include "piper/frontend/import.h"
#include "piper/inspect/picture.h"
#include "piper/plan/bundle.h"
#include "piper/planner/directives.h"
#include "piper/planner/schedule.h"

namespace piper {

// Says by how much `prefetch` and `stream` make devices idle for longer than where each message is
// received just before its first reader: nothing where they do not. `set` is what became of the
// schedule. Leaves the Dag as it is.
void explain_idle(Dag& dag, const TaskLists& deps, const Schedule& schedule, const PlanSet& set,
                  const Strategy& strategy, Explanations& explain);

// Says by how much steps are longer than where messages between stages are received at another
// time, of messages that have streams of their own on devices that work by streams. A note for
// every run. Leaves the Dag as it is.
std::optional<Note> explain_receives(Dag& dag, const TaskLists& deps, const Schedule& schedule,
                                     const PlanSet& set, const Strategy& strategy,
                                     Explanations& explain);

// Returns the simulation of a step; none of plans of very many instructions.
std::optional<Picture> picture_of(const PlanSet& set);

// Returns what explain_idle says of prefetch, of streams that carry the collectives of both halves
// of overlapped pairs. `with` is the picture of the plans. A note for every run where they lose
// time.
std::optional<Note> explain_pairs(const PlanSet& set, const Picture& with, const Strategy& strategy,
                                  Explanations& explain);

// Writes how long a step is and how much of it devices are idle into the manifest's predictions:
// "idle", a share, and "step_flops".
void predict_time(const Picture& picture, PlanSet& set);

}  // namespace piper
