// The conformance suite on both transports. The mpi half starts this program again under mpirun,
// with --rank-case.
#include "piper/transport.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

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

namespace piper {
namespace {

using suite::Case;
using suite::Fault;

// Runs `body` on `world` threads, each with its transport.
template <class Body>
void run_ranks(int64_t world, double timeout_s, Body body) {
  auto job = make_inproc_world(world, TransportOptions{timeout_s});
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < world; ++i) threads.emplace_back([&, i] { body(job->rank(i)); });
  for (std::thread& thread : threads) thread.join();
}

class Inproc : public testing::TestWithParam<std::tuple<int64_t, size_t>> {};

TEST_P(Inproc, Conforms) {
  auto [world, index] = GetParam();
  const Case& one = suite::kCases[index];
  std::vector<std::string> wrong(static_cast<size_t>(world));
  run_ranks(world, 60, [&](Transport& t) { wrong[static_cast<size_t>(t.rank())] = one.run(t); });
  for (int64_t i = 0; i < world; ++i) EXPECT_EQ(wrong[static_cast<size_t>(i)], "") << "rank " << i;
}
INSTANTIATE_TEST_SUITE_P(Suite, Inproc,
                         testing::Combine(testing::Values(2, 3, 8),
                                          testing::Range(size_t{0}, std::size(suite::kCases))),
                         [](const auto& info) {
                           return fmt::format("{}_ranks_{}",
                                              suite::kCases[std::get<1>(info.param)].name,
                                              std::get<0>(info.param));
                         });

class InprocFault : public testing::TestWithParam<size_t> {};

TEST_P(InprocFault, NamesBothSides) {
  const Fault& fault = suite::kFaults[GetParam()];
  std::vector<Status> got(4, ok_status());
  auto start = std::chrono::steady_clock::now();
  run_ranks(4, fault.timeout_s,
            [&](Transport& t) { got[static_cast<size_t>(t.rank())] = fault.run(t); });
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 10);
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
  run_ranks(2, 1, [&](Transport& t) {
    if (t.rank() == 1) {
      t.activity().store("F stage=1 mb=3");
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    got = t.barrier();
  });
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().message, "rank 0 waited 1 s in the barrier of ranks [0,1] for rank 1");
  ASSERT_EQ(got.error().notes.size(), 1u);
  EXPECT_EQ(got.error().notes[0], "rank 1 is at F stage=1 mb=3");
}

