// Random words in bulk; see piper/devices/cpu.h for one block of them.
#pragma once

#include <cstdint>

namespace piper::cpu {

// The four words of each of the counters (first + i, step), i in [0, count): element 4 i + w of
// `words` is word w of the i-th. The two halves of the counter are 64 bits each.
using PhiloxFn = void (*)(uint64_t first, uint64_t step, uint64_t key, uint32_t* words,
                          int64_t count);
PhiloxFn philox_fn();

// y = x × scale where the word's upper 24 bits are at least `threshold`, else 0.
using MaskFn = void (*)(const float* x, const uint32_t* words, uint32_t threshold, float scale,
                        float* y, int64_t n);
MaskFn mask_fn();

// One round of Salmon et al., and what it adds to the key before the next.
inline constexpr uint32_t kPhiloxMultipliers[] = {0xD2511F53, 0xCD9E8D57};
inline constexpr uint32_t kPhiloxWeyl[] = {0x9E3779B9, 0xBB67AE85};
inline constexpr int kPhiloxRounds = 10;

}  // namespace piper::cpu
