// GroupedMatMul, GroupedMatMulGrad: rows in the order of the matrices that they name, and then
// tiles of products. RowPlaces: the places of rows that are sent.
#include <fmt/format.h>

#include <algorithm>

#include "families.h"
#include "piper/base/float16.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

constexpr size_t kRows = 0, kIndex = 1, kLast = 2, kFirst = 3;  // kLast: w, or dy in the gradient
constexpr int32_t kSortThreads = 512, kTileThreads = 256;  // kTileThreads, kSide: as the text has
constexpr int64_t kSide = 64;

struct Grouped {
  int64_t rows = 0, k = 0, n = 0, here = 0;  // `here`: matrices
  bool trans_b = false;
  std::string groups;                 // the type of the text
  std::vector<DeviceOperand> sorted;  // where groups begin, and the rows
  int32_t operands = 0;               // of the op: before those
};

// Sorts the rows.
Grouped sort_rows(const Use& use, int64_t here, int64_t n, Emitter& emit) {
  Grouped g{.rows = num_elements(use.in(kIndex)), .k = use.in(kRows).back(), .n = n, .here = here};
  g.trans_b = use.attrs.integer("trans_b") != 0;
  const bool is_part = use.has(kFirst);
  g.groups = fmt::format("Groups<{}, {}>", here, is_part ? use.attrs.integer("whole") : here);
  g.operands = static_cast<int32_t>(use.inputs.size() + 1);
  const int64_t bytes = info(DType::kI64).bytes, groups = here + 2;
  g.sorted = {emit.scratch((groups + 1) * bytes), emit.scratch(g.rows * bytes)};
  const std::string first = is_part ? fmt::format("p.at<const int64_t>({})", kFirst) : "nullptr";
  emit.kernel({.family = "grouped",
               .body = fmt::format("  typedef {} Here;\n"
                                   "  sort_rows<Here, {}>(p.at<const {}>({}), Here({}), {}LL, "
                                   "p.at<int64_t>({}), p.at<int64_t>({}));",
                                   g.groups, kSortThreads, type_name(use.type(kIndex)), kIndex,
                                   first, g.rows, g.operands, g.operands + 1),
               .blocks = groups,
               .threads = kSortThreads,
               .extra = g.sorted});
  return g;
}

// Returns how many elements of these operands may be read or written at once, of `most`: whole rows
// of this extent are, as far as alignment allows.
int64_t at_once(const Emitter& emit, std::initializer_list<size_t> operands, int64_t extent,
                DType type, int64_t most) {
  const auto fits = [&](int64_t many) {
    return extent % many == 0 && std::all_of(operands.begin(), operands.end(), [&](size_t i) {
             return emit.operand(i).offset % (many * info(type).bytes) == 0;
           });
  };
  while (!fits(most)) most /= 2;
  return most;
}
bool can_pack(const Emitter& emit, std::initializer_list<size_t> operands, int64_t extent,
              DType type) {
  return at_once(emit, operands, extent, type, 4) == 4;
}

// Of 16-bit floats by tensor cores; other floats have more bits than these multiply.
constexpr int64_t kMmaSide = 128;  // as the text has it
constexpr std::string_view kMmaFamily = "grouped mma mma_grouped";

bool by_mma(const Use& use, const Grouped& g) {
  constexpr int64_t kFits = int64_t{1} << 30;  // extents are int there
  return is_half(use.type()) && std::max({g.rows, g.k, g.n}) < kFits;
}

KernelText product_by_mma(const Use& use, const Grouped& g, const Emitter& emit) {
  const size_t out = use.inputs.size();
  const auto many = [&](size_t operand, int64_t extent) {
    return at_once(emit, {operand}, extent, use.type(), 8);
  };
  return {.family = kMmaFamily,
          .body = fmt::format("  mma::grouped_product<{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}>("
                              "p.at<const {1}>({8}), p.at<const {1}>({9}), p.at<const "
                              "int64_t>({10}), p.at<const int64_t>({11}), p.at<{1}>({12}), {13});",
                              g.groups, type_name(use.type()), g.trans_b, many(kRows, g.k),
                              many(kLast, g.trans_b ? g.k : g.n), many(out, g.n), g.k, g.n, kRows,
                              kLast, g.operands, g.operands + 1, out, g.rows),
          .blocks = (g.rows / kMmaSide + g.here + 2) * ceil_div(g.n, kMmaSide),
          .threads = kMmaThreads,
          .extra = g.sorted};
}

