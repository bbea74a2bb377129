// The words of kernel texts (src/devices/cuda_kernels/device/prelude.cuh) for a compiler of the
// host, which is given this file in front of the text: `-DPIPER_HOST -include emulator.h`.
//
// The text is compiled with what the thread sanitizer puts in front of each access to memory, but
// linked with the functions below in place of the sanitizer's, so that the emulator sees every
// access; and with checks for undefined behaviour, which end here as well.
#pragma once

// The special functions of C++17's math.h take half of the time to compile a kernel; none has them.
#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
// With overloads for float and double outside of std, as NVRTC has them.
#include <math.h>
#include <stdlib.h>

#include <cstdint>
#include <cstring>

#include "emulator_link.h"

#define EMULATOR_OWN __attribute__((no_sanitize("thread", "undefined")))
extern "C" {
__attribute__((visibility("default"))) piper::emulator::Link emulator_link;
}

#define DEVICE inline
#define KERNEL(name, pointers, most_threads)                                                   \
  static void name##_body(const Pointers<pointers>& p);                                        \
  extern "C" __attribute__((visibility("default"))) const int name##_pointers, name##_threads; \
  const int name##_pointers = pointers, name##_threads = most_threads;                         \
  extern "C" __attribute__((visibility("default"))) EMULATOR_OWN void name(                    \
      char* const* addresses) {                                                                \
    Pointers<pointers> p;                                                                      \
    for (int i = 0; i < pointers; ++i) p.address[i] = addresses[i];                            \
    name##_body(p);                                                                            \
  }                                                                                            \
  static void name##_body([[maybe_unused]] const Pointers<pointers>& p)
