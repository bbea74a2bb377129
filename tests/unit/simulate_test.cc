// The simulation of plan sets: times of published tables, links that are shared, lanes, causes.
#include "piper/inspect/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "piper/inspect/analysis.h"
#include "piper/planner/lower.h"
#include "unit/chain.h"
#include "unit/zero_bubble_rows.h"

namespace piper {
namespace {

// ---- Plans by hand ------------------------------------------------------------------------------

constexpr auto kSend = InstructionKind::kSend, kRecv = InstructionKind::kRecv,
               kAllReduce = InstructionKind::kAllReduce, kCopy = InstructionKind::kCopy;

Instruction compute(TaskPass pass, int32_t micro, int32_t stream = 0) {
  Instruction one;
  one.pass = pass;
  one.stage = 0;
  one.micro = micro;
  one.stream = stream;
  one.program = 0;
  one.label = fmt::format("{} mb={}", static_cast<char>(pass), micro);
  return one;
}
Instruction message(InstructionKind kind, int32_t peer, int32_t communicator, int32_t stream = 0) {
  Instruction one;
  one.kind = kind;
  one.pass = TaskPass::kMove;
  one.peer = {peer};
  one.communicator = communicator;
  one.stream = stream;
  one.label = fmt::format("{} of {}", to_string(kind), communicator);
  return one;
}
Instruction other(InstructionKind kind, int32_t stream = 0, int32_t communicator = -1) {
  Instruction one;
  one.kind = kind;
  one.pass = TaskPass::kMove;
  one.stream = stream;
  one.communicator = communicator;
  one.group = is_collective(kind) ? 0 : -1;
  one.label = to_string(kind);
  return one;
}
Instruction behind(Instruction one, std::vector<int32_t> waits) {
  one.waits = std::move(waits);
  return one;
}

PlanSet plans_of(std::vector<std::vector<Instruction>> bodies) {
  PlanSet set;
  for (auto& body : bodies) {
    set.role_of_rank.push_back(static_cast<int32_t>(set.roles.size()));
    RoleProgram& role = set.roles.emplace_back();
    role.mesh = {{"pp", static_cast<int64_t>(bodies.size())}};
    role.streams = {{"compute"}, {"side"}, {"other"}};
    role.groups = {{"pp", {0}}};
    role.body = std::move(body);
  }
  return set;
}

// Computations take 1; what moves a latency of 0.5 and 2 on link 0; copies 3; a send holds up 0.25
// where `calls` says so.
class PlainMachine : public Machine {
 public:
  bool calls = false;
  double host = 0;
  double sum = 0;                                   // of collectives, once their bytes have moved
  std::map<int32_t, std::vector<LinkShare>> links;  // by communicator; else all of link 0
  RankLanes lanes = RankLanes::kStreams;
  double slowed = 0, between_steps = 0;
  std::set<int64_t> only;  // ranks of which these two are; empty: of all
  Result<RankCosts> costs_of(const PlanSet& set, int64_t rank) const override {
    const RoleProgram& role =
        set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])];
    RankCosts costs;
    costs.lanes = lanes;
    if (only.empty() || only.contains(rank)) {
      costs.slowed = slowed;
      costs.between_steps = between_steps;
    }
    for (const Instruction& one : role.body) {
      StepCost& cost = costs.body.emplace_back();
      cost.host = host;
      if (one.kind == InstructionKind::kCompute) cost.device = 1;
      if (one.kind == kCopy) cost.lane = 3;
      if (one.kind == kSend && calls) cost.lane = 0.25;
      if (one.kind == kSend || one.kind == kRecv || is_collective(one.kind)) {
        cost.latency = 0.5;
        cost.wire = 2;
        const auto known = links.find(one.communicator);
        cost.links = known == links.end() ? std::vector<LinkShare>{{0, 1}} : known->second;
        if (is_collective(one.kind)) cost.lane = sum;
      }
    }
    return costs;
  }
};

// "F mb=0@0-1 send of 0@1-1": what runs when on a rank.
std::string times_of(const PlanSet& set, const Machine& machine, size_t rank, int32_t steps = 1) {
  const auto timeline = simulate(set, machine, steps);
  if (!timeline) return print_error(timeline.error());
  std::string text;
  for (const TimedStep& step : timeline->rows[rank].steps)
    text += fmt::format("{}{}@{:.4g}-{:.4g}", text.empty() ? "" : " ", step.one->label, step.start,
                        step.end);
  return text;
}

TEST(Simulate, MessagesTakeLatencyAndTheirWire) {
  const PlanSet set =
      plans_of({{compute(TaskPass::kF, 0), message(kSend, 1, 0), compute(TaskPass::kF, 1)},
                {message(kRecv, 0, 0), compute(TaskPass::kF, 0)}});
  PlainMachine machine;
  EXPECT_EQ(times_of(set, machine, 0), "F mb=0@0-1 send of 0@1-1 F mb=1@1-2");
  EXPECT_EQ(times_of(set, machine, 1), "recv of 0@1-3.5 F mb=0@3.5-4.5");
  machine.calls = true;
  EXPECT_EQ(times_of(set, machine, 0), "F mb=0@0-1 send of 0@1-1.25 F mb=1@1.25-2.25");
  EXPECT_EQ(times_of(set, machine, 1), "recv of 0@1.25-3.75 F mb=0@3.75-4.75");
}

