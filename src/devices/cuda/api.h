// What Piper calls of NVIDIA's driver and libraries, in declarations of its own, so that nothing of
// theirs is needed to build it. Results are 0 for success in all of them. compare.cc holds each
// line beside the vendor's headers, where there are any.
#pragma once

#include <cstddef>
#include <cstdint>

#include "api_nccl.h"

// Opaque: (our name, the vendor's).
#define PIPER_CUDA_HANDLES(F)      \
  F(CuContext, CUctx_st)           \
  F(CuModule, CUmod_st)            \
  F(CuFunction, CUfunc_st)         \
  F(CuStream, CUstream_st)         \
  F(CuEvent, CUevent_st)           \
  F(CuGraph, CUgraph_st)           \
  F(CuGraphExec, CUgraphExec_st)   \
  F(CuGreenContext, CUgreenCtx_st) \
  F(CuResourceDesc, CUdevResourceDesc_st)
#define PIPER_NVRTC_HANDLES(F) F(NvrtcProgram, _nvrtcProgram)
#define PIPER_CUBLASLT_HANDLES(F)           \
  F(LtContext, cublasLtContext)             \
  F(LtDesc, cublasLtMatmulDescOpaque_t)     \
  F(LtLayout, cublasLtMatrixLayoutOpaque_t) \
  F(LtPreference, cublasLtMatmulPreferenceOpaque_t)

#define PIPER_CUDNN_HANDLES(F) F(DnnContext, cudnnContext)

