// Messages between two processes: all that a transport of processes is made of. There are two
// wires: MPI, and sockets.
#pragma once

#include <memory>

#include "piper/runtime/transport.h"

namespace piper::process {

// Lanes keep messages apart, so that none is taken for another: of routes, of collectives, of
// Control.
enum class Lane : uint8_t { kMessages, kCollectives, kControl };
inline constexpr size_t kLanes = 3;

struct Address {
  int64_t peer = 0;
  Lane lane = Lane::kMessages;
  int32_t tag = 0;
};

// Holds a send or a receive under way.
struct Transfer {
  uint64_t handle = 0;  // the wire's
  bool open = false;
  int64_t peer = 0;
  int64_t bytes = -1;  // expected by a receive; -1 for a send
  int32_t communicator = -1;
};

class Wire {
 public:
  virtual ~Wire() = default;
  virtual std::string_view name() const = 0;
  virtual int64_t rank() const = 0;
  virtual int64_t world() const = 0;
  // Returns the same number in all processes of a job and in no other job.
  virtual uint64_t job() const = 0;
  // A message of several parts is known before it is sent or received; of one part none need be.
  virtual Status add_message(std::span<const MessagePart> parts) = 0;
  // Both calls return at once. Messages of one sender, lane and tag are received in order.
  virtual Status send(Transfer& transfer, const Address& to,
                      std::span<const MessagePart> parts) = 0;
  virtual Status receive(Transfer& transfer, const Address& from,
                         std::span<const MessagePart> parts) = 0;
  // Closes the transfer if it has ended. Then `got` is how many bytes came (-1: more than wanted).
  virtual Status test(Transfer& transfer, int64_t& got) = 0;
  // Fails when another rank has aborted or is gone.
  virtual Status check_stopped() = 0;
  // Gives the core away until something has come, but not for longer than this.
  virtual void rest(double seconds) = 0;
  virtual double spin_seconds() const = 0;  // seconds before it rests
  virtual void abort(const Error& reason) = 0;
  // Returns the address of a rank, as far as known; else "".
  virtual std::string where(int64_t) const { return ""; }
  // An error has left transfers open: there is no end in order.
  virtual void give_up() = 0;
};

std::unique_ptr<Transport> make_process_transport(std::unique_ptr<Wire> wire,
                                                  const TransportOptions& options);

}  // namespace piper::process
