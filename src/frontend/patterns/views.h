// What reshapes, transpositions and expansions make of a value: which of its elements each dim of
// the result runs over, whatever ops an exporter wrote it with.
#pragma once

#include "match.h"
#include "piper/ir/ops.h"

namespace piper::patterns {

// A Mode is a run over elements of a value: `extent` of them, `stride` elements apart; 0: one that
// is repeated.
struct Mode {
  int64_t extent = 1, stride = 0;
  bool operator==(const Mode&) const = default;
};
// A dim, the outer modes first; none for a dim of one element.
using Modes = std::vector<Mode>;
using ViewDims = std::vector<Modes>;

Modes joined(const Modes& modes);  // neighbours that make one run are one mode
Modes joined(const ViewDims& dims);
int64_t extent_of(const Modes& modes);
Shape shape_of(const ViewDims& dims);
bool is_repeated(const Modes& modes);  // no mode has a stride
bool has_repeats(const Modes& modes);  // some mode has none
// Returns the dims of a value as it is.
ViewDims dims_of(const Shape& shape);
// A run cut into dims of these extents; none where they do not divide it so.
std::optional<ViewDims> cut(const Modes& run, const Shape& into);
// The dims of `dims` broadcast to a shape, from its end.
ViewDims broadcast_to(ViewDims dims, const Shape& shape);

// Returns whether a node shows its first operand's elements, each at least once, and changes none.
bool is_view(const Graph& graph, const Node& node);
// Returns the dims of what it makes, given those of its operand; none where a dim cannot be told.
std::optional<ViewDims> seen_through(const Graph& graph, const Node& node, const ViewDims& dims);

// Says what ops are needed to write a view out.
struct ViewOps {
  bool expands = false, transposes = false, reshapes = false;
};
ViewOps ops_of(const Shape& base, const ViewDims& dims);
// Returns the value with these dims. Requires that they run over all elements of `base`.
ValueId write_view(Builder& build, ValueId base, const ViewDims& dims);

}  // namespace piper::patterns
