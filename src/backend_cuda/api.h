// What Piper calls of NVIDIA's driver and libraries, in declarations of its own, so that nothing of
// theirs is needed to build it. Results are 0 for success in all of them. compare.cc holds each
// line beside the vendor's headers, where there are any.
#pragma once

#include <cstddef>

// (function, result, arguments)
#define PIPER_CUDA_DRIVER(F)                     \
  F(cuInit, int, (unsigned))                     \
  F(cuDriverGetVersion, int, (int*))             \
  F(cuDeviceGetCount, int, (int*))               \
  F(cuDeviceGet, int, (int*, int))               \
  F(cuDeviceGetName, int, (char*, int, int))     \
  F(cuDeviceTotalMem_v2, int, (size_t*, int))    \
  F(cuDeviceGetAttribute, int, (int*, int, int)) \
  F(cuGetErrorName, int, (int, const char**))    \
  F(cuGetErrorString, int, (int, const char**))
#define PIPER_NVRTC(F) F(nvrtcVersion, int, (int*, int*))
#define PIPER_CUBLASLT(F) F(cublasLtGetVersion, size_t, ())
#define PIPER_CUDNN(F) F(cudnnGetVersion, size_t, ())
#define PIPER_NCCL(F) F(ncclGetVersion, int, (int*))

namespace piper::cuda {

enum DeviceAttribute {  // CUdevice_attribute
  kMultiprocessors = 16,
  kMajor = 75,
  kMinor = 76,
};

#define PIPER_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
struct Driver {
  PIPER_CUDA_DRIVER(PIPER_MEMBER)
};
struct Nvrtc {
  PIPER_NVRTC(PIPER_MEMBER)
};
struct CublasLt {
  PIPER_CUBLASLT(PIPER_MEMBER)
};
struct Cudnn {
  PIPER_CUDNN(PIPER_MEMBER)
};
struct Nccl {
  PIPER_NCCL(PIPER_MEMBER)
};
#undef PIPER_MEMBER

}  // namespace piper::cuda
