// The conformance suite on all transports: inproc and tcp between threads; mpi, and what only
// processes can do over tcp, by starting this program again with --rank-case.
#include "piper/runtime/transport.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "at_once.h"
#include "forwarding.h"
#include "sanitizer.h"
#include "shell.h"
#include "unit/transport_suite.h"

// Counts what MPI is given to send; all handles are pointers there.
static int64_t sent_bytes = 0;
extern "C" int PMPI_Isend(const void*, int, void*, int, int, void*, void**);
extern "C" int MPI_Isend(const void* data, int count, void* type, int peer, int tag, void* comm,
                         void** request) {
  sent_bytes += count;
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

// An MPI that gives no more than it is told.
static int greatest_level = 3;
extern "C" int PMPI_Init_thread(int*, char***, int, int*);
extern "C" int MPI_Init_thread(int* argc, char*** argv, int wanted, int* provided) {
  const int code = PMPI_Init_thread(argc, argv, wanted, provided);
  *provided = std::min(*provided, greatest_level);
  return code;
}

namespace piper {
namespace {

using suite::Case;
using suite::Fault;

// Runs `body` on `world` threads, each with its Control and its fabric.
template <class Body>
void run_ranks(int64_t world, double timeout_s, Body body) {
  auto job = make_inproc_world(world, TransportOptions{timeout_s});
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < world; ++i)
    threads.emplace_back([&, i] { body(job->rank(i).control(), job->rank(i).fabric()); });
  for (std::thread& thread : threads) thread.join();
}

class Inproc : public testing::TestWithParam<std::tuple<int64_t, size_t>> {};

TEST_P(Inproc, Conforms) {
  auto [world, index] = GetParam();
  const Case& one = suite::kCases[index];
  std::vector<std::string> wrong(static_cast<size_t>(world));
  run_ranks(world, 60,
            [&](Control&, Fabric& t) { wrong[static_cast<size_t>(t.rank())] = one.run(t); });
  for (int64_t i = 0; i < world; ++i) EXPECT_EQ(wrong[static_cast<size_t>(i)], "") << "rank " << i;
}
// Eight ranks on two cores take the thread sanitizer minutes, and it has seen their code with
// three.
std::vector<int64_t> worlds() {
  return kThreadSanitizer ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{2, 3, 8};
}
INSTANTIATE_TEST_SUITE_P(Suite, Inproc,
                         testing::Combine(testing::ValuesIn(worlds()),
                                          testing::Range(size_t{0}, std::size(suite::kCases))),
                         [](const auto& info) {
                           return fmt::format("{}_ranks_{}",
                                              suite::kCases[std::get<1>(info.param)].name,
                                              std::get<0>(info.param));
                         });

TEST(InprocWorld, HasBarriers) {
  for (const int64_t world : {2, 3, 8})
    run_ranks(world, 60,
              [&](Control& control, Fabric&) { EXPECT_EQ(suite::barriers(control), ""); });
}

class InprocFault : public testing::TestWithParam<size_t> {};

TEST_P(InprocFault, NamesBothSides) {
  const Fault& fault = suite::kFaults[GetParam()];
  std::vector<Status> got(4, ok_status());
  auto start = std::chrono::steady_clock::now();
  run_ranks(4, fault.timeout_s, [&](Control& control, Fabric& t) {
    got[static_cast<size_t>(t.rank())] = fault.run(control, t);
  });
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), kAtOnce);
  const Status& seen = got[std::string_view(fault.name) == "wrong_size" ? 1 : 0];
  ASSERT_FALSE(seen.ok());
  EXPECT_NE(seen.error().message.find(fault.expected), std::string::npos) << seen.error().message;
  if (fault.note != nullptr) {
    ASSERT_FALSE(seen.error().notes.empty());
    EXPECT_EQ(seen.error().notes[0], fault.note);
  }
  bool size = std::string_view(fault.name) == "wrong_size";
  EXPECT_EQ(seen.error().code, size ? ExitCode::kPlan : ExitCode::kPeer);
}
INSTANTIATE_TEST_SUITE_P(Suite, InprocFault, testing::Range(size_t{0}, std::size(suite::kFaults)),
                         [](const auto& info) { return suite::kFaults[info.param].name; });

TEST(InprocWorld, TellsWhereThePeerStands) {
  Status got = ok_status();
  run_ranks(2, 1, [&](Control& control, Fabric&) {
    if (control.rank() == 1) {
      control.activity().store("F stage=1 mb=3");
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    got = control.barrier();
  });
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().message, "rank 0 waited 1 s in the barrier of ranks [0,1] for rank 1");
  ASSERT_EQ(got.error().notes.size(), 1u);
  EXPECT_EQ(got.error().notes[0], "rank 1 is at F stage=1 mb=3");
}

