#include <algorithm>
#include <limits>

#include "piper/cost.h"
#include "piper/directives.h"
#include "piper/ops.h"

namespace piper {
namespace {

double node_flops(const Graph& graph, const Node& node) {
  const OpDef* def = find_op(node.op);
  if (!def || !def->cost) return 0;
  return def->cost(use_of(graph, node)).flops;
}

// Bytes of values made before position p and read at or after it; p = 0 … nodes. Inputs, state and
// constants are at hand everywhere.
std::vector<double> crossing_bytes(const Graph& graph) {
  std::vector<double> change(graph.nodes.size() + 2);
  const auto all_readers = readers(graph);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (!value.producer.valid() || all_readers[v].empty()) continue;
    change[value.producer.index() + 1] += static_cast<double>(value.type.bytes());
    change[all_readers[v].back().index() + 1] -= static_cast<double>(value.type.bytes());
  }
  for (size_t p = 1; p < change.size(); ++p) change[p] += change[p - 1];
  change.resize(graph.nodes.size() + 1);
  return change;
}

// Where a cut may fall: local minima of the bytes that cross, or everywhere if there are too few.
std::vector<size_t> cut_points(const std::vector<double>& crossing, size_t wanted) {
  std::vector<size_t> points;
  for (size_t p = 1; p + 1 < crossing.size(); ++p)
    if (crossing[p] <= crossing[p - 1] && crossing[p] <= crossing[p + 1]) points.push_back(p);
  if (points.size() < wanted) {
    points.clear();
    for (size_t p = 1; p + 1 < crossing.size(); ++p) points.push_back(p);
  }
  return points;
}

// The largest cost where regions end as soon as they have their share of the FLOPs; the best cuts
// are no worse. Where that does not cut as often as wanted: no bound.
template <class Cost>
double fair_cost(const std::vector<double>& flops_before, const std::vector<size_t>& points,
                 size_t regions, const Cost& cost) {
  const double never = std::numeric_limits<double>::infinity();
  double most = 0;
  size_t begin = 0;
  for (size_t r = 1; r <= regions; ++r) {
    const double share =
        flops_before.back() * static_cast<double>(r) / static_cast<double>(regions);
    size_t end = r == regions ? points.size() - 1 : begin + 1;
    while (end + 1 < points.size() && flops_before[points[end]] < share) ++end;
    if (end <= begin || end >= points.size()) return never;
    most = std::max(most, cost(begin, end));
    begin = end;
  }
  return begin + 1 == points.size() ? most : never;
}

// Dynamic programme over (regions, cut point): the smallest possible largest cost.
std::vector<size_t> best_cuts(const std::vector<double>& flops_before,
                              const std::vector<double>& crossing, std::vector<size_t> points,
                              size_t regions) {
  points.insert(points.begin(), 0);
  points.push_back(crossing.size() - 1);
  const size_t n = points.size();
  const auto cost = [&](size_t a, size_t b) {
    return flops_before[points[b]] - flops_before[points[a]] +
           kFlopsPerSentByte * (crossing[points[a]] + crossing[points[b]]);
  };
  const double never = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(regions + 1, std::vector<double>(n, never));
  std::vector<std::vector<size_t>> from(regions + 1, std::vector<size_t>(n));
  best[0][0] = 0;
  const double bound = fair_cost(flops_before, points, regions, cost);
  for (size_t r = 1; r <= regions; ++r)
    for (size_t b = r; b < n; ++b)
      for (size_t a = b; a-- > r - 1;) {
        // The FLOPs of the last region only grow from here on. Of equal cuts the first counts.
        if (flops_before[points[b]] - flops_before[points[a]] > std::min(best[r][b], bound)) break;
        if (best[r - 1][a] == never) continue;
        const double value = std::max(best[r - 1][a], cost(a, b));
        if (value <= best[r][b]) {
          best[r][b] = value;
          from[r][b] = a;
        }
      }
  std::vector<size_t> cuts;
  for (size_t r = regions, b = n - 1; r > 0; --r) {
    b = from[r][b];
    cuts.push_back(points[b]);
  }
  std::reverse(cuts.begin(), cuts.end());
  return cuts;  // first node of each region
}

}  // namespace

Result<Graph> apply_balance(Graph graph, const BalanceRule& balance, Explanations& out) {
  const auto regions = static_cast<size_t>(std::max<int64_t>(balance.into, 0));
  if (balance.into < 1 || regions > graph.nodes.size())
    return fail(balance.at, "balance: cannot cut {} ops into {} regions", graph.nodes.size(),
                balance.into);
  const std::vector<double> crossing = crossing_bytes(graph);
  std::vector<double> flops_before(graph.nodes.size() + 1);
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    flops_before[i + 1] = flops_before[i] + node_flops(graph, graph.nodes[i]);
  const auto cuts = best_cuts(flops_before, crossing, cut_points(crossing, regions - 1), regions);
  const int tag = graph.add_tag(balance.tag);
  const auto scope_of = [&](size_t node) {
    const std::string& scope = graph.nodes[node].scope;
    return scope.empty() ? std::string("(no module)") : scope;
  };
  Explanation report{balance.at, "balance", {}};
  for (size_t r = 0; r < regions; ++r) {
    const size_t end = r + 1 < regions ? cuts[r + 1] : graph.nodes.size();
    for (size_t i = cuts[r]; i < end; ++i)
      graph.set_tag(graph.nodes[i], tag, static_cast<int32_t>(r));
    const double share = flops_before.back() > 0
                             ? (flops_before[end] - flops_before[cuts[r]]) / flops_before.back()
                             : 0;
    report.lines.push_back(
        fmt::format("{}={}: {} ops, {:.1f} % of the forward FLOPs, from {} to {}, {} sent on",
                    balance.tag, r, end - cuts[r], 100 * share, scope_of(cuts[r]),
                    scope_of(end - 1), human_bytes(static_cast<int64_t>(crossing[end]))));
  }
  out.push_back(std::move(report));
  return graph;
}

}  // namespace piper
