// How far messages and collectives have moved, over links that they share.
#include "wires.h"

#include <algorithm>
#include <set>

namespace piper::timeline {

const Arrival& Transfer::last() const {
  return *std::max_element(arrivals.begin(), arrivals.end(),
                           [](const auto& a, const auto& b) { return a.time < b.time; });
}

std::vector<int32_t> Ports::update(std::span<const int32_t> ports, double time) {
  std::set<int32_t> changed;
  for (const int32_t port : ports) changed.insert(users_[at(port)].begin(), users_[at(port)].end());
  for (const int32_t transfer : changed) {
    Moving& one = moving_[at(transfer)];
    one.left = std::max(0.0, one.left - (time - one.since) * one.rate);
    one.since = time;
    size_t most = 1;
    for (const int32_t port : one.ports) most = std::max(most, users_[at(port)].size());
    one.rate = 1 / static_cast<double>(most);
    ++one.changes;
  }
  return {changed.begin(), changed.end()};
}

std::vector<int32_t> Ports::begin(int32_t transfer, double wire, std::span<const int32_t> ports,
                                  double time) {
  Moving& one = moving_[at(transfer)];
  one.ports.assign(ports.begin(), ports.end());
  one.left = wire;
  one.since = time;
  for (const int32_t port : ports) users_[at(port)].push_back(transfer);
  std::vector<int32_t> changed = update(ports, time);
  if (ports.empty()) changed.push_back(transfer);
  return changed;
}

std::vector<int32_t> Ports::end(int32_t transfer, double time) {
  const std::vector<int32_t> ports = moving_[at(transfer)].ports;
  for (const int32_t port : ports) std::erase(users_[at(port)], transfer);
  return update(ports, time);
}

double Ports::end_of(int32_t transfer) const {
  const Moving& one = moving_[at(transfer)];
  return one.since + one.left / one.rate;
}

}  // namespace piper::timeline
