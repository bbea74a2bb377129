// TCP sockets, as far as a job needs them: none of them blocks, and none is inherited.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "piper/base/base.h"

namespace piper::process {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int file) : file_(file) {}
  Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~Socket();
  int file() const { return file_; }
  explicit operator bool() const { return file_ >= 0; }

 private:
  int file_ = -1;
};

// Holds an address and a port, IPv4 or IPv6, in the form that is sent.
struct Place {
  uint8_t ip[16] = {};
  uint16_t port = 0;
  uint16_t family = 0;  // 4 or 6; 0: none
  bool is_loopback() const;
};
std::string to_string(const Place& place);  // "10.0.0.7:4242", "[fe80::1]:4242"

std::string host_and_port(const std::string& host, int64_t port);  // brackets around IPv6

// "HOST:PORT" or "[IPV6]:PORT".
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
Result<HostPort> parse_host_port(const std::string& text);
std::vector<Place> resolve(const HostPort& at, std::string& problem);

// Listens on all addresses of this machine; port 0: any that is free.
Result<Socket> listen_on(uint16_t port);
Place place_of(const Socket& socket);       // the own end
Place peer_place_of(const Socket& socket);  // the other end
// Nothing is waiting: none.
Socket accept_from(const Socket& listener);
// None, with errno, where it does not come about in time.
Socket connect_to(const Place& place, double seconds);

// Says why a connection to a process that listens at `place` has come to its end, which `how` says:
// a process that lives still listens there.
std::string why_lost(const Place& place, const std::string& how);

// Returns all bytes within so many seconds; false, with errno (0: the other side has closed), where
// not.
bool write_all(const Socket& socket, const void* data, size_t bytes, double seconds);
bool read_all(const Socket& socket, void* data, size_t bytes, double seconds);

}  // namespace piper::process
