// Layer, RMS and group norm and their gradients. Dims of the first two from `axis` on are one row.
#include "families.h"
#include "rows.h"

namespace piper::cpu {
namespace {

struct Rows {
  int64_t count = 0, size = 0;
  Shape stats, params;  // of mean and rstd; of scale and bias
};
Result<Rows> rows_of(const Use& use, const Shape& x) {
  PIPER_ASSIGN(const int64_t axis, use.axis("axis", x.size()));
  Rows rows{extent(x, 0, axis), extent(x, axis, x.size()), x, Shape(x.begin() + axis, x.end())};
  std::fill(rows.stats.begin() + axis, rows.stats.end(), 1);
  PIPER_WANT(rows.size > 0 || rows.count == 0, "of {}", to_string(x));
  return rows;
}

Status want(const Use& use, std::string_view what, const Shape& have, const Shape& shape) {
  PIPER_WANT(have == shape, "{} of {} is {}, not {}", what, use.op, to_string(have),
             to_string(shape));
  return ok_status();
}

// The attribute `then` of a use of `count` inputs: one word, its operand behind them all.
struct Then {
  bool is = false, multiply = false;
};
Result<Then> read_then(const Use& use, size_t count) {
  PIPER_ASSIGN(const std::string then, use.text_or("then", ""));
  if (then.empty()) {
    PIPER_TRY(use.operands(count, count));
    return Then{};
  }
  PIPER_WANT(then == "Add" || then == "Mul", "then={}", then);
  PIPER_TRY(use.operands(count + 1, count + 1));
  PIPER_WANT(use.inputs.back() == use.outputs[0], "then {} {} with {}", then,
             to_string(use.outputs[0]), to_string(use.inputs.back()));
  return Then{true, then == "Mul"};
}

}  // namespace

Result<KernelPtr> make_layer_norm(const Use& use) {
  PIPER_TRY(use.operands(2, 3, 3));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const double epsilon, use.real_or("epsilon", 1e-5));
  PIPER_ASSIGN(const Rows rows, rows_of(use, use.in(0)));
  const bool bias = use.inputs.size() == 3 && use.present[2];
  PIPER_TRY(want(use, "scale", use.in(1), rows.params));
  if (bias) PIPER_TRY(want(use, "bias", use.in(2), rows.params));
  PIPER_TRY(want(use, "output", use.out(0), use.in(0)));
  for (size_t i : {1, 2}) {
    if (use.wanted[i]) PIPER_TRY(want(use, "statistic", use.out(i), rows.stats));
  }
  const size_t first = use.inputs.size();
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    const auto norm = [=, run = norm_fns<T>().layer_norm, size = rows.size](
                          Pointers p, std::byte*, int64_t begin, int64_t end) {
      const auto statistic = [&](size_t i) { return p[i] ? output<T>(p, i) + begin : nullptr; };
      run(input<T>(p, 0) + begin * size, input<T>(p, 1), bias ? input<T>(p, 2) : nullptr,
          output<T>(p, first) + begin * size, statistic(first + 1), statistic(first + 2), epsilon,
          end - begin, size);
    };
    return make_units_kernel(InPlace::kYes, rows.count, static_cast<double>(rows.size) / 4, norm);
  });
}

Result<KernelPtr> make_layer_norm_grad_x(const Use& use) {
  PIPER_ASSIGN(const Then then, read_then(use, 5));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const Rows rows, rows_of(use, use.in(1)));
  PIPER_TRY(want(use, "dy", use.in(0), use.in(1)));
  PIPER_TRY(want(use, "scale", use.in(2), rows.params));
  PIPER_TRY(want(use, "mean", use.in(3), rows.stats));
  PIPER_TRY(want(use, "rstd", use.in(4), rows.stats));
  PIPER_TRY(want(use, "output", use.out(), use.in(1)));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    const auto gradient = [run = norm_fns<T>().layer_norm_grad_x, size = rows.size, then](
                              Pointers p, std::byte*, int64_t begin, int64_t end) {
      const int64_t at = begin * size;
      run(input<T>(p, 0) + at, input<T>(p, 1) + at, input<T>(p, 2), input<T>(p, 3) + begin,
          input<T>(p, 4) + begin, output<T>(p, then.is ? 6 : 5) + at, end - begin, size,
          {then.is ? input<T>(p, 5) + at : nullptr, then.multiply});
    };
    return make_units_kernel(InPlace::kYes, rows.count, static_cast<double>(rows.size) / 4,
                             gradient);
  });
}

Result<KernelPtr> make_layer_norm_grad_params(const Use& use) {
  PIPER_TRY(use.operands(4, 4, 2));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const Rows rows, rows_of(use, use.in(1)));
  PIPER_TRY(want(use, "dy", use.in(0), use.in(1)));
  PIPER_TRY(want(use, "mean", use.in(2), rows.stats));
  PIPER_TRY(want(use, "rstd", use.in(3), rows.stats));
  for (size_t i : {0, 1}) {
    if (use.wanted[i]) PIPER_TRY(want(use, "output", use.out(i), rows.params));
  }
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kNo,
                       [run = norm_fns<T>().layer_norm_grad_params, count = rows.count,
                        size = rows.size](Pointers p, std::byte*) {
                         run(input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), input<T>(p, 3),
                             output<T>(p, 4), output<T>(p, 5), count, size);
                       });
  });
}

