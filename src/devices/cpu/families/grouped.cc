// Products of rows with the matrix that each names: rows of one matrix are brought together, a few
// at a time, multiplied at once, and put where they belong. Rows of no matrix that is here are
// zero, or NaN where there is none such at all. And the places of rows that are sent to them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "families.h"
#include "gemm.h"
#include "places.h"

namespace piper::cpu {
namespace {

constexpr int64_t kGroupColumns = 256;  // of a unit
constexpr int64_t kGroupRows = 128;     // brought together at once: a chain of sums, see gemm.h

struct Grouped {
  Part groups;
  int64_t rows = 0, k = 0, n = 0;  // of all matrices
  bool trans_b = false;
  std::string_view kernels;
};

int64_t tiles_in(int64_t extent) { return (extent + kGroupColumns - 1) / kGroupColumns; }

// Returns how many rows of x are gathered at once: as many as leave room for the product.
template <class T>
int64_t rows_at_once(const Grouped& g) {
  constexpr int64_t kRoom = kKernelScratchBytes / 4 / static_cast<int64_t>(sizeof(T));
  return std::clamp<int64_t>(kRoom / std::max<int64_t>(g.k, 1), 1, kGroupRows);
}

// Calls use(rows, count) for the rows of matrix `group`, up to `most` at a time.
template <class I, class F>
void for_rows(const Grouped& g, const I* index, int64_t first, int64_t group, int64_t most, F use) {
  int64_t found[kGroupRows], count = 0;
  for (int64_t r = 0; r < g.rows; ++r) {
    if (position_in(index[r], first, g.groups.size, g.groups.whole) != group) continue;
    found[count++] = r;
    if (count == most) use(found, std::exchange(count, 0));
  }
  if (count > 0) use(found, count);
}

template <class T>
void bring_rows(const T* from, int64_t step, const int64_t* rows, int64_t count, int64_t width,
                T* to) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(to + i * width, from + rows[i] * step, static_cast<size_t>(width) * sizeof(T));
}

// Units are the blocks of columns of each matrix, and last those of the rows that have none here.
template <class T, class I>
struct GroupedProduct {
  Grouped g;
  GemmFn<T> multiply = gemm_fn<T>(g.kernels);

  Gemm gemm(int64_t m, int64_t columns) const {
    Gemm one;
    one.m = m, one.n = columns, one.k = g.k;
    one.trans_b = g.trans_b;
    one.b_step = g.trans_b ? g.k : g.n;
    return one;
  }
  int64_t scratch() const {  // bytes
    constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
    const int64_t most = rows_at_once<T>(g), columns = std::min(kGroupColumns, g.n);
    return most * (g.k + columns) * kBytes + gemm_scratch<T>(gemm(most, columns), g.kernels);
  }
  void operator()(Pointers p, std::byte* scratch, int64_t begin, int64_t end) const {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t group = unit / tiles_in(g.n), at = unit % tiles_in(g.n) * kGroupColumns;
      const int64_t columns = std::min(kGroupColumns, g.n - at);
      if (group < g.groups.size)
        fill(p, reinterpret_cast<T*>(scratch), group, at, columns);
      else
        clear(p, at, columns);
    }
  }
  void fill(Pointers p, T* x, int64_t group, int64_t at, int64_t columns) const {
    const int64_t most = rows_at_once<T>(g);
    T *y = x + most * g.k, *room = y + most * columns, *out = output<T>(p, g.groups.outputs);
    const T* w = input<T>(p, 2) + group * g.k * g.n + at * (g.trans_b ? g.k : 1);
    for_rows(g, input<I>(p, 1), g.groups.first(p), group, most,
             [&](const int64_t* rows, int64_t count) {
               bring_rows(input<T>(p, 0), g.k, rows, count, g.k, x);
               multiply(gemm(count, columns), x, w, y, room);
               for (int64_t i = 0; i < count; ++i)
                 std::copy_n(y + i * columns, columns, out + rows[i] * g.n + at);
             });
  }
  void clear(Pointers p, int64_t at, int64_t columns) const {
    const I* index = input<I>(p, 1);
    const int64_t first = g.groups.first(p);
    for (int64_t r = 0; r < g.rows; ++r) {
      const int64_t place = position_in(index[r], first, g.groups.size, g.groups.whole);
      T* row = output<T>(p, g.groups.outputs) + r * g.n + at;
      if (place < 0) std::fill_n(row, columns, place == -1 ? nothing<T>() : T{0});
    }
  }
};

// Units are tiles of each matrix: a sum over its rows of products of columns of x and of dy.
template <class T, class I>
struct GroupedGradient {
  Grouped g;
  GemmFn<T> multiply = gemm_fn<T>(g.kernels);