TEST(InprocWorld, RefusesOtherReductionsAndBlocks) {
  Status reduced = ok_status(), gathered = ok_status();
  run_ranks(2, 5, [&](Control&, Fabric& t) {
    auto group = t.add_group(suite::everyone(t));
    float values[4] = {}, part[2] = {};
    const bool second = t.rank() == 1;
    const Piece piece{suite::bytes_of(values), DType::kF32, 4,
                      second ? Reduction::kMax : Reduction::kSum};
    const Status one =
        t.run(*group, {.kind = InstructionKind::kAllReduce, .pieces = std::span(&piece, 1)});
    const Shard shard{suite::bytes_of(values), suite::bytes_of(part), DType::kF32, 4, 2,
                      second ? 2 : 1};
    const Status two =
        t.run(*group, {.kind = InstructionKind::kAllGather, .shards = std::span(&shard, 1)});
    if (second) reduced = one, gathered = two;
  });
  ASSERT_FALSE(reduced.ok() || gathered.ok());
  EXPECT_EQ(reduced.error().message, "rank 1 brings other elements to the all-reduce than rank 0");
  EXPECT_EQ(gathered.error().message, "rank 1 brings other elements to the all-gather than rank 0");
}

// A laptop that slept, a node that was suspended: nobody is to blame.
TEST(InprocWorld, TimeInWhichTheProcessStoodStillDoesNotCount) {
  if (kThreadSanitizer) GTEST_SKIP() << "a fork with threads";
  const pid_t child = fork();
  if (child == 0) {
    bool fine = true;
    run_ranks(2, 0.8, [&](Control& control, Fabric&) {
      for (int i = 0; control.rank() == 1 && i < 25; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const Status met = control.barrier();
      if (!met) fine = false;
    });
    _exit(fine ? 0 : 1);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  kill(child, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  kill(child, SIGCONT);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(InprocWorld, OtherSizesInACollectiveAreRefusedByAll) {
  std::vector<std::string> got(2);
  run_ranks(2, 5, [&](Control&, Fabric& t) {
    auto group = t.add_group(suite::everyone(t));
    std::vector<float> data(100);
    const Piece pieces[] = {{suite::bytes_of(data.data()), DType::kF32, t.rank() == 0 ? 10 : 20}};
    Status status = t.run(*group, {.kind = InstructionKind::kAllReduce, .pieces = pieces});
    got[static_cast<size_t>(t.rank())] = status.ok() ? "" : status.error().message;
  });
  EXPECT_EQ(got[0], "rank 0 expects 64 bytes in the all-reduce with rank 1, which brings 128");
  EXPECT_EQ(got[1], "rank 1 expects 128 bytes in the all-reduce with rank 0, which brings 64");
}

// ---- Plans of one compilation -------------------------------------------------------------------

std::vector<std::string> agree_all(std::vector<PlanIdentity> plans) {
  std::vector<std::string> got(plans.size());
  run_ranks(static_cast<int64_t>(plans.size()), 5, [&](Control& control, Fabric&) {
    Status status = control.agree(plans[static_cast<size_t>(control.rank())]);
    got[static_cast<size_t>(control.rank())] = status.ok() ? "ok" : status.error().message;
  });
  return got;
}

TEST(Agree, AcceptsOneCompilation) {
  EXPECT_EQ(agree_all({{"aa", 0, 2, "p0"}, {"aa", 1, 2, "p1"}}),
            (std::vector<std::string>{"ok", "ok"}));
}

TEST(Agree, NamesBothSidesOnEveryRank) {
  std::string sets =
      "plans of two compilations: rank 0 holds set aa (p0), rank 1 holds set bb (p1)";
  EXPECT_EQ(agree_all({{"aa", 0, 2, "p0"}, {"bb", 1, 2, "p1"}}),
            (std::vector<std::string>{sets, sets}));
  std::string world = "the plan of rank 1 (p1) is for 4 ranks, but 2 take part";
  EXPECT_EQ(agree_all({{"aa", 0, 2, "p0"}, {"aa", 1, 4, "p1"}}),
            (std::vector<std::string>{world, world}));
  std::string kernels = "rank 0 computes with X, rank 1 with Y: their bits would differ";
  EXPECT_EQ(agree_all({{"aa", 0, 2, "p0", "X"}, {"aa", 1, 2, "p1", "Y"}}),
            (std::vector<std::string>{kernels, kernels}));
  PlanIdentity first{"aa", 0, 2, "p0"}, second{"aa", 1, 2, "p1"};
  first.flags = {{"--seed", "7"}, {"--steps", "3"}};
  second.flags = {{"--seed", "7"}, {"--steps", "5"}};
  std::string flags = "rank 1 runs with --steps 5, rank 0 with --steps 3";
  EXPECT_EQ(agree_all({first, second}), (std::vector<std::string>{flags, flags}));
  std::string twice = "two processes hold the plan of rank 0: numbers 0 and 1 (copy)";
  EXPECT_EQ(agree_all({{"aa", 0, 2, "p0"}, {"aa", 0, 2, "copy"}}),
            (std::vector<std::string>{twice, twice}));
}

// What differs far down in the tree is named with the parent that it differs from.
TEST(Agree, ComparesAlongTheTree) {
  std::vector<PlanIdentity> plans;
  for (int64_t i = 0; i < 20; ++i) plans.push_back({"aa", i, 20, fmt::format("p{}", i)});
  EXPECT_EQ(agree_all(plans), std::vector<std::string>(20, "ok"));
  plans[17].kernels = "Y";
  EXPECT_EQ(agree_all(plans),
            std::vector<std::string>(
                20, "rank 2 computes with , rank 17 with Y: their bits would differ"));
  plans[19].set_id = "bb";  // graver
  EXPECT_EQ(agree_all(plans),
            std::vector<std::string>(20,
                                     "plans of two compilations: rank 2 holds set aa (p2), rank "
                                     "19 holds set bb (p19)"));
}

TEST(Control, MergesWhatAllBring) {
  constexpr int64_t kWorld = 75;  // three levels
  std::vector<int64_t> sums(kWorld), near(kWorld);
  run_ranks(kWorld, 30, [&](Control& control, Fabric&) {
    int64_t own = control.rank() * control.rank();
    const auto bytes = std::as_writable_bytes(std::span(&own, 1));
    const Status merged = control.merge(bytes, "sum", [&](std::span<const std::byte> theirs) {
      int64_t other = 0;
      std::memcpy(&other, theirs.data(), sizeof other);
      own += other;
    });
    sums[static_cast<size_t>(control.rank())] = merged ? own : -1;
    near[static_cast<size_t>(control.rank())] =
        std::ssize(control.children()) + (control.parent() ? 1 : 0);
    EXPECT_EQ(control.height(), 3);
    EXPECT_EQ(control.depth(), control.rank() == 0   ? 0
                               : control.rank() < 9  ? 1
                               : control.rank() < 73 ? 2
                                                     : 3);
  });
  EXPECT_EQ(sums, std::vector<int64_t>(kWorld, 74 * 75 * 149 / 6));
  EXPECT_EQ(*std::max_element(near.begin(), near.end()), Control::kFanOut + 1);
}

// The most messages and bytes of any rank to agree, to merge and to meet.
std::pair<int64_t, int64_t> most_told(int64_t world) {
  std::vector<int64_t> messages(static_cast<size_t>(world)), bytes(static_cast<size_t>(world));
  run_ranks(world, 30, [&](Control& control, Fabric&) {
    Counting counting(control);
    int64_t own = 0;
    EXPECT_TRUE(counting.agree({"set", control.rank(), world, "plans", "cpu", {{"--steps", "1"}}}));
    EXPECT_TRUE(counting.merge(std::as_writable_bytes(std::span(&own, 1)), "sum",
                               [](std::span<const std::byte>) {}));
    EXPECT_TRUE(counting.barrier());
    messages[static_cast<size_t>(control.rank())] = counting.messages;
    bytes[static_cast<size_t>(control.rank())] = counting.told;
  });
  return {*std::ranges::max_element(messages), *std::ranges::max_element(bytes)};
}

TEST(Control, NoRankTellsMoreInALargerWorld) {
  const auto [few, bytes] = most_told(18);
  const auto [many, more] = most_told(150);
  EXPECT_EQ(few, many);
  EXPECT_LE(more, bytes + 2 * (Control::kFanOut + 1) * 4);  // numbers have more digits
}

// ---- Over TCP, between threads ------------------------------------------------------------------

// "HOST:PORT" of a port that is free.
std::string free_rendezvous(const char* host = "127.0.0.1") {
  return fmt::format("{}:{}", host, free_port());
}

// Each thread as one that a launcher has started. Transports end when all are through.
template <class Body>
std::vector<Status> run_tcp(int64_t world, const TransportOptions& options, Body body,
                            const std::string& at = free_rendezvous()) {
  std::vector<std::unique_ptr<Transport>> transports(static_cast<size_t>(world));
  std::vector<Status> got(static_cast<size_t>(world), ok_status());
  std::vector<std::thread> threads;
  const auto run = [&](int64_t rank) -> Status {
    std::unique_ptr<Transport>& own = transports[static_cast<size_t>(rank)];
    PIPER_ASSIGN(own, make_tcp_transport(options, rank, world, at));
    PIPER_TRY(own->control().agree({"set", rank, world, fmt::format("rank{}.plan", rank)}));
    return body(own->control(), own->fabric());
  };
  for (int64_t rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] { got[static_cast<size_t>(rank)] = run(rank); });
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  for (auto& transport : transports) threads.emplace_back([&transport] { transport.reset(); });
  for (std::thread& thread : threads) thread.join();
  return got;
}

std::string text_of(const Status& status) { return status ? "ok" : print_error(status.error()); }

Status pass_suite(Control& control, Fabric& t);

class Tcp : public testing::TestWithParam<std::tuple<int64_t, bool>> {};

TEST_P(Tcp, Conforms) {
  const auto [world, shared] = GetParam();
  for (const Status& one : run_tcp(world, {60, 60, shared}, pass_suite))
    EXPECT_EQ(text_of(one), "ok");
}
INSTANTIATE_TEST_SUITE_P(Suite, Tcp,
                         testing::Values(std::tuple(1, true), std::tuple(2, true),
                                         std::tuple(4, true), std::tuple(3, false)));

TEST(Tcp, OverIPv6AndByName) {
  const auto meet = [](Control& control, Fabric&) { return control.barrier(); };
  for (const char* host : {"[::1]", "localhost"})
    for (const Status& one : run_tcp(3, {10, 10}, meet, free_rendezvous(host)))
      EXPECT_EQ(text_of(one), "ok") << host;
}

class TcpFault : public testing::TestWithParam<size_t> {};

TEST_P(TcpFault, NamesBothSides) {
  const Fault& fault = suite::kFaults[GetParam()];
  const auto start = std::chrono::steady_clock::now();
  const auto got = run_tcp(4, {fault.timeout_s, 60}, fault.run);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), kAtOnce);
  const bool size = std::string_view(fault.name) == "wrong_size";
  const Status& seen = got[size ? 1 : 0];
  ASSERT_FALSE(seen.ok());
  EXPECT_NE(text_of(seen).find(fault.expected), std::string::npos) << text_of(seen);
  EXPECT_NE(text_of(seen).find(fault.note != nullptr ? fault.note : ""), std::string::npos)
      << text_of(seen);
  EXPECT_EQ(seen.error().code, size ? ExitCode::kPlan : ExitCode::kPeer);
}
INSTANTIATE_TEST_SUITE_P(Suite, TcpFault, testing::Range(size_t{0}, std::size(suite::kFaults)),
                         [](const auto& info) { return suite::kFaults[info.param].name; });

Status start_tcp(int64_t rank, int64_t world, const std::string& at, double timeout_s) {
  auto transport = make_tcp_transport({timeout_s, timeout_s}, rank, world, at);
  if (!transport) return std::move(transport).error();
  return (*transport)->control().agree({"set", rank, world, "plan"});
}

// What each of some processes, by rank and world, is told.
std::vector<std::string> start_all(const std::vector<std::pair<int64_t, int64_t>>& processes,
                                   const std::string& at, double timeout_s) {
  std::vector<std::string> got(processes.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < processes.size(); ++i)
    threads.emplace_back([&, i] {
      got[i] = text_of(start_tcp(processes[i].first, processes[i].second, at, timeout_s));
    });
  for (std::thread& thread : threads) thread.join();
  return got;
}

TEST(TcpStart, NobodyAnswers) {
  const std::string at = free_rendezvous();
  const auto got = start_all({{1, 2}}, at, 0.5);
  EXPECT_EQ(got[0], fmt::format("error: rank 1 waited 0.5 s for rank 0 at {}: Connection refused\n"
                                "  = help: look at what rank 0 said; --start-timeout gives a slow "
                                "start more time\n",
                                at));
}

TEST(TcpStart, WhoIsToldToStopDoesNotWait) {
  const std::atomic<bool> stop{true};
  TransportOptions options{20, 20};
  options.stop = &stop;
  const std::string at = free_rendezvous();
  const auto first = make_tcp_transport(options, 0, 3, at);
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().message,
            fmt::format("rank 0 was told to stop while it waited at {} for ranks 1, 2 of 3, which "
                        "did not come",
                        at));
  const auto other = make_tcp_transport(options, 1, 3, at);  // nobody listens there
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().message,
            fmt::format("rank 1 was told to stop while it waited for rank 0 at {}", at));
}

