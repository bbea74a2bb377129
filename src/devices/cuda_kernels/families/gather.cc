// Gather, GatherND, GatherElements: rows and elements that indices name. An index that is outside
// (inputs are checked before they come here) takes NaN, or 0 of integers.
#include <fmt/format.h>

#include <limits>

#include "families.h"
#include "places.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

// Returns what is taken where an index is outside.
std::string nothing(DType dtype, int64_t bytes) {
  const double value = info(dtype).is_float ? std::numeric_limits<double>::quiet_NaN() : 0.0;
  return word_of(value, dtype, bytes);
}

Status gather(const Use& use, const Places& p, Emitter& emit) {
  const size_t result = use.inputs.size();
  const int64_t bytes = info(use.type()).bytes;
  const int64_t word =
      common_bytes({p.inner * bytes, emit.operand(0).offset, emit.operand(result).offset});
  const int64_t count = use.outputs[0].bytes() / word;
  if (count == 0) return ok_status();
  launch(
      emit, "gather",
      fmt::format(
          "  constexpr Gathered rows{{{}, {}, {}, {}}};\n"
          "  constexpr {} named{};\n"
          "  gather(p.at<const {}>(0), p.at<const {}>(1), {}, p.at<{}>({}), {}({}LL), rows, "
          "named, {});",
          p.places, p.rows, p.inner * bytes / word, p.own_indices ? 1 : 0, named_type(p),
          named_value(p), word_name(word), type_name(use.type(1)), p.first, word_name(word), result,
          index_name({count, use.inputs[0].bytes() / word}), count, nothing(use.type(), word)),
      count);
  return ok_status();
}

}  // namespace

Places places_of_axis(const Use& use, const Shape& data, const Shape& indices) {
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  Places p{.batches = extent(data, 0, axis),
           .rows = data[axis],
           .inner = extent(data, axis + 1, data.size()),
           .places = num_elements(indices),
           .sizes = {data[axis]}};
  if (use.has(2)) {
    p.sizes = {use.attrs.integer("whole")};
    p.first = "p.at<const int64_t>(2)[0]";
  }
  return p;
}

Places places_of_slices(const Shape& data, const Shape& indices, int64_t batch_dims) {
  const auto b = static_cast<size_t>(batch_dims), depth = static_cast<size_t>(indices.back());
  return {.batches = extent(data, 0, b),
          .rows = extent(data, b, b + depth),
          .inner = extent(data, b + depth, data.size()),
          .places = extent(indices, b, indices.size() - 1),
          .own_indices = true,
          .sizes = Shape(data.begin() + batch_dims, data.begin() + batch_dims + indices.back())};
}

std::string named_type(const Places& places) {
  return fmt::format("Named<{}>", places.sizes.size());
}
std::string named_value(const Places& places) {
  if (places.sizes.empty()) return "{}";
  return fmt::format("{{{}, {}}}", list(places.sizes), list(row_major(places.sizes)));
}

Along along(const Use& use, const Shape& data, const Shape& indices) {
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  std::vector<int64_t> strides = row_major(data);
  const int64_t step = std::exchange(strides[axis], 0);
  if (num_elements(indices) == 0) return {};
  const Walk walk = folded(indices, {row_major(indices), strides});
  return {walk.extents, walk.strides[1], data[axis], step};
}

namespace {

Status make_gather(const Use& use, Emitter& emit) {
  return gather(use, places_of_axis(use, use.in(0), use.in(1)), emit);
}

Status make_gather_nd(const Use& use, Emitter& emit) {
  return gather(use, places_of_slices(use.in(0), use.in(1), use.attrs.integer("batch_dims", 0)),
                emit);
}

Status make_gather_elements(const Use& use, Emitter& emit) {
  const Along a = along(use, use.in(0), use.in(1));
  const int64_t count = num_elements(use.out()), bytes = info(use.type()).bytes;
  if (count == 0) return ok_status();
  const std::string_view index = index_name({count, num_elements(use.in(0))});
  launch(emit, "gather",
         fmt::format("  constexpr {0} strides{1};\n"
                     "  gather_elements(p.at<const {2}>(0), p.at<const {3}>(1), p.at<{2}>(2), "
                     "{4}({5}LL), strides, {6}LL, {7}LL, {8});",
                     strides_type(index, a.extents), strides_value(a.extents, a.strides),
                     word_name(bytes), type_name(use.type(1)), index, count, a.size, a.step,
                     nothing(use.type(), bytes)),
         count);
  return ok_status();
}

}  // namespace

std::vector<MakerRow> gather_kernels() {
  return {{"Gather", make_gather},
          {"GatherElements", make_gather_elements},
          {"GatherND", make_gather_nd}};
}

}  // namespace piper::cuda_kernels
