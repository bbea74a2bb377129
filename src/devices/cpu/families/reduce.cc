// ReduceSum, ReduceMax, ReduceMin, ReduceProd and their gradients, CumSum.
#include <algorithm>
#include <array>
#include <limits>

#include "families.h"
#include "loop.h"
#include "rows.h"

namespace piper::cpu {
namespace {

template <class T>
inline constexpr bool kFloat = std::is_floating_point_v<T>;

// Combines values: into one for a row, and row by row into the output.
template <class T>
struct SumOf {
  static constexpr T kIdentity = 0;
  static T plus(T a, T b) {
    if constexpr (kFloat<T>) {
      return a + b;
    } else {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    }
  }
  T row(const T* x, int64_t n) const {
    if constexpr (kFloat<T>) return fns.sum(x, n);
    T sum = 0;
    for (int64_t i = 0; i < n; ++i) sum = plus(sum, x[i]);
    return sum;
  }
  void rows(const T* x, int64_t count, int64_t n, T* out) const {
    if constexpr (kFloat<T>) return fns.add_rows(x, count, n, out);
    for (int64_t r = 0; r < count; ++r, x += n) {
      for (int64_t i = 0; i < n; ++i) out[i] = plus(out[i], x[i]);
    }
  }
  struct None {};
  std::conditional_t<kFloat<T>, SumFns<std::conditional_t<kFloat<T>, T, float>>, None> fns{};
};

// Computes Max, or Min, which is the Max of the negated order. NaN wins.
template <class T, bool kMax>
struct ExtremeOf {
  static constexpr T kLowest =
      kFloat<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::min();
  static constexpr T kHighest =
      kFloat<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  static constexpr T kIdentity = kMax ? kLowest : kHighest;
  static T plus(T a, T b) { return (kMax ? a > b : a < b) || a != a ? a : b; }
  T row(const T* x, int64_t n) const {
    if constexpr (kFloat<T>) return kMax ? fns.max(x, n) : fns.min(x, n);
    T best = kIdentity;
    for (int64_t i = 0; i < n; ++i) best = plus(best, x[i]);
    return best;
  }
  void rows(const T* x, int64_t count, int64_t n, T* out) const {
    for (int64_t r = 0; r < count; ++r, x += n) {
      for (int64_t i = 0; i < n; ++i) out[i] = plus(out[i], x[i]);
    }
  }
  struct None {};
  std::conditional_t<kFloat<T>, SumFns<std::conditional_t<kFloat<T>, T, float>>, None> fns{};
};

template <class T>
struct ProductOf {
  static constexpr T kIdentity = 1;
  static T plus(T a, T b) {
    if constexpr (kFloat<T>) {
      return a * b;
    } else {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    }
  }
  T row(const T* x, int64_t n) const {
    T product = 1;
    for (int64_t i = 0; i < n; ++i) product = plus(product, x[i]);
    return product;
  }
  void rows(const T* x, int64_t count, int64_t n, T* out) const {
    for (int64_t r = 0; r < count; ++r, x += n) {
      for (int64_t i = 0; i < n; ++i) out[i] = plus(out[i], x[i]);
    }
  }
  struct None {};
  std::conditional_t<kFloat<T>, SumFns<std::conditional_t<kFloat<T>, T, float>>, None> fns{};
};

template <class T, class Of>
KernelPtr reduce_kernel(Loop loop, int64_t out_count) {
  Of of;
  if constexpr (kFloat<T>) of.fns = sum_fns<T>();
  const bool to_one = loop.inner_steps[1] == 0;
  int64_t rows = 1;  // whole rows that are added to the same output row
  if (!to_one && !loop.outer.empty() && loop.outer_steps[1].back() == 0) {
    rows = loop.outer.back();
    loop.rows = rows == 0 ? 0 : loop.rows / rows;
    loop.outer.pop_back();
    for (auto& steps : loop.outer_steps) steps.pop_back();
  }
  return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
    T* out = output<T>(p, 1);
    std::fill_n(out, out_count, Of::kIdentity);
    loop.each_row([&](const int64_t* at) {
      const T* x = input<T>(p, 0) + at[0];
      if (to_one) {
        out[at[1]] = Of::plus(out[at[1]], of.row(x, loop.inner));
      } else {
        of.rows(x, rows, loop.inner, out + at[1]);
      }
    });
  });
}

