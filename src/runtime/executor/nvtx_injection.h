// How a tool comes by what it listens to: it asks for tables of slots, by module, and writes its
// own functions into those that it wants. compare.cc has these declarations beside the vendor's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace piper::nvtx {

constexpr uint32_t kVersion = 3;

enum Table : uint32_t { kCallbacks = 1, kVersionInfo = 3 };
enum Module { kCore = 1, kCuda, kOpenCl, kCudaRuntime, kCore2, kSync, kModules };
// Slots by module, of which the first has no function.
constexpr unsigned kSlots[kModules] = {0, 16, 9, 15, 7, 16, 7};
// Of kCore2.
enum Callback {
  kRangePush = 4,
  kRangePop = 5,
  kNameCategory = 8,
  kRegisterString = 10,
  kCreateDomain = 12,
};

using Function = void (*)();
using Slots = Function**;  // pointers to the slots, and a null pointer behind the last

struct Callbacks {
  size_t size = sizeof(Callbacks);
  // 1, or 0 where there is no such module.
  int (*slots_of)(int module, Slots* slots, unsigned* count) = nullptr;
};
struct VersionInfo {
  size_t size = sizeof(VersionInfo);
  uint32_t version = kVersion, reserved = 0;
  void (*tool_is)(uint32_t version) = nullptr;
};
using Export = const void* (*)(uint32_t table);
// The tool's function; 0: it does not listen.
using Initialize = int (*)(Export tables);
constexpr const char* kInitialize = "InitializeInjectionNvtx2";
constexpr const char* kVariable = "NVTX_INJECTION64_PATH";

using NameCategory = void (*)(void* domain, uint32_t category, const char* name);
using RegisterString = void* (*)(void* domain, const char* text);
using CreateDomain = void* (*)(const char* name);

}  // namespace piper::nvtx