// A rank that has reached rank 0 waits for its answer, which comes when all are there.
TEST(TcpStart, WhoIsToldToStopDoesNotWaitForOthers) {
  std::atomic<bool> stop{false};
  const std::string at = free_rendezvous();
  TransportOptions options{20, 20};
  std::string first;
  std::thread rank0([&] { first = text_of(start_tcp(0, 3, at, 2)); });
  std::thread signal([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop.store(true);
  });
  options.stop = &stop;
  const auto other = make_tcp_transport(options, 1, 3, at);
  rank0.join();
  signal.join();
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().message,
            fmt::format("rank 1 was told to stop while it waited for rank 0 at {}", at));
  EXPECT_NE(first, "ok");
}

TEST(TcpStart, WhoDoesNotComeIsNamedByAll) {
  const std::string at = free_rendezvous();
  const std::string wanted =
      fmt::format("error: rank 0 waited 0.7 s at {} for ranks 2, 4 of 5, which did not come\n", at);
  for (const std::string& one : start_all({{0, 5}, {1, 5}, {3, 5}}, at, 0.7))
    EXPECT_EQ(one, wanted);
}

TEST(TcpStart, TwoOfOneNumberAndOtherWorldsAreNamedByAll) {
  std::string at = free_rendezvous();
  for (const std::string& one : start_all({{0, 3}, {1, 3}, {1, 3}}, at, 5))
    EXPECT_EQ(one.find("error: two processes were started as rank 1: at 127.0.0.1:"), 0u) << one;
  at = free_rendezvous();
  for (const std::string& one : start_all({{0, 2}, {1, 3}}, at, 5))
    EXPECT_NE(one.find(fmt::format("was started as one of 3, rank 0 at {} as one of 2", at)),
              std::string::npos)
        << one;
}

