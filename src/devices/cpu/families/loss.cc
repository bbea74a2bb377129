// Cross-entropy over the last dim, and the count of labels. A label outside [0, C) that is not
// ignored makes NaN (inputs are checked before they come here).
#include <algorithm>
#include <cmath>
#include <limits>

#include "blocks.h"
#include "families.h"
#include "piper/base/float16.h"
#include "places.h"
#include "rows.h"

namespace piper::cpu {
namespace {

struct LabelRows {
  int64_t count = 0, classes = 0, ignore = 0;
};
LabelRows rows_of(const Use& use) {
  const int64_t classes = use.in(0).back();
  return {num_elements(use.in(1)), classes, use.attrs.integer("ignore_index", -100)};
}

bool inside(int64_t label, const LabelRows& rows) { return label >= 0 && label < rows.classes; }

template <class T>
bool is_lowest(T logit) {
  return logit == -std::numeric_limits<T>::infinity();
}

// Returns the type of all but logits and their gradient.
DType statistics_of(const Use& use) { return is_half(use.type()) ? DType::kF32 : use.type(); }

// Reads logits in rows; each row of 16-bit floats is widened into the scratch memory when it is
// next.
template <class T>
class Logits {
 public:
  Logits(DType dtype, int64_t classes) : dtype_(dtype), classes_(classes) {
    if (!is_half(dtype)) return;
    const DType wide = DType::kF32;
    widen_ = find_block("Cast", info(wide).name, {&dtype, 1})->run;
    round_ = find_block("Cast", info(dtype).name, {&wide, 1})->run;
  }
  int64_t scratch_bytes() const {
    return is_half(dtype_) ? classes_ * static_cast<int64_t>(sizeof(float)) : 0;
  }
  const T* row(const std::byte* logits, int64_t r, std::byte* scratch) const {
    const std::byte* from = logits + r * bytes();
    if (widen_) cast(widen_, from, scratch);
    return reinterpret_cast<const T*>(widen_ ? scratch : from);
  }
  // These say where a row of gradients is made, and put it into its place.
  T* made(std::byte* gradients, int64_t r, std::byte* scratch) const {
    return reinterpret_cast<T*>(round_ ? scratch : gradients + r * bytes());
  }
  void put(const T* made, std::byte* gradients, int64_t r) const {
    if (round_) cast(round_, reinterpret_cast<const std::byte*>(made), gradients + r * bytes());
  }

