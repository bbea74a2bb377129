// What Piper calls of NCCL, in declarations of its own: part of api.h.
#pragma once

#include <cstddef>

#define PIPER_NCCL_HANDLES(F) F(NcclComm, ncclComm)

// (function, result, arguments)
#define PIPER_NCCL(F)                                                                              \
  F(ncclGetVersion, int, (int*))                                                                   \
  F(ncclGetErrorString, const char*, (int))                                                        \
  F(ncclGetLastError, const char*, (NcclComm*))                                                    \
  F(ncclGetUniqueId, int, (NcclId*))                                                               \
  F(ncclCommInitRankConfig, int, (NcclComm**, int size, NcclId, int rank, NcclConfig*))            \
  F(ncclCommGetAsyncError, int, (NcclComm*, int*))                                                 \
  F(ncclCommFinalize, int, (NcclComm*))                                                            \
  F(ncclCommDestroy, int, (NcclComm*))                                                             \
  F(ncclCommAbort, int, (NcclComm*))                                                               \
  F(ncclGroupStart, int, ())                                                                       \
  F(ncclGroupEnd, int, ())                                                                         \
  F(ncclSend, int, (const void*, size_t count, int type, int peer, NcclComm*, CuStream*))          \
  F(ncclRecv, int, (void*, size_t count, int type, int peer, NcclComm*, CuStream*))                \
  F(ncclAllReduce, int,                                                                            \
    (const void* from, void* to, size_t count, int type, int operation, NcclComm*, CuStream*))     \
  F(ncclReduceScatter, int,                                                                        \
    (const void* from, void* to, size_t each, int type, int operation, NcclComm*, CuStream*))      \
  F(ncclAllGather, int, (const void* from, void* to, size_t each, int type, NcclComm*, CuStream*)) \
  F(ncclReduce, int,                                                                               \
    (const void* from, void* to, size_t count, int type, int operation, int root, NcclComm*,       \
     CuStream*))                                                                                   \
  F(ncclCommRegister, int, (NcclComm*, void* at, size_t bytes, void** registered))                 \
  F(ncclCommDeregister, int, (NcclComm*, void* registered))

// NCCL has these from 2.27 on, for memory that all members register together.
#define PIPER_NCCL_WINDOWS(F)                                                                  \
  F(ncclCommWindowRegister, int, (NcclComm*, void* at, size_t bytes, NcclWindow**, int flags)) \
  F(ncclCommWindowDeregister, int, (NcclComm*, NcclWindow*))

// (our name, number, the vendor's name)
#define PIPER_NCCL_NUMBERS(F)           \
  F(kNcclInProgress, 7, ncclInProgress) \
  F(kNcclInt8, 0, ncclInt8)             \
  F(kNcclInt32, 2, ncclInt32)           \
  F(kNcclInt64, 4, ncclInt64)           \
  F(kNcclF16, 6, ncclFloat16)           \
  F(kNcclF32, 7, ncclFloat32)           \
  F(kNcclF64, 8, ncclFloat64)           \
  F(kNcclBF16, 9, ncclBfloat16)         \
  F(kNcclSum, 0, ncclSum)               \
  F(kNcclMax, 2, ncclMax)               \
  F(kNcclUndefined, (-2147483647 - 1), NCCL_CONFIG_UNDEF_INT)

// From 2.27 on.
#define PIPER_NCCL_NEW_NUMBERS(F)               \
  F(kNcclSymmetric, 1, NCCL_WIN_COLL_SYMMETRIC) \
  F(kNcclEfficient, 1, NCCL_CTA_POLICY_EFFICIENCY)

namespace piper::cuda {

struct NcclComm;
struct NcclWindow;  // ncclWindow_vidmem
struct CuStream;
struct NcclId {  // ncclUniqueId
  char bytes[128] = {};
};
// Is ncclConfig_t as of NCCL 2.28, of which older ones read the beginning and newer ones all: its
// size and version say so.
struct NcclConfig {
  static constexpr int kUndefined = -2147483647 - 1;
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef, version = 22800;
  int blocking = kUndefined, cluster = kUndefined, least_blocks = kUndefined,
      most_blocks = kUndefined;
  const char* net = nullptr;
  int shares = kUndefined, traffic = kUndefined;
  const char* name = nullptr;
  int collective_nets = kUndefined, policy = kUndefined, shrink_shares = kUndefined,
      switch_blocks = kUndefined, channels_a_peer = kUndefined, switch_centric = kUndefined;
};

}  // namespace piper::cuda
