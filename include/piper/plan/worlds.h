// Several plan sets in one folder: for several numbers of ranks, or for the stages of a job whose
// batch grows.
//
// For several numbers of ranks: a job that is started again with fewer
// ranks takes the set that is for them. formats/plan.md has the files.
//
//   DIR/worlds.json      written last: which sets there are, and which could not be made
//   DIR/world-8/, …      a plan set each
#pragma once

#include <optional>

#include "piper/base/base.h"

namespace piper {

struct Worlds {
  struct Set {
    int64_t ranks = 0;
    std::string folder;  // in DIR
  };
  struct Missing {
    int64_t ranks = 0;
    std::string why;
  };
  std::vector<Set> sets;  // most ranks first
  std::vector<Missing> missing;
};

// Returns what the folder's worlds.json says; nothing if there is none. Nothing of it is believed.
Result<std::optional<Worlds>> read_worlds(const std::string& directory);
Status write_worlds(const Worlds& worlds, const std::string& directory);
std::string world_folder(int64_t ranks);  // "world-8"
// Checks that plan sets may be written into the folder: it is new or empty, or with `force` holds
// nothing but such sets. It has no index from here on until write_worlds.
Status make_room_for_worlds(const std::string& directory, bool force);

// Describes a stage of a job whose batch grows. A folder has them in their order:
//
//   DIR/stages.json        written last
//   DIR/stage-0/, …        a plan set each
struct PlanStage {
  int64_t first_step = 0;  // it begins after so many steps; the first one after 0
  std::string folder;      // in DIR
};
// Returns what the folder's stages.json says; empty if there is none. Nothing of it is believed.
Result<std::vector<PlanStage>> read_stages(const std::string& directory);
Status write_stages(const std::vector<PlanStage>& stages, const std::string& directory);
std::string stage_folder(size_t stage);  // "stage-0"
Status make_room_for_stages(const std::string& directory, bool force);

}  // namespace piper
