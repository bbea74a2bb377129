// Chooses which of its loops an op is cut by, over one mesh axis. The op works on the part that a
// loop gives it, or on the whole, or passes terms of a sum on. The choice sends the fewest bytes
// for operands and results, as far as is known where the op is met.
#pragma once

#include "axis_state.h"

namespace piper::axis {

// Describes what an op could do: how it wants its operands, and which layout its results have then.
struct Choice {
  std::optional<LoopCut> cut;
  std::vector<Layout> needs, makes;
  // Counts what goes against the strategy, which only a choice without others may do: a state that
  // it cuts is gathered, a product or update is cut by a state that it keeps whole, or the gradient
  // of a state that it cuts is made in terms.
  int against = 0;
  double bytes = 0;
  bool operator<(const Choice& other) const {
    return std::pair(against, bytes) < std::pair(other.against, other.bytes);
  }
};

// Returns the best choice for an op. Pure: the same state gives the same choice.
Choice choose(const State& state, const Node& node, const Loops& loops);

// Returns what the op does where the loop is cut; without one, it works on the whole.
Choice loop_choice(const State& state, const Node& node, const Loops& loops,
                   const std::optional<LoopCut>& cut);

// Returns whether the choice gathers what others work on parts of, though the op has steps that can
// as well.
bool gathers(const State& state, const Node& node, const Loops& loops, const Choice& choice);

// Returns whether an operand of the op is not whole, or its results are hinted at.
bool is_touched(const State& state, const Node& node);

// ---- Before an op is met (axis_hints.cc) --------------------------------------------------------

// Returns the layout of a tensor that the strategy cuts. Where it does not say, the parts of a dim
// that readers take apart are cut alike. Error: the dim does not divide.
Result<Layout> layout_of_seed(const State& state, const ShardSeed& seed);

// Returns the hints of a layout that a value needs in the end: it, and what it is made of element
// by element, where nothing is hinted at yet.
std::vector<std::pair<ValueId, Layout>> hints_from(const State& state, ValueId at,
                                                   const Layout& layout);

// Returns how a reader wants a sum or product that meets there what is cut already: a gradient
// beside the value that it is multiplied with. Up to three ops of one shape, as the addition of a
// bias, may be between.
std::optional<Layout> preferred_layout(const State& state, ValueId value);

// ---- Rows that an index sends (axis_rows.cc) ----------------------------------------------------

// Returns the index by which an op looks up rows, and how these are sent: where what is looked up
// is in blocks, as are the rows that it is looked up for.
std::optional<std::pair<ValueId, Route>> find_route(const State& state, const Node& node,
                                                    const Loops& loops);
// Looks up each row by itself, where its rank has what it is looked up for.
std::optional<Choice> routed_choice(const State& state, const Node& node, const Loops& loops);

}  // namespace piper::axis
