// What looks at whole rows, whose elements their threads have, or adds rows up: `at` is a Rows.
// Results are rounded once each.

namespace rows {

template <class At, class T, class W, class B>
DEVICE void layer_norm(At& at, const T (&x)[At::kCount], const W& scale, const B& bias,
                       T (&y)[At::kCount], T& mean_out, T& rstd_out, computed<T> width,
                       computed<T> epsilon) {
  typedef computed<T> C;
  const C mean = at.sum([&](int i) { return C(x[i]); }) / width;
  const C spread = at.sum([&](int i) {
    const C distance = C(x[i]) - mean;
    return distance * distance;
  });
  const C rstd = C(1) / word::sqrt(spread / width + epsilon);
  T factor[At::kCount], shift[At::kCount];
  scale.load(at, factor);
  bias.load(at, shift);
  EACH(i, At::kCount) y[i] = T((C(x[i]) - mean) * rstd * C(factor[i]) + C(shift[i]));
  mean_out = T(mean);
  rstd_out = T(rstd);
}

template <class At, class T, class W>
DEVICE void layer_norm_grad_x(At& at, const T (&dy)[At::kCount], const T (&x)[At::kCount],
                              const W& scale, T mean, T rstd, T (&dx)[At::kCount],
                              computed<T> width) {
  typedef computed<T> C;
  T factor[At::kCount];
  scale.load(at, factor);
  const auto part = [&](int i) { return C(dy[i]) * C(factor[i]); };
  const auto normal = [&](int i) { return (C(x[i]) - C(mean)) * C(rstd); };
  const C mean_part = at.sum(part) / width;
  const C mean_dot = at.sum([&](int i) { return part(i) * normal(i); }) / width;
  EACH(i, At::kCount) dx[i] = T(C(rstd) * (part(i) - mean_part - normal(i) * mean_dot));
}

template <class At, class T, class S>
DEVICE void layer_norm_grad_params(At& at, const T (&dy)[At::kCount], const T (&x)[At::kCount],
                                   T mean, T rstd, S (&scale)[At::kCount], S (&bias)[At::kCount]) {
  typedef computed<T> C;
  EACH(i, At::kCount) {
    at.add(scale[i], C(dy[i]) * ((C(x[i]) - C(mean)) * C(rstd)));
    at.add(bias[i], C(dy[i]));
  }
}

template <class At, class T, class W>
DEVICE void rms_norm(At& at, const T (&x)[At::kCount], const W& scale, T (&y)[At::kCount],
                     T& rstd_out, computed<T> width, computed<T> epsilon) {
  typedef computed<T> C;
  const C squares = at.sum([&](int i) { return C(x[i]) * C(x[i]); });
  const C rstd = C(1) / word::sqrt(squares / width + epsilon);
  T factor[At::kCount];
  scale.load(at, factor);
  EACH(i, At::kCount) y[i] = T(C(x[i]) * rstd * C(factor[i]));
  rstd_out = T(rstd);
}

template <class At, class T, class W>
DEVICE void rms_norm_grad_x(At& at, const T (&dy)[At::kCount], const T (&x)[At::kCount],
                            const W& scale, T rstd, T (&dx)[At::kCount], computed<T> width) {
  typedef computed<T> C;
  T factor[At::kCount];
  scale.load(at, factor);
  const auto part = [&](int i) { return C(dy[i]) * C(factor[i]); };
  const auto normal = [&](int i) { return C(x[i]) * C(rstd); };
  const C mean_dot = at.sum([&](int i) { return part(i) * normal(i); }) / width;
  EACH(i, At::kCount) dx[i] = T(C(rstd) * (part(i) - normal(i) * mean_dot));
}

template <class At, class T, class S>
DEVICE void rms_norm_grad_scale(At& at, const T (&dy)[At::kCount], const T (&x)[At::kCount], T rstd,
                                S (&scale)[At::kCount]) {
  typedef computed<T> C;
  EACH(i, At::kCount) at.add(scale[i], C(dy[i]) * (C(x[i]) * C(rstd)));
}

template <class At, class T>
DEVICE void softmax(At& at, const T (&x)[At::kCount], T (&y)[At::kCount]) {
  typedef computed<T> C;
  const C top = at.greatest([&](int i) { return C(x[i]); });
  C e[At::kCount];
  EACH(i, At::kCount) e[i] = word::exp(C(x[i]) - top);
  const C inverse = C(1) / at.sum([&](int i) { return e[i]; });
  EACH(i, At::kCount) y[i] = T(e[i] * inverse);
}

// The largest is taken off first: beside large numbers the logarithm of the sum would be lost.
template <class At, class T>
DEVICE void log_softmax(At& at, const T (&x)[At::kCount], T (&y)[At::kCount]) {
  typedef computed<T> C;
  const C top = at.greatest([&](int i) { return C(x[i]); });
  const C rest = word::log(at.sum([&](int i) { return word::exp(C(x[i]) - top); }));
  EACH(i, At::kCount) y[i] = T(C(x[i]) - top - rest);
}

template <class At, class T>
DEVICE void softmax_grad(At& at, const T (&y)[At::kCount], const T (&dy)[At::kCount],
                         T (&dx)[At::kCount]) {
  typedef computed<T> C;
  const C dot = at.sum([&](int i) { return C(y[i]) * C(dy[i]); });
  EACH(i, At::kCount) dx[i] = T(C(y[i]) * (C(dy[i]) - dot));
}

template <class At, class T>
DEVICE void log_softmax_grad(At& at, const T (&y)[At::kCount], const T (&dy)[At::kCount],
                             T (&dx)[At::kCount]) {
  typedef computed<T> C;
  const C all = at.sum([&](int i) { return C(dy[i]); });
  EACH(i, At::kCount) dx[i] = T(C(dy[i]) - word::exp(C(y[i])) * all);
}

// ---- One number a row ----------------------------------------------------------------------------
template <class At, class T>
DEVICE void sum_of_row(At& at, const T (&x)[At::kCount], T& sum) {
  sum = T(at.sum([&](int i) { return computed<T>(x[i]); }));
}
template <class At, class T>
DEVICE void greatest_of_row(At& at, const T (&x)[At::kCount], T& greatest) {
  greatest = T(at.greatest([&](int i) { return computed<T>(x[i]); }));
}
template <class At, class T>
DEVICE void least_of_row(At& at, const T (&x)[At::kCount], T& least) {
  least = T(-at.greatest([&](int i) { return -computed<T>(x[i]); }));
}

// ---- Sums over rows, of each column or of one element a row ---------------------------------------
template <class At, class T, class S, int kCount>
DEVICE void sum_rows(At& at, const T (&x)[kCount], S (&sums)[kCount]) {
  EACH(i, kCount) at.add(sums[i], S(computed<T>(x[i])));
}
template <class At, class T, class S>
DEVICE void sum_rows(At& at, const T& x, S& sum) {
  at.add(sum, S(computed<T>(x)));
}

}  // namespace rows
