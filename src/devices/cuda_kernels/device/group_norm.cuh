// Group norm of [samples, kGroups · kChannels, kSize], and its gradients: a block a group of a
// sample, whose kChannels · kSize elements are side by side, or a block a channel.
namespace groups {

template <int64_t kGroups, int64_t kChannels, int64_t kSize, int kThreads>
struct Group {
  static constexpr int64_t kCount = kChannels * kSize;
  DEVICE static int64_t first() { return static_cast<int64_t>(blockIdx.x) * kCount; }
  // These return the channel and the place of the element i of the group.
  DEVICE static int64_t channel(int64_t i) { return blockIdx.x % kGroups * kChannels + i / kSize; }

  template <class F>
  DEVICE static void each(F f) {
    for (int64_t i = threadIdx.x; i < kCount; i += kThreads) f(i);
  }
  // Returns the mean over the group.
  template <class C, class F>
  DEVICE static C mean(F term) {
    SHARED(C, parts, kThreads / kWarp);
    C all = 0;
    each([&](int64_t i) { all += term(i); });
    return over_block<Sum, kThreads>(all, parts) / static_cast<C>(kCount);
  }
};

template <class Group, class T>
DEVICE void group_norm(const T* x, const T* scale, const T* bias, T* y, T* means, T* rstds,
                       computed<T> epsilon) {
  typedef computed<T> C;
  x += Group::first();
  const C mean = Group::template mean<C>([&](int64_t i) { return C(x[i]); });
  const C spread = Group::template mean<C>([&](int64_t i) {
    const C distance = C(x[i]) - mean;
    return distance * distance;
  });
  const C rstd = C(1) / word::sqrt(spread + epsilon);
  if (y)
    Group::each([&](int64_t i) {
      const int64_t channel = Group::channel(i);
      y[Group::first() + i] = T((C(x[i]) - mean) * rstd * C(scale[channel]) + C(bias[channel]));
    });
  if (threadIdx.x != 0) return;
  if (means) means[blockIdx.x] = T(mean);
  if (rstds) rstds[blockIdx.x] = T(rstd);
}

template <class Group, class T>
DEVICE void group_norm_grad_x(const T* dy, const T* x, const T* scale, const T* means,
                              const T* rstds, T* dx) {
  typedef computed<T> C;
  dy += Group::first(), x += Group::first(), dx += Group::first();
  const C mean = C(means[blockIdx.x]), rstd = C(rstds[blockIdx.x]);
  const auto part = [&](int64_t i) { return C(dy[i]) * C(scale[Group::channel(i)]); };
  const auto normal = [&](int64_t i) { return (C(x[i]) - mean) * rstd; };
  const C mean_part = Group::template mean<C>(part);
  const C mean_dot = Group::template mean<C>([&](int64_t i) { return part(i) * normal(i); });
  Group::each([&](int64_t i) { dx[i] = T(rstd * (part(i) - mean_part - normal(i) * mean_dot)); });
}

// Uses a block per channel, over all samples.
template <int64_t kSamples, int64_t kGroups, int64_t kChannels, int64_t kSize, int kThreads,
          class T>
DEVICE void group_norm_grad_params(const T* dy, const T* x, const T* means, const T* rstds,
                                   T* dscale, T* dbias) {
  typedef computed<T> C;
  SHARED(C, parts, kThreads / kWarp);
  const int64_t channel = blockIdx.x;
  C scale = 0, bias = 0;
  for (int64_t i = threadIdx.x; i < kSamples * kSize; i += kThreads) {
    const int64_t sample = i / kSize, group = sample * kGroups + channel / kChannels;
    const int64_t at = (sample * kGroups * kChannels + channel) * kSize + i % kSize;
    scale += C(dy[at]) * ((C(x[at]) - C(means[group])) * C(rstds[group]));
    bias += C(dy[at]);
  }
  scale = over_block<Sum, kThreads>(scale, parts);
  bias = over_block<Sum, kThreads>(bias, parts);
  if (threadIdx.x != 0) return;
  if (dscale) dscale[channel] = T(scale);
  if (dbias) dbias[channel] = T(bias);
}

}  // namespace groups
