// Layer, RMS and group norm and their gradients. Dims of the first two from `axis` on are one row.
#include <array>

#include "blocks.h"
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

// An op over rows, and the op of its attribute `then` on rows that it has just made. Its operand is
// the last input.
class ThenKernel final : public Kernel {
 public:
  ThenKernel(KernelPtr rows, BlockFn then, size_t operand, int64_t size, int64_t bytes)
      : rows_(std::move(rows)), then_(then), operand_(operand), size_(size), bytes_(bytes) {
    units = rows_->units, grain = rows_->grain, scratch_bytes = rows_->scratch_bytes;
    in_place = rows_->in_place & ((uint32_t{1} << operand) - 1);
  }
  void run(Pointers p, std::byte* scratch, int64_t begin, int64_t end) const override {
    constexpr int64_t kAtOnce = 16;
    std::array<std::byte*, 8> own{};  // without the last input
    std::copy_n(p, operand_, own.begin());
    own[operand_] = p[operand_ + 1];
    const bool step[] = {true, true};
    for (; begin < end; begin += kAtOnce) {
      const int64_t rows = std::min(kAtOnce, end - begin), at = begin * size_ * bytes_;
      for (int64_t byte = 0; byte < rows * size_ * bytes_; byte += 64)
        __builtin_prefetch(p[operand_] + at + byte);
      rows_->run(own.data(), scratch, begin, begin + rows);
      std::byte* out = own[operand_] + at;
      const std::byte* operands[] = {out, p[operand_] + at};
      then_(operands, step, out, rows * size_);
    }
  }

 private:
  KernelPtr rows_;
  BlockFn then_;
  size_t operand_;
  int64_t size_, bytes_;
};

// What `make` makes of the use, and its attribute `then`, an op with an operand of the output's
// type. The units of what it makes are rows of its one output.
Result<KernelPtr> with_then(const Use& use, Maker make) {
  PIPER_ASSIGN(const std::string then, use.text_or("then", ""));
  if (then.empty()) return make(use);
  PIPER_WANT(then == "Add" || then == "Mul", "then={}", then);
  PIPER_WANT(use.inputs.size() > 1 && use.outputs.size() == 1 &&
                 use.inputs.back() == use.outputs[0] && use.present.back(),
             "then {} {} with {}", then, to_string(use.outputs[0]), to_string(use.inputs.back()));
  Use alone = use;
  alone.inputs.pop_back();
  alone.present.pop_back();
  PIPER_ASSIGN(KernelPtr rows, make(alone));
  const DType types[] = {use.type(), use.type()};
  PIPER_ASSIGN(const Block block, find_block(then, "", types));
  const int64_t size = rows->units > 0 ? num_elements(use.out()) / rows->units : 0;
  return KernelPtr(std::make_unique<ThenKernel>(std::move(rows), block.run, alone.inputs.size(),
                                                size, info(use.type()).bytes));
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

namespace {

Result<KernelPtr> layer_norm_grad_x(const Use& use) {
  PIPER_TRY(use.operands(5, 5));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const Rows rows, rows_of(use, use.in(1)));
  PIPER_TRY(want(use, "dy", use.in(0), use.in(1)));
  PIPER_TRY(want(use, "scale", use.in(2), rows.params));
  PIPER_TRY(want(use, "mean", use.in(3), rows.stats));
  PIPER_TRY(want(use, "rstd", use.in(4), rows.stats));
  PIPER_TRY(want(use, "output", use.out(), use.in(1)));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    const auto gradient = [run = norm_fns<T>().layer_norm_grad_x, size = rows.size](
                              Pointers p, std::byte*, int64_t begin, int64_t end) {
      const int64_t at = begin * size;
      run(input<T>(p, 0) + at, input<T>(p, 1) + at, input<T>(p, 2), input<T>(p, 3) + begin,
          input<T>(p, 4) + begin, output<T>(p, 5) + at, end - begin, size);
    };
    return make_units_kernel(InPlace::kYes, rows.count, static_cast<double>(rows.size) / 4,
                             gradient);
  });
}

}  // namespace

Result<KernelPtr> make_layer_norm_grad_x(const Use& use) {
  return with_then(use, layer_norm_grad_x);
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

namespace {

Result<KernelPtr> rms_norm_grad_x(const Use& use) {
  PIPER_TRY(use.operands(4, 4));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const Rows rows, rows_of(use, use.in(1)));
  PIPER_TRY(want(use, "dy", use.in(0), use.in(1)));
  PIPER_TRY(want(use, "scale", use.in(2), rows.params));
  PIPER_TRY(want(use, "rstd", use.in(3), rows.stats));
  PIPER_TRY(want(use, "output", use.out(), use.in(1)));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    const auto gradient = [run = norm_fns<T>().rms_norm_grad_x, size = rows.size](
                              Pointers p, std::byte*, int64_t begin, int64_t end) {
      const int64_t at = begin * size;
      run(input<T>(p, 0) + at, input<T>(p, 1) + at, input<T>(p, 2), input<T>(p, 3) + begin,
          output<T>(p, 4) + at, end - begin, size);
    };
    return make_units_kernel(InPlace::kYes, rows.count, static_cast<double>(rows.size) / 4,
                             gradient);
  });
}

}  // namespace

Result<KernelPtr> make_rms_norm_grad_x(const Use& use) { return with_then(use, rms_norm_grad_x); }

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