TEST(TcpStart, APortThatIsTakenAndNoAddressAreNamed) {
  const int file = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(file, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(file, 1), 0);
  getsockname(file, reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin6_port);
  const Status taken = start_tcp(0, 2, fmt::format("localhost:{}", port), 1);
  EXPECT_EQ(text_of(taken).find(
                fmt::format("error: cannot listen on port {}: Address already in use\n", port)),
            0u)
      << text_of(taken);
  // Somebody listens there who says nothing.
  const Status silent = start_tcp(1, 2, fmt::format("127.0.0.1:{}", port), 0.5);
  EXPECT_NE(
      text_of(silent).find(fmt::format("rank 1 waited 0.5 s for rank 0 at 127.0.0.1:{}: ", port)),
      std::string::npos)
      << text_of(silent);
  close(file);
  for (const char* at : {"localhost", ":1", "host:", "host:0", "host:70000", "fe80::1:5", "h:1x"})
    EXPECT_EQ(text_of(start_tcp(1, 2, at, 1)).find(fmt::format("error: '{}' is no HOST:PORT", at)),
              0u);
}

TEST(TcpStart, LinkLocalAddressesAreRefused) {
  for (const char* at : {"[fe80::1]:29500", "[fe80::1%lo]:29500", "[FEBF::2]:29500"}) {
    const Status said = start_tcp(1, 2, at, 1);
    EXPECT_EQ(text_of(said).find(fmt::format("error: not supported: '{}' is a link-local", at)), 0u)
        << text_of(said);
  }
}

