// Emits the kernels of numbers in 8 bits, in blocks with a scale each.
#include <fmt/format.h>

#include "families.h"
#include "piper/base/scaled.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

// Emits a kernel with a block of threads for each block of numbers.
void emit_blocks(const Use& use, const TensorType& numbers, const char* what, Emitter& emit) {
  const int64_t block = use.attrs.integer("block");
  const BlockPlaces places(block, numbers.shape, use.attrs.integers("piece"),
                           use.attrs.integer("run"));
  Shape shape = places.shape(), piece = places.piece();
  if (shape.empty()) shape = piece = {1};
  const auto threads = static_cast<int32_t>(std::min<int64_t>(block, kThreads));
  emit.kernel({.family = "in_blocks",
               .body = fmt::format(
                   "  {}<{}, {}>(p.at<const {}>(0), p.at<{}>(1), Blocks<{}>{{{}, {}, {}, "
                   "{}, {}, {}}});",
                   what, threads, parse_scaled(use.attrs.text("to")) == Scaled::kInt8,
                   use.type() == DType::kI32 ? "uint8_t" : type_name(use.type()),
                   use.type() == DType::kI32 ? type_name(numbers.dtype) : "uint8_t", shape.size(),
                   block, places.run(), places.runs(), places.per_run(), list(shape), list(piece)),
               .blocks = places.blocks(),
               .threads = threads});
}

Status make_to_blocks(const Use& use, Emitter& emit) {
  emit_blocks(use, use.inputs[0], "put_in_blocks", emit);
  return ok_status();
}

Status make_from_blocks(const Use& use, Emitter& emit) {
  emit_blocks(use, use.outputs[0], "take_from_blocks", emit);
  return ok_status();
}

}  // namespace

std::vector<MakerRow> in_blocks_kernels() {
  return {{"FromBlocks", make_from_blocks}, {"ToBlocks", make_to_blocks}};
}

}  // namespace piper::cuda_kernels