#define SHARED(T, name, count)         \
  static char name##_key;              \
  T(&name)                             \
  [count] = *static_cast<T(*)[count]>( \
      emulator_link.shared(&name##_key, #name, sizeof(T) * (count), sizeof(T)))
#define DYNAMIC_SHARED(T, name) \
  T* const name = static_cast<T*>(emulator_link.dynamic_shared(#name, sizeof(T)))

#define threadIdx (emulator_link.thread)
#define blockIdx (emulator_link.block)
#define blockDim (emulator_link.block_dim)
#define gridDim (emulator_link.grid_dim)
#define __syncthreads() emulator_link.barrier(__LINE__)
#define __syncwarp(...) emulator_link.warp_barrier(__LINE__, 0xffffffffu)
#define __shfl_xor_sync(mask, x, ...) emulator_shuffle(__LINE__, mask, x, 'x', __VA_ARGS__)
#define __shfl_down_sync(mask, x, ...) emulator_shuffle(__LINE__, mask, x, 'd', __VA_ARGS__)
#define __shfl_up_sync(mask, x, ...) emulator_shuffle(__LINE__, mask, x, 'u', __VA_ARGS__)
#define __shfl_sync(mask, x, ...) emulator_shuffle(__LINE__, mask, x, 'i', __VA_ARGS__)
#define __ballot_sync(mask, x) emulator_ballot(__LINE__, mask, (x) ? 1 : 0)
#define __any_sync(mask, x) (__ballot_sync(mask, x) != 0u ? 1 : 0)
#define __all_sync(mask, x) (__ballot_sync(mask, x) == 0xffffffffu ? 1 : 0)

template <class T>
EMULATOR_OWN T emulator_shuffle(int line, unsigned mask, T x, char kind, int by, int width = 32) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(T));
  const int lane = static_cast<int>(threadIdx.x % 32u), first = lane / width * width;
  int from = kind == 'x' ? lane ^ by : kind == 'd' ? lane + by : kind == 'u' ? lane - by : 0;
  if (kind == 'i') from = first + (by & (width - 1));
  if (from < first || from >= first + width) from = lane;
  const uint64_t* lanes = emulator_link.exchange(line, mask, bits);
  std::memcpy(&x, &lanes[from], sizeof(T));
  return x;
}
EMULATOR_OWN inline unsigned emulator_ballot(int line, unsigned mask, int x) {
  const uint64_t* lanes = emulator_link.exchange(line, mask, x != 0 ? 1u : 0u);
  unsigned all = 0;
  for (int lane = 0; lane < 32; ++lane) all |= static_cast<unsigned>(lanes[lane]) << lane;
  return all;
}

// Says that memory is touched where the compiler does not: where it says nothing at all, neither
// does this.
#ifdef __SANITIZE_THREAD__
#define EMULATOR_TOUCH(at, how) \
  emulator_link.access(at, sizeof *(at), piper::emulator::Access::how, __builtin_return_address(0))
#else
#define EMULATOR_TOUCH(at, how) static_cast<void>(at)
#endif

// ---- Fragments of a warp's products (device/mma.cuh) --------------------------------------------
#define multiply_fragments(...) emulator_multiply(__LINE__, __VA_ARGS__)
#define load_fragments(x, row) emulator_load(__LINE__, x, row, false)
#define load_transposed(x, row) emulator_load(__LINE__, x, row, true)
struct bf16;
template <class T>
constexpr bool emulator_is_bf16 = false;
template <>
constexpr bool emulator_is_bf16<bf16> = true;

template <class T>
EMULATOR_OWN void emulator_multiply(int line, T, float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  const uint32_t b[] = {b0, b1};
  emulator_link.multiply(line, emulator_is_bf16<T>, a, b, d);
}
EMULATOR_OWN inline void emulator_load(int line, uint32_t (&x)[4], const void* row,
                                       bool is_transposed) {
  const auto at = reinterpret_cast<uintptr_t>(row);
  if (at % 16 != 0) emulator_link.broken("a row of a matrix that is not 16-byte aligned", line);
  const uint64_t* rows = emulator_link.exchange(line, 0xffffffffu, at);
  const int g = static_cast<int>(threadIdx.x % 32u) / 4, t = static_cast<int>(threadIdx.x % 4u);
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t pair[2];
    for (int e = 0; e < 2; ++e) {
      const int of = is_transposed ? 2 * t + e : g, column = is_transposed ? g : 2 * t + e;
      const auto* from = reinterpret_cast<const uint16_t*>(rows[8 * matrix + of]) + column;
      EMULATOR_TOUCH(from, kRead);
      pair[e] = *from;
    }
    x[matrix] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
  }
}
template <class T>
uint32_t rounded_pair(T, float first, float second) {
  return T(first).bits | static_cast<uint32_t>(T(second).bits) << 16;
}

// ---- Functions that NVRTC knows of itself -------------------------------------------------------
template <class To, class From>
EMULATOR_OWN inline To emulator_bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &x, sizeof to);
  return to;
}
inline float float_of_bits(uint32_t bits) { return emulator_bits<float>(bits); }
inline uint32_t bits_of_float(float x) { return emulator_bits<uint32_t>(x); }
inline float __uint_as_float(uint32_t bits) { return emulator_bits<float>(bits); }
inline uint32_t __float_as_uint(float x) { return emulator_bits<uint32_t>(x); }
inline double __longlong_as_double(long long bits) { return emulator_bits<double>(bits); }
inline long long __double_as_longlong(double x) { return emulator_bits<long long>(x); }

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline int64_t __mul64hi(int64_t a, int64_t b) {
  return static_cast<int64_t>((static_cast<__int128>(a) * b) >> 64);
}
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float normcdff(float x) { return 0.5f * std::erfc(-x * 0.70710678118654752f); }
template <class T>
T __ldg(const T* from) {
  return *from;
}

#define EMULATOR_LEAST_AND_GREATEST(T)             \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
EMULATOR_LEAST_AND_GREATEST(int)
EMULATOR_LEAST_AND_GREATEST(unsigned)
EMULATOR_LEAST_AND_GREATEST(long)
EMULATOR_LEAST_AND_GREATEST(unsigned long)
EMULATOR_LEAST_AND_GREATEST(long long)
EMULATOR_LEAST_AND_GREATEST(unsigned long long)
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }

// Atomics on integers, whose order does not matter. What they return depends on it.
#define EMULATOR_ATOMIC(name, T, result)   \
  EMULATOR_OWN inline T name(T* at, T x) { \
    EMULATOR_TOUCH(at, kAtomic);           \
    const T old = *at;                     \
    *at = result;                          \
    return old;                            \
  }
