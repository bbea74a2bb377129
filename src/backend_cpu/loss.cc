// Cross-entropy over the last dim, and the count of labels. A label outside [0, C) that is not
// ignored makes NaN (inputs are checked before they come here).
#include <algorithm>
#include <cmath>
#include <limits>

#include "families.h"
#include "places.h"
#include "rows.h"

namespace piper::cpu {
namespace {

struct Rows {
  int64_t count = 0, classes = 0, ignore = 0;
};
Result<Rows> rows_of(const Use& use) {
  const Shape& logits = use.in(0);
  PIPER_WANT(!logits.empty() && logits.back() > 0, "of {}", to_string(logits));
  const Shape lead(logits.begin(), logits.end() - 1);
  PIPER_WANT(use.inputs[1] == (TensorType{DType::kI64, lead}), "labels {} for {}",
             to_string(use.inputs[1]), to_string(logits));
  PIPER_ASSIGN(const int64_t ignore, use.integer_or("ignore_index", -100));
  return Rows{num_elements(lead), logits.back(), ignore};
}

bool inside(int64_t label, const Rows& rows) { return label >= 0 && label < rows.classes; }

}  // namespace

Result<KernelPtr> make_cross_entropy_sum(const Use& use) {
  PIPER_TRY(use.operands(2, 2, 2));
  PIPER_ASSIGN(const Rows rows, rows_of(use));
  PIPER_WANT(use.outputs[0] == (TensorType{use.type(), {}}) &&
                 (!use.wanted[1] || use.outputs[1] == TensorType{use.type(), use.in(1)}),
             "of {} to {} and {}", to_string(use.inputs[0]), to_string(use.outputs[0]),
             to_string(use.outputs[1]));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kNo, [rows, fns = norm_fns<T>()](Pointers p, std::byte*) {
      const T* logits = input<T>(p, 0);
      const auto* labels = input<int64_t>(p, 1);
      double sum = 0;
      for (int64_t r = 0; r < rows.count; ++r, logits += rows.classes) {
        T top;
        const double above = fns.sum_above(logits, rows.classes, top);
        if (p[3]) output<T>(p, 3)[r] = static_cast<T>(1 / above);
        if (labels[r] == rows.ignore) continue;
        sum += inside(labels[r], rows)
                   ? std::log(above) + static_cast<double>(top - logits[labels[r]])
                   : std::numeric_limits<double>::quiet_NaN();
      }
      *output<T>(p, 2) = static_cast<T>(sum);
    });
  });
}

Result<KernelPtr> make_cross_entropy_terms(const Use& use) {
  PIPER_TRY(use.operands(3, 4, 2));
  PIPER_ASSIGN(const Rows rows, rows_of(use));
  PIPER_ASSIGN(const Part part, part_of(use, 3, rows.classes));
  const TensorType row{use.type(), use.in(1)};
  PIPER_WANT(use.inputs[2] == row && use.outputs[0] == row && use.outputs[1] == row,
             "of {} to {} and {}", to_string(use.inputs[0]), to_string(use.outputs[0]),
             to_string(use.outputs[1]));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kNo, [rows, part, fns = norm_fns<T>()](Pointers p, std::byte*) {
      const T* logits = input<T>(p, 0);
      const auto* labels = input<int64_t>(p, 1);
      const T* tops = input<T>(p, 2);
      const int64_t first = part.first(p);
      for (int64_t r = 0; r < rows.count; ++r, logits += rows.classes) {
        T top;
        const double above = fns.sum_above(logits, rows.classes, top);
        if (p[part.outputs])
          output<T>(p, part.outputs)[r] =
              static_cast<T>(above * std::exp(static_cast<double>(top - tops[r])));
        if (!p[part.outputs + 1]) continue;
        T& chosen = output<T>(p, part.outputs + 1)[r] = T{0};
        if (labels[r] == rows.ignore) continue;
        const int64_t at = labels[r] < 0 ? -1 : position_in(labels[r], first, part.size, part.whole);
        if (at >= 0) chosen = logits[at] - tops[r];
        if (at == -1) chosen = std::numeric_limits<T>::quiet_NaN();
      }
    });
  });
}

