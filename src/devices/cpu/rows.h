// Vectorised functions over rows of f32 and f64. The order of every sum is fixed by the length of
// the row only.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace piper::cpu {

template <class T>
struct SumFns {
  T (*sum)(const T* x, int64_t n);
  T (*max)(const T* x, int64_t n);  // NaN if there is one; n > 0
  T (*min)(const T* x, int64_t n);
  double (*sum_squares)(const T* x, int64_t n);
  // out[j] += the sum of x[0][j], x[1][j], … over rows of n, in an order that `rows` fixes.
  void (*add_rows)(const T* x, int64_t rows, int64_t n, T* out);
};

// Views x as [samples, groups, channels of a group, size of what follows].
struct GroupShape {
  int64_t samples = 0, groups = 0, channels = 0, size = 0;
};

// Says what is done with each element of a result in the end: one of `with` is added, or multiplied
// with it. Nothing where that is null.
template <class T>
struct RowsThen {
  const T* with = nullptr;
  bool multiply = false;
};

template <class T>
struct NormFns {
  // Over rows of n; outputs may be the inputs.
  void (*softmax)(const T* x, T* y, int64_t rows, int64_t n);
  void (*log_softmax)(const T* x, T* y, int64_t rows, int64_t n);
  void (*softmax_grad)(const T* y, const T* dy, T* dx, int64_t rows, int64_t n);
  void (*log_softmax_grad)(const T* y, const T* dy, T* dx, int64_t rows, int64_t n);
  // The sum of exp(x - top), top the largest of x.
  double (*sum_above)(const T* x, int64_t n, T& top);
  // dx = exp(x - top) × scale
  void (*exp_above)(const T* x, T scale, T* dx, int64_t n);
  // bias, mean and rstd may be null.
  void (*layer_norm)(const T* x, const T* scale, const T* bias, T* y, T* mean, T* rstd,
                     double epsilon, int64_t rows, int64_t n);
  void (*layer_norm_grad_x)(const T* dy, const T* x, const T* scale, const T* mean, const T* rstd,
                            T* dx, int64_t rows, int64_t n, const RowsThen<T>& then);
  // dscale and dbias may be null; they are set, not added to. mean may be null: 0.
  void (*layer_norm_grad_params)(const T* dy, const T* x, const T* mean, const T* rstd, T* dscale,
                                 T* dbias, int64_t rows, int64_t n);
  void (*rms_norm)(const T* x, const T* scale, T* y, T* rstd, double epsilon, int64_t rows,
                   int64_t n);
  void (*rms_norm_grad_x)(const T* dy, const T* x, const T* scale, const T* rstd, T* dx,
                          int64_t rows, int64_t n, const RowsThen<T>& then);
  void (*group_norm)(const GroupShape& s, const T* x, const T* scale, const T* bias, T* y, T* mean,
                     T* rstd, double epsilon);
  void (*group_norm_grad_x)(const GroupShape& s, const T* dy, const T* x, const T* scale,
                            const T* mean, const T* rstd, T* dx);
  void (*group_norm_grad_params)(const GroupShape& s, const T* dy, const T* x, const T* mean,
                                 const T* rstd, T* dscale, T* dbias);
  // Pairs (x[i], x[half + i]), or (x[2i], x[2i + 1]), of one row turned by angles, or back.
  void (*rotate)(const T* x, const T* cos, const T* sin, T* y, int64_t half, bool interleaved,
                 bool inverse);
};

// Holds some elements of what an optimizer's op reads and writes; outputs may be the inputs. A
// state that the op has not is null.
constexpr int kMostStates = 2;
template <class T>
struct UpdateRun {
  const T *param, *gradient;
  const T* states[kMostStates];
  T* param_out;
  T* states_out[kMostStates];
  int64_t n;
};
// Holds a step's numbers. `clip` multiplies the gradient.
struct UpdateNumbers {
  double lr, clip;
  int64_t step;
};
// Describes an optimizer's op: its states, and its attributes in the order in which `run` takes
// them, with what they are where they are absent.
struct UpdateRule {
  struct Number {
    std::string_view attr;
    double otherwise = 0;
  };
  std::string_view op;
  int states;
  std::vector<Number> numbers;
};
template <class T>
using UpdateFn = void (*)(const UpdateRun<T>& run, const UpdateNumbers& now, const double* numbers);

std::span<const UpdateRule> update_rules();
// average += (1 - decay) * (x - average)
template <class T>
using AverageFn = void (*)(const T* x, T* average, int64_t n, double decay);
template <class T>
AverageFn<T> average_fn();
template <class T>
UpdateFn<T> update_fn(size_t rule);  // by position in update_rules()

template <class T>
SumFns<T> sum_fns();
template <class T>
NormFns<T> norm_fns();

}  // namespace piper::cpu
