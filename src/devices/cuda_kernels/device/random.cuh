// Random numbers: words of Philox 4x32-10 at the place of an element in the whole tensor.

struct Words {
  uint32_t x[4];
};
DEVICE Words philox(uint64_t counter, uint64_t step, uint64_t key) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(step), c3 = static_cast<uint32_t>(step >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(c0) * 0xD2511F53u;
    const uint64_t p1 = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Says where an element of a use is in the whole: that is all of it, or what cuts left, the last
// cut first. Of runs each is one of `shards` in what a cut cuts, its own; in a mirrored cut it
// counts from the end in every second run of the whole. So many `zeros` of a run were not there
// before.
struct Whole {
  DEVICE uint64_t place(uint64_t element) const { return element; }
};
template <int kCuts>
struct Cuts {
  uint64_t run[kCuts], shards[kCuts], zeros[kCuts];
  bool mirrored[kCuts];
};
template <int kCuts>
struct Parts {
  Cuts<kCuts> cuts;
  uint64_t own[kCuts];
  DEVICE uint64_t place(uint64_t element) const {
    uint64_t place = element;
    for (int c = 0; c < kCuts; ++c) {
      const uint64_t inside = place % cuts.run[c], row = place / cuts.run[c];
      const uint64_t number =
          cuts.mirrored[c] && row % 2 != 0 ? cuts.shards[c] - 1 - own[c] : own[c];
      place = (row * cuts.shards[c] + number) * (cuts.run[c] - cuts.zeros[c]) + inside;
    }
    return place;
  }
};

// Draws four elements from `first` on: f(k, words, which of them is its own). kFours: they are
// contiguous in the whole too, at a place that is a multiple of four.
template <bool kFours, class Lies, class F>
DEVICE void draw_four(uint64_t first, const Lies& lies, uint64_t step, uint64_t key, F f) {
  Words words = {};
  for (int k = 0; k < 4; ++k) {
    const uint64_t place = kFours && k > 0 ? static_cast<uint64_t>(k) : lies.place(first + k);
    if (!kFours || k == 0) words = philox(place / 4, step, key);
    f(k, words, static_cast<int>(place % 4));
  }
}
DEVICE uint32_t word_of(const Words& words, int which) {
  const uint32_t low = which & 1 ? words.x[1] : words.x[0];
  const uint32_t high = which & 1 ? words.x[3] : words.x[2];
  return which & 2 ? high : low;
}

// Returns a number in [0, 1), of 24 bits whatever the element type.
DEVICE double uniform(uint32_t word) { return (word >> 8) * (1.0 / 16777216.0); }

// Returns the sine of so many turns, in [0, 2): by quarters, and the series of sine or cosine.
DEVICE double sine_of_turns(double turns) {
  const int quarter = static_cast<int>(4.0 * turns + 0.5);
  const double x = (turns - 0.25 * quarter) * 6.283185307179586476925, square = x * x;
  double sine = 1.0, cosine = 1.0;
  for (int n = 8; n > 0; --n) {
    sine = 1.0 - sine * square * (1.0 / (2 * n * (2 * n + 1)));
    cosine = 1.0 - cosine * square * (1.0 / (2 * n * (2 * n - 1)));
  }
  const double y = quarter & 1 ? cosine : sine * x;
  return quarter & 2 ? -y : y;
}

// Draws by Box and Muller: words 0 and 1 of a counter make its elements 0 and 1, words 2 and 3 the
// others.
DEVICE double normal(const Words& words, int which) {
  const uint32_t near = word_of(words, which & 2), far = word_of(words, which | 1);
  const double radius = sqrt(-2.0 * log(((near >> 8) + 1) * (1.0 / 16777216.0)));
  return radius * sine_of_turns(uniform(far) + (which & 1 ? 0.0 : 0.25));
}

// Computes y = shift + scale * what is drawn; four elements a thread.
template <bool kNormal, bool kFours, class T, class Lies>
DEVICE void draw(T* y, uint64_t count, const Lies& lies, uint64_t step, uint64_t key,
                   double shift, double scale) {
  const uint64_t first = 4 * this_thread<uint64_t>();
  if (first >= count) return;
  draw_four<kFours>(first, lies, step, key, [&](int k, const Words& words, int which) {
    const double z = kNormal ? normal(words, which) : uniform(word_of(words, which));
    if (first + k < count) y[first + k] = T(static_cast<computed<T>>(shift + scale * z));
  });
}

// y = x * scale where the upper 24 bits of the word are at least the threshold, else 0. kPack
// elements are read at once, 1 or 4. y may overwrite x.
template <bool kFours, class T, int kPack, class Lies>
DEVICE void dropout(const Pack<T, kPack>* x, Pack<T, kPack>* y, uint64_t count, const Lies& lies,
                    uint64_t step, uint64_t key, uint32_t threshold, computed<T> scale) {
  const uint64_t first = 4 * this_thread<uint64_t>();
  if (first >= count) return;
  Pack<T, kPack> own[4 / kPack];
  for (int k = 0; k < 4; k += kPack)
    if (first + k < count) own[k / kPack] = x[(first + k) / kPack];
  draw_four<kFours>(first, lies, step, key, [&](int k, const Words& words, int which) {
    T& element = own[k / kPack].x[k % kPack];
    const bool kept = word_of(words, which) >> 8 >= threshold;
    const computed<T> scaled = static_cast<computed<T>>(element) * scale;
    element = T(kept ? scaled : computed<T>(0));
  });
  for (int k = 0; k < 4; k += kPack)
    if (first + k < count) y[(first + k) / kPack] = own[k / kPack];
}
