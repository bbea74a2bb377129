// A driver that has no devices and says yes to all else: enough for cuDNN to make plans for devices
// that are described to it. What it makes, its libraries and kernels, is nothing.
#define FINE(name) \
  int name() { return 0; }
#define MAKES(name)           \
  int name(const void** to) { \
    *to = &made;              \
    return 0;                 \
  }

namespace {
const int made = 0;
constexpr int kNotFound = 500;
}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 0;
  return 0;
}
// NVRTC asks for a table that is no part of the interface, and does without it.
int cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return kNotFound;
}
FINE(cuInit)
FINE(cuCtxGetCurrent)
FINE(cuCtxGetLimit)
FINE(cuCtxPopCurrent)
FINE(cuCtxPushCurrent)
FINE(cuDeviceGet)
FINE(cuFuncSetAttribute)
FINE(cuGetErrorName)
FINE(cuGetErrorString)
FINE(cuKernelGetAttribute)
FINE(cuKernelSetAttribute)
FINE(cuLaunchCooperativeKernel)
FINE(cuLaunchKernel)
FINE(cuLaunchKernelEx)
FINE(cuLibraryUnload)
FINE(cuLinkAddData)
FINE(cuLinkComplete)
FINE(cuLinkCreate)
FINE(cuLinkDestroy)
FINE(cuOccupancyMaxPotentialClusterSize)
FINE(cuStreamGetCtx)
MAKES(cuKernelGetFunction)
MAKES(cuLibraryGetKernel)
MAKES(cuLibraryGetModule)
MAKES(cuLibraryLoadData)
MAKES(cuLibraryLoadFromFile)

}  // extern "C"
