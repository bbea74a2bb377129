// Products in parts that the library takes.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

using Operands = std::array<DeviceOperand, 6>;  // as DeviceProduct has them
enum : size_t { kOfA, kOfB, kOfC, kOfBias, kOfD, kOfPre };

constexpr int64_t kRowsOfTile = 128;  // of the library

inline DeviceOperand moved(DeviceOperand operand, int64_t bytes) {
  if (operand.kind != DeviceOperand::kAbsent) operand.offset += bytes;
  return operand;
}

// Returns whether a product is made of parts along k, since the rows of its operands are far apart.
// Such a product has neither bias nor activation.
bool is_far_along_k(const DeviceProduct& product);
// Emits a product as sums over so much of k each, one after the other, and adds C to the first, or
// to all that are rounded once to 16 bits.
void make_along_k(const DeviceProduct& product, int64_t most, const Operands& at, Emitter& emit);
// Emits a product in as many parts as the rows of its operands are far apart for the library.
void make_within(const DeviceProduct& product, const Operands& at, Emitter& emit);
// Emits a 16-bit product also in parts that the library's fast kernels take.
void make_parts(const DeviceProduct& product, const Operands& at, Emitter& emit);

}  // namespace piper::cuda_kernels
