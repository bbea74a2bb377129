// How far messages and collectives have moved, over links that they share.
#include "wires.h"

#include <algorithm>
#include <set>

namespace piper::timeline {

const Arrival& Transfer::last() const {
  return *std::max_element(arrivals.begin(), arrivals.end(),
                           [](const auto& a, const auto& b) { return a.time < b.time; });
}

std::vector<int32_t> Ports::update(std::span<const PortShare> ports, double time) {
  std::set<int32_t> changed;
  for (const auto& [number, share] : ports) {
    Port& port = ports_[at(number)];
    port.asked = 0;
    for (const auto& [user, asked] : port.users) {
      changed.insert(user);
      port.asked += asked;
    }
  }
  for (const int32_t transfer : changed) {
    Moving& one = moving_[at(transfer)];
    one.left = std::max(0.0, one.left - (time - one.since) * one.rate);
    one.since = time;
    double most = 1;
    for (const auto& [port, share] : one.ports) most = std::max(most, ports_[at(port)].asked);
    one.rate = 1 / most;
    ++one.changes;
  }
  return {changed.begin(), changed.end()};
}

std::vector<int32_t> Ports::begin(int32_t transfer, double wire, std::span<const PortShare> ports,
                                  double time) {
  Moving& one = moving_[at(transfer)];
  one.ports.assign(ports.begin(), ports.end());
  one.left = wire;
  one.since = time;
  for (const auto& [port, share] : ports) ports_[at(port)].users.emplace_back(transfer, share);
  std::vector<int32_t> changed = update(ports, time);
  if (ports.empty()) changed.push_back(transfer);
  return changed;
}

std::vector<int32_t> Ports::end(int32_t transfer, double time) {
  const std::vector<PortShare> ports = moving_[at(transfer)].ports;
  for (const auto& [port, share] : ports)
    std::erase_if(ports_[at(port)].users, [&](const auto& user) { return user.first == transfer; });
  return update(ports, time);
}

double Ports::end_of(int32_t transfer) const {
  const Moving& one = moving_[at(transfer)];
  return one.since + one.left / one.rate;
}

}  // namespace piper::timeline
