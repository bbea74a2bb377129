// ReduceSum, ReduceMax, ReduceMin, ReduceProd and their gradients. How many parts a result is
// gathered in follows from the shapes only.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "families.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

constexpr int64_t kEnoughBlocks = 1024;

// Holds the dims of what is reduced, with its strides: those that results keep, and the others.
struct Reduction {
  Shape kept, reduced;
  std::vector<int64_t> kept_strides, reduced_strides;
  bool by_rows = false;  // the last dim is reduced

  int64_t results() const { return num_elements(kept); }
  int64_t elements() const { return num_elements(reduced); }
};

// Returns the form of a reduction. `steps`: how the dims of x walk the results; 0 for those that
// are reduced. Requires: no extent of 0.
Reduction reduction_of(const Shape& x, const std::vector<int64_t>& steps) {
  const Walk walk = folded(x, {row_major(x), steps});
  Reduction r;
  for (size_t d = 0; d < walk.extents.size(); ++d) {
    r.by_rows = walk.strides[1][d] == 0;
    (r.by_rows ? r.reduced : r.kept).push_back(walk.extents[d]);
    (r.by_rows ? r.reduced_strides : r.kept_strides).push_back(walk.strides[0][d]);
  }
  if (r.kept.empty()) r.kept = {1}, r.kept_strides = {0};
  if (r.reduced.empty()) r.reduced = {1}, r.reduced_strides = {0};
  return r;
}

// Packs up to 16 bytes along the last dim, as the text has them; returns how many elements each
// pack has.
int64_t pack_dims(Reduction& r, int64_t bytes) {
  Shape& last = r.by_rows ? r.reduced : r.kept;
  int64_t size = common_bytes({last.back() * bytes});
  const auto each_stride = [&](const auto& f) {  // but for that of the last dim
    for (size_t d = 0; d + r.by_rows < r.reduced.size(); ++d) f(r.reduced_strides[d]);
    for (size_t d = 0; d + !r.by_rows < r.kept.size(); ++d) f(r.kept_strides[d]);
  };
  each_stride([&](int64_t stride) { size = std::min(size, common_bytes({stride * bytes})); });
  const int64_t pack = size / bytes;
  each_stride([&](int64_t& stride) { stride /= pack; });
  last.back() /= pack;
  return pack;
}

std::string reduced_text(const Reduction& r, std::string_view index, int64_t chunk) {
  return fmt::format("  constexpr Reduced<{}, {}, {}> by{{{}, {}, {}, {}, {}}};\n", index,
                     r.kept.size(), r.reduced.size(), r.results(), r.elements(), chunk,
                     strides_value(r.kept, r.kept_strides),
                     strides_value(r.reduced, r.reduced_strides));
}

std::string identity_of(std::string_view op, DType dtype) {
  if (op == "Sum") return literal(0, dtype);
  if (op == "Product") return literal(1, dtype);
  if (info(dtype).is_float) return op == "Greatest" ? "-kInfinity" : "kInfinity";
  const std::string most = dtype == DType::kI64 ? "9223372036854775807LL" : "2147483647";
  return op == "Greatest" ? fmt::format("(-{} - 1)", most) : most;
}

// Names what a kernel reads and writes: operands, and where in 16 bytes the former begin.
struct Ends {
  size_t from = 0, to = 1;
  DType type, result;
  int64_t from_offset = 0, to_offset = 0;
  std::vector<DeviceOperand> extra = {};
};

// Says how the threads of a kernel share the work.
struct Cut {
  int64_t pack = 1, chunk = 1, parts = 1;  // chunk: packs of each part
  int64_t lanes = 1;                       // by rows: that make a result; else: results of a block
  int64_t blocks = 1;
};

// Cuts a reduction. `whole`: in one part.
Cut cut_of(Reduction& r, DType type, bool whole) {
  Cut cut;
  cut.pack = pack_dims(r, info(type).bytes);
  const auto parts = [&](int64_t blocks, int64_t least) {
    const int64_t most = whole ? 1 : std::max<int64_t>(r.elements() / least, 1);
    const int64_t wanted = std::clamp<int64_t>(kEnoughBlocks / blocks, 1, most);
    cut.chunk = std::max<int64_t>(ceil_div(r.elements(), wanted), 1);
    cut.parts = std::max<int64_t>(ceil_div(r.elements(), cut.chunk), 1);
  };
  if (r.by_rows) {
    cut.lanes = r.elements() <= 8 ? 1 : r.elements() <= 512 ? 32 : kThreads;
    parts(cut.lanes == kThreads ? r.results() : kEnoughBlocks, 8 * kThreads);
    cut.blocks = ceil_div(cut.parts * r.results() * cut.lanes, kThreads);
  } else {
    const auto results = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(r.results())));
    cut.lanes = std::min<int64_t>(results, r.elements() < 8 ? kThreads : 32);
    const int64_t tiles = ceil_div(r.results(), cut.lanes);
    parts(tiles, 8 * kThreads / cut.lanes);
    cut.blocks = cut.parts * tiles;
  }
  return cut;
}

std::string reduce_text(std::string_view op, const Reduction& r, const Ends& ends, const Cut& cut,
                        std::string_view index) {
  const auto word = [&](int64_t offset, DType type) {
    const int64_t bytes = info(type).bytes;
    return std::min(common_bytes({offset, cut.pack * bytes}) / bytes, cut.pack);
  };
  const std::string operands = fmt::format("p.at<const {}>({}), p.at<{}>({})", type_name(ends.type),
                                           ends.from, type_name(ends.result), ends.to);
  const std::string identity = identity_of(op, compute_type(ends.type));
  const int64_t from_word = word(ends.from_offset, ends.type);
  if (r.by_rows)
    return fmt::format("  reduce_rows<{}, {}, {}, {}>({}, {}({}), by, {});", op, cut.lanes,
                       cut.pack, from_word, operands, index, cut.parts, identity);
  return fmt::format("  reduce_columns<{}, {}, {}, {}, {}, {}>({}, by, {});", op, kThreads,
                     cut.lanes, cut.pack, from_word, word(ends.to_offset, ends.result), operands,
                     identity);
}

