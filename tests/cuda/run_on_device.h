// Programs on the device that is here, for tests that usually run them on the host: with
// PIPER_ON_DEVICE=1 in the environment (tests/gpu/first).
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fake_cuda/run_program.h"
#include "piper/base/memory.h"
#include "piper/devices/cuda.h"

namespace piper::test {

inline bool is_on_device() {
  const char* const wanted = std::getenv("PIPER_ON_DEVICE");
  return wanted && *wanted;
}

// The architecture of PIPER_ON_DEVICE=sm_90, which compiles into the cache what a device would run;
// empty where it runs.
inline std::string_view only_compiled_for() {
  const char* const wanted = std::getenv("PIPER_ON_DEVICE");
  return wanted && std::string_view(wanted) != "1" ? wanted : "";
}

inline Status compile_for(std::string_view architecture, const Program& program) {
  const std::string names[] = {std::string(architecture)};
  PIPER_ASSIGN(CudaCompiler compiler, CudaCompiler::open(names, [](const std::string&) {}));
  const std::unique_ptr<Backend> backend = compiler.make_backend();
  PIPER_ASSIGN([[maybe_unused]] const int32_t loaded, backend->load(program));
  PIPER_ASSIGN([[maybe_unused]] const auto compiled, compiler.compile());
  return ok_status();
}

// One backend for all programs of the process, since a context takes longer than most of them. It
// is not ended: the driver may be gone by the end of the process.
inline Result<Backend*> device_backend() {
  static Backend* backend = nullptr;
  if (!backend) {
    PIPER_ASSIGN(std::unique_ptr<Backend> made, make_cuda_backend());
    backend = made.release();
  }
  return backend;
}

// Arguments lie in one piece of memory, since an allocation and a copy for each of thousands would
// take most of the time. Whatever the program does not write keeps bytes of 0xFF, which are no
// numbers.
inline Result<std::vector<Bytes>> run_on_device(const Program& program,
                                                std::span<const Bytes> arguments) {
  std::vector<int64_t> at;
  int64_t size = 0;
  for (size_t a = 0; a < arguments.size(); ++a) {
    at.push_back(size);
    size += align_up(std::max<int64_t>(program.values[a].bytes(), 1));
  }
  std::vector<std::byte> host(static_cast<size_t>(size), std::byte{0xff});
  for (size_t a = 0; a < arguments.size(); ++a)
    if (arguments[a].size > 0)
      std::memcpy(host.data() + at[a], arguments[a].data, arguments[a].size);
  PIPER_ASSIGN(Backend* const backend, device_backend());
  PIPER_ASSIGN(const int32_t loaded, backend->load(program));
  PIPER_ASSIGN(std::byte* const memory, backend->allocate(size));
  const int64_t needed = backend->workspace_bytes(loaded);
  PIPER_ASSIGN(std::byte* const workspace, backend->allocate(needed));
  PIPER_ASSIGN(const int32_t end, backend->add_event());
  const std::vector<std::byte> unwritten(static_cast<size_t>(needed), std::byte{0xff});
  backend->copy(workspace, unwritten.data(), needed);
  backend->copy(memory, host.data(), size);
  std::vector<std::byte*> args;
  for (const int64_t offset : at) args.push_back(memory + offset);
  PIPER_ASSIGN(const int32_t bound, backend->bind(loaded, args, workspace));
  backend->launch(bound);
  backend->copy(host.data(), memory, size);
  backend->record(end, 0);
  PIPER_TRY(backend->finish(end));
  std::vector<Bytes> results;
  for (size_t a = 0; a < arguments.size(); ++a)
    results.push_back(
        Bytes::copy_of(host.data() + at[a], static_cast<size_t>(program.values[a].bytes())));
  return results;
}

inline Result<std::vector<Bytes>> run_where_wanted(const Program& program,
                                                   std::span<const Bytes> arguments,
                                                   const emulator::Order& order = {}) {
  if (is_on_device()) return run_on_device(program, arguments);
  return emulator::run_on_host(program, arguments, order);
}

}  // namespace piper::test
