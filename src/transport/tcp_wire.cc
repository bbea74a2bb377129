// Messages over sockets. Who sends first to another connects to it; what it sends goes over that
// line, and back come only leaves to send. Small messages go at once and wait at the receiver; a
// large one is offered, and goes straight to its place when the receiver wants it: nobody keeps
// more than small messages for later. All is done by the rank's own thread when it waits.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "errors.h"
#include "rendezvous.h"
#include "wire.h"

namespace piper {
namespace process {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSmall = 64 << 10;  // bytes that go without leave
constexpr double kConnect = 10;       // seconds
constexpr double kFlush = 1;          // seconds for the last words
constexpr double kGrace = 0.2;        // seconds in which a rank that is gone may have said why
constexpr size_t kStrangers = 64;     // connections of which nobody knows whose they are
constexpr int64_t kMaxReason = 500;

enum class Kind : uint8_t { kHello, kSmall, kOffer, kLeave, kData, kAbort, kBye };

struct Frame {
  Kind kind = Kind::kBye;
  Lane lane = Lane::kMessages;
  uint16_t version = 1;
  int32_t tag = 0;
  uint64_t id = 0;    // of an offer, its leave and its data
  int64_t bytes = 0;  // of the message; they follow unless it is an offer or a leave
};

struct Hello {
  char magic[8] = {'p', 'i', 'p', 'e', 'r', ' ', 'm', '\n'};
  uint64_t job = 0;
  int64_t rank = 0;
  int64_t port = 0;  // where its messages arrive
};

// How far the parts of a message have been moved.
struct Cursor {
  const MessagePart* parts = nullptr;
  size_t count = 0, part = 0;
  int64_t done = 0, left = 0;  // of the part, of all
  Cursor() = default;
  explicit Cursor(std::span<const MessagePart> all) : parts(all.data()), count(all.size()) {
    for (const MessagePart& one : all) left += one.bytes;
  }
  size_t stretches(std::span<iovec> to) const {
    size_t n = 0;
    for (size_t p = part; p < count && n < to.size(); ++p) {
      const int64_t from = p == part ? done : 0;
      if (parts[p].bytes > from)
        to[n++] = {parts[p].data + from, static_cast<size_t>(parts[p].bytes - from)};
    }
    return n;
  }
  void advance(int64_t bytes) {
    left -= bytes;
    for (done += bytes; part < count && done >= parts[part].bytes; ++part)
      done -= parts[part].bytes;
  }
};

// A send or a receive, from its start until it has been tested.
struct Work {
  Address address;
  MessagePart single;  // where a message has one part
  Cursor cursor;
  int64_t bytes = 0, got = 0;
  uint64_t id = 0;
  bool done = false;
};

// A message that came before it was wanted: the bytes of a small one, or an offer.
struct Early {
  Frame frame;
  std::vector<std::byte> bytes;
  MessagePart part;
  bool complete = false;
  Work* taker = nullptr;
};

struct Line {
  Socket socket;
  int64_t peer = -1;  // not known before its hello
  bool own = false;   // this rank has opened it
  bool parted = false, closed = false;
  Clock::time_point since = Clock::now();
  // What is being read: a frame, then what follows it.
  Frame frame;
  size_t frame_got = 0;
  Cursor body;
  Work* work = nullptr;
  Early* early = nullptr;
  std::vector<std::byte> text;  // of a hello, a reason, or of what nobody wants
  MessagePart text_part;
  // What is to be written.
  struct Words {
    Frame frame;
    size_t frame_done = 0;
    Cursor body;
    Work* work = nullptr;  // ends when they are written
    std::vector<std::byte> own;
    MessagePart own_part;
  };
  std::deque<Words> queue;
};

// What comes from one rank.
struct Inbox {
  std::deque<Work*> wanted;
  std::deque<std::unique_ptr<Early>> early;
  std::unordered_map<uint64_t, Work*> awaited;  // by the id of the offer that got its leave
};

class TcpWire final : public Wire {
 public:
  TcpWire(HostPort at, int64_t rank, int64_t world)
      : at_(std::move(at)), rank_(rank), world_(world) {}
  ~TcpWire() override;
  Status start(double timeout_s);

  std::string_view name() const override { return "tcp"; }
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return world_; }
  uint64_t job() const override { return job_; }
  Status add_message(std::span<const MessagePart>) override { return ok_status(); }
  Status send(Transfer& transfer, const Address& to, std::span<const MessagePart> parts) override;
  Status receive(Transfer& transfer, const Address& from,
                 std::span<const MessagePart> parts) override;
  Status test(Transfer& transfer, int64_t& got) override;
  Status check_stopped() override;
  void rest(double seconds) override { progress(seconds); }
  double looks_for() const override { return crowded_ ? 0 : 2e-3; }
  void abort(const Error& reason) override;
  void give_up() override { broken_ = true; }
  std::string where(int64_t peer) const override;