// A receiver that comes late finds the message there, or it begins only then.
TEST(Simulate, MessagesMayWaitForTheirReceiver) {
  const PlanSet set = plans_of(
      {{message(kSend, 1, 0)}, {other(kCopy), message(kRecv, 0, 0), compute(TaskPass::kF, 0)}});
  PlainMachine machine;
  EXPECT_EQ(times_of(set, machine, 1), "copy@0-3 recv of 0@3-3 F mb=0@3-4");
  machine.sends_wait = true;
  EXPECT_EQ(times_of(set, machine, 1), "copy@0-3 recv of 0@3-5.5 F mb=0@5.5-6.5");
}

// Two messages over one port take twice as long while both are under way.
TEST(Simulate, LinksAreShared) {
  const PlanSet set = plans_of({{message(kSend, 1, 0), message(kSend, 2, 1, 1)},
                                {message(kRecv, 0, 0)},
                                {message(kRecv, 0, 1)}});
  const PlainMachine machine;
  EXPECT_EQ(times_of(set, machine, 1), "recv of 0@0-4.5");
  EXPECT_EQ(times_of(set, machine, 2), "recv of 1@0-4.5");
  const PlanSet late =
      plans_of({{message(kSend, 1, 0), compute(TaskPass::kF, 0, 1), message(kSend, 2, 1, 1)},
                {message(kRecv, 0, 0)},
                {message(kRecv, 0, 1)}});
  // One alone until 1.5, both until 3.5, the other one alone until 4.5.
  EXPECT_EQ(times_of(late, machine, 1), "recv of 0@0-3.5");
  EXPECT_EQ(times_of(late, machine, 2), "recv of 1@1-4.5");
}

// What passes two links takes its share of each: a port that is asked for more than it has slows
// down all that pass it, and one that is not slows down none.
TEST(Simulate, TransfersTakeSharesOfSeveralLinks) {
  const std::vector<Instruction> both{other(kAllReduce, 0, 0), other(kAllReduce, 1, 1)};
  const PlanSet set = plans_of({both, both});
  PlainMachine machine;
  machine.links = {{0, {{0, 1}}}, {1, {{0, 0.5}, {1, 1}}}};
  // One and a half times what the port has, until both end.
  EXPECT_EQ(times_of(set, machine, 0), "all_reduce@0-3.5 all_reduce@0-3.5");
  machine.links = {{0, {{0, 0.5}, {2, 1}}}, {1, {{0, 0.5}, {1, 1}}}};
  EXPECT_EQ(times_of(set, machine, 0), "all_reduce@0-2.5 all_reduce@0-2.5");
}

// A device adds up after all messages have come: that shares no link with other messages.
TEST(Simulate, SumsAreNotOnTheWire) {
  const std::vector<Instruction> both{other(kAllReduce, 0, 0), other(kAllReduce, 1, 1)};
  PlainMachine machine;
  machine.sum = 1;
  EXPECT_EQ(times_of(plans_of({both, both}), machine, 0), "all_reduce@0-5.5 all_reduce@0-5.5");
}

// What comes and what goes do not share; operations of one communicator follow each other.
TEST(Simulate, DirectionsAreApartAndCommunicatorsInOrder) {
  const PlanSet both = plans_of(
      {{message(kSend, 1, 0), message(kRecv, 1, 1)}, {message(kSend, 0, 1), message(kRecv, 0, 0)}});
  const PlainMachine machine;
  EXPECT_EQ(times_of(both, machine, 0), "send of 0@0-0 recv of 1@0-2.5");
  const PlanSet two = plans_of(
      {{message(kSend, 1, 0), message(kSend, 1, 0)}, {message(kRecv, 0, 0), message(kRecv, 0, 0)}});
  EXPECT_EQ(times_of(two, machine, 1), "recv of 0@0-2.5 recv of 0@2.5-5");
}

TEST(Simulate, CollectivesBeginWithTheLastMember) {
  const PlanSet set = plans_of({{other(kAllReduce, 0, 0), compute(TaskPass::kF, 0)},
                                {compute(TaskPass::kF, 0), other(kAllReduce, 0, 0)}});
  const PlainMachine machine;
  EXPECT_EQ(times_of(set, machine, 0), "all_reduce@1-3.5 F mb=0@3.5-4.5");
  EXPECT_EQ(times_of(set, machine, 1), "F mb=0@0-1 all_reduce@1-3.5");
}

// While bytes move, computations have a part of the device.
TEST(Simulate, CommunicationSlowsComputations) {
  const PlanSet set = plans_of({{other(kAllReduce, 1, 0), compute(TaskPass::kF, 0),
                                 compute(TaskPass::kF, 1), compute(TaskPass::kF, 2)},
                                {other(kAllReduce, 1, 0)}});
  PlainMachine machine;
  machine.slowed = 0.5;
  // Bytes move from 0.5 to 2.5.
  EXPECT_EQ(times_of(set, machine, 0), "all_reduce@0-2.5 F mb=0@0-1.5 F mb=1@1.5-3 F mb=2@3-4");
  machine.only = {1};  // another kind of device
  EXPECT_EQ(times_of(set, machine, 0), "all_reduce@0-2.5 F mb=0@0-1 F mb=1@1-2 F mb=2@2-3");
}

