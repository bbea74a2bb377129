// Emits the kernel of Rotary, the rotary positions of attention.
#include <fmt/format.h>

#include <algorithm>

#include "families.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

Status make_rotary(const Use& use, Emitter& emit) {
  if (num_elements(use.out()) == 0) return ok_status();
  const bool interleaved = use.attrs.integer("interleaved", 0) != 0;
  const bool inverse = use.attrs.integer("inverse", 0) != 0;
  const int64_t half = use.in(1).back(), bytes = info(use.type()).bytes;
  const int64_t x = common_bytes({emit.operand(0).offset, emit.operand(3).offset}),
                tables =
                    common_bytes({half * bytes, emit.operand(1).offset, emit.operand(2).offset});
  // Neighbours are read as one where that is aligned.
  const bool joined = interleaved && x >= 2 * bytes;
  const int64_t pack = interleaved && !joined ? 1 : std::min(joined ? x / 2 : x, tables) / bytes;
  Shape rows = use.in(0), of_table = use.in(1);
  rows.pop_back();
  of_table.pop_back();
  std::vector<int64_t> strides = spread_strides(of_table, rows);
  for (int64_t& stride : strides) stride *= half / pack;
  const Walk walk = folded(rows, {row_major(rows), strides});
  const int64_t count = num_elements(use.in(0)) / 2 / pack;
  const std::string_view index = index_name({2 * count});
  launch(emit, "rotary",
         fmt::format("  constexpr Turns<{0}, {1}> turns{{{2}, {9}, {3}}};\n"
                     "  typedef Pack<{4}, {5}> Angles;\n"
                     "  rotate<{6}, {7}>(p.at<const {4}>(0), p.at<const Angles>(1), p.at<const "
                     "Angles>(2), p.at<{4}>(3), {0}({8}LL), turns);",
                     index, walk.extents.size(), half / pack,
                     strides_value(walk.extents, walk.strides[1]), type_name(use.type()), pack,
                     joined, inverse, count, interleaved ? 1 : half / pack),
         count);
  return ok_status();
}

}  // namespace

std::vector<MakerRow> rotary_kernels() { return {{"Rotary", make_rotary}}; }

}  // namespace piper::cuda_kernels
