// Programs on the device that is here, for tests that usually run them on the host: with
// PIPER_ON_DEVICE=1 in the environment (tests/gpu/first).
#pragma once

#include <cstdlib>
#include <deque>

#include "fake_cuda/run_program.h"
#include "piper/backend_cuda.h"

namespace piper::test {

inline bool is_on_device() {
  const char* const wanted = std::getenv("PIPER_ON_DEVICE");
  return wanted && std::string_view(wanted) == "1";
}

// Whatever the program does not write keeps bytes of 0xFF, which are no numbers.
inline Result<std::vector<Bytes>> run_on_device(const Program& program,
                                                std::span<const Bytes> arguments) {
  std::deque<std::vector<std::byte>> unwritten;  // copies may read them until the backend ends
  PIPER_ASSIGN(const std::unique_ptr<Backend> backend, make_cuda_backend());
  PIPER_ASSIGN(const int32_t loaded, backend->load(program));
  const auto allocate = [&](int64_t bytes) -> Result<std::byte*> {
    PIPER_ASSIGN(std::byte* const memory, backend->allocate(bytes));
    unwritten.emplace_back(static_cast<size_t>(bytes), std::byte{0xff});
    backend->copy(memory, unwritten.back().data(), bytes);
    return memory;
  };
  PIPER_ASSIGN(std::byte* const workspace, allocate(backend->workspace_bytes(loaded)));
  PIPER_ASSIGN(const int32_t end, backend->add_event());
  std::vector<std::byte*> args;
  for (size_t a = 0; a < arguments.size(); ++a) {
    PIPER_ASSIGN(args.emplace_back(), allocate(program.values[a].bytes()));
    backend->copy(args[a], arguments[a].data, static_cast<int64_t>(arguments[a].size));
  }
  PIPER_ASSIGN(const int32_t bound, backend->bind(loaded, args, workspace));
  backend->launch(bound);
  std::vector<std::vector<std::byte>> made(args.size());
  for (size_t a = 0; a < args.size(); ++a) {
    made[a].resize(static_cast<size_t>(program.values[a].bytes()));
    backend->copy(made[a].data(), args[a], std::ssize(made[a]));
  }
  backend->record(end, 0);
  PIPER_TRY(backend->finish(end));
  std::vector<Bytes> results;
  for (const auto& bytes : made) results.push_back(Bytes::copy_of(bytes.data(), bytes.size()));
  return results;
}

inline Result<std::vector<Bytes>> run_where_wanted(const Program& program,
                                                   std::span<const Bytes> arguments,
                                                   const emulator::Order& order = {}) {
  if (is_on_device()) return run_on_device(program, arguments);
  return emulator::run_on_host(program, arguments, order);
}

}  // namespace piper::test
