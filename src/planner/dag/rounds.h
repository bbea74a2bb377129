// The rounds that sums share.
#pragma once

#include "piper/planner/make_dag.h"

namespace piper {

void add_axes(SumRound& round, const std::vector<int32_t>& axes);
// Returns the index in Dag::rounds, added if it is not there.
int32_t round_of(Dag& dag, SumRound round);
// Drops the places of a stage from the rounds of a sum.
void leave_twins(Dag& dag, Sum& sum);
// Adds the sums of the step to Dag::sums.
void add_sums(Dag& dag, const DagSpec& spec);

}  // namespace piper
