// Matrix products of f32 on processors with AMX, whose tiles multiply bf16 and add in f32.
//
// Three bf16 of 8 bits hold the 24 bits of an f32: x = high + middle + low. Of the nine products of
// the parts of two numbers six are added; the others are below a quarter of a unit in the last
// place, less than the rounding of one sum (Henry, Tang, Heinecke: Leveraging the bfloat16
// artificial intelligence datatype for higher-precision computations, ARITH 2019). Parts that are
// zero in a whole block, as of numbers that were rounded to bf16, cost nothing.
//
// A chain of gemm.h is over 512 of k here. Tiles take numbers below 2^-126 for zero, and such parts
// of larger numbers: what is below 2^-110 loses bits. An element of a chain that is not a number,
// as of infinite operands, is computed anew by the kernels of vectors, as IEEE 754 describes it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ahead.h"
#include "gemm.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !defined(__clang__)
// GCC's own header reads variables that it means to be undefined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define PIPER_AMX \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")))

namespace piper::cpu {
namespace {

constexpr int64_t kSide = 16;              // rows of a tile, and columns of its result
constexpr int64_t kBlock = 2 * kSide;      // rows of a, or columns of b, that are packed together
constexpr int64_t kStep = 32;              // of k in a tile
constexpr int64_t kTile = 1024;            // bytes
constexpr int64_t kPart = 2 * kTile;       // bytes of a part of a block's step
constexpr int64_t kStepBytes = 3 * kPart;  // high, middle, low
// Bytes before a block, which say what parts it has; all rows of tiles are lines of the caches.
constexpr int64_t kHead = 64;
// Of k in one chain of sums: a tile adds 32 of k at once, so that a chain rounds as often as a
// shorter one of multiply-adds.
constexpr int64_t kChain = 512;
constexpr int64_t kMendFloats = kBlock * (kChain + 1);  // scratch of mend()
// Chains are whole in a part of the depth.
int64_t depth_of(const ProductCut& cut) { return (cut.depth + kChain - 1) / kChain * kChain; }

struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

int64_t steps_of(int64_t depth) { return (depth + kStep - 1) / kStep; }
int64_t block_bytes(int64_t depth) { return kHead + steps_of(depth) * kStepBytes; }
int64_t blocks_of(int64_t extent) { return (extent + kBlock - 1) / kBlock; }

// Holds a packed block of an operand, which has two tiles for each step of k and each part.
struct Block {
  std::byte* at = nullptr;
  std::byte* tiles() const { return at + kHead; }
  // Return whether any number has a middle part, and a low one.
  bool middle() const { return at[0] != std::byte{0}; }
  bool low() const { return at[1] != std::byte{0}; }
};

struct Vectors {
  __m512 row[kSide];
};

PIPER_AMX inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= kSide ? 0xffff : (1u << std::max<int64_t>(count, 0)) - 1);
}

// Loads `rows` rows of `columns`, and zeros beyond.
PIPER_AMX inline void load_rows(const float* from, int64_t step, int64_t rows, int64_t columns,
                                Vectors& to) {
  const __mmask16 lanes = first_lanes(columns);
  if (rows >= kSide && columns >= kSide) {
    for (int64_t i = 0; i < kSide; ++i) to.row[i] = _mm512_loadu_ps(from + i * step);
    return;
  }
  for (int64_t i = 0; i < kSide; ++i)
    to.row[i] = i < rows ? _mm512_maskz_loadu_ps(lanes, from + i * step) : _mm512_setzero_ps();
}

