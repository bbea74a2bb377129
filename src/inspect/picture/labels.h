// What texts, images and pages have in common. Private to the room.
#pragma once

#include "piper/inspect/picture.h"

namespace piper {

// Returns the width of the longest label of a forward or backward.
size_t label_width(const Picture& picture);
// Returns what a label of usual length stands for: a unit, or about a forward.
double usual_length(const Picture& picture);
// Returns the text as SVG and HTML hold it, control characters as \xNN.
std::string escape_markup(std::string_view text);
// "0,1" or "0,1,2+61".
std::string ranks_of(const PictureRow& row);
// "3 units" or "1.25 GFLOP".
std::string amount(const Picture& picture, double length);
// Returns what lengths mean and what is idle, in a few sentences.
std::string legend(const Picture& picture);

}  // namespace piper