// Emits a reduction. `op`: Sum, Product, Greatest or Least. In parts, where that makes enough
// blocks: what they gather is as wide as what is computed, and gathered in turn.
void reduce(std::string_view op, Reduction r, Ends ends, bool whole, Emitter& emit) {
  const int64_t results = r.results(), count = results * r.elements();
  const DType wide = compute_type(ends.type);
  const Cut cut = cut_of(r, ends.type, whole);
  Ends rest{.to = ends.to, .type = wide, .result = ends.result, .to_offset = ends.to_offset};
  if (cut.parts > 1) {
    ends.extra = {emit.scratch(cut.parts * results * info(wide).bytes)};
    ends.result = wide;
    ends.to_offset = 0;
    rest.from = ends.to = ends.to + 1;
    rest.extra = ends.extra;
  }
  const std::string_view index =
      index_name({count, cut.blocks * kThreads, (r.elements() + 2 * cut.chunk) * cut.pack});
  emit.kernel({.family = "reduce",
               .body = reduced_text(r, index, cut.chunk) + reduce_text(op, r, ends, cut, index),
               .blocks = cut.blocks,
               .threads = kThreads,
               .extra = ends.extra});
  if (cut.parts == 1) return;
  reduce(op, {{results}, {cut.parts}, {1}, {results}, false}, rest, true, emit);
}

// Cuts the gradient's work: x, and `kept`, x except for the reduced dims, which are 1. How many
// threads make what belongs to one of those.
struct GradCut {
  Reduction by;
  int64_t lanes = 1;
  std::string_view index;
};
GradCut grad_cut(const Shape& x, const Shape& kept) {
  GradCut cut{reduction_of(x, spread_strides(kept, x))};
  const int64_t elements = cut.by.elements();
  if (cut.by.by_rows && elements > 8) cut.lanes = elements <= 1024 ? 32 : kThreads;
  cut.index = index_name({num_elements(x) + kThreads, cut.by.results() * cut.lanes});
  return cut;
}

Status make_reduce(const Use& use, Emitter& emit) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kWords = {
      {{"ReduceSum", "Sum"},
       {"ReduceMax", "Greatest"},
       {"ReduceMin", "Least"},
       {"ReduceProd", "Product"}}};
  const auto word = std::ranges::find(kWords, use.op, [](const auto& row) { return row.first; });
  PIPER_CHECK(word != kWords.end(), "no reduction is called '{}'", use.op);
  const std::string_view op = word->second;
  if (num_elements(use.out()) == 0) return ok_status();
  Shape kept = use.in(0);
  for (const int64_t axis : use.attrs.integers("axes")) kept[static_cast<size_t>(axis)] = 1;
  const Ends ends{.type = use.type(),
                  .result = use.type(),
                  .from_offset = emit.operand(0).offset,
                  .to_offset = emit.operand(1).offset};
  Reduction r{{num_elements(use.out())}, {0}, {0}, {0}, true};  // of nothing
  if (num_elements(use.in(0)) > 0) r = reduction_of(use.in(0), spread_strides(kept, use.in(0)));
  reduce(op, std::move(r), ends, false, emit);
  return ok_status();
}

Status make_reduce_extreme_grad(const Use& use, Emitter& emit) {
  if (num_elements(use.out()) == 0) return ok_status();
  const GradCut cut = grad_cut(use.in(1), use.in(0));
  const std::string_view type = type_name(use.type());
  launch(
      emit, "reduce",
      fmt::format("{0}  extreme_grad<{1}, {2}>(p.at<const {3}>(0), p.at<const {3}>(1), p.at<const "
                  "{3}>(2), p.at<{3}>(3), by);",
                  reduced_text(cut.by, cut.index, 0), use.attrs.integer("first", 0) != 0, cut.lanes,
                  type),
      cut.by.results() * cut.lanes);
  return ok_status();
}

Status make_reduce_prod_grad(const Use& use, Emitter& emit) {
  if (num_elements(use.out()) == 0) return ok_status();
  GradCut cut = grad_cut(use.in(1), use.in(0));
  if (cut.by.elements() > 1024) cut.lanes = kThreads;
  if (cut.lanes == 32) cut.lanes = 1;  // a lane has its share of neighbours: no warp reads as one
  const bool narrow = compute_type(use.type()) != use.type();
  std::vector<DeviceOperand> extra;
  if (narrow) extra.push_back(emit.scratch(num_elements(use.out()) * 4));
  launch(emit, "reduce",
         fmt::format("{0}  product_grad<{1}>(p.at<const {2}>(0), p.at<const {2}>(1), p.at<{2}>(2), "
                     "p.at<{3}>({4}), by);",
                     reduced_text(cut.by, cut.index, ceil_div(cut.by.elements(), cut.lanes)),
                     cut.lanes, type_name(use.type()), type_name(compute_type(use.type())),
                     narrow ? 3 : 2),
         cut.by.results() * cut.lanes, std::move(extra));
  return ok_status();
}

}  // namespace

std::vector<MakerRow> reduce_kernels() {
  return {{"ReduceExtremeGrad", make_reduce_extreme_grad},
          {"ReduceMax", make_reduce},
          {"ReduceMin", make_reduce},
          {"ReduceProd", make_reduce},
          {"ReduceProdGrad", make_reduce_prod_grad},
          {"ReduceSum", make_reduce}};
}

}  // namespace piper::cuda_kernels
