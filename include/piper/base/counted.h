// Numbers of things in messages.
#pragma once

#include <string>
#include <string_view>

#include "piper/base/base.h"

namespace piper {

// "1 step", "2 steps"; "1 batch", "2 batches" with the ending "es".
std::string counted(int64_t count, std::string_view what, std::string_view ending = "s");

}  // namespace piper
