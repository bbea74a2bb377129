// What windows over an image add to it: element [n, c, s...] is the sum over the windows that it
// is in, in their order. Windows are [n, o..., c, k...].
template <int kDims, class Index>
struct Windows {
  Index channels, size[kDims], count[kDims], kernel[kDims], stride[kDims], dilation[kDims];
  Index all_count, all_kernel;
};
template <class T, int kDims, class Index>
DEVICE void fold(const T* windows, T* image, Index elements, const Windows<kDims, Index>& by) {
  const Index e = this_thread<Index>();
  if (e >= elements) return;
  Index at[kDims], rest = e;
  for (int d = kDims - 1; d >= 0; --d) {
    at[d] = rest % by.size[d];
    rest /= by.size[d];
  }
  const Index c = rest % by.channels, n = rest / by.channels;
  computed<T> sum = 0;
  // Windows ascend where their elements that meet this one descend.
  for (Index k = by.all_kernel - 1; k >= 0; --k) {
    Index window = 0, within = k, step = 1;
    bool meets = true;
    for (int d = kDims - 1; d >= 0; --d) {
      const Index first = at[d] - within % by.kernel[d] * by.dilation[d];
      const Index number = first / by.stride[d];
      meets = meets && first >= 0 && first % by.stride[d] == 0 && number < by.count[d];
      window += number * step;
      step *= by.count[d];
      within /= by.kernel[d];
    }
    if (!meets) continue;
    const Index from = ((n * by.all_count + window) * by.channels + c) * by.all_kernel + k;
    sum += static_cast<computed<T>>(windows[from]);
  }
  image[e] = T(sum);
}