Result<KernelPtr> make_cross_entropy_of_terms(const Use& use) {
  PIPER_TRY(use.operands(3, 3, 2));
  PIPER_ASSIGN(const int64_t ignore, use.integer_or("ignore_index", -100));
  PIPER_WANT(use.inputs[1] == use.inputs[0] &&
                 use.inputs[2] == (TensorType{DType::kI64, use.in(0)}) &&
                 use.outputs[0] == (TensorType{use.type(), {}}) &&
                 (!use.wanted[1] || use.outputs[1] == use.inputs[0]),
             "of {}, {} and {}", to_string(use.inputs[0]), to_string(use.inputs[1]),
             to_string(use.inputs[2]));
  const int64_t count = num_elements(use.in(0));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
      const T *above = input<T>(p, 0), *chosen = input<T>(p, 1);
      const auto* labels = input<int64_t>(p, 2);
      double sum = 0;
      for (int64_t r = 0; r < count; ++r) {
        if (labels[r] != ignore)
          sum += std::log(static_cast<double>(above[r])) - static_cast<double>(chosen[r]);
        if (p[4]) output<T>(p, 4)[r] = 1 / above[r];
      }
      *output<T>(p, 3) = static_cast<T>(sum);
    });
  });
}

Result<KernelPtr> make_cross_entropy_grad(const Use& use) {
  PIPER_TRY(use.operands(4, 6));
  PIPER_ASSIGN(const Rows rows, rows_of(use));
  PIPER_ASSIGN(const Part part, part_of(use, 5, rows.classes));
  const bool topped = use.inputs.size() > 4 && use.present[4];
  PIPER_WANT(!topped || use.inputs[4] == use.inputs[2], "top {}", to_string(use.inputs[4]));
  PIPER_WANT(use.inputs[2] == (TensorType{use.type(), use.in(1)}) &&
                 use.inputs[3] == (TensorType{use.type(), {}}) && use.outputs[0] == use.inputs[0],
             "of {}, {} and {} to {}", to_string(use.inputs[0]), to_string(use.inputs[2]),
             to_string(use.inputs[3]), to_string(use.outputs[0]));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    return make_kernel(InPlace::kYes, [rows, part, topped, fns = norm_fns<T>()](Pointers p,
                                                                            std::byte*) {
      const T* logits = input<T>(p, 0);
      const auto* labels = input<int64_t>(p, 1);
      const T scale = *input<T>(p, 3);
      const int64_t first = part.first(p);
      T* out = output<T>(p, part.outputs);
      for (int64_t r = 0; r < rows.count; ++r, logits += rows.classes, out += rows.classes) {
        const int64_t at = labels[r] < 0 ? -1 : position_in(labels[r], first, part.size, part.whole);
        if (labels[r] == rows.ignore) {
          std::fill_n(out, rows.classes, T{0});
        } else if (at == -1) {
          std::fill_n(out, rows.classes, std::numeric_limits<T>::quiet_NaN());
        } else {
          T share = scale * input<T>(p, 2)[r];
          if (topped)
            share *= std::exp(*std::max_element(logits, logits + rows.classes) -
                              input<T>(p, 4)[r]);
          fns.exp_above(logits, share, out, rows.classes);
          if (at >= 0) out[at] -= scale;
        }
      }
    });
  });
}

Result<KernelPtr> make_label_count(const Use& use) {
  PIPER_TRY(use.operands(1, 1));
  PIPER_ASSIGN(const int64_t ignore, use.integer_or("ignore_index", -100));
  PIPER_WANT(use.type() == DType::kI64 && use.outputs[0] == (TensorType{DType::kF32, {}}),
             "of {} to {}", to_string(use.inputs[0]), to_string(use.outputs[0]));
  const int64_t count = num_elements(use.in(0));
  return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
    const auto* labels = input<int64_t>(p, 0);
    *output<float>(p, 1) = static_cast<float>(count - std::count(labels, labels + count, ignore));
  });
}

}  // namespace piper::cpu
