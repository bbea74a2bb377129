// Messages and collectives under way: who has come to them, and how fast they move over links that
// several of them share. Private to the room.
#pragma once

#include <set>
#include <span>

#include "rows.h"

namespace piper::timeline {

// Says which share of a port a transfer takes, as LinkShare does of a link.
struct PortShare {
  int32_t port = 0;
  double share = 1;
};

struct Arrival {
  int32_t row = -1, step = -1;
  double time = 0;
};

// Describes a message or a collective. It begins when all have come to it whom it waits for and the
// one before it on its communicator has ended.
struct Transfer {
  double latency = 0, wire = 0;      // the most of its members
  int32_t needed = 0;                // arrivals; a message that waits for nobody needs its sender
  std::vector<Arrival> arrivals;     // so far
  int32_t previous = -1, next = -1;  // on its communicator
  std::set<int32_t> rows;            // at its ends
  std::vector<PortShare> ports;      // that it occupies
  int32_t sender_row = -1, sender_section = -1;  // of messages
  double start = -1, end = -1;                   // -1: not known yet
  bool asked = false;                            // its begin is an event, or behind it

  bool is_message() const { return sender_row >= 0; }
  const Arrival& last() const;  // who came last; the first of several
};

// What moves at one time shares each of its ports, as links are shared, and is as fast as the
// slowest one.
class Ports {
 public:
  Ports(size_t ports, size_t transfers) : moving_(transfers), ports_(ports) {}
  // Returns the transfers whose end has changed; their ends are void with each change.
  std::vector<int32_t> begin(int32_t transfer, double wire, std::span<const PortShare> ports,
                             double time);
  std::vector<int32_t> end(int32_t transfer, double time);
  double end_of(int32_t transfer) const;
  int32_t changes(int32_t transfer) const { return moving_[at(transfer)].changes; }

 private:
  struct Moving {
    std::vector<PortShare> ports;
    double left = 0, since = 0, rate = 1;
    int32_t changes = 0;
  };
  struct Port {
    std::vector<std::pair<int32_t, double>> users;  // transfers with their shares
    double asked = 0;                               // the sum of these
  };
  std::vector<int32_t> update(std::span<const PortShare> ports, double time);

  std::vector<Moving> moving_;  // by transfer
  std::vector<Port> ports_;
};

// Holds the rows of a plan set, with all transfers between them.
struct Matched {
  std::vector<Row> rows;  // of the timeline's
  std::vector<Transfer> transfers;
  size_t ports = 0;
};
// Makes the rows of a timeline without times. Errors: as simulate(), but for plans that wait for
// ever.
Status match_rows(const PlanSet& set, const Machine& machine, int32_t steps, Timeline& out,
                  Matched& all);

}  // namespace piper::timeline
