// Compares what ranks take. Called between steps.
#include "slow_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace piper {
namespace {

constexpr const char* kExchange = "exchange of the times of ranks";
constexpr double kLeastFactor = 1.2;  // less is not worth a line
constexpr double kLeastErrors = 4;    // standard errors that a difference has at least
constexpr double kLeastPart = 0.02;   // of all that the rank spends
constexpr Spent kJudged[] = {Spent::kForward, Spent::kBackward, Spent::kUpdate, Spent::kData};

struct Level {
  double mean = 0, error = 0;
};

// Returns the median of the others.
Level median_of(std::vector<Level> levels) {
  const auto middle = levels.begin() + std::ssize(levels) / 2;
  std::nth_element(levels.begin(), middle, levels.end(),
                   [](const Level& a, const Level& b) { return a.mean < b.mean; });
  return *middle;
}

double all_of(const SpentSums& sums) {
  double all = 0;
  for (size_t kind = 0; kind < kSpentKinds; ++kind) all += sums.mean(kind);
  return all;
}

bool is_significant(const SpentSums& own, size_t kind, const Level& others) {
  const double more = own.mean(kind) - others.mean;
  return own.mean(kind) >= kLeastFactor * others.mean && more >= kLeastPart * all_of(own) &&
         more >= kLeastErrors * std::hypot(own.error(kind), others.error);
}

}  // namespace

double SpentSums::error(size_t kind) const {
  if (steps < 2) return INFINITY;
  const double count = static_cast<double>(steps), m = mean(kind);
  const double variance = std::max(squares[kind] / count - m * m, 0.0) * count / (count - 1);
  return std::sqrt(variance / count);
}

std::vector<SlowRank> SlowJudge::judge(std::span<const SpentSums> all) {
  std::vector<SlowRank> slow;
  for (const Spent spent : kJudged) {
    const auto kind = static_cast<size_t>(spent);
    std::optional<SlowRank> worst;
    for (const SpentSums& own : all) {
      std::vector<Level> others;
      for (const SpentSums& other : all)
        if (other.role == own.role && other.rank != own.rank)
          others.push_back({other.mean(kind), other.error(kind)});
      const bool is_alone = others.empty();
      Level level = is_alone ? Level() : median_of(std::move(others));
      if (is_alone) {
        const auto [known, is_new] = best_.try_emplace({own.rank, kind}, own.mean(kind));
        level.mean = known->second;
        known->second = std::min(known->second, own.mean(kind));
      }
      if (level.mean <= 0 || !is_significant(own, kind, level)) continue;
      const double factor = own.mean(kind) / level.mean;
      if (!worst || factor > worst->factor)
        worst = SlowRank{own.rank, kSpentNames[kind], factor, own.mean(kind), is_alone};
    }
    if (worst) slow.push_back(*worst);
  }
  return slow;
}

double SlowRanks::spent_ms(size_t kind) const {
  return (recorder_.lines[0].spent_us(kind) + recorder_.lines[1].spent_us(kind)) * 1e-3;
}

Status SlowRanks::end_step(StepMetrics& metrics) {
  for (size_t kind = 0; kind < kSpentKinds; ++kind) {
    const double all = spent_ms(kind), own = all - std::exchange(before_[kind], all);
    own_.sum[kind] += own;
    own_.squares[kind] += own * own;
  }
  if (++own_.steps < kInterval) return ok_status();
  std::vector<SpentSums> all{own_};
  own_.steps = 0;
  own_.sum = own_.squares = {};
  PIPER_TRY(gather(all));
  if (control_.rank() != 0) return ok_status();
  for (size_t kind = 0; kind < kSpentKinds; ++kind) {
    double ms = 0;
    for (const SpentSums& one : all) ms += one.mean(kind) / static_cast<double>(all.size());
    metrics.spent_ms.emplace_back(kSpentNames[kind], ms);
  }
  metrics.slow = judge_.judge(all);
  return ok_status();
}

// Rank 0 learns what all have counted.
Status SlowRanks::gather(std::vector<SpentSums>& all) {
  for (const int64_t child : control_.children()) {
    PIPER_ASSIGN(const std::string theirs, hear_text(control_, child, kExchange));
    PIPER_CHECK(theirs.size() % sizeof(SpentSums) == 0, "ranks count in the same form");
    const size_t before = all.size();
    all.resize(before + theirs.size() / sizeof(SpentSums));
    std::memcpy(all.data() + before, theirs.data(), (all.size() - before) * sizeof(SpentSums));
  }
  std::sort(all.begin(), all.end(),
            [](const SpentSums& a, const SpentSums& b) { return a.rank < b.rank; });
  const auto up = control_.parent();
  if (!up) return ok_status();
  return tell_text(control_, *up, as_text(std::as_bytes(std::span(all))));
}

}  // namespace piper