TEST(Simulate, ThreadsWorkThroughAllStreams) {
  const PlanSet set = plans_of({{other(kAllReduce, 1, 0), compute(TaskPass::kF, 0), other(kCopy, 2),
                                 behind(compute(TaskPass::kF, 1), {0, 2})},
                                {other(kAllReduce, 1, 0)}});
  PlainMachine machine;
  EXPECT_EQ(times_of(set, machine, 0), "all_reduce@0-2.5 F mb=0@0-1 copy@0-3 F mb=1@3-4");
  machine.lanes = RankLanes::kThread;
  EXPECT_EQ(times_of(set, machine, 0),
            "all_reduce@0-2.5 F mb=0@2.5-3.5 copy@3.5-6.5 F mb=1@6.5-7.5");
  machine.lanes = RankLanes::kTwoThreads;
  EXPECT_EQ(times_of(set, machine, 0), "all_reduce@0-2.5 F mb=0@0-1 copy@2.5-5.5 F mb=1@5.5-6.5");
}

// The host issues a step while the one before it runs, but no further ahead.
TEST(Simulate, NothingRunsBeforeItIsIssued) {
  const PlanSet set = plans_of({{compute(TaskPass::kF, 0), compute(TaskPass::kF, 1)}});
  PlainMachine machine;
  machine.host = 3;
  EXPECT_EQ(times_of(set, machine, 0), "F mb=0@3-4 F mb=1@6-7");
  machine.host = 0.25;
  EXPECT_EQ(times_of(set, machine, 0, 3),
            "F mb=0@0.25-1.25 F mb=1@1.25-2.25 F mb=0@2.25-3.25 F mb=1@3.25-4.25 "
            "F mb=0@4.25-5.25 F mb=1@5.25-6.25");
  machine.between_steps = 1;
  EXPECT_EQ(times_of(set, machine, 0, 2),
            "F mb=0@0.25-1.25 F mb=1@1.25-2.25 F mb=0@3.25-4.25 F mb=1@4.25-5.25");
  machine.only = {1};
  EXPECT_EQ(times_of(set, machine, 0, 2),
            "F mb=0@0.25-1.25 F mb=1@1.25-2.25 F mb=0@2.25-3.25 F mb=1@3.25-4.25");
}

// A step ends when what it sent has arrived.
TEST(Simulate, StepsEndWithTheirMessages) {
  const PlanSet set = plans_of({{compute(TaskPass::kF, 0), message(kSend, 1, 0)},
                                {other(kCopy), other(kCopy), message(kRecv, 0, 0)}});
  PlainMachine machine;
  EXPECT_EQ(times_of(set, machine, 0, 2),
            "F mb=0@0-1 send of 0@1-1 F mb=0@3.5-4.5 send of 0@4.5-4.5");
  machine.sends_wait = true;
  EXPECT_EQ(times_of(set, machine, 0, 2),
            "F mb=0@0-1 send of 0@1-1 F mb=0@8.5-9.5 send of 0@9.5-9.5");
}

TEST(Simulate, WhatWaitsForEverIsNamed) {
  const PlanSet set = plans_of({{message(kRecv, 1, 7)}, {compute(TaskPass::kF, 0)}});
  EXPECT_EQ(times_of(set, PlainMachine(), 0).substr(0, 78),
            "error: the schedule cannot be followed: rank 0 waits for ever in 'recv of 7' (");
}

// ---- Why devices idle
// -----------------------------------------------------------------------------

std::string pieces_of(const Timeline& timeline, size_t row) {
  std::string text;
  for (const IdlePiece& piece : idle_pieces(timeline, row, 0, timeline.length))
    text += fmt::format("{}{:.4g}-{:.4g} {}", text.empty() ? "" : ", ", piece.from, piece.to,
                        kIdleReasons[static_cast<size_t>(piece.reason)]);
  return text;
}

