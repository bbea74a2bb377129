// NVRTC where the machine has it, and what its results say of each kernel.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace piper {

struct KernelCost {
  uint32_t registers = 0, frame_bytes = 0;  // of a thread; a frame: what did not fit into registers
};

class Nvrtc {
 public:
  // Null where there is none.
  static const Nvrtc* find() {
    static const Nvrtc nvrtc;
    return nvrtc.compile_ ? &nvrtc : nullptr;
  }

  // The binary of a source, or, for an architecture that is "compute_…", its assembly; or the log
  // of an error.
  struct Made {
    bool ok = false;
    std::string log, cubin, assembly;
  };
  Made compile(const std::string& source, const std::string& arch) const {
    Made made;
    void* program = nullptr;
    if (create_(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr) != 0) return made;
    const std::string option = "--gpu-architecture=" + arch;
    // 177: of constants that this source has no use for.
    const char* options[] = {option.c_str(), "--std=c++17", "--fmad=false", "--diag-suppress=177"};
    made.ok = compile_(program, 4, options) == 0;
    made.log = text(program, log_size_, log_);
    if (made.ok) made.cubin = text(program, cubin_size_, cubin_);
    if (made.ok) made.assembly = text(program, assembly_size_, assembly_);
    destroy_(&program);
    return made;
  }

 private:
  using Size = int (*)(void*, size_t*);
  using Text = int (*)(void*, char*);

  Nvrtc() {
    void* library = nullptr;
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12"})
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    const auto take = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    take(create_, "nvrtcCreateProgram");
    take(compile_, "nvrtcCompileProgram");
    take(destroy_, "nvrtcDestroyProgram");
    take(log_size_, "nvrtcGetProgramLogSize");
    take(log_, "nvrtcGetProgramLog");
    take(cubin_size_, "nvrtcGetCUBINSize");
    take(cubin_, "nvrtcGetCUBIN");
    take(assembly_size_, "nvrtcGetPTXSize");
    take(assembly_, "nvrtcGetPTX");
  }
  static std::string text(void* program, Size size, Text read) {
    size_t bytes = 0;
    size(program, &bytes);
    std::string result(bytes, '\0');
    if (bytes > 0) read(program, result.data());
    return result;
  }

  int (*create_)(void**, const char*, const char*, int, const char* const*,
                 const char* const*) = nullptr;
  int (*compile_)(void*, int, const char* const*) = nullptr;
  int (*destroy_)(void**) = nullptr;
  Size log_size_ = nullptr, cubin_size_ = nullptr, assembly_size_ = nullptr;
  Text log_ = nullptr, cubin_ = nullptr, assembly_ = nullptr;
};

// What the section .nv.info of a binary (an ELF file) says, by the name of the kernel.
inline std::map<std::string, KernelCost> costs_of(const std::string& cubin) {
  const auto read = [&](size_t at, auto number) {
    if (at + sizeof number <= cubin.size()) std::memcpy(&number, cubin.data() + at, sizeof number);
    return number;
  };
  const auto word = [&](size_t at) { return read(at, uint32_t{0}); };
  const auto wide = [&](size_t at) { return static_cast<size_t>(read(at, uint64_t{0})); };
  constexpr size_t kSectionBytes = 64, kSymbolBytes = 24;
  const size_t sections = wide(0x28), count = read(0x3c, uint16_t{0});
  const auto section = [&](size_t i) { return sections + i * kSectionBytes; };
  const size_t names = wide(section(read(0x3e, uint16_t{0})) + 0x18);
  size_t symbols = 0, symbol_names = 0, info = 0, info_bytes = 0;
  for (size_t s = 0; s < count; ++s) {
    const std::string name = cubin.c_str() + names + word(section(s));
    if (name == ".symtab") symbols = wide(section(s) + 0x18);
    if (name == ".strtab") symbol_names = wide(section(s) + 0x18);
    if (name == ".nv.info") info = wide(section(s) + 0x18), info_bytes = wide(section(s) + 0x20);
  }
  std::map<std::string, KernelCost> costs;
  constexpr uint8_t kSized = 4, kFrameSize = 0x11, kRegisters = 0x2f;
  for (size_t at = info; at + 4 <= info + info_bytes;) {
    const auto format = read(at, uint8_t{0}), kind = read(at + 1, uint8_t{0});
    const size_t bytes = format == kSized ? read(at + 2, uint16_t{0}) : 0;
    if (kind == kFrameSize || kind == kRegisters) {
      const size_t symbol = symbols + word(at + 4) * kSymbolBytes;
      KernelCost& cost = costs[cubin.c_str() + symbol_names + word(symbol)];
      (kind == kRegisters ? cost.registers : cost.frame_bytes) = word(at + 8);
    }
    at += 4 + bytes;
  }
  return costs;
}

}  // namespace piper
