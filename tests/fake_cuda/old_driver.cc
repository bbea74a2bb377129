// A driver that lacks what came later: cuGetErrorString and all behind it.
#include <cstddef>

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int*) { return 0; }
int cuDeviceGetCount(int*) { return 0; }
int cuDeviceGet(int*, int) { return 0; }
int cuDeviceGetName(char*, int, int) { return 0; }
int cuDeviceTotalMem_v2(size_t*, int) { return 0; }
int cuDeviceGetAttribute(int*, int, int) { return 0; }
int cuGetErrorName(int, const char**) { return 0; }

}  // extern "C"