TEST(Simulate, IdleTimeHasReasons) {
  const PlanSet set = plans_of({{compute(TaskPass::kF, 0), other(kCopy), message(kSend, 1, 0)},
                                {message(kRecv, 0, 0, 1), behind(compute(TaskPass::kF, 0), {0}),
                                 other(kCopy), compute(TaskPass::kF, 1)}});
  const PlainMachine machine;
  const auto timeline = simulate(set, machine, 1);
  ASSERT_TRUE(timeline);
  EXPECT_EQ(times_of(set, machine, 1),
            "recv of 0@4-6.5 F mb=0@6.5-7.5 copy@7.5-10.5 F mb=1@10.5-11.5");
  EXPECT_EQ(pieces_of(*timeline, 1), "0-4 other ranks, 4-6.5 communication, 7.5-10.5 copies");
  // What it copies and sends behind its last computation keeps its step from ending.
  EXPECT_EQ(pieces_of(*timeline, 0), "1-4 copies, 4-6.5 the step's end, 6.5-11.5 no work");
  const auto why = [&](int64_t rank, double time) {
    const auto lines = explain_time(*timeline, rank, time);
    return lines ? join(*lines, "\n") : print_error(lines.error());
  };
  EXPECT_EQ(why(1, 7), "rank 1 computes 'F mb=0' from 6.5 s to 7.5 s (guessed)");
  EXPECT_EQ(
      why(1, 0.5),
      "rank 1 computes nothing from 0 us to 4 s: it waits in 'recv of 0' (messages over pp) on "
      "stream 'side'\n"
      "  rank 0 comes to 'send of 0' (messages over pp) at 4 s\n"
      "rank 0 computes 'F mb=0' from 0 us to 1 s (guessed)");
  EXPECT_EQ(
      why(1, 5),
      "rank 1 computes nothing from 4 s to 6.5 s: the bytes of 'recv of 0' (messages over pp) "
      "are under way on stream 'side'");
  EXPECT_EQ(why(5, 0), "error: there is no rank 5: the plans are for 2 ranks\n");
  EXPECT_EQ(why(0, 12), "error: 12 s is not within the 11.5 s that are simulated\n");
}

// Roles that each can be read, and do not go together, are no reason to stop.
TEST(Simulate, RolesThatDisagreeAreNamed) {
  PlanSet set = plans_of({{compute(TaskPass::kF, 0)}, {compute(TaskPass::kF, 0)}});
  const auto said = [&] {
    const auto report = report_step(set, PlainMachine());
    return report ? "none" : report.error().message;
  };
  EXPECT_EQ(said(), "none");
  set.roles[0].steps_ahead = 1;
  EXPECT_EQ(said(),
            "the plans do not belong together: some overlap 1 steps and have 0 outer updates, "
            "others 0 and 0");
  set.roles[0].steps_ahead = 0;
  set.roles[0].outer_updates.push_back({.every = 2, .instructions = {compute(TaskPass::kU, 0)}});
  EXPECT_NE(said(), "none");
}

// All of a device's time is accounted for, and what is hidden is not exposed.
TEST(Simulate, ReportsAddUp) {
  const PlanSet set = plans_of({{compute(TaskPass::kF, 0), other(kAllReduce, 1, 0),
                                 compute(TaskPass::kF, 1), behind(compute(TaskPass::kB, 1), {1})},
                                {compute(TaskPass::kF, 0), other(kAllReduce, 1, 0),
                                 compute(TaskPass::kF, 1), behind(compute(TaskPass::kB, 1), {1})}});
  PlainMachine machine;
  machine.between_steps = 0.5;
  auto report = report_step(set, machine);
  ASSERT_TRUE(report);
  // The first F, then 2.5 of the collective beside 1 of the second F, then the B; 0.5 between.
  // The collective does not wait for the first F, which is on another stream.
  EXPECT_NEAR(report->step, 4.0, 1e-9);
  EXPECT_NEAR(report->bound, 3, 1e-9);
  for (const RowTimes& row : report->rows) {
    double all = row.busy;
    for (const double idle : row.idle) all += idle;
    EXPECT_NEAR(all, report->step, 1e-9);
  }
  ASSERT_EQ(report->moved.size(), 1u);
  EXPECT_EQ(report->moved[0].what, "all_reduce over pp");
  EXPECT_NEAR(report->moved[0].moving, 2.5, 1e-9);
  EXPECT_NEAR(report->moved[0].exposed, 0.5, 1e-9);
  double path = 0;
  for (const PathKind& kind : report->path) path += kind.time;
  EXPECT_NEAR(path, report->step, 1e-9);
  const auto off = sensitivity(set, machine, *report, 0.1);
  ASSERT_TRUE(off);
  std::string kinds;
  for (const Sensitivity& one : *off)
    kinds += fmt::format("{} {:+.3f} ", kCostKinds[static_cast<size_t>(one.kind)], one.more);
  EXPECT_EQ(kinds, "computations +0.025 collectives +0.062 host +0.013 ");
}

