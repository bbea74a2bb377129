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

using namespace cuda;  // NOLINT: what is compared

// Gives the vendor's type for one of ours.
template <typename T>
struct Vendors {
  using type = T;
};
#define PIPER_VENDORS(name, vendor) \
  template <>                       \
  struct Vendors<name> {            \
    using type = vendor;            \
  };
PIPER_CUDA_HANDLES(PIPER_VENDORS)
PIPER_NVRTC_HANDLES(PIPER_VENDORS)
PIPER_CUBLASLT_HANDLES(PIPER_VENDORS)
#if __has_include(<cudnn_graph.h>)
PIPER_CUDNN_HANDLES(PIPER_VENDORS)
#endif
PIPER_VENDORS(CuMemProperties, CUmemAllocationProp)
PIPER_VENDORS(CuMemAccess, CUmemAccessDesc)
PIPER_VENDORS(CuResource, CUdevResource)
PIPER_VENDORS(LtAlgorithm, cublasLtMatmulAlgo_t)
PIPER_VENDORS(LtHeuristic, cublasLtMatmulHeuristicResult_t)
#if __has_include(<nccl.h>)
PIPER_NCCL_HANDLES(PIPER_VENDORS)
PIPER_VENDORS(NcclId, ncclUniqueId)
PIPER_VENDORS(NcclConfig, ncclConfig_t)
#if NCCL_VERSION_CODE >= 22700
PIPER_VENDORS(NcclWindow, ncclWindow_vidmem)
#endif
#endif

// Numbers and enumerations of one size, and pointers to such, are passed alike.
template <typename A, typename B>
constexpr bool is_alike() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>)
    return is_alike<std::remove_cv_t<std::remove_pointer_t<A>>,
                    std::remove_cv_t<std::remove_pointer_t<B>>>();
  else if constexpr (std::is_same_v<typename Vendors<A>::type, B>)
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
PIPER_CUDA_GREEN(PIPER_COMPARE)
static_assert(CUDA_SUCCESS == 0);
PIPER_NVRTC(PIPER_COMPARE)
PIPER_CUBLASLT(PIPER_COMPARE)

#define PIPER_EQUAL(name, number, vendor) static_assert(int{name} == int{vendor}, #name);
PIPER_CUDA_NUMBERS(PIPER_EQUAL)
PIPER_CUBLASLT_NUMBERS(PIPER_EQUAL)

#define PIPER_FIELD(ours, field, vendor, vendors_field)                     \
  static_assert(sizeof(ours) == sizeof(vendor) &&                           \
                offsetof(ours, field) == offsetof(vendor, vendors_field) && \
                sizeof(ours::field) == sizeof(std::declval<vendor>().vendors_field));
PIPER_FIELD(CuMemProperties, type, CUmemAllocationProp, type)
PIPER_FIELD(CuMemProperties, handle, CUmemAllocationProp, requestedHandleTypes)
PIPER_FIELD(CuMemProperties, place, CUmemAllocationProp, location.type)
PIPER_FIELD(CuMemProperties, device, CUmemAllocationProp, location.id)
PIPER_FIELD(CuMemProperties, rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)
PIPER_FIELD(CuMemAccess, place, CUmemAccessDesc, location.type)
PIPER_FIELD(CuMemAccess, device, CUmemAccessDesc, location.id)
PIPER_FIELD(CuMemAccess, access, CUmemAccessDesc, flags)
PIPER_FIELD(CuResource, type, CUdevResource, type)
PIPER_FIELD(CuResource, multiprocessors, CUdevResource, sm.smCount)
PIPER_FIELD(LtAlgorithm, data, cublasLtMatmulAlgo_t, data)
PIPER_FIELD(LtHeuristic, algorithm, cublasLtMatmulHeuristicResult_t, algo)
PIPER_FIELD(LtHeuristic, workspace, cublasLtMatmulHeuristicResult_t, workspaceSize)
PIPER_FIELD(LtHeuristic, state, cublasLtMatmulHeuristicResult_t, state)
PIPER_FIELD(LtHeuristic, waves, cublasLtMatmulHeuristicResult_t, wavesCount)

#if __has_include(<cudnn_graph.h>)
PIPER_CUDNN(PIPER_COMPARE)
static_assert(CUDNN_STATUS_SUCCESS == 0);
// The handles of graphs and plans are deprecated, but releases before 9.8 know no other way.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
PIPER_CUDNN_NUMBERS(PIPER_EQUAL)
#pragma GCC diagnostic pop
#endif
#if __has_include(<nccl.h>)
PIPER_NCCL(PIPER_COMPARE)
PIPER_NCCL_NUMBERS(PIPER_EQUAL)
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
// The vendor's is longer where it is newer.
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version) &&
              offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(NcclConfig, most_blocks) == offsetof(ncclConfig_t, maxCTAs) &&
              offsetof(NcclConfig, net) == offsetof(ncclConfig_t, netName) &&
              offsetof(NcclConfig, shares) == offsetof(ncclConfig_t, splitShare));
#if NCCL_VERSION_CODE >= 22700
PIPER_NCCL_WINDOWS(PIPER_COMPARE)
PIPER_NCCL_NEW_NUMBERS(PIPER_EQUAL)
static_assert(offsetof(NcclConfig, name) == offsetof(ncclConfig_t, commName) &&
              offsetof(NcclConfig, policy) == offsetof(ncclConfig_t, CTAPolicy) &&
              offsetof(NcclConfig, switch_blocks) == offsetof(ncclConfig_t, nvlsCTAs));
#endif
#if NCCL_VERSION_CODE >= 22800
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t) &&
              offsetof(NcclConfig, switch_centric) == offsetof(ncclConfig_t, nvlinkCentricSched));
#endif
#endif

}  // namespace
}  // namespace piper
#endif
