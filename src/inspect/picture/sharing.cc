// Sharing: how far computations that share a device have come, and when they end.
#include "sharing.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace piper::timeline {
namespace {

constexpr double kRounding = 1e-9;  // of a time, or of the work

}  // namespace

double Sharing::weights() const {
  double sum = 0;
  for (const Running& one : running_) sum += one.weight;
  return sum;
}

void Sharing::progress_to(double time) {
  const double all = weights();
  for (Running& one : running_) one.left -= (time - time_) * one.weight / all;
  time_ = time;
  ++changes_;
}

void Sharing::begin(int32_t step, double work, double weight, double time) {
  progress_to(time);
  running_.push_back({step, work, work, weight, time});
}

// Costs are whole numbers, so that most ends are: these lose what rounding has added.
double Sharing::next_end() const {
  const double all = weights();
  double first = std::numeric_limits<double>::infinity();
  for (const Running& one : running_)
    first = std::min(first, time_ + std::max(one.left, 0.0) * all / one.weight);
  const double whole = std::round(first);
  return std::abs(first - whole) <= kRounding * whole ? whole : first;
}

std::vector<Sharing::Ended> Sharing::end(double time) {
  progress_to(time);
  std::vector<Ended> ended;
  for (const Running& one : running_)
    if (one.left <= kRounding * one.work) ended.push_back({one.step, one.start});
  std::erase_if(running_, [](const Running& one) { return one.left <= kRounding * one.work; });
  return ended;
}

}  // namespace piper::timeline
