// List scheduling: the orders that are tried of a pipeline, of which the best is taken.
#include <algorithm>
#include <optional>

#include "bound.h"
#include "lister.h"
#include "piper/base/parallel.h"

namespace piper {
namespace {

// Says how an order is made.
struct OrderRule {
  Follow follow = Follow::kNothing;
  const Pattern* pattern = nullptr;
  std::optional<Filling> filling;
  std::optional<VRules> v;
  std::optional<size_t> ahead;  // of an order in rounds
};
// Holds a simulation and its result.
struct Try {
  OrderRule rule;
  Result<std::vector<ComputeOrder>> order = std::vector<ComputeOrder>();
  int64_t length = kNever;
  Used used;
};

// Returns ways to fill the pipeline: as many forwards first as its trip takes, some more, or one
// for each cell that follows.
std::vector<Filling> find_fillings(const ListPolicy& policy, const Lines& lines,
                                   const Trips& trips) {
  const bool in_halves = std::any_of(lines.all.begin(), lines.all.end(),
                                     [](const Line& line) { return line.pass == TaskPass::kBW; });
  if (!in_halves || policy.limits_give_way) return {};
  // These waits gave the best order of some of 219 random pipelines; others never did.
  constexpr double kWaits[] = {0.05, 0.2, 0.6, 1};
  std::vector<Filling> fillings;
  for (const double wait : kWaits) fillings.push_back({wait, {}});
  if (!trips.are_straight()) return fillings;
  std::vector<double> forwards;  // by cell: that fit into its trip
  for (const CellTrips& cell : trips.cells) forwards.push_back(cell.regions[0].forwards());
  std::vector<size_t> by_trip(forwards.size());
  for (size_t cell = 0; cell < forwards.size(); ++cell) by_trip[cell] = cell;
  std::stable_sort(by_trip.begin(), by_trip.end(),
                   [&](size_t a, size_t b) { return forwards[a] < forwards[b]; });
  std::vector<int64_t> each(forwards.size());
  for (size_t i = 0; i < by_trip.size(); ++i) each[by_trip[i]] = static_cast<int64_t>(i) + 1;
  constexpr std::pair<double, int64_t> kAhead[] = {
      {0.9, 4}, {0.9, 1}, {1.035, 1}, {1.12, 1}, {1.0, 1}};
  // The last ones are tried first, and are best most often.
  for (const double wait : {0.05, 0.2}) fillings.push_back({wait, each});
  for (const double wait : {0.0, 0.6, 0.05})
    for (const auto& [factor, more] : kAhead) {
      Filling filling{wait, {}};
      for (const double fit : forwards)
        filling.ahead.push_back(static_cast<int64_t>(fit * factor) + more);
      fillings.push_back(std::move(filling));
    }
  for (const double wait : {0.6, 1.0}) fillings.push_back({wait, each});
  return fillings;
}

// Holds the orders that are tried of a pipeline.
class Trials {
 public:
  Trials(const Dag& dag, const ListPolicy& policy, const Lines& lines)
      : dag_(dag),
        policy_(policy),
        lines_(lines),
        v_(find_v(dag, lines)),
        rounds_(find_round_shape(dag, lines)),
        tries_(1) {
    if (!policy.limits_give_way) trips_ = find_trips(lines, policy);
    // No pattern was better than all fillings in pipelines whose cells have one region each.
    if (!policy.limits_give_way && !trips_.are_straight()) patterns_ = find_patterns(dag, lines);
    for (const size_t ahead : {1, 2})
      if (rounds_ && !policy.limits_give_way) tries_.emplace_back().rule.ahead = ahead;
    for (const Pattern& pattern : patterns_)
      for (const Follow follow : {Follow::kOrder, Follow::kLimits}) {
        tries_.emplace_back().rule.follow = follow;
        tries_.back().rule.pattern = &pattern;
      }
    for (Filling& filling : find_fillings(policy, lines, trips_))
      tries_.emplace_back().rule.filling = std::move(filling);
    for (const VRules& rules :
         {VRules{true, true}, {true, false}, {false, true}, {false, false}, {true, true, true}})
      if (v_ && !policy.limits_give_way) tries_.emplace_back().rule.v = rules;
  }

  Result<std::vector<ComputeOrder>> best() {
    if (policy_.limits_give_way) {
      run(tries_[0], policy_, Sample(lines_, micros()));
      return std::move(tries_[0].order);
    }
    const Sample sample(lines_, std::min(micros(), sample_size()));
    shortest_ = kNever;
    TighterLimits limits(policy_, lines_, stride(sample.micros));
    Try best;
    ListPolicy limits_of_best;
    for (bool first = true, more = true; more; first = false) {
      run_all(limits, sample, first, bound_within(limits.policy(), sample, trips_).length);
      if (first && !tries_[0].order) return std::move(tries_[0].order);
      Try& one = shortest_try(limits.policy());
      if (one.order && (first || one.length < best.length)) {
        best = std::move(one);
        one.rule = best.rule;
        limits_of_best = limits.policy();
      }
      // Tighter limits under which no order can be shorter are not tried.
      do more = limits.tighten(used(limits.policy()));
      while (more && bound_within(limits.policy(), sample, trips_).length >= best.length);
    }
    if (sample.micros < micros()) run(best, limits_of_best, Sample(lines_, micros()));
    return std::move(best.order);
  }

