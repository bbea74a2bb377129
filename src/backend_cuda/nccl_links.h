// Links of ranks that are processes with a device each.
#pragma once

#include "device.h"
#include "piper/device_fabric.h"

namespace piper::cuda {

// Communicators are opened through `control`. Error: there is no NCCL, or one that is too old.
Result<std::unique_ptr<Links>> make_nccl_links(Device& device, Control& control);

}  // namespace piper::cuda
