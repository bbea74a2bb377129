#include "match.h"
#include "piper/patterns.h"

namespace piper {

Result<Recognised> recognise(Graph graph) {
  Recognised result;
  const auto count = [&](std::string op, int64_t found) {
    if (found > 0) result.counts.emplace_back(std::move(op), found);
  };
  count("Gelu", patterns::recognise_gelu(graph));
  count("MatMul", patterns::fold_transposes(graph));
  count("Concat", patterns::join_padded_parts(graph));
  PIPER_ASSIGN(graph, in_topological_order(std::move(graph)));
  result.graph = without_dead_nodes(std::move(graph), true);
  PIPER_TRY(check_graph(result.graph));
  return result;
}

}  // namespace piper
