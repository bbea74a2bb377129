// Programs as the cuda backend has them, on the host.
#pragma once

#include "grid.h"
#include "piper/devices/cuda_kernels.h"

namespace piper::emulator {

// The program's arguments after it has run, given those that it reads; what it does not read may be
// empty Bytes. Products follow their definition (cuda_kernels.h); no library takes attentions, so
// that kernels do them. Errors: what device_program refuses, and what a kernel does that a device
// would forgive by luck: see grid.h.
Result<std::vector<Bytes>> run_on_host(const Program& program, std::span<const Bytes> arguments,
                                       const Order& order = {});
Result<std::vector<Bytes>> run_on_host(const DeviceProgram& made, std::span<const Bytes> arguments,
                                       const Order& order = {});
// Its kernels compiled, so that running it begins at once: for several threads.
Status compile_on_host(const Program& program);

// D of the definition, between host addresses. Null: absent.
struct ProductPlaces {
  const char *a, *b, *c, *bias;
  char *d, *pre;
};
void multiply(const DeviceProduct& product, const ProductPlaces& at);

}  // namespace piper::emulator