Status make_row_places(const Use& use, Emitter& emit) {
  const auto of = [&](const char* name) { return use.attrs.integer(name); };
  emit.kernel({.family = "grouped",
               .body = fmt::format("  place_rows<{0}>(p.at<const {1}>(0), {2}LL, {3}LL, {4}LL, "
                                   "{5}LL, p.at<{1}>(1), p.at<{1}>(2));",
                                   kSortThreads, type_name(use.type(0)), num_elements(use.in(0)),
                                   of("ranks"), of("owned"), of("rows")),
               .blocks = of("ranks") + 1,
               .threads = kSortThreads});
  return ok_status();
}

Status make_grouped_matmul(const Use& use, Emitter& emit) {
  if (num_elements(use.out()) == 0) return ok_status();
  const Grouped g = sort_rows(use, use.in(kLast)[0], use.out().back(), emit);
  if (by_mma(use, g)) {
    emit.kernel(product_by_mma(use, g, emit));
    return ok_status();
  }
  const size_t out = use.inputs.size();
  emit.kernel(
      {.family = "grouped",
       .body = fmt::format("  grouped_product<{0}, {1}, {2}, {3}, {4}, {5}>(p.at<const {1}>({6}), "
                           "p.at<const {1}>({7}), p.at<const int64_t>({8}), p.at<const "
                           "int64_t>({9}), p.at<{1}>({10}));",
                           g.groups, type_name(use.type()), g.trans_b,
                           can_pack(emit, {kLast, out}, g.n, use.type()), g.k, g.n, kRows, kLast,
                           g.operands, g.operands + 1, out),
       .blocks = (g.rows / kSide + g.here + 2) * ceil_div(g.n, kSide),
       .threads = kTileThreads,
       .extra = g.sorted});
  return ok_status();
}

Status make_grouped_matmul_grad(const Use& use, Emitter& emit) {
  if (num_elements(use.out()) == 0) return ok_status();
  const Grouped g = sort_rows(use, use.out()[0], use.in(kLast).back(), emit);
  const size_t left = g.trans_b ? kLast : kRows, right = g.trans_b ? kRows : kLast;
  const int64_t height = g.trans_b ? g.n : g.k, width = g.trans_b ? g.k : g.n;
  const size_t out = use.inputs.size();
  const DType made = use.outputs[0].dtype;
  const bool is_mma = by_mma(use, g);
  const auto many = [&](size_t operand, int64_t extent) {
    return at_once(emit, {operand}, extent, use.type(), 8);
  };
  const auto packs = [&](size_t operand, int64_t extent, DType type) {
    return can_pack(emit, {operand}, extent, type);
  };
  // Sums that are not rounded are stored as fragments have them, two at a time.
  const std::string ways =
      is_mma ? fmt::format("{}, {}, {}", many(left, height), many(right, width),
                           at_once(emit, {out}, width, made, is_half(made) ? 8 : 2))
             : fmt::format("{}, {}", packs(left, height, use.type()),
                           packs(right, width, use.type()) && packs(out, width, made));
  const int64_t side = is_mma ? kMmaSide : kSide;
  emit.kernel(
      {.family = is_mma ? kMmaFamily : "grouped",
       .body = fmt::format("  {0}grouped_gradient<{1}, {2}, {3}, {4}>(p.at<const "
                           "{1}>({5}), p.at<const {1}>({6}), p.at<const int64_t>({7}), "
                           "p.at<const int64_t>({8}), p.at<{10}>({9}));",
                           is_mma ? "mma::" : "", type_name(use.type()), ways, height, width, left,
                           right, g.operands, g.operands + 1, out, type_name(made)),
       .blocks = g.here * ceil_div(height, side) * ceil_div(width, side),
       .threads = is_mma ? kMmaThreads : kTileThreads,
       .extra = g.sorted});
  return ok_status();
}

}  // namespace

std::vector<MakerRow> grouped_kernels() {
  return {{"GroupedMatMul", make_grouped_matmul},
          {"GroupedMatMulGrad", make_grouped_matmul_grad},
          {"RowPlaces", make_row_places}};
}

}  // namespace piper::cuda_kernels
