// A transport between processes: waiting, messages and Control.
#include "process.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "errors.h"
#include "reduce.h"

namespace piper::process {
namespace {

constexpr double kRest = 0.05;  // seconds; what comes ends it
constexpr double kParting = 1;  // seconds for what was told to leave
constexpr int kSpins = 4000;    // about a tenth of a millisecond

}  // namespace

ProcessTransport::ProcessTransport(std::unique_ptr<Wire> wire, const TransportOptions& options)
    : wire_(std::move(wire)),
      rank_(wire_->rank()),
      world_(wire_->world()),
      shared_memory_(options.shared_memory),
      timeout_(options.timeout_s),
      memory_(wire_->job(), rank_, world_) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < world_; ++i) all.push_back(i);
  groups_.push_back(make_group(-1, all));
}

ProcessTransport::~ProcessTransport() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(kParting);
  Status status = ok_status();
  while (!ended_ && !letters_.empty() && status && std::chrono::steady_clock::now() < until)
    if (done(letters_.front().transfer, status, "message"))
      letters_.pop_front();
    else
      wire_->rest(kRest);
}

// ---- Waiting ------------------------------------------------------------------------------------

// Returns whether the transfer has ended; a receive of another size ends with an error.
bool ProcessTransport::done(Transfer& transfer, Status& status, const char* what) {
  if (!transfer.open) return true;
  int64_t got = transfer.bytes;
  status = wire_->test(transfer, got);
  if (status && transfer.open) return false;
  if (status && transfer.bytes >= 0 && got != transfer.bytes) {
    const std::string where = transfer.communicator >= 0
                                  ? fmt::format("on communicator {} from", transfer.communicator)
                                  : fmt::format("in the {} with", what);
    status = size_mismatch(rank_, transfer.peer, where, got, transfer.bytes);
  }
  return true;
}

std::string ProcessTransport::place_of(const Transfer& transfer, const char* what,
                                       const Group* group) const {
  if (group != nullptr)
    return fmt::format("in the {} of ranks [{}] for", what, fmt::join(group->ranks, ","));
  if (transfer.communicator < 0) return fmt::format("in the {} for", what);
  return fmt::format("for a message on communicator {} {}", transfer.communicator,
                     transfer.bytes >= 0 ? "from" : "to be taken by");
}

const Seat* ProcessTransport::seat_of(int64_t rank) const {
  const HostBlock* const block = memory_.block(rank);
  return block == nullptr ? nullptr : &block->seat;
}

std::vector<int64_t> ProcessTransport::find_stuck(std::span<const int64_t> ranks) {
  return stuck_ranks(ranks, timeout_ / 2, [&](int64_t rank) { return seat_of(rank); });
}

Error ProcessTransport::late(int64_t peer, const std::string& where) const {
  const auto seat = [&](int64_t rank) { return seat_of(rank); };
  const auto chain = chain_of_waits(rank_, peer, timeout_ / 2, seat);
  Error error = timed_out(rank_, timeout_, where, chain, [&](int64_t rank) -> std::string {
    if (seat(rank) == nullptr) return {};
    return memory_.read_text(rank, seat(rank)->activity.load());
  });
  if (const std::string address = wire_->where(peer); !address.empty())
    error.notes.push_back(fmt::format("rank {} listens at {}", peer, address));
  return error;
}

// Waits until all transfers have ended.
Status ProcessTransport::wait(std::span<Transfer> transfers, const char* what, const Group* group) {
  Status status = wait_all(transfers, what, group);
  if (!status) wire_->give_up(), ended_ = true;
  return status;
}

Status ProcessTransport::wait_all(std::span<Transfer> transfers, const char* what,
                                  const Group* group) {
  Status status = ok_status();
  size_t next = 0;
  const auto ready = [&](int64_t& peer) {
    while (next < transfers.size() && done(transfers[next], status, what) && status) ++next;
    if (next < transfers.size()) peer = transfers[next].peer;
    return next == transfers.size() || !status;
  };
  PIPER_TRY(look_until(kRest, ready, [&] { return place_of(transfers[next], what, group); }));
  return status;
}

void ProcessTransport::abort(const Error& reason) {
  ended_ = true;
  wire_->abort(reason);
}

// ---- Control ------------------------------------------------------------------------------------

Status ProcessTransport::agree(const PlanIdentity& own) {
  PIPER_TRY(Control::agree(own));
  // Where nobody else wants the core, a neighbour that is a segment behind is there sooner than the
  // core would be back.
  if (memory_.all_have_come() <= sysconf(_SC_NPROCESSORS_ONLN)) spins_ = kSpins;
  return ok_status();
}

Status ProcessTransport::tell(int64_t rank, std::span<const std::byte> bytes) {
  Status status = ok_status();
  while (!letters_.empty() && done(letters_.front().transfer, status, "message"))
    letters_.pop_front();
  PIPER_TRY(std::move(status));
  Letter& letter = letters_.emplace_back();
  letter.bytes.assign(bytes.begin(), bytes.end());
  letter.transfer.peer = rank;
  const MessagePart part{letter.bytes.data(), std::ssize(letter.bytes)};
  return wire_->send(letter.transfer, {rank, Lane::kControl, 0}, std::span(&part, 1));
}

