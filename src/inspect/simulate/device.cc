// How far computations that share a device have come, and when they end.
#include "device.h"

#include <algorithm>
#include <limits>

namespace piper::timeline {

double Device::weights() const {
  double sum = 0;
  for (const Running& one : running_) sum += one.weight;
  return sum;
}

void Device::progress_to(double time) {
  const double all = weights();
  for (Running& one : running_) one.left -= (time - time_) * speed_ * one.weight / all;
  time_ = time;
  ++changes_;
}

void Device::begin(int32_t step, double work, double weight, double time) {
  progress_to(time);
  running_.push_back({step, work, weight, time});
}

void Device::set_speed(double speed, double time) {
  progress_to(time);
  speed_ = speed;
}

double Device::end_of(const Running& one, double all) const {
  return time_ + std::max(one.left, 0.0) * all / one.weight / speed_;
}

double Device::next_end() const {
  const double all = weights();
  double first = std::numeric_limits<double>::infinity();
  for (const Running& one : running_) first = std::min(first, end_of(one, all));
  return first;
}

// Two ends that differ by rounding only are one.
std::vector<Device::Ended> Device::end(double time) {
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
