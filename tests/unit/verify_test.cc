// What the verifier says of each way to break a plan. (verify_sums_test.cc: what it says of sums.)
#include <array>
#include <chrono>
#include <random>

#include "sanitizer.h"
#include "unit/verify_plans.h"

namespace piper {
namespace {

TEST(Verify, AcceptsAGoodPlan) {
  const auto report = verify_plan_set(set_of({kStage0, kStage1}, 2));
  ASSERT_TRUE(report) << report.error().message;
  for (const Finding& finding : report->findings)
    ADD_FAILURE() << finding.rule << ": " << finding.text;
  EXPECT_EQ(report->ranks, 4);
  EXPECT_EQ(report->cells, 2);
  EXPECT_EQ(report->instructions, 20);
  EXPECT_EQ(report->transfers, 4);
  EXPECT_EQ(report->collectives, 2);
  EXPECT_EQ(report->sums, 2);
  EXPECT_EQ(report->parameters, 2);
}

TEST(Verify, Transfers) {
  expect({
      {{{"send label=\"send a mb=1\" args=[4] peer=[1,-1]", "copy args=[4,4]"}},
       {},
       {"transfer: 'recv a mb=1' on rank 2 (and 1 like it) waits for a message that rank 0 (and 1 "
        "like it) never sends"}},
      {{},
       {{"recv label=\"recv a mb=1\" args=[2] peer=[0,-1]", "copy args=[1,2]"}},
       {"transfer: 'send a mb=1' on rank 0 (and 1 like it) is never received by rank 2 (and 1 like "
        "it)"}},
      {{{"recv label=\"recv da mb=1\" args=[6] peer=[1,-1] communicator=1",
         "recv label=\"recv da mb=1\" args=[6] peer=[1,-1] communicator=2"}},
       {},
       {"transfer: 'send da mb=1' on rank 2 (and 1 like it) is never received by rank 0 (and 1 "
        "like it)",
        "transfer: 'recv da mb=1' on rank 0 (and 1 like it) waits for a message that rank 2 (and 1 "
        "like it) never sends"}},
      {{{"buffer 6 \"da@1\" f32[1,2]", "buffer 6 \"da@1\" f32[2]"}},
       {},
       {"transfer: 'send da mb=1' on rank 2 (and 1 like it) sends f32[1,2], but 'recv da mb=1' on "
        "rank 0 (and 1 like it) "
        "takes f32[2]"}},
  });
}

// A gradient that takes the logits' place, made of itself: it reads what is no longer there.
TEST(Verify, WhatIsChangedInPlaceIsNotChangedAgain) {
  const auto found = [](const char* second) {
    return findings_of(set_of(
        {fmt::format("plan arena=768 workspace=[0]\naxis \"dp\" 1\nstream 0 \"compute\"\n"
                     "buffer 0 \"w\" f32[2] constant at=0\nbuffer 1 \"x\" f32[2] step at=256\n"
                     "buffer 2 \"y\" f32[2] step at=512\n"
                     "program 0 args=2\n  value 0 f32[2] read\n  value 1 f32[2] written\n"
                     "  op Neg in=[0] out=[1]\n"
                     "program 1 args=2\n  value 0 f32[2] read\n  value 1 f32[2] read written\n"
                     "  op Mul in=[0,1] out=[1]\nbody\n"
                     "  0 compute label=\"F of x\" program=0 args=[0,1]\n"
                     "  1 compute label=\"F\" program=0 args=[0,2]\n"
                     "  2 compute label=\"B\" program=1 args=[0,2]\n  3 compute {}\n"
                     "  4 compute label=\"B again\" program=1 args=[0,2]\n",
                     second)},
        1));
  };
  EXPECT_EQ(found("label=\"F of x\" program=0 args=[0,1]"),
            std::vector<std::string>({"order: 'B again' on rank 0 applies the same program to 'y' "
                                      "that 'B' on rank 0 has applied before"}));
  EXPECT_EQ(found("label=\"F anew\" program=0 args=[0,2]"), std::vector<std::string>());
}

// So its messages do not overtake each other.
TEST(Verify, ACommunicatorIsOfOneStream) {
  expect({{{{"8 recv label=\"recv da mb=1\" args=[6]",
             "8 recv label=\"recv da mb=1\" stream=1 args=[6]"},
            {"args=[2,6,7]\n", "args=[2,6,7] waits=[8]\n"}},
           {},
           {"error: instruction 6 'recv da mb=0' (recv): communicator 1 is of stream 1"}}});
}

TEST(Verify, CommunicatorsAreListedAlikeAndOfTheirRanks) {
  PlanSet set = set_of({kStage0, kStage1}, 2);
  set.roles[1].communicators[0].sms = 8;
  EXPECT_EQ(findings_of(set),
            std::vector<std::string>({"communicator: rank 2 (and 1 like it) does not list the "
                                      "communicators that rank 0 (and 1 like it) does"}));
  // Rank 0 sends to rank 2 what rank 2 takes from rank 1.
  const auto role = [](const std::string& body) {
    return "plan arena=256 workspace=[0]\naxis \"pp\" 3\nstream 0 \"compute\"\n"
           "buffer 0 \"a\" f32[2] constant at=0\nbody\n" +
           body;
  };
  set = set_of({role("  0 send label=\"to 2\" args=[0] peer=[2]\n"), role(""),
                role("  0 recv label=\"from 1\" args=[0] peer=[1]\n")},
               1);
  for (RoleProgram& one : set.roles) one.communicators[0].from = {1};
  set.roles[2].body[0].communicator = 0;
  const std::vector<std::string> found = findings_of(set);
  EXPECT_EQ(
      std::ranges::count(found,
                         "communicator: 'to 2' on rank 0 uses communicator 0, which belongs to "
                         "other ranks"),
      1);
}

TEST(Verify, Deadlocks) {
  // Stage 0 waits for the first gradient before it sends the second activation; stage 1 wants that
  // before it sends.
  expect({{{{"5 send label=\"send a mb=1\" args=[4] peer=[1,-1]\n  6 recv label=\"recv da mb=0\" "
             "args=[5] peer=[1,-1] communicator=1",
             "5 recv label=\"recv da mb=0\" args=[5] peer=[1,-1] communicator=1\n  6 send "
             "label=\"send "
             "a mb=1\" args=[4] peer=[1,-1]"}},
           {{"2 send label=\"send da mb=0\" args=[3] peer=[0,-1] communicator=1\n  3 recv "
             "label=\"recv "
             "a mb=1\" args=[2] peer=[0,-1]",
             "2 recv label=\"recv a mb=1\" args=[2] peer=[0,-1]\n  3 send label=\"send da mb=0\" "
             "args=[3] peer=[0,-1] communicator=1"}},
           {"deadlock: the ranks wait for each other: 'recv da mb=0' on rank 0 (and 1 like it) "
            "waits for 'send da mb=0' on rank 2 (and 1 like it), which comes after 'recv a mb=1'; "
            "'recv a mb=1' on rank 2 (and 1 like it) waits for 'send a mb=1' on rank 0 (and 1 like "
            "it), which comes after 'recv da mb=0'"}}});
}

// Rank 0 waits for both others, and rank 1 for rank 2, too; but ranks 0 and 2 alone make a circle.
TEST(Verify, TheShortestCircleIsShown) {
  const auto role = [](const std::string& body) {
    return "plan batch=0 arena=512 workspace=[0] transport=2097152 scratch=4194304\naxis \"pp\" "
           "3\nstream 0 \"compute\"\n"
           "group 0 \"pp\" axes=[0]\nbuffer 0 \"x\" f32[2] step at=0\n"
           "buffer 1 \"y\" f32[2] step at=256\nbody\n" +
           body;
  };
  const std::string all = " all_reduce label=\"sum\" args=[0] group=0\n";
  EXPECT_EQ(findings_of(set_of({role("  0" + all + "  1 send label=\"to 2\" args=[1] peer=[2]\n"),
                                role("  0 recv label=\"from 2\" args=[1] peer=[2]\n  1" + all),
                                role("  0 recv label=\"from 0\" args=[1] peer=[0]\n  1" + all +
                                     "  2 send label=\"to 1\" args=[0] peer=[1]\n")},
                               1)),
            std::vector<std::string>{
                "deadlock: the ranks wait for each other: 'sum' on rank 0 waits for "
                "'sum' on rank 2, which comes after 'from 0'; 'from 0' on rank 2 waits "
                "for 'to 2' on rank 0, which comes after 'sum'"});
}

TEST(Verify, Collectives) {
  const std::pair<std::string, std::string> all = {"group 0 \"dp\" axes=[1]",
                                                   "group 0 \"all\" axes=[0,1]"};
  expect({
      {{all,
        {"10 all_reduce label=\"all_reduce w0.grad\" stream=1 args=[7] waits=[9] group=0",
         "10 copy args=[7,7]"},
        {" waits=[10]", ""}},
       {all},
       {"collective: 'all_reduce w1.grad' on rank 2 (and 1 like it) is never joined by rank 0 (and "
        "1 like it)"}},
      {{all,
        {"all_reduce label=\"all_reduce w0.grad\" stream=1 args=[7]",
         "all_reduce label=\"two\" stream=1 args=[7,6]"}},
       {all},
       {"collective: 'two' on rank 0 (and 1 like it) (all_reduce of f32[1,2] f32[1,2]) meets "
        "'all_reduce w1.grad' on rank 2 "
        "(and 1 like it) (all_reduce of f32[1,2]): they are not the same collective"}},
      {{all,
        {"10 all_reduce label=\"all_reduce w0.grad\" stream=1 args=[7] waits=[9] group=0",
         "10 all_reduce label=\"all_reduce w0.grad\" stream=1 args=[7] waits=[9] group=0 fast"}},
       {all},
       {"collective: 'all_reduce w0.grad' on rank 0 (and 1 like it) (fast all_reduce of f32[1,2]) "
        "meets 'all_reduce w1.grad' on rank 2 "
        "(and 1 like it) (all_reduce of f32[1,2]): they are not the same collective"}},
  });
}

TEST(Verify, OrderAndStreams) {
  expect({
      {{{"0 input label=\"input x mb=0\" args=[1] input=\"x\" count=1",
         "0 input label=\"input x mb=0\" args=[2] input=\"x\" count=1"}},
       {},
       {"order: 'F stage=0 mb=0' on rank 0 (and 1 like it) reads 'x@0' before anything writes it",
        "order: 'B stage=0 mb=0' on rank 0 (and 1 like it) reads 'x@0' before anything writes it",
        adds_otherwise(1), adds_otherwise(0)}},
      {{{"3 input label=\"input x mb=1\" args=[2] input=\"x\" first=1 count=1 stride=[0,2]\n  4 "
         "compute label=\"F stage=0 mb=1\" program=0 "
         "args=[0,2,4]",
         "3 compute label=\"F stage=0 mb=1\" program=0 args=[0,2,4]\n  4 input label=\"input x "
         "mb=1\" args=[2] input=\"x\" first=1 "
         "count=1 stride=[0,2]"}},
       {},
       {"order: 'F stage=0 mb=1' on rank 0 (and 1 like it) reads 'x@1' before anything writes it; "
        "later 'input x mb=1' writes it",
        adds_otherwise(1), adds_otherwise(0)}},
      {{{"args=[7] waits=[9] group=0", "args=[7] waits=[7] group=0"}},
       {},
       {"order: 'all_reduce w0.grad' on rank 0 (and 1 like it) reads 'g', which 'B stage=0 mb=1' "
        "on rank 0 (and 1 like it) writes "
        "without being waited for",
        "order: 'all_reduce w0.grad' on rank 0 (and 1 like it) writes 'g', which 'B stage=0 mb=1' "
        "on rank 0 (and 1 like it) "
        "writes without being waited for",
        "order: 'all_reduce w0.grad' on rank 0 (and 1 like it) writes 'g', which 'B stage=0 mb=1' "
        "on rank 0 (and 1 like it) reads "
        "without being waited for"}},
      {{{"args=[7,0] waits=[10]", "args=[7,0]"}},
       {},
       {"order: 'U' on rank 0 (and 1 like it) reads 'g', which 'all_reduce w0.grad' on rank 0 (and "
        "1 like it) writes without "
        "being waited for"}},
  });
}

TEST(Verify, Memory) {
  expect({
      // The second input lies where the first one is still needed by the backward.
      {{{"buffer 2 \"x@1\" f32[1,2] step at=512", "buffer 2 \"x@1\" f32[1,2] step at=256"}},
       {},
       {"memory: 'B stage=0 mb=0' on rank 0 (and 1 like it) needs 'x@0', whose memory 'input x "
        "mb=1' has given to 'x@1'"}},
      // The next activation lies where the first one may still be on its way.
      {{{"buffer 4 \"a@1\" f32[1,2] step at=1024", "buffer 4 \"a@1\" f32[1,2] step at=768"}},
       {},
       {"memory: 'F stage=0 mb=1' on rank 0 (and 1 like it) puts 'a@1' where 'send a mb=0' on rank "
        "0 (and 1 like it) may still be "
        "sending 'a@0'"}},
      // After the first gradient has come back, the first activation is known to have arrived; not
      // so the second.
      {{{"buffer 6 \"da@1\" f32[1,2] step at=1536", "buffer 6 \"da@1\" f32[1,2] step at=768"}},
       {},
       {}},
      {{{"buffer 5 \"da@0\" f32[1,2] step at=1280", "buffer 5 \"da@0\" f32[1,2] step at=1024"}},
       {},
       {"memory: 'recv da mb=0' on rank 0 (and 1 like it) puts 'da@0' where 'send a mb=1' on rank "
        "0 (and 1 like it) may still be "
        "sending 'a@1'"}},
      {{{"buffer 3 \"a@0\" f32[1,2] step at=768", "buffer 3 \"a@0\" f32[1,2] step at=256"}},
       {},
       {"memory: 'F stage=0 mb=0' on rank 0 (and 1 like it) puts 'a@0' where it uses 'x@0'",
        "memory: 'B stage=0 mb=0' on rank 0 (and 1 like it) needs 'x@0', whose memory "
        "'F stage=0 mb=0' has given to 'a@0'"}},
      {{{"buffer 3 \"a@0\" f32[1,2] step at=768", "buffer 3 \"a@0\" f32[1,2] step at=0"}},
       {},
       {"memory: 'a@0' shares bytes with 'w0' on rank 0 (and 1 like it), which keeps its bytes "
        "from step to step"}},
      {{{"arena=2048", "arena=4096"}},
       {},
       {"error: an arena of 4096 bytes is stated, but its buffers end at 1800, and arenas at "
        "multiples of 256"}},
      // Another stream still reads what lay there.
      {{{"buffer 7 \"g\" f32[1,2] step at=1792\n",
         "buffer 7 \"g\" f32[1,2] step at=1792\nbuffer 8 \"z\" f32[1,2] step at=1792\n"},
        {"label=\"U\" program", "label=\"U\" stream=1 program"},
        {"    sum_read\n", "    sum_read\n  12 copy args=[6,8]\n"}},
       {},
       {"memory: a copy on rank 0 (and 1 like it) puts 'z' where 'all_reduce w0.grad' on rank 0 "
        "(and "
        "1 like it) writes 'g'",
        "memory: a copy on rank 0 (and 1 like it) puts 'z' where 'U' on rank 0 (and 1 like it) "
        "uses "
        "'g'"}},
      // One buffer under two names: read after it was written.
      {{{"program=2 args=[2,6,7]", "program=2 args=[7,6,7]"},
        {"op Add in=[2,3] out=[2]", "op Add in=[2,3] out=[2]\n  op Add in=[2,0] out=[2]"}},
       {},
       {"memory: 'B stage=0 mb=1' on rank 0 (and 1 like it) writes 'g' as arg 2 while it still "
        "needs it as arg 0",
        adds_otherwise(0),
        "sum: 'B stage=0 mb=1' on rank 0 (and 1 like it) reads 'g', which holds a part of a sum, "
        "without saying so"}},
      // An op that reads its operand more than once may not write its result there.
      {{{"program=2 args=[2,6,7]", "program=2 args=[7,6,7]"},
        {"op Add in=[2,3] out=[2]", "op Softmax in=[0] out=[2] {axis=1}"}},
       {},
       {"memory: 'B stage=0 mb=1' on rank 0 (and 1 like it) writes 'g' as arg 2 while it still "
        "needs it as arg 0",
        "microbatch: 'B stage=0 mb=1' on rank 0 (and 1 like it) adds to 'w0.grad' something else "
        "than 'B stage=0 mb=0' on rank 0 (and 1 like it) does",
        "sum: 'B stage=0 mb=1' on rank 0 (and 1 like it) reads 'g', which holds a part of a sum, "
        "without saying so"}},
  });
}

TEST(Verify, Structure) {
  expect({
      {{{"buffer 0 \"w0\" f32[1,2] state at=0 init=\"w0\" param=\"w0\"",
         "buffer 0 \"w0\" f32[1,2] constant at=0 init=\"w0\""}},
       {},
       {"structure: 'U' on rank 0 (and 1 like it) writes the constant 'w0'",
        "structure: the sum 'w0.grad' is the gradient of no parameter that is kept"}},
      {{{"param=\"w0\"", "param=\"w1\""}},
       {},
       {"structure: parameter 'w1' starts differently on rank 0 (and 1 like it) and rank 2 (and 1 "
        "like "
        "it)",
        "structure: the sum 'w0.grad' is the gradient of no parameter that is kept",
        "sum: 'U' on rank 0 (and 1 like it) updates parameter 'w1' without its finished gradient"}},
      {{},
       {{"init=\"w1\"", "init=\"w0\""}},
       {"structure: 'w0' on rank 0 (and 1 like it) and 'w1' on rank 2 (and 1 like it) both start "
        "with the values of 'w0'"}},
      {{},
       {{"sum 0 \"w0.grad\"", "sum 0 \"w0.grad\" uses=2"}},
       {"structure: the sum 'w0.grad' has 1 uses on rank 0 (and 1 like it), 2 elsewhere",
        "sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g': nothing of use 1 is "
        "in it"}},
      {{{"args=[2,6,7]", "args=[2,6,7,7]"}},
       {},
       {"error: instruction 9 'B stage=0 mb=1' (compute): it has 4 args instead of 3"}},
      {{}, {{"axis \"dp\" 2", "axis \"dp\" 1"}}, {"error: the roles are for different meshes"}},
  });
}

TEST(Verify, StatesChangeOnceAStep) {
  const std::pair<std::string, std::string> state = {
      "buffer 7 \"g\" f32[1,2] step at=1792\n",
      "buffer 7 \"g\" f32[1,2] step at=1792\nbuffer 8 \"m\" f32[1,2] state at=2048\n"};
  const std::pair<std::string, std::string> arena = {"arena=2048", "arena=2304"};
  expect({
      {{arena, state},
       {},
       {"structure: the state 'm' on rank 0 (and 1 like it) is used by nothing"}},
      {{arena,
        state,
        {"    sum_read\n",
         "    sum_read\n  12 compute label=\"once\" program=3 args=[0,8]\n  13 compute "
         "label=\"twice\" program=3 args=[0,8]\n"}},
       {},
       {"structure: 'twice' on rank 0 (and 1 like it) writes the state 'm', which 'once' has "
        "already "
        "written in this step",
        "order: 'once' on rank 0 (and 1 like it) reads 'w0', which 'U' may have updated by then"}},
  });
}

TEST(Verify, MicrobatchesRunTheSame) {
  const std::string state = edited(
      kStage0, {{"buffer 7 \"g\" f32[1,2] step at=1792\n",
                 "buffer 7 \"g\" f32[1,2] step at=1792\nbuffer 8 \"m\" f32[1,2] state at=2048\n"},
                {"arena=2048", "arena=2304"},
                {"program=0 args=[0,2,4]", "program=0 args=[8,2,4]"}});
  EXPECT_EQ(
      findings_of(set_of({state, kStage1}, 2)),
      (std::vector<std::string>{"structure: the state 'm' on rank 0 (and 1 like it) never changes",
                                adds_otherwise(1), adds_otherwise(0)}));
  // Whatever it is called, and of whichever microbatch it says that it is.
  const std::pair<std::string, std::string> minus = {"  op Mul in=[0,1] out=[3]\n  op Add",
                                                     "  op Sub in=[0,1] out=[3]\n  op Add"};
  EXPECT_EQ(findings_of(set_of({edited(kStage0, {minus}), kStage1}, 2)),
            std::vector<std::string>{adds_otherwise(0)});
  const std::string renamed = edited(kStage0, {minus, {"label=\"B stage=0 mb=1\"", "label=\"G\""}});
  EXPECT_EQ(findings_of(set_of({renamed, kStage1}, 2)),
            std::vector<std::string>{
                "microbatch: 'G' on rank 0 (and 1 like it) adds to 'w0.grad' something else than "
                "'B stage=0 mb=0' on rank 0 (and 1 like it) does"});
  // Operands that may change places, which changes no bit.
  const std::string swapped =
      edited(kStage0, {{"program=2 args=[2,6,7]", "program=2 args=[6,2,7]"}});
  EXPECT_EQ(findings_of(set_of({swapped, kStage1}, 2)), std::vector<std::string>());
}

TEST(Verify, OnlyStepsThatOverlapHaveAPrologue) {
  const std::string begins = edited(kStage0, {{"body\n", "prologue\n  0 copy args=[0,0]\nbody\n"}});
  EXPECT_EQ(findings_of(set_of({begins, kStage1}, 2)),
            std::vector<std::string>{"structure: there is a prologue, and steps do not overlap"});
}

// Two groups over the same ranks: who issues their collectives in another order than the others
// waits for ever.
TEST(Verify, CollectivesOfAllGroupsHaveOneOrder) {
  const auto with = [](const char* text, int first, int second) {
    const int at = text == kStage0 ? 12 : 8;
    return edited(text, {{"group 0 \"dp\" axes=[1]",
                          "group 0 \"dp\" axes=[1]\ngroup 1 \"pp\" axes=[0]\ngroup 2 \"all\" "
                          "axes=[0,1]"}}) +
           fmt::format(
               "  {} all_reduce label=\"first\" args=[0] stream={} waits=[{}] group={}\n"
               "  {} all_reduce label=\"second\" args=[0] stream={} waits=[{}] group={}\n",
               at, first - 1, at - 1, first, at + 1, second - 1, at, second);
  };
  for (const std::string& finding :
       findings_of(set_of({with(kStage0, 1, 2), with(kStage1, 1, 2)}, 2)))
    EXPECT_TRUE(finding.starts_with("sum: ")) << finding;  // they run, and what they add is no sum
  EXPECT_EQ(
      findings_of(set_of({with(kStage0, 1, 2), with(kStage1, 2, 1)}, 2)),
      (std::vector<std::string>{
          "deadlock: the ranks wait for each other: 'first' on rank 0 (and 1 like it) waits "
          "for 'second' on rank 2 (and 1 like it), which comes after 'first'; 'first' on rank 2 "
          "(and 1 like it) waits for 'second' on rank 0 (and 1 like it), which comes after "
          "'first'"}));
}

// One of three ranks that each hold a copy of w and compute with a sample of their own: each sends
// its part of the gradient to both others and adds all three in the order given.
std::string copy_text(int64_t rank, const std::array<int, 3>& order, const char* update = "Sub",
                      const char* start = "") {
  const int64_t a = (rank + 1) % 3, b = (rank + 2) % 3;
  std::string text = fmt::format(R"(plan batch=3 arena=1792 workspace=[0] scratch=4194304
axis "pp" 3
stream 0 "compute"
input "x" f32[3,2]
sum 0 "w.grad"
buffer 0 "w" f32[1,2] state at=0 init="w" param="w"
buffer 1 "x" f32[1,2] step at=256
buffer 2 "g0" f32[1,2] step at=512
buffer 3 "g1" f32[1,2] step at=768
buffer 4 "g2" f32[1,2] step at=1024
buffer 5 "w.moment" f32[1,2] state at=1280{}
buffer 6 "sum" f32[1,2] step at=1536
program 0 label="B" args=3
  value 0 f32[1,2] read
  value 1 f32[1,2] read
  value 2 f32[1,2] written
  op Mul in=[0,1] out=[2]
program 1 label="sum" args=3
  value 0 f32[1,2] read
  value 1 f32[1,2] read
  value 2 f32[1,2] written
  op Add in=[0,1] out=[2]
program 2 label="U" args=3
  value 0 f32[1,2] read
  value 1 f32[1,2] read written
  value 2 f32[1,2] read written
  op {} in=[1,0] out=[1]
  op Mul in=[2,2] out=[2]
program 3 label="add" args=2
  value 0 f32[1,2] read written
  value 1 f32[1,2] read
  op Add in=[0,1] out=[0]
body
  0 input label="input x" args=[1] input="x" first={} count=1 stride=[0]
  1 compute label="B" program=0 args=[0,1,{}]
    contribution arg=2 first={} count=1 stride=[0]
)",
                                 start, update, rank, 2 + rank, rank);
  for (const int64_t peer : {a, b})
    text += fmt::format("  {} send label=\"send g{}\" args=[{}] peer=[{}]\n", peer == a ? 2 : 3,
                        rank, 2 + rank, peer);
  for (const int64_t peer : {a, b})
    text += fmt::format("  {} recv label=\"recv g{}\" args=[{}] peer=[{}]\n", peer == a ? 4 : 5,
                        peer, 2 + peer, peer);
  text += fmt::format(
      "  6 compute label=\"sum\" program=1 args=[{},{},6]\n    combine arg=2 from=[0,1]\n",
      2 + order[0], 2 + order[1]);
  text += fmt::format("  7 compute label=\"add\" program=3 args=[6,{}]\n    combine from=[0,1]\n",
                      2 + order[2]);
  return text + "  8 compute label=\"U\" program=2 args=[6,0,5]\n    sum_read\n";
}

TEST(Verify, CopiesAreUpdatedAlike) {
  using Order = std::array<int, 3>;
  const Order first{0, 1, 2}, commuted{1, 0, 2}, other{1, 2, 0};
  const auto set = [&](const std::string& last) {
    return set_of({copy_text(0, first), copy_text(1, commuted), last}, 1);
  };
  EXPECT_EQ(findings_of(set(copy_text(2, first))), std::vector<std::string>());
  EXPECT_EQ(findings_of(set(copy_text(2, other))),
            (std::vector<std::string>{
                "copies: 'w' is updated in different ways on rank 0 and on rank 2"}));
  EXPECT_EQ(findings_of(set(copy_text(2, first, "Add"))),
            (std::vector<std::string>{
                "copies: 'w' is updated in different ways on rank 0 and on rank 2"}));
  EXPECT_EQ(findings_of(set(copy_text(2, first, "Sub", " fill=1"))),
            (std::vector<std::string>{
                "structure: 'w.moment' starts differently on rank 0 and rank 2",
                "copies: 'w.moment' is updated in different ways on rank 0 and on rank 2"}));
}

// Who gets something in a rotation knows that the member before has begun it, and of no other one.
TEST(Verify, ARotationIsNoBarrier) {
  const auto text = [](int64_t rank, const std::string& meets) {
    return edited(
        copy_text(rank, {0, 1, 2}),
        {{"arena=1792", "arena=2048"},
         {"stream 0 \"compute\"\n", "stream 0 \"compute\"\ngroup 0 \"pp\" axes=[0]\n"},
         {"program 0 label=\"B\"",
          fmt::format("buffer 7 \"next\" f32[1,2] step at=1792\nbuffer 8 \"again\" f32[1,2] "
                      "step at={}\nprogram 0 label=\"B\"",
                      512 + 256 * rank)},
         {"    sum_read\n", fmt::format("    sum_read\n  9 {}\n  10 copy args=[1,8]\n", meets)}});
  };
  const auto findings = [&](const std::string& meets) {
    std::vector<std::string> of_memory;
    for (const std::string& each :
         findings_of(set_of({text(0, meets), text(1, meets), text(2, meets)}, 1)))
      if (each.starts_with("memory")) of_memory.push_back(each);
    return of_memory;
  };
  EXPECT_EQ(findings("all_reduce args=[1] group=0"), std::vector<std::string>());
  std::vector<std::string> known;
  for (const int rank : {0, 1, 2})
    known.push_back(fmt::format(
        "memory: a copy on rank {0} puts 'again' where 'send g{0}' on rank {0} may still "
        "be sending 'g{0}'",
        rank));
  EXPECT_EQ(findings("rotate args=[1,7] group=0 turn=1"), known);
}

// Long enough for a second thread.
TEST(Verify, LongPlans) {
  std::string more = "    sum_read\n";
  for (int i = 12; i < 600; ++i) more += fmt::format("  {} copy args=[1,2]\n", i);
  const std::string stage0 = edited(kStage0, {{"    sum_read\n", more}});
  EXPECT_EQ(findings_of(set_of({stage0, kStage1}, 2)), std::vector<std::string>());
  EXPECT_EQ(findings_of(set_of({edited(stage0, {{"waits=[9]", "waits=[7]"}}), kStage1}, 2)).size(),
            3u);
}

// The cost does not grow with the replicas.
TEST(Verify, ManyReplicas) {
  const auto scaled = [](const char* text, int64_t replicas) {
    std::string scaled = edited(text, {{"axis \"dp\" 2", fmt::format("axis \"dp\" {}", replicas)},
                                       {"batch=4", fmt::format("batch={}", 2 * replicas)}});
    const std::string input = "input \"x\" f32[4,2]";
    if (const size_t at = scaled.find(input); at != scaled.npos)
      scaled.replace(at, input.size(), fmt::format("input \"x\" f32[{},2]", 2 * replicas));
    return scaled;
  };
  const PlanSet set = set_of({scaled(kStage0, 1024), scaled(kStage1, 1024)}, 1024);
  const auto start = std::chrono::steady_clock::now();
  const auto report = verify_plan_set(set);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(report);
  EXPECT_EQ(report->findings.size(), 0u);
  EXPECT_EQ(report->ranks, 2048);
  EXPECT_EQ(report->cells, 2);
  RecordProperty("verify_2048_ranks_ms", fmt::format("{:.2f}", took.count()));
}

// What the host takes beside its arena follows from what it brings.
TEST(Verify, StagingIsStatedExactly) {
  PlanSet set = set_of({kStage0, kStage1}, 2);
  const int64_t taken = set.roles[0].staging_bytes;
  ASSERT_GT(taken, 0);
  for (const int64_t stated : {int64_t{0}, taken - 1, taken + 1}) {
    set.roles[0].staging_bytes = stated;
    EXPECT_EQ(findings_of(set),
              std::vector<std::string>{fmt::format(
                  "memory: rank 0 (and 1 like it) states {} bytes to stage what the host brings; "
                  "its inputs, positions and reports take {}",
                  stated, taken)});
  }
}

// A set whose files are good but whose content is edited at random never crashes the verifier,
// whatever it says.
TEST(Verify, RandomPlansNeverCrash) {
  const uint32_t seed = 1789;
  std::mt19937 random(seed);
  const int trials = kThreadSanitizer ? 400 : 4000;  // one thread reads them
  int refused = 0, run = 0;
  for (int trial = 0; trial < trials; ++trial) {
    std::string texts[2] = {kStage0, kStage1};
    for (int edit = 0; edit < 2; ++edit) {
      std::string& text = texts[random() % 2];
      const size_t body = text.find("body"),
                   at = text.find_first_of("0123456789", body + random() % (text.size() - body));
      if (at != text.npos) text[at] = static_cast<char>('0' + random() % 8);
    }
    auto first = parse_plan(texts[0]), second = parse_plan(texts[1]);
    if (!first || !second) continue;
    for (auto* role : {&*first, &*second}) role->staging_bytes = staging_of(*role);
    PlanSet set;
    set.roles = {*std::move(first), *std::move(second)};
    set.role_of_rank = {0, 0, 1, 1};
    const auto report = verify_plan_set(set);
    ++run;
    if (!report || !report->findings.empty()) ++refused;
  }
  EXPECT_GT(run, trials / 2) << "seed " << seed;
  EXPECT_GT(refused, run / 2) << "seed " << seed;
}

}  // namespace
}  // namespace piper
