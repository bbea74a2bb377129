// Our declarations beside the vendor's headers, where CMake finds these.
#if __has_include(<nvtx3/nvToolsExt.h>)
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#include <type_traits>

#include "nvtx.h"
#include "nvtx_injection.h"

namespace piper::nvtx {
namespace {

#define PIPER_FIELD(ours, field, vendor, vendors_field)                     \
  static_assert(offsetof(ours, field) == offsetof(vendor, vendors_field) && \
                sizeof(ours::field) == sizeof(vendor::vendors_field));
static_assert(sizeof(NvtxRange) == sizeof(nvtxEventAttributes_t));
PIPER_FIELD(NvtxRange, version, nvtxEventAttributes_t, version)
PIPER_FIELD(NvtxRange, size, nvtxEventAttributes_t, size)
PIPER_FIELD(NvtxRange, category, nvtxEventAttributes_t, category)
PIPER_FIELD(NvtxRange, colour_type, nvtxEventAttributes_t, colorType)
PIPER_FIELD(NvtxRange, colour, nvtxEventAttributes_t, color)
PIPER_FIELD(NvtxRange, payload_type, nvtxEventAttributes_t, payloadType)
PIPER_FIELD(NvtxRange, payload, nvtxEventAttributes_t, payload)
PIPER_FIELD(NvtxRange, message_type, nvtxEventAttributes_t, messageType)
PIPER_FIELD(NvtxRange, message, nvtxEventAttributes_t, message)
static_assert(sizeof(Callbacks) == sizeof(NvtxExportTableCallbacks));
PIPER_FIELD(Callbacks, size, NvtxExportTableCallbacks, struct_size)
PIPER_FIELD(Callbacks, slots_of, NvtxExportTableCallbacks, GetModuleFunctionTable)
static_assert(sizeof(VersionInfo) == sizeof(NvtxExportTableVersionInfo));
PIPER_FIELD(VersionInfo, size, NvtxExportTableVersionInfo, struct_size)
PIPER_FIELD(VersionInfo, version, NvtxExportTableVersionInfo, version)
PIPER_FIELD(VersionInfo, tool_is, NvtxExportTableVersionInfo, SetInjectionNvtxVersion)

#define PIPER_EQUAL(ours, vendors) static_assert(int64_t{ours} == int64_t{vendors}, #ours)
PIPER_EQUAL(kVersion, NVTX_VERSION);
PIPER_EQUAL(kCallbacks, NVTX_ETID_CALLBACKS);
PIPER_EQUAL(kVersionInfo, NVTX_ETID_VERSIONINFO);
PIPER_EQUAL(kCore, NVTX_CB_MODULE_CORE);
PIPER_EQUAL(kCuda, NVTX_CB_MODULE_CUDA);
PIPER_EQUAL(kOpenCl, NVTX_CB_MODULE_OPENCL);
PIPER_EQUAL(kCudaRuntime, NVTX_CB_MODULE_CUDART);
PIPER_EQUAL(kCore2, NVTX_CB_MODULE_CORE2);
PIPER_EQUAL(kSync, NVTX_CB_MODULE_SYNC);
PIPER_EQUAL(kSlots[kCore], NVTX_CBID_CORE_SIZE);
PIPER_EQUAL(kSlots[kCuda], NVTX_CBID_CUDA_SIZE);
PIPER_EQUAL(kSlots[kOpenCl], NVTX_CBID_OPENCL_SIZE);
PIPER_EQUAL(kSlots[kCudaRuntime], NVTX_CBID_CUDART_SIZE);
PIPER_EQUAL(kSlots[kCore2], NVTX_CBID_CORE2_SIZE);
PIPER_EQUAL(kSlots[kSync], NVTX_CBID_SYNC_SIZE);
PIPER_EQUAL(kRangePush, NVTX_CBID_CORE2_DomainRangePushEx);
PIPER_EQUAL(kRangePop, NVTX_CBID_CORE2_DomainRangePop);
PIPER_EQUAL(kNameCategory, NVTX_CBID_CORE2_DomainNameCategoryA);
PIPER_EQUAL(kRegisterString, NVTX_CBID_CORE2_DomainRegisterStringA);
PIPER_EQUAL(kCreateDomain, NVTX_CBID_CORE2_DomainCreateA);
PIPER_EQUAL(NvtxRange{}.version, NVTX_VERSION);
PIPER_EQUAL(NvtxRange{}.size, sizeof(nvtxEventAttributes_t));
PIPER_EQUAL(NvtxRange{}.colour_type, NVTX_COLOR_ARGB);
PIPER_EQUAL(NvtxRange{}.message_type, NVTX_MESSAGE_TYPE_REGISTERED);
PIPER_EQUAL(2, NVTX_PAYLOAD_TYPE_INT64);

// Returns whether calls pass them alike: numbers of one size, and pointers, are.
template <typename A, typename B>
constexpr bool is_alike() {
  if constexpr (std::is_void_v<A> || std::is_void_v<B>)
    return std::is_void_v<A> && std::is_void_v<B>;
  else
    return std::is_pointer_v<A> == std::is_pointer_v<B> && sizeof(A) == sizeof(B);
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
static_assert(Alike<NameCategory, nvtxDomainNameCategoryA_impl_fntype>::value);
static_assert(Alike<RegisterString, nvtxDomainRegisterStringA_impl_fntype>::value);
static_assert(Alike<CreateDomain, nvtxDomainCreateA_impl_fntype>::value);
static_assert(Alike<int (*)(void*, const NvtxRange*), nvtxDomainRangePushEx_impl_fntype>::value);
static_assert(Alike<int (*)(void*), nvtxDomainRangePop_impl_fntype>::value);
static_assert(Alike<Export, NvtxGetExportTableFunc_t>::value);
static_assert(Alike<Initialize, NvtxInitializeInjectionNvtxFunc_t>::value);
static_assert(!Alike<CreateDomain, nvtxDomainRegisterStringA_impl_fntype>::value);

}  // namespace
}  // namespace piper::nvtx
#endif