  // Returns what the rows and the columns of a matrix are: x and dy, or with trans_b the other way
  // round.
  int64_t height() const { return g.trans_b ? g.n : g.k; }
  int64_t width() const { return g.trans_b ? g.k : g.n; }
  Gemm gemm(int64_t m, int64_t n, int64_t rows) const {
    Gemm one;
    one.m = m, one.n = n, one.k = rows;
    one.trans_a = true;
    one.c_step = one.old_step = width();
    return one;
  }
  int64_t scratch() const {  // bytes
    constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
    const int64_t m = std::min(kGroupColumns, height()), n = std::min(kGroupColumns, width());
    return kGroupRows * (m + n) * kBytes + gemm_scratch<T>(gemm(m, n, kGroupRows), g.kernels);
  }
  void operator()(Pointers p, std::byte* scratch, int64_t begin, int64_t end) const {
    const int64_t across = tiles_in(width()), tiles = across * tiles_in(height());
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t tile = unit % tiles;
      fill(p, reinterpret_cast<T*>(scratch), unit / tiles, tile / across * kGroupColumns,
           tile % across * kGroupColumns);
    }
  }
  void fill(Pointers p, T* a, int64_t group, int64_t row, int64_t column) const {
    const T *left = input<T>(p, g.trans_b ? 2 : 0) + row,
            *right = input<T>(p, g.trans_b ? 0 : 2) + column;
    const int64_t m = std::min(kGroupColumns, height() - row),
                  n = std::min(kGroupColumns, width() - column);
    T *b = a + kGroupRows * m, *room = b + kGroupRows * n;
    T* out = output<T>(p, g.groups.outputs) + (group * height() + row) * width() + column;
    bool some = false;
    for_rows(g, input<I>(p, 1), g.groups.first(p), group, kGroupRows,
             [&](const int64_t* rows, int64_t count) {
               bring_rows(left, height(), rows, count, m, a);
               bring_rows(right, width(), rows, count, n, b);
               Gemm one = gemm(m, n, count);
               one.accumulate = std::exchange(some, true);
               multiply(one, a, b, out, room);
             });
    for (int64_t r = 0; r < m && !some; ++r) std::fill_n(out + r * width(), n, T{0});
  }
};

template <template <class, class> class Kernel>
Result<KernelPtr> make_grouped(const Use& use, const Grouped& g, int64_t units, double work) {
  return for_indices(use.inputs[1].dtype, [&](auto index) {
    return for_floats(use, use.type(), [&]<class T>(T) {
      Kernel<T, decltype(index)> kernel{g};
      const int64_t bytes = kernel.scratch();
      return make_units_kernel(InPlace::kNo, units, work, std::move(kernel), bytes);
    });
  });
}

// Views x and its indices; `w` are the matrices, `y` what has a row for each of x.
Grouped grouped_of(const Use& use, const Shape& w, const Shape& y) {
  return {.groups = part_of(use, 3, w[0]),
          .rows = num_elements(use.in(1)),
          .k = use.in(0).back(),
          .n = y.back(),
          .trans_b = use.attrs.integer("trans_b") != 0,
          .kernels = use.product_kernels()};
}

// Estimates the nanoseconds for a tile, of about as many rows as each matrix has.
double work_of(const Grouped& g, int64_t extent) {
  const auto of_each = static_cast<double>(g.rows) / static_cast<double>(g.groups.whole + 1);
  return of_each * static_cast<double>(extent * kGroupColumns) / 50;
}

template <class I>
KernelPtr row_places_kernel(int64_t count, int64_t ranks, int64_t owned, int64_t rows) {
  auto run = [=](Pointers p, std::byte* scratch) {
    auto* used = reinterpret_cast<int64_t*>(scratch);
    std::fill_n(used, ranks, int64_t{0});
    const I* index = input<I>(p, 0);
    I *places = output<I>(p, 1), *packed = output<I>(p, 2);
    std::fill_n(packed, ranks * rows, static_cast<I>(ranks * owned));
    for (int64_t r = 0; r < count; ++r) {
      const int64_t owner = index[r] < 0 ? ranks : static_cast<int64_t>(index[r]) / owned;
      const int64_t at = owner < ranks ? used[owner]++ : rows;
      places[r] = static_cast<I>(at < rows ? owner * rows + at : ranks * rows);
      if (at < rows) packed[owner * rows + at] = index[r];
    }
  };
  return make_kernel(InPlace::kNo, std::move(run), ranks * static_cast<int64_t>(sizeof(int64_t)));
}

Result<KernelPtr> make_row_places(const Use& use) {
  const auto of = [&](const char* name) { return use.attrs.integer(name); };
  return for_indices(use.type(), [&](auto index) -> Result<KernelPtr> {
    return row_places_kernel<decltype(index)>(num_elements(use.in(0)), of("ranks"), of("owned"),
                                              of("rows"));
  });
}

Result<KernelPtr> make_grouped_matmul(const Use& use) {
  const Grouped g = grouped_of(use, use.in(2), use.out());
  return make_grouped<GroupedProduct>(use, g, (g.groups.size + 1) * tiles_in(g.n), work_of(g, g.k));
}

Result<KernelPtr> make_grouped_matmul_grad(const Use& use) {
  const Grouped g = grouped_of(use, use.out(), use.in(2));
  return make_grouped<GroupedGradient>(use, g, g.groups.size * tiles_in(g.k) * tiles_in(g.n),
                                       work_of(g, kGroupColumns));
}

}  // namespace

std::vector<KernelRow> grouped_kernels() {
  return {{"GroupedMatMul", make_grouped_matmul},
          {"GroupedMatMulGrad", make_grouped_matmul_grad},
          {"RowPlaces", make_row_places}};
}

}  // namespace piper::cpu
