// Waits for other processes, and names those that do not come.
#include "peers.h"

#include <fmt/format.h>
#include <unistd.h>

#include "errors.h"

namespace piper::process {
namespace {

constexpr double kRest = 0.05;  // seconds; what comes ends it
constexpr int kSpins = 4000;    // about a tenth of a millisecond

std::string place_of(const Transfer& transfer, const char* what, std::span<const int64_t> ranks) {
  if (!ranks.empty())
    return fmt::format("in the {} of ranks [{}] for", what, fmt::join(ranks, ","));
  if (transfer.communicator < 0) return fmt::format("in the {} for", what);
  return fmt::format("for a message on communicator {} {}", transfer.communicator,
                     transfer.bytes >= 0 ? "from" : "to be taken by");
}

}  // namespace

Peers::Peers(std::unique_ptr<Wire> wire, double timeout_s)
    : wire_(std::move(wire)),
      rank_(wire_->rank()),
      world_(wire_->world()),
      timeout_(timeout_s),
      memory_(wire_->job(), rank_, world_) {}

// Lets ranks poll where nothing else wants the core: a neighbour that is a segment behind comes
// sooner than a sleeper wakes.
void Peers::note_all_have_come() {
  if (memory_.all_have_come() <= sysconf(_SC_NPROCESSORS_ONLN)) spins_ = kSpins;
}

void Peers::abort(const Error& reason) {
  ended_ = true;
  wire_->abort(reason);
}

bool Peers::is_done(Transfer& transfer, Status& status, const char* what) {
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

Status Peers::wait(std::span<Transfer> transfers, const char* what,
                   std::span<const int64_t> ranks) {
  Status status = wait_all(transfers, what, ranks);
  if (!status) wire_->give_up(), ended_ = true;
  return status;
}

Status Peers::wait_all(std::span<Transfer> transfers, const char* what,
                       std::span<const int64_t> ranks) {
  Status status = ok_status();
  size_t next = 0;
  const auto ready = [&](int64_t& peer) {
    while (next < transfers.size() && is_done(transfers[next], status, what) && status) ++next;
    if (next < transfers.size()) peer = transfers[next].peer;
    return next == transfers.size() || !status;
  };
  PIPER_TRY(wait_until(kRest, ready, [&] { return place_of(transfers[next], what, ranks); }));
  return status;
}

const Seat* Peers::seat_of(int64_t rank) const {
  const HostBlock* const block = memory_.block(rank);
  return block == nullptr ? nullptr : &block->seat;
}

std::vector<int64_t> Peers::find_stuck(std::span<const int64_t> ranks) const {
  return stuck_ranks(ranks, timeout_ / 2, [&](int64_t rank) { return seat_of(rank); });
}

Error Peers::late(int64_t peer, const std::string& where) const {
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

}  // namespace piper::process
