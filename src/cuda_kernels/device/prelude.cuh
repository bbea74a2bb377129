// What every kernel is written with: element types, their conversions, sums over a block, and the
// form of a kernel. NVRTC compiles this text for a device; for tests a compiler of the host does,
// behind a header that defines the same words (PIPER_HOST: tests/fake_cuda/emulator.h).
//
// The rules of all kernel texts: grids and blocks of one dim; shared memory by SHARED and
// DYNAMIC_SHARED alone; what threads of a block tell each other goes through a barrier or a shuffle
// of a full warp; no atomics on floats; no sizes at run time.
#ifndef PIPER_HOST
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define DEVICE __device__ __forceinline__
#define KERNEL(name, pointers, threads) \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Pointers<pointers> p)
// An array of one block: element types without constructors.
#define SHARED(T, name, count) __shared__ T name[count]
// What the launch has of dynamic shared memory, as an array; two names are one memory.
#define DYNAMIC_SHARED(T, name)                          \
  extern __shared__ __align__(16) char dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(dynamic_shared)

DEVICE float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
DEVICE uint32_t bits_of_float(float x) { return __float_as_uint(x); }
#endif

#define kInfinity float_of_bits(0x7f800000u)

template <int kCount>
struct Pointers {
  char* address[kCount];
  template <class T>
  DEVICE T* at(int i) const {
    return reinterpret_cast<T*>(address[i]);
  }
};

// ---- 16-bit floats: stored; what is computed with them is float ---------------------------------
// To nearest, ties to even. NaN stays NaN.
struct bf16 {
  uint16_t bits;
  bf16() = default;
  DEVICE explicit bf16(float x) {
    const uint32_t all = bits_of_float(x);
    bits = static_cast<uint16_t>((all & 0x7fffffffu) > 0x7f800000u
                                     ? (all >> 16) | 0x40u
                                     : (all + 0x7fffu + ((all >> 16) & 1u)) >> 16);
  }
  DEVICE operator float() const { return float_of_bits(static_cast<uint32_t>(bits) << 16); }
};

struct f16 {
  uint16_t bits;
  f16() = default;
  DEVICE explicit f16(float x) {
    const uint32_t all = bits_of_float(x), sign = (all >> 16) & 0x8000u;
    const uint32_t size = all & 0x7fffffffu;
    uint32_t half;
    if (size > 0x7f800000u) {
      half = 0x7e00u | ((size >> 13) & 0x3ffu);
    } else if (size >= 0x477ff000u) {  // rounds to more than the greatest
      half = 0x7c00u;
    } else if (size < 0x38800000u) {  // below the least normal: the sum rounds to its last bit
      half = bits_of_float(float_of_bits(size) + 0.5f) - bits_of_float(0.5f);
    } else {
      half = (size + 0xfffu + ((size >> 13) & 1u) - 0x38000000u) >> 13;
    }
    bits = static_cast<uint16_t>(sign | half);
  }
  DEVICE operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (size << 13));
    // Exact also of what is below the least normal: a power of two more, and then less.
    const float scaled = float_of_bits(size << 13) * float_of_bits(0x77800000u);  // 2^112
    return float_of_bits(sign | bits_of_float(scaled));
  }
};

// What is computed in of elements of a type.
template <class T>
struct Computed {
  typedef T type;
};
template <>
struct Computed<bf16> {
  typedef float type;
};
template <>
struct Computed<f16> {
  typedef float type;
};
template <class T>
using computed = typename Computed<T>::type;

// ---- Several elements at once -------------------------------------------------------------------
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T x[kCount];
};

// ---- Over a warp and a block --------------------------------------------------------------------
struct Sum {
  template <class T>
  DEVICE static T of(T a, T b) {
    return a + b;
  }
};
struct Greatest {  // NaN where one of them is
  template <class T>
  DEVICE static T of(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

constexpr int kWarp = 32;

// All lanes get the same bits: each step joins what two halves have, in one order.
template <class Op, class T>
DEVICE T over_warp(T x) {
  for (int half = kWarp / 2; half > 0; half /= 2) {
    const T other = __shfl_xor_sync(0xffffffffu, x, half);
    x = (threadIdx.x & half) ? Op::of(other, x) : Op::of(x, other);
  }
  return x;
}

// Over a block of kThreads, a multiple of 32; all threads call it and get the same bits. `shared`
// has an element for each warp; nobody else uses it between two barriers around the call.
template <class Op, int kThreads, class T>
DEVICE T over_block(T x, T* shared) {
  x = over_warp<Op>(x);
  if (kThreads == kWarp) return x;
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  T all = shared[0];
  for (int warp = 1; warp < kThreads / kWarp; ++warp) all = Op::of(all, shared[warp]);
  __syncthreads();
  return all;
}
