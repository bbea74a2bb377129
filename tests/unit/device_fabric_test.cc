// The conformance suite of fabrics on one that is made of a backend's copies and programs, between
// threads: here with the CPU's kernels, which are done when a call returns.
#include "piper/device_fabric.h"

#include <gtest/gtest.h>

#include <thread>

#include "piper/backend_cpu.h"
#include "unit/transport_suite.h"

namespace piper {
namespace {

using suite::Case;
using suite::Fault;

const RoleProgram kNoRole;

// Runs `body` on `world` threads, each with its fabric; slots of so many bytes.
template <class Body>
void run_ranks(int64_t world, double timeout_s, int64_t slot_bytes, Body body) {
  const auto job = make_inproc_world(world, TransportOptions{timeout_s});
  std::vector<std::atomic<Fabric*>> local(static_cast<size_t>(world));
  std::vector<std::unique_ptr<CpuBackend>> backends;
  std::vector<std::unique_ptr<Fabric>> fabrics;
  for (int64_t rank = 0; rank < world; ++rank) {
    backends.push_back(make_cpu_backend());
    Control& control = job->rank(rank).control();
    fabrics.push_back(make_device_fabric(
        *backends.back(), control, make_local_links(*backends.back(), {control, kNoRole, local}),
        {}, slot_bytes));
    local[static_cast<size_t>(rank)].store(fabrics.back().get());
  }
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world; ++rank)
    threads.emplace_back(
        [&, rank] { body(job->rank(rank).control(), *fabrics[static_cast<size_t>(rank)]); });
  for (std::thread& thread : threads) thread.join();
}

constexpr int64_t kSmallSlot = 16 << 10;  // messages of the suite take several turns

class DeviceFabric : public testing::TestWithParam<std::tuple<int64_t, size_t>> {};

TEST_P(DeviceFabric, Conforms) {
  const auto [world, index] = GetParam();
  const Case& one = suite::kCases[index];
  for (const int64_t slot : {kSmallSlot, int64_t{32} << 20}) {
    if (world == 8 && slot != kSmallSlot) continue;
    std::vector<std::string> wrong(static_cast<size_t>(world));
    run_ranks(world, 60, slot,
              [&](Control&, Fabric& t) { wrong[static_cast<size_t>(t.rank())] = one.run(t); });
    for (size_t rank = 0; rank < wrong.size(); ++rank)
      EXPECT_EQ(wrong[rank], "") << "rank " << rank << ", slot of " << slot;
  }
}
INSTANTIATE_TEST_SUITE_P(Suite, DeviceFabric,
                         testing::Combine(testing::Values(2, 3, 8),
                                          testing::Range(size_t{0}, std::size(suite::kCases))),
                         [](const auto& info) {
                           return fmt::format("{}_ranks_{}",
                                              suite::kCases[std::get<1>(info.param)].name,
                                              std::get<0>(info.param));
                         });

// What is stated for a plan: each stream has what its largest collective takes.
TEST(DeviceFabric, StatesWhatItsBlocksTake) {
  RoleProgram role;
  role.mesh = {{"dp", 4}, {"pp", 2}, {"ep", 1}};
  role.groups = {{"dp", {0}}, {"ep", {2}}};
  role.streams = {{"compute"}, {"reduce"}};
  for (const int64_t count : {int64_t{1000}, int64_t{250}, int64_t{1} << 26})
    role.add_buffer({.name = "b", .type = {DType::kF32, {count}}});
  const auto bytes_of = [&](InstructionKind kind, std::vector<int32_t> args, int32_t group,
                            bool fast = false) {
    Instruction one;
    one.kind = kind;
    one.args = std::move(args);
    one.group = group;
    one.fast = fast;
    one.stream = 1;
    role.body = {one};
    const std::vector<int64_t> bytes = device_fabric_bytes(role);
    EXPECT_EQ(bytes[0], 0);
    return bytes[1];
  };
  using enum InstructionKind;
  EXPECT_GE(bytes_of(kAllReduce, {0}, 0), 4 * 1024);
  EXPECT_LE(bytes_of(kAllReduce, {0}, 0), 4 * 2048);
  EXPECT_EQ(bytes_of(kReduceScatter, {0, 1}, 0), 4 * 1024);
  EXPECT_EQ(bytes_of(kAllReduce, {2}, 0), kMostSlotBytes);  // in turns
  EXPECT_EQ(bytes_of(kAllReduce, {0}, 0, true), 0);         // the library's
  EXPECT_EQ(bytes_of(kAllGather, {1, 0}, 0), 0);            // where they belong
  EXPECT_EQ(bytes_of(kAllReduce, {0}, 1), 0);               // alone
}

TEST(DeviceFabric, NamesWhomItWaitsFor) {
  Status got = ok_status();
  run_ranks(2, 1, kSmallSlot, [&](Control& control, Fabric& t) {
    const auto group = t.add_group(suite::everyone(t));
    ASSERT_TRUE(group.ok());
    if (control.rank() == 1) {
      control.activity().store("F stage=1 mb=3");
      return;
    }
    float value = 0;
    const Piece piece{suite::bytes_of(&value), DType::kF32, 1};
    got = t.all_reduce(*group, std::span(&piece, 1));
  });
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().message,
            "rank 0 waited 1 s in a collective for rank 1, which is at F stage=1 mb=3");
  EXPECT_EQ(got.error().code, ExitCode::kPeer);
}

TEST(DeviceFabric, RefusesBlocksOfAnotherSize) {
  Status got = ok_status();
  run_ranks(2, 5, kSmallSlot, [&](Control& control, Fabric& t) {
    const auto group = t.add_group(suite::everyone(t));
    ASSERT_TRUE(group.ok());
    float values[16] = {};
    const bool second = control.rank() == 1;
    const Piece piece{suite::bytes_of(values), DType::kF32, second ? 16 : 8};
    const Status status = t.all_reduce(*group, std::span(&piece, 1));
    if (second) got = status;
    if (!status) control.abort(status.error());
  });
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().message, "rank 1 expects a block of 32 bytes of rank 0, which brings 16");
}

TEST(DeviceFabric, RefusesMessagesOfAnotherSize) {
  Status got = ok_status();
  run_ranks(2, 5, kSmallSlot, [&](Control& control, Fabric& t) {
    float values[4] = {};
    if (control.rank() == 0) {
      const auto route = t.add_send(1, 0, 1);
      ASSERT_TRUE(route.ok());
      EXPECT_TRUE(t.send(*route, suite::bytes_of(values), 16).ok());
    } else {
      const auto route = t.add_recv(0, 0);
      ASSERT_TRUE(route.ok());
      got = t.recv(*route, suite::bytes_of(values), 8);
    }
  });
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().message, "rank 1 expects 8 bytes of rank 0, which sends 16");
}

}  // namespace
}  // namespace piper
