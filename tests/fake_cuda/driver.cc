// A driver for tests, by the functions that Piper calls: FAKE_CUDA_DEVICES devices (2 where it does
// not say), or the error FAKE_CUDA_INIT of cuInit.
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}
constexpr int kInvalidDevice = 101;
bool is_there(int device) { return device >= 0 && device < number("FAKE_CUDA_DEVICES", 2); }

}  // namespace

extern "C" {

int cuInit(unsigned) { return number("FAKE_CUDA_INIT", 0); }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = number("FAKE_CUDA_DEVICES", 2);
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return is_there(ordinal) ? 0 : kInvalidDevice;
}
int cuDeviceGetName(char* name, int size, int device) {
  std::strncpy(name, "Fake H100", static_cast<size_t>(size));
  return is_there(device) ? 0 : kInvalidDevice;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = size_t{80} << 30;
  return is_there(device) ? 0 : kInvalidDevice;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 76 ? 0 : -1;
  return is_there(device) ? 0 : kInvalidDevice;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : nullptr;
  return code == 100 ? 0 : 1;
}
#ifndef FAKE_OLD_DRIVER
int cuGetErrorString(int code, const char** text) {
  *text = code == 100 ? "no CUDA-capable device is detected" : nullptr;
  return code == 100 ? 0 : 1;
}
#endif

}  // extern "C"
