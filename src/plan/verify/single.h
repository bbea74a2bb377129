// Rule single: the plans compute what the plan for one device with the same microbatches computes.
// Private to the verify room.
#pragma once

#include "effects.h"

namespace piper {

// Holds the plan for one device, and the effects of its steps.
struct Single {
  Model model;
  Section section;
  Effects effects;
};

// Checks that states, constants, inputs, sums and reports are those of the plan for one device.
void check_names(const Model& model, const Single& single, Findings& findings);
// Checks that sums, states and reports become what they become there. If `single` is null, checks
// rule microbatch: every block of samples adds the same to each sum, whichever devices compute it
// and however they cut the work. Over the body, or all parts. `layouts`: null if no value is cut.
void check_effects(const Model& model, const Section& section, const Single* single,
                   const LayoutsFound* layouts, Findings& findings);

// Checks random numbers, of rules microbatch and single.
void check_draws(const Model& model, const Section& section, const Single* single,
                 Findings& findings);

}  // namespace piper
