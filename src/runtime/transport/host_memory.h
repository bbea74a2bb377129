// Memory that the ranks of one host share: each gives a block, and maps those of others that it
// works with. Where the system refuses, or for ranks elsewhere, there is none, and messages do.
#pragma once

#include <memory>

#include "piper/runtime/transport.h"
#include "seats.h"

namespace piper::process {

// Says how far a rank has come in the sums of a group.
struct SharedCounters {
  std::atomic<uint64_t> group{0};   // hash of it and its ranks; 0: free
  std::atomic<uint64_t> bytes{0};   // of the message under way
  std::atomic<uint64_t> filled{0};  // segments that lie in the slots
  std::atomic<uint64_t> summed{0};  // segments of which the own slice is summed
  std::atomic<uint64_t> left{0};    // segments that were copied out
};

inline constexpr int64_t kSharedSlotBytes = int64_t{1} << 18;
inline constexpr int kSharedSlots = 4;
inline constexpr size_t kSharedGroups = 256;

struct HostBlock {
  std::atomic<uint64_t> token;
  Seat seat;
  SharedCounters counters[kSharedGroups];
  alignas(4096) std::byte slots[kSharedSlots][kSharedSlotBytes];
};

// Says where the block of a rank of this host is: an entry of what all of them share.
struct HostEntry {
  std::atomic<uint64_t> token{0};  // 0: not here
  std::atomic<int64_t> process{0}, file{-1};
};

class HostMemory {
 public:
  // `job` names the memory in which the ranks of a host find each other.
  HostMemory(uint64_t job, int64_t rank, int64_t world);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  HostBlock& own() { return *own_; }  // of this process alone where the system shares nothing
  // Returns how many ranks are on this host, called when all ranks of the job have made their
  // blocks. Nobody looks for the common memory any more.
  int64_t all_have_come();
  bool is_here(int64_t rank) const;
  // Maps a block when it is first wanted; null where it cannot be mapped.
  HostBlock* block(int64_t rank) const;
  // Returns a text in another rank's memory; empty where the system does not let it be read.
  std::string read_text(int64_t rank, const char* text) const;

 private:
  void make_block();
  void open_entries(uint64_t job);
  const int64_t rank_, world_;
  int file_ = -1;
  std::unique_ptr<HostBlock> private_;
  HostBlock* own_ = nullptr;
  std::string name_;              // of the common memory, while it has one
  HostEntry* entries_ = nullptr;  // by rank
  mutable std::vector<HostBlock*> blocks_;
};

}  // namespace piper::process
