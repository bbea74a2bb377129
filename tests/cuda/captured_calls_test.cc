// NCCL's calls in graphs, as the fake has them (fake_cuda/fake.h): what is legal moves the bytes
// again with each launch, and what is not is said. Two ranks, of one thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "fake_library.h"
#include "piper/base/base.h"

namespace piper::cuda {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 64;

class CapturedCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(fake_library(), nullptr) << dlerror();
    fill(driver);
    fill(nccl);
    report = reinterpret_cast<int (*)()>(dlsym(fake_library(), "fake_cuda_report"));
    ::testing::internal::CaptureStderr();
    ASSERT_EQ(driver.cuInit(0), 0);
    ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, 0), 0);
    ASSERT_EQ(driver.cuCtxSetCurrent(context), 0);
    for (CuStream*& stream : streams)
      ASSERT_EQ(driver.cuStreamCreateWithPriority(&stream, kStreamNonBlocking, 0), 0);
    for (CuEvent*& event : events) ASSERT_EQ(driver.cuEventCreate(&event, kEventNoTiming), 0);
    for (CuAddress& at : memory) ASSERT_EQ(driver.cuMemAlloc_v2(&at, kBytes), 0);
    NcclId id;
    ASSERT_EQ(nccl.ncclGetUniqueId(&id), 0);
    NcclConfig config;
    config.blocking = 0;
    config.cluster = 1;
    config.name = "a pair";
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_EQ(nccl.ncclCommInitRankConfig(&ranks[rank], 2, id, rank, &config), kNcclInProgress);
  }
  void settle(int rank) {
    int state = kNcclInProgress;
    while (state == kNcclInProgress) ASSERT_EQ(nccl.ncclCommGetAsyncError(ranks[rank], &state), 0);
    EXPECT_EQ(state, 0);
  }
  // Rank 0 sends what rank 1 receives. The call is not done yet.
  void begin_call(int rank, int stream) {
    ASSERT_EQ(nccl.ncclGroupStart(), 0);
    void* const at = reinterpret_cast<void*>(memory[rank]);
    const int code = rank == 0 ? nccl.ncclSend(at, kBytes, kNcclInt8, 1, ranks[0], streams[stream])
                               : nccl.ncclRecv(at, kBytes, kNcclInt8, 0, ranks[1], streams[stream]);
    ASSERT_EQ(code, 0);
    ASSERT_EQ(nccl.ncclGroupEnd(), kNcclInProgress);
  }
  void call(int rank, int stream) {
    begin_call(rank, stream);
    settle(rank);
  }
  // Outside of graphs, as communicators want it first; neither call is done before the other began.
  void connect(int stream_of_sender = 0) {
    begin_call(0, stream_of_sender);
    begin_call(1, 1);
    settle(0);
    settle(1);
    ASSERT_EQ(driver.cuCtxSynchronize(), 0);
  }
  void begin(int stream) {
    ASSERT_EQ(driver.cuStreamBeginCapture_v2(streams[stream], kCaptureThread), 0);
  }
  CuGraphExec* captured(int stream) {
    CuGraph* graph = nullptr;
    EXPECT_EQ(driver.cuStreamEndCapture(streams[stream], &graph), 0);
    EXPECT_EQ(driver.cuGraphInstantiateWithFlags(&graphs.emplace_back(), graph, 0), 0);
    EXPECT_EQ(driver.cuGraphDestroy(graph), 0);
    return graphs.back();
  }
  void after(int later, int earlier, int event) {
    ASSERT_EQ(driver.cuEventRecord(events[event], streams[earlier]), 0);
    ASSERT_EQ(driver.cuStreamWaitEvent(streams[later], events[event], 0), 0);
  }
  // What was said on stderr, of which nothing is about what is left.
  std::string end() {
    for (CuGraphExec* graph : graphs) driver.cuGraphExecDestroy(graph);
    for (NcclComm* rank : ranks) EXPECT_EQ(nccl.ncclCommAbort(rank), 0);
    driver.cuCtxSynchronize();
    for (CuStream* stream : streams) EXPECT_EQ(driver.cuStreamDestroy_v2(stream), 0);
    for (CuEvent* each : events) EXPECT_EQ(driver.cuEventDestroy_v2(each), 0);
    for (const CuAddress at : memory) driver.cuMemFree_v2(at);
    EXPECT_EQ(driver.cuDevicePrimaryCtxRelease_v2(0), 0);
    driver.cuCtxSetCurrent(nullptr);
    report();
    return ::testing::internal::GetCapturedStderr();
  }

  Driver driver;
  Nccl nccl;
  int (*report)() = nullptr;
  CuContext* context = nullptr;
  CuStream* streams[3] = {};
  CuEvent* events[2] = {};
  CuAddress memory[2] = {};
  NcclComm* ranks[2] = {};
  std::vector<CuGraphExec*> graphs;
};

