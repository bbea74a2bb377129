// Graphs and programs of plans hold uses of ops as the table of ops has them, with attributes that
// are known. Plans are checked when they are read, and kernels rely on it.
#pragma once

#include "piper/ir/ops.h"

namespace piper {

// Returns the use that a program with these values makes of one of its ops: operands by value, -1
// for an absent input.
OpTypes use_of(std::span<const TensorType> values, std::span<const int32_t> inputs,
               std::span<const int32_t> outputs, const Attrs& attrs);

// Error: what is wrong with a use: its op, the number and element types of its operands, its
// attributes and their ranges, and the types of its results. Of 16-bit floats each result is what
// the op makes in f32, rounded once. With `accumulate` a product is added to one more input, of the
// result's type.
Status check_use(std::string_view op, const OpTypes& use);

// Error: a node whose outputs have other types than its op makes of its inputs.
Status check_types(const Graph& graph);

}  // namespace piper
