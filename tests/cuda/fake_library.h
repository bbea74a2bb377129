// The faked libraries, which are one, called as they are: what is misused there is meant to be.
#pragma once

#include <api.h>
#include <dlfcn.h>

#include <cstdlib>

namespace piper::cuda {

inline void* fake_library() {
  static void* const opened = [] {
    setenv("FAKE_CUDA_REPORT", "0", 1);
    return dlopen(PIPER_FAKE_CUDA "/all/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  }();
  return opened;
}

#define FAKE_GET(name, result, arguments) \
  table.name = reinterpret_cast<result(*) arguments>(dlsym(fake_library(), #name));
inline void fill(Driver& table) { PIPER_CUDA_DRIVER(FAKE_GET) }
inline void fill(Nvrtc& table) { PIPER_NVRTC(FAKE_GET) }
inline void fill(CublasLt& table) { PIPER_CUBLASLT(FAKE_GET) }
inline void fill(Nccl& table) { PIPER_NCCL(FAKE_GET) }
inline void fill(NcclWindows& table) { PIPER_NCCL_WINDOWS(FAKE_GET) }
#undef FAKE_GET

}  // namespace piper::cuda
