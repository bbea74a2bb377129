// The meeting of a TCP job's processes at rank 0.
#include "rendezvous.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "piper/runtime/transport.h"

namespace piper::process {

struct Ask {
  char magic[8] = {};
  uint64_t job = 0;  // of those that look up
  int64_t rank = 0, world = 0;
  int64_t wanted = -1;  // a rank that is looked up; -1: joins
  int64_t port = 0;     // where its messages arrive
};

namespace {

using Clock = std::chrono::steady_clock;

constexpr char kMagic[8] = {'p', 'i', 'p', 'e', 'r', ' ', '1', '\n'};
constexpr double kSilence = 10;       // seconds that a guest may say nothing
constexpr size_t kExtraGuests = 256;  // guests beyond the ranks
constexpr double kLookUp = 10;        // seconds
constexpr std::chrono::milliseconds kRetry{50};

struct Answer {
  char magic[8] = {};
  uint64_t job = 0;
  Place place;
  int32_t fine = 0;
  char text[512] = {};  // what is wrong
};

Answer make_answer(uint64_t job, const Place& place, const std::string& problem) {
  Answer answer;
  std::memcpy(answer.magic, kMagic, sizeof kMagic);
  answer.job = job;
  answer.place = place;
  answer.fine = problem.empty() ? 1 : 0;
  std::memcpy(answer.text, problem.data(), std::min(problem.size(), sizeof answer.text - 1));
  return answer;
}

Ask make_ask(uint64_t job, int64_t rank, int64_t world, int64_t wanted, uint16_t port) {
  Ask ask;
  std::memcpy(ask.magic, kMagic, sizeof kMagic);
  ask.job = job;
  ask.rank = rank;
  ask.world = world;
  ask.wanted = wanted;
  ask.port = port;
  return ask;
}

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

uint64_t random_number() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number))
    number = static_cast<uint64_t>(Clock::now().time_since_epoch().count()) ^
             static_cast<uint64_t>(getpid()) << 40;
  return number;
}

std::string print(const HostPort& at) { return host_and_port(at.host, at.port); }

Error peer_error(std::string text) { return fail("{}", text).with_code(ExitCode::kPeer); }

}  // namespace

// Describes who has connected: nothing of it is believed until a whole question has come.
struct Rendezvous::Guest {
  Socket socket;
  Clock::time_point came = Clock::now();
  Ask ask;
  size_t got = 0;
  bool joined = false, leaves = false;
};

Result<std::unique_ptr<Rendezvous>> Rendezvous::open(const HostPort& at, int64_t world,
                                                     uint16_t port, const StartLimit& limit) {
  auto listener = listen_on(at.port);
  if (!listener)
    return std::move(listener).error().with_note(
        "help: rank 0 listens there for the others; --rendezvous HOST:PORT names another port");
  try {
    return std::unique_ptr<Rendezvous>(
        new Rendezvous(*std::move(listener), at, world, port, limit));
  } catch (const std::system_error& problem) {
    return fail("no thread or socket for the rendezvous: {}", problem.what())
        .with_code(ExitCode::kStorage);
  }
}

Rendezvous::Rendezvous(Socket listener, const HostPort& at, int64_t world, uint16_t port,
                       const StartLimit& limit)
    : listener_(std::move(listener)),
      at_(at),
      world_(world),
      limit_(limit),
      places_(static_cast<size_t>(world)),
      job_(random_number()) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    throw std::system_error(errno, std::generic_category());  // nobody could wake the thread
  wake_in_ = Socket(ends[0]);
  wake_out_ = Socket(ends[1]);
  places_[0].port = port;  // at the address at which others come here
  thread_ = std::thread([this] { serve(); });
}

Rendezvous::~Rendezvous() {
  wake_in_ = Socket();
  shutdown(wake_out_.file(), SHUT_RDWR);
  thread_.join();
}

Result<uint64_t> Rendezvous::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return complete_ || !problem_.empty(); });
  if (!problem_.empty()) return peer_error(problem_);
  return job_;
}

Place Rendezvous::place(int64_t rank) {
  std::lock_guard lock(mutex_);
  return places_[static_cast<size_t>(rank)];
}

