// The faked driver, NVRTC and cuBLASLt: what is legal runs in any order that is, and misuse is
// said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "fake_library.h"
#include "piper/base/base.h"

namespace piper::cuda {
namespace {

using ::testing::HasSubstr;

class FakeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(fake_library(), nullptr) << dlerror();
    fill(driver);
    fill(nvrtc);
    fill(lt);
    fill(nccl);
    fill(windows);
    report = reinterpret_cast<int (*)()>(dlsym(fake_library(), "fake_cuda_report"));
    ::testing::internal::CaptureStderr();
    ASSERT_EQ(driver.cuInit(0), 0);
    ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), 0);
    ASSERT_EQ(driver.cuCtxSetCurrent(context), 0);
    for (CuStream*& stream : streams)
      ASSERT_EQ(driver.cuStreamCreateWithPriority(&stream, kStreamNonBlocking, 0), 0);
    ASSERT_EQ(driver.cuEventCreate(&event, kEventNoTiming), 0);
    for (CuAddress& at : memory) ASSERT_EQ(driver.cuMemAlloc_v2(&at, kBytes), 0);
  }
  // What was said on stderr; nothing is left alive.
  std::string end() {
    for (CuStream* stream : streams) EXPECT_EQ(driver.cuStreamDestroy_v2(stream), 0);
    EXPECT_EQ(driver.cuEventDestroy_v2(event), 0);
    for (const CuAddress at : memory) EXPECT_EQ(driver.cuMemFree_v2(at), 0);
    EXPECT_EQ(driver.cuDevicePrimaryCtxRelease_v2(0), 0);
    driver.cuCtxSetCurrent(nullptr);
    report();
    return ::testing::internal::GetCapturedStderr();
  }
  template <class T>
  T* at(int i) const {
    return reinterpret_cast<T*>(memory[i]);
  }
  void set(int which, unsigned value, int stream) {
    ASSERT_EQ(driver.cuMemsetD32Async(memory[which], value, kBytes / 4, streams[stream]), 0);
  }
  void copy(int to, int from, int stream) {
    ASSERT_EQ(driver.cuMemcpyAsync(memory[to], memory[from], kBytes, streams[stream]), 0);
  }

  static constexpr size_t kBytes = 1024;
  Driver driver;
  Nvrtc nvrtc;
  CublasLt lt;
  Nccl nccl;
  NcclWindows windows;
  int (*report)() = nullptr;
  CuContext* context = nullptr;
  CuStream* streams[2] = {};
  CuEvent* event = nullptr;
  CuAddress memory[6] = {};
};

TEST_F(FakeCuda, StreamsKeepTheirOrderAndEventsThatOfTwo) {
  for (unsigned turn = 1; turn <= 50; ++turn) {
    set(0, turn, 0);
    ASSERT_EQ(driver.cuEventRecord(event, streams[0]), 0);
    ASSERT_EQ(driver.cuStreamWaitEvent(streams[1], event, 0), 0);
    copy(1, 0, 1);
    ASSERT_EQ(driver.cuStreamSynchronize(streams[1]), 0);
    EXPECT_EQ(at<unsigned>(1)[7], turn);
  }
  EXPECT_EQ(end(), "");
}

