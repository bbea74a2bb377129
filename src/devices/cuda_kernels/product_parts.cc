// Makes products in parts: of what the library's fast kernels do not take, and of what its slow
// ones count wrongly.
#include "product_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "walk.h"

namespace piper::cuda_kernels {
namespace {

// ---- Parts --------------------------------------------------------------------------------------
// The library's fast kernels read and write runs of 16 bytes, so they take an extent along which
// elements adjoin only if it is a whole number of runs. Of others, 50,257 classes for one, the last
// few elements are a product of their own, which takes little time; along k a kernel of ours adds
// it.

constexpr int64_t kRun = 8;            // elements of 16 bits
constexpr int64_t kLeastExtent = 256;  // below, nothing is gained

// Returns how many elements of the extent the fast kernels take; all of it if nothing is gained.
int64_t whole_runs(int64_t extent, bool adjoins) {
  return !adjoins || extent < kLeastExtent ? extent : extent / kRun * kRun;
}

bool has_aligned_rows(const DeviceProduct& p) { return (p.lda | p.ldb | p.ldd) % kRun == 0; }

// Returns the part of a product that makes `count` rows (of D and A) or columns (of D and B) from
// `first` on.
struct PartOf {
  const DeviceProduct& product;
  const Operands& at;
  int64_t type_bytes() const { return info(product.type).bytes; }
  int64_t result_bytes() const { return info(product.result).bytes; }

