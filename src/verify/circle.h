// The shortest circle of waits, which the rules on deadlocks print.
#pragma once

#include "model.h"

namespace piper {

// The instruction that is next where it stands, and one that it waits for.
struct Wait {
  Spot head, block;
};

// Among `nodes` places that issue instructions one by one: waits_of(node) lists what the next
// instruction of a node waits for, node_of(spot) says where an instruction stands. Searched by
// breadth; of several the one through the lowest node. Empty: nothing waits for itself.
template <class WaitsOf, class NodeOf>
std::vector<Wait> shortest_circle(size_t nodes, const WaitsOf& waits_of, const NodeOf& node_of) {
  std::vector<Wait> best;
  for (size_t start = 0; start < nodes; ++start) {
    std::vector<std::pair<size_t, Wait>> reached(nodes, {nodes, {}});
    std::vector<size_t> open{start};
    for (size_t i = 0; i < open.size() && reached[start].first == nodes; ++i)
      for (const Wait& wait : waits_of(open[i])) {
        const size_t to = node_of(wait.block);
        if (reached[to].first < nodes) continue;
        reached[to] = {open[i], wait};
        if (to == start) break;
        open.push_back(to);
      }
    if (reached[start].first == nodes) continue;
    std::vector<Wait> circle;
    for (size_t at = start; circle.empty() || at != start; at = reached[at].first)
      circle.insert(circle.begin(), reached[at].second);
    if (best.empty() || circle.size() < best.size()) best = std::move(circle);
  }
  return best;
}

}  // namespace piper
