// Evaluates a job's sets between two steps. Private to the executor room.
#pragma once

#include "rank_loop.h"

namespace piper {

// Opens the sets that the options name, for these plans. `keep` owns their data.
Status open_evaluation(RunOptions& options, const PlanSet& set,
                       std::vector<std::unique_ptr<BatchSource>>& keep);

// Returns whether the loss of a batch is a mean over labels that count, of which those that are
// ignored are none: then a set's last batch can be filled up.
bool counts_labels(const PlanSet& set);

// Returns a line for each set of which samples are left out, since they fill no batch.
std::string describe_evaluation(const JobOptions& job, const PlanSet& plans);

// Returns the sources of the first set: where nothing is trained, inputs are read from there.
std::vector<std::string> sources_of_first_set(const RunOptions& options, const PlanSet& set);

// Evaluates all sets after `done` steps. All ranks call it. `goes_on` is called between batches, by
// all ranks; where it says no, the set under way and those after it have no result. Rank 0 gets the
// first set's loss.
Status evaluate_sets(RankRun& run, int64_t done, const std::function<Result<bool>()>& goes_on,
                     std::optional<double>& loss);

}  // namespace piper
