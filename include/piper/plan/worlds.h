// Several plan sets in one folder: for several numbers of ranks, or for the stages of a job whose
// batch grows. formats/plan.md has the files.
//
//   DIR/worlds.json      written last: which sets there are, and which could not be made
//   DIR/world-8/, …      a plan set each
//
//   DIR/stages.json      written last
//   DIR/stage-0/, …      a plan set each
#pragma once

#include "piper/plan/bundle.h"

namespace piper {

struct PlanFolder {
  enum class Kind {
    kOne,     // a plan set
    kWorlds,  // most ranks first: a job that is started again with fewer ranks takes theirs
    kStages,  // in the order of steps: a job goes from one to the next
  };
  struct Set {
    std::string directory;
    int64_t ranks = 0;       // of kWorlds
    int64_t first_step = 0;  // of kStages: it begins after so many steps; the first one after 0
    std::string manifest;    // digest of its manifest.json, except of kOne
  };
  struct Missing {
    int64_t ranks = 0;
    std::string why;
  };
  Kind kind = Kind::kOne;
  std::vector<Set> sets;         // one at least; of kOne the directory itself
  std::vector<Missing> missing;  // of kWorlds
};
// Returns what the indices of the folder say, of which nothing is believed. What has none is kOne,
// whatever else it is. Error (kPlan): an index was changed, or another set is where one was
// written.
Result<PlanFolder> read_plan_folder(const std::string& directory);
// Returns the files of the plan sets in a folder, and of their oracles.
std::vector<std::string> files_of_plans(const std::string& directory);
// Returns the last part of a set's directory: "world-8", "stage-0".
std::string name_in_folder(const PlanFolder::Set& set);

// Views a plan set and the oracles for one device that it is compared with, which may be null.
struct SetWithOracles {
  const PlanSet* set = nullptr;
  const PlanSet* single = nullptr;
  const PlanSet* uncut = nullptr;
};
// Checks that plans can be written to `directory`: it is new, or holds what may be replaced, and
// one can write beside it. Writing checks it again.
Status check_plan_folder(const std::string& directory, const WriteOptions& options);
// These write all sets and the index, all or nothing as write_plan_set does.
Status write_worlds(std::span<const SetWithOracles> sets,
                    std::span<const PlanFolder::Missing> missing, const std::string& directory,
                    const WriteOptions& options);
Status write_stages(std::span<const SetWithOracles> sets, std::span<const int64_t> first_steps,
                    const std::string& directory, const WriteOptions& options);

}  // namespace piper
