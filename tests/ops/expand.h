// Composites in primitive ops, which say what the composites mean.
#pragma once

#include <functional>

#include "piper/ir/ops.h"

namespace piper {

// Writes composites, backward ones too, in primitive ops where `wanted` says so. Values change by
// rounding only. Requires and ensures a graph that check_graph accepts.
Result<Graph> expand_composites(Graph graph,
                                const std::function<bool(std::string_view op)>& wanted);
// Returns the ops that can be written out, sorted.
std::vector<std::string_view> expandable_ops();

namespace patterns {

// Return the values that take the place of the node's outputs.
std::vector<ValueId> expand_attention(Builder& build, const Node& node);
std::vector<ValueId> expand_attention_grad(Builder& build, const Node& node);

}  // namespace patterns
}  // namespace piper
