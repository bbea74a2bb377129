// Kernels of a program (src/cuda_kernels), compiled for the host, as a device would run them: block
// by block, and the threads of a block as fibers. What a device forgives by luck is an error that
// names kernel, block and thread: races, accesses outside of operands, values that nobody wrote,
// barriers and shuffles that only some threads meet.
#pragma once

#include "watched.h"

namespace piper::emulator {

// In which order the threads run between two barriers, and the blocks of a grid.
struct Order {
  enum Kind : uint8_t { kForward, kBackward, kRandom } kind = kForward;
  uint64_t seed = 0;
};

struct Grid {
  std::string kernel;
  int64_t blocks = 1;
  int32_t threads = 1;
  int64_t shared_bytes = 0;
  std::vector<char*> pointers;
};

// The source as a library of the host: its path, in `folder`, where it stays for the next time.
// Without checks only barriers and shuffles are looked at, which is some ten times as fast. What is
// not optimised is compiled in half the time.
Result<std::string> compile_for_host(const std::string& source, const std::string& folder,
                                     bool is_checked = true, bool is_optimised = true);

// A library of kernels as it lies in memory.
struct Image {
  std::string path;
  uintptr_t base = 0, begin = 0, end = 0;
  // " (line 12 of FILE)" of the source, for an address in its code.
  std::string line_of(const void* at) const;
};

class Module {
 public:
  static Result<std::unique_ptr<Module>> open(const std::string& path);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  // How many pointers a kernel takes; -1: there is no such kernel.
  int pointers_of(const std::string& kernel) const;
  // The first thing that goes wrong. What `memory` does not know of nobody may touch.
  Status run(const Grid& grid, WatchedMemory& memory, const Order& order);

 private:
  Module() = default;
  void* symbol(const std::string& name) const;

  void* library_ = nullptr;
  Link* link_ = nullptr;
  Image image_;  // which has constants that kernels read
};

}  // namespace piper::emulator