// Nothing hides communication behind the last computation of a step, as a gather of updated
// parameters.
TEST(Simulate, WhatEndsAStepIsExposed) {
  const PlanSet set = plans_of(
      {{compute(TaskPass::kF, 0), compute(TaskPass::kU, -1), behind(other(kAllReduce, 1, 0), {1})},
       {compute(TaskPass::kF, 0), behind(other(kAllReduce, 1, 0), {0})}});
  const auto report = report_step(set, PlainMachine());
  ASSERT_TRUE(report);
  EXPECT_NEAR(report->step, 4.5, 1e-9);
  const auto idle = [&](size_t row, IdleReason reason) {
    return report->rows[row].idle[static_cast<size_t>(reason)];
  };
  for (const size_t row : {0, 1}) {
    EXPECT_NEAR(idle(row, IdleReason::kMoving), 2.5, 1e-9);
    EXPECT_NEAR(idle(row, IdleReason::kNothing), 0, 1e-9);
  }
  EXPECT_NEAR(idle(1, IdleReason::kOthers), 1, 1e-9);
  ASSERT_EQ(report->moved.size(), 1u);
  EXPECT_NEAR(report->moved[0].moving, 2.5, 1e-9);
  EXPECT_NEAR(report->moved[0].exposed, 2.5, 1e-9);
  const auto timeline = simulate(set, PlainMachine(), 1);
  ASSERT_TRUE(timeline);
  // The directive that makes it is the one over its axis.
  const auto line = [&](const std::string& entries) {
    const auto lines = explain_time(*timeline, 0, 3,
                                    "piper: 1\nannotate:\n  - shard: {dim: 1, over: pp}\n"
                                    "directives:\n" +
                                        entries);
    return lines && lines->size() == 2 ? (*lines)[1] : "";
  };
  EXPECT_EQ(line("  - replicate: {over: ppp}\n  - place: {on: {pp: s}}\n"), "");
  EXPECT_EQ(line("  - replicate: {over: dp}\n  - shard: {match: x, over: [tp, pp], dim: 0}\n"),
            "  by this line of the strategy: shard: {match: x, over: [tp, pp], dim: 0}");
  EXPECT_EQ(line("  - shard: {over: pp}\n  - replicate: {over: pp}\n"),
            "  by this line of the strategy: replicate: {over: pp}");
  // Computations are where the order has them; its lines are one here.
  const auto computes = explain_time(*timeline, 0, 0.5,
                                     "directives:\n  - order:\n      each: pp\n"
                                     "      program: |\n        repeat M: F\n        repeat M: B\n"
                                     "  - place: {on: {pp: s}}\n");
  ASSERT_TRUE(computes);
  EXPECT_EQ(computes->back(),
            "  by this line of the strategy: order: each: pp program: repeat M: F repeat M: B");
}

// Of messages that one rank hides and another one does not, those that are not hidden are told,
// with their own time.
TEST(Simulate, WhatIsExposedIsOfOneRank) {
  std::vector<Instruction> hides{message(kRecv, 1, 0, 1), message(kRecv, 1, 0, 1)};
  for (int32_t micro = 0; micro < 6; ++micro) hides.push_back(compute(TaskPass::kF, micro));
  const PlanSet set = plans_of({hides,
                                {message(kSend, 0, 0, 1), message(kSend, 0, 0, 1)},
                                {message(kRecv, 3, 1, 1), behind(compute(TaskPass::kF, 0), {0})},
                                {message(kSend, 2, 1, 1)}});
  const auto report = report_step(set, PlainMachine());
  ASSERT_TRUE(report);
  ASSERT_EQ(report->moved.size(), 1u);
  EXPECT_GT(report->moved[0].exposed, 0);
  EXPECT_NEAR(report->moved[0].moving, report->moved[0].exposed, 1e-9);
}

// An evaluation is simulated by itself, and is no part of a step.
TEST(Simulate, EvaluationsAreApart) {
  PlanSet set = plans_of({{compute(TaskPass::kF, 0), compute(TaskPass::kB, 0)},
                          {compute(TaskPass::kF, 0), compute(TaskPass::kB, 0)}});
  const PlainMachine machine;
  const auto without = report_step(set, machine);
  ASSERT_TRUE(without);
  EXPECT_EQ(without->evaluation, 0);
  for (RoleProgram& role : set.roles)
    role.evaluation = {compute(TaskPass::kF, 0), other(kAllReduce, 1, 0),
                       behind(compute(TaskPass::kF, 1), {1})};
  const auto report = report_step(set, machine);
  ASSERT_TRUE(report);
  EXPECT_NEAR(report->evaluation, 3.5, 1e-9);  // the second F waits for the collective's 2.5
  EXPECT_EQ(report->step, without->step);
}

// What a step takes on average has its share of the outer update.
TEST(Simulate, OuterUpdatesAreSharedBySteps) {
  PlanSet set = plans_of({{compute(TaskPass::kF, 0), compute(TaskPass::kB, 0)},
                          {compute(TaskPass::kF, 0), compute(TaskPass::kB, 0)}});
  const PlainMachine machine;
  const auto without = report_step(set, machine);
  ASSERT_TRUE(without);
  EXPECT_EQ(without->average, without->step);
  for (RoleProgram& role : set.roles) {
    role.outer_updates.push_back({.every = 4, .instructions = {compute(TaskPass::kU, 0)}});
  }
  const auto report = report_step(set, machine);
  ASSERT_TRUE(report);
  ASSERT_EQ(report->outer.size(), 1u);
  EXPECT_GT(report->outer[0], 0);
  EXPECT_DOUBLE_EQ(report->average, report->step + report->outer[0] / 4);
}

// ---- Published tables
// -------------------------------------------------------------------------------

PlanSet plans_of(const chain::Made& made) {
  auto lowered = lower(made.dag, made.schedule);
  EXPECT_TRUE(lowered) << (lowered ? "" : print_error(lowered.error()));
  PlanSet set;
  if (!lowered) return set;
  for (size_t d = 0; d < lowered->roles.size(); ++d)
    set.role_of_rank.push_back(static_cast<int32_t>(d));
  set.roles = std::move(lowered->roles);
  return set;
}