void Rendezvous::serve() {
  const auto start = Clock::now();
  for (;;) {
    std::vector<pollfd> files{{wake_out_.file(), POLLIN, 0}, {listener_.file(), POLLIN, 0}};
    for (const auto& guest : guests_) files.push_back({guest->socket.file(), POLLIN, 0});
    poll(files.data(), files.size(), 100);
    if (files[0].revents != 0) return;
    for (size_t i = 0; i < guests_.size(); ++i) {
      Guest& guest = *guests_[i];
      const bool silent = !guest.joined && since(guest.came) > kSilence;
      guest.leaves = files[i + 2].revents != 0 ? !hear(guest) : silent;
    }
    std::erase_if(guests_, [](const auto& guest) { return guest->leaves; });
    if (files[1].revents != 0) accept_guests();
    if (come_ == world_ && !complete_) tell_all();
    if (complete_ || !problem_.empty()) continue;
    if (limit_.is_told_to_stop())
      end_with(fmt::format("rank 0 was told to stop while it waited at {} for {}", print(at_),
                           missing()));
    else if (since(start) > limit_.timeout_s)
      end_with(fmt::format("rank 0 waited {:.3g} s at {} for {}", limit_.timeout_s, print(at_),
                           missing()));
  }
}

void Rendezvous::accept_guests() {
  const size_t most = static_cast<size_t>(world_) + kExtraGuests;
  while (guests_.size() < most) {
    Socket socket = accept_from(listener_);
    if (!socket) return;
    guests_.push_back(std::make_unique<Guest>());
    guests_.back()->socket = std::move(socket);
  }
}

bool Rendezvous::hear(Guest& guest) {
  if (guest.joined) {  // nothing more is to be said: it has ended
    if (complete_ || !problem_.empty()) return false;
    Place listens = peer_place_of(guest.socket);
    const std::string from = to_string(listens);
    listens.port = static_cast<uint16_t>(guest.ask.port);
    end_with(fmt::format("rank {} ({}) was lost before all had come to {}: {}", guest.ask.rank,
                         from, print(at_), why_lost(listens, "it was closed")));
    return false;
  }
  const ssize_t now = recv(guest.socket.file(), reinterpret_cast<char*>(&guest.ask) + guest.got,
                           sizeof(Ask) - guest.got, 0);
  if (now < 0) return errno == EAGAIN || errno == EINTR;
  if (now == 0) return false;
  guest.got += static_cast<size_t>(now);
  const size_t known = std::min(guest.got, sizeof kMagic);
  if (std::memcmp(guest.ask.magic, kMagic, known) != 0) return false;  // a stranger
  return guest.got < sizeof(Ask) || answer(guest);
}

bool Rendezvous::answer(Guest& guest) {
  const Ask& ask = guest.ask;
  if (ask.port <= 0 || ask.port > 65535 || ask.wanted >= world_) return false;
  if (ask.wanted < 0) return join(guest);
  if (ask.job != job_ || !complete_) return false;
  const Answer found = make_answer(job_, place_for(guest.socket, ask.wanted), "");
  write_all(guest.socket, &found, sizeof found, 1);
  return false;
}

// Lets a process join; anything wrong ends the start of the job for all.
bool Rendezvous::join(Guest& guest) {
  const Ask& ask = guest.ask;
  Place place = peer_place_of(guest.socket);
  if (ask.world != world_) {
    end_with(fmt::format("rank {} at {} was started as one of {}, rank 0 at {} as one of {}",
                         ask.rank, to_string(place), ask.world, print(at_), world_));
  } else if (ask.rank < 0 || ask.rank >= world_) {
    end_with(fmt::format("a process at {} was started as rank {} of {}", to_string(place), ask.rank,
                         world_));
  } else if (ask.rank == 0) {
    end_with(fmt::format("two processes were started as rank 0: at {} and at {}", print(at_),
                         to_string(place)));
  } else if (const Place other = places_[static_cast<size_t>(ask.rank)]; other.family != 0) {
    end_with(fmt::format("two processes were started as rank {}: at {} and at {}", ask.rank,
                         to_string(other), to_string(place)));
  }
  if (!problem_.empty()) {
    const Answer refusal = make_answer(0, {}, problem_);
    write_all(guest.socket, &refusal, sizeof refusal, 1);
    return false;
  }
  place.port = static_cast<uint16_t>(ask.port);
  {
    std::lock_guard lock(mutex_);
    places_[static_cast<size_t>(ask.rank)] = place;
  }
  ++come_;
  return guest.joined = true;
}

// Returns the address at which the asker finds a rank. One that came over the loopback is on rank
// 0's host, so it is found at the address by which the asker knows rank 0.
Place Rendezvous::place_for(const Socket& asker, int64_t rank) const {
  Place place = places_[static_cast<size_t>(rank)];
  if (place.family != 0 && !(place.is_loopback() && !peer_place_of(asker).is_loopback()))
    return place;
  const uint16_t port = place.port;
  place = place_of(asker);
  place.port = port;
  return place;
}