// As a router or a firewall between two hosts may cut it.
TEST(TcpFaults, AConnectionThatIsCutIsToldFromAProcessThatEnds) {
  const auto cut_all = [] {
    for (int file = 3; file < 1024; ++file) {
      sockaddr_storage peer{};
      socklen_t size = sizeof peer;
      if (getpeername(file, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
          (peer.ss_family == AF_INET || peer.ss_family == AF_INET6))
        shutdown(file, SHUT_RDWR);
    }
  };
  const auto meet = [&](Control& control, Fabric&) -> Status {
    PIPER_TRY(control.barrier());
    if (control.rank() == 1) cut_all();
    for (int i = 0; i < 100; ++i) PIPER_TRY(control.barrier());
    return ok_status();
  };
  const auto got = run_tcp(2, {10, 10}, meet);
  for (const Status& one : got) EXPECT_FALSE(one.ok());
  const std::string said = text_of(got[0]) + text_of(got[1]);
  EXPECT_NE(said.find("): the connection was cut, its process lives (it was closed)"),
            std::string::npos)
      << said;
  EXPECT_EQ(said.find("process ended"), std::string::npos) << said;
}

// Bytes of others at both places where a rank listens: at the rendezvous, while and after all come,
// and at its own port.
TEST(TcpStart, StrangersAreNotHeard) {
  const std::string at = free_rendezvous();
  const auto port = static_cast<uint16_t>(std::stoi(at.substr(at.rfind(':') + 1)));
  std::atomic<bool> over{false};
  std::atomic<int> sent{0};
  std::thread stranger([&] {
    std::string words[] = {"GET / HTTP/1.1\r\n\r\n", std::string(4096, '\xff'), "piper 1\n",
                           std::string("piper 1\n") + std::string(200, '\x7f'), ""};
    for (size_t i = 0; !over.load(); ++i) {
      const int file = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      const std::string& word = words[i % std::size(words)];
      if (connect(file, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
          ::send(file, word.data(), word.size(), MSG_NOSIGNAL) >= 0)
        sent.fetch_add(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      close(file);
    }
  });
  const auto slow = [&](Control& control, Fabric&) -> Status {
    for (int i = 0; i < 20; ++i) {
      PIPER_TRY(control.barrier());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return ok_status();
  };
  const auto got = run_tcp(3, {20, 20}, slow, at);
  over.store(true);
  stranger.join();
  for (const Status& one : got) EXPECT_EQ(text_of(one), "ok");
  EXPECT_GT(sent.load(), 5);
}

// ---- Launchers ----------------------------------------------------------------------------------

TEST(Launchers, TheFirstHostOfANodeList) {
  const std::pair<const char*, const char*> cases[] = {{"node7", "node7"},
                                                       {"a,b", "a"},
                                                       {"node[07-12,20],login", "node07"},
                                                       {"n[3],m", "n3"},
                                                       {"r[1-2]n[4-9]", "r1n4"},
                                                       {"", ""},
                                                       {"node[1", ""},
                                                       {"gpu-1.x[2,9]y,z", "gpu-1.x2y"}};
  for (const auto& [nodes, host] : cases) EXPECT_EQ(first_host(nodes), host) << nodes;
}

TEST(Launchers, VariablesSayRankAndRendezvous) {
  using Variables = std::vector<std::pair<const char*, const char*>>;
  const auto say = [](const Variables& variables) -> std::string {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    const auto launch = launched();
    for (const auto& [name, value] : variables) unsetenv(name);
    if (!launch) return launch.error().message;
    if (!*launch) return "none";
    return fmt::format("{}/{} {}", (*launch)->rank, (*launch)->world,
                       (*launch)->mpi ? "mpi" : (*launch)->rendezvous);
  };
  const Variables torch{{"RANK", "3"},
                        {"LOCAL_RANK", "1"},
                        {"WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "n1"},
                        {"MASTER_PORT", "29500"}};
  EXPECT_EQ(say(torch), "3/4 n1:29500");
  Variables agent = torch;
  agent.emplace_back("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(say(agent), "3/4 n1:29501");
  Variables six = torch;
  six[3].second = "fe80::1";
  EXPECT_EQ(say(six), "3/4 [fe80::1]:29500");
  const Variables slurm{{"SLURM_PROCID", "2"},
                        {"SLURM_STEP_NUM_TASKS", "8"},
                        {"SLURM_STEP_NODELIST", "gpu[03-04]"},
                        {"SLURM_JOB_ID", "1000"},
                        {"SLURM_STEP_ID", "1"}};
  EXPECT_EQ(say(slurm), "2/8 gpu03:28001");
  Variables named = slurm;
  named.emplace_back("MASTER_ADDR", "head");
  named.emplace_back("MASTER_PORT", "5000");
  EXPECT_EQ(say(named), "2/8 head:5000");
  Variables pmix = slurm;
  pmix.emplace_back("PMIX_RANK", "2");
  pmix.emplace_back("SLURM_NTASKS", "8");
  EXPECT_EQ(say(pmix), "2/8 mpi");
  EXPECT_EQ(say({{"LOCAL_RANK", "1"}, {"WORLD_SIZE", "2"}}), "1/2 ");
  EXPECT_EQ(say({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}), "none");  // a batch script itself
}

// Taken for no launcher, each process would train the whole job and save over the others.
TEST(Launchers, VariablesThatAreNoRanksAreErrors) {
  const auto say = [](const std::vector<std::pair<const char*, const char*>>& variables) {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    const auto launch = launched();
    for (const auto& [name, value] : variables) unsetenv(name);
    EXPECT_TRUE(launch.ok() || launch.error().code == ExitCode::kUsage);
    return launch ? std::string("ok") : launch.error().message;
  };
  const std::string no = ", which is no whole number from ";
  const std::string said = "the environment says ";
  EXPECT_EQ(say({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), said + "RANK=x" + no + "0 to 1");
  EXPECT_EQ(say({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), said + "RANK=-1" + no + "0 to 1");
  EXPECT_EQ(say({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), said + "RANK=2" + no + "0 to 1");
  EXPECT_EQ(say({{"RANK", "1 "}, {"WORLD_SIZE", "2"}}), said + "RANK=1 " + no + "0 to 1");
  EXPECT_EQ(say({{"RANK", "0"}, {"WORLD_SIZE", "0"}}),
            said + "WORLD_SIZE=0" + no + "1 to 2147483647");
  EXPECT_EQ(say({{"RANK", "0"}, {"WORLD_SIZE", "99999999999999999999"}}),
            said + "WORLD_SIZE=99999999999999999999" + no + "1 to 2147483647");
  EXPECT_EQ(say({{"RANK", "1"}}), said + "RANK=1, but nothing of WORLD_SIZE");
  EXPECT_EQ(say({{"WORLD_SIZE", "2"}}), said + "WORLD_SIZE=2, but nothing of RANK");
  EXPECT_EQ(say({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "70000"}}),
            said + "MASTER_PORT=70000" + no + "1 to 65535");
  EXPECT_EQ(say({{"OMPI_COMM_WORLD_RANK", "a"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
            said + "OMPI_COMM_WORLD_RANK=a" + no + "0 to 1");
  EXPECT_EQ(say({{"SLURM_PROCID", "8"}, {"SLURM_STEP_NUM_TASKS", "8"}}),
            said + "SLURM_PROCID=8" + no + "0 to 7");
  EXPECT_EQ(say({{"LOCAL_RANK", "?"}, {"WORLD_SIZE", "2"}}), said + "LOCAL_RANK=?" + no + "0 to 1");
  EXPECT_EQ(say({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"RANK", "x"}}),
            "ok");  // mpirun's own come first
}

// A process that may open no more files says so.
TEST(Tcp, SaysThatThereAreTooManyFiles) {
  if (kThreadSanitizer) GTEST_SKIP() << "a fork with threads";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{3, 3};
    setrlimit(RLIMIT_NOFILE, &none);
    const auto made = make_tcp_transport({1, 1}, 0, 2, "127.0.0.1:29871");
    const std::string text = made ? "started" : print_error(made.error());
    _exit(write(ends[1], text.data(), text.size()) < 0);
  }
  close(ends[1]);
  char said[1024] = {};
  EXPECT_GT(read(ends[0], said, sizeof said - 1), 0);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  EXPECT_NE(std::string(said).find("Too many open files"), std::string::npos) << said;
}

// ---- The same suite under mpirun ----------------------------------------------------------------

// This program again on each rank; exit code and output.
std::pair<int, std::string> mpirun(int ranks, const std::string& rank_case,
                                   const std::string& flags = "--mca btl vader,self") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  return run_shell(fmt::format("{}mpirun {} -n {} '{}' --rank-case {} 2>&1", kMpi, flags, ranks,
                               self, rank_case));
}

class Mpi : public testing::TestWithParam<int> {};

TEST_P(Mpi, Conforms) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] = mpirun(GetParam(), "suite");
  EXPECT_EQ(code, 0) << output;
  EXPECT_NE(output.find(fmt::format("suite passed on {} ranks", GetParam())), std::string::npos)
      << output;
}
INSTANTIATE_TEST_SUITE_P(Suite, Mpi, testing::Values(1, 2, 4));

// UCX, by which Open MPI talks over InfiniBand, has tags of 23 bits.
TEST(MpiApart, ConformsWithFewTags) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] =
      mpirun(4, "suite", "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any");
  EXPECT_EQ(code, 0) << output;
  EXPECT_NE(output.find("suite passed on 4 ranks"), std::string::npos) << output;
}

TEST(MpiApart, ConformsWithoutSharedMemory) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] = mpirun(3, "apart");
  EXPECT_NE(output.find("suite passed on 3 ranks"), std::string::npos) << output;
}

// Only rows that another rank owns travel, by count of what MPI is given to send.
TEST(Mpi, RowsAreSentToTheirOwnersAlone) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] = mpirun(2, "row_bytes");
  EXPECT_EQ(code, 0) << output;
  for (const char* line :
       {"rank 0 sent 12, 48, 72 and 0 bytes", "rank 1 sent 48, 12, 0 and 72 bytes"})
    EXPECT_NE(output.find(line), std::string::npos) << output;
}