 private:
  int64_t bytes() const { return classes_ * info(dtype_).bytes; }
  void cast(BlockFn how, const std::byte* from, std::byte* to) const {
    constexpr bool kEach = true;
    how(&from, &kEach, to, classes_);
  }
  DType dtype_;
  int64_t classes_;
  BlockFn widen_ = nullptr, round_ = nullptr;
};

Result<KernelPtr> make_cross_entropy_sum(const Use& use) {
  const LabelRows rows = rows_of(use);
  const DType dtype = statistics_of(use);
  return for_floats(use, dtype, [&]<class T>(T) {
    const Logits<T> logits(use.type(), rows.classes);
    const auto run = [rows, logits, fns = norm_fns<T>()](Pointers p, std::byte* scratch) {
      const auto* labels = input<int64_t>(p, 1);
      double sum = 0;
      for (int64_t r = 0; r < rows.count; ++r) {
        const T* row = logits.row(p[0], r, scratch);
        T top;
        const double above = fns.sum_above(row, rows.classes, top);
        if (p[3]) output<T>(p, 3)[r] = static_cast<T>(1 / above);
        if (labels[r] == rows.ignore) continue;
        sum += inside(labels[r], rows) ? std::log(above) + static_cast<double>(top - row[labels[r]])
                                       : std::numeric_limits<double>::quiet_NaN();
      }
      *output<T>(p, 2) = static_cast<T>(sum);
    };
    return make_kernel(InPlace::kNo, run, logits.scratch_bytes());
  });
}

Result<KernelPtr> make_cross_entropy_terms(const Use& use) {
  const LabelRows rows = rows_of(use);
  const Part part = part_of(use, 3, rows.classes);
  const DType dtype = statistics_of(use);
  return for_floats(use, dtype, [&]<class T>(T) {
    const Logits<T> logits(use.type(), rows.classes);
    const auto run = [rows, part, logits, fns = norm_fns<T>()](Pointers p, std::byte* scratch) {
      const auto* labels = input<int64_t>(p, 1);
      const T* tops = input<T>(p, 2);
      const int64_t first = part.first(p);
      for (int64_t r = 0; r < rows.count; ++r) {
        const T* row = logits.row(p[0], r, scratch);
        T top;
        const double above = fns.sum_above(row, rows.classes, top);
        // A part all of whose classes are -∞ adds nothing to those of other ranks.
        if (p[part.outputs])
          output<T>(p, part.outputs)[r] =
              is_lowest(top) ? T{0}
                             : static_cast<T>(above * std::exp(static_cast<double>(top - tops[r])));
        if (!p[part.outputs + 1]) continue;
        T& chosen = output<T>(p, part.outputs + 1)[r] = T{0};
        if (labels[r] == rows.ignore) continue;
        const int64_t at =
            labels[r] < 0 ? -1 : position_in(labels[r], first, part.size, part.whole);
        if (at >= 0) chosen = row[at] - tops[r];
        if (at == -1) chosen = std::numeric_limits<T>::quiet_NaN();
      }
    };
    return make_kernel(InPlace::kNo, run, logits.scratch_bytes());
  });
}

Result<KernelPtr> make_cross_entropy_of_terms(const Use& use) {
  const int64_t ignore = use.attrs.integer("ignore_index", -100);
  const int64_t count = num_elements(use.in(0));
  return for_floats(use, use.type(), [&]<class T>(T) {
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
  const LabelRows rows = rows_of(use);
  const Part part = part_of(use, 5, rows.classes);
  const bool topped = use.has(4);
  const DType dtype = statistics_of(use);
  return for_floats(use, dtype, [&]<class T>(T) {
    const Logits<T> logits(use.type(), rows.classes);
    const auto run = [rows, part, topped, logits, fns = norm_fns<T>()](Pointers p,
                                                                       std::byte* scratch) {
      const auto* labels = input<int64_t>(p, 1);
      const T scale = *input<T>(p, 3);
      const int64_t first = part.first(p);
      for (int64_t r = 0; r < rows.count; ++r) {
        const T* row = logits.row(p[0], r, scratch);
        T* out = logits.made(p[part.outputs], r, scratch);
        const int64_t at =
            labels[r] < 0 ? -1 : position_in(labels[r], first, part.size, part.whole);
        if (labels[r] == rows.ignore) {
          std::fill_n(out, rows.classes, T{0});
        } else if (at == -1) {
          std::fill_n(out, rows.classes, std::numeric_limits<T>::quiet_NaN());
        } else {
          T share = scale * input<T>(p, 2)[r];
          const T top = topped ? *std::max_element(row, row + rows.classes) : T{0};
          if (topped) share *= std::exp(top - input<T>(p, 4)[r]);
          if (is_lowest(top))
            std::fill_n(out, rows.classes, T{0});
          else
            fns.exp_above(row, share, out, rows.classes);
          if (at >= 0) out[at] -= scale;
        }
        logits.put(out, p[part.outputs], r);
      }
    };
    return make_kernel(InPlace::kYes, run, logits.scratch_bytes());
  });
}

Result<KernelPtr> make_label_count(const Use& use) {
  const int64_t ignore = use.attrs.integer("ignore_index", -100);
  const int64_t count = num_elements(use.in(0));
  return make_kernel(InPlace::kNo, [=](Pointers p, std::byte*) {
    const auto* labels = input<int64_t>(p, 0);
    *output<float>(p, 1) = static_cast<float>(count - std::count(labels, labels + count, ignore));
  });
}

}  // namespace

std::vector<KernelRow> loss_kernels() {
  return {{"CrossEntropyGrad", make_cross_entropy_grad, kTakesHalves},
          {"CrossEntropyOfTerms", make_cross_entropy_of_terms},
          {"CrossEntropySum", make_cross_entropy_sum, kTakesHalves},
          {"CrossEntropyTerms", make_cross_entropy_terms, kTakesHalves},
          {"LabelCount", make_label_count}};
}

}  // namespace piper::cpu
