// MatMul: oneDNN's sgemm for f32, a blocked loop for f64.
//
// One GEMM per batch of the broadcast leading dims; a 2-D right operand makes all leading dims of
// the left one further rows.
#include <cstring>

#include "dnnl.h"
#include "families.h"
#include "loop.h"

namespace piper::cpu {
namespace {

struct Gemm {  // row-major: out[m,n] (+)= a[m,k] · b[k,n]
  bool trans_a = false, trans_b = false;
  int64_t m = 0, n = 0, k = 0;
};

void gemm(const Gemm& g, const float* a, const float* b, float* out, bool accumulate) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k == 0) {
    if (!accumulate) std::memset(out, 0, static_cast<size_t>(g.m * g.n) * sizeof(float));
    return;
  }
  dnnl_sgemm(g.trans_a ? 'T' : 'N', g.trans_b ? 'T' : 'N', g.m, g.n, g.k, 1.0f, a,
             g.trans_a ? g.m : g.k, b, g.trans_b ? g.k : g.n, accumulate ? 1.0f : 0.0f, out, g.n);
}

// Each element is the sum over k in ascending order, started from the old value when accumulating.
void gemm(const Gemm& g, const double* a, const double* b, double* out, bool accumulate) {
  constexpr int64_t kBlock = 64;
  if (!accumulate) std::memset(out, 0, static_cast<size_t>(g.m * g.n) * sizeof(double));
  for (int64_t k0 = 0; k0 < g.k; k0 += kBlock) {
    const int64_t k1 = std::min(k0 + kBlock, g.k);
    for (int64_t i = 0; i < g.m; ++i) {
      double* row = out + i * g.n;
      for (int64_t k = k0; k < k1; ++k) {
        const double x = g.trans_a ? a[k * g.m + i] : a[i * g.k + k];
        if (g.trans_b) {
          for (int64_t j = 0; j < g.n; ++j) row[j] += x * b[j * g.k + k];
        } else {
          for (int64_t j = 0; j < g.n; ++j) row[j] += x * b[k * g.n + j];
        }
      }
    }
  }
}

struct Plan {
  Gemm gemm;
  Loop batches;  // over out, a, b: offsets in matrices
  bool accumulate = false;
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
  plan.accumulate = accumulate != 0;
  Gemm& g = plan.gemm;
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
  return make_kernel(InPlace::kNo, [plan](Pointers p, std::byte*) {
    const Gemm& g = plan.gemm;
    const T *a = input<T>(p, 0), *b = input<T>(p, 1);
    T* out = output<T>(p, plan.accumulate ? 3 : 2);
    if (plan.accumulate && p[2] != p[3]) {
      std::memcpy(
          p[3], p[2],
          static_cast<size_t>(g.m * g.n * plan.batches.rows * plan.batches.inner) * sizeof(T));
    }
    const std::vector<int64_t>& inner = plan.batches.inner_steps;
    plan.batches.each_row([&](const int64_t* at) {
      for (int64_t i = 0; i < plan.batches.inner; ++i) {
        gemm(g, a + (at[1] + i * inner[1]) * g.m * g.k, b + (at[2] + i * inner[2]) * g.k * g.n,
             out + (at[0] + i * inner[0]) * g.m * g.n, plan.accumulate);
      }
    });
  });
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