class MpiFault : public testing::TestWithParam<size_t> {};

TEST_P(MpiFault, NamesBothSides) {
  SKIP_UNDER_THREAD_SANITIZER();
  const Fault& fault = suite::kFaults[GetParam()];
  auto start = std::chrono::steady_clock::now();
  const auto [code, output] = mpirun(4, fault.name);
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), kAtOnce);
  EXPECT_NE(output.find(fault.expected), std::string::npos) << output;
  EXPECT_NE(output.find(fault.note != nullptr ? fault.note : ""), std::string::npos) << output;
  EXPECT_NE(code, 0);
}
INSTANTIATE_TEST_SUITE_P(Suite, MpiFault, testing::Range(size_t{0}, std::size(suite::kFaults)),
                         [](const auto& info) { return suite::kFaults[info.param].name; });

TEST(MpiAgree, RefusesPlansOfTwoCompilations) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] = mpirun(2, "two_sets");
  EXPECT_NE(output.find("plans of two compilations: rank 0 holds set set0 (rank0.plan), rank 1 "
                        "holds set set1 (rank1.plan)"),
            std::string::npos)
      << output;
  EXPECT_EQ(code, static_cast<int>(ExitCode::kPlan)) << output;
}

// mpirun itself waits for ever when a process ends with 0 before it has begun; what ends when
// others have begun it sees.
TEST(MpiStart, AProcessThatEndsBeforeMpiBeginsEndsTheJob) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] = mpirun(2, "early_exit");
  if (output.find("process rank 1 with PID") != std::string::npos) {
    EXPECT_NE(code, 0) << output;
    return;
  }
  EXPECT_NE(output.find("process 0 of 2 waited 1.5 s for the others in MPI_Init: one of them "
                        "ended or stopped before"),
            std::string::npos)
      << output;
  EXPECT_EQ(code, static_cast<int>(ExitCode::kPeer)) << output;
}