TEST(InprocWorld, RefusesOtherReductionsAndBlocks) {
  Status reduced = ok_status(), gathered = ok_status();
  run_ranks(2, 5, [&](Transport& t) {
    auto group = t.add_group(suite::everyone(t));
    float values[4] = {}, part[2] = {};
    const bool second = t.rank() == 1;
    const Piece piece{suite::bytes_of(values), DType::kF32, 4,
                      second ? Reduction::kMax : Reduction::kSum};
    const Status one = t.all_reduce(*group, std::span(&piece, 1));
    const Shard shard{suite::bytes_of(values), suite::bytes_of(part), DType::kF32, 4, 2,
                      second ? 2 : 1};
    const Status two = t.all_gather(*group, std::span(&shard, 1));
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
    run_ranks(2, 0.8, [&](Transport& t) {
      for (int i = 0; t.rank() == 1 && i < 25; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const Status met = t.barrier();
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
  run_ranks(2, 5, [&](Transport& t) {
    auto group = t.add_group(suite::everyone(t));
    std::vector<float> data(100);
    const Piece pieces[] = {{suite::bytes_of(data.data()), DType::kF32, t.rank() == 0 ? 10 : 20}};
    Status status = t.all_reduce(*group, pieces);
    got[static_cast<size_t>(t.rank())] = status.ok() ? "" : status.error().message;
  });
  EXPECT_EQ(got[0], "rank 0 expects 64 bytes in the all-reduce with rank 1, which brings 128");
  EXPECT_EQ(got[1], "rank 1 expects 128 bytes in the all-reduce with rank 0, which brings 64");
}

// ---- Plans of one compilation -------------------------------------------------------------------

std::vector<std::string> agree_all(std::vector<PlanIdentity> plans) {
  std::vector<std::string> got(plans.size());
  run_ranks(static_cast<int64_t>(plans.size()), 5, [&](Transport& t) {
    Status status = t.agree(plans[static_cast<size_t>(t.rank())]);
    got[static_cast<size_t>(t.rank())] = status.ok() ? "ok" : status.error().message;
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
  std::string twice = "two processes hold the plan of rank 0: numbers 0 (p0) and 1 (copy)";
  EXPECT_EQ(agree_all({{"aa", 0, 2, "p0"}, {"aa", 0, 2, "copy"}}),
            (std::vector<std::string>{twice, twice}));
}

// ---- The same suite under mpirun ----------------------------------------------------------------

// This program again on each rank; exit code and output.
std::pair<int, std::string> mpirun(int ranks, const std::string& rank_case) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  return run_shell(fmt::format("{}mpirun --mca btl vader,self -n {} '{}' --rank-case {} 2>&1", kMpi,
                               ranks, self, rank_case));
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
  EXPECT_LT(took.count(), 20);
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

TEST(MpiStart, AProcessThatStopsBeforePlansAreComparedIsNamed) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto [code, output] = mpirun(2, "late_stop");
  EXPECT_NE(output.find("in the comparison of plans of ranks [0,1] for rank 1"), std::string::npos)
      << output;
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

int fail_rank(Transport& t, const Error& error) {
  fmt::print("{}", print_error(error));
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // let the others speak, too
  t.abort(error);
  return static_cast<int>(error.code);
}

int run_suite(Transport& t) {
  for (const Case& one : suite::kCases) {
    // Rings of messages need a peer.
    bool alone =
        t.world() == 1 && (one.run == suite::messages || one.run == suite::many_in_flight ||
                           one.run == suite::joined_messages);
    std::string wrong = alone ? "" : one.run(t);
    if (!wrong.empty()) return fail_rank(t, fail("rank {}, {}: {}", t.rank(), one.name, wrong));
    if (Status status = t.barrier(); !status) return fail_rank(t, status.error());
  }
  if (t.rank() == 0) fmt::print("suite passed on {} ranks\n", t.world());
  return 0;
}

// Of 6 rows of 12 bytes each; a dispatch and a combine where few go to the other rank, and where
// all go to rank 1.
int run_row_bytes(Transport& t) {
  const auto group = t.add_group(suite::everyone(t));
  if (!group) return fail_rank(t, group.error());
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
      const Status moved = comes ? t.dispatch(*group, rows) : t.combine(*group, rows);
      if (!moved) return fail_rank(t, moved.error());
      sent.push_back(sent_bytes - before);
    }
  }
  fmt::print("rank {} sent {}, {}, {} and {} bytes\n", t.rank(), sent[0], sent[1], sent[2],
             sent[3]);
  return 0;
}

int run_rank_case(std::string_view name) {
  const bool second = launched() && launched()->rank == 1;
  if (name == "early_exit" && second) return 0;
  double timeout = name == "late_stop" || name == "stopped" ? 1.5 : 60;
  for (const Fault& fault : suite::kFaults) {
    if (name == fault.name) timeout = fault.timeout_s;
  }
  auto transport = make_mpi_transport(
      TransportOptions{timeout, name == "early_exit" ? 1.5 : 60, name != "apart"});
  int64_t rank = transport->rank();
  PlanIdentity plan{"set", rank, transport->world(), fmt::format("rank{}.plan", rank)};
  if (name == "two_sets") plan.set_id = fmt::format("set{}", rank);
  if (name == "reversed") plan.rank = transport->world() - 1 - rank;
  if (name == "late_stop" && second) raise(SIGSTOP);
  if (Status agreed = transport->agree(plan); !agreed) return fail_rank(*transport, agreed.error());
  if (transport->rank() != plan.rank) return 1;
  if (name == "suite" || name == "reversed" || name == "apart") return run_suite(*transport);
  if (name == "row_bytes") return run_row_bytes(*transport);
  if (name == "stopped") {
    transport->activity().store("F stage=1 mb=7");
    if (second) raise(SIGSTOP);
    return fail_rank(*transport, transport->barrier().error());
  }
  for (const Fault& fault : suite::kFaults) {
    if (name != fault.name) continue;
    Status status = fault.run(*transport);
    if (!status) return fail_rank(*transport, status.error());
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
