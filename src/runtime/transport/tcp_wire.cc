// The wire over TCP: starts, ends, and frames of messages.
#include "tcp_wire.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "errors.h"

namespace piper {
namespace process {
namespace {

constexpr double kConnect = 10;    // seconds
constexpr double kFlush = 1;       // seconds for the last words
constexpr double kGrace = 0.2;     // seconds in which a rank that is gone may have said why
constexpr size_t kStrangers = 64;  // connections of which nobody knows whose they are

}  // namespace

// ---- Start and end ------------------------------------------------------------------------------

Status TcpWire::start(const StartLimit& limit) {
  crowded_ = world_ > sysconf(_SC_NPROCESSORS_ONLN);
  PIPER_ASSIGN(listener_, listen_on(0));
  const uint16_t port = place_of(listener_).port;
  if (rank_ == 0) {
    PIPER_ASSIGN(rendezvous_, Rendezvous::open(at_, world_, port, limit));
    PIPER_ASSIGN(job_, rendezvous_->wait());
    return ok_status();
  }
  PIPER_ASSIGN(const Joined joined, join_rendezvous(at_, rank_, world_, port, limit));
  job_ = joined.job;
  places_[(rank_ - 1) / Control::kFanOut] = joined.parent;
  return ok_status();
}

// Says bye, so that the others do not take the closed connections for the end of a rank.
TcpWire::~TcpWire() {
  if (!aborted_ && !broken_ && stopped_by_ < 0 && lost_.empty()) {
    for (const auto& line : lines_)
      if (line->peer >= 0) say(*line, Frame{Kind::kBye});
    flush(kFlush);
  }
}

void TcpWire::flush(double seconds) {
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  const auto is_left = [](const auto& line) { return !line->closed && !line->queue.empty(); };
  for (;;) {
    for (const auto& line : lines_)
      if (is_left(line)) write(*line);
    if (std::none_of(lines_.begin(), lines_.end(), is_left) || Clock::now() > until) return;
    poll(nullptr, 0, 1);
  }
}

// Tells the others this rank's reason, or the one that has stopped it. Memory of messages under way
// may be gone: a connection in the middle of a message is closed.
void TcpWire::abort(const Error& reason) {
  if (aborted_) return;
  aborted_ = true;
  Frame frame{Kind::kAbort};
  frame.tag = static_cast<int32_t>(stopped_by_ >= 0 ? stopped_by_ : rank_);
  const std::string text = (stopped_by_ >= 0 ? reason_
                            : lost_.empty()  ? reason.message
                                             : loss())
                               .substr(0, kMaxReason);
  if (rank_ > 0) (void)line_to((rank_ - 1) / Control::kFanOut);
  for (const auto& line : lines_) {
    if (line->closed || line->peer < 0) continue;
    auto& queue = line->queue;
    const bool cut = !queue.empty() && queue.front().frame_done > 0 && queue.front().own.empty() &&
                     queue.front().body.left > 0;
    if (cut) line->socket = Socket(), line->closed = true;
    if (cut) continue;
    std::erase_if(queue, [](const Line::Words& words) {
      return words.frame_done == 0 && words.frame.kind != Kind::kHello;
    });
    say(*line, frame, text);
  }
  flush(kFlush);
}

std::string TcpWire::where(int64_t peer) const {
  const auto known = places_.find(peer);
  return known == places_.end() || known->second.family == 0 ? "" : to_string(known->second);
}

// ---- Lines --------------------------------------------------------------------------------------

Line& TcpWire::add_line(Socket socket, int64_t peer, bool own) {
  Line& line = *lines_.emplace_back(std::make_unique<Line>());
  line.socket = std::move(socket);
  line.peer = peer;
  line.own = own;
  return line;
}

Result<Place> TcpWire::find(int64_t peer) {
  if (const auto known = places_.find(peer); known != places_.end()) return known->second;
  if (rendezvous_) return rendezvous_->place(peer);
  return look_up(at_, job_, rank_, peer);
}

// A rank that does not answer may have ended before: whoever has heard which rank failed first says
// so.
Error TcpWire::unreachable(Error why) {
  const auto until = Clock::now() + std::chrono::duration<double>(kGrace);
  while (!aborted_ && stopped_by_ < 0 && lost_.empty() && Clock::now() < until)
    progress(kGrace / 10);
  if (lost_.empty()) lost_ = why.message;
  if (aborted_) return why;
  return check_stopped().error();
}

Result<Line*> TcpWire::line_to(int64_t peer) {
  if (const auto known = out_.find(peer); known != out_.end()) return known->second;
  Result<Place> found = find(peer);
  if (!found) return unreachable(std::move(found).error());
  const Place place = *found;
  places_[peer] = place;
  Socket socket = connect_to(place, kConnect);
  if (!socket) {
    const int problem = errno;
    Error why = fail("rank {} cannot connect to rank {} at {}: {}", rank_, peer, to_string(place),
                     std::strerror(problem))
                    .with_code(ExitCode::kPeer);
    const bool is_own = problem == EMFILE || problem == ENFILE || problem == ENOBUFS;
    if (is_own) return why;
    return unreachable(std::move(why));
  }
  Line& line = add_line(std::move(socket), peer, true);
  out_[peer] = &line;
  Hello hello;
  hello.job = job_;
  hello.rank = rank_;
  hello.port = place_of(listener_).port;
  say(line, Frame{Kind::kHello}, {reinterpret_cast<const char*>(&hello), sizeof hello});
  return &line;
}

void TcpWire::accept_lines() {
  const auto strangers = [&] {
    return static_cast<size_t>(std::count_if(lines_.begin(), lines_.end(),
                                             [](const auto& line) { return line->peer < 0; }));
  };
  while (strangers() < kStrangers + static_cast<size_t>(Control::kFanOut)) {
    Socket socket = accept_from(listener_);
    if (!socket) {
      const bool is_full =
          errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (is_full && lost_.empty())
        lost_ = fmt::format("rank {} cannot take the connection of another rank: {}", rank_,
                            std::strerror(errno));
      return;
    }
    read(add_line(std::move(socket), -1, false));
  }
}

// Drops connections that began with something else than a hello, or said nothing for long.
void TcpWire::drop_lines() {
  std::erase_if(lines_, [](const auto& line) {
    return line->peer < 0 &&
           (line->closed || Clock::now() - line->since > std::chrono::duration<double>(kConnect));
  });
}

void TcpWire::lose(Line& line, const std::string& why) {
  if (line.closed) return;
  line.closed = true;
  const Place place = line.peer >= 0 ? peer_place_of(line.socket) : Place{};
  line.socket = Socket();
  if (line.peer < 0 || line.parted || !lost_.empty()) return;
  const std::string known = where(line.peer);
  lost_ = fmt::format("rank {} lost rank {} ({}): {}", rank_, line.peer,
                      known.empty() ? to_string(place) : known, why);
}

// Notes that a connection has ended; `problem` is the system's number, 0 where the other side has
// closed it. Why is asked later: a process that ends does not close all connections at once.
void TcpWire::ended(Line& line, int problem) {
  const bool is_first = lost_.empty();
  lose(line, "");
  if (!is_first || lost_.empty()) return;
  if (const auto known = places_.find(line.peer); known != places_.end())
    lost_place_ = known->second;
  lost_how_ = problem == 0 ? "it was closed" : std::strerror(problem);
}

const std::string& TcpWire::loss() {
  if (!lost_how_.empty()) lost_ += why_lost(lost_place_, std::exchange(lost_how_, {}));
  return lost_;
}

Status TcpWire::check_stopped() {
  if (!lost_.empty() && stopped_by_ < 0) {
    const auto until = Clock::now() + std::chrono::duration<double>(kGrace);
    while (stopped_by_ < 0 && Clock::now() < until) progress(kGrace / 10);
  }
  if (stopped_by_ >= 0) return stopped_by(rank_, stopped_by_, reason_);
  if (!lost_.empty())
    return fail("{}", loss())
        .with_code(ExitCode::kPeer)
        .with_note(
            lost_.ends_with("its process ended")
                ? "help: look at what that rank said last, and why its process ended"
                : "help: look at what that rank said last, and at what is between the hosts");
  return ok_status();
}

void TcpWire::progress(double seconds) {
  if (broken_ || aborted_) return;  // places of messages may be gone
  files_.assign(1, {listener_.file(), POLLIN, 0});
  for (const auto& line : lines_)
    files_.push_back({line->socket.file(),
                      static_cast<short>(line->queue.empty() ? POLLIN : POLLIN | POLLOUT), 0});
  const size_t count = lines_.size();
  if (poll(files_.data(), files_.size(), static_cast<int>(seconds * 1e3)) <= 0) return;
  for (size_t i = 0; i < count; ++i) {
    const short seen = files_[i + 1].revents;
    if ((seen & POLLOUT) != 0) write(*lines_[i]);
    if ((seen & (POLLIN | POLLHUP | POLLERR)) != 0) read(*lines_[i]);
  }
  if (files_[0].revents != 0) accept_lines();
  drop_lines();
}

// ---- Messages -----------------------------------------------------------------------------------

Work& TcpWire::open(Transfer& transfer, const Address& address,
                    std::span<const MessagePart> parts) {
  if (free_.empty()) {
    free_.push_back(works_.size());
    works_.push_back(std::make_unique<Work>());
  }
  transfer.handle = free_.back();
  transfer.open = true;
  free_.pop_back();
  Work& work = *works_[transfer.handle];
  work = Work{.address = address};
  if (parts.size() == 1) {
    work.single = parts[0];
    parts = std::span(&work.single, 1);
  }
  work.cursor = Cursor(parts);
  work.bytes = work.got = work.cursor.left;
  return work;
}

Status TcpWire::send(Transfer& transfer, const Address& to, std::span<const MessagePart> parts) {
  PIPER_ASSIGN(Line * line, line_to(to.peer));
  Work& work = open(transfer, to, parts);
  if (line->closed) return check_stopped();
  Line::Words words;
  words.frame = {Kind::kSmall, to.lane, 1, to.tag, 0, work.bytes};
  if (work.bytes <= kSmall) {
    words.body = work.cursor;
    words.work = &work;
  } else {
    words.frame.kind = Kind::kOffer;
    words.frame.id = work.id = ++next_id_;
    offered_[work.id] = {line, &work};
  }
  push(*line, std::move(words));
  return ok_status();
}

Status TcpWire::receive(Transfer& transfer, const Address& from,
                        std::span<const MessagePart> parts) {
  Work& work = open(transfer, from, parts);
  Inbox& inbox = inboxes_[from.peer];
  const auto found = std::find_if(inbox.early.begin(), inbox.early.end(), [&](const auto& early) {
    return early->taker == nullptr && early->frame.lane == from.lane &&
           early->frame.tag == from.tag;
  });
  if (found == inbox.early.end()) {
    inbox.wanted.push_back(&work);
    return ok_status();
  }
  Early& early = **found;
  if (early.frame.bytes != work.bytes) {
    work.got = early.frame.bytes;
    work.done = true;
  } else if (early.frame.kind == Kind::kOffer) {
    const Frame offer = early.frame;
    inbox.early.erase(found);
    give_leave(inbox, from.peer, work, offer);
  } else if (early.complete) {
    take(*in_.at(from.peer), work, early);
  } else {
    early.taker = &work;
  }
  return ok_status();
}

// Copies a small message that came early to its place.
void TcpWire::take(Line& line, Work& work, Early& early) {
  const std::byte* from = early.bytes.data();
  for (size_t p = 0; p < work.cursor.count; ++p) {
    const MessagePart& part = work.cursor.parts[p];
    if (part.bytes > 0) std::memcpy(part.data, from, static_cast<size_t>(part.bytes));
    from += part.bytes;
  }
  work.done = true;
  std::erase_if(inboxes_[line.peer].early, [&](const auto& one) { return one.get() == &early; });
}

Status TcpWire::test(Transfer& transfer, int64_t& got) {
  Work& work = *works_[transfer.handle];
  if (!work.done) progress(0);
  if (!work.done) return ok_status();
  got = work.got;
  transfer.open = false;
  free_.push_back(transfer.handle);
  return ok_status();
}

}  // namespace process

Result<std::unique_ptr<Transport>> make_tcp_transport(const TransportOptions& options, int64_t rank,
                                                      int64_t world,
                                                      const std::string& rendezvous) {
  PIPER_ASSIGN(process::HostPort at, process::parse_host_port(rendezvous));
  if (rank < 0 || rank >= world)
    return fail("a process was started as rank {} of {}", rank, world).with_code(ExitCode::kUsage);
  auto wire = std::make_unique<process::TcpWire>(std::move(at), rank, world);
  PIPER_TRY(wire->start({options.start_timeout_s, options.stop}));
  return process::make_process_transport(std::move(wire), options);
}

}  // namespace piper
