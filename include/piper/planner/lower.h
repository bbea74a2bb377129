// Schedule -> plans: instructions, chunk programs shared by content, buffers with offsets, one role
// program per cell.
#pragma once

#include "piper/plan/bundle.h"
#include "piper/planner/schedule.h"

namespace piper {

// Counts what an Offload did, over all cells.
struct OffloadCount {
  int64_t values = 0, bytes = 0;  // that leave
  int64_t stay = 0;               // that are needed again too soon
};

// Counts what has two buffers where steps overlap, over all cells: values that the next step begins
// before the one under way is done with them. When the turn of their step comes they are copied.
struct TwiceCount {
  int64_t values = 0, bytes = 0;
};

// Counts the sums of gradients on a stream with a credit, over all cells, and those of them that
// come before some whose terms were there earlier.
struct CreditCount {
  std::string stream;
  int64_t messages = 0, early = 0;
};

struct Lowered {
  std::vector<RoleProgram> roles;                                // by cell
  std::vector<std::pair<std::string, TensorType>> tensor_types;  // initial values by name
  std::vector<std::pair<std::string, Bytes>> tensors;
  std::vector<OffloadCount> offloads;  // by Dag::offloads
  TwiceCount twice;
  std::vector<CreditCount> credits;
};

// Each task's nodes are cut into segments by layer (the path up to the first number in the scope),
// and every segment is a program: equal layers, whatever their parameters, share one. What
// the target takes beside the arenas is not stated yet.
Result<Lowered> lower(const Dag& dag, const Schedule& schedule);

// By input: DataInput::ranges, of inputs whose elements index tables of different sizes, as one
// with a column for each of several embeddings. Requires the graph of a step before it is cut, so
// that all plans of a model have the same.
using InputRanges = std::map<std::string, std::vector<int64_t>>;
InputRanges find_ranges(const Graph& graph);

// Adds to the roles of a step those of its forward pass alone (forward_only), which were lowered by
// themselves: RoleProgram::evaluation. They share what is kept, and the arena. Error (kRefused): a
// state that both have, and in different forms.
Status add_evaluation(Lowered& step, Lowered evaluation);
// Likewise adds an outer update to RoleProgram::outer_updates. States that no step reads are its
// own.
Status add_outer(Lowered& step, Lowered outer, int64_t every, int64_t offset);

}  // namespace piper
