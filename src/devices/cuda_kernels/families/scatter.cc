// ScatterElements, ScatterND and the gradients of gathers: what is put at, or combined with, places
// that indices name. A place that is outside is never written.
#include <fmt/format.h>

#include <bit>

#include "families.h"
#include "places.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

// Says how many positions are sorted, with as many more as make a power of two.
struct Sorted {
  int64_t count = 0, padded = 0;
  int bits = 0;
  DeviceOperand entries;
  std::string text;  // a value of the text's Entries
};
constexpr int64_t kAhead = 12;  // as the text has it: so many stand for none behind all

Result<Sorted> sorted_of(int64_t count, int64_t places, Emitter& emit) {
  Sorted s{.count = count};
  s.padded =
      std::max<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))), 2);
  s.bits = std::countr_zero(static_cast<uint64_t>(s.padded));
  if (std::bit_width(static_cast<uint64_t>(places)) + s.bits > 63)
    return fail("not supported: {} updates of {} places", count, places);
  s.entries = emit.scratch((s.padded + kAhead) * 8);
  s.text =
      fmt::format("  constexpr Entries entries{{{}, {}, {}}};\n", count, s.padded + kAhead, s.bits);
  return s;
}

// Sorts what has been entered.
void sort(const Sorted& s, size_t operand, Emitter& emit) {
  const int64_t tile = std::min<int64_t>(s.padded, 4096);
  const int32_t threads = tile < 512 ? 32 : 512;
  const auto tiles = [&](int64_t from, int64_t to) {
    emit.kernel({.family = "scatter",
                 .body = fmt::format("  sort_tiles<{}, {}>(p.at<uint64_t>({}), {}LL, {}LL);", tile,
                                     threads, operand, from, to),
                 .blocks = s.padded / tile,
                 .threads = threads,
                 .extra = {s.entries}});
  };
  tiles(2, tile);
  for (int64_t run = 2 * tile; run <= s.padded; run *= 2) {
    for (int64_t apart = run / 2; apart >= tile; apart /= 2) {  // up to four steps at once
      int steps = 1;
      for (; steps < 4 && apart > tile; ++steps) apart /= 2;
      launch(emit, "scatter",
             fmt::format("  sort_steps<{}>(p.at<uint64_t>({}), {}LL, {}LL, {}LL);", steps, operand,
                         s.padded >> steps, run, apart),
             s.padded >> steps, {s.entries});
    }
    tiles(run, run);
  }
}

// Combines sorted updates of `outer` parts [count, inner], each with rows of its own.
void combine(const Use& use, const Sorted& s, std::string_view how, size_t updates, int64_t outer,
             int64_t rows, int64_t inner, Emitter& emit) {
  const size_t to = use.inputs.size(), scratch = to + 1;
  const int64_t bytes = info(use.outputs[0].dtype).bytes;
  // Eight bytes of a row a thread: it reads as many rows at once as its registers hold.
  const int64_t aligned =
      common_bytes({8, inner * bytes, emit.operand(updates).offset, emit.operand(to).offset});
  const int64_t pack = aligned / bytes;
  launch(
      emit, "scatter",
      fmt::format("{0}  typedef Pack<{1}, {2}> Elements;\n"
                  "  combine<{3}>(p.at<const uint64_t>({4}), p.at<const Elements>({5}), "
                  "p.at<Elements>({6}), entries, Combined{{{7}, {8}, {9}}});",
                  s.text,
                  how == "Put" ? bits_name(use.outputs[0].dtype) : type_name(use.outputs[0].dtype),
                  pack, how, scratch, updates, to, outer, inner / pack, rows),
      outer * s.count * inner / pack, {s.entries});
}

Result<std::string_view> how_of(const Use& use) {
  const std::string name = use.attrs.text("reduction", "none");
  if (name == "none") return std::string_view("Put");
  if (use.type() == DType::kBool) return fail("not supported on {}", info(use.type()).name);
  if (name == "add") return std::string_view("Sum");
  if (name == "mul") return std::string_view("Product");
  return std::string_view(name == "max" ? "Greatest" : "Least");
}