PIPER_AMX inline __m512 lower(__m512 a, __m512 b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
PIPER_AMX inline __m512 upper(__m512 a, __m512 b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
PIPER_AMX inline void transpose(Vectors& x) {
  __m512 pairs[kSide], fours[kSide];
  for (int i = 0; i < kSide; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(x.row[i], x.row[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_ps(x.row[i], x.row[i + 1]);
  }
  for (int i = 0; i < kSide; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = lower(pairs[i + j], pairs[i + j + 2]);
      fours[i + 2 * j + 1] = upper(pairs[i + j], pairs[i + j + 2]);
    }
  for (int j = 0; j < 4; ++j) {
    const __m512 a = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0xdd);
    const __m512 c = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0xdd);
    x.row[j] = _mm512_shuffle_f32x4(a, c, 0x88);
    x.row[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
    x.row[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
    x.row[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
}

// Holds the parts of 16 pairs of numbers, those of x below those of y in each lane. The pairs of k
// that tiles multiply are 16 apart: both operands have the same pairs, and none is moved to another
// lane.
struct Parts {
  __m512i of[3];
};

PIPER_AMX inline __m512i upper_halves(__m512 x, __m512 y) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(x), 16),
                                 _mm512_castps_si512(y));
}
// Rounds to bf16. A NaN may become 0 by the carry into its sign; what is left of it is one.
PIPER_AMX inline __m512 rounded(__m512 x) {
  const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(~0xffff);
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper));
}
PIPER_AMX inline Parts split(__m512 x, __m512 y) {
  Parts parts;
  for (int i = 0; i < 2; ++i) {
    const __m512 u = rounded(x), v = rounded(y);
    parts.of[i] = upper_halves(u, v);
    x = _mm512_sub_ps(x, u), y = _mm512_sub_ps(y, v);
  }
  parts.of[2] = upper_halves(x, y);
  return parts;
}

// Collects which parts a block has.
struct Used {
  __m512i middle, low;
};
PIPER_AMX inline void put(const Parts& parts, std::byte* to, Used& used) {
  for (int i = 0; i < 3; ++i) _mm512_storeu_si512(to + i * kPart, parts.of[i]);
  used.middle = _mm512_or_si512(used.middle, parts.of[1]);
  used.low = _mm512_or_si512(used.low, parts.of[2]);
}
PIPER_AMX inline void set_head(const Used& used, std::byte* head) {
  head[0] = std::byte{_mm512_test_epi32_mask(used.middle, used.middle) != 0};
  head[1] = std::byte{_mm512_test_epi32_mask(used.low, used.low) != 0};
}

// Names a part of an operand as it is stored: element (i, k) is at from[i × step + k], where
// `across` at from[k × step + i].
struct Stored {
  const float* from = nullptr;
  int64_t step = 0;
  bool across = false;
  const float* at(int64_t i, int64_t k) const {
    return across ? from + k * step + i : from + i * step + k;
  }
};

// Loads 16 of i and 16 of k: a vector has one i, or with kByDepth one k.
template <bool kByDepth>
PIPER_AMX inline void load_square(const Stored& s, int64_t i, int64_t k, int64_t extent,
                                  int64_t depth, Vectors& to) {
  load_rows(s.at(i, k), s.step, s.across ? depth - k : extent - i,
            s.across ? extent - i : depth - k, to);
  if (s.across != kByDepth) transpose(to);
}

// Packs up to 32 rows of a, or with kByDepth columns of b, in tiles of 16 of them with 32 of k
// each. Missing columns are zeros. Missing rows are not written: only sums that nobody reads depend
// on them.
template <bool kByDepth>
PIPER_AMX void pack(const Stored& s, int64_t extent, int64_t depth, std::byte* block) {
  Used used{_mm512_setzero_si512(), _mm512_setzero_si512()};
  std::byte* to = block + kHead;
  for (int64_t k = 0; k < depth; k += kStep, to += kStepBytes)
    for (int64_t i = 0; i < extent; i += kSide) {
      Vectors x, y;
      load_square<kByDepth>(s, i, k, extent, depth, x);
      load_square<kByDepth>(s, i, k + kSide, extent, depth, y);
      std::byte* const tile = to + i / kSide * kTile;
      for (int64_t r = 0; r < (kByDepth ? kSide : std::min(kSide, extent - i)); ++r)
        put(split(x.row[r], y.row[r]), tile + r * 64, used);
    }
  set_head(used, block);
}

// Names a block of c: its rows and columns, its operands as they are stored, and what it is added
// to.
struct Target {
  int64_t rows = 0, columns = 0;
  Stored a, b;
  float* c = nullptr;
  int64_t c_step = 0;
  const float* old = nullptr;
  int64_t old_step = 0;
  int64_t row = 0, column = 0;  // in the whole of c, for `then`
};

// Describes a chain over `depth` from k on of one block, whose sums are there, or being computed,
// and wait to be added to c.
struct Chain {
  Target t;
  int64_t k = 0, depth = 0;
  const Gemm* then = nullptr;  // what is to be done with the elements, which this chain finishes
  float* sums = nullptr;       // [32][32]
  float* scratch = nullptr;    // of mend()
};

// Computes the sums of a row that are no numbers anew.
void mend(const Chain& chain, int64_t row) {
  const Target& t = chain.t;
  Gemm g;
  g.m = 1, g.n = t.columns, g.k = chain.depth;
  g.trans_a = t.a.across, g.a_step = t.a.step;
  g.trans_b = !t.b.across, g.b_step = t.b.step;
  float* const anew = chain.scratch;
  gemm_fn<float>("")(g, t.a.at(row, chain.k), t.b.at(0, chain.k), anew, anew + kBlock);
  float* const sums = chain.sums + row * kBlock;
  for (int64_t j = 0; j < t.columns; ++j)
    if (std::isnan(sums[j])) sums[j] = anew[j];
}

// Adds the sums of a chain to c, some rows at a time.
class Adding {
 public:
  PIPER_AMX explicit Adding(const Chain& chain)
      : chain_(chain),
        lanes_(first_lanes(chain.t.columns)),
        more_(first_lanes(chain.t.columns - kSide)) {}

  [[gnu::always_inline]] PIPER_AMX inline void rows(int64_t count) {
    for (const int64_t end = std::min(row_ + count, chain_.t.rows); row_ < end; ++row_) {
      const float* const sums = chain_.sums + row_ * kBlock;
      __m512 x = _mm512_load_ps(sums), y = _mm512_maskz_load_ps(more_, sums + kSide);
      if (_mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q)) [[unlikely]] {
        mend(chain_, row_);
        x = _mm512_load_ps(sums), y = _mm512_maskz_load_ps(more_, sums + kSide);
      }
      const Target& t = chain_.t;
      if (t.old) {
        x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(lanes_, t.old + row_ * t.old_step));
        y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(more_, t.old + row_ * t.old_step + kSide));
      }
      if (chain_.then) finish(x, y);
      _mm512_mask_storeu_ps(t.c + row_ * t.c_step, lanes_, x);
      _mm512_mask_storeu_ps(t.c + row_ * t.c_step + kSide, more_, y);
    }
  }

 private:
  // Does what is to be done with finished elements.
  PIPER_AMX inline void finish(__m512& x, __m512& y) const {
    for (int o = 0; o < chain_.then->thens; ++o) {
      const GemmThen& with = chain_.then->then[o];
      const float* at =
          static_cast<const float*>(with.at) + (chain_.t.row + row_) * with.step + chain_.t.column;
      const __m512 u = _mm512_maskz_loadu_ps(lanes_, at);
      const __m512 v = _mm512_maskz_loadu_ps(more_, at + kSide);
      x = with.multiply ? _mm512_mul_ps(x, u) : _mm512_add_ps(x, u);
      y = with.multiply ? _mm512_mul_ps(y, v) : _mm512_add_ps(y, v);
    }
  }

  const Chain& chain_;
  const __mmask16 lanes_, more_;
  int64_t row_ = 0;
};

