// Numbers communicators, so that all members of one issue its operations in one order.
#include "communicators.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "at.h"

namespace piper {
namespace {

struct Message {
  size_t from = 0, to = 0;  // cells
  int32_t send_stream = 0, recv_stream = 0;
  size_t sent = 0, received = 0;  // positions in the bodies
  int32_t number = -1;
  auto route() const { return std::tie(from, to, send_stream, recv_stream); }
};

// Lists messages by route, in the order in which they are sent.
std::vector<Message> find_messages(const std::vector<RoleProgram>& roles) {
  std::map<int32_t, Message> by_number;
  for (size_t c = 0; c < roles.size(); ++c)
    for (size_t i = 0; i < roles[c].body.size(); ++i) {
      const Instruction& one = roles[c].body[i];
      if (one.peer.empty()) continue;
      Message& message = by_number[one.communicator];
      message.number = one.communicator;
      if (one.kind == InstructionKind::kSend)
        message.from = c, message.send_stream = one.stream, message.sent = i;
      else
        message.to = c, message.recv_stream = one.stream, message.received = i;
    }
  std::vector<Message> messages;
  for (const auto& [number, message] : by_number) messages.push_back(message);
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tuple(a.route(), a.sent) < std::tuple(b.route(), b.sent);
  });
  return messages;
}

}  // namespace

void assign_communicators(std::vector<RoleProgram>& roles,
                          const std::vector<std::vector<int32_t>>& cells) {
  std::vector<Communicator> all;
  const auto add = [&](Communicator made) {
    for (const int32_t stream : made.streams)
      if (at(stream) < roles[0].streams.size())
        made.sms = std::max(made.sms, roles[0].streams[at(stream)].sms);
    all.push_back(std::move(made));
    return static_cast<int32_t>(all.size() - 1);
  };
  std::map<std::pair<std::vector<int32_t>, int32_t>, int32_t> groups;
  const auto key = [](const RoleProgram& role, const Instruction& one) {
    return std::pair(role.groups[at(one.group)].axes, one.stream);
  };
  for (const RoleProgram& role : roles)
    for (const auto* section : role.sections())
      for (const Instruction& one : *section)
        if (is_collective(one.kind)) groups[key(role, one)];
  for (auto& [group, communicator] : groups)
    communicator = add({.axes = group.first, .streams = {group.second}});
  std::map<int32_t, int32_t> by_number;  // of messages
  std::vector<std::pair<size_t, int32_t>>
      open;  // of a route: the last that it receives, by receipt
  const Message* before = nullptr;
  const std::vector<Message> messages = find_messages(roles);
  for (const Message& message : messages) {
    if (before == nullptr || before->route() != message.route()) open.clear();
    before = &message;
    // The one that has received latest before this message.
    auto fits = std::upper_bound(open.begin(), open.end(), std::pair(message.received, -1));
    if (fits == open.begin())
      fits = open.insert(fits, {0, add({.from = cells[message.from],
                                        .to = cells[message.to],
                                        .streams = {message.send_stream, message.recv_stream}})});
    else
      --fits;
    fits->first = message.received;
    by_number[message.number] = fits->second;
  }
  for (RoleProgram& role : roles) {
    for (auto* section : role.sections())
      for (Instruction& one : *section) {
        if (!one.peer.empty()) one.communicator = by_number.at(one.communicator);
        if (is_collective(one.kind)) one.communicator = groups.at(key(role, one));
      }
    role.communicators = all;
  }
}

}  // namespace piper