// Memory that a communicator knows is mapped, and known for shorter than either of them is there.
TEST_F(FakeCuda, CommunicatorsKnowMappedMemory) {
  constexpr size_t kPage = size_t{2} << 20;
  CuMemProperties wanted;
  wanted.type = kMemoryPinned;
  wanted.place = kMemoryOnDevice;
  CuAddress mapped = 0;
  CuMemory pages = 0;
  const CuMemAccess access{kMemoryOnDevice, 0, kMemoryReadWrite};
  ASSERT_EQ(driver.cuMemAddressReserve(&mapped, kPage, 0, 0, 0), 0);
  ASSERT_EQ(driver.cuMemCreate(&pages, kPage, &wanted, 0), 0);
  ASSERT_EQ(driver.cuMemMap(mapped, kPage, 0, pages, 0), 0);
  ASSERT_EQ(driver.cuMemSetAccess(mapped, kPage, &access, 1), 0);
  NcclId id;
  ASSERT_EQ(nccl.ncclGetUniqueId(&id), 0);
  NcclConfig config;
  config.blocking = 0;
  config.cluster = 1;
  config.name = "alone";
  NcclComm* comm = nullptr;
  ASSERT_EQ(nccl.ncclCommInitRankConfig(&comm, 1, id, 0, &config), kNcclInProgress);
  void* known = nullptr;
  NcclWindow* window = nullptr;
  EXPECT_NE(nccl.ncclCommRegister(comm, at<void>(0), kBytes, &known), 0);
  EXPECT_NE(nccl.ncclCommRegister(comm, reinterpret_cast<void*>(mapped), kPage + 1, &known), 0);
  ASSERT_EQ(nccl.ncclCommRegister(comm, reinterpret_cast<void*>(mapped), kPage, &known), 0);
  ASSERT_EQ(windows.ncclCommWindowRegister(comm, reinterpret_cast<void*>(mapped), kPage, &window,
                                           kNcclSymmetric),
            kNcclInProgress);
  EXPECT_EQ(nccl.ncclCommDeregister(comm, known), 0);
  EXPECT_NE(nccl.ncclCommDeregister(comm, known), 0);
  EXPECT_EQ(driver.cuMemUnmap(mapped, kPage), 0);
  EXPECT_EQ(nccl.ncclCommDestroy(comm), 0);
  EXPECT_EQ(driver.cuMemRelease(pages), 0);
  EXPECT_EQ(driver.cuMemAddressFree(mapped, kPage), 0);
  EXPECT_EQ(windows.ncclCommWindowDeregister(comm, window), 4);
  const std::string said = end();
  for (const char* const each : {"ncclCommRegister: it is no part of mapped memory",
                                 "ncclCommDeregister: a destroyed registration with a communicator",
                                 "memory: it is released while a communicator has it",
                                 "ncclCommDestroy: memory is still registered with it"})
    EXPECT_THAT(said, HasSubstr(each));
}

TEST_F(FakeCuda, WaitingForWhatWasNeverRecordedIsNoWait) {
  int late = 0;
  for (unsigned turn = 1; turn <= 50; ++turn) {
    set(0, turn, 0);
    ASSERT_EQ(driver.cuStreamWaitEvent(streams[1], event, 0), 0);
    copy(1, 0, 1);
    ASSERT_EQ(driver.cuCtxSynchronize(), 0);
    late += at<unsigned>(1)[7] != turn ? 1 : 0;
  }
  EXPECT_GT(late, 5);
  EXPECT_LT(late, 45);
  EXPECT_EQ(end(), "");
}

TEST_F(FakeCuda, HostMemoryIsReadWhenTheCopyRunsUnlessItIsPageable) {
  void* pinned = nullptr;
  ASSERT_EQ(driver.cuMemHostAlloc(&pinned, kBytes, 0), 0);
  std::string pageable(kBytes, 'p');
  std::memset(pinned, 'a', kBytes);
  driver.cuMemcpyAsync(memory[0], reinterpret_cast<CuAddress>(pinned), kBytes, streams[0]);
  driver.cuMemcpyAsync(memory[1], reinterpret_cast<CuAddress>(pageable.data()), kBytes, streams[0]);
  std::memset(pinned, 'b', kBytes);
  pageable.assign(kBytes, 'q');
  ASSERT_EQ(driver.cuStreamSynchronize(streams[0]), 0);
  EXPECT_EQ(at<char>(0)[0], 'b');
  EXPECT_EQ(at<char>(1)[0], 'p');
  EXPECT_EQ(driver.cuMemFreeHost(pinned), 0);
  EXPECT_EQ(end(), "");
}

TEST_F(FakeCuda, GraphsAreWhatWasCaptured) {
  CuGraph* graph = nullptr;
  CuGraphExec* runs = nullptr;
  ASSERT_EQ(driver.cuStreamBeginCapture_v2(streams[0], kCaptureThread), 0);
  set(0, 5, 0);
  driver.cuEventRecord(event, streams[0]);
  driver.cuStreamWaitEvent(streams[1], event, 0);
  copy(1, 0, 1);
  driver.cuEventRecord(event, streams[1]);
  driver.cuStreamWaitEvent(streams[0], event, 0);
  copy(2, 1, 0);
  ASSERT_EQ(driver.cuStreamEndCapture(streams[0], &graph), 0);
  ASSERT_EQ(driver.cuGraphInstantiateWithFlags(&runs, graph, 0), 0);
  EXPECT_EQ(driver.cuGraphDestroy(graph), 0);
  for (int turn = 0; turn < 2; ++turn) {
    set(2, 0, 0);
    ASSERT_EQ(driver.cuGraphLaunch(runs, streams[0]), 0);
    ASSERT_EQ(driver.cuStreamSynchronize(streams[0]), 0);
    EXPECT_EQ(at<unsigned>(2)[3], 5u);
  }
  EXPECT_EQ(driver.cuGraphExecDestroy(runs), 0);
  EXPECT_EQ(end(), "");
}

