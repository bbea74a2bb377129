// Rotary: pairs of elements of each row turned by tables that are broadcast to the rows.
#include "families.h"
#include "loop.h"
#include "rows.h"

namespace piper::cpu {
namespace {

Result<KernelPtr> make_rotary(const Use& use) {
  const int64_t interleaved = use.attrs.integer("interleaved", 0);
  const int64_t inverse = use.attrs.integer("inverse", 0);
  const Shape &x = use.in(0), &table = use.in(1);
  const int64_t half = x.back() / 2;
  const Shape lead(x.begin(), x.end() - 1);
  auto steps = spread_strides(Shape(table.begin(), table.end() - 1), lead);
  const Loop rows = make_loop(lead, {row_major(lead), steps});
  return for_floats(use, use.type(), [&]<class T>(T) {
    return make_kernel(InPlace::kYes, [=, run = norm_fns<T>().rotate](Pointers p, std::byte*) {
      rows.each_row([&](const int64_t* at) {
        for (int64_t i = 0; i < rows.inner; ++i) {
          const int64_t row = at[0] + i * rows.inner_steps[0];
          const int64_t angle = (at[1] + i * rows.inner_steps[1]) * half;
          run(input<T>(p, 0) + row * 2 * half, input<T>(p, 1) + angle, input<T>(p, 2) + angle,
              output<T>(p, 3) + row * 2 * half, half, interleaved != 0, inverse != 0);
        }
      });
    });
  });
}

}  // namespace

std::vector<KernelRow> rotary_kernels() { return {{"Rotary", make_rotary}}; }

}  // namespace piper::cpu