  std::pair<DeviceProduct, Operands> rows(int64_t first, int64_t count) const {
    DeviceProduct part = product;
    Operands to = at;
    part.m = count;
    to[kOfA] = moved(at[kOfA], first * (product.trans_a ? 1 : product.lda) * type_bytes());
    for (const size_t d : {kOfC, kOfD, kOfPre})
      to[d] = moved(at[d], first * product.ldd * result_bytes());
    return {part, to};
  }
  std::pair<DeviceProduct, Operands> columns(int64_t first, int64_t count) const {
    DeviceProduct part = product;
    Operands to = at;
    part.n = count;
    to[kOfB] = moved(at[kOfB], first * (product.trans_b ? product.ldb : 1) * type_bytes());
    for (const size_t d : {kOfC, kOfBias, kOfD, kOfPre})
      to[d] = moved(at[d], first * result_bytes());
    return {part, to};
  }
};

// ---- Far rows -----------------------------------------------------------------------------------
// The library's kernels for vectors and narrow matrices count elements in 32 bits: cuBLASLt 13.1
// wrote a column of a [65536, 50257] matrix, whose rows are 50,304 elements apart, 4 GiB in front
// of where it belongs (seen on an H200). So they are given parts whose operands have fewer than
// 2^31 elements each.

constexpr int64_t kNarrow = 256;  // rows or columns: others are for kernels that count in 64 bits

// Returns how many rows, whole tiles of them if it can be, an operand within 31 bits has.
int64_t rows_within(int64_t line) {
  const int64_t most = std::max<int64_t>(((int64_t{1} << 31) - 1) / std::max<int64_t>(line, 1), 1);
  return most < kRowsOfTile ? most : most / kRowsOfTile * kRowsOfTile;
}

// Rounds f32 sums, which are without gaps, and adds C where there is one.
void round_sums(const DeviceProduct& p, const DeviceOperand& sums, const Operands& at,
                Emitter& emit) {
  const int64_t count = p.batch * p.m * p.n;
  const bool adds = at[kOfC].kind != DeviceOperand::kAbsent;
  emit.kernel(
      {.family = "product",
       .body = fmt::format("  round_sums<{0}, {1}, {2}LL, {3}LL, {4}LL, {5}LL>("
                           "p.at<const float>(0), p.at<const {0}>(1), p.at<{0}>(2), {6}LL);",
                           type_name(p.result), adds, p.n, p.m, p.ldd, p.d_step, count),
       .blocks = ceil_div(count, kThreads),
       .threads = kThreads,
       .operands = {sums, at[kOfC], at[kOfD]}});
}

// Returns how much of k a part has.
int64_t most_of_k(const DeviceProduct& p) {
  return std::min(p.trans_a ? rows_within(p.lda) : p.k, p.trans_b ? p.k : rows_within(p.ldb));
}

bool is_narrow(const DeviceProduct& p) { return std::min(p.m, p.n) < kNarrow; }

}  // namespace

void make_along_k(const DeviceProduct& product, int64_t most, const Operands& at, Emitter& emit) {
  const bool in_place = info(product.result).bytes >= info(DType::kF32).bytes;
  DeviceProduct part = product;
  Operands to = at;
  if (!in_place) {
    part.result = DType::kF32;
    part.ldd = product.n;
    part.d_step = product.m * product.n;
    to[kOfC] = {};
    to[kOfD] = emit.scratch(product.batch * part.d_step * info(DType::kF32).bytes);
  }
  const int64_t bytes = info(product.type).bytes;
  for (int64_t first = 0; first < product.k; first += most) {
    part.k = std::min(most, product.k - first);
    to[kOfA] = moved(at[kOfA], first * (product.trans_a ? product.lda : 1) * bytes);
    to[kOfB] = moved(at[kOfB], first * (product.trans_b ? 1 : product.ldb) * bytes);
    emit.product(part, {to.begin(), to.end()});
    to[kOfC] = to[kOfD];
  }
  if (!in_place) round_sums(product, to[kOfD], at, emit);
}

bool is_far_along_k(const DeviceProduct& product) {
  return is_narrow(product) && most_of_k(product) < product.k;
}

void make_within(const DeviceProduct& product, const Operands& at, Emitter& emit) {
  if (!is_narrow(product)) {
    emit.product(product, {at.begin(), at.end()});
    return;
  }
  const PartOf part{product, at};
  const auto each = [&](auto part_of, int64_t all, int64_t most) {
    for (int64_t first = 0; first < all; first += most) {
      const auto [here, to] = (part.*part_of)(first, std::min(most, all - first));
      make_within(here, to, emit);
    }
  };
  const int64_t rows =
      std::min(rows_within(product.ldd), product.trans_a ? product.m : rows_within(product.lda));
  if (rows < product.m) return each(&PartOf::rows, product.m, rows);
  if (product.trans_b && rows_within(product.ldb) < product.n)
    return each(&PartOf::columns, product.n, rows_within(product.ldb));
  if (const int64_t most = most_of_k(product); most < product.k)
    return make_along_k(product, most, at, emit);
  emit.product(product, {at.begin(), at.end()});
}

namespace {

// ---- Tails --------------------------------------------------------------------------------------

// Computes D := sums, `pitch` elements from row to row, + what the last `tail` elements of k give.
void add_tail(const DeviceProduct& p, int64_t tail, int64_t pitch, const DeviceOperand& sums,
              const Operands& at, Emitter& emit) {
  const int64_t first = p.k - tail, bytes = info(p.type).bytes, count = p.m * p.n;
  const int64_t a_step = p.trans_a ? p.lda : 1, b_step = p.trans_b ? 1 : p.ldb;
  int64_t pack = 4;
  while (p.n % pack != 0) pack /= 2;
  emit.kernel({.family = "product",
               .body = fmt::format("  add_tail<{0}, {1}, {2}, {3}, {4}, {5}, {6}LL, {7}LL, {8}LL, "
                                   "{9}LL, {10}LL>(p.at<const float>(0), "
                                   "p.at<const {0}>(1), p.at<const {0}>(2), p.at<{1}>(3), {11}LL);",
                                   type_name(p.type), type_name(p.result), pack, tail, p.trans_a,
                                   p.trans_b, p.n, p.lda, p.ldb, p.ldd, pitch, count),
               .blocks = ceil_div(count, pack * kThreads),
               .threads = kThreads,
               .operands = {sums, moved(at[kOfA], first * a_step * bytes),
                            moved(at[kOfB], first * b_step * bytes), at[kOfD]}});
}

// Makes the sums over all of k but the last few elements in f32, then adds these: for all rows at
// once if the sums have room. SmallVector and equal parts leave few tiles without work.
void make_with_tail(const DeviceProduct& product, int64_t whole, const Operands& at,
                    Emitter& emit) {
  const bool in_place = product.result == DType::kF32;
  constexpr int64_t kMostBytes = int64_t{256} << 20;
  const int64_t row_of_sums = product.n * info(DType::kF32).bytes;
  const int64_t parts = in_place ? 1 : ceil_div(product.m * row_of_sums, kMostBytes);
  const int64_t most =
      std::min(product.m, ceil_div(ceil_div(product.m, parts), kRowsOfTile) * kRowsOfTile);
  const DeviceOperand scratch = in_place ? DeviceOperand{} : emit.scratch(most * row_of_sums);
  for (int64_t first = 0; first < product.m; first += most) {
    auto [part, to] = PartOf{product, at}.rows(first, std::min(most, product.m - first));
    const DeviceOperand sums = in_place ? to[kOfD] : scratch;
    DeviceProduct head = part;
    head.k = whole;
    head.result = DType::kF32;
    if (!in_place) head.ldd = part.n;
    make_within(head, {to[kOfA], to[kOfB], {}, {}, sums, {}}, emit);
    add_tail(part, part.k - whole, head.ldd, sums, to, emit);
  }
}

}  // namespace

void make_parts(const DeviceProduct& product, const Operands& at, Emitter& emit) {
  const auto whole = [&] { make_within(product, at, emit); };
  const bool is_16_bit = product.type == DType::kBF16 || product.type == DType::kF16;
  if (!is_16_bit || product.batch != 1 || !has_aligned_rows(product)) return whole();
  const int64_t m = whole_runs(product.m, product.trans_a), n = whole_runs(product.n, true),
                k = whole_runs(product.k, !product.trans_a || product.trans_b);
  const PartOf part{product, at};
  const auto in_two = [&](auto part_of, int64_t first, int64_t rest) {
    const auto [head, to_head] = (part.*part_of)(0, first);
    make_parts(head, to_head, emit);
    const auto [tail, to_tail] = (part.*part_of)(first, rest);
    make_within(tail, to_tail, emit);
  };
  if (n < product.n) return in_two(&PartOf::columns, n, product.n - n);
  if (m < product.m) return in_two(&PartOf::rows, m, product.m - m);
  const auto is_absent = [&](size_t operand) { return at[operand].kind == DeviceOperand::kAbsent; };
  const bool is_sum_alone =
      is_absent(kOfC) && is_absent(kOfBias) && product.activation == DeviceProduct::kNone;
  if (k < product.k && is_sum_alone) return make_with_tail(product, k, at, emit);
  whole();
}

}  // namespace piper::cuda_kernels
