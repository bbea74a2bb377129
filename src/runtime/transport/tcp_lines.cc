// What is written to lines and read from them.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tcp_wire.h"

namespace piper::process {

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
      const int problem = errno;
      if (!broken_ && !aborted_) read(line);  // it may have said why
      return ended(line, problem);
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

// Reads some bytes; false when no more have arrived.
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
    ended(line, now < 0 ? errno : 0);
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
  return frame.kind != Kind::kLeave || send_offered(line);
}

// Sends what a rank has been told of and has room for now.
bool TcpWire::send_offered(Line& line) {
  const Frame& frame = line.frame;
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

// Tells all connected ranks what has stopped this one.
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

}  // namespace piper::process
