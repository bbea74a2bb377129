// Memory of a device that is not there: what kernels may touch, and who touched each byte last.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emulator_link.h"
#include "piper/base/base.h"

namespace piper::emulator {

// Who touches memory, and when. Epochs count what lies between two barriers of a block, of all
// blocks that ever ran; steps what lies between two barriers of a warp.
struct Toucher {
  uint32_t epoch = 0, first_of_block = 0, first_of_launch = 0;
  uint16_t thread = 0, step = 0;
  int64_t block = 0;
};

// One byte. An epoch of 0: nobody did, which of writing means that it has no value.
struct Cell {
  uint32_t written = 0, read = 0;  // epochs
  uint16_t writer = 0, write_step = 0, reader = 0, read_step = 0;
};

class WatchedMemory {
 public:
  // [address, address + bytes) is `name`, of elements of so many bytes (1: unknown), from now on.
  // What has a value is so for everybody who reads it.
  void watch(std::string name, const void* address, int64_t bytes, bool has_values,
             int64_t element = 1);
  void forget(const void* address);
  // Nobody has written any of it, nor read.
  void clear(const void* address);

  // What is wrong with an access; empty: nothing, and it is noted. `bytes` above 0.
  std::string touch(const void* address, size_t bytes, Access access, const Toucher& who);
  // The same by the host between launches, and by what is no kernel; of 0 bytes too.
  std::string touch(const void* address, int64_t bytes, Access access);
  // The first byte at or behind the address, in its region, that has no value; -1: none.
  int64_t first_unwritten(const void* address) const;

 private:
  struct Region {
    std::string name;
    uintptr_t begin = 0;
    int64_t element = 1;
    std::vector<Cell> cells;  // by byte
    bool holds(uintptr_t at) const { return at >= begin && at - begin < cells.size(); }
  };
  Region* find(uintptr_t at);
  // What is wrong with an access to the byte.
  std::string wrong(const Region& region, size_t byte, Access access, const Toucher& who) const;
  std::string outside(uintptr_t at, size_t bytes);
  std::string place(const Region& region, size_t byte) const;
  std::string race(const Region& region, size_t byte, uint32_t epoch, uint16_t other,
                   const Toucher& who) const;

  std::map<uintptr_t, Region> regions_;  // by where they begin
  std::array<Region*, 4> recent_{};      // the latest first: most accesses meet them again
};

}  // namespace piper::emulator
