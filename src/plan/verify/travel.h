// How the terms of sums are rounded before they are added up. Private to the verify room.
#pragma once

#include "single.h"

namespace piper {

// Checks that ranks round what they add to a sum where one device does: to the same types, as
// often, and when it holds the same samples. If that plays the first of several replicas only, then
// how each term is rounded first.
void check_travel(const Model& model, const Section& section, const Single& single,
                  Findings& findings);

}  // namespace piper
