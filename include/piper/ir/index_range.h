// What values integers can have, by what they are made of.
#pragma once

#include <map>

#include "piper/ir/graph.h"

namespace piper {

class IndexRange {
 public:
  explicit IndexRange(const Graph& graph);
  // Returns whether all elements are shown to be in [0, extent) or to be `ignored`. An input is,
  // where an op reads moved elements of it as indices of no more than that: a run checks these. So
  // does `at_once`: an op of that kind is about to read the value.
  bool is_within(ValueId id, int64_t extent, std::optional<int64_t> ignored, bool at_once) const;

 private:
  struct Span {
    int64_t low = INT64_MIN, high = INT64_MAX;
  };
  using Known = std::map<ValueId, Span>;
  Span span_of(ValueId id, std::optional<int64_t> ignored, int depth, Known& known) const;
  Span made_by(const Node& node, ValueId id, std::optional<int64_t> ignored, int depth,
               Known& known) const;
  Span of_constant(const Value& value, std::optional<int64_t> ignored) const;
  ValueId moved_from(ValueId id) const;

  const Graph& graph_;
  std::map<ValueId, int64_t> checked_;  // by input, one more than what a run lets it be
};

}  // namespace piper
