// Numbers in 8 bits, in blocks with a scale each: beside the nearest of all codes, found by trying.
#include "piper/base/scaled.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "piper/base/float16.h"
#include "seed.h"

namespace piper {
namespace {

// The number that a code of float8 (e4m3) stands for, from its definition; NaN of all ones.
double float8_as_defined(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return NAN;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -size : size;
}
double number_as_defined(Scaled type, int code) {
  return type == Scaled::kInt8 ? static_cast<int8_t>(code) : float8_as_defined(code);
}

uint32_t seed_of() {
  const auto seed = static_cast<uint32_t>(given_seed().value_or(20261128));
  std::printf("PIPER_SEED=%u\n", seed);
  return seed;
}

TEST(Scaled, CodesStandForTheirNumbers) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(number_of(Scaled::kInt8, static_cast<uint8_t>(code), 1), static_cast<int8_t>(code));
    if ((code & 0x7f) == 0x7f) continue;
    EXPECT_EQ(number_of(Scaled::kFloat8, static_cast<uint8_t>(code), 1), float8_as_defined(code));
  }
}

// No other code is nearer, and of two that are equally near it is the even one.
TEST(Scaled, CodesAreTheNearest) {
  std::mt19937 random(seed_of());
  std::normal_distribution<float> draw(0, 60);
  for (const Scaled type : {Scaled::kInt8, Scaled::kFloat8})
    for (int i = 0; i < 20000; ++i) {
      const float most = type == Scaled::kInt8 ? 127 : 448;
      float x = std::clamp(draw(random), -most, most);
      if (i % 4 == 1) x = std::round(x) + 0.5F;
      if (i % 4 == 2) x = std::ldexp(x, -static_cast<int>(random() % 16));
      x = std::clamp(x, -most, most);
      const uint8_t code = code_of(type, x, 1);
      const double own = std::abs(number_as_defined(type, code) - x);
      for (int other = 0; other < 256; ++other) {
        if (type == Scaled::kInt8 && other == 128) continue;
        const double its = std::abs(number_as_defined(type, other) - x);
        ASSERT_FALSE(its < own) << x << ": " << other << " is nearer than " << int{code};
        const bool is_same = number_as_defined(type, other) == number_as_defined(type, code);
        ASSERT_FALSE(its == own && !is_same && code % 2 != 0) << x << ": " << other;
      }
    }
}

std::vector<float> rounded(const InBlocks& in, std::vector<float> numbers) {
  const auto count = std::ssize(numbers);
  std::vector<std::byte> packed(static_cast<size_t>(in.bytes(count)));
  put_in_blocks(in, DType::kF32, reinterpret_cast<const std::byte*>(numbers.data()), count,
                packed.data());
  std::vector<float> taken(numbers.size()), at_once(numbers.size());
  take_from_blocks(in, DType::kF32, packed.data(), count,
                   reinterpret_cast<std::byte*>(taken.data()));
  round_in_blocks(in, DType::kF32, reinterpret_cast<const std::byte*>(numbers.data()), count,
                  reinterpret_cast<std::byte*>(at_once.data()));
  EXPECT_EQ(std::memcmp(taken.data(), at_once.data(), taken.size() * sizeof(float)), 0);
  return taken;
}

// What numpy makes of int8 and PyTorch of float8_e4m3fn.
TEST(Scaled, CodesAreThoseOfNumpyAndTorch) {
  constexpr int kInt8[] = {129, 195, 228, 243, 251, 254, 255, 0,   0,  47,  42,
                           31,  245, 254, 0,   1,   1,   0,   0,   35, 228, 251,
                           3,   4,   255, 0,   0,   243, 44,  241, 6,  250},
                kFloat8[] = {254, 245, 236, 227, 217, 207, 194, 175, 36,  114, 113,
                             110, 225, 208, 60,  71,  70,  182, 0,   111, 236, 216,
                             82,  86,  193, 59,  188, 227, 114, 230, 90,  219};
  float numbers[32];
  for (int i = 0; i < 32; ++i)
    numbers[i] = std::ldexp(static_cast<float>((i * i * 7 + i * 13) % 1001 - 500), -(i % 9));
  std::byte packed[36];
  for (const Scaled type : {Scaled::kInt8, Scaled::kFloat8}) {
    put_in_blocks({type, 32}, DType::kF32, reinterpret_cast<const std::byte*>(numbers), 32, packed);
    for (int i = 0; i < 32; ++i)
      EXPECT_EQ(static_cast<int>(packed[i]), (type == Scaled::kInt8 ? kInt8 : kFloat8)[i]) << i;
  }
}

// The bounds that the header states hold, and are not far from what is measured.
TEST(Scaled, NumbersDifferByAtMostTheBound) {
  std::mt19937 random(seed_of());
  for (const Scaled type : {Scaled::kInt8, Scaled::kFloat8})
    for (const int64_t block : {32, 256, 1024}) {
      double worst = 0;
      for (int turn = 0; turn < 200; ++turn) {
        std::normal_distribution<float> draw(
            0, std::ldexp(1.0F, static_cast<int>(random() % 60) - 30));
        std::vector<float> numbers(1 + random() % 3000);
        for (float& x : numbers) x = draw(random);
        const std::vector<float> got = rounded({type, block}, numbers);
        for (size_t first = 0; first < numbers.size(); first += static_cast<size_t>(block)) {
          const size_t end = std::min(numbers.size(), first + static_cast<size_t>(block));
          double most = 0;
          for (size_t i = first; i < end; ++i) most = std::max(most, std::abs(double{numbers[i]}));
          for (size_t i = first; i < end; ++i) {
            const double off = std::abs(double{got[i]} - numbers[i]);
            const double bound = type == Scaled::kInt8 ? most / 254
                                                       : std::max(std::abs(double{numbers[i]}) / 16,
                                                                  most / 448 / 1024);
            worst = std::max(worst, off / bound);
          }
        }
      }
      EXPECT_LE(worst, 1 + 1e-4);
      EXPECT_GT(worst, 0.9);
    }
}