// A graph may run when pageable memory is gone; places of a copy, and lines of a memset, are apart.
TEST_F(FakeCuda, CopiesAndMemsetsSayWhatTheVendorLeavesOpen) {
  std::string pageable(kBytes, 'p');
  CuGraph* graph = nullptr;
  driver.cuStreamBeginCapture_v2(streams[0], kCaptureThread);
  driver.cuMemcpyAsync(memory[1], reinterpret_cast<CuAddress>(pageable.data()), kBytes, streams[0]);
  EXPECT_EQ(driver.cuStreamEndCapture(streams[0], &graph), 0);
  EXPECT_EQ(driver.cuGraphDestroy(graph), 0);
  EXPECT_EQ(driver.cuMemsetD2D32Async(memory[0], 8, 1, 1, kBytes / 8, streams[0]), 0);
  EXPECT_EQ(driver.cuMemsetD2D32Async(memory[0], 6, 1, 1, 4, streams[0]), 1);
  EXPECT_EQ(driver.cuMemsetD2D32Async(memory[0], 4, 1, 2, 4, streams[0]), 1);
  EXPECT_EQ(driver.cuMemcpyAsync(memory[0], memory[0] + 512, 512, streams[0]), 0);
  EXPECT_EQ(driver.cuStreamSynchronize(streams[0]), 0);
  EXPECT_EQ(driver.cuMemcpyAsync(memory[0], memory[0] + 511, 512, streams[0]), 0);
  EXPECT_EQ(driver.cuStreamSynchronize(streams[0]), 719);
  EXPECT_GT(report(), 0);  // work runs again
  const std::string said = end();
  for (const char* const each : {"cuMemcpyAsync: a graph copies pageable memory",
                                 "cuMemsetD2D32Async: lines that are not aligned, or overlap",
                                 "a copy: both places overlap\n"})
    EXPECT_THAT(said, HasSubstr(each));
}

TEST_F(FakeCuda, CapturesRefuseWaitsAndForksThatDoNotJoin) {
  CuGraph* graph = nullptr;
  driver.cuStreamBeginCapture_v2(streams[0], kCaptureThread);
  set(0, 5, 0);
  driver.cuEventRecord(event, streams[0]);
  driver.cuStreamWaitEvent(streams[1], event, 0);
  copy(1, 0, 1);
  CuAddress none = 0;
  EXPECT_EQ(driver.cuStreamSynchronize(streams[1]), 900);
  EXPECT_EQ(driver.cuMemAlloc_v2(&none, 4), 900);
  EXPECT_EQ(driver.cuEventQuery(event), 907);
  EXPECT_EQ(driver.cuStreamEndCapture(streams[1], &graph), 903);
  EXPECT_EQ(driver.cuStreamEndCapture(streams[0], &graph), 904);
  EXPECT_EQ(graph, nullptr);
  EXPECT_THAT(end(), HasSubstr("cuStreamEndCapture: 1 of 2 nodes are not joined to the stream\n"));
}

TEST_F(FakeCuda, CompilesLoadsAndLaunches) {
  auto source =
      read_text_file(PIPER_SOURCE_DIR "/src/devices/cuda_kernels/device/prelude.cuh", 1 << 20);
  ASSERT_TRUE(source.ok());
  *source +=
      "KERNEL(twice, 2, 64) {\n"
      "  const unsigned i = blockIdx.x * 64 + threadIdx.x;\n"
      "  p.at<float>(1)[i] = 2.0f * p.at<const float>(0)[i];\n"
      "}\n";
  NvrtcProgram* program = nullptr;
  const char* options[] = {"--gpu-architecture=sm_90"};
  ASSERT_EQ(nvrtc.nvrtcCreateProgram(&program, source->c_str(), "", 0, nullptr, nullptr), 0);
  EXPECT_EQ(nvrtc.nvrtcCompileProgram(program, 1, options), 7) << "its second library is not open";
  ASSERT_NE(dlopen(PIPER_FAKE_CUDA "/all/libnvrtc-builtins.so.13.5", RTLD_NOW), nullptr);
  ASSERT_EQ(nvrtc.nvrtcCompileProgram(program, 1, options), 0);
  size_t bytes = 0;
  ASSERT_EQ(nvrtc.nvrtcGetCUBINSize(program, &bytes), 0);
  std::string code(bytes, ' ');
  ASSERT_EQ(nvrtc.nvrtcGetCUBIN(program, code.data()), 0);
  ASSERT_EQ(nvrtc.nvrtcDestroyProgram(&program), 0);
  CuModule* module = nullptr;
  CuFunction* function = nullptr;
  ASSERT_EQ(driver.cuModuleLoadDataEx(&module, code.data(), 0, nullptr, nullptr), 0);
  EXPECT_EQ(driver.cuModuleGetFunction(&function, module, "thrice"), 500);
  ASSERT_EQ(driver.cuModuleGetFunction(&function, module, "twice"), 0);
  const float half = 0.5f;
  unsigned bits = 0;
  std::memcpy(&bits, &half, 4);
  set(0, bits, 0);
  set(1, 0, 0);
  void* parameter = memory;
  EXPECT_EQ(driver.cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, streams[0], &parameter, nullptr),
            0);
  ASSERT_EQ(driver.cuStreamSynchronize(streams[0]), 0);
  EXPECT_EQ(at<float>(1)[255], 1.0f);
  EXPECT_EQ(driver.cuModuleUnload(module), 0);
  EXPECT_EQ(end(), "");
}