// (function, result, arguments)
#define PIPER_CUDA_DRIVER(F)                                                                 \
  F(cuInit, int, (unsigned))                                                                 \
  F(cuDriverGetVersion, int, (int*))                                                         \
  F(cuDeviceGetCount, int, (int*))                                                           \
  F(cuDeviceGet, int, (int*, int))                                                           \
  F(cuDeviceGetName, int, (char*, int, int))                                                 \
  F(cuDeviceTotalMem_v2, int, (size_t*, int))                                                \
  F(cuDeviceGetAttribute, int, (int*, int, int))                                             \
  F(cuGetErrorName, int, (int, const char**))                                                \
  F(cuGetErrorString, int, (int, const char**))                                              \
  F(cuDeviceCanAccessPeer, int, (int* can, int reader, int owner))                           \
  /* Contexts. */                                                                            \
  F(cuDevicePrimaryCtxRetain, int, (CuContext**, int))                                       \
  F(cuDevicePrimaryCtxRelease_v2, int, (int))                                                \
  F(cuCtxSetCurrent, int, (CuContext*))                                                      \
  F(cuCtxSynchronize, int, ())                                                               \
  F(cuCtxGetStreamPriorityRange, int, (int* least, int* greatest))                           \
  F(cuCtxEnablePeerAccess, int, (CuContext * owner, unsigned flags))                         \
  /* Memory: addresses, and what lies behind them. */                                        \
  F(cuMemGetAllocationGranularity, int, (size_t*, const CuMemProperties*, int option))       \
  F(cuMemAddressReserve, int,                                                                \
    (CuAddress*, size_t size, size_t alignment, CuAddress near, unsigned long long flags))   \
  F(cuMemAddressFree, int, (CuAddress, size_t))                                              \
  F(cuMemCreate, int, (CuMemory*, size_t, const CuMemProperties*, unsigned long long flags)) \
  F(cuMemRelease, int, (CuMemory))                                                           \
  F(cuMemMap, int, (CuAddress, size_t, size_t offset, CuMemory, unsigned long long flags))   \
  F(cuMemUnmap, int, (CuAddress, size_t))                                                    \
  F(cuMemSetAccess, int, (CuAddress, size_t, const CuMemAccess*, size_t count))              \
  F(cuMemAlloc_v2, int, (CuAddress*, size_t))                                                \
  F(cuMemFree_v2, int, (CuAddress))                                                          \
  F(cuMemHostAlloc, int, (void**, size_t, unsigned flags))                                   \
  F(cuMemFreeHost, int, (void*))                                                             \
  F(cuMemGetInfo_v2, int, (size_t * free, size_t * total))                                   \
  /* What is queued on streams. */                                                           \
  F(cuStreamCreateWithPriority, int, (CuStream**, unsigned flags, int priority))             \
  F(cuStreamDestroy_v2, int, (CuStream*))                                                    \
  F(cuStreamSynchronize, int, (CuStream*))                                                   \
  F(cuStreamWaitEvent, int, (CuStream*, CuEvent*, unsigned flags))                           \
  F(cuEventCreate, int, (CuEvent**, unsigned flags))                                         \
  F(cuEventRecord, int, (CuEvent*, CuStream*))                                               \
  F(cuEventQuery, int, (CuEvent*))                                                           \
  F(cuEventSynchronize, int, (CuEvent*))                                                     \
  F(cuEventElapsedTime, int, (float* milliseconds, CuEvent* start, CuEvent* end))            \
  F(cuEventDestroy_v2, int, (CuEvent*))                                                      \
  F(cuMemcpyAsync, int, (CuAddress to, CuAddress from, size_t, CuStream*))                   \
  F(cuMemcpyPeerAsync, int,                                                                  \
    (CuAddress to, CuContext*, CuAddress from, CuContext*, size_t, CuStream*))               \
  F(cuMemsetD8Async, int, (CuAddress, unsigned char, size_t count, CuStream*))               \
  F(cuMemsetD16Async, int, (CuAddress, unsigned short, size_t count, CuStream*))             \
  F(cuMemsetD32Async, int, (CuAddress, unsigned, size_t count, CuStream*))                   \
  F(cuMemsetD2D32Async, int,                                                                 \
    (CuAddress, size_t pitch, unsigned, size_t width, size_t height, CuStream*))             \
  /* Kernels. */                                                                             \
  F(cuModuleLoadDataEx, int,                                                                 \
    (CuModule**, const void* image, unsigned options, int* option, void** values))           \
  F(cuModuleUnload, int, (CuModule*))                                                        \
  F(cuModuleGetFunction, int, (CuFunction**, CuModule*, const char*))                        \
  F(cuFuncGetAttribute, int, (int* value, int attribute, CuFunction*))                       \
  F(cuFuncSetAttribute, int, (CuFunction*, int attribute, int value))                        \
  F(cuLaunchKernel, int,                                                                     \
    (CuFunction*, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,       \
     unsigned block_y, unsigned block_z, unsigned shared, CuStream*, void** parameters,      \
     void** extra))                                                                          \
  /* Graphs of what has been queued. */                                                      \
  F(cuStreamBeginCapture_v2, int, (CuStream*, int mode))                                     \
  F(cuStreamEndCapture, int, (CuStream*, CuGraph**))                                         \
  F(cuGraphInstantiateWithFlags, int, (CuGraphExec**, CuGraph*, unsigned long long flags))   \
  F(cuGraphLaunch, int, (CuGraphExec*, CuStream*))                                           \
  F(cuGraphExecDestroy, int, (CuGraphExec*))                                                 \
  F(cuGraphDestroy, int, (CuGraph*))

// These make streams that run on some of the multiprocessors: of drivers for CUDA 12.5 and later.
#define PIPER_CUDA_GREEN(F)                                                          \
  F(cuDeviceGetDevResource, int, (int, CuResource*, int type))                       \
  F(cuDevSmResourceSplitByCount, int,                                                \
    (CuResource * parts, unsigned* count, const CuResource* from, CuResource* rest,  \
     unsigned flags, unsigned least))                                                \
  F(cuDevResourceGenerateDesc, int, (CuResourceDesc**, CuResource*, unsigned count)) \
  F(cuGreenCtxCreate, int, (CuGreenContext**, CuResourceDesc*, int, unsigned flags)) \
  F(cuGreenCtxDestroy, int, (CuGreenContext*))                                       \
  F(cuGreenCtxGetDevResource, int, (CuGreenContext*, CuResource*, int type))         \
  F(cuGreenCtxStreamCreate, int, (CuStream**, CuGreenContext*, unsigned flags, int priority))

