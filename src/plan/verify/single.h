// Rule single: the plans do what the plan for one device with the same cut of the batch does.
// Private to the verify room.
#pragma once

#include "effects.h"

namespace piper {

// Holds the plan for one device, and what so many of its steps do.
struct Single {
  Model model;
  Section section;
  Effects effects;
};

// States, constants, inputs, sums and reports are those of the plan for one device.
void check_names(const Model& model, const Single& single, Findings& findings);
// Sums, states and reports become what they become there. Rule microbatch, without it: every block
// of samples adds the same to each sum, on whichever devices, from forward to backward. Blocks may
// cut their work differently, and keep their values elsewhere. Over the body, or all parts.
// `layouts`: how values are laid out, where some are cut.
void check_effects(const Model& model, const Section& section, const Single* single,
                   const LayoutsFound* layouts, Findings& findings);

// Checks random numbers, of rules microbatch and single.
void check_draws(const Model& model, const Section& section, const Single* single,
                 Findings& findings);

}  // namespace piper
