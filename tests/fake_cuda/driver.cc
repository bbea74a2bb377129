// The driver's devices, contexts, memory, modules and launches.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fake.h"

using namespace piper::fake;  // NOLINT: what is called is all outside of namespaces

namespace {

const auto kPage = static_cast<size_t>(variable("FAKE_CUDA_PAGE", int64_t{2} << 20));
constexpr size_t kDeviceBytes = size_t{80} << 30;

int devices() { return static_cast<int>(variable("FAKE_CUDA_DEVICES", 2)); }
bool is_there(int device) { return device >= 0 && device < devices(); }
bool reaches(int reader, int owner) {
  return reader == owner || variable("FAKE_CUDA_PEERS", 1) != 0;
}

// What a device says that it can, and what it then does: 0, 1, or 2 for what it says and refuses.
int has(const char* name) { return variable(name, 1) != 0 ? 1 : 0; }
int refusal(const char* name, bool is_wanted) {
  if (!is_wanted) return kOk;
  const int64_t value = variable(name, 1);
  return value == 0 ? kInvalidValue : value == 2 ? kUnsupported : kOk;
}

// Ten times the compute capability.
int capability() { return static_cast<int>(variable("FAKE_CUDA_CAPABILITY", 90)); }

// As a device's memory is before anybody writes it.
void poison(void* at, size_t bytes) { std::memset(at, 0xff, bytes); }

}  // namespace

CuContext* piper::fake::primary_context(State& state, int device) {
  static std::map<int, CuContext*> contexts;
  CuContext*& context = contexts[device];
  if (!context || !context->is_alive) {
    context = state.make<CuContext>();
    context->device = device;
  }
  return context;
}