// D [3, 5] of A [3, 4] and B [4, 5], columns one after the other in lines of 8, and all that can be
// done with it.
TEST_F(FakeCuda, MultipliesByColumns) {
  constexpr int kM = 3, kN = 5, kK = 4, kLine = 8;
  for (int i = 0; i < kLine * kN; ++i) {
    at<float>(0)[i] = static_cast<float>(i % 5) - 1.5f;
    at<float>(1)[i] = static_cast<float>(i % 3) - 0.5f;
    at<float>(2)[i] = static_cast<float>(i) / 16;  // C
    at<float>(3)[i] = static_cast<float>(i + 1);   // bias
  }
  LtContext* all = nullptr;
  LtDesc* description = nullptr;
  LtLayout *a = nullptr, *b = nullptr, *d = nullptr;
  LtPreference* preference = nullptr;
  ASSERT_EQ(lt.cublasLtCreate(&all), 0);
  lt.cublasLtMatmulDescCreate(&description, kLtComputeF32, kLtF32);
  const auto set = [&](int attribute, const auto& value) {
    EXPECT_EQ(lt.cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value), 0);
  };
  set(kLtTransA, int{kLtTransposed});  // A lies as [4, 3]
  set(kLtEpilogue, int{kLtEpilogueGeluAuxBias});
  set(kLtBias, memory[3]);
  set(kLtAux, memory[4]);
  set(kLtAuxRow, int64_t{kLine});
  lt.cublasLtMatrixLayoutCreate(&a, kLtF32, kK, kM, kLine);
  lt.cublasLtMatrixLayoutCreate(&b, kLtF32, kK, kN, kLine);
  lt.cublasLtMatrixLayoutCreate(&d, kLtF32, kM, kN, kLine);
  lt.cublasLtMatmulPreferenceCreate(&preference);
  LtHeuristic found;
  int count = 0;
  ASSERT_EQ(lt.cublasLtMatmulAlgoGetHeuristic(all, description, a, b, d, d, preference, 1, &found,
                                              &count),
            0);
  const float alpha = 2, beta = 1;
  ASSERT_EQ(
      lt.cublasLtMatmul(all, description, &alpha, at<char>(0), a, at<char>(1), b, &beta,
                        at<char>(2), d, at<char>(5), d, &found.algorithm, nullptr, 0, streams[0]),
      0);
  ASSERT_EQ(driver.cuStreamSynchronize(streams[0]), 0);
  for (int i = 0; i < kM; ++i)
    for (int j = 0; j < kN; ++j) {
      const int to = j * kLine + i;
      float sum = 0;
      for (int k = 0; k < kK; ++k) sum += at<float>(0)[i * kLine + k] * at<float>(1)[j * kLine + k];
      const float pre = 2 * sum + at<float>(2)[to] + at<float>(3)[i];
      EXPECT_EQ(at<float>(4)[to], pre);
      const double x = static_cast<double>(pre);
      const double y = x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      EXPECT_NEAR(at<float>(5)[to], y, 1e-6 * std::abs(x));
    }
  EXPECT_NE(
      lt.cublasLtMatmul(all, description, &alpha, at<char>(0) + 4, a, at<char>(1), b, &beta,
                        at<char>(2), d, at<char>(5), d, &found.algorithm, nullptr, 0, streams[0]),
      0);
  EXPECT_NE(
      lt.cublasLtMatmul(all, description, &alpha, at<char>(0), b, at<char>(1), b, &beta,
                        at<char>(2), d, at<char>(5), d, &found.algorithm, nullptr, 0, streams[0]),
      0);
  lt.cublasLtMatmulDescDestroy(description);
  for (LtLayout* layout : {a, b, d}) lt.cublasLtMatrixLayoutDestroy(layout);
  lt.cublasLtMatmulPreferenceDestroy(preference);
  lt.cublasLtDestroy(all);
  const std::string said = end();
  EXPECT_THAT(said, HasSubstr("operands that are less aligned than the preference promised\n"));
  EXPECT_THAT(said, HasSubstr("matrices that do not fit: 5x4 · 4x5 -> 3x5\n"));
}

