// Has the kernels of numbers in 8 bits, in blocks with a scale each.
#include "families.h"
#include "piper/base/float16.h"
#include "piper/base/scaled.h"

namespace piper::cpu {
namespace {

struct Blocks {
  Scaled type;
  int64_t block;
  BlockPlaces places;
  Blocks(const Attrs& attrs, const Shape& shape)
      : type(parse_scaled(attrs.text("to"))),
        block(attrs.integer("block")),
        places(block, shape, attrs.integers("piece"), attrs.integer("run")) {}
  template <class F>
  KernelPtr kernel(F one) const {
    const auto run = [one](Pointers p, std::byte*, int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) one(p, b);
    };
    return make_units_kernel(InPlace::kNo, places.blocks(), 4.0 * static_cast<double>(block), run);
  }
};

Result<KernelPtr> make_to_blocks(const Use& use) {
  const Blocks blocks(use.attrs, use.in(0));
  const DType dtype = use.type();
  return blocks.kernel([blocks, dtype, size = int64_t{info(dtype).bytes}](Pointers p, int64_t b) {
    float numbers[kMostBlock];
    std::fill_n(numbers, blocks.block, 0.0F);
    blocks.places.for_each(b, [&](int64_t i, int64_t at) {
      numbers[i] = static_cast<float>(float_at(dtype, p[0] + at * size));
    });
    const float scale = scale_of(blocks.type, numbers, blocks.block);
    std::byte* const to = p[1] + b * (blocks.block + 4);
    for (int64_t i = 0; i < blocks.block; ++i)
      to[i] = std::byte(code_of(blocks.type, numbers[i], scale));
    std::memcpy(to + blocks.block, &scale, sizeof scale);
  });
}

Result<KernelPtr> make_from_blocks(const Use& use) {
  const Blocks blocks(use.attrs, use.out());
  const DType dtype = use.outputs[0].dtype;
  return blocks.kernel([blocks, dtype, size = int64_t{info(dtype).bytes}](Pointers p, int64_t b) {
    const std::byte* const from = p[0] + b * (blocks.block + 4);
    float scale = 0;
    std::memcpy(&scale, from + blocks.block, sizeof scale);
    blocks.places.for_each(b, [&](int64_t i, int64_t at) {
      const float number = number_of(blocks.type, static_cast<uint8_t>(from[i]), scale);
      const double wide = number;
      std::byte* const to = p[1] + at * size;
      if (dtype == DType::kF32)
        std::memcpy(to, &number, sizeof number);
      else if (dtype == DType::kF64)
        std::memcpy(to, &wide, sizeof wide);
      else
        round_to_halves(dtype, &number, to, 1);
    });
  });
}

}  // namespace

std::vector<KernelRow> in_blocks_kernels() {
  return {{"FromBlocks", make_from_blocks, kTakesHalves},
          {"ToBlocks", make_to_blocks, kTakesHalves}};
}

}  // namespace piper::cpu
