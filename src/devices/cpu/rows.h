// Vectorised functions over rows of f32 and f64. The order of every sum is fixed by the length of
// the row only.
#pragma once

#include <cstdint>

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

// Holds one optimizer step's scalars. `gradient_scale` is the clip factor.
struct SgdStep {
  double lr, gradient_scale, momentum, dampening, weight_decay;
  bool nesterov, first;  // first: the buffer starts as the gradient
};
struct AdamStep {
  double step_size;        // lr / (1 - beta1^t)
  double root_correction;  // sqrt(1 - beta2^t)
  double gradient_scale, beta1, beta2, eps;
  double keep;              // what decoupled weight decay leaves of p: 1 - lr × decay
  double weight_decay;      // added to the gradient; 0 when decoupled
  double shrink_after = 0;  // the part of the new p that is taken off it
};
struct AdagradStep {
  double step_size, gradient_scale, eps, weight_decay;
};
template <class T>
struct UpdateFns {
  // buffers may be null (no momentum); outputs may be the inputs.
  void (*sgd)(const T* p, const T* g, const T* buffer, T* p_out, T* buffer_out, int64_t n,
              const SgdStep& s);
  void (*adam)(const T* p, const T* g, const T* m, const T* v, T* p_out, T* m_out, T* v_out,
               int64_t n, const AdamStep& s);
  void (*adagrad)(const T* p, const T* g, const T* h, T* p_out, T* h_out, int64_t n,
                  const AdagradStep& s);
};

template <class T>
SumFns<T> sum_fns();
template <class T>
NormFns<T> norm_fns();
template <class T>
UpdateFns<T> update_fns();

}  // namespace piper::cpu