#define EMULATOR_ATOMICS(T)                              \
  EMULATOR_ATOMIC(atomicAdd, T, static_cast<T>(old + x)) \
  EMULATOR_ATOMIC(atomicMax, T, old < x ? x : old)       \
  EMULATOR_ATOMIC(atomicMin, T, x < old ? x : old)       \
  EMULATOR_ATOMIC(atomicExch, T, x)
EMULATOR_ATOMICS(int)
EMULATOR_ATOMICS(unsigned)
EMULATOR_ATOMICS(unsigned long long)
EMULATOR_ATOMIC(atomicOr, unsigned, old | x)
EMULATOR_ATOMIC(atomicAnd, unsigned, old& x)

// ---- What the compiler calls before accesses ----------------------------------------------------
#define EMULATOR_CHECK extern "C" __attribute__((visibility("hidden"), noinline)) EMULATOR_OWN void
EMULATOR_OWN inline __attribute__((always_inline)) void emulator_access(
    const void* address, size_t bytes, piper::emulator::Access access, const void* from) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (at - emulator_link.stack < emulator_link.stack_bytes) return;
  if (at - reinterpret_cast<uintptr_t>(&emulator_link) < sizeof emulator_link) return;
  emulator_link.access(address, bytes, access, from);
}
#define EMULATOR_ACCESS(name, bytes, access)                         \
  EMULATOR_CHECK __tsan_##name(void* at) {                           \
    emulator_access(at, bytes, access, __builtin_return_address(0)); \
  }
#define EMULATOR_ACCESSES(bytes)                                                \
  EMULATOR_ACCESS(read##bytes, bytes, piper::emulator::Access::kRead)           \
  EMULATOR_ACCESS(write##bytes, bytes, piper::emulator::Access::kWrite)         \
  EMULATOR_ACCESS(unaligned_read##bytes, bytes, piper::emulator::Access::kRead) \
  EMULATOR_ACCESS(unaligned_write##bytes, bytes, piper::emulator::Access::kWrite)
EMULATOR_ACCESS(read1, 1, piper::emulator::Access::kRead)
EMULATOR_ACCESS(write1, 1, piper::emulator::Access::kWrite)
EMULATOR_ACCESSES(2)
EMULATOR_ACCESSES(4)
EMULATOR_ACCESSES(8)
EMULATOR_ACCESSES(16)
EMULATOR_CHECK __tsan_read_range(void* at, size_t bytes) {
  emulator_access(at, bytes, piper::emulator::Access::kRead, __builtin_return_address(0));
}
EMULATOR_CHECK __tsan_write_range(void* at, size_t bytes) {
  emulator_access(at, bytes, piper::emulator::Access::kWrite, __builtin_return_address(0));
}
EMULATOR_CHECK __tsan_func_entry(void*) {}
EMULATOR_CHECK __tsan_func_exit() {}
EMULATOR_CHECK __tsan_init() {}

// Each gets data that begin with where in the text it is.
struct EmulatorPlace {
  const char* file;
  unsigned line, column;
};
#define EMULATOR_BROKEN(name, what, ...)                                         \
  EMULATOR_CHECK __ubsan_handle_##name(void* place __VA_OPT__(, ) __VA_ARGS__) { \
    emulator_link.broken(what, static_cast<const EmulatorPlace*>(place)->line);  \
  }
EMULATOR_BROKEN(type_mismatch_v1, "an address that is not aligned as its type", void*)
EMULATOR_BROKEN(out_of_bounds, "an index outside of its array", void*)
EMULATOR_BROKEN(add_overflow, "a sum that overflows", void*, void*)
EMULATOR_BROKEN(sub_overflow, "a difference that overflows", void*, void*)
EMULATOR_BROKEN(mul_overflow, "a product that overflows", void*, void*)
EMULATOR_BROKEN(negate_overflow, "a negation that overflows", void*)
EMULATOR_BROKEN(divrem_overflow, "a division by zero, or one that overflows", void*, void*)
EMULATOR_BROKEN(shift_out_of_bounds, "a shift by too much, or of a negative number", void*, void*)
EMULATOR_BROKEN(float_cast_overflow, "a float that its integer cannot hold", void*)