void Rendezvous::tell_all() {
  for (const auto& guest : guests_) {
    if (!guest->joined) continue;
    const int64_t parent = (guest->ask.rank - 1) / Control::kFanOut;
    const Answer found = make_answer(job_, place_for(guest->socket, parent), "");
    write_all(guest->socket, &found, sizeof found, 1);
  }
  {
    std::lock_guard lock(mutex_);
    complete_ = true;
  }
  std::erase_if(guests_, [](const auto& guest) { return guest->joined; });
  changed_.notify_all();
}

void Rendezvous::end_with(std::string text) {
  for (const auto& guest : guests_) {
    if (!guest->joined) continue;
    const Answer refusal = make_answer(0, {}, text);
    write_all(guest->socket, &refusal, sizeof refusal, 1);
  }
  std::lock_guard lock(mutex_);
  problem_ = std::move(text);
  changed_.notify_all();
}

std::string Rendezvous::missing() const {
  constexpr size_t kMost = 8;
  std::vector<int64_t> ranks;
  for (int64_t rank = 1; rank < world_; ++rank)
    if (places_[static_cast<size_t>(rank)].family == 0) ranks.push_back(rank);
  const std::string more =
      ranks.size() > kMost ? fmt::format(" and {} more", ranks.size() - kMost) : "";
  const auto shown = std::span(ranks).first(std::min(kMost, ranks.size()));
  return fmt::format("rank{} {}{} of {}, which did not come", ranks.size() == 1 ? "" : "s",
                     fmt::join(shown, ", "), more, world_);
}

// ---- The other ranks ----------------------------------------------------------------------------

namespace {

Socket connect_to_any(const HostPort& at, std::string& problem) {
  for (const Place& place : resolve(at, problem)) {
    Socket socket = connect_to(place, 1);
    if (socket) return socket;
    problem = std::strerror(errno);
  }
  return {};
}

// Waits until something comes. Nothing does: false, with errno as read_all sets it.
bool waits_for_answer(const Socket& socket, double seconds, const StartLimit& limit) {
  const auto start = Clock::now();
  do {
    pollfd file{socket.file(), POLLIN, 0};
    if (poll(&file, 1, 100) > 0) return true;
  } while (since(start) < seconds && !limit.is_told_to_stop());
  errno = ETIMEDOUT;
  return false;
}

// Returns whether rank 0 has answered, and no other program.
bool is_answer(const Answer& answer) {
  return std::memcmp(answer.magic, kMagic, sizeof kMagic) == 0 &&
         std::memchr(answer.text, 0, sizeof answer.text) != nullptr;
}

}  // namespace

Result<Joined> join_rendezvous(const HostPort& at, int64_t rank, int64_t world, uint16_t port,
                               const StartLimit& limit) {
  const double timeout_s = limit.timeout_s;
  const Ask ask = make_ask(0, rank, world, -1, port);
  const auto start = Clock::now();
  std::string problem;
  do {
    const Socket socket = connect_to_any(at, problem);
    Answer answer;
    if (socket && write_all(socket, &ask, sizeof ask, 1)) {
      // Rank 0 says itself who did not come, a little later.
      const double left_s = timeout_s - since(start) + 2;
      if (waits_for_answer(socket, left_s, limit) &&
          read_all(socket, &answer, sizeof answer, kLookUp)) {
        if (!is_answer(answer))
          return peer_error(fmt::format(
              "rank {} asked for rank 0 at {}, where another program answers", rank, print(at)));
        if (answer.fine == 0) return peer_error(answer.text);
        return Joined{answer.job, answer.place};
      }
      problem = errno == 0 ? "the connection was closed" : std::strerror(errno);
    }
    if (limit.is_told_to_stop())
      return peer_error(fmt::format("rank {} was told to stop while it waited for rank 0 at {}",
                                    rank, print(at)));
    std::this_thread::sleep_for(kRetry);
  } while (since(start) < timeout_s);
  return peer_error(fmt::format("rank {} waited {:.3g} s for rank 0 at {}: {}", rank, timeout_s,
                                print(at), problem))
      .with_note("help: look at what rank 0 said; --start-timeout gives a slow start more time");
}

Result<Place> look_up(const HostPort& at, uint64_t job, int64_t rank, int64_t wanted) {
  std::string problem;
  const Socket socket = connect_to_any(at, problem);
  const Ask ask = make_ask(job, rank, 0, wanted, 1);
  Answer answer;
  if (socket && write_all(socket, &ask, sizeof ask, kLookUp) &&
      read_all(socket, &answer, sizeof answer, kLookUp) && is_answer(answer) && answer.job == job)
    return answer.place;
  return peer_error(fmt::format("rank {} asked rank 0 at {} where rank {} listens: {}", rank,
                                print(at), wanted, problem.empty() ? "no answer" : problem));
}

}  // namespace piper::process
