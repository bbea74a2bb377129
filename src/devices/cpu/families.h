// The families of kernels: each file of families/ defines the rows of one.
#pragma once

#include "kernel.h"

namespace piper::cpu {

struct KernelRow {
  std::string_view op;
  Maker make;
  bool takes_halves = false;  // the kernel takes and makes 16-bit floats as they are
};
inline constexpr bool kTakesHalves = true;

#define PIPER_FAMILY(name) std::vector<KernelRow> name##_kernels();
#include "families.inc"
#undef PIPER_FAMILY

}  // namespace piper::cpu