// Fetches rows of what a block is added to and written to.
inline void fetch_rows(const Target& t, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < std::min(end, t.rows); ++i) {
    const float* const c = t.c + i * t.c_step;
    __builtin_prefetch(c, 1);
    __builtin_prefetch(c + t.columns / 2, 1);
    __builtin_prefetch(c + t.columns - 1, 1);
    if (!t.old || t.old == t.c) continue;
    __builtin_prefetch(t.old + i * t.old_step);
    __builtin_prefetch(t.old + i * t.old_step + t.columns - 1);
  }
}

// Names what is fetched while blocks are multiplied: the next block of the operand whose packed
// blocks wait beside one block of c, that of the other beside all blocks of c that it makes.
struct Soon {
  Ahead<float> waiting, taken;
  int64_t blocks = 1;  // beside which the taken one is fetched
};

// Computes the sums of `now`, without kTall of its first 16 rows only, without kWide of its first
// 16 columns. Those of `before` are added to c meanwhile: the processor does so while its tiles
// multiply. The order of the parts is that in which the fewest tiles are loaded twice.
template <bool kTall, bool kWide>
PIPER_AMX __attribute__((noinline)) void multiply(const Block& left, const Block& right,
                                                  const Chain& now, const Chain& before,
                                                  Soon& soon) {
#define PIPER_LOAD_A(part)              \
  _tile_loadd(4, a + (part)*kPart, 64); \
  if constexpr (kTall) _tile_loadd(5, a + (part)*kPart + kTile, 64)
#define PIPER_LOAD_B(part)              \
  _tile_loadd(6, b + (part)*kPart, 64); \
  if constexpr (kWide) _tile_loadd(7, b + (part)*kPart + kTile, 64)
#define PIPER_TIMES()                                    \
  _tile_dpbf16ps(0, 4, 6);                               \
  if constexpr (kWide) _tile_dpbf16ps(1, 4, 7);          \
  if constexpr (kTall) _tile_dpbf16ps(2, 5, 6);          \
  if constexpr (kTall && kWide) _tile_dpbf16ps(3, 5, 7); \
  adding.rows(rows);                                     \
  soon.waiting.fetch(of_waiting);                        \
  soon.taken.fetch(of_taken)
  const bool middle_a = left.middle(), low_a = left.low();
  const bool middle_b = right.middle(), low_b = right.low();
  const int64_t steps = steps_of(now.depth);
  // Rows that are added to c beside the products of two parts.
  const int64_t products = 1 + low_a + middle_a + low_b + middle_b + (middle_a && middle_b);
  const int64_t rows = (kBlock + steps * products - 1) / (steps * products);
  const int64_t of_waiting = (soon.waiting.lines() + steps * products - 1) / (steps * products);
  const int64_t beside = steps * products * soon.blocks;
  const int64_t of_taken = (soon.taken.lines() + beside - 1) / beside;
  Adding adding(before);
  const int64_t share = kBlock / steps;  // rows of c that are fetched beside a step
  const std::byte *a = left.tiles() + now.k / kStep * kStepBytes,
                  *b = right.tiles() + now.k / kStep * kStepBytes;
  asm volatile("" ::: "memory");  // the compiler does not know that loads of tiles read memory
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < steps; ++i, a += kStepBytes, b += kStepBytes) {
    PIPER_LOAD_A(0);
    if (low_b) {
      PIPER_LOAD_B(2);
      PIPER_TIMES();
    }
    if (middle_b) {
      PIPER_LOAD_B(1);
      PIPER_TIMES();
    }
    PIPER_LOAD_B(0);
    PIPER_TIMES();
    if (low_a) {
      PIPER_LOAD_A(2);
      PIPER_TIMES();
    }
    if (middle_a) {
      PIPER_LOAD_A(1);
      PIPER_TIMES();
    }
    if (middle_a && middle_b) {
      PIPER_LOAD_B(1);
      PIPER_TIMES();
    }
    if (now.k == 0) fetch_rows(now.t, i * share, (i + 1) * share);
  }
  constexpr int64_t kRow = kBlock * static_cast<int64_t>(sizeof(float));
  _tile_stored(0, now.sums, kRow);
  if constexpr (kWide) _tile_stored(1, now.sums + kSide, kRow);
  if constexpr (kTall) _tile_stored(2, now.sums + kSide * kBlock, kRow);
  if constexpr (kTall && kWide) _tile_stored(3, now.sums + kSide * kBlock + kSide, kRow);
  asm volatile("" ::: "memory");
  adding.rows(kBlock);
