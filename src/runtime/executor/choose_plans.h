// Which plans run, of those that a user names. Private to the executor room.
#pragma once

#include "piper/runtime/job.h"

namespace piper {

// Takes the plans that are for as many ranks as there are: a job that is started again on fewer
// hosts goes on with other plans. One process runs all ranks of the first ones where none are for
// one rank. Error (kUsage): none fit; those that are there are listed.
Status choose_plans(RunOptions& options, const std::optional<Launch>& launch);

}  // namespace piper
