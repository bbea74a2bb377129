// The writers of this room write files in parts.
#pragma once

#include "piper/base/base.h"

namespace piper {

// Does what write_file does, with the parts one after the other. Deferred ones are made one at a
// time.
Status write_parts(const std::string& path, std::span<const Bytes> parts);

}  // namespace piper