#undef PIPER_LOAD_A
#undef PIPER_LOAD_B
#undef PIPER_TIMES
}

// Computes chain after chain; the sums of one are added to c beside the next one.
class Chains {
 public:
  explicit Chains(float* scratch) : scratch_(scratch) {}

  // Computes the chains of a block over `depth`.
  void block(const Target& t, const Block& a, const Block& b, int64_t depth, const Gemm* then,
             Soon& soon) {
    const bool tall = t.rows > kSide, wide = t.columns > kSide;
    const auto run = tall   ? wide ? multiply<true, true> : multiply<true, false>
                       : wide ? multiply<false, true>
                            : multiply<false, false>;
    for (int64_t k = 0; k < depth; k += kChain) {
      Chain& now = chains_[turn_];
      now = {t, k, std::min(kChain, depth - k), nullptr, sums_[turn_], scratch_};
      if (k > 0) now.t.old = t.c, now.t.old_step = t.c_step;
      if (k + now.depth == depth) now.then = then;
      run(a, b, now, chains_[1 - turn_], soon);
      turn_ = 1 - turn_;
    }
  }
  // Adds what waits.
  PIPER_AMX void end() { Adding(chains_[1 - turn_]).rows(kBlock); }

 private:
  alignas(64) float sums_[2][kBlock * kBlock];
  Chain chains_[2];  // at first without rows
  float* scratch_;
  int turn_ = 0;
};

