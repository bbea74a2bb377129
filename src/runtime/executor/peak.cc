// Measures what a CPU can do, and counts what a step has to.
#include "peak.h"

#include <algorithm>
#include <chrono>

#include "comparison.h"
#include "piper/devices/registry.h"
#include "piper/plan/flops.h"

namespace piper {
namespace {

constexpr int64_t kExtent = 384;  // of a square product: some milliseconds of a core
constexpr int kTurns = 4;         // of which the fastest counts; the first one warms up

Program square_product() {
  const TensorType type{DType::kF32, {kExtent, kExtent}};
  Program program;
  program.label = "peak";
  program.values = {type, type, type};
  program.num_args = 3;
  program.ops = {{"MatMul", {}, {0, 1}, {2}}};
  program.arg_written = {false, false, true};
  program.arg_read = {true, true, false};
  return program;
}

}  // namespace

Result<double> peak_of(const JobOptions& options, const Cores& cores, const RoleProgram& role) {
  if (!options.mfu || options.peak_flops > 0) return options.mfu ? options.peak_flops : 0;
  PIPER_ASSIGN(const BackendKind* kind, find_backend(options.backend));
  if (kind->peak != nullptr) {
    PIPER_ASSIGN(const DType dtype, type_of_products(role));
    return kind->peak({.place = cores.place, .ranks = cores.ranks, .is_process = cores.is_process},
                      dtype);
  }
  if (!kind->computes) return 0.0;
  PIPER_ASSIGN(const std::unique_ptr<Backend> backend, make_backend(options, cores));
  const Program program = square_product();
  PIPER_ASSIGN(const int32_t loaded, backend->load(program));
  std::vector<std::byte*> args;
  for (const TensorType& type : program.values) {
    PIPER_ASSIGN(args.emplace_back(), backend->allocate(type.bytes()));
    backend->fill(args.back(), type, 1);
  }
  PIPER_ASSIGN(std::byte * workspace, backend->allocate(backend->workspace_bytes(loaded)));
  PIPER_ASSIGN(const int32_t bound, backend->bind(loaded, args, workspace));
  double least_s = 1e9;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto began = std::chrono::steady_clock::now();
    backend->launch(bound);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    least_s = std::min(least_s, took.count());
  }
  return 2.0 * kExtent * kExtent * kExtent / least_s;
}

}  // namespace piper
