// Transpose, Expand, Slice, Concat, Reshape: elements in another order, or in the same.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "families.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

DeviceOperand at(DeviceOperand operand, int64_t bytes) {
  operand.offset += bytes;
  return operand;
}

// Takes elements [first + walk.strides[1] · i] one after the other, `bytes` each, by words where
// the last dim is one run of the input.
struct Taken {
  Walk walk;  // operand 0: the result; 1: the input
  int64_t first = 0, bytes = 0, count = 0;
};

void take_words(const Taken& t, Emitter& emit) {
  Walk walk = t.walk;
  std::vector<int64_t>& strides = walk.strides[1];
  int64_t word = common_bytes({walk.extents.back() * t.bytes, t.first * t.bytes,
                               emit.operand(0).offset, emit.operand(1).offset});
  for (size_t d = 0; d + 1 < strides.size(); ++d)
    word = std::min(word, common_bytes({strides[d] * t.bytes}));
  if (strides.back() != 1) word = t.bytes;
  for (size_t d = 0; word > t.bytes && d + 1 < strides.size(); ++d)
    strides[d] = strides[d] * t.bytes / word;
  walk.extents.back() = walk.extents.back() * t.bytes / word;
  const int64_t count = t.count * t.bytes / word;
  const std::string_view index = index_name({count, reach(walk.extents, strides)});
  launch(emit, "move",
         fmt::format("  constexpr {0} strides{3};\n"
                     "  take(p.at<const {1}>(0) + {4}LL, p.at<{1}>(1), {2}({5}LL), strides);",
                     strides_type(index, walk.extents), word_name(word), index,
                     strides_value(walk.extents, strides), t.first * t.bytes / word, count),
         count);
}

// The last dim repeats one element of the input.
void take_repeated(const Taken& t, Emitter& emit) {
  Walk walk = t.walk;
  const int64_t times =
      common_bytes({walk.extents.back() * t.bytes, emit.operand(1).offset}) / t.bytes;
  walk.extents.back() /= times;
  const int64_t count = t.count / times;
  const std::string_view index = index_name({count, reach(walk.extents, walk.strides[1])});
  launch(emit, "move",
         fmt::format("  constexpr {0} strides{3};\n"
                     "  repeat(p.at<const {1}>(0) + {4}LL, p.at<Pack<{1}, {5}>>(1), {2}({6}LL), "
                     "strides);",
                     strides_type(index, walk.extents), word_name(t.bytes), index,
                     strides_value(walk.extents, walk.strides[1]), t.first, times, count),
         count);
}

// Returns the dim, not the last one, that is one run of the input, where tiles of it and of the
// last dim are worth while.
std::optional<size_t> turned_dim(const Walk& walk) {
  constexpr int64_t kLeast = 16;
  const size_t last = walk.extents.size() - 1;
  for (size_t d = 0; d < last; ++d)
    if (walk.strides[1][d] == 1 && walk.extents[d] >= kLeast && walk.extents[last] >= kLeast)
      return d;
  return std::nullopt;
}

void take_turned(const Taken& t, size_t rows, Emitter& emit) {
  const Walk& walk = t.walk;
  const size_t columns = walk.extents.size() - 1;
  Walk blocks{{}, {{}, {}}};
  for (size_t d = 0; d < columns; ++d) {
    if (d == rows) continue;
    blocks.extents.push_back(walk.extents[d]);
    for (size_t k : {0, 1}) blocks.strides[k].push_back(walk.strides[k][d]);
  }
  if (blocks.extents.empty()) blocks = {{1}, {{0}, {0}}};
  const int64_t tile = t.bytes <= 2 ? 64 : 32, down = ceil_div(walk.extents[rows], tile),
                across = ceil_div(walk.extents[columns], tile);
  const std::string_view index = index_name({t.count, reach(walk.extents, walk.strides[1])});
  emit.kernel({.family = "move",
               .body = fmt::format(
                   "  constexpr Turned<{0}, {1}> by{{{2}, {3}, {4}, {5}, {6}, {7}}};\n"
                   "  take_turned<{8}, {9}, {10}>(p.at<const {8}>(0) + {11}LL, p.at<{8}>(1), by);",
                   index, blocks.extents.size(), walk.extents[rows], walk.extents[columns],
                   walk.strides[1][columns], walk.strides[0][rows],
                   strides_value(blocks.extents, blocks.strides[1]),
                   strides_value(blocks.extents, blocks.strides[0]), word_name(t.bytes), tile,
                   kThreads, t.first),
               .blocks = t.count / walk.extents[rows] / walk.extents[columns] * down * across,
               .threads = kThreads});
}

}  // namespace