// Names what a product works on at a time: columns [n0, n0 + columns) from depth [k0, k0 + depth).
struct Range {
  int64_t k0 = 0, depth = 0, n0 = 0, columns = 0;
};

Stored columns_of(const Gemm& g, const float* b, const Range& r, int64_t n) {
  if (g.packed_b) return {b + n * g.k + r.k0 * kBlock, kBlock, true};
  const int64_t step = g.row_of_b();
  return {g.trans_b ? b + n * step + r.k0 : b + r.k0 * step + n, step, !g.trans_b};
}

Target target_of(const Gemm& g, float* c, const Range& r, int64_t m, int64_t n) {
  Target t;
  t.rows = std::min(kBlock, g.m - m), t.columns = std::min(kBlock, r.n0 + r.columns - n);
  t.row = m, t.column = n, t.c_step = g.row_of_c();
  t.c = c + m * t.c_step + n;
  const GemmOld<float> old = old_of(g, c + m * t.c_step, m, r.k0);
  if (old.at) t.old = old.at + n, t.old_step = old.step;
  return t;
}

Stored rows_of(const Gemm& g, const float* a, const Range& r, int64_t m) {
  const int64_t step = g.row_of_a();
  return {g.trans_a ? a + r.k0 * step + m : a + m * step + r.k0, step, g.trans_a};
}

// Names the operand of a part of the product that gives the rows of c, or the columns.
struct Side {
  const Gemm& g;
  const float* operand = nullptr;
  const Range& range;
  bool columns = false;
  int64_t extent = 0;

  Stored at(int64_t i) const {
    return columns ? columns_of(g, operand, range, range.n0 + i) : rows_of(g, operand, range, i);
  }
  void pack_block(int64_t i, std::byte* to) const {
    (columns ? pack<true> : pack<false>)(at(i), std::min(kBlock, extent - i), range.depth, to);
  }
  // Returns what fetches the block at `i` before it is packed.
  Ahead<float> ahead(int64_t i) const {
    if (i >= extent) return {};
    const Stored s = at(i);
    const int64_t block = std::min(kBlock, extent - i), depth = range.depth;
    return {s.from, s.across ? depth : block, s.across ? block : depth, s.step};
  }
};

