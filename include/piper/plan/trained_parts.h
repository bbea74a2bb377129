// Parts of a tensor that are trained by themselves: each is a parameter of its own to programs,
// optimizers and proofs, and a block of one tensor to files.
//
// The first cut of such a part has axis -1. Then the part is block number `outer` of those of
// `block` elements of `dim`, on whatever ranks. Further cuts are of this block, and `init` names
// its own values.
#pragma once

#include "piper/plan/role.h"

namespace piper {

bool is_trained_part(const Tensor& tensor);
// Returns what begins the names of a part, of its aliases and of the optimizer's states of it:
// "part.3.".
std::string prefix_of_part(int64_t index);
// Returns a name without that prefix, where the tensor is such a part: the name in files.
std::string name_of_whole(const Tensor& tensor, const std::string& name);
// Returns the tensor as if the part were a whole tensor.
Tensor by_itself(Tensor tensor);

}  // namespace piper
