// Passes over rows: ops that go over the same rows, as one kernel.
#include "emitter.h"

namespace piper::cuda_kernels {

bool goes_by_rows(const FusedProgram&, const ProgramOp&) { return false; }

Status make_pass(const FusedProgram&, size_t, size_t, Emitter&) {
  return fail("not supported: several ops in one pass");
}

}  // namespace piper::cuda_kernels
