// The rule `balance` of annotate: regions of equal work, with small values between them.
#include <algorithm>
#include <limits>

#include "loads.h"
#include "match.h"

namespace piper {
namespace {

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

// The largest cost where regions end as soon as they have their share of the work; the best cuts
// are no worse. Where that does not cut as often as wanted: no bound.
double fair_cost(const Loads& loads, const std::vector<size_t>& points, size_t regions) {
  const double never = std::numeric_limits<double>::infinity();
  double most = 0;
  size_t begin = 0;
  for (size_t r = 1; r <= regions; ++r) {
    const double share =
        loads.share_before(points.back()) * static_cast<double>(r) / static_cast<double>(regions);
    size_t end = r == regions ? points.size() - 1 : begin + 1;
    while (end + 1 < points.size() && loads.share_before(points[end]) < share) ++end;
    if (end <= begin || end >= points.size()) return never;
    most = std::max(most, loads.all(r - 1, points[begin], points[end]));
    begin = end;
  }
  return begin + 1 == points.size() ? most : never;
}

// Finds the smallest possible largest cost by dynamic programming over (regions, cut point).
// Nothing where some region would have no work.
std::vector<size_t> best_cuts(const Loads& loads, const std::vector<size_t>& points,
                              size_t regions) {
  const size_t n = points.size();
  const double never = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(regions + 1, std::vector<double>(n, never));
  std::vector<std::vector<size_t>> from(regions + 1, std::vector<size_t>(n));
  best[0][0] = 0;
  const double bound = fair_cost(loads, points, regions);
  for (size_t r = 1; r <= regions; ++r)
    for (size_t b = r; b < n; ++b)
      for (size_t a = b; a-- > r - 1;) {
        // The last region only grows from here on. Of equal cuts the first counts.
        if (loads.own(r - 1, points[a], points[b]) > std::min(best[r][b], bound)) break;
        const double value = std::max(best[r - 1][a], loads.all(r - 1, points[a], points[b]));
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

Result<Graph> apply_balance(Graph graph, const BalanceRule& balance, const JobCosts& costs,
                            Explanations& out) {
  const auto regions = static_cast<size_t>(std::max<int64_t>(balance.into, 0));
  PIPER_ASSIGN(const Loads loads, Loads::make(graph, balance, costs));
  const size_t work = loads.work_between(0, graph.nodes.size());
  if (balance.into < 1 || regions > work)
    return fail(balance.at, "balance: cannot cut {} ops into {} regions", work, balance.into)
        .with_note(fmt::format("help: 'into' must be from 1 to {}", work));
  std::vector<size_t> cuts = best_cuts(loads, cut_points(loads.crossings(), true), regions);
  if (cuts.empty()) cuts = best_cuts(loads, cut_points(loads.crossings(), false), regions);
  const int tag = graph.add_tag(balance.tag);
  const auto scope_of = [&](size_t node) {
    const std::string& scope = graph.nodes[node].scope;
    return scope.empty() ? std::string("(no module)") : scope;
  };
  Explanation report{balance.at, "balance", {}};
  for (size_t r = 0; r < regions; ++r) {
    const size_t end = r + 1 < regions ? cuts[r + 1] : graph.nodes.size();
    for (size_t i = cuts[r]; i < end; ++i) {
      const int32_t made_in =
          loads.is_work(i) ? kNoTag : latest_producer(graph, graph.nodes[i], tag);
      graph.set_tag(graph.nodes[i], tag, made_in == kNoTag ? static_cast<int32_t>(r) : made_in);
    }
    report.lines.push_back(fmt::format(
        "{}={}: {} ops, {}, from {} to {}, {} sent on", balance.tag, r,
        loads.work_between(cuts[r], end), loads.describe(r, cuts[r], end), scope_of(cuts[r]),
        scope_of(end - 1), human_bytes(static_cast<int64_t>(loads.crossing(end)))));
  }
  out.push_back(std::move(report));
  return graph;
}

}  // namespace piper
