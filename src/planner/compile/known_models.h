// Models as compilations of one process have read them. Private to the compile room.
#pragma once

#include "piper/base/memo.h"
#include "piper/frontend/patterns.h"
#include "piper/planner/compile.h"

namespace piper {

struct KnownModels {
  Memo<Imported> imported;
  Memo<Recognised> recognised;  // with the loss
};

// Returns all that the model's graph depends on before `annotate` changes it.
std::string key_of_model(const Strategy& strategy, const CompileOptions& options);

}  // namespace piper
