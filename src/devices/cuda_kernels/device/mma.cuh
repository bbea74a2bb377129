// Products of 16-bit floats by the tensor cores of a warp, and the tiles in shared memory that they
// are made of. sm_80 has all of it, and so have later devices.
//
// A warp multiplies A [16, 16] by B [16, 8]. Its lanes hold fragments as the PTX ISA says ("Matrix
// Fragments for mma.m16n8k16 with floating point type"): with g = lane / 4 and t = lane % 4,
//   a[r]: row g + 8 (r % 2) of A, columns 2 t + 8 (r / 2) and the next one,
//   b[r]: column g of B, rows 2 t + 8 r and the next one,
//   d[i]: row g + 8 (i / 2) of the product, column 2 t + i % 2.
// Products are exact. In which order 16 of them are added up is the device's matter, and the same
// on all devices of one kind.
#ifndef PIPER_HOST
// Computes d += a · b of all lanes together. The first argument only says of which type the
// elements are.
DEVICE void multiply_fragments(bf16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                               uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void multiply_fragments(f16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                               uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Loads four matrices of 8 × 8 elements in shared memory ("Warp-level matrix load instruction:
// ldmatrix"): lane l says where row l % 8 of matrix l / 8 is, and gets of each matrix the elements
// 2 t and 2 t + 1 of row g; of its transposed, those of column g.
DEVICE void load_fragments(uint32_t (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
DEVICE void load_transposed(uint32_t (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
// Rounds two numbers to nearest, as neighbours.
DEVICE uint32_t rounded_pair(bf16, float first, float second) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
DEVICE uint32_t rounded_pair(f16, float first, float second) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
#endif

namespace mma {

constexpr int kThreads = 128;  // of a block

DEVICE int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
DEVICE int warp() { return static_cast<int>(threadIdx.x) / kWarp; }

// ---- Eight elements -----------------------------------------------------------------------------
typedef Pack<uint32_t, 4> Eight;

// Returns the first `count` of eight elements, kVector of which are aligned to what they take; the
// others are zeros.
template <int kVector, class T>
DEVICE Eight take(const T* from, int count) {
  Eight x{};
  if constexpr (kVector == 1) {
    for (int e = 0; e < 8; ++e)
      if (e < count) x.x[e / 2] |= static_cast<uint32_t>(from[e].bits) << (e % 2 * 16);
  } else {
    typedef Pack<uint32_t, kVector / 2> Part;
    for (int e = 0; e < 8; e += kVector) {
      if (e >= count) continue;
      const Part part = *reinterpret_cast<const Part*>(from + e);
      for (int i = 0; i < kVector / 2; ++i) x.x[e / 2 + i] = part.x[i];
    }
  }
  return x;
}
template <int kVector, class T>
DEVICE void give(const Eight& x, T* to, int count) {
  if constexpr (kVector == 1) {
    for (int e = 0; e < 8; ++e)
      if (e < count) to[e].bits = static_cast<uint16_t>(x.x[e / 2] >> (e % 2 * 16));
  } else {
    typedef Pack<uint32_t, kVector / 2> Part;
    for (int e = 0; e < 8; e += kVector) {
      if (e >= count) continue;
      Part part;
      for (int i = 0; i < kVector / 2; ++i) part.x[i] = x.x[e / 2 + i];
      *reinterpret_cast<Part*>(to + e) = part;
    }
  }
}

// ---- Tiles in shared memory ---------------------------------------------------------------------
// Holds rows of 16-bit elements. Eight more after each let the banks of eight rows differ, so that
// neither fragments nor rows of eights meet in one.
template <int kRows_, int kColumns_>
struct Tile {
  static_assert(kRows_ % 8 == 0 && kColumns_ % 16 == 0, "a tile is of whole fragments");
  static constexpr int kRows = kRows_, kColumns = kColumns_, kAcross = kColumns / 8;
  static constexpr int kPitch = kAcross + 1, kEights = kRows * kPitch;
  Eight* at;

  // Loads A [16 from `row` on, 16 from `column` on].
  DEVICE void left(uint32_t (&a)[4], int row, int column) const {
    load_fragments(a, at + (row + lane() % 16) * kPitch + column / 8 + lane() / 16);
  }
  // Loads the same of the tile's transposed.
  DEVICE void left_transposed(uint32_t (&a)[4], int row, int column) const {
    load_transposed(
        a, at + (column + lane() / 16 * 8 + lane() % 8) * kPitch + row / 8 + lane() / 8 % 2);
  }
  // Loads two B beside each other, [16 from `row` on, 8 from `column` and from `column` + 8 on], of
  // the tile's transposed: b[0] and b[1] are of the first.
  DEVICE void right_transposed(uint32_t (&b)[4], int row, int column) const {
    load_fragments(
        b, at + (column + lane() / 16 * 8 + lane() % 8) * kPitch + row / 8 + lane() / 8 % 2);
  }
  // Loads the same of the tile itself.
  DEVICE void right(uint32_t (&b)[4], int row, int column) const {
    load_transposed(b, at + (row + lane() % 16) * kPitch + column / 8 + lane() / 16);
  }
  // Writes two neighbours of a product's d, of a block of 16 × 8 from (row, column) on.
  template <class T>
  DEVICE void write(T type, int row, int column, const float (&d)[4]) const {
    Eight* to = at + (row + lane() / 4) * kPitch + column / 8;
    to[0].x[lane() % 4] = rounded_pair(type, d[0], d[1]);
    to[8 * kPitch].x[lane() % 4] = rounded_pair(type, d[2], d[3]);
  }
};

// Says what a thread of kThreads brings to a tile or takes from it: eights of rows. Neighbours have
// those of a row of at least 128 bytes; else eight of them have eight rows, for the banks' sake.
template <class Tile>
struct Share {
  static constexpr int kAll = Tile::kRows * Tile::kAcross;
  static constexpr int kEights = (kAll + kThreads - 1) / kThreads;

  DEVICE static int number(int i) { return i * kThreads + static_cast<int>(threadIdx.x); }
  DEVICE static bool is_inside(int i) { return kAll % kThreads == 0 || number(i) < kAll; }
  DEVICE static int row(int i) {
    if constexpr (Tile::kAcross % 8 == 0) return number(i) / Tile::kAcross;
    return number(i) % 8 + number(i) / 8 / Tile::kAcross * 8;
  }
  DEVICE static int column(int i) {
    if constexpr (Tile::kAcross % 8 == 0) return number(i) % Tile::kAcross * 8;
    return number(i) / 8 % Tile::kAcross * 8;
  }
  DEVICE static Eight& in(const Tile& tile, int i) {
    return tile.at[row(i) * Tile::kPitch + column(i) / 8];
  }
};

}  // namespace mma
