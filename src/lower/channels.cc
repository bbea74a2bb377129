#include "channels.h"

#include <algorithm>
#include <tuple>

#include "at.h"

namespace piper {
namespace {

// A transfer on its route.
struct Message {
  int32_t from = 0, to = 0, channel = 0, sent = 0, received = 0;
  bool same_route(const Message& other) const {
    return from == other.from && to == other.to && channel == other.channel;
  }
  bool operator<(const Message& other) const {
    return std::tie(from, to, channel, sent) <
           std::tie(other.from, other.to, other.channel, other.sent);
  }
};

}  // namespace

void separate_channels(std::vector<RoleProgram>& roles, const std::vector<Transfer>& transfers,
                       int32_t free) {
  const auto send = [&](const Message& m) -> Instruction& {
    return roles[at(m.from)].body[at(m.sent)];
  };
  const auto receive = [&](const Message& m) -> Instruction& {
    return roles[at(m.to)].body[at(m.received)];
  };
  std::vector<Message> sorted;
  sorted.reserve(transfers.size());
  for (const Transfer& t : transfers) {
    sorted.push_back({t.from_cell, t.to_cell, 0, t.send_position, t.recv_position});
    sorted.back().channel = send(sorted.back()).channel;
  }
  std::sort(sorted.begin(), sorted.end());
  for (auto first = sorted.begin(); first != sorted.end();) {
    const auto last =
        std::find_if(first, sorted.end(), [&](const Message& m) { return !m.same_route(*first); });
    const bool in_order = std::is_sorted(
        first, last, [](const Message& a, const Message& b) { return a.received < b.received; });
    const bool on_one_stream = std::all_of(first, last, [&](const Message& m) {
      return send(m).stream == send(*first).stream && receive(m).stream == receive(*first).stream;
    });
    for (; first != last; ++first) {
      if (in_order && on_one_stream) continue;
      send(*first).channel = receive(*first).channel = free++;
    }
  }
}

}  // namespace piper