Status ProcessTransport::hear(int64_t rank, std::span<std::byte> bytes, const char* what) {
  const MessagePart part{bytes.data(), std::ssize(bytes)};
  Transfer transfer{.peer = rank, .bytes = part.bytes};
  PIPER_TRY(wire_->receive(transfer, {rank, Lane::kControl, 0}, std::span(&part, 1)));
  return wait(std::span(&transfer, 1), what, nullptr);
}

// ---- Registration -------------------------------------------------------------------------------

Group ProcessTransport::make_group(int32_t communicator, std::span<const int64_t> ranks) const {
  Group group;
  group.communicator = communicator;
  group.ranks.assign(ranks.begin(), ranks.end());
  group.position = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  uint32_t hash = 2166136261u;  // members of different groups must not take each other's messages
  const auto mix = [&](int64_t with) {
    hash = (hash ^ static_cast<uint32_t>(with + 1)) * 16777619u;
  };
  mix(communicator);
  for (int64_t rank : ranks) mix(rank);
  group.tag = static_cast<int32_t>(hash & 0xfffffff);
  group.from.resize(ranks.size());
  return group;
}

Result<int32_t> ProcessTransport::add_send(int64_t peer, int32_t communicator, int64_t in_flight,
                                           int32_t) {
  PIPER_TRY(check_peer(rank_, world_, peer));
  routes_.push_back({peer, communicator});
  sends_.reserve(sends_.capacity() + static_cast<size_t>(in_flight));
  return static_cast<int32_t>(routes_.size() - 1);
}

Result<int32_t> ProcessTransport::add_recv(int64_t peer, int32_t communicator, int32_t) {
  PIPER_TRY(check_peer(rank_, world_, peer));
  routes_.push_back({peer, communicator});
  return static_cast<int32_t>(routes_.size() - 1);
}

Result<int32_t> ProcessTransport::add_group(std::span<const int64_t> ranks, int32_t communicator,
                                            int32_t) {
  PIPER_TRY(check_group(rank_, world_, ranks));
  for (size_t i = 1; i < groups_.size(); ++i)
    if (groups_[i].communicator == communicator && std::ranges::equal(ranks, groups_[i].ranks))
      return static_cast<int32_t>(i);
  Group& group = groups_.emplace_back(make_group(communicator, ranks));
  if (ranks.size() < 2) return static_cast<int32_t>(groups_.size() - 1);
  group.transfers.reserve(ranks.size() * 2 * kTogether);
  if (out_.empty()) {
    constexpr int64_t kShared = kSharedSlots * kSharedSlotBytes;
    out_.resize(static_cast<size_t>((kTransportSlotBytes - kShared) / 2));
    in_.resize(out_.size());
  }
  return static_cast<int32_t>(groups_.size() - 1);
}

Status ProcessTransport::add_message(std::span<const MessagePart> parts) {
  return bytes_of(parts) > kLargest || parts.size() < 2 ? ok_status() : wire_->add_message(parts);
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

Status ProcessTransport::start_message(int32_t route, std::span<const MessagePart> parts) {
  const Route& to = routes_[static_cast<size_t>(route)];
  Transfer& transfer =
      sends_.emplace_back(Transfer{.peer = to.peer, .communicator = to.communicator});
  return wire_->send(transfer, {to.peer, Lane::kMessages, to.communicator}, parts);
}

Status ProcessTransport::take_message(int32_t route, std::span<const MessagePart> parts) {
  const Route& from = routes_[static_cast<size_t>(route)];
  Transfer transfer{.peer = from.peer, .bytes = bytes_of(parts), .communicator = from.communicator};
  PIPER_TRY(wire_->receive(transfer, {from.peer, Lane::kMessages, from.communicator}, parts));
  return wait(std::span(&transfer, 1), "receive", nullptr);
}

Status ProcessTransport::send(int32_t route, const std::byte* data, int64_t bytes) {
  const MessagePart whole{const_cast<std::byte*>(data), bytes};
  return send(route, std::span(&whole, 1));
}

Status ProcessTransport::recv(int32_t route, std::byte* to, int64_t bytes) {
  const MessagePart whole{to, bytes};
  return recv(route, std::span(&whole, 1));
}

Status ProcessTransport::send(int32_t route, std::span<const MessagePart> parts) {
  return in_messages(
      parts, [&](std::span<const MessagePart> message) { return start_message(route, message); });
}

Status ProcessTransport::recv(int32_t route, std::span<const MessagePart> parts) {
  return in_messages(
      parts, [&](std::span<const MessagePart> message) { return take_message(route, message); });
}

Status ProcessTransport::wait_sends() {
  PIPER_TRY(wait(sends_, "send", nullptr));
  sends_.clear();
  return ok_status();
}

std::unique_ptr<Transport> make_process_transport(std::unique_ptr<Wire> wire,
                                                  const TransportOptions& options) {
  return std::make_unique<ProcessTransport>(std::move(wire), options);
}

}  // namespace piper::process
