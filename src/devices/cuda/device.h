// A device of NVIDIA's as one rank has it: its context, memory, streams and events. All of it ends
// with the device, and what is still under way is waited for.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "compile.h"
#include "libraries.h"
#include "piper/devices/backend.h"

namespace piper::cuda {

struct Facts {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int most_shared = 0;  // bytes of shared memory that a block may have
  int maps_memory = 0, shares_files = 0;
  int maps_for_rdma = 0;  // whether adapters of a network may reach mapped memory
};

// The variable of the environment that says how many ways streams have to the device.
inline constexpr const char* kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";
inline constexpr const char* kMostConnections = "32";
// Streams that share a way to the device wait for each other. It has 8 unless 32, the most, are
// asked for; with 1, which job scripts for other systems ask for, a send waits for each receive
// that was queued before it, and two ranks for each other. The driver reads this when it is
// started, which may be before plans are read. Sets it once, and returns what it was; "": not set.
const std::string& set_connections();
// Starts the driver, which reads the environment of the process the first time.
Status start_driver(const Driver& driver);
// Error: there is no driver or no device.
Result<int> count_devices();

class Device {
 public:
  // Returns the device `ordinal`, modulo as many as there are. Error: there is no driver or no
  // device.
  static Result<std::unique_ptr<Device>> open(int64_t ordinal);
  ~Device();

  const Driver& driver() const { return driver_; }
  const Facts& facts() const { return facts_; }
  const Without& without() const { return without_; }
  int ordinal() const { return ordinal_; }

  // Makes the context the calling thread's, if it is not: to be called before any other call that
  // may come from another thread than the one before.
  void enter() const {
    if (current_ != id_) enter_anew();
  }

  // Reserves the device's memory for all blocks from here on: one run of whole pages. Error
  // (kStorage): there is no more.
  Status reserve(int64_t bytes);
  // Zeroed. On the device: of what is reserved, if anything is; else whole pages under addresses of
  // their own, which other processes may be given; small blocks together. On the host: pages that
  // stay where they are. Errors: more than is reserved (kPlan); there is no more (kStorage).
  Result<std::byte*> allocate(int64_t bytes, bool on_host);

  // Prepares copies between the memory of both devices, what is still to be taken included: each
  // may read the other's, as far as the machine lets it. Both devices do so for themselves.
  Status meet(const Device& other);
  // Returns whether memory of `other` is on the same device.
  bool is_same_as(const Device& other) const { return other.handle_ == handle_; }
  CuContext* context() const { return context_; }

  Taken taken() const { return taken_; }
  // Returns the bytes that the driver says are free, for all who share the device; nothing if it
  // does not say.
  std::optional<int64_t> free_bytes() const;
  // Names the pages under addresses of their own in which this is; none: of 0 bytes.
  struct Block {
    std::byte* at = nullptr;
    size_t bytes = 0;
  };
  Block mapped_block(const std::byte* at) const;

  // Stream 0 is there from the beginning. Priorities are cut to the range that the device has.
  // A limit of multiprocessors is kept where the driver can (`keeps_limits`): streams with limits
  // have different ones, as long as there are enough. `note` is told where there are not.
  using Note = std::function<void(const std::string&)>;
  Result<int32_t> add_stream(const Stream& wanted, const Note& note = {});
  CuStream* stream(int32_t number) const { return streams_[static_cast<size_t>(number)]; }
  bool keeps_limits() const { return green_ != nullptr; }
  Result<int32_t> add_event(bool timed = false);
  CuEvent* event(int32_t number) const { return events_[static_cast<size_t>(number)]; }

  // These keep executable graphs. They end before the communicators of which they have calls, which
  // wait for that; what is under way of them is done before they are gone.
  int32_t add_graph(CuGraphExec* made);
  CuGraphExec* graph(int32_t number) const { return graphs_[static_cast<size_t>(number)]; }
  void end_graphs();

  // Whether a call that queues has failed: nothing is queued after it.
  bool has_failed = false;

 private:
  Device(const Driver& driver, const Without& without, int ordinal)
      : driver_(driver), without_(without), ordinal_(ordinal) {}
  struct Mapping {
    CuAddress at = 0;
    size_t bytes = 0;
    CuMemory pages = 0;
    bool is_mapped = false;
  };

  Status start();
  void enter_anew() const;
  Result<CuMemory> create_pages(size_t bytes);
  Result<CuAddress> map_pages(size_t bytes);
  int allow(int device, const Mapping& mapping) const;
  Result<std::byte*> allocate_on_host(int64_t bytes);
  Result<CuAddress> take_pages(size_t bytes);
  Result<CuAddress> take_reserved(size_t bytes);
  Error no_more(int64_t bytes, Error why);
  struct Split {
    CuResource part, rest;
  };
  Result<std::optional<Split>> split(const CuResource& from, int64_t multiprocessors) const;
  Result<std::optional<Split>> split_rest(int64_t multiprocessors);
  Result<std::optional<CuResource>> set_apart(const Stream& wanted, const Note& note);
  Result<CuGreenContext*> add_part(CuResource resource);
  Result<CuStream*> make_stream(const Stream& wanted, const Note& note);

  static thread_local uint64_t current_;  // the device whose context the thread has; 0: none
  const Driver& driver_;
  const Without without_;
  const Green* green_ = nullptr;
  const int ordinal_;
  uint64_t id_ = 0;  // of this process; none has that of another, whenever it was opened
  int handle_ = 0;
  CuContext* context_ = nullptr;
  Facts facts_;
  size_t page_ = 0;               // bytes
  int least_ = 0, greatest_ = 0;  // priorities; the greatest is the smaller number
  struct Reserved {
    CuAddress at = 0;
    size_t bytes = 0, used = 0;
  };
  std::optional<Reserved> reserved_;
  Taken taken_;
  std::vector<Mapping> mappings_;
  std::set<int> met_;         // devices
  std::vector<int> readers_;  // devices that may read what is mapped
  std::vector<CuAddress> blocks_;
  std::vector<void*> host_blocks_;
  std::vector<CuStream*> streams_;
  std::vector<CuEvent*> events_;
  std::vector<CuGreenContext*> parts_;
  std::optional<CuResource> rest_;  // multiprocessors that no part has; nothing: there is no part
  std::vector<CuGraphExec*> graphs_;
};

}  // namespace piper::cuda