// Takes the blocks of the larger side one after the other. Those of the smaller side are packed
// when the first of those needs them, and wait for the next ones: so the caches hold as little as
// possible.
void part_of_product(const Gemm& g, const float* a, const float* b, float* c, const Range& r,
                     std::byte* packed, Chains& chains) {
  const int64_t bytes = block_bytes(r.depth);
  const Gemm* const then = g.thens > 0 && r.k0 + r.depth == g.k ? &g : nullptr;
  const Side rows{g, a, r, false, g.m}, columns{g, b, r, true, r.columns};
  const bool by_rows = rows.extent >= columns.extent;
  const Side &taken = by_rows ? rows : columns, &waiting = by_rows ? columns : rows;
  Soon soon;
  for (int64_t i = 0; i < taken.extent; i += kBlock) {
    taken.pack_block(i, packed);
    soon.taken = taken.ahead(i + kBlock);
    for (int64_t j = 0; j < waiting.extent; j += kBlock) {
      std::byte* const place = packed + bytes * (1 + j / kBlock);
      if (i == 0) {
        waiting.pack_block(j, place);
        soon.waiting = waiting.ahead(j + kBlock);
      }
      const int64_t m = by_rows ? i : j, n = by_rows ? j : i;
      Target t = target_of(g, c, r, m, r.n0 + n);
      t.a = rows.at(m), t.b = columns.at(n);
      soon.blocks = blocks_of(waiting.extent - j);
      chains.block(t, {by_rows ? packed : place}, {by_rows ? place : packed}, r.depth, then, soon);
    }
  }
}

PIPER_AMX void set_tiles() {
  static constexpr TileShapes kShapes;
  _tile_loadconfig(&kShapes);
}
PIPER_AMX void free_tiles() { _tile_release(); }

void gemm(const Gemm& g, const float* a, const float* b, float* c, float* scratch) {
  if (g.m == 0 || g.n == 0 || g.k == 0) return gemm_fn<float>("")(g, a, b, c, scratch);
  const int64_t depth = depth_of(g.cut);
  auto* const packed = reinterpret_cast<std::byte*>(
      (reinterpret_cast<size_t>(scratch + kMendFloats) + kHead - 1) & ~size_t{kHead - 1});
  Chains chains(scratch);
  set_tiles();
  // Where there are fewer rows than columns the rows wait, and are packed once for all columns.
  const int64_t columns = g.m < std::min(g.n, g.cut.columns) ? g.n : g.cut.columns;
  for (int64_t n0 = 0; n0 < g.n; n0 += columns)
    for (int64_t k0 = 0; k0 < g.k; k0 += depth)
      part_of_product(g, a, b, c, {k0, std::min(depth, g.k - k0), n0, std::min(columns, g.n - n0)},
                      packed, chains);
  chains.end();
  free_tiles();
}

bool processor_has_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0, bf16 = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool tiles = d >> 22 & d >> 24 & 1;  // AMX-BF16, AMX-TILE
  return tiles && __get_cpuid_count(7, 1, &bf16, &b, &c, &d) && (bf16 >> 5 & 1);  // AVX512_BF16
}

// Asks the kernel for the state of tiles, which it gives to processes that ask (arch_prctl(2):
// ARCH_REQ_XCOMP_PERM, for the component 18).
bool system_gives_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

}  // namespace

GemmFn<float> amx_gemm() {
  static const bool works = processor_has_tiles() && system_gives_tiles();
  return works ? gemm : nullptr;
}

int64_t amx_scratch(int64_t columns, int64_t k, const ProductCut& cut) {
  const int64_t blocks = 1 + blocks_of(std::min(columns, cut.columns));
  return kMendFloats * static_cast<int64_t>(sizeof(float)) + kHead +
         blocks * block_bytes(std::min(k, depth_of(cut)));
}

}  // namespace piper::cpu

#else

namespace piper::cpu {
GemmFn<float> amx_gemm() { return nullptr; }
int64_t amx_scratch(int64_t, int64_t, const ProductCut&) { return 0; }
}  // namespace piper::cpu

#endif
