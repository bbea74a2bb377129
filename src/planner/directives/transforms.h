// The table of transforms: each file of the folder transforms/ has a row.
#pragma once

#include <variant>

#include "piper/planner/directives.h"

namespace piper {

struct Transform {
  TransformTime time;
  std::variant<Result<Graph> (*)(Graph, const TransformContext&),
               Result<Dag> (*)(Dag, const TransformContext&)>
      apply;
};

#define PIPER_FAMILY(name) Transform name##_transform();
#include "families.inc"
#undef PIPER_FAMILY

}  // namespace piper
