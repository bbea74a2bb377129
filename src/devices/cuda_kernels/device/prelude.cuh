// What every kernel is written with: element types, their conversions, sums over a block, and the
// form of a kernel. NVRTC compiles this text for a device; for tests a compiler of the host does,
// after a header that defines the same words (PIPER_HOST: tests/fake_cuda/emulator.h).
//
// The rules of all kernel texts: grids and blocks of one dim; shared memory by SHARED and
// DYNAMIC_SHARED only; what threads of a block tell each other goes through a barrier, or a shuffle
// or product (mma.cuh) of a full warp; no atomics on floats; no sizes at run time.
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
// Declares an array of one block: element types without constructors.
#define SHARED(T, name, count) __shared__ T name[count]
// Declares the launch's dynamic shared memory as an array; two names are one memory.
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
// Rounds to nearest, ties to even. NaN stays NaN.
struct bf16 {
  uint16_t bits;
  bf16() = default;
#ifdef PIPER_HOST
  explicit bf16(float x) {
    const uint32_t all = bits_of_float(x);
    bits = static_cast<uint16_t>((all & 0x7fffffffu) > 0x7f800000u
                                     ? (all >> 16) | 0x40u
                                     : (all + 0x7fffu + ((all >> 16) & 1u)) >> 16);
  }
#else
  DEVICE explicit bf16(float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
#endif
  DEVICE operator float() const { return float_of_bits(static_cast<uint32_t>(bits) << 16); }
};

struct f16 {
  uint16_t bits;
  f16() = default;
#ifdef PIPER_HOST
  explicit f16(float x) {
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
  operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, size = bits & 0x7fffu;
    // Exact also of what is below the least normal: a power of two more, and then less.
    const float scaled = float_of_bits(size << 13) * float_of_bits(0x77800000u);  // 2^112
    const uint32_t finite = bits_of_float(scaled), other = 0x7f800000u | (size << 13);
    return float_of_bits(sign | (size < 0x7c00u ? finite : other));
  }
#else
  DEVICE explicit f16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  DEVICE operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
#endif
};

// Gives the type that elements of a type are computed in.
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
// Is aligned to at most 16 bytes, as arguments are: what is longer is moved in several accesses,
// and never by one of 32 bytes, which newer devices have.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T x[kCount];
};

// ---- Places -------------------------------------------------------------------------------------
// Returns the number of this thread among those of all blocks. Index is int32_t where all numbers
// of a kernel's elements and of their places fit, else int64_t.
template <class Index>
DEVICE Index this_thread() {
  return static_cast<Index>(blockIdx.x) * static_cast<Index>(blockDim.x) +
         static_cast<Index>(threadIdx.x);
}

// Finds element i by strides: its index is divided by the extents, last dim first.
template <class Index, int kRank>
struct Strides {
  Index extent[kRank], stride[kRank];
  DEVICE Index at(Index i) const {
    Index place = 0;
    for (int d = kRank - 1; d > 0; --d) {
      place += i % extent[d] * stride[d];
      i /= extent[d];
    }
    return place + i * stride[0];
  }
};

// Returns a position in [0, size), or -1. Negative indices count from the end.
DEVICE int64_t place_in(int64_t index, int64_t size) {
  if (index < 0) index += size;
  return index >= 0 && index < size ? index : -1;
}

// Finds the row that kDepth indices name of what has these sizes, or -1.
template <int kDepth>
struct Named {
  int64_t size[kDepth], step[kDepth];
  template <class I>
  DEVICE int64_t row(const I* index) const {
    int64_t row = 0;
    bool inside = true;
    for (int d = 0; d < kDepth; ++d) {
      const int64_t at = place_in(static_cast<int64_t>(index[d]), size[d]);
      inside = inside && at >= 0;
      row += at * step[d];
    }
    return inside ? row : -1;
  }
};
template <>
struct Named<0> {  // there is one
  template <class I>
  DEVICE int64_t row(const I*) const {
    return 0;
  }
};

// ---- Over a warp and a block --------------------------------------------------------------------
DEVICE float added(float a, float b) { return a + b; }
DEVICE double added(double a, double b) { return a + b; }
DEVICE int32_t added(int32_t a, int32_t b) {  // integers wrap around
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
DEVICE int64_t added(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
DEVICE float multiplied(float a, float b) { return a * b; }
DEVICE double multiplied(double a, double b) { return a * b; }
DEVICE int32_t multiplied(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}
DEVICE int64_t multiplied(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

struct Sum {
  template <class T>
  DEVICE static T of(T a, T b) {
    return added(a, b);
  }
};
struct Product {
  template <class T>
  DEVICE static T of(T a, T b) {
    return multiplied(a, b);
  }
};
struct Greatest {  // NaN where one of them is
  template <class T>
  DEVICE static T of(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct Least {
  template <class T>
  DEVICE static T of(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

enum : int { kWarp = 32 };

// All lanes get the same bits: each step joins what two halves have, in one order.
template <class Op, class T>
DEVICE T over_warp(T x) {
  for (int half = kWarp / 2; half > 0; half /= 2) {
    const T other = __shfl_xor_sync(0xffffffffu, x, half);
    x = (threadIdx.x & half) ? Op::of(other, x) : Op::of(x, other);
  }
  return x;
}

// Combines over a block of kThreads, a multiple of 32; all threads call it and get the same bits.
// `shared` has an element for each warp; nobody else uses it between two barriers around the call.
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

// ---- Arithmetic of one rounding -----------------------------------------------------------------
// a · b + c.
DEVICE float add_product(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double add_product(double a, double b, double c) { return fma(a, b, c); }
DEVICE float square_root(float x) { return sqrtf(x); }
DEVICE double square_root(double x) { return sqrt(x); }

// ---- Several tensors in one launch --------------------------------------------------------------
// Numbers [first[i], first[i + 1]), of blocks or elements, are those of tensor i.
template <int kTensors>
struct Tensors {
  int64_t first[kTensors + 1];
  int64_t count[kTensors];  // elements
  DEVICE int of(int64_t number) const {
    int low = 0, high = kTensors;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (number < first[middle])
        high = middle;
      else
        low = middle;
    }
    return low;
  }
};
