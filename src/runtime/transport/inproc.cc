// Ranks as threads of one process. A sender publishes a pointer, the receiver copies straight from
// it and acknowledges: one copy, no staging. In a collective the members publish their arguments,
// each does its share on everybody's memory.
#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "doorbell.h"
#include "errors.h"
#include "reduce.h"
#include "seats.h"

namespace piper {
namespace {

struct Message {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  std::span<const MessagePart> parts;  // of several, instead of `data`
};

// Holds messages of one (sender, receiver, communicator): one writer, one reader.
struct Mailbox {
  int64_t sender = 0, receiver = 0;
  int32_t communicator = 0;
  std::vector<Message> ring;  // sized by the sender before its first send
  alignas(64) std::atomic<uint64_t> sent{0};
  alignas(64) std::atomic<uint64_t> received{0};
};

// Holds what a member gives to a collective; others read it between the two phases.
struct alignas(64) Member {
  std::atomic<uint64_t> arrived{0};  // phases entered
  Collective brings;
};

struct Group {
  std::vector<int64_t> ranks;
  std::deque<Member> members;  // by position
};

// Holds what one rank told another through Control and has not been heard yet.
struct Letters {
  std::mutex mutex;  // guards the queue
  std::deque<std::vector<std::byte>> queue;
  std::atomic<int64_t> count{0};
};

struct alignas(64) Place {
  Doorbell bell;
  Seat seat;
};

// Holds what all ranks share. The maps are for registration only; a step uses pointers into them.
struct Shared {
  Shared(int64_t world_size, const TransportOptions& transport_options)
      : world(world_size), options(transport_options) {
    for (int64_t i = 0; i < world; ++i) places.emplace_back();
    unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    // Where nobody else wants the core, polling lasts some milliseconds, as long as a pipeline's
    // bubble: to wake a sleeper takes a twentieth of one, for which all ranks would wait.
    spins = world <= cores ? 200'000 : 64;
  }
  Seat& seat(int64_t rank) { return places[static_cast<size_t>(rank)].seat; }
  Doorbell& bell(int64_t rank) { return places[static_cast<size_t>(rank)].bell; }

  const int64_t world;
  const TransportOptions options;
  int spins = 0;
  std::deque<Place> places;
  std::mutex mutex;                                        // guards the maps and the reason
  std::map<std::pair<int64_t, int64_t>, Letters> letters;  // by sender and receiver
  std::map<std::tuple<int64_t, int64_t, int32_t>, Mailbox> mailboxes;
  std::map<std::pair<int32_t, std::vector<int64_t>>, Group> groups;  // by communicator and ranks
  std::string reason;
  std::atomic<int64_t> stopped{-1};  // the rank that aborted first
};

class InprocTransport final : public Transport, public Control, public Fabric {
 public:
  InprocTransport(Shared& shared, int64_t rank)
      : shared_(shared), rank_(rank), timeout_(shared.options.timeout_s) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < shared.world; ++i) all.push_back(i);
    open_group(-1, all);
  }

