// Registration and messages between processes.
#include "process_fabric.h"

#include <algorithm>

#include "reduce.h"

namespace piper::process {

// ---- Groups -------------------------------------------------------------------------------------

Group::Group(Peers& peers, int32_t communicator, std::span<const int64_t> ranks)
    : peers(peers), communicator(communicator), ranks(ranks.begin(), ranks.end()) {
  position = std::find(ranks.begin(), ranks.end(), peers.rank()) - ranks.begin();
  from.resize(ranks.size());
}

Status Group::start_send(int64_t member, const std::byte* data, int64_t bytes) {
  const int64_t peer = ranks[static_cast<size_t>(member)];
  const MessagePart part{const_cast<std::byte*>(data), bytes};
  Transfer& transfer = transfers.emplace_back(Transfer{.peer = peer});
  return peers.wire().send(transfer, {peer, Lane::kCollectives, communicator}, std::span(&part, 1));
}

Status Group::start_recv(int64_t member, std::byte* to, int64_t bytes) {
  const int64_t peer = ranks[static_cast<size_t>(member)];
  const MessagePart part{to, bytes};
  Transfer& transfer = transfers.emplace_back(Transfer{.peer = peer, .bytes = bytes});
  return peers.wire().receive(transfer, {peer, Lane::kCollectives, communicator},
                              std::span(&part, 1));
}

Status Group::finish(const char* what) {
  PIPER_TRY(peers.wait(transfers, what, ranks));
  transfers.clear();
  return ok_status();
}

// ---- Registration -------------------------------------------------------------------------------

Result<int32_t> ProcessFabric::add_send(int64_t peer, int32_t communicator, int64_t in_flight,
                                        int32_t stream) {
  sends_.reserve(sends_.capacity() + static_cast<size_t>(in_flight));
  return add_recv(peer, communicator, stream);
}

Result<int32_t> ProcessFabric::add_recv(int64_t peer, int32_t communicator, int32_t) {
  PIPER_TRY(check_peer(rank(), world(), peer));
  routes_.push_back({peer, communicator});
  return static_cast<int32_t>(routes_.size() - 1);
}

Result<int32_t> ProcessFabric::add_group(std::span<const int64_t> ranks, int32_t communicator,
                                         int32_t) {
  PIPER_TRY(check_group(rank(), world(), ranks));
  // Plans that a job switches to may have other groups on a communicator. Messages of two ranks
  // arrive in order, so none of the plans before is taken for one of the new plans.
  for (size_t i = 0; i < groups_.size(); ++i)
    if (groups_[i].communicator == communicator && std::ranges::equal(ranks, groups_[i].ranks))
      return static_cast<int32_t>(i);
  Group& group = groups_.emplace_back(peers_, communicator, ranks);
  if (ranks.size() < 2) return static_cast<int32_t>(groups_.size() - 1);
  group.transfers.reserve(ranks.size() * 2 * kTogether);
  if (out_.empty()) {
    constexpr int64_t kShared = kSharedSlots * kSharedSlotBytes;
    out_.resize(static_cast<size_t>((kTransportSlotBytes - kShared) / 2));
    in_.resize(out_.size());
  }
  const int64_t most = std::ssize(in_) / (2 * kFlatAlign);  // see segment_bytes()
  if (group.size() > most)
    return fail("not supported: a group of {} ranks over {}, of which {} at most make one",
                group.size(), peers_.wire().name(), most)
        .with_code(ExitCode::kPlan);
  return static_cast<int32_t>(groups_.size() - 1);
}

Status ProcessFabric::add_message(std::span<const MessagePart> parts) {
  return bytes_of(parts) > kLargest || parts.size() < 2 ? ok_status()
                                                        : peers_.wire().add_message(parts);
}

// ---- Messages -----------------------------------------------------------------------------------

namespace {

// Visits the parts that travel as one message: all of them, or each by itself where that would be
// too large, or a stretch of a part.
template <class Visit>
Status in_messages(std::span<const MessagePart> parts, Visit visit) {
  if (bytes_of(parts) <= kLargest) return visit(parts);
  for (const MessagePart& part : parts)
    for (int64_t at = 0; at == 0 || at < part.bytes; at += kLargest) {
      const MessagePart one{part.data + at, std::min(part.bytes - at, kLargest)};
      PIPER_TRY(visit(std::span(&one, 1)));
    }
  return ok_status();
}

}  // namespace

Status ProcessFabric::start_message(const Route& to, std::span<const MessagePart> parts) {
  Transfer& transfer =
      sends_.emplace_back(Transfer{.peer = to.peer, .communicator = to.communicator});
  return peers_.wire().send(transfer, {to.peer, Lane::kMessages, to.communicator}, parts);
}

Status ProcessFabric::take_message(const Route& from, std::span<const MessagePart> parts) {
  Transfer transfer{.peer = from.peer, .bytes = bytes_of(parts), .communicator = from.communicator};
  PIPER_TRY(
      peers_.wire().receive(transfer, {from.peer, Lane::kMessages, from.communicator}, parts));
  return peers_.wait(std::span(&transfer, 1), "receive");
}

Status ProcessFabric::send(int32_t route, std::span<const MessagePart> parts) {
  const Route& to = routes_[static_cast<size_t>(route)];
  return in_messages(
      parts, [&](std::span<const MessagePart> message) { return start_message(to, message); });
}

Status ProcessFabric::recv(int32_t route, std::span<const MessagePart> parts) {
  const Route& from = routes_[static_cast<size_t>(route)];
  return in_messages(
      parts, [&](std::span<const MessagePart> message) { return take_message(from, message); });
}

Status ProcessFabric::wait_sends() {
  PIPER_TRY(peers_.wait(sends_, "send"));
  sends_.clear();
  return ok_status();
}

}  // namespace piper::process