void take(const TensorType& to, const std::vector<int64_t>& strides, int64_t first, Emitter& emit) {
  const Taken t{folded(to.shape, {row_major(to.shape), strides}), first, info(to.dtype).bytes,
                num_elements(to.shape)};
  if (t.count == 0) return;
  const int64_t last = t.walk.strides[1].back();
  if (last == 1 && t.walk.extents.size() == 1)
    return emit.copy(at(emit.operand(0), first * t.bytes), emit.operand(1), to.bytes());
  if (last == 0) return take_repeated(t, emit);
  if (const std::optional<size_t> rows = turned_dim(t.walk); last != 1 && rows)
    return take_turned(t, *rows, emit);
  take_words(t, emit);
}

namespace {

Status make_reshape(const Use& use, Emitter& emit) {
  emit.copy(emit.operand(0), emit.operand(1), use.outputs[0].bytes());
  return ok_status();
}

// Where the use has `blocks`, dims of 1 are blocks of a greater dim: nothing to us.
Status make_transpose(const Use& use, Emitter& emit) {
  const std::vector<int64_t> perm = use.attrs.integers("perm"), own = row_major(use.in(0));
  std::vector<int64_t> strides;
  for (const int64_t d : perm) strides.push_back(own[static_cast<size_t>(d)]);
  take(use.outputs[0], strides, 0, emit);
  return ok_status();
}

Status make_expand(const Use& use, Emitter& emit) {
  take(use.outputs[0], spread_strides(use.in(0), use.out()), 0, emit);
  return ok_status();
}

Status make_slice(const Use& use, Emitter& emit) {
  const std::vector<int64_t> starts = use.attrs.integers("starts"),
                             steps = use.attrs.integers("steps"), own = row_major(use.in(0));
  std::vector<int64_t> strides;
  int64_t first = 0;
  for (size_t d = 0; d < own.size(); ++d) {
    first += starts[d] * own[d];
    strides.push_back(steps[d] * own[d]);
  }
  take(use.outputs[0], strides, first, emit);
  return ok_status();
}

Status make_concat(const Use& use, Emitter& emit) {
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  const size_t parts = use.inputs.size();
  const int64_t bytes = info(use.type()).bytes, rows = extent(use.out(), 0, axis);
  const int64_t row = extent(use.out(), axis, use.out().size()) * bytes;
  int64_t behind = 0;  // bytes of a row
  for (size_t k = 0; k < parts; ++k) {
    const int64_t run = extent(use.in(k), axis, use.out().size()) * bytes;
    const int64_t here = std::exchange(behind, behind + run);
    if (run * rows == 0) continue;
    if (rows == 1) {
      emit.copy(emit.operand(k), at(emit.operand(parts), here), run);
      continue;
    }
    const int64_t word =
        common_bytes({row, run, here, emit.operand(k).offset, emit.operand(parts).offset});
    const int64_t count = rows * run / word;
    const Shape extents{rows, run / word};
    const std::string_view index = index_name({rows * row / word});
    launch(emit, "move",
           fmt::format("  constexpr {0} strides{3};\n"
                       "  put(p.at<const {1}>({4}), p.at<{1}>({5}) + {6}LL, {2}({7}LL), strides);",
                       strides_type(index, extents), word_name(word), index,
                       strides_value(extents, {row / word, 1}), k, parts, here / word, count),
           count);
  }
  return ok_status();
}

}  // namespace

std::vector<MakerRow> move_kernels() {
  return {{"Concat", make_concat},
          {"Expand", make_expand},
          {"Reshape", make_reshape},
          {"Slice", make_slice},
          {"Transpose", make_transpose}};
}

}  // namespace piper::cuda_kernels
