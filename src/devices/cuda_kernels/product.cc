// MatMul, Linear: products of a library, of as many batches as its strides can say, and what the
// library's epilogues cannot do.
#include <fmt/format.h>

#include <algorithm>

#include "families.h"

namespace piper::cuda_kernels {
namespace {

// ---- Batches ------------------------------------------------------------------------------------
// Describes a dim of the batch: how many elements it is from one matrix to the next, 0 where it is
// broadcast.
struct BatchDim {
  int64_t extent = 1, a = 0, b = 0, d = 0;
};

// Returns elements from one index of each dim of `batch` to the next, in a tensor of such matrices.
std::vector<int64_t> steps_of(const Shape& tensor, int64_t pitch, const Shape& batch) {
  std::vector<int64_t> steps(batch.size());
  int64_t step = tensor[tensor.size() - 2] * pitch;
  for (size_t behind = 1; behind + 2 <= tensor.size(); ++behind) {
    const int64_t here = tensor[tensor.size() - 2 - behind];
    if (here != 1) steps[batch.size() - behind] = step;
    step *= here;
  }
  return steps;
}

// Returns the dims of a batch, innermost first; those that follow each other alike in all three are
// one.
std::vector<BatchDim> batch_of(const Use& use, const DeviceProduct& product) {
  const Shape& out = use.out();
  const Shape batch(out.begin(), out.end() - 2);
  const auto a = steps_of(use.in(0), product.lda, batch),
             b = steps_of(use.in(1), product.ldb, batch), d = steps_of(out, product.ldd, batch);
  std::vector<BatchDim> dims;
  for (size_t i = batch.size(); i-- > 0;) {
    if (batch[i] == 1) continue;
    if (!dims.empty()) {
      BatchDim& inner = dims.back();
      if (a[i] == inner.a * inner.extent && b[i] == inner.b * inner.extent &&
          d[i] == inner.d * inner.extent) {
        inner.extent *= batch[i];
        continue;
      }
    }
    dims.push_back({batch[i], a[i], b[i], d[i]});
  }
  return dims;
}

DeviceOperand moved(DeviceOperand operand, int64_t bytes) {
  if (operand.kind != DeviceOperand::kAbsent) operand.offset += bytes;
  return operand;
}

// ---- Parts --------------------------------------------------------------------------------------
// The library's fast kernels read and write runs of 16 bytes, so they take an extent along which
// elements adjoin only if it is a whole number of runs. Of others, 50,257 classes for one, the last
// few elements are a product of their own, which takes little time; along k a kernel of ours adds
// it.

constexpr int64_t kRun = 8;            // elements of 16 bits
constexpr int64_t kLeastExtent = 256;  // below, nothing is gained
constexpr int32_t kFinishThreads = 256;
constexpr int64_t kRowsOfTile = 128;  // of the library

using Operands = std::array<DeviceOperand, 6>;  // as DeviceProduct has them
enum : size_t { kOfA, kOfB, kOfC, kOfBias, kOfD, kOfPre };

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
               .blocks = ceil_div(count, pack * kFinishThreads),
               .threads = kFinishThreads,
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
    emit.product(head, {to[kOfA], to[kOfB], {}, {}, sums, {}});
    add_tail(part, part.k - whole, head.ldd, sums, to, emit);
  }
}

// Emits a product in as many parts as its extents need.
void make_parts(const DeviceProduct& product, const Operands& at, Emitter& emit) {
  const auto whole = [&] { emit.product(product, {at.begin(), at.end()}); };
  const bool is_16_bit = product.type == DType::kBF16 || product.type == DType::kF16;
  if (!is_16_bit || product.batch != 1 || !has_aligned_rows(product)) return whole();
  const int64_t m = whole_runs(product.m, product.trans_a), n = whole_runs(product.n, true),
                k = whole_runs(product.k, !product.trans_a || product.trans_b);
  const PartOf part{product, at};
  const auto in_two = [&](auto part_of, int64_t first, int64_t rest) {
    const auto [head, to_head] = (part.*part_of)(0, first);
    make_parts(head, to_head, emit);
    const auto [tail, to_tail] = (part.*part_of)(first, rest);
    emit.product(tail, {to_tail.begin(), to_tail.end()});
  };
  if (n < product.n) return in_two(&PartOf::columns, n, product.n - n);
  if (m < product.m) return in_two(&PartOf::rows, m, product.m - m);
  const auto is_absent = [&](size_t operand) { return at[operand].kind == DeviceOperand::kAbsent; };
  const bool is_sum_alone =
      is_absent(kOfC) && is_absent(kOfBias) && product.activation == DeviceProduct::kNone;
  if (k < product.k && is_sum_alone) return make_with_tail(product, k, at, emit);
  whole();
}

