// Layer, RMS and group norm and their gradients. Dims of the first two from `axis` on are one row.
#include "families.h"
#include "rows.h"

namespace piper::cpu {
namespace {

struct Rows {
  int64_t count = 0, size = 0;
};
Rows rows_of(const Use& use, const Shape& x) {
  const auto axis = static_cast<size_t>(use.attrs.integer("axis"));
  return {extent(x, 0, axis), extent(x, axis, x.size())};
}

// The attribute `then`: one word, its operand after all others.
struct Then {
  bool is = false, multiply = false;
};
Then read_then(const Use& use) {
  const std::string then = use.attrs.text("then");
  return {!then.empty(), then == "Mul"};
}

Result<KernelPtr> make_layer_norm(const Use& use) {
  const double epsilon = use.attrs.real("epsilon", 1e-5);
  const Rows rows = rows_of(use, use.in(0));
  const bool bias = use.has(2);
  const size_t first = use.inputs.size();
  return for_floats(use, use.type(), [&]<class T>(T) {
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
  const Then then = read_then(use);
  const Rows rows = rows_of(use, use.in(1));
  return for_floats(use, use.type(), [&]<class T>(T) {
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
  const Rows rows = rows_of(use, use.in(1));
  return for_floats(use, use.type(), [&]<class T>(T) {
    return make_kernel(InPlace::kNo,
                       [run = norm_fns<T>().layer_norm_grad_params, count = rows.count,
                        size = rows.size](Pointers p, std::byte*) {
                         run(input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), input<T>(p, 3),
                             output<T>(p, 4), output<T>(p, 5), count, size);
                       });
  });
}

Result<KernelPtr> make_rms_norm(const Use& use) {
  const double epsilon = use.attrs.real("epsilon", 1e-5);
  const Rows rows = rows_of(use, use.in(0));
  return for_floats(use, use.type(), [&]<class T>(T) {
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
  const Then then = read_then(use);
  const Rows rows = rows_of(use, use.in(1));
  return for_floats(use, use.type(), [&]<class T>(T) {
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
  const Rows rows = rows_of(use, use.in(1));
  return for_floats(use, use.type(), [&]<class T>(T) {
    return make_kernel(InPlace::kNo,
                       [run = norm_fns<T>().layer_norm_grad_params, count = rows.count,
                        size = rows.size](Pointers p, std::byte*) {
                         run(input<T>(p, 0), input<T>(p, 1), nullptr, input<T>(p, 2),
                             output<T>(p, 3), nullptr, count, size);
                       });
  });
}

GroupShape groups_of(const Use& use, const Shape& x) {
  const int64_t groups = use.attrs.integer("groups");
  return {x[0], groups, x[1] / groups, extent(x, 2, x.size())};
}

Result<KernelPtr> make_group_norm(const Use& use) {
  const double epsilon = use.attrs.real("epsilon", 1e-5);
  const GroupShape shape = groups_of(use, use.in(0));
  return for_floats(use, use.type(), [&]<class T>(T) {
    return make_kernel(InPlace::kYes, [=, run = norm_fns<T>().group_norm](Pointers p, std::byte*) {
      run(shape, input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), output<T>(p, 3), output<T>(p, 4),
          output<T>(p, 5), epsilon);
    });
  });
}

Result<KernelPtr> make_group_norm_grad_x(const Use& use) {
  const GroupShape shape = groups_of(use, use.in(1));
  return for_floats(use, use.type(), [&]<class T>(T) {
    return make_kernel(InPlace::kYes,
                       [run = norm_fns<T>().group_norm_grad_x, shape](Pointers p, std::byte*) {
                         run(shape, input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), input<T>(p, 3),
                             input<T>(p, 4), output<T>(p, 5));
                       });
  });
}

Result<KernelPtr> make_group_norm_grad_params(const Use& use) {
  const GroupShape shape = groups_of(use, use.in(1));
  return for_floats(use, use.type(), [&]<class T>(T) {
    return make_kernel(InPlace::kNo,
                       [run = norm_fns<T>().group_norm_grad_params, shape](Pointers p, std::byte*) {
                         run(shape, input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), input<T>(p, 3),
                             output<T>(p, 4), output<T>(p, 5));
                       });
  });
}

}  // namespace

std::vector<KernelRow> norm_kernels() {
  return {{"GroupNorm", make_group_norm},
          {"GroupNormGradParams", make_group_norm_grad_params},
          {"GroupNormGradX", make_group_norm_grad_x},
          {"LayerNorm", make_layer_norm},
          {"LayerNormGradParams", make_layer_norm_grad_params},
          {"LayerNormGradX", make_layer_norm_grad_x},
          {"RmsNorm", make_rms_norm},
          {"RmsNormGradScale", make_rms_norm_grad_scale},
          {"RmsNormGradX", make_rms_norm_grad_x}};
}

}  // namespace piper::cpu