  std::string_view name() const override { return "inproc"; }
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return shared_.world; }
  Control& control() override { return *this; }
  Fabric& fabric() override { return *this; }

  void set_timeout(double seconds) override { timeout_ = seconds; }
  double timeout() const override { return timeout_; }
  Seat& seat() override { return shared_.seat(rank_); }
  std::vector<int64_t> find_stuck(std::span<const int64_t> ranks) override {
    return stuck_ranks(ranks, timeout_ / 2, [&](int64_t rank) { return &shared_.seat(rank); });
  }
  Status check_stopped() override;
  Status tell(int64_t rank, std::span<const std::byte> bytes) override;
  Status hear(int64_t rank, std::span<std::byte> bytes, const char* what) override;
  Status barrier() override { return arrive(groups_[0], "barrier"); }
  void abort(const Error& reason) override;

  Result<int32_t> add_send(int64_t peer, int32_t communicator, int64_t in_flight, int32_t) override;
  Result<int32_t> add_recv(int64_t peer, int32_t communicator, int32_t) override;
  Status add_message(std::span<const MessagePart>) override { return ok_status(); }
  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator, int32_t) override;

  Status send(int32_t route, const std::byte* data, int64_t bytes) override;
  Status send(int32_t route, std::span<const MessagePart> parts) override;
  Status recv(int32_t route, std::span<const MessagePart> parts) override;
  Status run(int32_t group, const Collective& collective) override;
  Status wait_sends() override;

 private:
  // Holds one rank's view of a group.
  struct Seated {
    Group* group = nullptr;
    size_t position = 0;
    uint64_t phase = 0;
    std::vector<const Collective*> brought;  // by position
    ShareScratch scratch;
    Member& own() { return group->members[position]; }
    size_t size() const { return group->members.size(); }
  };

  Status post(int32_t route, const Message& message);
  Letters& letters(int64_t sender, int64_t receiver);
  Mailbox& mailbox(int64_t sender, int64_t receiver, int32_t communicator);
  int32_t open_group(int32_t communicator, const std::vector<int64_t>& ranks);
  template <class Ready>
  bool wait(int64_t peer, Ready ready);
  Status late(const std::string& what, int64_t peer);
  Status arrive(Seated& seated, const char* what);
  Status compare(Seated& seated, const char* what);

  Shared& shared_;
  const int64_t rank_;
  double timeout_;
  std::vector<Mailbox*> routes_;
  std::vector<Mailbox*> outgoing_;  // of routes_, those that send
  std::deque<Seated> groups_;       // [0] is the world
};

// ---- Waiting ------------------------------------------------------------------------------------

// Waits; returns true also when the job has stopped: the caller looks at shared_.stopped next.
template <class Ready>
bool InprocTransport::wait(int64_t peer, Ready ready) {
  const auto over = [&] { return ready() || shared_.stopped.load() >= 0; };
  if (over()) return true;
  Doorbell& bell = shared_.bell(rank_);
  Patience patience(shared_.seat(rank_), timeout_);
  patience.wait_for(peer);
  const std::chrono::duration<double> interval(patience.interval());
  for (int spins = shared_.spins; !bell.wait(spins, interval, over); spins = 0)
    if (!patience.look()) return false;
  patience.done();
  return true;
}

Status InprocTransport::check_stopped() {
  int64_t by = shared_.stopped.load();
  if (by < 0) return ok_status();
  std::lock_guard lock(shared_.mutex);
  return stopped_by(rank_, by, shared_.reason);
}

Status InprocTransport::late(const std::string& what, int64_t peer) {
  const auto chain =
      chain_of_waits(rank_, peer, timeout_ / 2, [&](int64_t rank) { return &shared_.seat(rank); });
  return timed_out(rank_, timeout_, what, chain, [&](int64_t rank) -> std::string {
    const char* const at = shared_.seat(rank).activity.load();
    return at != nullptr ? at : "";
  });
}

void InprocTransport::abort(const Error& reason) {
  {
    std::lock_guard lock(shared_.mutex);
    if (shared_.stopped.load() >= 0) return;
    shared_.reason = reason.message;
    shared_.stopped.store(rank_);
  }
  for (Place& place : shared_.places) place.bell.ring();
}

// ---- Host bytes ---------------------------------------------------------------------------------

Letters& InprocTransport::letters(int64_t sender, int64_t receiver) {
  std::lock_guard lock(shared_.mutex);
  return shared_.letters[{sender, receiver}];
}

Status InprocTransport::tell(int64_t rank, std::span<const std::byte> bytes) {
  Letters& to = letters(rank_, rank);
  {
    std::lock_guard lock(to.mutex);
    to.queue.emplace_back(bytes.begin(), bytes.end());
    to.count.fetch_add(1);
  }
  shared_.bell(rank).ring();
  return ok_status();
}

Status InprocTransport::hear(int64_t rank, std::span<std::byte> bytes, const char* what) {
  Letters& from = letters(rank, rank_);
  if (!wait(rank, [&] { return from.count.load() > 0; }))
    return late(fmt::format("in the {} for", what), rank);
  PIPER_TRY(check_stopped());
  std::lock_guard lock(from.mutex);
  const std::vector<std::byte> letter = std::move(from.queue.front());
  from.queue.pop_front();
  from.count.fetch_sub(1);
  if (letter.size() != bytes.size())
    return size_mismatch(rank_, rank, fmt::format("in the {} from", what), std::ssize(letter),
                         std::ssize(bytes));
  std::copy(letter.begin(), letter.end(), bytes.begin());
  return ok_status();
}

