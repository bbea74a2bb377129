// Sharing: how far computations that share a device have come, and when they end.
#include "sharing.h"

#include <algorithm>
#include <limits>

namespace piper::timeline {

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
  running_.push_back({step, work, weight, time});
}

double Sharing::end_of(const Running& one, double all) const {
  return time_ + std::max(one.left, 0.0) * all / one.weight;
}

double Sharing::next_end() const {
  const double all = weights();
  double first = std::numeric_limits<double>::infinity();
  for (const Running& one : running_) first = std::min(first, end_of(one, all));
  return first;
}

// Two ends that differ by rounding only are one.
std::vector<Sharing::Ended> Sharing::end(double time) {
  constexpr double kRounding = 1e-12;
  const double all = weights();
  std::vector<Ended> ended;
  for (const Running& one : running_)
    if (end_of(one, all) <= time * (1 + kRounding)) ended.push_back({one.step, one.start});
  progress_to(time);
  std::erase_if(running_, [&](const Running& one) {
    return std::any_of(ended.begin(), ended.end(),
                       [&](const Ended& each) { return each.step == one.step; });
  });
  return ended;
}

}  // namespace piper::timeline
