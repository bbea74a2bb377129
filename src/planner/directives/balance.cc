// The rule `balance` of annotate: regions of equal work, with small values between them.
#include <algorithm>
#include <limits>

#include "match.h"
#include "piper/ir/ops.h"
#include "piper/planner/cost.h"

namespace piper {
namespace {

double node_flops(const Graph& graph, const Node& node) {
  const OpDef* def = find_op(node.op);
  if (!def || !def->cost) return 0;
  return def->cost(use_of(graph, node)).flops;
}

// Returns what regions share: ops that the loss comes from, or what else the model gives out. Those
// on data only go where they are read, and what only a buffer's next value comes from is no
// region's own.
std::vector<bool> find_work(const Graph& graph) {
  std::vector<bool> work = data_ops(graph), read(graph.values.size());
  work.flip();
  for (ValueId output : graph.outputs) read[output.index()] = true;
  if (graph.loss.valid()) read[graph.loss.index()] = true;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    const bool used = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
      return output.valid() && read[output.index()];
    });
    for (ValueId input : node.inputs)
      if (used && input.valid()) read[input.index()] = true;
    work[i] = work[i] && used;
  }
  return work;
}

// Returns bytes of values that work makes before position p and reads at or after it; p = 0 …
// nodes. Inputs, state and constants are at hand everywhere.
std::vector<double> crossing_bytes(const Graph& graph, const std::vector<bool>& work) {
  std::vector<double> change(graph.nodes.size() + 2);
  const auto all_readers = readers(graph);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    const auto last = std::find_if(all_readers[v].rbegin(), all_readers[v].rend(),
                                   [&](NodeId reader) { return work[reader.index()]; });
    if (!value.producer.valid() || !work[value.producer.index()] || last == all_readers[v].rend())
      continue;
    change[value.producer.index() + 1] += static_cast<double>(value.type.bytes());
    change[last->index() + 1] -= static_cast<double>(value.type.bytes());
  }
  for (size_t p = 1; p < change.size(); ++p) change[p] += change[p - 1];
  change.resize(graph.nodes.size() + 1);
  return change;
}

// Sums FLOPs of nodes up to each position, and the bytes that cross it.
struct Sums {
  std::vector<double> flops, crossing;
  std::vector<size_t> work;
};
Sums sums_of(const Graph& graph) {
  const std::vector<bool> work = find_work(graph);
  Sums sums{{0}, crossing_bytes(graph, work), {0}};
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    sums.flops.push_back(sums.flops[i] + (work[i] ? node_flops(graph, graph.nodes[i]) : 0));
    sums.work.push_back(sums.work[i] + work[i]);
  }
  return sums;
}

// Returns where cuts are allowed, with both ends: everywhere, or at local minima of the bytes that
// cross.
std::vector<size_t> cut_points(const std::vector<double>& crossing, bool minima) {
  std::vector<size_t> points{0};
  for (size_t p = 1; p + 1 < crossing.size(); ++p)
    if (!minima || (crossing[p] <= crossing[p - 1] && crossing[p] <= crossing[p + 1]))
      points.push_back(p);
  points.push_back(crossing.size() - 1);
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

// Finds the smallest possible largest cost by dynamic programming over (regions, cut point).
// Nothing where some region would have no work.
std::vector<size_t> best_cuts(const Sums& sums, const std::vector<size_t>& points, size_t regions) {
  const size_t n = points.size();
  const double never = std::numeric_limits<double>::infinity();
  const auto flops = [&](size_t a, size_t b) {
    return sums.flops[points[b]] - sums.flops[points[a]];
  };
  const auto cost = [&](size_t a, size_t b) {
    if (sums.work[points[a]] == sums.work[points[b]]) return never;
    return flops(a, b) + kFlopsPerSentByte * (sums.crossing[points[a]] + sums.crossing[points[b]]);
  };
  std::vector<std::vector<double>> best(regions + 1, std::vector<double>(n, never));
  std::vector<std::vector<size_t>> from(regions + 1, std::vector<size_t>(n));
  best[0][0] = 0;
  const double bound = fair_cost(sums.flops, points, regions, cost);
  for (size_t r = 1; r <= regions; ++r)
    for (size_t b = r; b < n; ++b)
      for (size_t a = b; a-- > r - 1;) {
        // The FLOPs of the last region only grow from here on. Of equal cuts the first counts.
        if (flops(a, b) > std::min(best[r][b], bound)) break;
        const double value = std::max(best[r - 1][a], cost(a, b));
        if (value != never && value <= best[r][b]) {
          best[r][b] = value;
          from[r][b] = a;
        }
      }
  std::vector<size_t> cuts;
  for (size_t r = regions, b = n - 1; r > 0 && best[regions][n - 1] != never; --r) {
    b = from[r][b];
    cuts.push_back(points[b]);
  }
  std::reverse(cuts.begin(), cuts.end());
  return cuts;  // first node of each region
}

}  // namespace

Result<Graph> apply_balance(Graph graph, const BalanceRule& balance, Explanations& out) {
  const auto regions = static_cast<size_t>(std::max<int64_t>(balance.into, 0));
  const Sums sums = sums_of(graph);
  if (balance.into < 1 || regions > sums.work.back())
    return fail(balance.at, "balance: cannot cut {} ops into {} regions", sums.work.back(),
                balance.into)
        .with_note(fmt::format("help: 'into' must be from 1 to {}", sums.work.back()));
  std::vector<size_t> cuts = best_cuts(sums, cut_points(sums.crossing, true), regions);
  if (cuts.empty()) cuts = best_cuts(sums, cut_points(sums.crossing, false), regions);
  const int tag = graph.add_tag(balance.tag);
  const auto scope_of = [&](size_t node) {
    const std::string& scope = graph.nodes[node].scope;
    return scope.empty() ? std::string("(no module)") : scope;
  };
  Explanation report{balance.at, "balance", {}};
  for (size_t r = 0; r < regions; ++r) {
    const size_t end = r + 1 < regions ? cuts[r + 1] : graph.nodes.size();
    for (size_t i = cuts[r]; i < end; ++i) {
      const bool work = sums.work[i + 1] > sums.work[i];
      const int32_t made_in = work ? kNoTag : latest_producer(graph, graph.nodes[i], tag);
      graph.set_tag(graph.nodes[i], tag, made_in == kNoTag ? static_cast<int32_t>(r) : made_in);
    }
    const double share =
        sums.flops.back() > 0 ? (sums.flops[end] - sums.flops[cuts[r]]) / sums.flops.back() : 0;
    report.lines.push_back(fmt::format(
        "{}={}: {} ops, {:.1f} % of the forward FLOPs, from {} to {}, {} sent on", balance.tag, r,
        sums.work[end] - sums.work[cuts[r]], 100 * share, scope_of(cuts[r]), scope_of(end - 1),
        human_bytes(static_cast<int64_t>(sums.crossing[end]))));
  }
  out.push_back(std::move(report));
  return graph;
}

}  // namespace piper