TEST(MpiStart, AnMpiForOneThreadIsRefused) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] = mpirun(2, "one_thread");
  EXPECT_NE(output.find("process 1 of 2: this MPI lets only one thread call it"), std::string::npos)
      << output;
  EXPECT_EQ(code, static_cast<int>(ExitCode::kUsage)) << output;
}

TEST(MpiStart, AProcessThatStopsBeforePlansAreComparedIsNamed) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] = mpirun(2, "late_stop");
  EXPECT_NE(output.find("in the comparison of plans for rank 1"), std::string::npos) << output;
  EXPECT_EQ(code, static_cast<int>(ExitCode::kPeer)) << output;
}

TEST(MpiFaults, AStoppedProcessIsNamedWithWhatItDoes) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] = mpirun(3, "stopped");
  EXPECT_NE(output.find("for rank 1\n  = note: rank 1 is at F stage=1 mb=7"), std::string::npos)
      << output;
  EXPECT_EQ(code, static_cast<int>(ExitCode::kPeer)) << output;
}

TEST(MpiAgree, RanksAreThoseOfThePlans) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] = mpirun(3, "reversed");
  EXPECT_EQ(code, 0) << output;
  EXPECT_NE(output.find("suite passed on 3 ranks"), std::string::npos) << output;
}