TEST(Scaled, WhatIsNotFiniteStaysVisible) {
  for (const Scaled type : {Scaled::kInt8, Scaled::kFloat8})
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      std::vector<float> numbers(64, 1);
      numbers[40] = bad;
      const std::vector<float> got = rounded({type, 32}, numbers);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(std::isnan(got[i]), i >= 32) << i;  // the other block is not touched
    }
}

TEST(Scaled, SmallBlocksAndZeros) {
  for (const Scaled type : {Scaled::kInt8, Scaled::kFloat8}) {
    EXPECT_EQ(rounded({type, 32}, {}), std::vector<float>());
    EXPECT_EQ(rounded({type, 32}, {0, 0}), (std::vector<float>{0, 0}));
    EXPECT_EQ(rounded({type, 32}, {1e-31F, -1e-38F}), (std::vector<float>{0, 0}));
    EXPECT_FLOAT_EQ(rounded({type, 32}, {-3.7F})[0], -3.7F);  // the largest has the last code
  }
  EXPECT_EQ((InBlocks{Scaled::kInt8, 256}.bytes(1)), 260);
  EXPECT_EQ((InBlocks{Scaled::kInt8, 256}.bytes(512)), 520);
}

// A sum of rounded terms is that of what round_in_blocks makes of each, in their order.
TEST(Scaled, SumsAreOfRoundedTerms) {
  std::mt19937 random(seed_of());
  std::normal_distribution<float> draw(0, 1);
  constexpr int64_t kCount = 500;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const int64_t size = info(dtype).bytes;
    const auto bytes = static_cast<size_t>(kCount * size);
    const InBlocks in{Scaled::kFloat8, 64};
    std::vector<std::vector<std::byte>> terms(3, std::vector<std::byte>(bytes)), packed;
    std::vector<double> want(kCount);
    for (size_t t = 0; t < terms.size(); ++t) {
      for (int64_t i = 0; i < kCount; ++i) {
        const float x = draw(random);
        const double exact = x;
        std::byte* const to = terms[t].data() + i * size;
        if (is_half(dtype))
          round_to_halves(dtype, &x, to, 1);
        else
          std::memcpy(to, dtype == DType::kF32 ? static_cast<const void*>(&x) : &exact,
                      static_cast<size_t>(size));
      }
      std::vector<std::byte> rounded(bytes);
      round_in_blocks(in, dtype, terms[t].data(), kCount, rounded.data());
      packed.emplace_back(static_cast<size_t>(in.bytes(kCount)));
      put_in_blocks(in, dtype, terms[t].data(), kCount, packed.back().data());
      for (int64_t i = 0; i < kCount; ++i) {
        double& sum = want[static_cast<size_t>(i)];
        const double term = float_at(dtype, rounded.data() + i * size);
        sum = t == 0 ? term : sum + term;
        if (dtype != DType::kF64) sum = static_cast<float>(sum);
      }
    }
    const auto places = [](const std::vector<std::vector<std::byte>>& of) {
      return std::vector<const std::byte*>{of[0].data(), of[1].data(), of[2].data()};
    };
    std::vector<std::byte> of_numbers(bytes), of_blocks(bytes);
    add_in_blocks(in, dtype, places(terms), kCount, of_numbers.data());
    add_blocks(in, dtype, places(packed), kCount, of_blocks.data());
    for (int64_t i = 0; i < kCount; ++i) {
      double sum = want[static_cast<size_t>(i)];
      const auto single = static_cast<float>(sum);
      std::byte half[2];
      if (is_half(dtype)) {
        round_to_halves(dtype, &single, half, 1);
        sum = float_at(dtype, half);
      }
      EXPECT_EQ(float_at(dtype, of_numbers.data() + i * size), sum);
      EXPECT_EQ(float_at(dtype, of_blocks.data() + i * size), sum);
    }
  }
}

// Elements of 16 and 64 bits are rounded as those of 32 are, and then to their type.
TEST(Scaled, OtherFloatsAreThoseOf32Bits) {
  std::mt19937 random(seed_of());
  std::normal_distribution<float> draw(0, 1);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF64}) {
    const auto size = static_cast<size_t>(info(dtype).bytes);
    std::vector<std::byte> numbers(500 * size), got(500 * size);
    std::vector<float> wide(500);
    for (size_t i = 0; i < 500; ++i) {
      const float x = draw(random);
      const double exact = x;
      if (dtype == DType::kF64)
        std::memcpy(&numbers[i * size], &exact, size);
      else
        round_to_halves(dtype, &x, &numbers[i * size], 1);
      wide[i] = static_cast<float>(float_at(dtype, &numbers[i * size]));
    }
    const InBlocks in{Scaled::kInt8, 64};
    round_in_blocks(in, dtype, numbers.data(), 500, got.data());
    const std::vector<float> want = rounded(in, wide);
    for (size_t i = 0; i < 500; ++i) {
      double as = want[i];
      std::byte half[2];
      if (dtype != DType::kF64) {
        round_to_halves(dtype, &want[i], half, 1);
        as = float_at(dtype, half);
      }
      EXPECT_EQ(float_at(dtype, &got[i * size]), as);
    }
  }
}

}  // namespace
}  // namespace piper
