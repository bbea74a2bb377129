// How processes find each other: all come to rank 0 once, over a short connection each, and learn
// there where their parent in the tree listens; later, where any rank listens that they send to
// first. A thread of rank 0 answers, whatever else rank 0 does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "sockets.h"

namespace piper::process {

struct Joined {
  uint64_t job = 0;
  Place parent;
};

// Says how long a process waits until all have come, and who may tell it to end before.
struct StartLimit {
  double timeout_s = 60;
  const std::atomic<bool>* stop = nullptr;
  bool is_told_to_stop() const { return stop != nullptr && stop->load(); }
};

class Rendezvous {
 public:
  // Opens the meeting point on rank 0, whose own messages arrive at `port`.
  static Result<std::unique_ptr<Rendezvous>> open(const HostPort& at, int64_t world, uint16_t port,
                                                  const StartLimit& limit);
  ~Rendezvous();
  // Waits until all have come; otherwise returns an error, which those who came are told, too.
  Result<uint64_t> wait();
  Place place(int64_t rank);

 private:
  struct Guest;
  Rendezvous(Socket listener, const HostPort& at, int64_t world, uint16_t port,
             const StartLimit& limit);
  void serve();
  void accept_guests();
  bool hear(Guest& guest);  // false: it leaves
  bool answer(Guest& guest);
  bool join(Guest& guest);
  void tell_all();
  void end_with(std::string text);
  std::string missing() const;
  Place place_for(const Socket& asker, int64_t rank) const;

  const Socket listener_;
  const HostPort at_;
  const int64_t world_;
  const StartLimit limit_;
  Socket wake_in_, wake_out_;
  std::vector<std::unique_ptr<Guest>> guests_;
  int64_t come_ = 1;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Place> places_;  // by rank
  uint64_t job_ = 0;
  bool complete_ = false;
  std::string problem_;
  std::thread thread_;
};

// Joins from another rank, whose messages arrive at `port`.
Result<Joined> join_rendezvous(const HostPort& at, int64_t rank, int64_t world, uint16_t port,
                               const StartLimit& limit);
// Where `wanted` listens.
Result<Place> look_up(const HostPort& at, uint64_t job, int64_t rank, int64_t wanted);

}  // namespace piper::process
