// MatMul over batches, and Pack, which prepares a right operand for many products.
//
// One GEMM per batch of the broadcast leading dims; a 2-D right operand makes all leading dims of
// the left one further rows.
#include <algorithm>

#include "families.h"
#include "gemm.h"
#include "loop.h"
#include "pack.h"

namespace piper::cpu {
namespace {

struct Plan {
  Gemm gemm;
  Loop batches;  // over out, a, b: offsets in matrices
  std::string_view kernels;
};

// Reads the attribute `then`: words "Add" and "Mul", each with an operand of the result's shape or
// of one row of it, after all others.
void read_then(const Use& use, size_t operand, Gemm& g) {
  const std::string then = use.attrs.text("then", "");
  for (const std::string& word : split_text(then, ' ')) {
    if (word.empty()) continue;
    const Shape& with = use.in(operand++);
    g.then[g.thens++] = {word == "Mul", nullptr, with == use.out() ? g.n : 0};
  }
}

Plan plan_of(const Use& use) {
  const Shape &a = use.in(0), &b = use.in(1), &out = use.out();
  Plan plan;
  plan.kernels = use.product_kernels();
  Gemm& g = plan.gemm;
  g.accumulate = use.attrs.integer("accumulate") != 0;
  g.trans_a = use.attrs.integer("trans_a") != 0;
  g.trans_b = use.attrs.integer("trans_b") != 0;
  g.packed_b = use.attrs.integer("packed_b") != 0;
  const size_t ra = a.size(), rb = b.size(), rank = out.size();
  g.m = a[ra - (g.trans_a ? 1 : 2)];
  g.k = a[ra - (g.trans_a ? 2 : 1)];
  g.n = g.packed_b ? out[rank - 1] : b[rb - (g.trans_b ? 2 : 1)];
  read_then(use, g.accumulate ? 3 : 2, g);
  Shape batch(out.begin(), out.end() - 2);
  if (rb == 2 && !g.trans_a) {
    g.m *= extent(batch, 0, batch.size());
    batch.clear();
  }
  const Shape lead_a(a.begin(), batch.empty() ? a.begin() : a.end() - 2);
  const auto steps_a = spread_strides(lead_a, batch);
  const auto steps_b = spread_strides(Shape(b.begin(), b.end() - 2), batch);
  if (use.products)
    g.cut = cut_of(*use.products, {use.type(), g.trans_a, g.trans_b, g.m, g.n, g.k});
  plan.batches = make_loop(batch, {row_major(batch), steps_a, steps_b});
  return plan;
}

// Threads share the rows, or the columns where these are more. Both cut at whole tiles.
struct Cut {
  explicit Cut(const Gemm& g) : by_rows(g.m >= g.n) {
    step = by_rows ? 48 : 64;
    extent = by_rows ? g.m : g.n;
    count = std::max<int64_t>(1, (extent + step - 1) / step);
  }
  // Returns the product of the parts [begin, end), and where it begins in a, b and c.
  Gemm part(Gemm g, int64_t begin, int64_t end, int64_t (&at)[3]) const {
    const int64_t first = begin * step, size = std::min(extent, end * step) - first;
    g.a_step = g.row_of_a(), g.b_step = g.row_of_b(), g.c_step = g.old_step = g.row_of_c();
    at[0] = by_rows ? first * (g.trans_a ? 1 : g.a_step) : 0;
    at[1] = by_rows ? 0 : first * (g.packed_b ? g.k : g.trans_b ? g.b_step : 1);
    at[2] = by_rows ? first * g.c_step : first;
    (by_rows ? g.m : g.n) = size;
    return g;
  }
  bool by_rows;
  int64_t step, extent, count;
};

// Units are the parts of the first batch, then of the second, and so on.
template <class T>
struct MatMul {
  Gemm g;
  Loop batches;
  Cut cut;
  GemmFn<T> multiply;

  void operator()(Pointers p, std::byte* scratch, int64_t begin, int64_t end) const {
    const T *a = input<T>(p, 0), *b = input<T>(p, 1);
    const size_t others = g.accumulate ? 3 : 2;  // operands before those of `then`
    T* out = output<T>(p, others + static_cast<size_t>(g.thens));
    const std::vector<int64_t>& step = batches.inner_steps;
    const int64_t first = begin / cut.count, last = (end + cut.count - 1) / cut.count;
    const int64_t inner = std::max<int64_t>(batches.inner, 1);
    int64_t batch = first / inner * inner;
    batches.each_row(first / inner, (last + inner - 1) / inner, [&](const int64_t* at) {
      for (int64_t i = 0; i < batches.inner; ++i, ++batch) {
        if (batch < first || batch >= last) continue;
        const int64_t from = std::max(begin - batch * cut.count, int64_t{0});
        const int64_t to = std::min(end - batch * cut.count, cut.count);
        int64_t start[3];
        Gemm part = cut.part(g, from, to, start);
        const int64_t matrix = (at[0] + i * step[0]) * g.m * g.n;
        if (g.accumulate && input<T>(p, 2) != out) part.old = input<T>(p, 2) + matrix + start[2];
        for (size_t t = 0; t < static_cast<size_t>(g.thens); ++t)
          part.then[t].at = input<T>(p, others + t) + (g.then[t].step ? matrix + start[2]
                                                       : cut.by_rows  ? 0
                                                                      : start[2]);
        multiply(part, a + (at[1] + i * step[1]) * g.m * g.k + start[0],
                 b + (at[2] + i * step[2]) * g.k * g.n + start[1], out + matrix + start[2],
                 reinterpret_cast<T*>(scratch));
      }
    });
  }
};

template <class T>
KernelPtr matmul_kernel(const Plan& plan) {
  const Gemm g = plan.gemm;
  const Cut cut(g);
  const double flops = 2.0 * static_cast<double>(g.k) *
                       static_cast<double>(cut.by_rows ? cut.step * g.n : cut.step * g.m);
  const int64_t units = cut.count * plan.batches.rows * plan.batches.inner;
  MatMul<T> kernel{g, plan.batches, cut, gemm_fn<T>(plan.kernels)};
  return make_units_kernel(g.accumulate ? InPlace::kThird : InPlace::kNo, units, flops / 100,
                           std::move(kernel), gemm_scratch<T>(g, plan.kernels));
}

Result<KernelPtr> make_matmul(const Use& use) {
  return for_floats(use, use.type(), [&]<class T>(T) { return matmul_kernel<T>(plan_of(use)); });
}

// Returns the right operand of products whose attribute `packed_b` is set.
Result<KernelPtr> make_pack(const Use& use) {
  const int64_t trans_b = use.attrs.integer("trans_b", 0);
  const Shape& b = use.in(0);
  Gemm g;
  g.trans_b = trans_b != 0;
  g.k = b[g.trans_b ? 1 : 0], g.n = b[g.trans_b ? 0 : 1];
  return for_floats(use, use.type(), [&]<class T>(T) {
    const int64_t units = (g.n + kGemmColumnStep - 1) / kGemmColumnStep;
    const auto pack = [g, pack = gemm_pack_fn<T>()](Pointers p, std::byte*, int64_t begin,
                                                    int64_t end) {
      pack(g, input<T>(p, 0), output<T>(p, 1), begin * kGemmColumnStep,
           std::min(g.n, end * kGemmColumnStep));
    };
    return make_units_kernel(kNo, units, static_cast<double>(g.k * kGemmColumnStep) / 4, pack);
  });
}

}  // namespace

std::vector<KernelRow> matmul_kernels() { return {{"MatMul", make_matmul}, {"Pack", make_pack}}; }

}  // namespace piper::cpu
