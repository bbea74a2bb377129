// How two tensors differ, thread by thread: for whoever compares two ways of computing one. As
// moves of fabrics these have their size at run time, in place of an address: a, b, their count of
// elements, and what each thread found.

constexpr int kDifferencePointers = 4;

struct Difference {
  double most, scale;  // the largest |a - b|, infinite where one is no number; and the largest |b|
  int64_t count;       // elements of which any bit differs
};

template <class T, class Bits>
DEVICE void find_differences(const Pointers<kDifferencePointers>& p) {
  const T *a = p.at<const T>(0), *b = p.at<const T>(1);
  const Bits *bits_a = p.at<const Bits>(0), *bits_b = p.at<const Bits>(1);
  const int64_t count = reinterpret_cast<int64_t>(p.address[2]);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  Difference found{0, 0, 0};
  for (int64_t i = this_thread<int64_t>(); i < count; i += step) {
    const double x = static_cast<computed<T>>(a[i]), y = static_cast<computed<T>>(b[i]);
    const double difference = x < y ? y - x : x - y, size = y < 0 ? -y : y;
    if (bits_a[i] != bits_b[i]) ++found.count;
    if (!(difference <= found.most)) found.most = difference == difference ? difference : kInfinity;
    if (size > found.scale) found.scale = size;
  }
  p.at<Difference>(3)[this_thread<int64_t>()] = found;
}

KERNEL(differences_f64, kDifferencePointers, 256) { find_differences<double, uint64_t>(p); }
KERNEL(differences_f32, kDifferencePointers, 256) { find_differences<float, uint32_t>(p); }
KERNEL(differences_bf16, kDifferencePointers, 256) { find_differences<bf16, uint16_t>(p); }
KERNEL(differences_f16, kDifferencePointers, 256) { find_differences<f16, uint16_t>(p); }
