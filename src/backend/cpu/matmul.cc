// MatMul over batches.
//
// One GEMM per batch of the broadcast leading dims; a 2-D right operand makes all leading dims of
// the left one further rows.
#include <cstring>

#include "families.h"
#include "gemm.h"
#include "loop.h"

namespace piper::cpu {
namespace {

struct Plan {
  Gemm gemm;
  Loop batches;  // over out, a, b: offsets in matrices
};

Result<Plan> plan_of(const Use& use) {
  PIPER_ASSIGN(const int64_t trans_a, use.integer_or("trans_a", 0));
  PIPER_ASSIGN(const int64_t trans_b, use.integer_or("trans_b", 0));
  PIPER_ASSIGN(const int64_t accumulate, use.integer_or("accumulate", 0));
  PIPER_TRY(use.operands(accumulate ? 3 : 2, accumulate ? 3 : 2));
  PIPER_TRY(use.same_types());
  const Shape &a = use.in(0), &b = use.in(1), &out = use.out();
  PIPER_WANT(a.size() >= 2 && b.size() >= 2 && out.size() == std::max(a.size(), b.size()),
             "of {} and {} to {}", to_string(a), to_string(b), to_string(out));
  PIPER_WANT(!accumulate || use.in(2) == out, "adds to {}, makes {}", to_string(use.in(2)),
             to_string(out));
  Plan plan;
  Gemm& g = plan.gemm;
  g.accumulate = accumulate != 0;
  g.trans_a = trans_a != 0;
  g.trans_b = trans_b != 0;
  const size_t ra = a.size(), rb = b.size(), rank = out.size();
  g.m = a[ra - (g.trans_a ? 1 : 2)];
  g.k = a[ra - (g.trans_a ? 2 : 1)];
  g.n = b[rb - (g.trans_b ? 2 : 1)];
  PIPER_WANT(b[rb - (g.trans_b ? 1 : 2)] == g.k && out[rank - 2] == g.m && out[rank - 1] == g.n,
             "of {}{} and {}{} to {}", to_string(a), g.trans_a ? "ᵀ" : "", to_string(b),
             g.trans_b ? "ᵀ" : "", to_string(out));
  Shape batch(out.begin(), out.end() - 2);
  if (rb == 2 && !g.trans_a) {
    PIPER_WANT(Shape(a.begin(), a.end() - 2) == batch, "of {} and {} to {}", to_string(a),
               to_string(b), to_string(out));
    g.m *= extent(batch, 0, batch.size());
    batch.clear();
  }
  const Shape lead_a(a.begin(), batch.empty() ? a.begin() : a.end() - 2);
  PIPER_ASSIGN(auto steps_a, broadcast_strides(lead_a, batch));
  PIPER_ASSIGN(auto steps_b, broadcast_strides(Shape(b.begin(), b.end() - 2), batch));
  plan.batches = make_loop(batch, {strides_of(batch), steps_a, steps_b});
  return plan;
}

template <class T>
KernelPtr matmul_kernel(const Plan& plan) {
  const Gemm g = plan.gemm;
  const auto out_bytes =
      static_cast<size_t>(g.m * g.n * plan.batches.rows * plan.batches.inner) * sizeof(T);
  auto run = [=, batches = plan.batches, multiply = gemm_fn<T>()](Pointers p, std::byte* scratch) {
    const T *a = input<T>(p, 0), *b = input<T>(p, 1);
    T* out = output<T>(p, g.accumulate ? 3 : 2);
    if (g.accumulate && p[2] != p[3]) std::memcpy(p[3], p[2], out_bytes);
    const std::vector<int64_t>& step = batches.inner_steps;
    batches.each_row([&](const int64_t* at) {
      for (int64_t i = 0; i < batches.inner; ++i) {
        multiply(g, a + (at[1] + i * step[1]) * g.m * g.k, b + (at[2] + i * step[2]) * g.k * g.n,
                 out + (at[0] + i * step[0]) * g.m * g.n, reinterpret_cast<T*>(scratch));
      }
    });
  };
  const auto scratch_bytes = gemm_scratch(g) * static_cast<int64_t>(sizeof(T));
  return make_kernel(g.accumulate ? InPlace::kThird : InPlace::kNo, std::move(run), scratch_bytes);
}

}  // namespace

Result<KernelPtr> make_matmul(const Use& use) {
  PIPER_WANT(!use.inputs.empty(), "has no inputs");
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    PIPER_ASSIGN(const Plan plan, plan_of(use));
    return matmul_kernel<decltype(zero)>(plan);
  });
}

}  // namespace piper::cpu