// Returns the strides with which the input's dims walk the output: 0 for a reduced one.
std::vector<int64_t> output_steps(const Shape& from, const std::vector<int64_t>& axes) {
  Shape kept = from;
  for (int64_t axis : axes) kept[static_cast<size_t>(axis)] = 1;
  return spread_strides(kept, from);
}

// Goes over the elements of a tensor by what they are reduced to, a block of results at a time, so
// that what is kept by result needs little memory.
class ByResult {
 public:
  static constexpr int64_t kBlock = 512;
  // `results` is the tensor's shape with 1 for dims that are reduced.
  ByResult(const Shape& shape, const Shape& results) {
    const std::vector<int64_t> strides = row_major(shape);
    Shape kept, reduced;
    std::vector<int64_t> kept_steps, reduced_steps;
    for (size_t d = 0; d < shape.size(); ++d) {
      const bool is_kept = results[d] == shape[d];
      (is_kept ? kept : reduced).push_back(shape[d]);
      (is_kept ? kept_steps : reduced_steps).push_back(strides[d]);
      if (!is_kept) last_ += (shape[d] - 1) * strides[d];
    }
    kept_ = make_loop(kept, {kept_steps});
    reduced_ = make_loop(reduced, {reduced_steps});
  }
  // Calls f(element, result, count) for blocks: the first element of the first result; the next
  // result's is step() behind it.
  template <class F>
  void each_block(F f) const {
    int64_t result = 0;
    kept_.each_row([&](const int64_t* at) {
      for (int64_t i = 0; i < kept_.inner; i += kBlock)
        f(at[0] + i * step(), result + i, std::min(kBlock, kept_.inner - i));
      result += kept_.inner;
    });
  }
  int64_t step() const { return kept_.inner_steps[0]; }
  // Calls f(offset) for the elements of a result, in their order, beside the first one; the last
  // one is at last().
  template <class F>
  void each_offset(F f) const {
    reduced_.each_row([&](const int64_t* at) {
      for (int64_t i = 0; i < reduced_.inner; ++i) f(at[0] + i * reduced_.inner_steps[0]);
    });
  }
  int64_t last() const { return last_; }

 private:
  Loop kept_, reduced_;
  int64_t last_ = 0;
};

Result<KernelPtr> make_reduce(const Use& use) {
  const std::vector<int64_t> axes = use.attrs.integers("axes");
  std::vector<int64_t> steps = output_steps(use.in(0), axes);
  Loop loop = make_loop(use.in(0), {row_major(use.in(0)), std::move(steps)});
  if (loop.inner == 1) loop.inner_steps = {1, 1};  // one element either way
  const int64_t count = num_elements(use.out());
  return for_numbers(use, use.type(), [&]<class T>(T) -> Result<KernelPtr> {
    if (use.op == "ReduceSum") return reduce_kernel<T, SumOf<T>>(std::move(loop), count);
    if (use.op == "ReduceMax") return reduce_kernel<T, ExtremeOf<T, true>>(std::move(loop), count);
    if (use.op == "ReduceMin") return reduce_kernel<T, ExtremeOf<T, false>>(std::move(loop), count);
    PIPER_CHECK(use.op == "ReduceProd", "no reduction is called '{}'", use.op);
    return reduce_kernel<T, ProductOf<T>>(std::move(loop), count);
  });
}