#define PIPER_NVRTC(F)                                                              \
  F(nvrtcVersion, int, (int*, int*))                                                \
  F(nvrtcGetErrorString, const char*, (int))                                        \
  F(nvrtcGetNumSupportedArchs, int, (int*))                                         \
  F(nvrtcGetSupportedArchs, int, (int*))                                            \
  F(nvrtcCreateProgram, int,                                                        \
    (NvrtcProgram**, const char* source, const char* name, int, const char* const*, \
     const char* const*))                                                           \
  F(nvrtcDestroyProgram, int, (NvrtcProgram**))                                     \
  F(nvrtcCompileProgram, int, (NvrtcProgram*, int, const char* const* options))     \
  F(nvrtcGetProgramLogSize, int, (NvrtcProgram*, size_t*))                          \
  F(nvrtcGetProgramLog, int, (NvrtcProgram*, char*))                                \
  F(nvrtcGetCUBINSize, int, (NvrtcProgram*, size_t*))                               \
  F(nvrtcGetCUBIN, int, (NvrtcProgram*, char*))                                     \
  F(nvrtcGetPTXSize, int, (NvrtcProgram*, size_t*))                                 \
  F(nvrtcGetPTX, int, (NvrtcProgram*, char*))

#define PIPER_CUBLASLT(F)                                                                         \
  F(cublasLtGetVersion, size_t, ())                                                               \
  F(cublasLtGetStatusName, const char*, (int))                                                    \
  F(cublasLtCreate, int, (LtContext**))                                                           \
  F(cublasLtDestroy, int, (LtContext*))                                                           \
  F(cublasLtMatmulDescCreate, int, (LtDesc**, int compute, int scale))                            \
  F(cublasLtMatmulDescDestroy, int, (LtDesc*))                                                    \
  F(cublasLtMatmulDescSetAttribute, int, (LtDesc*, int, const void*, size_t))                     \
  F(cublasLtMatrixLayoutCreate, int, (LtLayout**, int, uint64_t rows, uint64_t columns, int64_t)) \
  F(cublasLtMatrixLayoutDestroy, int, (LtLayout*))                                                \
  F(cublasLtMatrixLayoutSetAttribute, int, (LtLayout*, int, const void*, size_t))                 \
  F(cublasLtMatmulPreferenceCreate, int, (LtPreference**))                                        \
  F(cublasLtMatmulPreferenceDestroy, int, (LtPreference*))                                        \
  F(cublasLtMatmulPreferenceSetAttribute, int, (LtPreference*, int, const void*, size_t))         \
  F(cublasLtMatmulAlgoGetHeuristic, int,                                                          \
    (LtContext*, LtDesc*, LtLayout * a, LtLayout * b, LtLayout * c, LtLayout * d, LtPreference*,  \
     int wanted, LtHeuristic*, int* found))                                                       \
  F(cublasLtMatmulAlgoInit, int,                                                                  \
    (LtContext*, int compute, int scale, int a, int b, int c, int d, int id, LtAlgorithm*))       \
  F(cublasLtMatmulAlgoConfigSetAttribute, int, (LtAlgorithm*, int, const void*, size_t))          \
  F(cublasLtMatmulAlgoConfigGetAttribute, int,                                                    \
    (const LtAlgorithm*, int, void*, size_t, size_t* written))                                    \
  F(cublasLtMatmulAlgoCheck, int,                                                                 \
    (LtContext*, LtDesc*, LtLayout * a, LtLayout * b, LtLayout * c, LtLayout * d,                 \
     const LtAlgorithm*, LtHeuristic*))                                                           \
  F(cublasLtMatmul, int,                                                                          \
    (LtContext*, LtDesc*, const void* alpha, const void* a, LtLayout*, const void* b, LtLayout*,  \
     const void* beta, const void* c, LtLayout*, void* d, LtLayout*, const LtAlgorithm*,          \
     void* workspace, size_t, CuStream*))

// A descriptor is a void*; what an attribute is set to or read into are `count` values of a type.
#define PIPER_CUDNN(F)                                                                  \
  F(cudnnGetVersion, size_t, ())                                                        \
  F(cudnnGetLastErrorString, void, (char*, size_t))                                     \
  F(cudnnGetErrorString, const char*, (int))                                            \
  F(cudnnCreate, int, (DnnContext**))                                                   \
  F(cudnnDestroy, int, (DnnContext*))                                                   \
  F(cudnnSetStream, int, (DnnContext*, CuStream*))                                      \
  F(cudnnBackendCreateDescriptor, int, (int kind, void**))                              \
  F(cudnnBackendDestroyDescriptor, int, (void*))                                        \
  F(cudnnBackendFinalize, int, (void*))                                                 \
  F(cudnnBackendSetAttribute, int,                                                      \
    (void*, int attribute, int type, int64_t count, const void* values))                \
  F(cudnnBackendGetAttribute, int,                                                      \
    (void* const, int attribute, int type, int64_t most, int64_t* count, void* values)) \
  F(cudnnBackendExecute, int, (DnnContext*, void* plan, void* pack))

