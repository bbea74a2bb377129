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

// Cuts into regions by dynamic programming over (regions, cut point).
class Cuts {
 public:
  Cuts(const Loads& loads, const std::vector<size_t>& points, size_t regions)
      : loads_(loads), points_(points), regions_(regions) {}

  // Returns the first op of each region: with the smallest possible largest cost, of those with
  // the fewest bytes between regions, of those with the smaller costs before, of those the first.
  // A region that costs less than the largest would not end sooner, but send more. Nothing where
  // some region would have no work.
  std::vector<size_t> best() {
    const double largest = find(fair_cost(loads_, points_, regions_), false);
    if (largest == kNever) return {};
    find(largest, true);
    std::vector<size_t> cuts;
    for (size_t r = regions_, b = points_.size() - 1; r > 0; --r) {
      b = from_[r][b];
      cuts.push_back(points_[b]);
    }
    std::reverse(cuts.begin(), cuts.end());
    return cuts;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  using Value = std::pair<double, double>;  // bytes, where they count; the largest cost

  struct Range {
    size_t first = 0, last = 0;
  };
  // Returns where the first r regions may end, so that neither they nor those behind them need more
  // than `bound` each. For a bound near the best one these are few points.
  std::vector<Range> ends_within(double bound) const {
    const size_t end = points_.size() - 1;
    std::vector<Range> ends(regions_ + 1, {end, 0});
    ends[0].first = 0;
    for (size_t r = 1; r <= regions_; ++r) {
      size_t& last = ends[r].last = ends[r - 1].last;
      while (last < end && loads_.own(r - 1, points_[ends[r - 1].last], points_[last + 1]) <= bound)
        ++last;
    }
    for (size_t r = regions_; r-- > 1;) {
      size_t& first = ends[r].first = ends[r + 1].first;
      while (first > 0 && loads_.own(r, points_[first - 1], points_[ends[r + 1].first]) <= bound)
        --first;
    }
    return ends;
  }

  // Finds the best cuts whose regions cost no more than `bound` each. Returns the largest cost.
  double find(double bound, bool count_bytes) {
    const size_t n = points_.size();
    std::vector<std::vector<Value>> best(regions_ + 1, std::vector<Value>(n, {kNever, kNever}));
    from_.assign(regions_ + 1, std::vector<size_t>(n));
    best[0][0] = {0, 0};
    const std::vector<Range> ends = ends_within(bound);
    for (size_t r = 1; r <= regions_; ++r)
      for (size_t b = std::max(r, ends[r].first); b <= ends[r].last; ++b)
        for (size_t a = std::min(b, ends[r - 1].last + 1); a-- > ends[r - 1].first;) {
          // The last region only grows from here on.
          const double own = loads_.own(r - 1, points_[a], points_[b]);
          if (own > bound || (!count_bytes && own > best[r][b].second)) break;
          const double all = loads_.all(r - 1, points_[a], points_[b]);
          if (all > bound || best[r - 1][a].second == kNever) continue;
          const double bytes = count_bytes && a > 0 ? loads_.crossing(points_[a]) : 0;
          const Value value{best[r - 1][a].first + bytes, std::max(best[r - 1][a].second, all)};
          if (value > best[r][b]) continue;
          best[r][b] = value;
          from_[r][b] = a;
        }
    return best[regions_][n - 1].second;
  }

  const Loads& loads_;
  const std::vector<size_t>& points_;
  size_t regions_;
  std::vector<std::vector<size_t>> from_;  // by regions and cut point: where the last one begins
};

}  // namespace

Result<Graph> apply_balance(Graph graph, const BalanceRule& balance, const JobCosts& costs,
                            Explanations& out) {
  const auto regions = static_cast<size_t>(std::max<int64_t>(balance.into, 0));
  PIPER_ASSIGN(const Loads loads, Loads::make(graph, balance, costs));
  const size_t work = loads.work_between(0, graph.nodes.size());
  if (balance.into < 1 || regions > work)
    return fail(balance.at, "balance: cannot cut {} ops into {} regions", work, balance.into)
        .with_note(fmt::format("help: 'into' must be from 1 to {}", work));
  std::vector<size_t> cuts;
  for (const bool minima : {true, false}) {
    const std::vector<size_t> points = cut_points(loads.crossings(), minima);
    if (cuts.empty()) cuts = Cuts(loads, points, regions).best();
  }
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
