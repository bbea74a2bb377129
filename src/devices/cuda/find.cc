// Says which devices and libraries of NVIDIA this machine has, for piper-run --devices and errors.
#include <algorithm>
#include <array>
#include <cstdlib>

#include "device.h"
#include "libraries.h"
#include "piper/devices/cuda.h"

namespace piper {
namespace {

using namespace cuda;  // NOLINT: this room's own

template <typename Table>
CudaLibrary found(const Folders& folders, Table* to = nullptr) {
  CudaLibrary library{.name = About<Table>::kName};
  Result<Opened<Table>> opened = open_anew<Table>(folders, library.path);
  if (!opened) {
    library.problem = opened.error().message;
    return library;
  }
  library.version = opened->version;
  if (to) *to = opened->functions;
  return library;
}

Result<CudaDevice> device_of(const Driver& driver, int ordinal) {
  CudaDevice device;
  int handle = 0;
  PIPER_CU(driver, cuDeviceGet, &handle, ordinal);
  std::array<char, 256> name{};
  PIPER_CU(driver, cuDeviceGetName, name.data(), name.size() - 1, handle);
  device.name = name.data();
  size_t bytes = 0;
  PIPER_CU(driver, cuDeviceTotalMem_v2, &bytes, handle);
  device.bytes = static_cast<int64_t>(bytes);
  for (const auto& [attribute, to] : {std::pair(kMultiprocessors, &device.multiprocessors),
                                      {kMajor, &device.major},
                                      {kMinor, &device.minor}})
    PIPER_CU(driver, cuDeviceGetAttribute, to, attribute, handle);
  return device;
}

Result<std::vector<CudaDevice>> devices_of(const Driver& driver) {
  PIPER_TRY(start_driver(driver));
  int count = 0;
  PIPER_CU(driver, cuDeviceGetCount, &count);
  if (count <= 0) return fail("the driver knows no device");
  std::vector<CudaDevice> devices;
  for (int d = 0; d < count; ++d) {
    PIPER_ASSIGN(devices.emplace_back(), device_of(driver, d));
  }
  return devices;
}

}  // namespace

std::vector<std::string> set_cuda_environment(std::span<const RoleProgram> roles) {
  std::vector<std::string> replaced;
  const auto note = [&](const char* name, std::string_view before, std::string_view value) {
    if (!before.empty() && before != value)
      replaced.push_back(fmt::format("{}={}", name, quote_control(before)));
  };
  const auto set = [&](const char* name, const char* value) {
    if (const char* const before = std::getenv(name)) note(name, before, value);
    setenv(name, value, 1);
  };
  note(kConnections, cuda::set_connections(), kMostConnections);
  // NCCL chooses the algorithm of a collective by its size and would connect members when it first
  // uses one; told so before a process makes its first communicator, it connects them for all
  // algorithms when it makes a communicator.
  if (std::ranges::any_of(roles, has_groups)) set("NCCL_RUNTIME_CONNECT", "0");
  // Calls return before they are done, in no order but that of streams, whatever the environment or
  // a file of NCCL's says: a host that waits inside NCCL would wait without end for a rank that is
  // gone, and operations of several streams would wait for each other.
  set("NCCL_COMM_BLOCKING", "0");
  set("NCCL_LAUNCH_ORDER_IMPLICIT", "0");
  // A step that is timed is queued op by op behind the graph of the one before, which still runs.
  // NCCL allows a call beside a graph that has calls of the same communicator only with this.
  set("NCCL_GRAPH_MIXING_SUPPORT", "1");
  // These would take the place of what blocks_of gives each communicator, so that kernels which
  // wait for each other might not fit on the device together. NCCL ignores what is empty.
  for (const char* limit :
       {"NCCL_CGA_CLUSTER_SIZE", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS"})
    set(limit, "");
  return replaced;
}

CudaMachine find_cuda() {
  CudaMachine machine;
  const Folders folders = library_folders();
  machine.folders = folders.first;
  machine.folders.insert(machine.folders.end(), folders.last.begin(), folders.last.end());
  const Result<Without> without = switched_off();
  if (without) machine.switched_off = cuda::to_string(*without);
  Driver driver;
  machine.libraries = {found<Driver>(folders, &driver), found<Nvrtc>(folders),
                       found<CublasLt>(folders), found<Cudnn>(folders), found<Nccl>(folders)};
  if (const CudaLibrary& driver_library = machine.libraries[0]; !driver_library.found()) {
    machine.problem = driver_library.path.empty() ? "there is no driver of NVIDIA"
                                                  : "there is no driver that Piper can use";
    return machine;
  }
  if (!without) {
    machine.problem = without.error().message;
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
    text += fmt::format(
        "cuda:{}  {}, compute capability {}.{}, {} multiprocessors, {}{}\n", d, device.name,
        device.major, device.minor, device.multiprocessors, human_bytes(device.bytes),
        device.major < kLeastMajor ? fmt::format("; too old: {}.0 or later is needed", kLeastMajor)
                                   : "");
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
  if (!machine.switched_off.empty())
    text += fmt::format("        off       {} (PIPER_CUDA_WITHOUT)\n", machine.switched_off);
  if (any_missing)
    text += fmt::format("        looked in {} and where the system's loader looks\n",
                        join(machine.folders, ", "));
  return text;
}

}  // namespace piper