extern "C" {

int cuInit(unsigned) {
  Call call("cuInit", false);
  if (call.code != kOk) return call.code;
  const auto code = static_cast<int>(variable("FAKE_CUDA_INIT", 0));
  if (variable("CUDA_DEVICE_MAX_CONNECTIONS", 32) < 32)
    call.state.misuse(call.name, "streams share ways to the device: CUDA_DEVICE_MAX_CONNECTIONS");
  call.state.is_ready = code == kOk;
  return code;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kOk;
}
int cuDeviceGetCount(int* count) {
  FAKE_CALL(cuDeviceGetCount);
  *count = devices();
  return kOk;
}
int cuDeviceGet(int* device, int ordinal) {
  FAKE_CALL(cuDeviceGet);
  *device = ordinal;
  return is_there(ordinal) ? kOk : kInvalidDevice;
}
int cuDeviceGetName(char* name, int size, int device) {
  FAKE_CALL(cuDeviceGetName);
  std::snprintf(name, static_cast<size_t>(size), "Fake H100");
  return is_there(device) ? kOk : kInvalidDevice;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  FAKE_CALL(cuDeviceTotalMem_v2);
  *bytes = kDeviceBytes;
  return is_there(device) ? kOk : kInvalidDevice;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  FAKE_CALL(cuDeviceGetAttribute);
  const std::map<int, int> known = {{kClockKilohertz, 1830000},
                                    {kMultiprocessors, 132},
                                    {kMajor, capability() / 10},
                                    {kMinor, capability() % 10},
                                    {kMostShared, 227 << 10},
                                    {kMapsMemory, 1},
                                    {kSharesFiles, has("FAKE_CUDA_FILES")},
                                    {kMapsForRdma, has("FAKE_CUDA_RDMA")}};
  const auto found = known.find(attribute);
  if (found == known.end()) return kInvalidValue;
  *value = found->second;
  return is_there(device) ? kOk : kInvalidDevice;
}

int cuGetErrorName(int code, const char** name) {
  static const std::map<int, const char*> names = {
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
      {100, "CUDA_ERROR_NO_DEVICE"},
      {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
      {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kNoBinary, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {kInvalidPtx, "CUDA_ERROR_INVALID_PTX"},
      {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
      {kNotFound, "CUDA_ERROR_NOT_FOUND"},
      {kNotReady, "CUDA_ERROR_NOT_READY"},
      {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED"},
      {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {kCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
      {kCaptureUnjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
      {kCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
      {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT"}};
  const auto found = names.find(code);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? kInvalidValue : kOk;
}
int cuGetErrorString(int code, const char** text) {
  *text = code == 100 ? "no CUDA-capable device is detected" : nullptr;
  return code == 100 ? kOk : kInvalidValue;
}

int cuDeviceCanAccessPeer(int* can, int reader, int owner) {
  FAKE_CALL(cuDeviceCanAccessPeer);
  if (!is_there(reader) || !is_there(owner)) return kInvalidDevice;
  *can = reader != owner && reaches(reader, owner) ? 1 : 0;
  return kOk;
}

// ---- Contexts -----------------------------------------------------------------------------------

int cuDevicePrimaryCtxRetain(CuContext** context, int device) {
  FAKE_CALL(cuDevicePrimaryCtxRetain);
  if (!is_there(device)) return kInvalidDevice;
  *context = primary_context(call.state, device);
  ++(*context)->users;
  ++call.state.calls_of[fmt::format("context of device {}", device)];
  return kOk;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  FAKE_RELEASE(cuDevicePrimaryCtxRelease_v2);
  CuContext* context = primary_context(call.state, device);
  if (--context->users < 0) call.state.misuse(call.name, "nobody has the context");
  if (context->users <= 0) context->is_alive = false;
  return call.code;
}
int cuCtxSetCurrent(CuContext* context) {
  FAKE_CALL(cuCtxSetCurrent);
  if (context) FAKE_CHECK(context);
  current_context() = context;
  return kOk;
}
int cuCtxSynchronize() {
  FAKE_CALL(cuCtxSynchronize);
  FAKE_CONTEXT();
  FAKE_NO_CAPTURE();
  return call.state.run_until([&] {
    for (const CuStream* stream : call.state.streams)
      if (stream->context->root() == current_context()->root() && !stream->queue.empty())
        return false;
    return true;
  });
}
int cuCtxEnablePeerAccess(CuContext* owner, unsigned flags) {
  FAKE_CALL(cuCtxEnablePeerAccess);
  FAKE_CONTEXT();
  FAKE_CHECK(owner);
  const int reader = current_context()->device;
  if (flags != 0) return kInvalidValue;
  if (reader == owner->device) return kInvalidDevice;
  if (!reaches(reader, owner->device)) return kPeerUnsupported;
  return call.state.peers.emplace(reader, owner->device).second ? kOk : kPeerEnabled;
}
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_CALL(cuCtxGetStreamPriorityRange);
  FAKE_CONTEXT();
  *least = 0;
  *greatest = -5;
  return kOk;
}

// ---- Memory -------------------------------------------------------------------------------------

int cuMemGetAllocationGranularity(size_t* bytes, const CuMemProperties* wanted, int) {
  FAKE_CALL(cuMemGetAllocationGranularity);
  *bytes = kPage;
  return is_there(wanted->device) ? kOk : kInvalidDevice;
}
int cuMemAddressReserve(CuAddress* at, size_t bytes, size_t, CuAddress, unsigned long long) {
  FAKE_CALL(cuMemAddressReserve);
  FAKE_NO_CAPTURE();
  if (bytes == 0 || bytes % kPage != 0) return kInvalidValue;
  // More than is asked for, so that it begins at a page of the device.
  void* memory =
      mmap(nullptr, bytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  call.state.addresses[first] = bytes;
  *at = first;
  return kOk;
}
int cuMemAddressFree(CuAddress at, size_t bytes) {
  FAKE_RELEASE(cuMemAddressFree);
  const auto found = call.state.addresses.find(at);
  if (found == call.state.addresses.end() || found->second != bytes) {
    call.state.misuse(call.name, "addresses that are not reserved");
    return kInvalidValue;
  }
  if (call.state.range_of(at)) call.state.misuse(call.name, "addresses that are mapped");
  munmap(reinterpret_cast<void*>(at), bytes);
  call.state.addresses.erase(found);
  return call.code;
}
int cuMemCreate(CuMemory* pages, size_t bytes, const CuMemProperties* wanted, unsigned long long) {
  FAKE_CALL(cuMemCreate);
  FAKE_NO_CAPTURE();
  if (bytes == 0 || bytes % kPage != 0 || wanted->type != kMemoryPinned ||
      wanted->place != kMemoryOnDevice || !is_there(wanted->device))
    return kInvalidValue;
  for (const int code : {refusal("FAKE_CUDA_FILES", wanted->handle == kMemoryFileHandle),
                         refusal("FAKE_CUDA_RDMA", wanted->rdma != 0)})
    if (code != kOk) return code;
  const int file = memfd_create("fake device", MFD_CLOEXEC);
  if (bytes > kDeviceBytes || file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    if (file >= 0) close(file);
    return kOutOfMemory;
  }
  static CuMemory handles = 0;
  *pages = ++handles;
  call.state.pages[*pages] = {file, bytes, wanted->device, wanted->rdma != 0};
  return kOk;
}
int cuMemRelease(CuMemory pages) {
  FAKE_RELEASE(cuMemRelease);
  const auto found = call.state.pages.find(pages);
  if (found == call.state.pages.end()) {
    call.state.misuse(call.name, "pages that are not there");
    return kInvalidValue;
  }
  close(found->second.file);  // what is mapped keeps the pages
  call.state.pages.erase(found);
  return call.code;
}
int cuMemMap(CuAddress at, size_t bytes, size_t offset, CuMemory pages, unsigned long long) {
  FAKE_CALL(cuMemMap);
  FAKE_NO_CAPTURE();
  const auto found = call.state.pages.find(pages);
  const auto reserved = call.state.addresses.upper_bound(at);
  if (found == call.state.pages.end() || reserved == call.state.addresses.begin() || offset != 0 ||
      bytes > found->second.bytes ||
      std::prev(reserved)->first + std::prev(reserved)->second < at + bytes)
    return kInvalidValue;
  void* memory = mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                      found->second.file, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  call.state.add_range(at,
                       {bytes, false, true, found->second.device, {}, found->second.is_for_rdma},
                       "mapped memory");
  return kOk;
}
int cuMemUnmap(CuAddress at, size_t bytes) {
  FAKE_RELEASE(cuMemUnmap);
  const auto found = call.state.memory.find(at);
  if (found == call.state.memory.end() || !found->second.is_mapped ||
      found->second.bytes != bytes) {
    call.state.misuse(call.name, "addresses that are not mapped");
    return kInvalidValue;
  }
  mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  call.state.drop_range(at);
  return call.code;
}
int cuMemSetAccess(CuAddress at, size_t bytes, const CuMemAccess* access, size_t count) {
  FAKE_CALL(cuMemSetAccess);
  FAKE_NO_CAPTURE();
  const auto found = call.state.memory.find(at);
  if (found == call.state.memory.end() || found->second.bytes != bytes || count == 0)
    return kInvalidValue;
  Range& range = found->second;
  for (const CuMemAccess& one : std::span(access, count)) {
    if (one.access != kMemoryReadWrite || one.place != kMemoryOnDevice) return kInvalidValue;
    if (!is_there(one.device) || !reaches(one.device, range.device)) return kInvalidDevice;
    if (range.readers.empty()) {
      mprotect(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE);
      poison(reinterpret_cast<void*>(at), bytes);
    }
    range.readers.insert(one.device);
  }
  return kOk;
}
int cuMemAlloc_v2(CuAddress* at, size_t bytes) {
  FAKE_CALL(cuMemAlloc_v2);
  FAKE_CONTEXT();
  FAKE_NO_CAPTURE();
  if (bytes == 0) return kInvalidValue;
  constexpr size_t kAlign = 256;
  void* memory = bytes > kDeviceBytes
                     ? nullptr
                     : std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
  if (!memory) return kOutOfMemory;
  poison(memory, bytes);
  *at = reinterpret_cast<uintptr_t>(memory);
  call.state.add_range(*at, {bytes, false, false, current_context()->device, {}}, "device memory");
  return kOk;
}
int cuMemHostAlloc(void** at, size_t bytes, unsigned) {
  FAKE_CALL(cuMemHostAlloc);
  FAKE_CONTEXT();
  FAKE_NO_CAPTURE();
  constexpr size_t kAlign = 4096;
  if (bytes == 0) return kInvalidValue;
  *at = std::aligned_alloc(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
  if (!*at) return kOutOfMemory;
  poison(*at, bytes);
  call.state.add_range(reinterpret_cast<uintptr_t>(*at), {bytes, true, false, 0, {}},
                       "pinned memory");
  return kOk;
}
static int release(Call& call, uintptr_t at, bool is_host) {
  const auto found = call.state.memory.find(at);
  if (found == call.state.memory.end() || found->second.is_host != is_host ||
      found->second.is_mapped) {
    call.state.misuse(call.name, "memory that was not allocated so, or is released already");
    return kInvalidValue;
  }
  // What is under way may still use it.
  const int code = call.state.run_until([&] {
    for (const CuStream* stream : call.state.streams)
      if (stream->context->root() == current_context()->root() && !stream->queue.empty())
        return false;
    return true;
  });
  call.state.drop_range(at);
  std::free(reinterpret_cast<void*>(at));
  return call.code != kOk ? call.code : code;
}
int cuMemFree_v2(CuAddress at) {
  FAKE_RELEASE(cuMemFree_v2);
  return release(call, at, false);
}
int cuMemFreeHost(void* at) {
  FAKE_RELEASE(cuMemFreeHost);
  return release(call, reinterpret_cast<uintptr_t>(at), true);
}
int cuMemGetInfo_v2(size_t* left, size_t* all) {
  FAKE_CALL(cuMemGetInfo_v2);
  FAKE_CONTEXT();
  *all = *left = kDeviceBytes;
  for (const auto& [at, range] : call.state.memory)
    if (!range.is_host && range.device == current_context()->device) *left -= range.bytes;
  if (call.state.calls_of.contains("cublasLtMatmul"))
    *left -= static_cast<size_t>(variable("FAKE_CUDA_LIBRARIES_TAKE", 0));
  return kOk;
}

// ---- Modules and kernels ------------------------------------------------------------------------

int cuModuleLoadDataEx(CuModule** module, const void* image, unsigned, int*, void**) {
  FAKE_CALL(cuModuleLoadDataEx);
  FAKE_NO_CAPTURE();
  FAKE_CONTEXT();
  int made_for = 0, begin = 0;  // as the fake NVRTC has made it
  const auto* text = static_cast<const char*>(image);
  const bool is_cubin = std::sscanf(text, "cubin %d %n", &made_for, &begin) == 1;
  if (!is_cubin && std::sscanf(text, "ptx %d %n", &made_for, &begin) != 1) return kInvalidImage;
  if (is_cubin && (made_for / 10 != capability() / 10 || made_for > capability())) return kNoBinary;
  if (made_for > capability()) return kInvalidPtx;
  const char* path = text + begin;
  auto opened = piper::emulator::Module::open(path);
  if (!opened) {
    call.state.misuse(call.name, opened.error().message);
    return kInvalidImage;
  }
  *module = call.state.make<CuModule>();
  (*module)->kernels = std::move(*opened);
  (*module)->context = current_context();
  return kOk;
}
int cuModuleUnload(CuModule* module) {
  FAKE_RELEASE(cuModuleUnload);
  FAKE_CHECK(module);
  module->is_alive = false;  // what is queued keeps the code
  return call.code;
}
int cuModuleGetFunction(CuFunction** function, CuModule* module, const char* name) {
  FAKE_CALL(cuModuleGetFunction);
  FAKE_CHECK(module);
  const int pointers = module->kernels->pointers_of(name);
  if (pointers < 0) return kNotFound;
  *function = call.state.make<CuFunction>();
  (*function)->module = module;
  (*function)->name = name;
  (*function)->pointers = pointers;
  (*function)->fixed_shared = variable("FAKE_CUDA_SHARED", 0);
  (*function)->most_shared -= (*function)->fixed_shared;
  return kOk;
}
int cuFuncGetAttribute(int* value, int attribute, CuFunction* function) {
  FAKE_CALL(cuFuncGetAttribute);
  FAKE_CHECK(function);
  if (attribute != kFunctionFixedShared) return kInvalidValue;
  *value = static_cast<int>(function->fixed_shared);
  return kOk;
}
int cuFuncSetAttribute(CuFunction* function, int attribute, int value) {
  FAKE_CALL(cuFuncSetAttribute);
  FAKE_NO_CAPTURE();
  FAKE_CHECK(function);
  if (attribute != kFunctionShared || value < 0 || value > (227 << 10) - function->fixed_shared)
    return kInvalidValue;
  function->most_shared = value;
  return kOk;
}
int cuLaunchKernel(CuFunction* function, unsigned blocks, unsigned grid_y, unsigned grid_z,
                   unsigned threads, unsigned block_y, unsigned block_z, unsigned shared,
                   CuStream* stream, void** parameters, void** extra) {
  FAKE_CALL(cuLaunchKernel);
  FAKE_CHECK(function);
  FAKE_CHECK(function->module);
  FAKE_CHECK(stream);
  if (function->module->context->root() != stream->context->root()) {
    call.state.misuse(call.name, "function and stream have contexts of two devices");
    return kInvalidHandle;
  }
  if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || extra || blocks == 0 ||
      threads == 0 || threads > 1024 || shared > std::max<int64_t>(function->most_shared, 0)) {
    call.state.misuse(call.name, fmt::format("no launch of {}", function->name));
    return kInvalidValue;
  }
  piper::emulator::Grid grid{function->name, blocks, static_cast<int32_t>(threads), shared, {}};
  const auto* pointers = static_cast<char* const*>(parameters[0]);
  grid.pointers.assign(pointers, pointers + function->pointers);
  return call.state.queue(
      call.name, stream,
      [grid = std::move(grid), &state = call.state, kernels = function->module->kernels,
       device = stream->context->device]() -> piper::Status {
        for (const void* pointer : grid.pointers)
          if (const std::string wrong = state.reach(reinterpret_cast<uintptr_t>(pointer), device);
              !wrong.empty())
            return piper::fail("a kernel: {}", wrong);
        const piper::emulator::Order order{piper::emulator::Order::kRandom, state.random()};
        return kernels->run(grid, state.watched, order);
      });
}

}  // extern "C"
