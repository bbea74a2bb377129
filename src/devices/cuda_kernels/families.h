// The families of steps: each file of families/ defines the rows of one.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

struct MakerRow {
  std::string_view op;
  Maker make = nullptr;         // of one use, or
  RunMaker make_run = nullptr;  // of uses that run at once

  MakerRow(std::string_view name, Maker maker) : op(name), make(maker) {}
  MakerRow(std::string_view name, RunMaker maker) : op(name), make_run(maker) {}
};

// Returns an attribute as a number of the text.
inline std::string real(const Use& use, std::string_view name, double otherwise = 0) {
  return literal(use.attrs.real(name, otherwise), DType::kF64);
}

#define PIPER_FAMILY(name) std::vector<MakerRow> name##_kernels();
#include "families.inc"
#undef PIPER_FAMILY

}  // namespace piper::cuda_kernels
