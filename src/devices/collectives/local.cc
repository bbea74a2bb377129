// Links between ranks of one process. A sender says where its bytes are and which event they are
// after; the receiver's stream waits for that event and copies. Hosts wait until the other one has
// queued its side, never for a device: an event that was not recorded yet would be no wait.
#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "stages.h"

namespace piper {
namespace device_fabric {

Links& links_of(Fabric& fabric);

namespace {

// Holds a message of one ordered pair, with one writer and one reader, in the sender's memory.
struct Mailbox {
  struct Letter {
    std::vector<MessagePart> parts;  // sized before the first step, as far as they are known
    int32_t ready = -1;              // the sender's event
  };
  std::vector<Letter> ring;
  int32_t stream = 0;  // the sender's
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> received{0};
  std::atomic<int32_t> taken{-1};  // the receiver's event behind all that it has received
};

// Holds what a member of a group shows the others.
struct Member {
  std::span<const Links::Block> outgoing;
  int32_t ready = -1, done = -1;      // its events
  std::atomic<uint64_t> offered{0};   // exchanges of which `outgoing` is to be seen
  std::atomic<uint64_t> finished{0};  // exchanges whose copies it has queued
};

class LocalLinks final : public Links {
 public:
  LocalLinks(Backend& backend, const FabricSource& source)
      : backend_(backend), control_(source.control), local_(source.local) {}

  std::string_view name() const override { return "local"; }

  Result<int32_t> add_pair(int64_t from, int64_t to, int32_t communicator, int32_t stream,
                           int64_t in_flight) override {
    Pair pair{from, to, stream};
    PIPER_TRY(backend_.meet(peer(from == control_.rank() ? to : from).backend_));
    if (from == control_.rank()) {
      pair.box = &box_of(to, communicator);
      pair.box->stream = stream;
      while (std::ssize(pair.box->ring) < std::max<int64_t>(in_flight, 1)) {
        Mailbox::Letter& letter = pair.box->ring.emplace_back();
        PIPER_ASSIGN(letter.ready, backend_.add_event());
        letter.parts.reserve(kUsualParts);
      }
    } else {
      pair.box = &peer(from).box_of(to, communicator);
      PIPER_ASSIGN(pair.taken, backend_.add_event());
    }
    pairs_.push_back(pair);
    return static_cast<int32_t>(pairs_.size()) - 1;
  }

  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator,
                            int32_t stream) override {
    Group group;
    group.key = {communicator, {ranks.begin(), ranks.end()}};
    for (size_t g = 0; g < groups_.size(); ++g)
      if (groups_[g].key == group.key) return static_cast<int32_t>(g);
    group.stream = stream;
    group.own = &member_of(group.key);
    PIPER_ASSIGN(group.own->ready, backend_.add_event());
    PIPER_ASSIGN(group.own->done, backend_.add_event());
    for (const int64_t rank : ranks) {
      PIPER_TRY(backend_.meet(peer(rank).backend_));
      group.members.push_back(&peer(rank).member_of(group.key));
      if (rank == control_.rank()) group.position = std::ssize(group.members) - 1;
    }
    groups_.push_back(std::move(group));
    return static_cast<int32_t>(groups_.size()) - 1;
  }

  Status send(int32_t number, std::span<const MessagePart> parts) override {
    const Pair& pair = pairs_[static_cast<size_t>(number)];
    Mailbox& box = *pair.box;
    const uint64_t count = box.sent.load(std::memory_order_relaxed);
    PIPER_TRY(wait(pair.to, "to take a message", [&] {
      return count - box.received.load(std::memory_order_acquire) < box.ring.size();
    }));
    Mailbox::Letter& letter = box.ring[count % box.ring.size()];
    letter.parts.assign(parts.begin(), parts.end());
    backend_.record(letter.ready, pair.stream);
    box.sent.store(count + 1, std::memory_order_release);
    return ok_status();
  }

  Status recv(int32_t number, std::span<const MessagePart> parts) override {
    const Pair& pair = pairs_[static_cast<size_t>(number)];
    Mailbox& box = *pair.box;
    const uint64_t count = box.received.load(std::memory_order_relaxed);
    PIPER_TRY(wait(pair.from, "for a message of",
                   [&] { return box.sent.load(std::memory_order_acquire) > count; }));
    const Mailbox::Letter& letter = box.ring[count % box.ring.size()];
    backend_.wait_for(peer(pair.from).backend_, letter.ready, pair.stream);
    PIPER_TRY(take(pair, letter.parts, parts));
    backend_.record(pair.taken, pair.stream);
    box.taken.store(pair.taken, std::memory_order_relaxed);
    box.received.store(count + 1, std::memory_order_release);
    return ok_status();
  }

  Status exchange(int32_t number, std::span<const Block> outgoing,
                  std::span<const Block> incoming) override {
    Group& group = groups_[static_cast<size_t>(number)];
    const uint64_t turn = ++group.turns;
    group.own->outgoing = outgoing;
    backend_.record(group.own->ready, group.stream);
    group.own->offered.store(turn, std::memory_order_release);
    for (size_t k = 0; k < group.members.size(); ++k)
      PIPER_TRY(take_from(group, k, turn, incoming));
    backend_.record(group.own->done, group.stream);
    group.own->finished.store(turn, std::memory_order_release);
    // This waits until no other member still copies from what is written next.
    for (size_t k = 0; k < group.members.size(); ++k) {
      Member& member = *group.members[k];
      if (&member == group.own) continue;
      PIPER_TRY(wait(group.key.second[k], "in a collective for",
                     [&] { return member.finished.load(std::memory_order_acquire) >= turn; }));
      backend_.wait_for(peer(group.key.second[k]).backend_, member.done, group.stream);
    }
    return ok_status();
  }

