// Which settings each parameter is trained with.
#pragma once

#include "piper/frontend/autodiff.h"

namespace piper {

// Returns by parameter the first group that matches it. Errors: a group that no parameter is left
// for, a trained parameter without a group.
Result<std::vector<const ParamGroup*>> groups_of(const std::vector<Param>& params,
                                                 const std::vector<ParamGroup>& groups);

}  // namespace piper
