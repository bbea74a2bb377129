// Messages of one sender, receiver and channel arrive in the order in which they are sent. Private
// to the lower room.
#pragma once

#include "send_lifetimes.h"

namespace piper {

// Where a receiver takes the messages of a channel in another order, each gets a channel of its
// own, from `free` on, which nobody uses.
void separate_channels(std::vector<RoleProgram>& roles, const std::vector<Transfer>& transfers,
                       int32_t free);

}  // namespace piper
