// What a library of kernels, compiled for the host, and the emulator that runs them know of each
// other: the library has one `emulator_link`, which the emulator fills when it loads it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace piper::emulator {

struct Index {
  unsigned x, y, z;
};
enum class Access : uint8_t { kRead, kWrite, kAtomic };

struct Link {
  Index thread, block, block_dim, grid_dim;
  // The stack of the thread that runs, of which accesses are its own affair.
  uintptr_t stack, stack_bytes;
  // Stops the thread until all of its block, or of its warp, are there.
  void (*barrier)(int line);
  void (*warp_barrier)(int line, unsigned mask);
  // The values of all lanes of the warp, each of which calls it in the same line.
  const uint64_t* (*exchange)(int line, unsigned mask, uint64_t value);
  // d += a · b of all lanes of the warp, whose fragments these are: see fragments.h.
  void (*multiply)(int line, bool is_bf16, const uint32_t* a, const uint32_t* b, float* d);
  // The block's array that is declared at `key`.
  void* (*shared)(const void* key, const char* name, size_t bytes, size_t element);
  void* (*dynamic_shared)(const char* name, size_t element);
  // Before memory is touched; it does not return where that is wrong.
  void (*access)(const void* address, size_t bytes, Access access, const void* from);
  void (*broken)(const char* what, unsigned line);  // does not return
};

}  // namespace piper::emulator
