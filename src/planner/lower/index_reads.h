// Finds the ops that read integers of an input as indices. Private to the lower room.
#pragma once

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "piper/ir/graph.h"
#include "piper/ir/ops.h"

namespace piper {

// Says which integers are legal where several ops read them as indices.
class Legal {
 public:
  // Adds an op that reads the integers plus `shift`. Below 0, indices may count from the end of
  // -1 - extent; of 0, where it is not known.
  void add(const OpDef::Indices& indices, int64_t shift = 0) {
    const bool from_end = indices.extent < 0;
    const int64_t extent = from_end ? -1 - indices.extent : indices.extent;
    if (from_end && extent == 0) return;
    is_known_ = true;
    low_ = std::max(low_, (from_end ? -extent : 0) - shift);
    high_ = std::min(high_, extent - 1 - shift);
    if (indices.ignored)
      ignored_.insert(*indices.ignored - shift);
    else
      is_ignored_ = false;
  }
  int64_t low() const { return is_known_ ? low_ : 0; }
  int64_t high() const { return is_known_ ? high_ : -1; }  // below low(): any are
  int64_t ignore() const {
    return is_ignored_ && ignored_.size() == 1 ? *ignored_.begin() : INT64_MIN;
  }
  bool operator==(const Legal& other) const {
    return low() == other.low() && high() == other.high() && ignore() == other.ignore();
  }

 private:
  bool is_known_ = false;
  int64_t low_ = INT64_MIN, high_ = INT64_MAX;
  std::set<int64_t>
      ignored_;  // by the ops that read it as indices, of which all may ignore a value
  bool is_ignored_ = true;
};

// Finds the ops that read elements of an input as indices, also where other ops move these before,
// or add constants to them, as to the columns of a table that several share.
class IndexReads {
 public:
  // Describes a value that has elements of the input.
  struct Moved {
    ValueId value;
    size_t of = 0;  // the value that it is made of
    NodeId by = {};
    bool is_shifted = false;  // constants were added
  };
  struct Read {
    size_t moved;
    OpDef::Indices indices;
  };

  IndexReads(const Graph& graph, const std::vector<std::vector<NodeId>>& readers, ValueId input);

  // Returns which integers are legal for all reads of what is not shifted.
  Legal legal() const;
  // Returns whether each read has the same legal integers.
  bool are_alike() const;

  std::vector<Moved> moved;  // the input first
  std::vector<Read> reads;

 private:
  void follow(const Graph& graph, size_t m, NodeId reader);

  std::set<ValueId> seen_;
};

// Returns, for each element of what a node makes of an operand that it moves, the number of that
// element in the operand; kNoSource for those of other operands. Nothing for an op that moves them
// in another way.
constexpr int64_t kNoSource = -1;
std::optional<std::vector<int64_t>> sources_of(const Graph& graph, const Node& node, ValueId moved);

// Returns what a node adds to each element of what it makes; empty for nothing. Nothing if these
// are not known.
std::optional<std::vector<int64_t>> shifts_of(const Graph& graph, const Node& node, ValueId moved);

}  // namespace piper
