// The conformance suite of fabrics on one that is made of a backend's copies and programs, between
// threads: here with the CPU's kernels, which are done when a call returns.
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>

#include "piper/devices/collectives.h"
#include "piper/devices/cpu.h"
#include "sanitizer.h"
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
// Eight ranks on two cores take the thread sanitizer minutes, and it has seen their code with
// three.
std::vector<int64_t> worlds() {
  return kThreadSanitizer ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{2, 3, 8};
}
INSTANTIATE_TEST_SUITE_P(Suite, DeviceFabric,
                         testing::Combine(testing::ValuesIn(worlds()),
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
  EXPECT_EQ(bytes_of(kAllReduce, {2}, 0), kMostSlotBytes);                      // in turns
  EXPECT_EQ(bytes_of(kAllReduce, {0}, 0, true), bytes_of(kAllReduce, {0}, 0));  // where none adds
  EXPECT_EQ(bytes_of(kAllGather, {1, 0}, 0), 0);                                // where they belong
  EXPECT_EQ(bytes_of(kAllReduce, {0}, 1), 0);                                   // alone
}

// Links whose library adds up, from the last member to the first: between threads, which see what
// the others bring.
struct Adding {
  static constexpr int64_t kWorld = 3;
  enum Fault { kNone, kLeavesOneOut, kSwapsMembers } fault = kNone;
  std::vector<std::span<const Links::Sum>> brought =
      std::vector<std::span<const Links::Sum>>(kWorld);
  std::vector<int64_t> calls = std::vector<int64_t>(3);  // of rank 0: to all, to each, to one
  std::barrier<> meet{kWorld};
};
class AddingLinks final : public Links {
 public:
  AddingLinks(Adding& shared, int64_t rank) : shared_(shared), rank_(rank) {}
  std::string_view name() const override { return "adding"; }
  Result<int32_t> add_pair(int64_t, int64_t, int32_t, int32_t, int64_t) override { return 0; }
  Result<int32_t> add_group(std::span<const int64_t>, int32_t, int32_t) override { return 0; }
  Status send(int32_t, std::span<const MessagePart>) override { return ok_status(); }
  Status recv(int32_t, std::span<const MessagePart>) override { return ok_status(); }
  Status exchange(int32_t, std::span<const Block>, std::span<const Block>) override {
    return fail("nothing is exchanged where the library adds up");
  }
  Status wait_sends() override { return ok_status(); }
  bool adds() const override { return true; }
  Status add_up(int32_t, std::span<const Sum> sums) override {
    shared_.brought[static_cast<size_t>(rank_)] = sums;
    shared_.meet.arrive_and_wait();
    std::vector<std::vector<float>> made;
    for (size_t n = 0; n < sums.size(); ++n) made.push_back(sum_of(n));
    shared_.meet.arrive_and_wait();
    for (size_t n = 0; n < sums.size(); ++n)
      std::memcpy(sums[n].to, made[n].data(), made[n].size() * sizeof(float));
    shared_.meet.arrive_and_wait();
    return ok_status();
  }

 private:
  std::vector<float> sum_of(size_t n) {
    const Sum& own = shared_.brought[static_cast<size_t>(rank_)][n];
    if (rank_ == 0) ++shared_.calls[own.member >= 0 ? 2 : own.member == Sum::kEach ? 1 : 0];
    const bool swaps = shared_.fault == Adding::kSwapsMembers;
    const int64_t place = swaps ? Adding::kWorld - 1 - rank_ : rank_;
    if (own.member >= 0 && own.member != place) return {};
    std::vector<float> sum(static_cast<size_t>(own.count));
    const int64_t least = shared_.fault == Adding::kLeavesOneOut ? 1 : 0;
    for (int64_t k = Adding::kWorld - 1; k >= least; --k) {
      const Sum& theirs = shared_.brought[static_cast<size_t>(k)][n];
      EXPECT_EQ(std::tuple(theirs.count, theirs.member, theirs.dtype),
                std::tuple(own.count, own.member, own.dtype));
      const auto* from = reinterpret_cast<const float*>(theirs.from) +
                         (own.member == Sum::kEach ? place * own.count : 0);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += from[i];
    }
    return sum;
  }
  Adding& shared_;
  const int64_t rank_;
};

// The largest error of a part, of shards that are cut evenly, with padding, with members that have
// nothing, and along dims, in turn and mirrored; infinite where padding is not zero.
double worst_of_fast_parts(Adding& shared) {
  struct Form {
    int64_t count, part, stretches;
    bool mirrored;
    int64_t first = 0, slice = 0;
  };
  constexpr Form kForms[] = {{12, 4, 1, false},      {10, 4, 1, false}, {1, 1, 1, false},
                             {60, 20, 5, false},     {60, 20, 5, true}, {30000, 10000, 10, true},
                             {12, 4, 1, false, 1, 2}};
  const auto job = make_inproc_world(Adding::kWorld, TransportOptions{20});
  std::vector<double> worst(Adding::kWorld);
  const auto value = [](int64_t rank, size_t s, size_t i) {
    return static_cast<float>(std::sin(
        static_cast<double>(rank * 977 + static_cast<int64_t>(s) * 31) + static_cast<double>(i)));
  };
  const auto train = [&](int64_t rank) {
    const auto backend = make_cpu_backend();
    const auto fabric =
        make_device_fabric(*backend, job->rank(rank).control(),
                           std::make_unique<AddingLinks>(shared, rank), {}, kSmallSlot);
    const auto group = fabric->add_group(suite::everyone(*fabric));
    std::vector<std::vector<float>> wholes, parts;
    std::vector<Shard> shards;
    for (size_t s = 0; s < std::size(kForms); ++s) {
      const Form& form = kForms[s];
      wholes.emplace_back();
      for (int64_t i = 0; i < form.count; ++i)
        wholes[s].push_back(value(rank, s, static_cast<size_t>(i)));
      parts.emplace_back(static_cast<size_t>(form.part), 7.0F);
      shards.push_back({suite::bytes_of(wholes[s].data()), suite::bytes_of(parts[s].data()),
                        DType::kF32, form.count, form.part, form.stretches, form.mirrored});
      shards.back().first = form.first, shards.back().slice = form.slice;
    }
    ASSERT_TRUE(
        fabric
            ->run(*group, {.kind = InstructionKind::kReduceScatter, .fast = true, .shards = shards})
            .ok());
    double& most = worst[static_cast<size_t>(rank)];
    for (size_t s = 0; s < shards.size(); ++s) {
      std::vector<double> want(parts[s].size(), 7);  // beside the slice it stays
      std::fill(want.begin() + shards[s].first, want.begin() + shards[s].end(), 0);
      shards[s].for_each_run(rank, [&](const Shard::Run& run) {
        for (int64_t i = 0; i < run.bytes / 4; ++i)
          for (int64_t k = 0; k < Adding::kWorld; ++k)
            want[static_cast<size_t>(run.part / 4 + i)] +=
                value(k, s, static_cast<size_t>(run.whole / 4 + i));
      });
      for (size_t i = 0; i < want.size(); ++i)
        most = std::max(most, std::abs(want[i] - static_cast<double>(parts[s][i])));
    }
  };
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < Adding::kWorld; ++rank) threads.emplace_back(train, rank);
  for (std::thread& thread : threads) thread.join();
  return *std::ranges::max_element(worst);
}

TEST(DeviceFabric, FastPartsAreTheLibrarysSums) {
  Adding right, short_of_one{Adding::kLeavesOneOut}, swapped{Adding::kSwapsMembers};
  EXPECT_LE(worst_of_fast_parts(right), 1e-6);
  // The library is called for sums to all; for sums to each, of what is cut evenly, or along dims,
  // in turns of a slot; and for sums to one: three, one, and three of a slice.
  EXPECT_EQ(right.calls, (std::vector<int64_t>{0, 13, 7}));
  EXPECT_GT(worst_of_fast_parts(short_of_one), 0.1);
  EXPECT_GT(worst_of_fast_parts(swapped), 0.1);
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
    got = t.run(*group, {.kind = InstructionKind::kAllReduce, .pieces = std::span(&piece, 1)});
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
    const Status status =
        t.run(*group, {.kind = InstructionKind::kAllReduce, .pieces = std::span(&piece, 1)});
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
