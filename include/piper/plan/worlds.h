// Plan sets for several numbers of ranks in one folder: a job that is started again with fewer
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

}  // namespace piper
