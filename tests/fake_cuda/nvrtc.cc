// NVRTC, whose code is a library of the host: what it says is its path.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstring>

#include "fake.h"

namespace piper::cuda {
struct NvrtcProgram : fake::Object {
  const char* kind() const override { return "program"; }
  std::string source, log, code;
};
}  // namespace piper::cuda

using namespace piper::fake;  // NOLINT: what is called is all outside of namespaces

namespace {
enum NvrtcCode : int {
  kInvalidInput = 3,
  kInvalidProgram = 4,
  kInvalidOption = 5,
  kCompilation = 6,
  kBuiltins = 7
};
constexpr int kInternal = 11;

// NVRTC opens this by its bare name when it compiles: the loader finds it where the process has it
// already, or in folders of its own, and never because it lies beside NVRTC.
constexpr const char* kBuiltinsFile = "libnvrtc-builtins.so.13.7";
}  // namespace

#define FAKE_NVRTC_CALL(name) \
  Call call(#name, false);    \
  if (call.code != kOk) return kInternal

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = State::get().is_checked ? 8 : 7;  // so that no folder of code has one for the other
  return kOk;
}
const char* nvrtcGetErrorString(int code) {
  return code == kCompilation     ? "NVRTC_ERROR_COMPILATION"
         : code == kBuiltins      ? "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"
         : code == kInternal      ? "NVRTC_ERROR_INTERNAL_ERROR"
         : code == kInvalidOption ? "NVRTC_ERROR_INVALID_OPTION"
                                  : "NVRTC_ERROR";
}
int nvrtcCreateProgram(NvrtcProgram** program, const char* source, const char*, int headers,
                       const char* const*, const char* const*) {
  FAKE_NVRTC_CALL(nvrtcCreateProgram);
  if (!source || headers != 0) return kInvalidInput;
  *program = call.state.make<NvrtcProgram>();
  (*program)->source = source;
  return kOk;
}
int nvrtcDestroyProgram(NvrtcProgram** program) {
  Call call("nvrtcDestroyProgram", false);
  if (!call.state.check(call.name, *program)) return kInvalidProgram;
  (*program)->is_alive = false;
  *program = nullptr;
  return call.code == kOk ? 0 : kInternal;
}
int nvrtcCompileProgram(NvrtcProgram* program, int count, const char* const* options) {
  {
    FAKE_NVRTC_CALL(nvrtcCompileProgram);
    if (!call.state.check(call.name, program)) return kInvalidProgram;
  }
  bool has_architecture = false;
  for (int i = 0; i < count; ++i)
    has_architecture |= std::string_view(options[i]).starts_with("--gpu-architecture=sm_");
  if (!has_architecture) return kInvalidOption;
  if (!dlopen(kBuiltinsFile, RTLD_NOW | RTLD_LOCAL)) {
    program->log = fmt::format("nvrtc: error: failed to open {}", kBuiltinsFile);
    return kBuiltins;
  }
  // Several threads may compile: the way into calls is open to others meanwhile.
  auto library = piper::emulator::compile_for_host(
      program->source, std::string(PIPER_BINARY_DIR) + "/cuda_cache", State::get().is_checked,
      variable("FAKE_NVRTC_PLAIN", 0) == 0);
  if (library)
    program->code = *library;
  else
    program->log = library.error().message;
  return library ? static_cast<int>(kOk) : kCompilation;
}
int nvrtcGetProgramLogSize(NvrtcProgram* program, size_t* bytes) {
  FAKE_NVRTC_CALL(nvrtcGetProgramLogSize);
  if (!call.state.check(call.name, program)) return kInvalidProgram;
  *bytes = program->log.size() + 1;
  return kOk;
}
int nvrtcGetProgramLog(NvrtcProgram* program, char* log) {
  FAKE_NVRTC_CALL(nvrtcGetProgramLog);
  if (!call.state.check(call.name, program)) return kInvalidProgram;
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return kOk;
}
int nvrtcGetCUBINSize(NvrtcProgram* program, size_t* bytes) {
  FAKE_NVRTC_CALL(nvrtcGetCUBINSize);
  if (!call.state.check(call.name, program)) return kInvalidProgram;
  if (program->code.empty()) return kInvalidProgram;
  *bytes = program->code.size() + 1;
  return kOk;
}
int nvrtcGetCUBIN(NvrtcProgram* program, char* code) {
  FAKE_NVRTC_CALL(nvrtcGetCUBIN);
  if (!call.state.check(call.name, program)) return kInvalidProgram;
  std::memcpy(code, program->code.c_str(), program->code.size() + 1);
  return kOk;
}

}  // extern "C"