TEST_F(CapturedCalls, MoveTheBytesWithEachLaunch) {
  connect(2);
  begin(0);
  after(2, 0, 0);
  call(0, 2);
  after(0, 2, 1);
  CuGraphExec* const sends = captured(0);
  begin(1);
  call(1, 1);
  CuGraphExec* const receives = captured(1);
  for (unsigned turn = 1; turn <= 20; ++turn) {
    driver.cuMemsetD32Async(memory[0], turn, kBytes / 4, streams[0]);
    ASSERT_EQ(driver.cuGraphLaunch(sends, streams[0]), 0);
    ASSERT_EQ(driver.cuGraphLaunch(receives, streams[1]), 0);
    ASSERT_EQ(driver.cuStreamSynchronize(streams[1]), 0);
    EXPECT_EQ(reinterpret_cast<unsigned*>(memory[1])[5], turn);
  }
  EXPECT_EQ(end(), "");
}

// A first call is not done before the peer has made its own, whatever else either of them queues.
TEST_F(CapturedCalls, WaitForThePeersFirst) {
  begin_call(0, 0);
  int state = 0;
  for (int look = 0; look < 100; ++look) {
    ASSERT_EQ(nccl.ncclCommGetAsyncError(ranks[0], &state), 0);
    ASSERT_EQ(state, kNcclInProgress);
  }
  begin_call(1, 1);
  settle(0);
  settle(1);
  call(0, 0);  // but the second
  call(1, 1);
  EXPECT_EQ(driver.cuCtxSynchronize(), 0);
  EXPECT_EQ(end(), "");
}

TEST_F(CapturedCalls, AreNotKeptWhereNobodyWaitsForTheirStream) {
  connect(2);
  begin(0);
  after(2, 0, 0);
  call(0, 2);
  CuGraph* graph = nullptr;
  EXPECT_EQ(driver.cuStreamEndCapture(streams[0], &graph), 904);
  EXPECT_THAT(end(), HasSubstr("1 of 1 nodes are not joined to the stream\n"));
}

// The library has not queued it yet when the capture ends: it stands outside of the graph.
TEST_F(CapturedCalls, AreWaitedForBeforeTheCaptureEnds) {
  connect();
  begin(0);
  begin_call(0, 0);
  CuGraphExec* const sends = captured(0);
  settle(0);
  begin(1);
  call(1, 1);
  CuGraphExec* const receives = captured(1);
  driver.cuGraphLaunch(sends, streams[0]);
  driver.cuGraphLaunch(receives, streams[1]);
  EXPECT_NE(driver.cuCtxSynchronize(), 0);
  EXPECT_THAT(end(), HasSubstr("in a graph"));
}

TEST_F(CapturedCalls, StandInGraphsOnBothSides) {
  connect();
  begin(0);
  call(0, 0);
  driver.cuGraphLaunch(captured(0), streams[0]);
  call(1, 1);
  EXPECT_NE(driver.cuCtxSynchronize(), 0);
  EXPECT_THAT(end(), HasSubstr("in a graph"));
}

TEST_F(CapturedCalls, OfACommunicatorHaveAnOrder) {
  connect();
  begin(0);
  after(2, 0, 0);
  call(0, 0);
  call(0, 2);
  after(0, 2, 1);
  CuGraphExec* const sends = captured(0);
  begin(1);
  call(1, 1);
  call(1, 1);
  CuGraphExec* const receives = captured(1);
  int turn = 0;
  for (int code = 0; code == 0 && turn < 50; ++turn) {
    driver.cuGraphLaunch(sends, streams[0]);
    driver.cuGraphLaunch(receives, streams[1]);
    code = driver.cuCtxSynchronize();
  }
  EXPECT_LT(turn, 50);
  EXPECT_THAT(end(),
              HasSubstr("a communicator's calls begin in another order than they were made in\n"));
}

TEST_F(CapturedCalls, AreNotTheFirst) {
  begin(0);
  begin_call(0, 0);
  int state = kNcclInProgress;
  while (state == kNcclInProgress) ASSERT_EQ(nccl.ncclCommGetAsyncError(ranks[0], &state), 0);
  EXPECT_NE(state, 0);
  captured(0);
  EXPECT_THAT(end(), HasSubstr("a communicator's first call is captured\n"));
}

