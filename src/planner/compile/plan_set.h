// Role programs of cells -> a plan set: which rank runs which, names, digests, predictions.
#pragma once

#include "piper/planner/compile.h"
#include "piper/planner/lower.h"

namespace piper {

PlanSet make_plan_set(const Dag& dag, Lowered lowered);
// Verifies the set, beside the plan for one device where there is one; findings become one error
// (kRefused). Streams that block each other are an error of the directive that posts receives late.
Status check_plans(const PlanSet& set, const PlanSet* single, const Strategy& strategy);
// Model and strategy names and digests for the manifests.
Status name_plan_sets(const CompileOptions& options, const Strategy& strategy, Compiled& compiled);
std::string print_schedule(const Dag& dag, const Schedule& schedule);

}  // namespace piper
