// What the tensor cores of a warp do: products of fragments that its lanes hold.
#pragma once

#include <array>
#include <cstdint>

namespace piper::emulator {

// Those of a lane: of A [16, 16] and B [16, 8], of two elements a word, and of D [16, 8].
struct Fragments {
  bool is_bf16 = false;                       // else f16
  const uint32_t *a = nullptr, *b = nullptr;  // 4 and 2
  float* d = nullptr;                         // 4
};

// D += A · B, as the PTX ISA has it ("Matrix Fragments for mma.m16n8k16 with floating point type"):
// products are exact, and sums are of f32, in the order of the depth. False: the lanes have
// different types.
bool multiply_fragments(const std::array<Fragments, 32>& lanes);

}  // namespace piper::emulator
