// Expansions that have a file of their own.
#pragma once

#include "piper/ir/ops.h"

namespace piper::patterns {

// Returns the values that take the place of the node's outputs.
std::vector<ValueId> expand_attention(Builder& build, const Node& node);
std::vector<ValueId> expand_attention_grad(Builder& build, const Node& node);

}  // namespace piper::patterns