  Status wait_sends() override {
    for (const Pair& pair : pairs_) {
      if (pair.from != control_.rank()) continue;
      Mailbox& box = *pair.box;
      const uint64_t sent = box.sent.load(std::memory_order_relaxed);
      if (sent == 0) continue;
      PIPER_TRY(wait(pair.to, "to take a message",
                     [&] { return box.received.load(std::memory_order_acquire) == sent; }));
      backend_.wait_for(peer(pair.to).backend_, box.taken.load(std::memory_order_relaxed),
                        pair.stream);
    }
    return ok_status();
  }

 private:
  static constexpr size_t kUsualParts = 64;
  using Key = std::pair<int32_t, std::vector<int64_t>>;  // communicator, ranks
  struct Pair {
    int64_t from = 0, to = 0;
    int32_t stream = 0;
    Mailbox* box = nullptr;
    int32_t taken = -1;
  };
  struct Group {
    Key key;
    int32_t stream = 0;
    Member* own = nullptr;
    int64_t position = 0;
    std::vector<Member*> members;
    uint64_t turns = 0;
  };

  LocalLinks& peer(int64_t rank) const {
    if (rank == control_.rank()) return const_cast<LocalLinks&>(*this);
    return static_cast<LocalLinks&>(links_of(*local_[static_cast<size_t>(rank)].load()));
  }
  // Returns a mailbox of this rank, made by whoever asks first.
  Mailbox& box_of(int64_t to, int32_t communicator) {
    const std::lock_guard lock(mutex_);
    return boxes_[{to, communicator}];
  }
  Member& member_of(const Key& key) {
    const std::lock_guard lock(mutex_);
    return members_[key];
  }

  // Waits until the other host has come as far.
  template <class Ready>
  Status wait(int64_t rank, const char* what, Ready ready) {
    if (ready()) return ok_status();
    Patience patience(control_.seat(), control_.timeout());
    patience.wait_for(rank);
    const std::chrono::duration<double> interval(patience.interval());
    auto looked = std::chrono::steady_clock::now();
    for (int64_t turns = 0; !ready(); ++turns) {
      std::this_thread::yield();
      if (turns % kTurns != 0 || std::chrono::steady_clock::now() - looked < interval) continue;
      looked = std::chrono::steady_clock::now();
      PIPER_TRY(control_.check_stopped());
      if (patience.look()) continue;
      const char* const at = peer(rank).control_.activity().load();
      return fail("rank {} waited {:.3g} s {} rank {}, which is at {}", control_.rank(),
                  control_.timeout(), what, rank, at ? at : "its start")
          .with_code(ExitCode::kPeer);
    }
    patience.done();
    return ok_status();
  }
  static constexpr int64_t kTurns = 64;

  Status take(const Pair& pair, std::span<const MessagePart> from,
              std::span<const MessagePart> to) {
    if (bytes_of(from) != bytes_of(to))
      return fail("rank {} expects {} bytes of rank {}, which sends {}", pair.to, bytes_of(to),
                  pair.from, bytes_of(from))
          .with_code(ExitCode::kPlan);
    Backend& sender = peer(pair.from).backend_;
    copy_parts(from, to, [&](std::byte* own, const std::byte* theirs, int64_t bytes) {
      backend_.copy_from(sender, own, theirs, bytes, pair.stream);
    });
    return ok_status();
  }

  Status take_from(const Group& group, size_t k, uint64_t turn, std::span<const Block> incoming) {
    Member& member = *group.members[k];
    const int64_t rank = group.key.second[k];
    PIPER_TRY(wait(rank, "in a collective for",
                   [&] { return member.offered.load(std::memory_order_acquire) >= turn; }));
    if (&member != group.own) backend_.wait_for(peer(rank).backend_, member.ready, group.stream);
    size_t next = 0;  // of what it sends here
    for (const Block& block : incoming) {
      if (block.member != static_cast<int64_t>(k)) continue;
      while (next < member.outgoing.size() && member.outgoing[next].member != group.position)
        ++next;
      if (next == member.outgoing.size() || member.outgoing[next].bytes != block.bytes)
        return fail("rank {} expects a block of {} bytes of rank {}, which brings {}",
                    control_.rank(), block.bytes, rank,
                    next == member.outgoing.size() ? 0 : member.outgoing[next].bytes)
            .with_code(ExitCode::kPlan);
      if (const std::byte* from = member.outgoing[next].data; from != block.data)
        backend_.copy_from(peer(rank).backend_, block.data, from, block.bytes, group.stream);
      ++next;
    }
    return ok_status();
  }

  Backend& backend_;
  Control& control_;
  const std::span<const std::atomic<Fabric*>> local_;
  std::vector<Pair> pairs_;
  std::deque<Group> groups_;
  std::mutex mutex_;  // guards the maps, while communicators are added
  std::map<std::pair<int64_t, int32_t>, Mailbox> boxes_;  // by receiver
  std::map<Key, Member> members_;
};

}  // namespace
}  // namespace device_fabric

std::unique_ptr<Links> make_local_links(Backend& backend, const FabricSource& source) {
  return std::make_unique<device_fabric::LocalLinks>(backend, source);
}

}  // namespace piper
