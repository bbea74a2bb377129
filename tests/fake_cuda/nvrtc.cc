// NVRTC, whose code is a library of the host: what it says is the architecture and its path.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fake.h"

namespace piper::cuda {
struct NvrtcProgram : fake::Object {
  const char* kind() const override { return "program"; }
  std::string source, log;
  std::string code, assembly;  // "cubin 90 PATH", "ptx 90 PATH"; no code for virtual ones
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
constexpr int kNvrtcInternal = 11;

// NVRTC opens this by its bare name when it compiles: the loader finds it where the process has it
// already, or in folders of its own, and never because it lies beside NVRTC.
constexpr const char* kBuiltinsFile = "libnvrtc-builtins.so.13.5";

// In ascending order, as the vendor's says them.
std::vector<int> architectures() {
  const char* text = std::getenv("FAKE_NVRTC_ARCHS");
  std::vector<int> known;
  for (const std::string& each : piper::split_text(text ? text : "75,80,90,100,120", ','))
    known.push_back(std::atoi(each.c_str()));
  return known;
}

int copy_out(const std::string& text, char* to) {
  if (text.empty()) return kInvalidProgram;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return kOk;
}
}  // namespace

#define FAKE_NVRTC_CALL(name) \
  Call call(#name, false);    \
  if (call.code != kOk) return kNvrtcInternal

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = State::get().is_checked ? 6 : 5;  // so that no folder of code has one for the other
  return kOk;
}
const char* nvrtcGetErrorString(int code) {
  return code == kCompilation     ? "NVRTC_ERROR_COMPILATION"
         : code == kBuiltins      ? "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"
         : code == kNvrtcInternal      ? "NVRTC_ERROR_INTERNAL_ERROR"
         : code == kInvalidOption ? "NVRTC_ERROR_INVALID_OPTION"
                                  : "NVRTC_ERROR";
}
int nvrtcGetNumSupportedArchs(int* count) {
  FAKE_NVRTC_CALL(nvrtcGetNumSupportedArchs);
  *count = static_cast<int>(architectures().size());
  return kOk;
}
int nvrtcGetSupportedArchs(int* to) {
  FAKE_NVRTC_CALL(nvrtcGetSupportedArchs);
  for (const int each : architectures()) *to++ = each;
  return kOk;
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
  return call.code == kOk ? 0 : kNvrtcInternal;
}
int nvrtcCompileProgram(NvrtcProgram* program, int count, const char* const* options) {
  {
    FAKE_NVRTC_CALL(nvrtcCompileProgram);
    if (!call.state.check(call.name, program)) return kInvalidProgram;
  }
  int architecture = 0;
  bool is_device = false;  // or virtual
  for (int i = 0; i < count; ++i)
    for (const std::string_view kind : {"sm_", "compute_"}) {
      const std::string option = fmt::format("--gpu-architecture={}", kind);
      if (!std::string_view(options[i]).starts_with(option)) continue;
      architecture = std::atoi(options[i] + option.size());
      is_device = kind == "sm_";
    }
  const std::vector<int> known = architectures();
  if (std::find(known.begin(), known.end(), architecture) == known.end()) return kInvalidOption;
  if (!dlopen(kBuiltinsFile, RTLD_NOW | RTLD_LOCAL)) {
    program->log = fmt::format("nvrtc: error: failed to open {}", kBuiltinsFile);
    return kBuiltins;
  }
  // Several threads may compile: the way into calls is open to others meanwhile.
  auto library = piper::emulator::compile_for_host(
      program->source, std::string(PIPER_BINARY_DIR) + "/cuda_cache", State::get().is_checked,
      variable("FAKE_NVRTC_PLAIN", 0) == 0);
  if (library) {
    program->assembly = fmt::format("ptx {} {}", architecture, *library);
    if (is_device) program->code = fmt::format("cubin {} {}", architecture, *library);
  } else
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
  if (program->assembly.empty()) return kInvalidProgram;
  *bytes = program->code.empty() ? 0 : program->code.size() + 1;
  return kOk;
}
int nvrtcGetCUBIN(NvrtcProgram* program, char* code) {
  FAKE_NVRTC_CALL(nvrtcGetCUBIN);
  if (!call.state.check(call.name, program)) return kInvalidProgram;
  return copy_out(program->code, code);
}
int nvrtcGetPTXSize(NvrtcProgram* program, size_t* bytes) {
  FAKE_NVRTC_CALL(nvrtcGetPTXSize);
  if (!call.state.check(call.name, program)) return kInvalidProgram;
  if (program->assembly.empty()) return kInvalidProgram;
  *bytes = program->assembly.size() + 1;
  return kOk;
}
int nvrtcGetPTX(NvrtcProgram* program, char* assembly) {
  FAKE_NVRTC_CALL(nvrtcGetPTX);
  if (!call.state.check(call.name, program)) return kInvalidProgram;
  return copy_out(program->assembly, assembly);
}

}  // extern "C"
