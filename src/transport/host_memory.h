// Memory that the ranks of one host share: each gives a block, and maps those of the others. Where
// the system refuses, or for ranks elsewhere, there is none, and messages do.
#pragma once

#include <memory>

#include "piper/transport.h"
#include "seats.h"

namespace piper::mpi {

// How far a rank has come in the sums of a group.
struct SharedCounters {
  std::atomic<uint64_t> group{0};   // hash of its ranks; 0: free
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

// Where a block is, as it travels.
struct HostAddress {
  char host[40] = {};  // of the system that runs; empty: no block
  int64_t process = 0, file = -1;
  uint64_t token = 0;
};

class HostMemory {
 public:
  explicit HostMemory(int64_t rank);  // of the launcher: makes tokens differ
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  const HostAddress& address() const { return address_; }
  HostBlock& own() { return *own_; }  // of this process alone where the system shares nothing
  // Maps the block of each rank as far as possible: whose could be is told.
  std::vector<char> map(std::span<const HostAddress> addresses, int64_t own);
  void all_have_mapped();  // nobody opens the own block any more
  HostBlock* block(int64_t rank) const {
    return blocks_.empty() ? nullptr : blocks_[static_cast<size_t>(rank)];
  }
  // A text in another rank's memory; empty where the system does not let it be read.
  std::string read_text(int64_t rank, const char* text) const;

 private:
  int file_ = -1;
  HostAddress address_;
  std::unique_ptr<HostBlock> private_;
  HostBlock* own_ = nullptr;
  std::vector<HostBlock*> blocks_;
  std::vector<int64_t> processes_;
};

}  // namespace piper::mpi
