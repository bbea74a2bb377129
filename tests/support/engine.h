// What hosts have queued on streams, and its run in an order that a seed draws.
#pragma once

#include <deque>
#include <functional>
#include <random>

#include "clocks.h"
#include "piper/runtime/transport.h"

namespace piper::sim {

// Describes what is queued on a stream.
struct Work {
  enum Kind : uint8_t {
    kRun,     // runs `run`
    kRecord,  // is what `event` means from here on
    kWait,    // for record number `record`
    kMeet,    // a message or a collective of a communicator
  } kind = kRun;
  const char* label = nullptr;
  std::function<void()> run;
  std::vector<Range> ranges;
  int64_t record = -1;
  int32_t communicator = -1;
  size_t member = 0;
  InstructionKind what = InstructionKind::kCompute;  // kMeet
  Collective brings;                                 // operands live as long as the job
  std::vector<MessagePart> parts;                    // of a message
  Clock host;                                        // what the host knew when it queued this
};

class Engine {
 public:
  Engine(int64_t world, uint64_t seed) : hosts_(static_cast<size_t>(world)), random_(seed) {
    for (size_t rank = 0; rank < hosts_.size(); ++rank) hosts_[rank].line = next_line_++;
  }

  int32_t add_stream(int64_t rank);
  int32_t add_event();
  // Adds a communicator whose members are listed by rank; of a message the sender, then the
  // receiver. Equal keys give the same communicator.
  int32_t add_communicator(const std::string& key, std::vector<int64_t> ranks);

  void queue(int32_t stream, Work work);
  void record(int32_t stream, int32_t event, const char* label);
  void wait(int32_t stream, int32_t event, const char* label);
  Status finish(int64_t rank, int32_t event);
  Status drain();
  void host_uses(int64_t rank, const Range& range, const char* label);
  Shadow& shadow() { return shadow_; }

 private:
  struct Stream {
    int64_t rank = 0;
    int32_t line = 0;
    int32_t number = 0;  // of its rank
    std::deque<Work> queue;
    Clock clock;
  };
  struct Host {
    int32_t line = 0;
    int32_t streams = 0;
    Clock clock;
  };
  struct Communicator {
    std::vector<int64_t> ranks;
    std::vector<std::deque<int32_t>> queued;  // by member: the streams, in the host's order
  };

  bool is_ready(int32_t stream) const;
  bool stands_first(const Communicator& communicator, size_t member) const;
  bool step();  // false: nothing can run
  void run(int32_t stream);
  void meet(Communicator& communicator);
  void use(Stream& stream, const Work& work);
  void fault(std::string what);
  Error deadlock() const;
  std::string where(const Stream& stream) const;
  std::string name(const Use& use) const;

  std::vector<Host> hosts_;
  std::deque<Stream> streams_;
  std::vector<Communicator> communicators_;
  std::map<std::string, int32_t> by_key_;
  std::vector<int64_t> recorded_;  // by event: the number of its last record; -1: none
  int64_t records_ = 0;
  std::map<int64_t, Clock> done_;  // by record
  Shadow shadow_;
  std::mt19937_64 random_;
  int32_t next_line_ = 0;
  std::optional<Error> fault_;
};

}  // namespace piper::sim