 private:
  size_t micros() const { return static_cast<size_t>(dag_.micros()); }
  // Of large pipelines, a few microbatches more than are in flight show how an order starts,
  // repeats and ends.
  size_t sample_size() const {
    constexpr size_t kLarge = 1 << 17;  // tasks that are simulated
    if (tries_.size() == 1 || lines_.places.size() * tries_.size() <= kLarge) return micros();
    size_t sample = 3 * dag_.cells.size();
    for (const Pattern& pattern : patterns_)
      for (const int64_t limit : pattern.limit)
        sample = std::max(sample, static_cast<size_t>(limit + limit / 2));
    return sample;
  }
  // Few of the tighter limits are tried where a pipeline is large.
  int64_t stride(size_t sample) const {
    constexpr size_t kMost = 1 << 22;  // tasks that are simulated, about
    const auto forwards = static_cast<size_t>(
        std::count_if(lines_.all.begin(), lines_.all.end(),
                      [](const Line& line) { return line.pass == TaskPass::kF; }));
    return static_cast<int64_t>(1 +
                                2 * forwards * sample * lines_.all.size() * tries_.size() / kMost);
  }
  // A pattern's own order may hold more than the limits: then no try that follows it counts.
  static bool counts(const Try& one, const ListPolicy& limits) {
    return !one.rule.pattern || one.rule.pattern->fits(limits);
  }
  Try& shortest_try(const ListPolicy& limits) {
    size_t first = 0;
    for (size_t t = 1; t < tries_.size(); ++t)
      if (tries_[t].order && counts(tries_[t], limits) && tries_[t].length < tries_[first].length)
        first = t;
    return tries_[first];
  }
  Used used(const ListPolicy& limits) const {
    Used all;
    for (const Try& one : tries_)
      if (counts(one, limits)) all.note(one.used.chunks, one.used.bytes);
    return all;
  }
  // Runs those whose orders change within these limits, some at a time: the last ones are best
  // where there are any, and others are given up sooner behind them. What a try has used when it is
  // given up decides which limits come next, so that must not depend on how fast threads are: all
  // that run at a time know the same shortest order. One that is as short as the bound ends it,
  // as the very first one often is, which runs alone.
  void run_all(const TighterLimits& limits, const Sample& sample, bool first, int64_t bound) {
    constexpr size_t kAtOnce = 4;
    size_t at_once = first ? 1 : tries_.size();
    std::vector<Try*> open;
    for (size_t t = tries_.size(); t-- > 0 && shortest_ > bound;) {
      Try& next = tries_[t];
      if ((first || limits.exclude(next.used)) && counts(next, limits.policy()))
        open.push_back(&next);
      if (open.size() < at_once && t > 0) continue;
      if (first) at_once = kAtOnce;
      in_parallel(open.size(),
                  [&](size_t i) { run(*open[i], limits.policy(), sample, shortest_); });
      for (const Try* one : open)
        if (one->order) shortest_ = std::min(shortest_, one->length);
      open.clear();
    }
  }
  // Gives up what does not become shorter than another.
  void run(Try& one, const ListPolicy& limits, const Sample& sample,
           int64_t longest = kNever) const {
    const OrderRule& rule = one.rule;
    if (rule.v) {
      std::optional<TimedOrder> made = order_v(limits, lines_, *v_, sample, *rule.v, one.used);
      one.length = made ? made->length : kNever;
      one.order = made ? Result(std::move(made->order)) : fail("the limits do not let it");
      return;
    }
    if (rule.ahead) {
      auto made = order_in_rounds(limits, lines_, *rounds_, sample, *rule.ahead, one.used);
      one.length = kNever;
      if (!made.empty())
        one.length = time_of_orders(dag_, lines_, limits.span, made).value_or(kNever);
      one.order = std::move(made);
      return;
    }
    Lister lister(dag_, limits, lines_, sample, rule.follow, rule.pattern,
                  rule.filling ? &*rule.filling : nullptr, longest);
    one.order = lister.run();
    one.length = lister.length();
    one.used = lister.used();
  }

  const Dag& dag_;
  const ListPolicy& policy_;
  const Lines& lines_;
  const std::optional<VShape> v_;
  const std::optional<RoundShape> rounds_;
  std::vector<Pattern> patterns_;
  Trips trips_;
  std::vector<Try> tries_;
  int64_t shortest_ = kNever;  // length of the shortest order so far
};

}  // namespace

Result<std::vector<ComputeOrder>> list_schedule(const Dag& dag, const TaskLists& deps,
                                                const ListPolicy& policy) {
  const Lines lines(dag, deps, policy);
  return Trials(dag, policy, lines).best();
}

}  // namespace piper
