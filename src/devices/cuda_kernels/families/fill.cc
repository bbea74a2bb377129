// Pad, Fill, Trilu: what elements are laid out in, or masked by.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "families.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

// Describes a Pad; dims that are taken whole are one with the dim before them.
struct Padded {
  Shape to, from;
  std::vector<int64_t> before;
};

Padded padded(const Use& use) {
  const std::vector<int64_t> before = use.attrs.integers("before");
  Padded p;
  for (size_t d = 0; d < before.size(); ++d) {
    const int64_t to = use.out()[d], from = use.in(0)[d];
    if (!p.to.empty() && before[d] == 0 && to == from) {
      p.to.back() *= to;
      p.from.back() *= from;
      p.before.back() *= to;
    } else {
      p.to.push_back(to);
      p.from.push_back(from);
      p.before.push_back(before[d]);
    }
  }
  return p.to.empty() ? Padded{{1}, {1}, {0}} : p;
}

Status make_pad(const Use& use, Emitter& emit) {
  const double value = use.attrs.real("value", 0);
  if (num_elements(use.out()) == 0) return ok_status();
  if (num_elements(use.in(0)) == 0) {
    fill(use.outputs[0], 1, value, emit);
    return ok_status();
  }
  Padded p = padded(use);
  const int64_t bytes = info(use.type()).bytes;
  const int64_t word =
      common_bytes({p.to.back() * bytes, p.from.back() * bytes, p.before.back() * bytes,
                    emit.operand(0).offset, emit.operand(1).offset});
  for (int64_t* n : {&p.to.back(), &p.from.back(), &p.before.back()}) *n = *n * bytes / word;
  const int64_t count = num_elements(p.to);
  int64_t far = count;  // how far from the input's first element places are formed
  for (size_t d = 0; d < p.to.size(); ++d)
    far += (std::abs(p.before[d]) + p.to[d]) * extent(p.from, d + 1, p.from.size());
  const std::string_view index = index_name({far});
  launch(emit, "fill",
         fmt::format("  constexpr Padding<{0}, {1}> padding{{{2}, {3}, {4}}};\n"
                     "  pad(p.at<const {5}>(0), p.at<{5}>(1), {0}({6}LL), padding, {7});",
                     index, p.to.size(), list(p.to), list(p.before), list(p.from), word_name(word),
                     count, word_of(value, use.type(), word)),
         count);
  return ok_status();
}

Status make_fill(const Use& use, Emitter& emit) {
  fill(use.outputs[0], 0, use.attrs.real("value", 0), emit);
  return ok_status();
}

Status make_trilu(const Use& use, Emitter& emit) {
  const int64_t elements = num_elements(use.out());
  if (elements == 0) return ok_status();
  const int64_t columns = use.out().back(), rows = use.out()[use.out().size() - 2];
  const int64_t bytes = info(use.type()).bytes;
  const int64_t pack =
      common_bytes({columns * bytes, emit.operand(0).offset, emit.operand(1).offset}) / bytes;
  const int64_t count = elements / pack;
  const int64_t diagonal = std::clamp(use.attrs.integer("k", 0), -rows, columns);
  launch(emit, "fill",
         fmt::format("  typedef Pack<{}, {}> Elements;\n"
                     "  triangle<{}>(p.at<const Elements>(0), p.at<Elements>(1), {}LL, {}, {}, {}, "
                     "{});",
                     bits_name(use.type()), pack, index_name({elements + rows + columns}), count,
                     rows, columns / pack, diagonal, use.attrs.integer("upper", 1) != 0),
         count);
  return ok_status();
}

}  // namespace

void fill(const TensorType& to, size_t operand, double value, Emitter& emit) {
  const DeviceOperand& at = emit.operand(operand);
  if (value == 0 && !std::signbit(value)) return emit.zero(at, to.bytes());
  const int64_t word = common_bytes({to.bytes(), at.offset}), count = to.bytes() / word;
  launch(emit, "fill",
         fmt::format("  fill(p.at<{0}>({1}), {2}({3}LL), {4});", word_name(word), operand,
                     index_name({count}), count, word_of(value, to.dtype, word)),
         count);
}

std::vector<MakerRow> fill_kernels() {
  return {{"Fill", make_fill}, {"Pad", make_pad}, {"Trilu", make_trilu}};
}

}  // namespace piper::cuda_kernels
