// Random and Dropout: what src/ir/ops/families/random.cc says of keys, steps and places.
#include <algorithm>
#include <cmath>

#include "dtypes.h"
#include "families.h"
#include "philox.h"
#include "piper/devices/cpu.h"

namespace piper::cpu {
namespace {

constexpr int64_t kBlock = 256;         // elements drawn at once
constexpr int64_t kUnit = 32 * kBlock;  // elements a thread takes at once
constexpr double kOneOver24Bits = 1.0 / (1 << 24);

// Finds places and words while a step runs, when own numbers are known.
struct Drawn : Draw {
  // Calls f(first element of the use, its place in the whole) for pieces of at most kBlock elements
  // of one run, which begin and end at elements [begin, end) of the use.
  template <class F>
  void each_piece(Pointers p, int64_t begin, int64_t end, F f) const {
    for (int64_t e = begin; e < end;) {
      auto place = static_cast<uint64_t>(e);
      int64_t count = end - e;
      for (const Cut& cut : cuts) {
        const auto run = static_cast<uint64_t>(cut.run);
        const auto shards = static_cast<uint64_t>(cut.shards);
        const uint64_t inside = place % run, row = place / run, number = own_number(p, cut);
        const uint64_t own = cut.mirrored && row % 2 != 0 ? shards - 1 - number : number;
        place = (row * shards + own) * (run - static_cast<uint64_t>(cut.zeros)) + inside;
        count = std::min(count, static_cast<int64_t>(run - inside));
      }
      // Up to the end of a block of words: the next piece begins at the first word of a counter.
      count = std::min(count, kBlock - static_cast<int64_t>(place % 4));
      f(e, place, count);
      e += count;
    }
  }

  static uint64_t own_number(Pointers p, const Cut& cut) {
    if (cut.operand == 0) return 0;
    return static_cast<uint64_t>(*input<int64_t>(p, cut.operand)) / static_cast<uint64_t>(cut.unit);
  }

  // Returns the words of `count` elements from `place` on, in buffer[place % 4] and after it.
  const uint32_t* words(Pointers p, uint64_t place, int64_t count, uint32_t* buffer) const {
    const auto skip = static_cast<int64_t>(place % 4);
    const auto key_word = static_cast<uint64_t>(*input<int64_t>(p, key));
    const auto step = static_cast<uint64_t>(*input<int64_t>(p, key + 1));
    philox_fn()(place / 4, step, key_word, buffer, (skip + count + 3) / 4);
    return buffer + skip;
  }
};

// f(pointers, begin, end) does elements [begin, end).
template <class F>
KernelPtr elements_kernel(InPlace in_place, int64_t elements, double nanoseconds, F f) {
  return make_units_kernel(in_place, (elements + kUnit - 1) / kUnit,
                           nanoseconds * static_cast<double>(kUnit),
                           [=](Pointers p, std::byte*, int64_t begin, int64_t end) {
                             f(p, begin * kUnit, std::min(end * kUnit, elements));
                           });
}

// These draw from [0, 1) and (0, 1], of 24 bits whatever the element type: another precision draws
// the same.
double uniform(uint32_t word) { return (word >> 8) * kOneOver24Bits; }
double above_zero(uint32_t word) { return ((word >> 8) + 1) * kOneOver24Bits; }

// Draws by Box and Muller: words 0 and 1 of a counter make its elements 0 and 1, words 2 and 3 the
// others.
double normal(const uint32_t* pair, bool second) {
  const double radius = std::sqrt(-2 * std::log(above_zero(pair[0])));
  const double angle = 2 * M_PI * uniform(pair[1]);
  return radius * (second ? std::sin(angle) : std::cos(angle));
}

template <class T>
KernelPtr random_kernel(const Drawn& draw, size_t operands, bool is_normal, double shift,
                        double scale) {
  const auto run = [=](Pointers p, int64_t begin, int64_t end) {
    alignas(64) uint32_t buffer[kBlock + 4];
    T* to = output<T>(p, operands);
    draw.each_piece(p, begin, end, [&](int64_t e, uint64_t place, int64_t count) {
      const uint32_t* words = draw.words(p, place, count, buffer);
      for (int64_t i = 0; i < count; ++i) {
        const bool second = (place + static_cast<uint64_t>(i)) % 2 == 1;
        const double z = is_normal ? normal(words + i - second, second) : uniform(words[i]);
        to[e + i] = convert<T>(shift + scale * z);
      }
    });
  };
  return elements_kernel(InPlace::kNo, draw.elements, is_normal ? 40 : 3, run);
}

template <class T>
void mask_elements(const T* x, const uint32_t* words, uint32_t threshold, double scale, T* y,
                   int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    mask_fn()(x, words, threshold, static_cast<float>(scale), y, n);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const bool keep = words[i] >> 8 >= threshold;
      y[i] = keep ? convert<T>(convert<double>(x[i]) * scale) : convert<T>(0.0);
    }
  }
}

template <class T>
KernelPtr dropout_kernel(const Drawn& draw, size_t operands, uint32_t threshold, double scale) {
  const auto run = [=](Pointers p, int64_t begin, int64_t end) {
    alignas(64) uint32_t buffer[kBlock + 4];
    const T* x = input<T>(p, 0);
    T* y = output<T>(p, operands);
    draw.each_piece(p, begin, end, [&](int64_t e, uint64_t place, int64_t count) {
      const uint32_t* words = draw.words(p, place, count, buffer);
      mask_elements(x + e, words, threshold, scale, y + e, count);
    });
  };
  return elements_kernel(InPlace::kYes, draw.elements, 2, run);
}

template <class F>
Result<KernelPtr> for_any_float(DType dtype, F f) {
  if (dtype == DType::kF32) return f(float{});
  if (dtype == DType::kF64) return f(double{});
  if (dtype == DType::kBF16) return f(Bf16{});
  return f(F16{});
}

Result<KernelPtr> make_random(const Use& use) {
  const Drawn draw{draw_of(use, 0)};
  const std::string kind = use.attrs.text("distribution", "uniform");
  const double shift = use.attrs.real("shift", 0);
  const double scale = use.attrs.real("scale", 1);
  return for_any_float(use.outputs[0].dtype, [&]<class T>(T) {
    return random_kernel<T>(draw, use.inputs.size(), kind == "normal", shift, scale);
  });
}

Result<KernelPtr> make_dropout(const Use& use) {
  const Drawn draw{draw_of(use, 1)};
  const double ratio = use.attrs.real("ratio", 0.5);
  // An element is kept where its uniform number is at least the ratio.
  const auto threshold = static_cast<uint32_t>(std::ceil(ratio * (1 << 24)));
  const double scale = ratio < 1 ? 1 / (1 - ratio) : 0;
  return for_any_float(use.outputs[0].dtype, [&]<class T>(T) {
    return dropout_kernel<T>(draw, use.inputs.size(), threshold, scale);
  });
}

}  // namespace

std::vector<KernelRow> random_kernels() {
  return {{"Dropout", make_dropout, kTakesHalves}, {"Random", make_random, kTakesHalves}};
}

}  // namespace piper::cpu

namespace piper {

PhiloxWords philox(PhiloxWords c, uint64_t key) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < cpu::kPhiloxRounds; ++round) {
    const uint64_t p0 = uint64_t{c[0]} * cpu::kPhiloxMultipliers[0];
    const uint64_t p1 = uint64_t{c[2]} * cpu::kPhiloxMultipliers[1];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += cpu::kPhiloxWeyl[0];
    k1 += cpu::kPhiloxWeyl[1];
  }
  return c;
}

}  // namespace piper
