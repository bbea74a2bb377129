// Sockets: addresses, listening, connecting, with time limits.
#include "sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace piper::process {
namespace {

using Clock = std::chrono::steady_clock;

// An IPv4 address within IPv6 is an IPv4 address.
Place place_from(const sockaddr_storage& address) {
  Place place;
  if (address.ss_family == AF_INET) {
    sockaddr_in four;
    std::memcpy(&four, &address, sizeof four);
    std::memcpy(place.ip, &four.sin_addr, 4);
    place.port = ntohs(four.sin_port);
    place.family = 4;
  } else if (address.ss_family == AF_INET6) {
    sockaddr_in6 six;
    std::memcpy(&six, &address, sizeof six);
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&six.sin6_addr);
    std::memcpy(place.ip, six.sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
    place.port = ntohs(six.sin6_port);
    place.family = mapped ? 4 : 6;
  }
  return place;
}

socklen_t to_system(const Place& place, sockaddr_storage& address) {
  std::memset(&address, 0, sizeof address);
  if (place.family == 4) {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(place.port);
    std::memcpy(&four.sin_addr, place.ip, 4);
    std::memcpy(&address, &four, sizeof four);
    return sizeof four;
  }
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(place.port);
  std::memcpy(&six.sin6_addr, place.ip, 16);
  std::memcpy(&address, &six, sizeof six);
  return sizeof six;
}

void set(int file, int level, int option, int value) {
  setsockopt(file, level, option, &value, sizeof value);
}

template <class Call>
Place name_of(const Socket& socket, Call call) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (call(socket.file(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return place_from(address);
}

bool bind_any(int file, int family, uint16_t port) {
  Place any;
  any.port = port;
  any.family = family == AF_INET ? 4 : 6;
  sockaddr_storage address;
  const socklen_t size = to_system(any, address);
  return bind(file, reinterpret_cast<sockaddr*>(&address), size) == 0;
}

// Waits for what `events` says; false when the time is over.
bool wait_for(const Socket& socket, short events, Clock::time_point until) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
  pollfd one{socket.file(), events, 0};
  const int count = poll(&one, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
  if (count == 0) errno = ETIMEDOUT;
  return count > 0 || (count < 0 && errno == EINTR && left > 0);
}

Clock::time_point in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

template <class Move>
bool move_all(const Socket& socket, short events, size_t bytes, double seconds, Move move) {
  const auto until = in_seconds(seconds);
  for (size_t at = 0; at < bytes;) {
    const ssize_t now = move(at);
    if (now > 0) {
      at += static_cast<size_t>(now);
      continue;
    }
    if (now == 0) errno = 0;
    if (now == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    if (!wait_for(socket, events, until)) return false;
  }
  return true;
}

}  // namespace

Socket::~Socket() {
  if (file_ >= 0) close(file_);
}

bool Place::is_loopback() const {
  if (family == 4) return ip[0] == 127;
  return family == 6 && ip[15] == 1 &&
         std::all_of(ip, ip + 15, [](uint8_t one) { return one == 0; });
}

std::string to_string(const Place& place) {
  char text[INET6_ADDRSTRLEN] = {};
  if (inet_ntop(place.family == 4 ? AF_INET : AF_INET6, place.ip, text, sizeof text) == nullptr)
    return "";
  return host_and_port(text, place.port);
}

std::string host_and_port(const std::string& host, int64_t port) {
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

namespace {
// Link-local addresses mean a host on one network only: ranks cannot tell them to each other.
bool is_link_local(const std::string& host) {
  in6_addr six;
  return inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &six) == 1 &&
         IN6_IS_ADDR_LINKLOCAL(&six);
}
}  // namespace

Result<HostPort> parse_host_port(const std::string& text) {
  const size_t colon = text.rfind(':');
  const auto wrong = [&] {
    return fail("'{}' is no HOST:PORT", text)
        .with_code(ExitCode::kUsage)
        .with_note("help: such as node1:29500, 10.0.0.7:29500 or [2001:db8::1]:29500");
  };
  if (colon == std::string::npos || colon == 0) return wrong();
  HostPort at{text.substr(0, colon), 0};
  if (at.host.front() == '[' && at.host.back() == ']')
    at.host = at.host.substr(1, at.host.size() - 2);
  else if (at.host.find(':') != std::string::npos)
    return wrong();
  const std::string digits = text.substr(colon + 1);
  char* end = nullptr;
  const long port = std::strtol(digits.c_str(), &end, 10);
  if (at.host.empty() || digits.empty() || *end != '\0' || port < 1 || port > 65535) return wrong();
  at.port = static_cast<uint16_t>(port);
  if (is_link_local(at.host))
    return fail(
               "not supported: '{}' is a link-local address, which other hosts do not know by "
               "itself",
               text)
        .with_code(ExitCode::kUsage)
        .with_note("help: give an address that is routed, or the host's name");
  return at;
}

std::vector<Place> resolve(const HostPort& at, std::string& problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(at.host.c_str(), nullptr, &hints, &found); code != 0) {
    problem = gai_strerror(code);
    return {};
  }
  std::vector<Place> places;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    sockaddr_storage address{};
    std::memcpy(&address, one->ai_addr, std::min<size_t>(one->ai_addrlen, sizeof address));
    places.push_back(place_from(address));
    places.back().port = at.port;
  }
  freeaddrinfo(found);
  return places;
}

namespace {

// Each connection that comes takes a file.
void allow_all_files() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace

Result<Socket> listen_on(uint16_t port) {
  allow_all_files();
  int problem = 0;
  for (const int family : {AF_INET6, AF_INET}) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) {
      problem = errno;
      continue;
    }
    set(socket.file(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (family == AF_INET6) set(socket.file(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind_any(socket.file(), family, port) && listen(socket.file(), SOMAXCONN) == 0)
      return socket;
    problem = errno;
    if (problem == EADDRINUSE) break;
  }
  return fail("cannot listen on port {}: {}", port, std::strerror(problem))
      .with_code(ExitCode::kStorage);
}

Place place_of(const Socket& socket) { return name_of(socket, getsockname); }
Place peer_place_of(const Socket& socket) { return name_of(socket, getpeername); }

Socket accept_from(const Socket& listener) {
  Socket socket(accept4(listener.file(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) set(socket.file(), IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

Socket connect_to(const Place& place, double seconds) {
  sockaddr_storage address;
  const socklen_t size = to_system(place, address);
  Socket socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  set(socket.file(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (connect(socket.file(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    if (errno != EINPROGRESS) return {};
    if (!wait_for(socket, POLLOUT, in_seconds(seconds))) return {};
    int problem = 0;
    socklen_t length = sizeof problem;
    getsockopt(socket.file(), SOL_SOCKET, SO_ERROR, &problem, &length);
    errno = problem;
    if (problem != 0) return {};
  }
  return socket;
}

std::string why_lost(const Place& place, const std::string& how) {
  constexpr double kProbe = 0.5;  // seconds
  if (place.family == 0) return how;
  bool answers = static_cast<bool>(connect_to(place, kProbe));
  if (answers) {  // a process that ends closes what it listens at last
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    answers = static_cast<bool>(connect_to(place, kProbe));
  }
  if (answers) return fmt::format("the connection was cut, its process lives ({})", how);
  if (errno == ECONNREFUSED) return "its process ended";
  return fmt::format("the connection was cut ({}), and its host does not answer: {}", how,
                     std::strerror(errno));
}

bool write_all(const Socket& socket, const void* data, size_t bytes, double seconds) {
  return move_all(socket, POLLOUT, bytes, seconds, [&](size_t at) {
    return send(socket.file(), static_cast<const char*>(data) + at, bytes - at, MSG_NOSIGNAL);
  });
}

bool read_all(const Socket& socket, void* data, size_t bytes, double seconds) {
  return move_all(socket, POLLIN, bytes, seconds, [&](size_t at) {
    return recv(socket.file(), static_cast<char*>(data) + at, bytes - at, 0);
  });
}

}  // namespace piper::process