// Makes one product for each place in `dims`; operands are A, B, C, D.
void make_products(const Use& use, const DeviceProduct& product, std::span<const BatchDim> dims,
                   std::array<DeviceOperand, 4> at, Emitter& emit) {
  if (dims.empty()) return make_parts(product, {at[0], at[1], at[2], {}, at[3], {}}, emit);
  const BatchDim& dim = dims.back();
  const int64_t bytes = info(use.type()).bytes, of_result = info(product.result).bytes;
  for (int64_t i = 0; i < dim.extent; ++i)
    make_products(use, product, dims.first(dims.size() - 1),
                  {moved(at[0], i * dim.a * bytes), moved(at[1], i * dim.b * bytes),
                   moved(at[2], i * dim.d * of_result), moved(at[3], i * dim.d * of_result)},
                  emit);
}

// D is operand `result` of the op.
DeviceProduct product_of(const Use& use, const Emitter& emit, size_t result, bool trans_a,
                         bool trans_b, int64_t m) {
  const Shape &a = use.in(0), &b = use.in(1);
  DeviceProduct product{.type = use.type(),
                        .result = use.outputs[0].dtype,
                        .trans_a = trans_a,
                        .trans_b = trans_b,
                        .m = m,
                        .n = b[b.size() - (trans_b ? 2 : 1)],
                        .k = b[b.size() - (trans_b ? 1 : 2)]};
  product.lda = pitch_of(emit.operand(0), a);
  product.ldb = pitch_of(emit.operand(1), b);
  product.ldd = pitch_of(emit.operand(result), use.out());
  return product;
}

// ---- Linear -------------------------------------------------------------------------------------
constexpr size_t kX = 0, kW = 1, kBias = 2, kY = 3, kPre = 4;
// Of f32 sums that are finished by a kernel of ours: what a device keeps in its cache meanwhile.
constexpr int64_t kSumBytes = int64_t{32} << 20;

struct Linear {
  DeviceProduct product;
  std::string activation;
  bool is_activated = false;
};

bool is_aligned(const DeviceOperand& operand) { return operand.offset % 16 == 0; }

// Returns whether the library does all of it: no exact GELU, and no f32 results of a tanh that it
// approximates; what it keeps of the sums has rows of whole 16 bytes.
bool is_for_library(const Linear& linear, const Emitter& emit) {
  const DeviceProduct& product = linear.product;
  if (product.type == DType::kF64 || product.k == 0 || !is_aligned(emit.operand(kBias)))
    return false;
  if (!linear.is_activated) return true;
  return linear.activation == "gelu_tanh" && product.type != DType::kF32 && product.n % 8 == 0 &&
         is_aligned(emit.operand(kPre));
}

// Applies bias and activation to `rows` rows of sums; operands: sums, bias, y, pre.
void finish(const Linear& linear, int64_t rows, std::vector<DeviceOperand> operands,
            Emitter& emit) {
  const DType type = linear.product.type;
  const int64_t n = linear.product.n, count = rows * n, bytes = info(type).bytes;
  int64_t pack = 16 / bytes;
  const auto can_pack = [&](const DeviceOperand& operand) {
    return operand.offset % (pack * bytes) == 0;
  };
  while (n % pack != 0 || !std::all_of(operands.begin(), operands.end(), can_pack)) pack /= 2;
  const std::string_view activation = linear.activation == "gelu"   ? "GeluExact"
                                      : linear.activation == "none" ? "NoActivation"
                                                                    : "GeluTanh";
  emit.kernel({.family = "product",
               .body = fmt::format("  finish_sums<{0}, {1}, {2}, {3}, {4}>(p.at<const {5}>(0), "
                                   "p.at<const {1}>(1), p.at<{1}>(2), p.at<{1}>(3), {6}LL);",
                                   activation, type_name(type), pack, n, linear.is_activated,
                                   type_name(compute_type(type)), count),
               .blocks = ceil_div(count, pack * kFinishThreads),
               .threads = kFinishThreads,
               .operands = std::move(operands)});
}