// Memory of another device is copied by a plain copy where the current context has access, late to
// be said where it has not; a copy that names both contexts needs none.
TEST_F(FakeCuda, PlainCopiesFromOtherDevicesNeedAccess) {
  CuContext* other = nullptr;
  CuAddress there = 0;
  ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&other, 1), 0);
  ASSERT_EQ(driver.cuCtxSetCurrent(other), 0);
  ASSERT_EQ(driver.cuMemAlloc_v2(&there, kBytes), 0);
  ASSERT_EQ(driver.cuCtxSetCurrent(context), 0);
  EXPECT_EQ(driver.cuMemcpyPeerAsync(memory[0], context, there, other, kBytes, streams[0]), 0);
  EXPECT_EQ(driver.cuStreamSynchronize(streams[0]), 0);
  EXPECT_EQ(driver.cuMemcpyPeerAsync(memory[0], context, there, context, kBytes, streams[0]), 1);
  EXPECT_EQ(driver.cuMemcpyAsync(memory[0], there, kBytes, streams[0]), 0);
  EXPECT_EQ(driver.cuStreamSynchronize(streams[0]), 719);
  EXPECT_GT(report(), 0);  // work runs again
  int can = 0;
  EXPECT_EQ(driver.cuDeviceCanAccessPeer(&can, 0, 1), 0);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(driver.cuCtxEnablePeerAccess(other, 0), 0);
  EXPECT_EQ(driver.cuCtxEnablePeerAccess(other, 0), 704);
  EXPECT_EQ(driver.cuMemcpyAsync(memory[0], there, kBytes, streams[0]), 0);
  EXPECT_EQ(driver.cuStreamSynchronize(streams[0]), 0);
  EXPECT_EQ(driver.cuCtxSetCurrent(other), 0);
  EXPECT_EQ(driver.cuMemFree_v2(there), 0);
  EXPECT_EQ(driver.cuDevicePrimaryCtxRelease_v2(1), 0);
  EXPECT_EQ(driver.cuCtxSetCurrent(context), 0);
  EXPECT_THAT(end(), HasSubstr("a copy: device 0 has no access to memory of device 1\n"));
}

// The last one: nothing runs any more after work that failed.
TEST_F(FakeCuda, SaysWhatIsMisused) {
  CuStream* gone = nullptr;
  driver.cuStreamCreateWithPriority(&gone, 0, 0);
  EXPECT_EQ(driver.cuStreamDestroy_v2(gone), 0);
  EXPECT_NE(driver.cuStreamDestroy_v2(gone), 0);
  EXPECT_NE(driver.cuStreamSynchronize(gone), 0);
  EXPECT_NE(driver.cuEventRecord(reinterpret_cast<CuEvent*>(&gone), streams[0]), 0);
  driver.cuCtxSetCurrent(nullptr);
  CuAddress none = 0;
  EXPECT_NE(driver.cuMemAlloc_v2(&none, 4), 0);
  EXPECT_NE(driver.cuMemsetD8Async(memory[0], 0, 4, streams[0]), 0);
  driver.cuCtxSetCurrent(context);
  EXPECT_NE(driver.cuMemFree_v2(memory[0] + 4), 0);
  void* left = nullptr;
  driver.cuMemHostAlloc(&left, 24, 0);
  EXPECT_EQ(driver.cuMemsetD8Async(memory[0], 0, kBytes + 1, streams[0]), 0);
  EXPECT_NE(driver.cuStreamSynchronize(streams[0]), 0);
  const std::string said = ::testing::internal::GetCapturedStderr();
  for (const char* text :
       {"cuStreamDestroy_v2: a destroyed stream\n", "cuStreamSynchronize: a destroyed stream\n",
        "cuEventRecord: a handle that never was\n", "cuMemAlloc_v2: no context is current\n",
        "cuMemsetD8Async: the stream's context is not current\n",
        "cuMemFree_v2: memory that was not allocated so, or is released already\n",
        "a memset: 1025 bytes from byte 0 of 1024 bytes of memory\n"})
    EXPECT_THAT(said, HasSubstr(text));
  ::testing::internal::CaptureStderr();
  EXPECT_GT(report(), 7);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("never released: 24 bytes of host memory\n"));
}

}  // namespace
}  // namespace piper::cuda