struct Times {
  double span = 0, all = 0;
};
Times times_of(const char* schedule, int64_t P, int64_t V, int64_t M, const StatedCosts& costs) {
  const auto made = chain::library(schedule, P, V, M);
  EXPECT_TRUE(made) << (made ? "" : print_error(made.error()));
  if (!made) return {};
  const PlanSet set = plans_of(*made);
  const auto report = report_step(set, *stated_machine(costs));
  EXPECT_TRUE(report) << (report ? "" : print_error(report.error()));
  return report ? Times{report->span, report->alone} : Times{};
}

// With F = B = W = 1 and messages that take no time.
TEST(Simulate, UnitsGiveTheClosedForms) {
  const StatedCosts costs{1, 2, 1, 1, 0, 0, {}};
  for (const int64_t p : {4, 8, 16}) {
    const int64_t m = 3 * p;
    const auto d = [](int64_t value) { return static_cast<double>(value); };
    EXPECT_NEAR(times_of("1f1b", p, 1, m, costs).span, d(3 * (m + p - 1)), 1e-9);
    EXPECT_NEAR(times_of("zb-h1", p, 1, m, costs).span, d(3 * m + p - 1), 1e-9);
    EXPECT_NEAR(times_of("zb-h2", p, 1, m, costs).span, d(3 * m), 1e-9);
    EXPECT_NEAR(times_of("zb-h2", p, 1, m, costs).all, d(3 * m + p - 1), 1e-9);
  }
}

// arXiv 2401.10241, tables 5 and 9: bubble = (S - m(F + B + W)) / S.
TEST(Simulate, GivesTheZeroBubblePapersTable) {
  const struct {
    const char* model;
    int64_t p, m;
    double F, B, W, c, one_f_one_b, h1, h2;
  } rows[] = {
      {"1.5B", 8, 24, 18.522, 18.086, 9.337, .601, .2431, .1585, .1083},
      {"6.2B", 8, 24, 29.718, 29.444, 19.927, .527, .2347, .1323, .0698},
      {"6.2B", 8, 32, 29.802, 29.428, 19.530, .577, .1898, .1045, .0559},
      {"14.6B", 16, 48, 11.347, 11.248, 8.132, .377, .2552, .1397, .0672},
      {"28.3B", 32, 96, 10.419, 10.207, 7.715, .408, .2646, .1421, .0641},
      {"28.3B", 32, 128, 10.408, 10.204, 7.703, .408, .2168, .1106, .0490},
  };
  for (const auto& row : rows) {
    const StatedCosts costs{row.F, row.B + row.W, row.B, row.W, 0, row.c, {}};
    const double work = static_cast<double>(row.m) * (row.F + row.B + row.W);
    const auto bubble = [&](const char* schedule) {
      const double span = times_of(schedule, row.p, 1, row.m, costs).span;
      return std::round((span - work) / span * 1e4) / 1e4;
    };
    EXPECT_DOUBLE_EQ(bubble("1f1b"), row.one_f_one_b) << row.model << " m=" << row.m;
    EXPECT_DOUBLE_EQ(bubble("zb-h1"), row.h1) << row.model << " m=" << row.m;
    EXPECT_DOUBLE_EQ(bubble("zb-h2"), row.h2) << row.model << " m=" << row.m;
  }
}

// Returns the most chunks whose activations a device holds, until the last half of their backward.
int64_t most_in_flight(const Dag& dag, const ComputeOrder& order) {
  int64_t most = 0, now = 0;
  for (const TaskId id : order.tasks) {
    const TaskPass pass = dag.tasks[id.index()].pass;
    now += pass == TaskPass::kF ? 1 : pass == TaskPass::kBI ? 0 : -1;
    most = std::max(most, now);
  }
  return most;
}
// Expects that what a device holds is within the policy's limits.
void expect_within_memory(const Dag& dag, const ListPolicy& policy,
                          const std::vector<ComputeOrder>& orders) {
  for (const ComputeOrder& order : orders)
    EXPECT_LE(published::memory_of(dag, policy, order), policy.memory);
}