 private:
  Work& open(Transfer& transfer, const Address& address, std::span<const MessagePart> parts);
  Result<Line*> line_to(int64_t peer);
  Result<Place> find(int64_t peer);
  Line& add_line(Socket socket, int64_t peer, bool own);
  void say(Line& line, const Frame& frame, std::string_view text = {});
  void push(Line& line, Line::Words words);
  void progress(double seconds);
  void accept_lines();
  void drop_lines();
  void read(Line& line);
  bool read_some(Line& line);
  bool begin(Line& line);
  bool begin_message(Line& line, Inbox& inbox);
  bool end(Line& line);
  bool greet(Line& line);
  void stop(Line& line);
  void write(Line& line);
  void lose(Line& line, const std::string& why);
  void take(Line& line, Work& work, Early& early);
  void give_leave(Inbox& inbox, int64_t peer, Work& work, const Frame& offer);
  void flush(double seconds);

  const HostPort at_;
  const int64_t rank_, world_;
  uint64_t job_ = 0;
  bool crowded_ = false;  // other ranks may need the core
  Socket listener_;
  std::unique_ptr<Rendezvous> rendezvous_;  // of rank 0
  std::vector<std::unique_ptr<Line>> lines_;
  std::unordered_map<int64_t, Line*> out_, in_;  // by peer
  std::unordered_map<int64_t, Place> places_;    // as far as known
  std::unordered_map<int64_t, Inbox> inboxes_;
  std::unordered_map<uint64_t, std::pair<Line*, Work*>> offered_;
  std::vector<std::unique_ptr<Work>> works_;
  std::vector<size_t> free_;
  uint64_t next_id_ = 0;
  std::vector<pollfd> files_;
  int64_t stopped_by_ = -1;
  std::string reason_, lost_;
  bool aborted_ = false, broken_ = false;
};

// ---- Start and end ------------------------------------------------------------------------------

Status TcpWire::start(double timeout_s) {
  crowded_ = world_ > sysconf(_SC_NPROCESSORS_ONLN);
  PIPER_ASSIGN(listener_, listen_on(0));
  const uint16_t port = place_of(listener_).port;
  if (rank_ == 0) {
    PIPER_ASSIGN(rendezvous_, Rendezvous::open(at_, world_, port, timeout_s));
    PIPER_ASSIGN(job_, rendezvous_->wait());
    return ok_status();
  }
  PIPER_ASSIGN(const Joined joined, join_rendezvous(at_, rank_, world_, port, timeout_s));
  job_ = joined.job;
  places_[(rank_ - 1) / Control::kFanOut] = joined.parent;
  return ok_status();
}

// Who has heard a bye does not take the end of the line for the end of a rank.
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

// What the others get to know: this rank's reason, or the one that has stopped it. Memory of what
// is under way may be gone: a line in the middle of a message is closed.
void TcpWire::abort(const Error& reason) {
  if (aborted_) return;
  aborted_ = true;
  Frame frame{Kind::kAbort};
  frame.tag = static_cast<int32_t>(stopped_by_ >= 0 ? stopped_by_ : rank_);
  const std::string text = (stopped_by_ >= 0 ? reason_
                            : lost_.empty()  ? reason.message
                                             : lost_)
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

Result<Line*> TcpWire::line_to(int64_t peer) {
  if (const auto known = out_.find(peer); known != out_.end()) return known->second;
  PIPER_ASSIGN(const Place place, find(peer));
  places_[peer] = place;
  Socket socket = connect_to(place, kConnect);
  if (!socket)
    return fail("rank {} cannot connect to rank {} at {}: {}", rank_, peer, to_string(place),
                std::strerror(errno))
        .with_code(ExitCode::kPeer);
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
    if (!socket) return;
    read(add_line(std::move(socket), -1, false));
  }
}

// Strangers that said something else than a hello, or nothing for long.
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

Status TcpWire::check_stopped() {
  if (!lost_.empty() && stopped_by_ < 0) {
    const auto until = Clock::now() + std::chrono::duration<double>(kGrace);
    while (stopped_by_ < 0 && Clock::now() < until) progress(kGrace / 10);
  }
  if (stopped_by_ >= 0) return stopped_by(rank_, stopped_by_, reason_);
  if (!lost_.empty())
    return fail("{}", lost_)
        .with_code(ExitCode::kPeer)
        .with_note("help: look at what that rank said last, and why its process ended");
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

// ---- Writing ------------------------------------------------------------------------------------

void TcpWire::push(Line& line, Line::Words words) {
  line.queue.push_back(std::move(words));
  Line::Words& last = line.queue.back();
  if (!last.own.empty()) {
    last.own_part = {last.own.data(), std::ssize(last.own)};
    last.body = Cursor(std::span(&last.own_part, 1));
  }
  if (line.queue.size() == 1) write(line);
}

void TcpWire::say(Line& line, const Frame& frame, std::string_view text) {
  Line::Words words;
  words.frame = frame;
  words.frame.bytes = std::max(words.frame.bytes, std::ssize(text));
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  words.own.assign(bytes.begin(), bytes.end());
  push(line, std::move(words));
}

void TcpWire::write(Line& line) {
  while (!line.closed && !line.queue.empty()) {
    Line::Words& words = line.queue.front();
    iovec stretches[16];
    size_t count = 0;
    const size_t frame_left = sizeof(Frame) - words.frame_done;
    if (frame_left > 0)
      stretches[count++] = {reinterpret_cast<std::byte*>(&words.frame) + words.frame_done,
                            frame_left};
    count += words.body.stretches(std::span(stretches).subspan(count));
    msghdr message{};
    message.msg_iov = stretches;
    message.msg_iovlen = count;
    const ssize_t now = sendmsg(line.socket.file(), &message, MSG_NOSIGNAL);
    if (now < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      if (!broken_ && !aborted_) read(line);  // it may have said why
      return lose(line, "its process ended");
    }
    const size_t of_frame = std::min(static_cast<size_t>(now), frame_left);
    words.frame_done += of_frame;
    words.body.advance(now - static_cast<ssize_t>(of_frame));
    if (words.frame_done < sizeof(Frame) || words.body.left > 0) continue;
    if (words.work != nullptr) words.work->done = true;
    line.queue.pop_front();
  }
}

// ---- Reading ------------------------------------------------------------------------------------

void TcpWire::read(Line& line) {
  while (!line.closed && read_some(line)) {
  }
}

// False when there is nothing more now.
bool TcpWire::read_some(Line& line) {
  iovec stretches[16];
  size_t count = 1;
  const bool in_frame = line.frame_got < sizeof(Frame);
  if (in_frame)
    stretches[0] = {reinterpret_cast<std::byte*>(&line.frame) + line.frame_got,
                    sizeof(Frame) - line.frame_got};
  else
    count = line.body.stretches(stretches);
  const ssize_t now = readv(line.socket.file(), stretches, static_cast<int>(count));
  if (now < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (now <= 0) {
    lose(line, "its process ended");
    return false;
  }
  bool fine = true;
  if (in_frame) {
    line.frame_got += static_cast<size_t>(now);
    if (line.frame_got == sizeof(Frame)) fine = begin(line);
  } else {
    line.body.advance(now);
  }
  if (fine && line.frame_got == sizeof(Frame) && line.body.left == 0) fine = end(line);
  if (!fine) lose(line, "it sends what no rank of this job would send");
  return fine;
}

bool TcpWire::begin(Line& line) {
  const Frame& frame = line.frame;
  line.body = Cursor();
  line.work = nullptr;
  line.early = nullptr;
  if (frame.version != Frame{}.version || frame.bytes < 0 || frame.kind > Kind::kBye ||
      static_cast<size_t>(frame.lane) >= kLanes)
    return false;
  const bool is_text = frame.kind == Kind::kHello || frame.kind == Kind::kAbort;
  if ((line.peer < 0) != (frame.kind == Kind::kHello)) return false;
  if (is_text) {
    if (frame.bytes > static_cast<int64_t>(std::max<size_t>(sizeof(Hello), kMaxReason)))
      return false;
    line.text.resize(static_cast<size_t>(frame.bytes));
    line.text_part = {line.text.data(), frame.bytes};
    line.body = Cursor(std::span(&line.text_part, 1));
    return true;
  }
  if (frame.kind == Kind::kSmall || frame.kind == Kind::kOffer || frame.kind == Kind::kData)
    return !line.own && begin_message(line, inboxes_[line.peer]);
  return true;
}

bool TcpWire::begin_message(Line& line, Inbox& inbox) {
  const Frame& frame = line.frame;
  if (frame.kind == Kind::kData) {
    const auto found = inbox.awaited.find(frame.id);
    if (found == inbox.awaited.end() || found->second->bytes != frame.bytes) return false;
    line.work = found->second;
    line.body = line.work->cursor;
    inbox.awaited.erase(found);
    return true;
  }
  if (frame.kind == Kind::kSmall && frame.bytes > kSmall) return false;
  const auto wanted = std::find_if(inbox.wanted.begin(), inbox.wanted.end(), [&](Work* work) {
    return work->address.lane == frame.lane && work->address.tag == frame.tag;
  });
  Work* const work = wanted == inbox.wanted.end() ? nullptr : *wanted;
  if (work != nullptr) inbox.wanted.erase(wanted);
  if (work != nullptr && work->bytes == frame.bytes) {
    if (frame.kind == Kind::kOffer) give_leave(inbox, line.peer, *work, frame);
    if (frame.kind == Kind::kSmall) line.work = work, line.body = work->cursor;
    return true;
  }
  auto early = std::make_unique<Early>();
  early->frame = frame;
  if (work != nullptr) work->got = frame.bytes, work->done = true;  // of another size
  if (frame.kind == Kind::kSmall) {
    early->bytes.resize(static_cast<size_t>(frame.bytes));
    early->part = {early->bytes.data(), frame.bytes};
    line.body = Cursor(std::span(&early->part, 1));
    line.early = early.get();
  }
  inbox.early.push_back(std::move(early));
  return true;
}

void TcpWire::give_leave(Inbox& inbox, int64_t peer, Work& work, const Frame& offer) {
  inbox.awaited[offer.id] = &work;
  Frame leave{Kind::kLeave};
  leave.id = offer.id;
  say(*in_.at(peer), leave);
}

bool TcpWire::end(Line& line) {
  line.frame_got = 0;
  const Frame& frame = line.frame;
  if (line.work != nullptr) line.work->done = true;
  if (line.early != nullptr) {
    line.early->complete = true;
    if (line.early->taker != nullptr) take(line, *line.early->taker, *line.early);
  }
  if (frame.kind == Kind::kHello) return greet(line);
  if (frame.kind == Kind::kBye) line.parted = true;
  if (frame.kind == Kind::kAbort && stopped_by_ < 0) stop(line);
  if (frame.kind != Kind::kLeave) return true;
  const auto found = offered_.find(frame.id);
  if (found == offered_.end() || found->second.first != &line) return false;
  Work& work = *found->second.second;
  offered_.erase(found);
  Line::Words words;
  words.frame = {Kind::kData, work.address.lane, 1, work.address.tag, work.id, work.bytes};
  words.body = work.cursor;
  words.work = &work;
  push(line, std::move(words));
  return true;
}

// What has stopped this rank goes on to all that it talks with.
void TcpWire::stop(Line& line) {
  stopped_by_ = line.frame.tag;
  reason_.assign(reinterpret_cast<const char*>(line.text.data()), line.text.size());
  for (const auto& other : lines_)
    if (other.get() != &line && !other->closed && other->peer >= 0)
      say(*other, line.frame, reason_);
}

bool TcpWire::greet(Line& line) {
  Hello hello;
  if (line.text.size() != sizeof hello) return false;
  std::memcpy(&hello, line.text.data(), sizeof hello);
  const bool known = std::memcmp(hello.magic, Hello{}.magic, sizeof hello.magic) == 0 &&
                     hello.job == job_ && hello.rank >= 0 && hello.rank < world_ &&
                     hello.port > 0 && hello.port <= 65535 && !in_.contains(hello.rank);
  if (!known) return false;
  line.peer = hello.rank;
  in_[line.peer] = &line;
  Place place = peer_place_of(line.socket);
  place.port = static_cast<uint16_t>(hello.port);
  places_.try_emplace(line.peer, place);
  return true;
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

// A small message that has come gets to its place.
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

}  // namespace
}  // namespace process

Result<std::unique_ptr<Transport>> make_tcp_transport(const TransportOptions& options, int64_t rank,
                                                      int64_t world,
                                                      const std::string& rendezvous) {
  PIPER_ASSIGN(process::HostPort at, process::parse_host_port(rendezvous));
  if (rank < 0 || rank >= world)
    return fail("a process was started as rank {} of {}", rank, world).with_code(ExitCode::kUsage);
  auto wire = std::make_unique<process::TcpWire>(std::move(at), rank, world);
  PIPER_TRY(wire->start(options.start_timeout_s));
  return process::make_process_transport(std::move(wire), options);
}

}  // namespace piper
