// The kinds of devices that plans are made for.
#pragma once

#include "piper/bundle.h"

namespace piper {

// Writes into each role what the target takes beside the arenas. Error (kUsage): no such target.
Status state_needs(std::vector<RoleProgram>& roles, std::string_view target);

}  // namespace piper