// The orders that a policy finds are no longer than those of the zero-bubble paper, within the
// paper's memory, straight and as a V; and more memory makes none longer.
TEST(Simulate, PoliciesFindOrdersAsGoodAsThePapers) {
  int lower = 0, ways = 0;
  for (const published::OrderRow& row : published::order_rows()) {
    SCOPED_TRACE(
        fmt::format("p={} m={} chunks={} memory={}p", row.p, row.m, row.chunks, row.memory));
    auto made = published::pipeline_of(row);
    ASSERT_TRUE(made) << print_error(made.error());
    const TaskLists deps = find_dependencies(made->dag);
    ListPolicy policy = published::policy_of(row, made->dag);
    auto orders = list_schedule(made->dag, deps, policy);
    ASSERT_TRUE(orders) << print_error(orders.error());
    expect_within_memory(made->dag, policy, *orders);
    const OrderLength span = length_of(made->dag, deps, policy, *orders);
    EXPECT_GE(static_cast<double>(span.bound), row.work());
    EXPECT_GE(span.length, span.bound);
    // Straight orders within the memory of p forwards are as short as the bound: none is shorter.
    if (row.chunks == 1 && row.memory == 1) {
      EXPECT_EQ(span.length, span.bound);
    }
    ways += span.by == BoundBy::kWay && span.length == span.bound;
    EXPECT_LE(row.bubble(span.length), row.papers);
    lower += row.bubble(span.length) < row.papers;
    // More memory makes it no longer. (Of a V; of others a few rows tell enough.)
    for (const double times : {1.25, 1.5, 2.0}) {
      if (row.chunks == 1 || row.p > 16) break;
      const ListPolicy wider = published::policy_of(row, made->dag, times);
      const auto more = list_schedule(made->dag, deps, wider);
      ASSERT_TRUE(more) << print_error(more.error());
      expect_within_memory(made->dag, wider, *more);
      EXPECT_LE(length_of(made->dag, deps, wider, *more).length, span.length) << times;
    }
    // No order is shorter than the work of the last stage behind the way to it, nor than that
    // without weight halves and the way back.
    policy.span = false;
    const OrderLength length = length_of(made->dag, deps, policy, *orders);
    EXPECT_GE(length.length, length.bound);
    if (row.chunks == 1) {
      const int64_t others = row.p - 1, way = others * (row.f + row.c),
                    work = row.m * (row.f + row.b + row.w),
                    back = row.m * (row.f + row.b) + others * (row.b + row.c) + row.w;
      EXPECT_GE(length.bound, way + std::max(work, back));
    }
    chain::Made ordered{made->dag, *std::move(orders), {}};
    auto schedule = make_schedule(ordered.dag, deps, ordered.compute);
    ASSERT_TRUE(schedule) << print_error(schedule.error());
    ordered.schedule = *std::move(schedule);
    const auto number = [](int64_t time) { return static_cast<double>(time); };
    const auto report = report_step(
        plans_of(ordered),
        *stated_machine({number(row.f), 0, number(row.b), number(row.w), 0, number(row.c), {}}));
    ASSERT_TRUE(report) << print_error(report.error());
    EXPECT_NEAR(report->span, number(span.length), 1e-3 * number(span.length));
  }
  EXPECT_GE(lower, 6);
  EXPECT_GE(ways, 1);
}

// Describes a pipeline of the library whose tasks take random times, under the limits that the
// library's own order takes.
struct RandomPipeline {
  const char* name;
  int64_t devices, chunks, micros;
  std::optional<chain::Made> made;
  ListPolicy policy;
};
RandomPipeline random_pipeline(std::mt19937& random, const char* name, int64_t most_devices,
                               int64_t most_micros) {
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  RandomPipeline one{name, draw(2, most_devices), 1, 0, {}, {}};
  const std::string_view text = name;
  if (text == "zbv" || text == "interleaved-1f1b") one.chunks = 2;
  one.micros = draw(2 * one.devices, std::max(2 * one.devices, most_micros));
  auto made = chain::library(name, one.devices, one.chunks, one.micros);
  EXPECT_TRUE(made) << (made ? "" : print_error(made.error()));
  if (!made) return one;
  const bool is_even = draw(0, 1) == 1, has_slots = draw(0, 3) == 0;
  const int64_t kept = draw(10, 40), left = draw(0, kept);
  std::map<std::pair<TaskPass, std::vector<int32_t>>, int64_t> times;
  ListPolicy& policy = one.policy;
  policy.prefer = {TaskPass::kB, TaskPass::kBI, TaskPass::kF, TaskPass::kBW};
  policy.span = draw(0, 1) == 1;
  policy.time_per_message = draw(0, 20);
  for (const Chunk& chunk : made->dag.chunks) {
    const auto key = std::pair(chunk.pass, is_even ? std::vector<int32_t>() : chunk.tags);
    policy.time.push_back(times.try_emplace(key, draw(1, 30)).first->second);
    policy.held.push_back(chunk.pass == TaskPass::kF ? kept : 0);
    policy.left.push_back(chunk.pass == TaskPass::kBI ? left : 0);
  }
  policy.in_flight.assign(made->dag.cells.size(), 1 << 20);
  for (size_t cell = 0; cell < made->compute.size(); ++cell) {
    const ComputeOrder& order = made->compute[cell];
    if (has_slots)
      policy.in_flight[cell] = most_in_flight(made->dag, order);
    else
      policy.memory = std::max(policy.memory, published::memory_of(made->dag, policy, order));
  }
  one.made = *std::move(made);
  return one;
}

// Orders of the library, and those that are found under the same limits, take no less than the
// bound, whatever each stage and message takes; and those that are found take no longer than the
// library's, but for Vs hardly.
TEST(Simulate, NoOrderIsBelowTheBound) {
  std::mt19937 random(20261130);
  constexpr const char* kNames[] = {"zb-h1", "zb-h2", "zbv", "1f1b", "interleaved-1f1b"};
  std::map<BoundBy, int> reached;
  for (int turn = 0; turn < 60; ++turn) {
    const RandomPipeline one = random_pipeline(random, kNames[turn % std::size(kNames)], 5, 20);
    ASSERT_TRUE(one.made);
    SCOPED_TRACE(fmt::format("turn {}: {} of {} devices, {} microbatches", turn, one.name,
                             one.devices, one.micros));
    const Dag& dag = one.made->dag;
    const TaskLists deps = find_dependencies(dag);
    const OrderLength librarys = length_of(dag, deps, one.policy, one.made->compute);
    EXPECT_GE(librarys.length, librarys.bound);
    const auto orders = list_schedule(dag, deps, one.policy);
    ASSERT_TRUE(orders) << print_error(orders.error());
    const OrderLength found = length_of(dag, deps, one.policy, *orders);
    EXPECT_EQ(found.bound, librarys.bound);
    EXPECT_GE(found.length, found.bound);
    const double more = std::string_view(one.name) == "zbv" ? 1.03 : 1;
    EXPECT_LE(static_cast<double>(found.length), more * static_cast<double>(librarys.length));
    reached[found.by] += found.length == found.bound;
  }
  EXPECT_GT(reached[BoundBy::kWaits], 3);
}