// Nothing is queued beside a graph that runs where the environment switches that off, whatever
// stream it is on.
TEST_F(CapturedCalls, AreAloneWhereGraphsMixWithNothing) {
  connect();
  begin(0);
  call(0, 0);
  CuGraphExec* const sends = captured(0);
  begin(1);
  call(1, 1);
  CuGraphExec* const receives = captured(1);
  for (const char* const mixes : {"1", "0"}) {
    setenv("NCCL_GRAPH_MIXING_SUPPORT", mixes, 1);
    ASSERT_EQ(driver.cuGraphLaunch(sends, streams[0]), 0);
    ASSERT_EQ(driver.cuGraphLaunch(receives, streams[1]), 0);
    call(0, 0);
    call(1, 1);
    EXPECT_EQ(driver.cuCtxSynchronize(), 0);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("NCCL_GRAPH_MIXING_SUPPORT is 0\n") != std::string::npos, *mixes == '0');
    ::testing::internal::CaptureStderr();
  }
  unsetenv("NCCL_GRAPH_MIXING_SUPPORT");
  EXPECT_EQ(end(), "");
}

// What a group writes nobody else in it reads or writes; a gather may be in place, at its own part.
TEST_F(CapturedCalls, OfAGroupTouchMemoryOfTheirOwn) {
  connect();
  char* const at = reinterpret_cast<char*>(memory[0]);
  constexpr size_t kPart = kBytes / 2;
  const auto said = [&](const auto& calls) {
    nccl.ncclGroupStart();
    calls();
    nccl.ncclGroupEnd();
    const std::string text = ::testing::internal::GetCapturedStderr();
    ::testing::internal::CaptureStderr();
    nccl.ncclCommAbort(ranks[0]);
    NcclId id;
    nccl.ncclGetUniqueId(&id);
    NcclConfig config;
    config.blocking = 0, config.cluster = 1, config.name = "another";
    nccl.ncclCommInitRankConfig(&ranks[0], 2, id, 0, &config);
    return text;
  };
  EXPECT_EQ(said([&] {
              nccl.ncclSend(at, kPart, kNcclInt8, 1, ranks[0], streams[0]);
              nccl.ncclRecv(at + kPart, kPart, kNcclInt8, 1, ranks[0], streams[0]);
            }),
            "");
  EXPECT_THAT(said([&] {
                nccl.ncclSend(at, kPart, kNcclInt8, 1, ranks[0], streams[0]);
                nccl.ncclRecv(at + kPart - 1, kPart, kNcclInt8, 1, ranks[0], streams[0]);
              }),
              HasSubstr("writes where another one of its group reads or writes\n"));
  EXPECT_EQ(said([&] { nccl.ncclAllGather(at, at, kPart, kNcclInt8, ranks[0], streams[0]); }), "");
  EXPECT_THAT(
      said([&] { nccl.ncclAllGather(at + kPart, at, kPart, kNcclInt8, ranks[0], streams[0]); }),
      HasSubstr("an operation writes over what it reads\n"));
  EXPECT_EQ(end(), "");
}

TEST_F(CapturedCalls, GoWithTheirGraphBeforeTheirCommunicator) {
  connect();
  begin(0);
  call(0, 0);
  captured(0);
  EXPECT_EQ(nccl.ncclCommDestroy(ranks[0]), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("ncclCommDestroy: a graph has calls of the communicator\n"));
}

// What asks for or waits for work, or takes memory, ends the capture.
TEST_F(CapturedCalls, StandWithNothingThatWaits) {
  ASSERT_EQ(driver.cuEventRecord(events[0], streams[2]), 0);
  CuAddress none = 0;
  for (const auto& calls : std::initializer_list<std::function<int()>>{
           [&] { return driver.cuEventQuery(events[0]); },
           [&] { return driver.cuEventSynchronize(events[0]); },
           [&] { return driver.cuStreamSynchronize(streams[2]); },
           [&] { return driver.cuMemAlloc_v2(&none, 4); }}) {
    begin(0);
    EXPECT_EQ(calls(), 900);
    CuGraph* graph = nullptr;
    EXPECT_EQ(driver.cuStreamEndCapture(streams[0], &graph), 901);
  }
  EXPECT_THAT(end(), HasSubstr("cuEventQuery: it may not be called in capture\n"));
}

}  // namespace
}  // namespace piper::cuda
