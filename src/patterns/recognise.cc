#include "match.h"
#include "piper/patterns.h"

namespace piper {
namespace {

struct Pattern {
  const char* op;
  patterns::Count (*recognise)(Graph& graph);
};
// In this order: what a composite has taken in is gone when the next one looks.
constexpr Pattern kPatterns[] = {
    {"Attention", patterns::recognise_attention},
    {"Gelu", patterns::recognise_gelu},
    {"MatMul", patterns::fold_transposes},
    {"Concat", patterns::join_padded_parts},
};

}  // namespace

Result<Recognised> recognise(Graph graph) {
  Recognised result;
  for (const Pattern& pattern : kPatterns) {
    const patterns::Count found = pattern.recognise(graph);
    if (found == 0) continue;
    result.counts.emplace_back(pattern.op, found);
    PIPER_ASSIGN(graph, in_topological_order(std::move(graph)));
    graph = without_dead_nodes(std::move(graph), true);
  }
  result.graph = std::move(graph);
  PIPER_TRY(check_graph(result.graph));
  return result;
}

}  // namespace piper