// Orders within tighter limits are tried, too, since a choice that is best at the moment may be
// worse in the end.
TEST(Simulate, MoreMemoryNeverMakesAnOrderLonger) {
  const struct {
    const char* schedule;
    int64_t p, v, m, f, b, w, c;
    bool span;
  } rows[] = {{"zbv", 8, 2, 24, 10, 14, 5, 0, true},
              {"zbv", 4, 2, 12, 18, 13, 9, 1, false},
              {"zb-h1", 6, 1, 12, 10, 11, 7, 2, true}};
  for (const auto& row : rows) {
    auto made = chain::library(row.schedule, row.p, row.v, row.m);
    ASSERT_TRUE(made) << print_error(made.error());
    const TaskLists deps = find_dependencies(made->dag);
    ListPolicy policy;
    policy.prefer = {TaskPass::kB, TaskPass::kBI, TaskPass::kF, TaskPass::kBW};
    policy.span = row.span;
    policy.time_per_message = row.c;
    constexpr int64_t kKept = 100;
    for (const Chunk& chunk : made->dag.chunks) {
      policy.time.push_back(chunk.pass == TaskPass::kF    ? row.f
                            : chunk.pass == TaskPass::kB  ? row.b + row.w
                            : chunk.pass == TaskPass::kBI ? row.b
                            : chunk.pass == TaskPass::kBW ? row.w
                                                          : 0);
      policy.held.push_back(chunk.pass == TaskPass::kF ? kKept : 0);
      policy.left.push_back(chunk.pass == TaskPass::kBI ? kKept / 3 : 0);
    }
    const auto length = [&](int64_t chunks, int64_t bytes) {
      policy.in_flight.assign(made->dag.cells.size(), chunks);
      policy.memory = bytes;
      const auto orders = list_schedule(made->dag, deps, policy);
      EXPECT_TRUE(orders) << (orders ? "" : print_error(orders.error()));
      return orders ? length_of(made->dag, deps, policy, *orders).length : 0;
    };
    constexpr int64_t kAny = 1 << 30;
    const int64_t whole = length(kAny, 0), least = row.v;
    for (int64_t before = INT64_MAX, k = least; k <= 2 * row.v * row.p + 2; ++k) {
      const int64_t now = length(k, 0);
      EXPECT_LE(now, before) << row.schedule << " with " << k << " chunks";
      EXPECT_LE(whole, now);
      before = now;
    }
    for (int64_t before = INT64_MAX, bytes = least * kKept; bytes <= 2 * row.v * row.p * kKept;
         bytes += kKept / 4) {
      const int64_t now = length(kAny, bytes);
      EXPECT_LE(now, before) << row.schedule << " with " << bytes << " bytes";
      EXPECT_LE(whole, now);
      before = now;
    }
  }
}

// Its table 8, whose times are those of half a stage, in microseconds.
TEST(Simulate, GivesTheTableOfHalvedStages) {
  const struct {
    int64_t p, m;
    double f, b, w, c, one_f_one_b, h1, h2;
  } rows[] = {
      {16, 48, 14407, 14380, 9676, 1610, .2668, .1536, .0823},
      {16, 64, 14412, 14393, 9688, 1621, .2206, .1198, .0630},
      {24, 72, 6763, 6969, 5251, 755, .2699, .1439, .0628},
      {32, 96, 9458, 9748, 7288, 879, .2676, .1429, .0629},
      {32, 128, 9469, 9744, 7306, 892, .2204, .1111, .0478},
  };
  for (const auto& row : rows) {
    const StatedCosts costs{2 * row.f, 2 * (row.b + row.w), 2 * row.b, 2 * row.w, 0, row.c, {}};
    const double work = static_cast<double>(2 * row.m) * (row.f + row.b + row.w);
    const auto bubble = [&](const char* schedule) {
      const double span = times_of(schedule, row.p, 1, row.m, costs).span;
      return std::round((span - work) / span * 1e4) / 1e4;
    };
    EXPECT_DOUBLE_EQ(bubble("1f1b"), row.one_f_one_b) << row.p << " " << row.m;
    EXPECT_DOUBLE_EQ(bubble("zb-h1"), row.h1) << row.p << " " << row.m;
    EXPECT_DOUBLE_EQ(bubble("zb-h2"), row.h2) << row.p << " " << row.m;
  }
}

}  // namespace
}  // namespace piper