// ---- Registration -------------------------------------------------------------------------------

Mailbox& InprocTransport::mailbox(int64_t sender, int64_t receiver, int32_t communicator) {
  std::lock_guard lock(shared_.mutex);
  auto [place, fresh] = shared_.mailboxes.try_emplace({sender, receiver, communicator});
  Mailbox& box = place->second;
  if (fresh) {  // the other side may be using it already
    box.sender = sender;
    box.receiver = receiver;
    box.communicator = communicator;
  }
  return box;
}

Result<int32_t> InprocTransport::add_send(int64_t peer, int32_t communicator, int64_t in_flight,
                                          int32_t) {
  PIPER_TRY(check_peer(rank_, world(), peer));
  Mailbox& box = mailbox(rank_, peer, communicator);
  box.ring.resize(std::max(box.ring.size(), static_cast<size_t>(in_flight)));
  routes_.push_back(&box);
  outgoing_.push_back(&box);
  return static_cast<int32_t>(routes_.size() - 1);
}

Result<int32_t> InprocTransport::add_recv(int64_t peer, int32_t communicator, int32_t) {
  PIPER_TRY(check_peer(rank_, world(), peer));
  routes_.push_back(&mailbox(peer, rank_, communicator));
  return static_cast<int32_t>(routes_.size() - 1);
}

int32_t InprocTransport::open_group(int32_t communicator, const std::vector<int64_t>& ranks) {
  std::lock_guard lock(shared_.mutex);
  Group& group = shared_.groups[{communicator, ranks}];
  if (group.members.empty()) {
    group.ranks = ranks;
    for (size_t i = 0; i < ranks.size(); ++i) group.members.emplace_back();
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].group == &group) return static_cast<int32_t>(i);
  }
  Seated& seated = groups_.emplace_back();
  seated.group = &group;
  seated.position =
      static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  seated.scratch.to.resize(ranks.size());
  seated.scratch.from.resize(ranks.size());
  for (const Member& member : group.members) seated.brought.push_back(&member.brings);
  return static_cast<int32_t>(groups_.size() - 1);
}

Result<int32_t> InprocTransport::add_group(std::span<const int64_t> ranks, int32_t communicator,
                                           int32_t) {
  PIPER_TRY(check_group(rank_, world(), ranks));
  return open_group(communicator, {ranks.begin(), ranks.end()});
}

// ---- Messages -----------------------------------------------------------------------------------

void copy_message(const Message& message, std::span<const MessagePart> to) {
  const MessagePart whole{const_cast<std::byte*>(message.data), message.bytes};
  copy_parts(message.parts.empty() ? std::span(&whole, 1) : message.parts, to,
             [](std::byte* into, const std::byte* from, int64_t size) {
               std::memcpy(into, from, static_cast<size_t>(size));
             });
}

Status InprocTransport::post(int32_t route, const Message& message) {
  Mailbox& box = *routes_[static_cast<size_t>(route)];
  uint64_t number = box.sent.load();
  auto room = [&] { return number - box.received.load() < box.ring.size(); };
  if (!room()) {  // more in flight than was promised
    if (!wait(box.receiver, room)) {
      return late(fmt::format("to send on communicator {} to", box.communicator), box.receiver);
    }
    PIPER_TRY(check_stopped());
  }
  box.ring[number % box.ring.size()] = message;
  box.sent.store(number + 1);
  shared_.bell(box.receiver).ring();
  return ok_status();
}

Status InprocTransport::send(int32_t route, const std::byte* data, int64_t bytes) {
  return post(route, {data, bytes, {}});
}

Status InprocTransport::send(int32_t route, std::span<const MessagePart> parts) {
  return post(route, {nullptr, bytes_of(parts), parts});
}