// Computes dx = dy at the first extreme, or shared by all of them.
Result<KernelPtr> make_reduce_extreme_grad(const Use& use) {
  const bool first = use.attrs.integer("first", 0) != 0;
  const ByResult loop(use.out(), use.in(0));
  return for_floats(use, use.type(), [&]<class T>(T) {
    return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
      const T *dy = input<T>(p, 0), *x = input<T>(p, 1), *y = input<T>(p, 2);
      T* const dx = output<T>(p, 3);
      loop.each_block([&](int64_t element, int64_t result, int64_t count) {
        std::array<T, ByResult::kBlock> hits{};
        const auto each = [&](auto f) {
          loop.each_offset([&](int64_t offset) {
            for (int64_t j = 0; j < count; ++j) {
              const int64_t i = element + offset + j * loop.step();
              const T greatest = y[result + j];
              f(i, j, x[i] == greatest || (x[i] != x[i] && greatest != greatest));
            }
          });
        };
        if (!first)
          each([&](int64_t, int64_t j, bool is_hit) { hits[static_cast<size_t>(j)] += is_hit; });
        each([&](int64_t i, int64_t j, bool is_hit) {
          const bool mine = is_hit && (!first || hits[static_cast<size_t>(j)] == 0);
          dx[i] = !mine   ? 0
                  : first ? dy[result + j]
                          : dy[result + j] / hits[static_cast<size_t>(j)];
          if (first && mine) hits[static_cast<size_t>(j)] = 1;
        });
      });
    });
  });
}

// Computes dx = dy · (product of those before) · (product of those after): right where elements are
// zero.
Result<KernelPtr> make_reduce_prod_grad(const Use& use) {
  const ByResult loop(use.out(), use.in(0));
  return for_floats(use, use.type(), [&]<class T>(T) {
    return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
      const T *dy = input<T>(p, 0), *x = input<T>(p, 1);
      T* const dx = output<T>(p, 2);
      loop.each_block([&](int64_t element, int64_t result, int64_t count) {
        std::array<T, ByResult::kBlock> product;
        std::copy_n(dy + result, count, product.begin());
        loop.each_offset([&](int64_t offset) {
          for (int64_t j = 0; j < count; ++j) {
            const int64_t i = element + offset + j * loop.step();
            dx[i] = product[static_cast<size_t>(j)];
            product[static_cast<size_t>(j)] *= x[i];
          }
        });
        product.fill(T{1});
        loop.each_offset([&](int64_t offset) {  // from the last element to the first
          for (int64_t j = 0; j < count; ++j) {
            const int64_t i = element + loop.last() - offset + j * loop.step();
            dx[i] *= product[static_cast<size_t>(j)];
            product[static_cast<size_t>(j)] *= x[i];
          }
        });
      });
    });
  });
}

Result<KernelPtr> make_cumsum(const Use& use) {
  const Shape& shape = use.out();
  const int64_t axis = use.attrs.integer("axis");
  const int64_t exclusive = use.attrs.integer("exclusive", 0);
  const int64_t reverse = use.attrs.integer("reverse", 0);
  const int64_t outer = extent(shape, 0, axis), size = shape[axis];
  const int64_t inner = extent(shape, axis + 1, shape.size());
  return for_numbers(use, use.type(), [&]<class T>(T) {
    using Sum = std::conditional_t<kFloat<T>, double, T>;  // a chain as long as the dim
    return make_kernel(InPlace::kYes, [=](Pointers p, std::byte*) {
      for (int64_t run = 0; run < outer * inner; ++run) {
        const int64_t base = run / inner * size * inner + run % inner;
        Sum sum = 0;
        for (int64_t i = 0; i < size; ++i) {
          const int64_t at = base + (reverse ? size - 1 - i : i) * inner;
          const Sum x = input<T>(p, 0)[at], next = SumOf<Sum>::plus(sum, x);
          output<T>(p, 1)[at] = static_cast<T>(exclusive ? sum : next);
          sum = next;
        }
      }
    });
  });
}

}  // namespace

std::vector<KernelRow> reduce_kernels() {
  return {{"CumSum", make_cumsum},     {"ReduceExtremeGrad", make_reduce_extreme_grad},
          {"ReduceMax", make_reduce},  {"ReduceMin", make_reduce},
          {"ReduceProd", make_reduce}, {"ReduceProdGrad", make_reduce_prod_grad},
          {"ReduceSum", make_reduce}};
}

}  // namespace piper::cpu
