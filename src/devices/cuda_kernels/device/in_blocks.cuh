// Numbers in 8 bits, in blocks with a scale each: codes, then the scale. piper/base/scaled.h says
// how; the bits are those of the host.

// Says where the elements of blocks are in a tensor of so many dims.
template <int kDims>
struct Blocks {
  int64_t block, run, runs, per_run;
  int64_t shape[kDims], piece[kDims];
  // Returns the index of element i of block b; -1: there is none.
  DEVICE int64_t at(int64_t b, int64_t i) const {
    const int64_t inside = b % per_run * block + i;
    if (inside >= run) return -1;
    int64_t element = b / per_run % runs * run + inside, of = b / (runs * per_run), index = 0,
            stride = 1;
    bool is_there = true;
    for (int d = kDims - 1; d >= 0; --d) {
      const int64_t pieces = (shape[d] + piece[d] - 1) / piece[d],
                    place = of % pieces * piece[d] + element % piece[d];
      is_there = is_there && place < shape[d];
      index += place * stride;
      stride *= shape[d];
      of /= pieces;
      element /= piece[d];
    }
    return is_there && element == 0 ? index : -1;
  }
};

// Rounds a small number to the nearest integer, ties to even.
DEVICE float rounded_to_even(float x) { return (x + 12582912.0f) - 12582912.0f; }

// Rounds a size to a float with 4 bits of exponent and 3 of mantissa.
DEVICE uint32_t float8_of(float size) {
  if (size < 0.015625f) return static_cast<uint32_t>(rounded_to_even(size * 512.0f));
  const uint32_t bits = bits_of_float(size), code = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) -
                                                    (120u << 3);
  return code < 0x7eu ? code : 0x7eu;
}

template <bool kInt8>
DEVICE uint8_t code_of(float x, float scale) {
  if (!(scale > 0)) return 0;
  const float by_scale = x / scale;
  if (kInt8) {
    const float near = rounded_to_even(by_scale),
                code = near > 127.0f ? 127.0f : near < -127.0f ? -127.0f : near;
    return static_cast<uint8_t>(static_cast<int32_t>(code) & 0xff);
  }
  return static_cast<uint8_t>(float8_of(by_scale < 0 ? -by_scale : by_scale) |
                              (by_scale < 0 ? 0x80u : 0u));
}

template <bool kInt8>
DEVICE float number_of(uint8_t code, float scale) {
  if (kInt8) return static_cast<float>(code < 128 ? code : static_cast<int32_t>(code) - 256) * scale;
  const uint32_t size = code & 0x7fu;
  const float number = size < 8 ? static_cast<float>(size) * 0.001953125f
                                : float_of_bits((size + (120u << 3)) << 20);
  return (code & 0x80u ? -number : number) * scale;
}

// Each uses a block of threads for a block of numbers.
template <int kThreads, bool kInt8, class T, int kDims>
DEVICE void put_in_blocks(const T* x, uint8_t* to, const Blocks<kDims>& by) {
  SHARED(uint32_t, most, kThreads);
  const int64_t b = static_cast<int64_t>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t own = 0;  // sizes are in the order of their bits, and NaN is the greatest
  for (int64_t i = thread; i < by.block; i += kThreads) {
    const int64_t at = by.at(b, i);
    const uint32_t size = at < 0 ? 0u : bits_of_float(static_cast<float>(x[at])) & 0x7fffffffu;
    own = size > own ? size : own;
  }
  most[thread] = own;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half && most[thread + half] > most[thread]) most[thread] = most[thread + half];
    __syncthreads();
  }
  const float size = float_of_bits(most[0]);
  const float scale = most[0] >= 0x7f800000u ? float_of_bits(0x7fc00000u)
                      : size < 7.888609052210118e-31f ? 0.0f
                                                      : size / (kInt8 ? 127.0f : 448.0f);
  uint8_t* const codes = to + b * (by.block + 4);
  for (int64_t i = thread; i < by.block; i += kThreads) {
    const int64_t at = by.at(b, i);
    codes[i] = at < 0 ? uint8_t(0) : code_of<kInt8>(static_cast<float>(x[at]), scale);
  }
  if (thread == 0) *reinterpret_cast<float*>(codes + by.block) = scale;
}

template <int kThreads, bool kInt8, class T, int kDims>
DEVICE void take_from_blocks(const uint8_t* from, T* y, const Blocks<kDims>& by) {
  const int64_t b = static_cast<int64_t>(blockIdx.x);
  const uint8_t* const codes = from + b * (by.block + 4);
  const float scale = *reinterpret_cast<const float*>(codes + by.block);
  for (int64_t i = static_cast<int64_t>(threadIdx.x); i < by.block; i += kThreads) {
    const int64_t at = by.at(b, i);
    if (at >= 0) y[at] = T(number_of<kInt8>(codes[i], scale));
  }
}