// Makes the sums as they are, some rows at a time, and then the rest.
void make_in_two(const Linear& linear, Emitter& emit) {
  const int64_t rows = linear.product.m, n = linear.product.n, k = linear.product.k;
  const DType type = linear.product.type, sums_type = compute_type(type);
  const int64_t bytes = info(type).bytes, row_of_sums = n * info(sums_type).bytes;
  const bool in_place = type == sums_type;
  const int64_t most =
      in_place ? rows
               : std::min(rows, std::max(kSumBytes / row_of_sums / kRowsOfTile, int64_t{1}) *
                                    kRowsOfTile);
  const DeviceOperand scratch = in_place ? DeviceOperand{} : emit.scratch(most * row_of_sums);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t here = std::min(most, rows - first);
    const DeviceOperand y = moved(emit.operand(kY), first * n * bytes);
    const DeviceOperand pre =
        linear.is_activated ? moved(emit.operand(kPre), first * n * bytes) : DeviceOperand{};
    const DeviceOperand sums = !in_place ? scratch : linear.is_activated ? pre : y;
    DeviceProduct product = linear.product;
    product.m = here;
    product.result = sums_type;
    if (k == 0)
      emit.zero(sums, here * row_of_sums);
    else
      emit.product(product, {moved(emit.operand(kX), first * product.lda * bytes),
                             emit.operand(kW),
                             {},
                             {},
                             sums,
                             {}});
    finish(linear, here, {sums, emit.operand(kBias), y, pre}, emit);
  }
}

}  // namespace

Status make_matmul(const Use& use, Emitter& emit) {
  const bool adds = use.attrs.integer("accumulate") != 0;
  const DeviceOperand c = adds ? emit.operand(2) : DeviceOperand{};
  const DeviceOperand d = emit.operand(use.inputs.size());
  const int64_t bytes = use.outputs[0].bytes();
  if (bytes == 0) return ok_status();
  const Shape& out = use.out();
  DeviceProduct product =
      product_of(use, emit, use.inputs.size(), use.attrs.integer("trans_a") != 0,
                 use.attrs.integer("trans_b") != 0, out[out.size() - 2]);
  if (product.k == 0) {
    if (adds)
      emit.copy(c, d, bytes);
    else
      emit.zero(d, bytes);
    return ok_status();
  }
  std::vector<BatchDim> dims = batch_of(use, product);
  // Matrices that are below each other and have one factor are one.
  if (!dims.empty() && !product.trans_a && dims[0].a == product.m * product.lda && dims[0].b == 0) {
    product.m *= dims[0].extent;
    dims.erase(dims.begin());
  }
  if (!dims.empty()) {
    const auto most =
        std::max_element(dims.begin(), dims.end(),
                         [](const BatchDim& x, const BatchDim& y) { return x.extent < y.extent; });
    product.batch = most->extent;
    product.a_step = most->a, product.b_step = most->b, product.d_step = most->d;
    dims.erase(most);
  }
  make_products(use, product, dims, {emit.operand(0), emit.operand(1), c, d}, emit);
  return ok_status();
}

Status make_linear(const Use& use, Emitter& emit) {
  const Shape& out = use.out();
  if (num_elements(out) == 0) return ok_status();
  Linear linear{.product = product_of(use, emit, kY, false, use.attrs.integer("trans_b") != 0,
                                      extent(out, 0, out.size() - 1)),
                .activation = use.attrs.text("activation", "none")};
  linear.is_activated = linear.activation != "none";
  if (!is_for_library(linear, emit)) {
    make_in_two(linear, emit);
    return ok_status();
  }
  if (linear.is_activated) linear.product.activation = DeviceProduct::kGeluTanh;
  make_parts(linear.product,
             {emit.operand(kX), emit.operand(kW), DeviceOperand{}, emit.operand(kBias),
              emit.operand(kY), linear.is_activated ? emit.operand(kPre) : DeviceOperand{}},
             emit);
  return ok_status();
}

}  // namespace piper::cuda_kernels
