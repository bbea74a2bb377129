// An optimizer as strategies write it, of all parameters or of a group.
#pragma once

#include "fields.h"

namespace piper::fields {

inline constexpr Form kAtLeast0 = real(kNotNegative), kAbove0 = real(kPositive);

// Holds an optimizer, and what groups inherit.
struct Chosen {
  OptimizerSpec spec;
  ParamGroup group;
};

Result<Chosen> read_chosen(const yaml::Entry& entry, const Reading& reading);
std::string print_chosen(const Chosen& chosen);
std::span<const Object> optimizer_objects();

}  // namespace piper::fields
