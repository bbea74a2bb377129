#include <array>

#include "api.h"
#include "library.h"
#include "piper/backend_cuda.h"

namespace piper {
namespace {

using namespace cuda;  // NOLINT: this room's own

template <typename Function>
Status set(Function& to, const Library& library, const char* name) {
  PIPER_ASSIGN(void* function, function_in(library, name));
  to = reinterpret_cast<Function>(function);
  return ok_status();
}
// Fills a table of functions; the error names the one that is missing.
#define PIPER_SET(name, result, arguments) PIPER_TRY(set(table.name, library, #name));
#define PIPER_FILL(Table, FUNCTIONS)                  \
  Status fill(const Library& library, Table& table) { \
    FUNCTIONS(PIPER_SET)                              \
    return ok_status();                               \
  }
PIPER_FILL(Driver, PIPER_CUDA_DRIVER)
PIPER_FILL(Nvrtc, PIPER_NVRTC)
PIPER_FILL(CublasLt, PIPER_CUBLASLT)
PIPER_FILL(Cudnn, PIPER_CUDNN)
PIPER_FILL(Nccl, PIPER_NCCL)
#undef PIPER_FILL
#undef PIPER_SET

std::string error_text(const Driver& driver, const char* call, int code) {
  const char *name = nullptr, *text = nullptr;
  if (driver.cuGetErrorName(code, &name) != 0 || !name) name = "an unknown error";
  if (driver.cuGetErrorString(code, &text) != 0 || !text) text = "";
  return fmt::format("{}: {} ({}){}{}", call, name, code, *text ? ": " : "", text);
}

// Versions as these libraries number them: 13000 is 13.0, 91900 is 9.19.0, 22809 is 2.28.9.
std::string of_thousands(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}
std::string in_three(size_t version, size_t major, size_t minor) {
  return fmt::format("{}.{}.{}", version / major, version % major / minor, version % minor);
}

Result<std::string> version_of(const Driver& driver) {
  int version = 0;
  if (int code = driver.cuDriverGetVersion(&version))
    return fail("{}", error_text(driver, "cuDriverGetVersion", code));
  return "CUDA " + of_thousands(version);
}
Result<std::string> version_of(const Nvrtc& nvrtc) {
  int major = 0, minor = 0;
  if (int code = nvrtc.nvrtcVersion(&major, &minor)) return fail("nvrtcVersion: error {}", code);
  return fmt::format("{}.{}", major, minor);
}
Result<std::string> version_of(const CublasLt& cublas) {
  return in_three(cublas.cublasLtGetVersion(), 10000, 100);
}
Result<std::string> version_of(const Cudnn& cudnn) {
  return in_three(cudnn.cudnnGetVersion(), 10000, 100);
}
Result<std::string> version_of(const Nccl& nccl) {
  int version = 0;
  if (int code = nccl.ncclGetVersion(&version)) return fail("ncclGetVersion: error {}", code);
  return in_three(static_cast<size_t>(version), 10000, 100);
}

template <typename Table>
Result<std::string> load(std::span<const char* const> names, const Folders& folders, Table& table,
                         std::string& path) {
  PIPER_ASSIGN(const Library library, open_library(names, folders));
  path = library.path;
  PIPER_TRY(fill(library, table));
  return version_of(table);
}

template <typename Table>
CudaLibrary found(const char* name, std::initializer_list<const char*> names,
                  const Folders& folders, Table& table) {
  CudaLibrary library{.name = name};
  Result<std::string> version = load({names.begin(), names.size()}, folders, table, library.path);
  if (version)
    library.version = *std::move(version);
  else
    library.problem = version.error().message;
  return library;
}

Result<CudaDevice> device_of(const Driver& driver, int ordinal) {
  CudaDevice device;
  int handle = 0;
  if (int code = driver.cuDeviceGet(&handle, ordinal))
    return fail("{}", error_text(driver, "cuDeviceGet", code));
  std::array<char, 256> name{};
  if (int code = driver.cuDeviceGetName(name.data(), name.size() - 1, handle))
    return fail("{}", error_text(driver, "cuDeviceGetName", code));
  device.name = name.data();
  size_t bytes = 0;
  if (int code = driver.cuDeviceTotalMem_v2(&bytes, handle))
    return fail("{}", error_text(driver, "cuDeviceTotalMem", code));
  device.bytes = static_cast<int64_t>(bytes);
  for (const auto& [attribute, to] : {std::pair(kMultiprocessors, &device.multiprocessors),
                                      {kMajor, &device.major},
                                      {kMinor, &device.minor}})
    if (int code = driver.cuDeviceGetAttribute(to, attribute, handle))
      return fail("{}", error_text(driver, "cuDeviceGetAttribute", code));
  return device;
}

Result<std::vector<CudaDevice>> devices_of(const Driver& driver) {
  if (int code = driver.cuInit(0)) return fail("{}", error_text(driver, "cuInit", code));
  int count = 0;
  if (int code = driver.cuDeviceGetCount(&count))
    return fail("{}", error_text(driver, "cuDeviceGetCount", code));
  if (count <= 0) return fail("the driver knows no device");
  std::vector<CudaDevice> devices;
  for (int d = 0; d < count; ++d) {
    PIPER_ASSIGN(devices.emplace_back(), device_of(driver, d));
  }
  return devices;
}

}  // namespace

CudaMachine find_cuda() {
  CudaMachine machine;
  const Folders folders = library_folders();
  machine.folders = folders.first;
  machine.folders.insert(machine.folders.end(), folders.last.begin(), folders.last.end());
  Driver driver;
  Nvrtc nvrtc;
  CublasLt cublas;
  Cudnn cudnn;
  Nccl nccl;
  machine.libraries = {
      found("driver", {"libcuda.so.1"}, folders, driver),
      found("NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"}, folders, nvrtc),
      found("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}, folders, cublas),
      found("cuDNN", {"libcudnn.so.9"}, folders, cudnn),
      found("NCCL", {"libnccl.so.2"}, folders, nccl)};
  if (const CudaLibrary& driver_library = machine.libraries[0]; !driver_library.found()) {
    machine.problem = driver_library.path.empty() ? "there is no driver of NVIDIA"
                                                  : "there is no driver that Piper can use";
    return machine;
  }
  Result<std::vector<CudaDevice>> devices = devices_of(driver);
  if (devices)
    machine.devices = *std::move(devices);
  else
    machine.problem = devices.error().message;
  return machine;
}

std::string to_string(const CudaMachine& machine) {
  std::string text;
  for (size_t d = 0; d < machine.devices.size(); ++d) {
    const CudaDevice& device = machine.devices[d];
    text += fmt::format("cuda:{}  {}, compute capability {}.{}, {} multiprocessors, {}\n", d,
                        device.name, device.major, device.minor, device.multiprocessors,
                        human_bytes(device.bytes));
  }
  if (!machine.problem.empty()) text += fmt::format("cuda    no device: {}\n", machine.problem);
  bool any_missing = false;
  for (const CudaLibrary& library : machine.libraries) {
    any_missing |= !library.found();
    text +=
        library.found()
            ? fmt::format("        {:<9} {:<9} {}\n", library.name, library.version, library.path)
            : fmt::format("        {:<9} missing   {}\n", library.name, library.problem);
  }
  if (any_missing)
    text += fmt::format("        looked in {} and where the system's loader looks\n",
                        join(machine.folders, ", "));
  return text;
}

}  // namespace piper
