// The directives, each in a file of the folder keys/: the rows of its keys, and what rows do not
// say.
#pragma once

#include <algorithm>

#include "members.h"

namespace piper::fields {

#define PIPER_FAMILY(name) Directive name##_directive();
#include "families.inc"
#undef PIPER_FAMILY

// Returns all of them in the sequence of DirectiveLists, in which the schema and help list
// them. compile.cc says in which they are applied.
std::span<const Directive> directives();

}  // namespace piper::fields