Status InprocTransport::recv(int32_t route, std::span<const MessagePart> parts) {
  Mailbox& box = *routes_[static_cast<size_t>(route)];
  uint64_t number = box.received.load();
  if (!wait(box.sender, [&] { return box.sent.load() > number; })) {
    return late(fmt::format("for a message on communicator {} from", box.communicator), box.sender);
  }
  PIPER_TRY(check_stopped());
  const Message message = box.ring[number % box.ring.size()];
  if (message.bytes != bytes_of(parts)) {
    return size_mismatch(rank_, box.sender,
                         fmt::format("on communicator {} from", box.communicator), message.bytes,
                         bytes_of(parts));
  }
  copy_message(message, parts);
  box.received.store(number + 1);
  shared_.bell(box.sender).ring();
  return ok_status();
}

Status InprocTransport::wait_sends() {
  for (Mailbox* box : outgoing_) {
    if (box->received.load() == box->sent.load()) continue;
    if (!wait(box->receiver, [&] { return box->received.load() == box->sent.load(); })) {
      return late(fmt::format("for a message on communicator {} to be taken by", box->communicator),
                  box->receiver);
    }
    PIPER_TRY(check_stopped());
  }
  return ok_status();
}

// ---- Collectives --------------------------------------------------------------------------------

// Does one phase: returns when all members have come as far.
Status InprocTransport::arrive(Seated& seated, const char* what) {
  Group& group = *seated.group;
  uint64_t phase = ++seated.phase;
  seated.own().arrived.store(phase);
  for (int64_t other : group.ranks) {
    if (other != rank_) shared_.bell(other).ring();
  }
  for (size_t i = 0; i < group.members.size(); ++i) {
    Member& member = group.members[i];
    if (member.arrived.load() >= phase) continue;
    if (!wait(group.ranks[i], [&] { return member.arrived.load() >= phase; })) {
      return late(fmt::format("in the {} of ranks [{}] for", what, fmt::join(group.ranks, ",")),
                  group.ranks[i]);
    }
    PIPER_TRY(check_stopped());
  }
  return ok_status();
}

// Publishes what this rank brings, and does its share when all members' can be read.
Status InprocTransport::run(int32_t group, const Collective& collective) {
  Seated& seated = groups_[static_cast<size_t>(group)];
  if (collective.kind == InstructionKind::kAllReduce && seated.size() == 1) return ok_status();
  const char* const what = info(collective.kind).noun;
  seated.own().brings = collective;
  PIPER_TRY(arrive(seated, what));
  Status same = compare(seated, what);
  // If any two differ, every member finds one that differs from it: all wait here, so that none
  // goes on while another still reads what it brought.
  if (same) do_share(seated.brought, seated.position, seated.scratch);
  PIPER_TRY(arrive(seated, what));
  return same;
}

Status InprocTransport::compare(Seated& seated, const char* what) {
  const Collective& own = seated.own().brings;
  for (size_t i = 0; i < seated.size(); ++i) {
    const Collective& other = *seated.brought[i];
    if (are_alike(own, other)) continue;
    if (bytes_of(other) != bytes_of(own)) {
      return size_mismatch(rank_, seated.group->ranks[i], fmt::format("in the {} with", what),
                           bytes_of(other), bytes_of(own));
    }
    return fail("rank {} brings other elements to the {} than rank {}", rank_, what,
                seated.group->ranks[i])
        .with_code(ExitCode::kPlan);
  }
  return ok_status();
}

class World final : public InprocWorld {
 public:
  World(int64_t world, const TransportOptions& options) : shared_(world, options) {
    for (int64_t i = 0; i < world; ++i) {
      ranks_.push_back(std::make_unique<InprocTransport>(shared_, i));
    }
  }
  Transport& rank(int64_t rank) override { return *ranks_[static_cast<size_t>(rank)]; }

 private:
  Shared shared_;
  std::vector<std::unique_ptr<InprocTransport>> ranks_;
};

}  // namespace

std::unique_ptr<InprocWorld> make_inproc_world(int64_t world, const TransportOptions& options) {
  PIPER_CHECK(world > 0, "a world of {} ranks", world);
  return std::make_unique<World>(world, options);
}

}  // namespace piper