// These numbers have a meaning: (our name, number, the vendor's name).
#define PIPER_CUDA_NUMBERS(F)                                                           \
  F(kErrorOutOfMemory, 2, CUDA_ERROR_OUT_OF_MEMORY)                                     \
  F(kErrorNotReady, 600, CUDA_ERROR_NOT_READY)                                          \
  F(kErrorInvalidResource, 915, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)              \
  F(kClockKilohertz, 13, CU_DEVICE_ATTRIBUTE_CLOCK_RATE)                                \
  F(kMultiprocessors, 16, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)                     \
  F(kMajor, 75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                           \
  F(kMinor, 76, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)                           \
  F(kMostShared, 97, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)             \
  F(kMapsMemory, 102, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)          \
  F(kSharesFiles, 103, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) \
  F(kMapsForRdma, 110, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)     \
  F(kMemoryPinned, 1, CU_MEM_ALLOCATION_TYPE_PINNED)                                    \
  F(kMemoryOnDevice, 1, CU_MEM_LOCATION_TYPE_DEVICE)                                    \
  F(kMemoryNoHandle, 0, CU_MEM_HANDLE_TYPE_NONE)                                        \
  F(kMemoryFileHandle, 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)                     \
  F(kMemoryReadWrite, 3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)                            \
  F(kGranularityLeast, 0, CU_MEM_ALLOC_GRANULARITY_MINIMUM)                             \
  F(kHostPortable, 1, CU_MEMHOSTALLOC_PORTABLE)                                         \
  F(kStreamNonBlocking, 1, CU_STREAM_NON_BLOCKING)                                      \
  F(kEventNoTiming, 2, CU_EVENT_DISABLE_TIMING)                                         \
  F(kCaptureThread, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)                             \
  F(kFunctionFixedShared, 1, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)                       \
  F(kFunctionShared, 8, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)                \
  F(kResourceOfMultiprocessors, 1, CU_DEV_RESOURCE_TYPE_SM)                             \
  F(kGreenDefaultStream, 1, CU_GREEN_CTX_DEFAULT_STREAM)
#define PIPER_CUBLASLT_NUMBERS(F)                                   \
  F(kLtF32, 0, CUDA_R_32F)                                          \
  F(kLtF64, 1, CUDA_R_64F)                                          \
  F(kLtF16, 2, CUDA_R_16F)                                          \
  F(kLtBF16, 14, CUDA_R_16BF)                                       \
  F(kLtComputeF32, 68, CUBLAS_COMPUTE_32F)                          \
  F(kLtComputeF64, 70, CUBLAS_COMPUTE_64F)                          \
  F(kLtNotTransposed, 0, CUBLAS_OP_N)                               \
  F(kLtTransposed, 1, CUBLAS_OP_T)                                  \
  F(kLtTransA, 3, CUBLASLT_MATMUL_DESC_TRANSA)                      \
  F(kLtTransB, 4, CUBLASLT_MATMUL_DESC_TRANSB)                      \
  F(kLtEpilogue, 7, CUBLASLT_MATMUL_DESC_EPILOGUE)                  \
  F(kLtBias, 8, CUBLASLT_MATMUL_DESC_BIAS_POINTER)                  \
  F(kLtBiasType, 26, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)           \
  F(kLtBiasStep, 10, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE)        \
  F(kLtAux, 11, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER)          \
  F(kLtAuxRow, 12, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD)            \
  F(kLtAuxStep, 13, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE) \
  F(kLtAuxType, 22, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE)    \
  F(kLtEpilogueNone, 1, CUBLASLT_EPILOGUE_DEFAULT)                  \
  F(kLtEpilogueBias, 4, CUBLASLT_EPILOGUE_BIAS)                     \
  F(kLtEpilogueGelu, 32, CUBLASLT_EPILOGUE_GELU)                    \
  F(kLtEpilogueGeluAux, 160, CUBLASLT_EPILOGUE_GELU_AUX)            \
  F(kLtEpilogueGeluBias, 36, CUBLASLT_EPILOGUE_GELU_BIAS)           \
  F(kLtEpilogueGeluAuxBias, 164, CUBLASLT_EPILOGUE_GELU_AUX_BIAS)   \
  F(kLtBatch, 5, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)                \
  F(kLtStep, 6, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)        \
  F(kLtMostWorkspace, 1, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)  \
  F(kLtReductions, 3, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)   \
  F(kLtAlignmentA, 5, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)   \
  F(kLtAlignmentB, 6, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)   \
  F(kLtAlignmentC, 7, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)   \
  F(kLtAlignmentD, 8, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)   \
  F(kLtReductionNone, 0, CUBLASLT_REDUCTION_SCHEME_NONE)            \
  F(kLtReductionStored, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)  \
  F(kLtAlgorithmId, 0, CUBLASLT_ALGO_CONFIG_ID)                     \
  F(kLtTile, 1, CUBLASLT_ALGO_CONFIG_TILE_ID)                       \
  F(kLtSplit, 2, CUBLASLT_ALGO_CONFIG_SPLITK_NUM)                   \
  F(kLtReduction, 3, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)         \
  F(kLtSwizzle, 4, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING)              \
  F(kLtCustom, 5, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)               \
  F(kLtStages, 6, CUBLASLT_ALGO_CONFIG_STAGES_ID)                   \
  F(kLtInner, 7, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID)               \
  F(kLtCluster, 8, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)
#define PIPER_CUDNN_NUMBERS(F)                                              \
  F(kDnnF32, 0, CUDNN_DATA_FLOAT)                                           \
  F(kDnnF16, 2, CUDNN_DATA_HALF)                                            \
  F(kDnnI32, 4, CUDNN_DATA_INT32)                                           \
  F(kDnnBF16, 9, CUDNN_DATA_BFLOAT16)                                       \
  F(kDnnBool, 11, CUDNN_DATA_BOOLEAN)                                       \
  F(kDnnTypeHandle, 0, CUDNN_TYPE_HANDLE)                                   \
  F(kDnnTypeDataType, 1, CUDNN_TYPE_DATA_TYPE)                              \
  F(kDnnTypeBool, 2, CUDNN_TYPE_BOOLEAN)                                    \
  F(kDnnTypeI64, 3, CUDNN_TYPE_INT64)                                       \
  F(kDnnTypePointer, 6, CUDNN_TYPE_VOID_PTR)                                \
  F(kDnnTypeHeuristic, 8, CUDNN_TYPE_HEUR_MODE)                             \
  F(kDnnTypeNote, 11, CUDNN_TYPE_NUMERICAL_NOTE)                            \
  F(kDnnTypePointwise, 14, CUDNN_TYPE_POINTWISE_MODE)                       \
  F(kDnnTypeDescriptor, 15, CUDNN_TYPE_BACKEND_DESCRIPTOR)                  \
  F(kDnnTypeReduction, 18, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE)              \
  F(kDnnTypeChar, 24, CUDNN_TYPE_CHAR)                                      \
  F(kDnnPointwise, 0, CUDNN_BACKEND_POINTWISE_DESCRIPTOR)                   \
  F(kDnnEngine, 2, CUDNN_BACKEND_ENGINE_DESCRIPTOR)                         \
  F(kDnnChoice, 3, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)                      \
  F(kDnnHeuristic, 4, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)                  \
  F(kDnnPlan, 5, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)                   \
  F(kDnnPointwiseOp, 13, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)      \
  F(kDnnGraph, 15, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)                 \
  F(kDnnPack, 16, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)                    \
  F(kDnnTensor, 17, CUDNN_BACKEND_TENSOR_DESCRIPTOR)                        \
  F(kDnnProduct, 18, CUDNN_BACKEND_MATMUL_DESCRIPTOR)                       \
  F(kDnnProductOp, 19, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)           \
  F(kDnnReduction, 21, CUDNN_BACKEND_REDUCTION_DESCRIPTOR)                  \
  F(kDnnReductionOp, 22, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)      \
  F(kDnnReshapeOp, 31, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)          \
  F(kDnnProperties, 38, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)                \
  F(kDnnPointwiseMode, 0, CUDNN_ATTR_POINTWISE_MODE)                        \
  F(kDnnPointwiseType, 1, CUDNN_ATTR_POINTWISE_MATH_PREC)                   \
  F(kDnnPointwiseAxis, 9, CUDNN_ATTR_POINTWISE_AXIS)                        \
  F(kDnnHeuristicMode, 200, CUDNN_ATTR_ENGINEHEUR_MODE)                     \
  F(kDnnHeuristicGraph, 201, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)         \
  F(kDnnHeuristicResults, 202, CUDNN_ATTR_ENGINEHEUR_RESULTS)               \
  F(kDnnHeuristicProperties, 204, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP)         \
  F(kDnnChoiceEngine, 300, CUDNN_ATTR_ENGINECFG_ENGINE)                     \
  F(kDnnPlanHandle, 400, CUDNN_ATTR_EXECUTION_PLAN_HANDLE)                  \
  F(kDnnPlanChoice, 401, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)           \
  F(kDnnPlanWorkspace, 402, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)       \
  F(kDnnPlanProperties, 407, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)          \
  F(kDnnPointwiseOpMode, 750, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR) \
  F(kDnnPointwiseX, 751, CUDNN_ATTR_OPERATION_POINTWISE_XDESC)              \
  F(kDnnPointwiseB, 752, CUDNN_ATTR_OPERATION_POINTWISE_BDESC)              \
  F(kDnnPointwiseY, 753, CUDNN_ATTR_OPERATION_POINTWISE_YDESC)              \
  F(kDnnPointwiseT, 758, CUDNN_ATTR_OPERATION_POINTWISE_TDESC)              \
  F(kDnnPointwiseDx, 756, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC)            \
  F(kDnnPointwiseDy, 757, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC)            \
  F(kDnnGraphHandle, 800, CUDNN_ATTR_OPERATIONGRAPH_HANDLE)                 \
  F(kDnnGraphOps, 801, CUDNN_ATTR_OPERATIONGRAPH_OPS)                       \
  F(kDnnTensorAlignment, 900, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)             \
  F(kDnnTensorType, 901, CUDNN_ATTR_TENSOR_DATA_TYPE)                       \
  F(kDnnTensorDims, 902, CUDNN_ATTR_TENSOR_DIMENSIONS)                      \
  F(kDnnTensorSteps, 903, CUDNN_ATTR_TENSOR_STRIDES)                        \
  F(kDnnTensorId, 906, CUDNN_ATTR_TENSOR_UNIQUE_ID)                         \
  F(kDnnTensorInside, 907, CUDNN_ATTR_TENSOR_IS_VIRTUAL)                    \
  F(kDnnTensorByValue, 908, CUDNN_ATTR_TENSOR_IS_BY_VALUE)                  \
  F(kDnnPackIds, 1000, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)                  \
  F(kDnnPackPointers, 1001, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)          \
  F(kDnnPackWorkspace, 1003, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)             \
  F(kDnnEngineNotes, 1303, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE)                \
  F(kDnnProductType, 1500, CUDNN_ATTR_MATMUL_COMP_TYPE)                     \
  F(kDnnProductA, 1520, CUDNN_ATTR_OPERATION_MATMUL_ADESC)                  \
  F(kDnnProductB, 1521, CUDNN_ATTR_OPERATION_MATMUL_BDESC)                  \
  F(kDnnProductC, 1522, CUDNN_ATTR_OPERATION_MATMUL_CDESC)                  \
  F(kDnnProductOpType, 1523, CUDNN_ATTR_OPERATION_MATMUL_DESC)              \
  F(kDnnReductionMode, 1600, CUDNN_ATTR_REDUCTION_OPERATOR)                 \
  F(kDnnReductionType, 1601, CUDNN_ATTR_REDUCTION_COMP_TYPE)                \
  F(kDnnReductionSame, 1602, CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC)         \
  F(kDnnReductionX, 1610, CUDNN_ATTR_OPERATION_REDUCTION_XDESC)             \
  F(kDnnReductionY, 1611, CUDNN_ATTR_OPERATION_REDUCTION_YDESC)             \
  F(kDnnReductionOpMode, 1612, CUDNN_ATTR_OPERATION_REDUCTION_DESC)         \
  F(kDnnReshapeX, 2200, CUDNN_ATTR_OPERATION_RESHAPE_XDESC)                 \
  F(kDnnReshapeY, 2201, CUDNN_ATTR_OPERATION_RESHAPE_YDESC)                 \
  F(kDnnPropertiesText, 2702, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION)    \
  F(kDnnAdd, 0, CUDNN_POINTWISE_ADD)                                        \
  F(kDnnMul, 1, CUDNN_POINTWISE_MUL)                                        \
  F(kDnnDiv, 6, CUDNN_POINTWISE_DIV)                                        \
  F(kDnnSub, 9, CUDNN_POINTWISE_SUB)                                        \
  F(kDnnExp, 13, CUDNN_POINTWISE_EXP)                                       \
  F(kDnnLog, 15, CUDNN_POINTWISE_LOG)                                       \
  F(kDnnTanh, 101, CUDNN_POINTWISE_TANH_FWD)                                \
  F(kDnnTanhBack, 201, CUDNN_POINTWISE_TANH_BWD)                            \
  F(kDnnAtLeast, 303, CUDNN_POINTWISE_CMP_GE)                               \
  F(kDnnIndex, 501, CUDNN_POINTWISE_GEN_INDEX)                              \
  F(kDnnSelect, 601, CUDNN_POINTWISE_BINARY_SELECT)                         \
  F(kDnnReduceAdd, 0, CUDNN_REDUCE_TENSOR_ADD)                              \
  F(kDnnReduceMax, 3, CUDNN_REDUCE_TENSOR_MAX)                              \
  F(kDnnHeuristicA, 3, CUDNN_HEUR_MODE_A)                                   \
  F(kDnnNondeterministic, 4, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)         \
  F(kDnnNotes, 10, CUDNN_NUMERICAL_NOTE_TYPE_COUNT)

namespace piper::cuda {

#define PIPER_HANDLE(name, vendor) struct name;
PIPER_CUDA_HANDLES(PIPER_HANDLE)
PIPER_NVRTC_HANDLES(PIPER_HANDLE)
PIPER_CUBLASLT_HANDLES(PIPER_HANDLE)
PIPER_NCCL_HANDLES(PIPER_HANDLE)
PIPER_CUDNN_HANDLES(PIPER_HANDLE)
#undef PIPER_HANDLE
using CuAddress = unsigned long long;
using CuMemory = unsigned long long;  // pages that addresses are mapped to

struct CuMemProperties {  // CUmemAllocationProp
  int type = 0, handle = 0, place = 0, device = 0;
  void* windows = nullptr;
  unsigned char compression = 0, rdma = 0;  // rdma: adapters of a network may reach the memory
  unsigned short usage = 0;
  unsigned char unused[4] = {};
};
struct CuMemAccess {  // CUmemAccessDesc
  int place = 0, device = 0, access = 0;
};
struct CuResource {  // CUdevResource
  int type = 0;
  unsigned char unused[92] = {};
  unsigned multiprocessors = 0;
  unsigned char more[44] = {};
};
struct LtAlgorithm {  // cublasLtMatmulAlgo_t
  uint64_t data[8] = {};
};
struct LtHeuristic {  // cublasLtMatmulHeuristicResult_t
  LtAlgorithm algorithm;
  size_t workspace = 0;
  int state = 0;
  float waves = 0;
  int unused[4] = {};
};

#define PIPER_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
struct Driver {
  PIPER_CUDA_DRIVER(PIPER_MEMBER)
};
struct Green {
  PIPER_CUDA_GREEN(PIPER_MEMBER)
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
struct NcclWindows {
  PIPER_NCCL_WINDOWS(PIPER_MEMBER)
};
#undef PIPER_MEMBER

#define PIPER_NUMBER(name, value, vendor) name = value,
enum CudaNumber { PIPER_CUDA_NUMBERS(PIPER_NUMBER) };
enum LtNumber { PIPER_CUBLASLT_NUMBERS(PIPER_NUMBER) };
enum NcclNumber { PIPER_NCCL_NUMBERS(PIPER_NUMBER) PIPER_NCCL_NEW_NUMBERS(PIPER_NUMBER) };
enum DnnNumber { PIPER_CUDNN_NUMBERS(PIPER_NUMBER) };
#undef PIPER_NUMBER

}  // namespace piper::cuda
