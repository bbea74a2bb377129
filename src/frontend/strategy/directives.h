// The directives, each in a file of its own: the rows of its keys, and what rows do not say.
#pragma once

#include <algorithm>

#include "members.h"

namespace piper::fields {

extern const Directive kPrecision, kSplit, kRecompute, kPlace, kReplicate, kLocalSteps, kShard,
    kOffload, kStream, kPrefetch, kFuse, kOrder;
// The schema and help list them in this sequence; compile.cc says in which they are applied.
inline constexpr const Directive* kDirectives[] = {
    &kPrecision, &kSplit,   &kRecompute, &kPlace,    &kReplicate, &kLocalSteps,
    &kShard,     &kOffload, &kStream,    &kPrefetch, &kFuse,      &kOrder};

}  // namespace piper::fields
