// MatMul, Linear: products of a library, of as many batches as its strides can say, and what the
// library's epilogues cannot do.
#include <fmt/format.h>

#include <algorithm>

#include "families.h"
#include "product_parts.h"

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

// The library's kernels count products of one call in a dim of a grid, which has 65,535 at most.
constexpr int64_t kMostTogether = 32768;

// ---- Linear -------------------------------------------------------------------------------------
constexpr size_t kX = 0, kW = 1, kBias = 2, kY = 3, kPre = 4;
constexpr int32_t kFinishThreads = 256;
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
  if (product.type == DType::kF64 || product.k == 0 || is_far_along_k(product) ||
      !is_aligned(emit.operand(kBias)))
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
      make_within(product,
                  {moved(emit.operand(kX), first * product.lda * bytes),
                   emit.operand(kW),
                   {},
                   {},
                   sums,
                   {}},
                  emit);
    finish(linear, here, {sums, emit.operand(kBias), y, pre}, emit);
  }
}

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
  int64_t many = 1;
  if (!dims.empty()) {
    const auto most =
        std::max_element(dims.begin(), dims.end(),
                         [](const BatchDim& x, const BatchDim& y) { return x.extent < y.extent; });
    product.a_step = most->a, product.b_step = most->b, product.d_step = most->d;
    many = most->extent;
    dims.erase(most);
  }
  const int64_t size = info(product.type).bytes, of_result = info(product.result).bytes;
  for (int64_t first = 0; first < many; first += kMostTogether) {
    product.batch = std::min(kMostTogether, many - first);
    const int64_t result = first * product.d_step * of_result;
    make_products(
        use, product, dims,
        {moved(emit.operand(0), first * product.a_step * size),
         moved(emit.operand(1), first * product.b_step * size), moved(c, result), moved(d, result)},
        emit);
  }
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

}  // namespace

std::vector<MakerRow> product_kernels() {
  return {{"Linear", make_linear}, {"MatMul", make_matmul}};
}

}  // namespace piper::cuda_kernels
