// The parts of the page that do not depend on what it shows. Private to the room.
#pragma once

#include <string_view>

namespace piper {

// Returns the text of a file of page/, by its name.
std::string_view page_text(std::string_view name);

}  // namespace piper
