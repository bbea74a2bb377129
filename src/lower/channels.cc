#include "channels.h"

#include <algorithm>
#include <tuple>

namespace piper {

void separate_channels(std::vector<RoleProgram>& roles, const std::vector<Transfer>& transfers,
                       int32_t free) {
  const auto sent = [&](const Transfer& t) -> Instruction& {
    return roles[static_cast<size_t>(t.from_cell)].body[static_cast<size_t>(t.send_position)];
  };
  const auto route = [&](const Transfer& t) {
    return std::tuple(t.from_cell, t.to_cell, sent(t).channel);
  };
  std::vector<Transfer> sorted = transfers;
  std::sort(sorted.begin(), sorted.end(), [&](const Transfer& a, const Transfer& b) {
    return std::tuple_cat(route(a), std::tuple(a.send_position)) <
           std::tuple_cat(route(b), std::tuple(b.send_position));
  });
  for (auto first = sorted.begin(); first != sorted.end();) {
    const auto own = route(*first);
    const auto last =
        std::find_if(first, sorted.end(), [&](const Transfer& t) { return route(t) != own; });
    const bool in_order = std::is_sorted(first, last, [](const Transfer& a, const Transfer& b) {
      return a.recv_position < b.recv_position;
    });
    const auto received = [&](const Transfer& t) -> const Instruction& {
      return roles[static_cast<size_t>(t.to_cell)].body[static_cast<size_t>(t.recv_position)];
    };
    const bool on_one_stream = std::all_of(first, last, [&](const Transfer& t) {
      return sent(t).stream == sent(*first).stream && received(t).stream == received(*first).stream;
    });
    for (; first != last; ++first) {
      if (in_order && on_one_stream) continue;
      sent(*first).channel = free;
      roles[static_cast<size_t>(first->to_cell)]
          .body[static_cast<size_t>(first->recv_position)]
          .channel = free++;
    }
  }
}

}  // namespace piper