Result<KernelPtr> make_rms_norm(const Use& use) {
  PIPER_TRY(use.operands(2, 2, 2));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const double epsilon, use.real_or("epsilon", 1e-5));
  PIPER_ASSIGN(const Rows rows, rows_of(use, use.in(0)));
  PIPER_TRY(want(use, "scale", use.in(1), rows.params));
  PIPER_TRY(want(use, "output", use.out(0), use.in(0)));
  if (use.wanted[1]) PIPER_TRY(want(use, "rstd", use.out(1), rows.stats));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    const auto norm = [=, run = norm_fns<T>().rms_norm, size = rows.size](
                          Pointers p, std::byte*, int64_t begin, int64_t end) {
      const int64_t at = begin * size;
      run(input<T>(p, 0) + at, input<T>(p, 1), output<T>(p, 2) + at,
          p[3] ? output<T>(p, 3) + begin : nullptr, epsilon, end - begin, size);
    };
    return make_units_kernel(InPlace::kYes, rows.count, static_cast<double>(rows.size) / 4, norm);
  });
}

Result<KernelPtr> make_rms_norm_grad_x(const Use& use) {
  PIPER_ASSIGN(const Then then, read_then(use, 4));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const Rows rows, rows_of(use, use.in(1)));
  PIPER_TRY(want(use, "dy", use.in(0), use.in(1)));
  PIPER_TRY(want(use, "scale", use.in(2), rows.params));
  PIPER_TRY(want(use, "rstd", use.in(3), rows.stats));
  PIPER_TRY(want(use, "output", use.out(), use.in(1)));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    const auto gradient = [run = norm_fns<T>().rms_norm_grad_x, size = rows.size, then](
                              Pointers p, std::byte*, int64_t begin, int64_t end) {
      const int64_t at = begin * size;
      run(input<T>(p, 0) + at, input<T>(p, 1) + at, input<T>(p, 2), input<T>(p, 3) + begin,
          output<T>(p, then.is ? 5 : 4) + at, end - begin, size,
          {then.is ? input<T>(p, 4) + at : nullptr, then.multiply});
    };
    return make_units_kernel(InPlace::kYes, rows.count, static_cast<double>(rows.size) / 4,
                             gradient);
  });
}

Result<KernelPtr> make_rms_norm_grad_scale(const Use& use) {
  PIPER_TRY(use.operands(3, 3));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const Rows rows, rows_of(use, use.in(1)));
  PIPER_TRY(want(use, "dy", use.in(0), use.in(1)));
  PIPER_TRY(want(use, "rstd", use.in(2), rows.stats));
  PIPER_TRY(want(use, "output", use.out(), rows.params));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kNo,
                       [run = norm_fns<T>().layer_norm_grad_params, count = rows.count,
                        size = rows.size](Pointers p, std::byte*) {
                         run(input<T>(p, 0), input<T>(p, 1), nullptr, input<T>(p, 2),
                             output<T>(p, 3), nullptr, count, size);
                       });
  });
}

namespace {

struct Groups {
  GroupShape shape;
  Shape params, stats;
};
Result<Groups> groups_of(const Use& use, const Shape& x) {
  PIPER_ASSIGN(const int64_t groups, use.integer("groups"));
  PIPER_WANT(x.size() >= 2 && groups > 0 && x[1] % groups == 0, "of {} in {} groups", to_string(x),
             groups);
  return Groups{{x[0], groups, x[1] / groups, extent(x, 2, x.size())}, {x[1]}, {x[0], groups}};
}

}  // namespace

Result<KernelPtr> make_group_norm(const Use& use) {
  PIPER_TRY(use.operands(3, 3, 3));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const double epsilon, use.real_or("epsilon", 1e-5));
  PIPER_ASSIGN(const Groups groups, groups_of(use, use.in(0)));
  for (size_t i : {1, 2}) {
    PIPER_TRY(want(use, "parameter", use.in(i), groups.params));
    if (use.wanted[i]) PIPER_TRY(want(use, "statistic", use.out(i), groups.stats));
  }
  PIPER_TRY(want(use, "output", use.out(0), use.in(0)));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kYes, [=, run = norm_fns<T>().group_norm, shape = groups.shape](
                                          Pointers p, std::byte*) {
      run(shape, input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), output<T>(p, 3), output<T>(p, 4),
          output<T>(p, 5), epsilon);
    });
  });
}

Result<KernelPtr> make_group_norm_grad_x(const Use& use) {
  PIPER_TRY(use.operands(5, 5));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const Groups groups, groups_of(use, use.in(1)));
  PIPER_TRY(want(use, "dy", use.in(0), use.in(1)));
  PIPER_TRY(want(use, "scale", use.in(2), groups.params));
  PIPER_TRY(want(use, "mean", use.in(3), groups.stats));
  PIPER_TRY(want(use, "rstd", use.in(4), groups.stats));
  PIPER_TRY(want(use, "output", use.out(), use.in(1)));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kYes, [run = norm_fns<T>().group_norm_grad_x, shape = groups.shape](
                                          Pointers p, std::byte*) {
      run(shape, input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), input<T>(p, 3), input<T>(p, 4),
          output<T>(p, 5));
    });
  });
}

Result<KernelPtr> make_group_norm_grad_params(const Use& use) {
  PIPER_TRY(use.operands(4, 4, 2));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const Groups groups, groups_of(use, use.in(1)));
  PIPER_TRY(want(use, "dy", use.in(0), use.in(1)));
  PIPER_TRY(want(use, "mean", use.in(2), groups.stats));
  PIPER_TRY(want(use, "rstd", use.in(3), groups.stats));
  for (size_t i : {0, 1}) {
    if (use.wanted[i]) PIPER_TRY(want(use, "output", use.out(i), groups.params));
  }
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kNo, [run = norm_fns<T>().group_norm_grad_params,
                                      shape = groups.shape](Pointers p, std::byte*) {
      run(shape, input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), input<T>(p, 3), output<T>(p, 4),
          output<T>(p, 5));
    });
  });
}

}  // namespace piper::cpu
