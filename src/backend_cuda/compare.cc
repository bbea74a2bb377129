// Our declarations of NVIDIA's functions beside the vendor's headers, where CMake finds these: what
// compiles is right.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <cuda.h>
#include <nvrtc.h>
#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#endif
#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

#include <type_traits>

#include "api.h"

namespace piper {
namespace {

// Numbers and enumerations of one size, and pointers to such, are passed alike.
template <typename A, typename B>
constexpr bool is_alike() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>)
    return is_alike<std::remove_cv_t<std::remove_pointer_t<A>>,
                    std::remove_cv_t<std::remove_pointer_t<B>>>();
  else if constexpr (std::is_same_v<A, B>)
    return true;
  else
    return (std::is_integral_v<A> || std::is_enum_v<A>)&&(
               std::is_integral_v<B> || std::is_enum_v<B>)&&sizeof(A) == sizeof(B);
}
template <typename A, typename B>
struct Alike : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct Alike<R (*)(A...), S (*)(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == sizeof...(B))
      return is_alike<R, S>() && (is_alike<A, B>() && ...);
    else
      return false;
  }();
};

static_assert(Alike<int (*)(unsigned*), unsigned (*)(int*)>::value);
static_assert(!Alike<int (*)(int*), int (*)(size_t*)>::value);
static_assert(!Alike<int (*)(int), int (*)(int, int)>::value);

#define PIPER_COMPARE(name, result, arguments) \
  static_assert(Alike<result(*) arguments, decltype(&::name)>::value, #name);

PIPER_CUDA_DRIVER(PIPER_COMPARE)
static_assert(int{cuda::kMultiprocessors} == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(int{cuda::kMajor} == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(int{cuda::kMinor} == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(CUDA_SUCCESS == 0);
PIPER_NVRTC(PIPER_COMPARE)
PIPER_CUBLASLT(PIPER_COMPARE)
#if __has_include(<cudnn_graph.h>)
PIPER_CUDNN(PIPER_COMPARE)
#endif
#if __has_include(<nccl.h>)
PIPER_NCCL(PIPER_COMPARE)
#endif

}  // namespace
}  // namespace piper
#endif