// ---- What a process under mpirun does -----------------------------------------------------------

int fail_rank(Control& control, const Error& error) {
  fmt::print("{}", print_error(error));
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // let the others speak, too
  control.abort(error);
  return static_cast<int>(error.code);
}

Status pass_suite(Control& control, Fabric& t) {
  for (const Case& one : suite::kCases) {
    // Rings of messages need a peer.
    bool alone =
        t.world() == 1 && (one.run == suite::messages || one.run == suite::many_in_flight ||
                           one.run == suite::joined_messages);
    std::string wrong = alone ? "" : one.run(t);
    if (!wrong.empty()) return fail("rank {}, {}: {}", t.rank(), one.name, wrong);
    PIPER_TRY(control.barrier());
  }
  const std::string wrong = suite::barriers(control);
  return wrong.empty() ? ok_status() : Status(fail("rank {}, barriers: {}", t.rank(), wrong));
}

int run_suite(Control& control, Fabric& t) {
  if (const Status passed = pass_suite(control, t); !passed)
    return fail_rank(control, passed.error());
  if (t.rank() == 0) fmt::print("suite passed on {} ranks\n", t.world());
  return 0;
}

// Of 6 rows of 12 bytes each; a dispatch and a combine where few go to the other rank, and where
// all go to rank 1.
int run_row_bytes(Control& control, Fabric& t) {
  const auto group = t.add_group(suite::everyone(t));
  if (!group) return fail_rank(control, group.error());
  std::vector<std::byte> whole(144), part(72);
  std::vector<int64_t> sent;
  const std::vector<int64_t> mixed{0, 1, 1, 0, 1, 3, 0, 1, 1, 1, 2, 3}, all(12, 2);
  for (const auto& index : {mixed, all}) {
    const Rows rows{whole.data(),
                    part.data(),
                    reinterpret_cast<const std::byte*>(index.data()),
                    true,
                    12,
                    12,
                    1,
                    2,
                    2};
    for (const bool comes : {true, false}) {
      const int64_t before = sent_bytes;
      const Status moved =
          comes ? t.run(*group, {.kind = InstructionKind::kDispatch, .rows = std::span(&rows, 1)})
                : t.run(*group, {.kind = InstructionKind::kCombine, .rows = std::span(&rows, 1)});
      if (!moved) return fail_rank(control, moved.error());
      sent.push_back(sent_bytes - before);
    }
  }
  fmt::print("rank {} sent {}, {}, {} and {} bytes\n", t.rank(), sent[0], sent[1], sent[2],
             sent[3]);
  return 0;
}

int run_rank_case(std::string_view name) {
  const bool second = launched()->value_or(Launch{}).rank == 1;
  if (name == "early_exit" && second) return 0;
  if (name == "one_thread") greatest_level = 1;  // MPI_THREAD_FUNNELED
  double timeout = name == "late_stop" || name == "stopped" ? 1.5 : 60;
  for (const Fault& fault : suite::kFaults) {
    if (name == fault.name) timeout = fault.timeout_s;
  }
  const Launch launch = launched()->value_or(Launch{});
  const int64_t rank = name == "reversed" ? launch.world - 1 - launch.rank : launch.rank;
  auto transport = make_mpi_transport(
      TransportOptions{timeout, name == "early_exit" ? 1.5 : 60, name != "apart"}, rank);
  Control& control = transport->control();
  Fabric& fabric = transport->fabric();
  PlanIdentity plan{"set", rank, control.world(), fmt::format("rank{}.plan", rank)};
  if (name == "two_sets") plan.set_id = fmt::format("set{}", rank);
  if (name == "late_stop" && second) raise(SIGSTOP);
  if (Status agreed = control.agree(plan); !agreed) return fail_rank(control, agreed.error());
  if (control.rank() != plan.rank) return 1;
  if (name == "suite" || name == "reversed" || name == "apart") return run_suite(control, fabric);
  if (name == "row_bytes") return run_row_bytes(control, fabric);
  if (name == "stopped") {
    control.activity().store("F stage=1 mb=7");
    if (second) raise(SIGSTOP);
    return fail_rank(control, control.barrier().error());
  }
  for (const Fault& fault : suite::kFaults) {
    if (name != fault.name) continue;
    Status status = fault.run(control, fabric);
    if (!status) return fail_rank(control, status.error());
    std::this_thread::sleep_for(std::chrono::seconds(4));  // a rank that takes no part
    return 1;
  }
  return 2;
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--rank-case") return piper::run_rank_case(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
