// Start and end of a process, and files that change while it maps them.
#pragma once

#include "piper/base/base.h"

namespace piper {

// Prepares a program; called first in main. A refused allocation, a file that is cut while it is
// mapped and a file size limit then end the process with ExitCode::kStorage and a message, not with
// a signal; what is printed to a closed stdout does not get into a file that is opened later.
void prepare_process();
// Fails (kStorage) unless all that was printed to stdout has arrived.
Status flush_output();

// Fails (kStorage) if somebody has written to a mapped file since it was mapped, and names it: what
// was read before and after that does not belong together. Files that were replaced by others are
// unchanged.
Status check_mapped_files();

}  // namespace piper