// Scatters updates, an operand, to rows of the result, which has its first values.
Status scatter_rows(const Use& use, const Places& p, std::string_view how, size_t updates,
                    Emitter& emit) {
  const int64_t count = (p.own_indices ? p.batches : 1) * p.places;
  const int64_t outer = p.own_indices ? 1 : p.batches;
  const int64_t rows = (p.own_indices ? p.batches : 1) * p.rows;
  if (outer * count * rows * p.inner == 0) return ok_status();
  PIPER_ASSIGN(const Sorted s, sorted_of(count, rows, emit));
  const size_t scratch = use.inputs.size() + 1;
  launch(emit, "scatter",
         fmt::format("{}  constexpr {} named{};\n"
                     "  enter_rows(p.at<const {}>(1), {}, p.at<uint64_t>({}), entries, {}LL, {}LL, "
                     "named);",
                     s.text, named_type(p), named_value(p), type_name(use.type(1)), p.first,
                     scratch, p.places, p.rows),
         s.padded + kAhead, {s.entries});
  sort(s, scratch, emit);
  combine(use, s, how, updates, outer, rows, p.inner, emit);
  return ok_status();
}

Status scatter_elements(const Use& use, const Along& a, std::string_view how, size_t updates,
                        Emitter& emit) {
  const int64_t count = num_elements(use.in(1)), places = num_elements(use.out());
  if (count * places == 0) return ok_status();
  PIPER_ASSIGN(const Sorted s, sorted_of(count, places, emit));
  const size_t scratch = use.inputs.size() + 1;
  launch(
      emit, "scatter",
      fmt::format("{}  constexpr {} strides{};\n"
                  "  enter_elements(p.at<const {}>(1), p.at<uint64_t>({}), entries, strides, "
                  "{}LL, {}LL);",
                  s.text, strides_type("int64_t", a.extents), strides_value(a.extents, a.strides),
                  type_name(use.type(1)), scratch, a.size, a.step),
      s.padded + kAhead, {s.entries});
  sort(s, scratch, emit);
  combine(use, s, how, updates, 1, places, 1, emit);
  return ok_status();
}

Status make_gather_grad(const Use& use, Emitter& emit) {
  emit.zero(emit.operand(use.inputs.size()), use.outputs[0].bytes());
  return scatter_rows(use, places_of_axis(use, use.out(), use.in(1)), "Sum", 0, emit);
}

Status make_gather_nd_grad(const Use& use, Emitter& emit) {
  emit.zero(emit.operand(2), use.outputs[0].bytes());
  const int64_t batch_dims = use.attrs.integer("batch_dims", 0);
  return scatter_rows(use, places_of_slices(use.out(), use.in(1), batch_dims), "Sum", 0, emit);
}

Status make_gather_elements_grad(const Use& use, Emitter& emit) {
  emit.zero(emit.operand(2), use.outputs[0].bytes());
  return scatter_elements(use, along(use, use.out(), use.in(1)), "Sum", 0, emit);
}

Status make_scatter_elements(const Use& use, Emitter& emit) {
  PIPER_ASSIGN(const std::string_view how, how_of(use));
  emit.copy(emit.operand(0), emit.operand(3), use.outputs[0].bytes());
  return scatter_elements(use, along(use, use.in(0), use.in(1)), how, 2, emit);
}

Status make_scatter_nd(const Use& use, Emitter& emit) {
  PIPER_ASSIGN(const std::string_view how, how_of(use));
  emit.copy(emit.operand(0), emit.operand(3), use.outputs[0].bytes());
  return scatter_rows(use, places_of_slices(use.in(0), use.in(1), 0), how, 2, emit);
}

}  // namespace

std::vector<MakerRow> scatter_kernels() {
  return {{"GatherElementsGrad", make_gather_elements_grad},
          {"GatherGrad", make_gather_grad},
          {"GatherNDGrad", make_gather_nd_grad},
          {"ScatterElements", make_scatter_elements},
          {"ScatterND", make_scatter_nd}};
}

}  // namespace piper::cuda_kernels
