// The permutation of an epoch's rows.
#include "feed.h"

namespace piper {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

}  // namespace

int64_t permuted(uint64_t seed, int64_t epoch, int64_t index, int64_t n) {
  int half = 1;
  while (uint64_t{1} << (2 * half) < static_cast<uint64_t>(n)) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const uint64_t key = mix(mix(seed) ^ static_cast<uint64_t>(epoch));
  uint64_t x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (mix(key + round * 0x2545f4914f6cdd1du + right) & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

}  // namespace piper
