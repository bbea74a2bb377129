// Random and Dropout: what src/ops/random.cc says of keys, steps and places.
#include <algorithm>
#include <cmath>

#include "dtypes.h"
#include "families.h"
#include "philox.h"
#include "piper/backend.h"

namespace piper::cpu {
namespace {

constexpr int64_t kBlock = 256;         // elements drawn at once
constexpr int64_t kUnit = 32 * kBlock;  // elements a thread takes at once
constexpr double kOneOver24Bits = 1.0 / (1 << 24);

// Where a use finds its key, and which elements of the whole tensor it has.
struct Draw {
  // Of what a cut leaves, runs of so many elements are each one of `shards` in what it cuts.
  struct Cut {
    int64_t run = 1, shards = 1;
    size_t operand = 0;  // that has the own number, `unit` times; 0: it is none
    int64_t unit = 1;
    bool mirrored = false;  // in every second run of the whole the own one counts from the end
    int64_t zeros = 0;  // so many elements of a run were not there before
  };
  size_t key = 0;  // operand
  int64_t elements = 0;
  std::vector<Cut> cuts;  // the last one first

  // f(first element of the use, its place in the whole) for pieces of at most kBlock elements of
  // one run, which begin and end at elements [begin, end) of the use.
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

  // The words of `count` elements from `place` on, in buffer[place % 4] and behind it.
  const uint32_t* words(Pointers p, uint64_t place, int64_t count, uint32_t* buffer) const {
    const auto skip = static_cast<int64_t>(place % 4);
    const auto key_word = static_cast<uint64_t>(*input<int64_t>(p, key));
    const auto step = static_cast<uint64_t>(*input<int64_t>(p, key + 1));
    philox_fn()(place / 4, step, key_word, buffer, (skip + count + 3) / 4);
    return buffer + skip;
  }
};

Result<Draw> draw_of(const Use& use, size_t key) {
  PIPER_ASSIGN(const std::vector<int64_t> cuts, use.integers("cuts"));
  PIPER_TRY(use.operands(key + 2, key + 3 + cuts.size() / 2));
  const TensorType scalar{DType::kI64, {}};
  PIPER_WANT(use.inputs[key] == scalar && use.inputs[key + 1] == scalar,
             "key {} and step {} are not i64[]", to_string(use.inputs[key]),
             to_string(use.inputs[key + 1]));
  Draw draw{.key = key, .elements = num_elements(use.out())};
  PIPER_ASSIGN(const std::vector<int64_t> zeros, use.integers("zeros"));
  int64_t elements = draw.elements;  // of what cuts have left so far
  const auto without_zeros = [&](size_t after) -> Status {
    for (size_t z = zeros.size() / 3; z-- > 0;) {
      if (zeros[3 * z] != static_cast<int64_t>(after)) continue;
      const int64_t rows = zeros[3 * z + 1], behind = zeros[3 * z + 2];
      PIPER_WANT(rows > 0 && behind >= 0 && elements % rows == 0 && behind < elements / rows,
                 "{} zeros behind {} rows of {} elements", behind, rows, elements);
      draw.cuts.push_back({.run = elements / rows, .zeros = behind});
      elements -= rows * behind;
    }
    return ok_status();
  };
  PIPER_TRY(without_zeros(cuts.size() / 2));
  for (size_t c = cuts.size() / 2; c-- > 0;) {
    const int64_t rows = cuts[2 * c] < -INT64_MAX ? 0 : std::abs(cuts[2 * c]);
    PIPER_WANT(rows > 0 && cuts[2 * c + 1] > 0 && elements % rows == 0,
               "{} rows are no part of {} elements", cuts[2 * c], elements);
    draw.cuts.push_back(
        {std::max<int64_t>(elements / rows, 1), cuts[2 * c + 1], key + 3 + c, 1, cuts[2 * c] < 0});
    PIPER_WANT(draw.cuts.back().operand < use.inputs.size() &&
                   use.inputs[draw.cuts.back().operand] == scalar,
               "{} cuts without a number each", cuts.size() / 2);
    PIPER_WANT(elements <= INT64_MAX / cuts[2 * c + 1], "{} parts are too many", cuts[2 * c + 1]);
    elements *= cuts[2 * c + 1];
    PIPER_TRY(without_zeros(c));
  }
  PIPER_ASSIGN(const int64_t rows, use.integer_or("rows", 1));
  PIPER_ASSIGN(const int64_t shards, use.integer_or("shards", 1));
  PIPER_WANT(rows > 0 && shards > 0 && elements % rows == 0,
             "{} rows of {} shards are no part of {}", rows, shards, to_string(use.out()));
  Draw::Cut samples{std::max<int64_t>(elements / rows, 1), shards};
  if (use.inputs.size() > key + 2 && use.present[key + 2]) {
    const TensorType& numbers = use.inputs[key + 2];
    PIPER_WANT(numbers.dtype == DType::kI64 && numbers.shape.size() == 1 && numbers.shape[0] > 0,
               "samples are {}, not i64[n]", to_string(numbers));
    samples.operand = key + 2;
    samples.unit = numbers.shape[0];
  }
  draw.cuts.push_back(samples);
  return draw;
}

// f(pointers, begin, end) does elements [begin, end).
template <class F>
KernelPtr elements_kernel(InPlace in_place, int64_t elements, double nanoseconds, F f) {
  return make_units_kernel(in_place, (elements + kUnit - 1) / kUnit,
                           nanoseconds * static_cast<double>(kUnit),
                           [=](Pointers p, std::byte*, int64_t begin, int64_t end) {
                             f(p, begin * kUnit, std::min(end * kUnit, elements));
                           });
}

// In [0, 1) and (0, 1], of 24 bits whatever the element type: another precision draws the same.
double uniform(uint32_t word) { return (word >> 8) * kOneOver24Bits; }
double above_zero(uint32_t word) { return ((word >> 8) + 1) * kOneOver24Bits; }

// Box and Muller: words 0 and 1 of a counter make its elements 0 and 1, words 2 and 3 the others.
double normal(const uint32_t* pair, bool second) {
  const double radius = std::sqrt(-2 * std::log(above_zero(pair[0])));
  const double angle = 2 * M_PI * uniform(pair[1]);
  return radius * (second ? std::sin(angle) : std::cos(angle));
}

template <class T>
KernelPtr random_kernel(const Draw& draw, size_t operands, bool is_normal, double shift,
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
KernelPtr dropout_kernel(const Draw& draw, size_t operands, uint32_t threshold, double scale) {
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
  if (dtype == DType::kF16) return f(F16{});
  return fail("draws no numbers of {}", info(dtype).name);
}

}  // namespace

Result<KernelPtr> make_random(const Use& use) {
  PIPER_ASSIGN(Draw draw, draw_of(use, 0));
  PIPER_ASSIGN(const std::string kind, use.text_or("distribution", "uniform"));
  PIPER_WANT(kind == "uniform" || kind == "normal", "has no distribution '{}'", kind);
  PIPER_ASSIGN(const double shift, use.real_or("shift", 0));
  PIPER_ASSIGN(const double scale, use.real_or("scale", 1));
  return for_any_float(use.outputs[0].dtype, [&](auto zero) -> Result<KernelPtr> {
    return random_kernel<decltype(zero)>(draw, use.inputs.size(), kind == "normal", shift, scale);
  });
}

Result<KernelPtr> make_dropout(const Use& use) {
  PIPER_ASSIGN(Draw draw, draw_of(use, 1));
  PIPER_WANT(use.inputs[0] == use.outputs[0], "of {} to {}", to_string(use.inputs[0]),
             to_string(use.outputs[0]));
  PIPER_ASSIGN(const double ratio, use.real_or("ratio", 0.5));
  PIPER_WANT(ratio >= 0 && ratio <= 1, "the ratio {} is not between 0 and 1", ratio);
  // An element is kept where its uniform number is at least the ratio.
  const auto threshold = static_cast<uint32_t>(std::ceil(ratio * (1 << 24)));
  const double scale = ratio < 1 ? 1 / (1 - ratio) : 0;
  return for_any_float(use.outputs[0].dtype, [&](auto zero) -> Result<KernelPtr> {
    return dropout_kernel<decltype(zero)>(draw, use.inputs.size(), threshold, scale);
  });
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
