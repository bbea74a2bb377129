// Messages over sockets. Who sends first to another connects to it; what it sends goes over that
// line, and back come only leaves to send. Small messages go at once and wait at the receiver; a
// large one is offered, and goes straight to its place when the receiver wants it: nobody keeps
// more than small messages for later. All is done by the rank's own thread when it waits.
//
// tcp_wire.cc: the job, its lines and transfers; tcp_lines.cc: what is written to lines and read.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <chrono>
#include <deque>
#include <unordered_map>

#include "rendezvous.h"
#include "wire.h"

namespace piper::process {

using Clock = std::chrono::steady_clock;

inline constexpr int64_t kSmall = 64 << 10;  // bytes that go without leave
inline constexpr int64_t kMaxReason = 500;

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

// Says how far the parts of a message have been moved.
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

// Holds a send or a receive, from its start until it has been tested.
struct Work {
  Address address;
  MessagePart single;  // where a message has one part
  Cursor cursor;
  int64_t bytes = 0, got = 0;
  uint64_t id = 0;
  bool done = false;
};

// Holds a message that came before it was wanted: the bytes of a small one, or an offer.
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
  // Holds a frame that is to be written.
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

// Holds what has arrived from one rank.
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
  Status start(const StartLimit& limit);

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
  double spin_seconds() const override { return crowded_ ? 0 : 2e-3; }
  void abort(const Error& reason) override;
  void give_up() override { broken_ = true; }
  std::string where(int64_t peer) const override;

 private:
  Work& open(Transfer& transfer, const Address& address, std::span<const MessagePart> parts);
  Result<Line*> line_to(int64_t peer);
  Result<Place> find(int64_t peer);
  Error unreachable(Error why);
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
  bool send_offered(Line& line);
  bool greet(Line& line);
  void stop(Line& line);
  void write(Line& line);
  void lose(Line& line, const std::string& why);
  void ended(Line& line, int problem);
  const std::string& loss();
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
  // Of the line that was lost first: where the peer listens, and how the line ended, until it is
  // found out why.
  Place lost_place_;
  std::string lost_how_;
  bool aborted_ = false, broken_ = false;
};

}  // namespace piper::process
