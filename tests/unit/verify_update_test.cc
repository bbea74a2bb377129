// What the verifier says of the numbers that all updates of a step share.
#include "unit/verify_plans.h"

namespace piper::verify_update_test {
namespace {

using Edits = std::vector<std::pair<std::string, std::string>>;

// A stage of verify_plans.h that clips its gradient: position 0 of the squares is of w0.
std::string clipped(std::string text, int stage) {
  const std::string parts = stage == 0 ? "4,3" : "3,4";
  const std::string arena = stage == 0 ? "2048" : "1536";
  const int first = stage == 0 ? 8 : 6, at = stage == 0 ? 2048 : 1536;
  std::string buffers;
  const std::pair<const char*, const char*> kBuffers[] = {{"squares", "f64[2] step"},
                                                          {"norm", "f64[] step"},
                                                          {"rate", "f64[] step"},
                                                          {"step", "i64[] state"}};
  for (int b = 0; b < 4; ++b)
    buffers += fmt::format("buffer {} \"{}\" {} at={}\n", first + b, kBuffers[b].first,
                           kBuffers[b].second, at + 256 * b);
  const int squares = stage == 0 ? 3 : 2;
  const std::string programs =
      fmt::format(
          "program {} label=\"U squares\" args=2\n"
          "  value 0 f32[1,2] read\n  value 1 f64[2] written\n  value 2 f64[]\n"
          "  value 3 f64[1] literal=0x0000000000000000\n  value 4 f64[1]\n"
          "  op SumSquares in=[0] out=[2]\n  op Reshape in=[2] out=[4] {{shape=[1]}}\n"
          "  op Concat in=[{}] out=[1] {{axis=0}}\n",
          squares, parts) +
      fmt::format(
          "program {} label=\"U\" args=6\n"
          "  value 0 f64[2] read\n  value 1 f64[] written\n  value 2 i64[] read written\n"
          "  value 3 f64[] written\n  value 4 f32[1,2] read written\n"
          "  value 5 f32[1,2] read\n  value 6 f64[]\n"
          "  op GlobalNorm in=[0] out=[1]\n"
          "  op ClipFactor in=[1] out=[6] {{max_norm=1.0}}\n"
          "  op LearningRate in=[2] out=[3] {{base=0.1, rate=\"lr\"}}\n"
          "  op Sgd in=[4,5,-1,3,6,2] out=[4]\n"
          "  op NextStep in=[2] out=[2]\nbody\n",
          squares + 1);
  const size_t old_program = text.find(fmt::format("program {} label=\"U\"", squares));
  const size_t body = text.find("body\n"), update = text.find(" compute label=\"U\"");
  const int index = stage == 0 ? 11 : 7, gradient = stage == 0 ? 7 : 5;
  const std::string target = stage == 0 ? "" : " target=1";
  text = text.substr(0, old_program) + programs + text.substr(body + 5, update - body - 5) +
         fmt::format(
             " compute label=\"U squares\" program={} args=[{},{}] waits=[{}]\n"
             "    sum_read{}\n"
             "  {} all_reduce label=\"all_reduce squares\" args=[{}] group=1\n"
             "  {} compute label=\"U\" program={} args=[{},{},{},{},0,{}]\n"
             "    sum_read arg=5{}\n"
             "report \"grad_norm\" buffer={}\nreport \"learning_rate\" buffer={}\n",
             squares, gradient, first, index - 1, target, index + 1, first, index + 2, squares + 1,
             first, first + 1, first + 3, first + 2, gradient, target, first + 1, first + 2);
  return edited(
      text, {{"arena=" + arena, fmt::format("arena={}", at + 1024)},
             {"group 0 \"dp\" axes=[1]\n", "group 0 \"dp\" axes=[1]\ngroup 1 \"pp\" axes=[0]\n"},
             {"program 0 label", buffers + "program 0 label"}});
}

std::vector<std::string> said(const Edits& stage0, const Edits& stage1) {
  return findings_of(
      set_of({edited(clipped(kStage0, 0), stage0), edited(clipped(kStage1, 1), stage1)}, 2));
}
using Said = std::vector<std::string>;

// Vectors of 2^33 squares, which nobody holds.
TEST(VerifyUpdate, WhatAProgramStatesCostsNoMoreThanItsOps) {
  const std::string values = "  value 5 f64[8589934592]\n",
                    ops = "  op Expand in=[2] out=[5] {shape=[8589934592]}\n";
  const std::string last = "  value 4 f64[1]\n", squares = "op SumSquares in=[0] out=[2]\n";
  EXPECT_EQ(said({{last, last + values}, {squares, squares + ops}}, {}), Said());
}

TEST(VerifyUpdate, AcceptsOneRuleForAll) { EXPECT_EQ(said({}, {}), Said()); }

TEST(VerifyUpdate, NumbersDifferBetweenRanks) {
  EXPECT_EQ(said({}, {{"max_norm=1.0", "max_norm=2.0"}}),
            Said{"update: 'U' on rank 2 (and 1 like it) updates 'w1' with another factor of the "
                 "gradients than that of 'w0' on rank 0 (and 1 like it)"});
  EXPECT_EQ(said({}, {{"base=0.1", "base=0.2"}}),
            Said{"update: rank 2 (and 1 like it) reports 'learning_rate', which is another number "
                 "than on rank 0 (and 1 like it)"});
  EXPECT_EQ(said({}, {{"Sgd in=[4,5,-1,3,6,2]", "Sgd in=[4,5,-1,3,-1,2]"}}),
            Said{"update: 'U' on rank 2 (and 1 like it) updates 'w1' with another factor of the "
                 "gradients than that of 'w0' on rank 0 (and 1 like it)"});
  EXPECT_EQ(said({}, {{"\"step\" i64[] state", "\"step\" i64[] state fill=5"}}),
            Said{"structure: 'step' starts differently on rank 0 (and 1 like it) and rank 2 (and 1 "
                 "like it)"});
}

TEST(VerifyUpdate, RankZeroReportsWhatAnyRankDoes) {
  EXPECT_EQ(said({{"report \"grad_norm\" buffer=9\n", ""}}, {}),
            Said{"structure: rank 2 (and 1 like it) reports 'grad_norm', which rank 0 (and 1 like "
                 "it) does not"});
  EXPECT_EQ(said({}, {{"report \"grad_norm\" buffer=7\n", ""}}), Said());
  const std::string loss = "report \"loss\" buffer=", norm = "report \"grad_norm\" buffer=";
  const Said found = said({{norm, "report \"skipped\" buffer=9\n" + loss + "9\n" + norm}},
                          {{norm, loss + "7\n" + norm}});
  EXPECT_EQ(std::count(found.begin(), found.end(),
                       "structure: rank 2 (and 1 like it) reports 'loss' without 'skipped'"),
            1);
}

TEST(VerifyUpdate, AnotherNumberIsTaken) {
  EXPECT_EQ(said({{"Sgd in=[4,5,-1,3,6,2]", "Sgd in=[4,5,-1,6,6,2]"}}, {}),
            Said{"update: 'U' on rank 0 (and 1 like it) updates 'w0' with something else for the "
                 "learning rate"});
  EXPECT_EQ(said({{"Sgd in=[4,5,-1,3,6,2]", "Sgd in=[4,5,-1,3,1,2]"}}, {}),
            Said{"update: 'U' on rank 0 (and 1 like it) updates 'w0' with something else for the "
                 "factor of the gradients"});
}

TEST(VerifyUpdate, TheNormHoldsEachGradientOnce) {
  const std::pair<std::string, std::string> all = {"group 1 \"pp\" axes=[0]",
                                                   "group 1 \"all\" axes=[0,1]"};
  EXPECT_EQ(said({all}, {all})[0],
            "update: 'U' on rank 0 (and 1 like it) takes a norm in which 'w0.grad' is included 2 "
            "times");
  EXPECT_EQ(said({}, {{"Concat in=[3,4]", "Concat in=[4,3]"}})[0],
            "update: 'U' on rank 0 (and 1 like it) takes a norm in which squares of different "
            "gradients are added to one another");
  EXPECT_EQ(
      said({{"all_reduce label=\"all_reduce squares\" args=[8] group=1", "copy args=[8,8]"}},
           {{"all_reduce label=\"all_reduce squares\" args=[6] group=1", "copy args=[6,6]"}})[0],
      "update: 'U' on rank 2 (and 1 like it) takes a norm in which 'w0.grad' is missing");
}

// Neither squares nor a gradient may be rounded on the way.
TEST(VerifyUpdate, ACastLosesNothing) {
  const std::string last = "  value 4 f64[1]\n", squares = "op SumSquares in=[0] out=[2]\n";
  const Edits rounded = {{last, last + "  value 5 f64[]\n  value 6 f32[]\n"},
                         {squares,
                          "op SumSquares in=[0] out=[5]\n  op Cast in=[5] out=[6] {to=\"f32\"}\n"
                          "  op Cast in=[6] out=[2] {to=\"f64\"}\n"}};
  EXPECT_EQ(said(rounded, {})[0],
            "update: 'U' on rank 0 (and 1 like it) takes a norm of something else than squares of "
            "gradients");
  const std::string scalar = "  value 6 f64[]\n", update = "op Sgd in=[4,5,-1,3,6,2] out=[4]\n";
  const auto through = [&](const std::string& narrow) {
    return Edits{{scalar, fmt::format("{}  value 7 {}[1,2]\n  value 8 f32[1,2]\n", scalar, narrow)},
                 {update, fmt::format("op Cast in=[5] out=[7] {{to=\"{}\"}}\n"
                                      "  op Cast in=[7] out=[8] {{to=\"f32\"}}\n"
                                      "  op Sgd in=[4,8,-1,3,6,2] out=[4]\n",
                                      narrow)}};
  };
  EXPECT_EQ(said(through("f64"), {}), Said());
  EXPECT_EQ(said(through("f16"), {})[0],
            "update: 'U' on rank 0 (and 1 like it) updates 'w0' with something else than its "
            "gradient");
}

// What an instruction is called decides nothing.
TEST(VerifyUpdate, AnUpdateSaidToBeOfAMicrobatchIsOne) {
  const std::pair<std::string, std::string> called = {"compute label=\"U\" program",
                                                      "compute label=\"F\" micro=0 program"};
  EXPECT_EQ(said({called}, {called}), Said());
  const std::pair<std::string, std::string> unclipped = {"Sgd in=[4,5,-1,3,6,2]",
                                                         "Sgd in=[4,5,-1,3,-1,2]"};
  EXPECT_EQ(said({called, unclipped}, {called, unclipped}),
            Said{"update: 'w0' on rank 0 (and 1 like it) is updated without the factor that clips "
                 "gradients"});
}

TEST(VerifyUpdate, AnOptimizerTakesWhatIsItsParameters) {
  const auto expect = [](const Edits& edits, const std::string& text) {
    const Said all = said(edits, {});
    const std::string wanted = "update: 'U' on rank 0 (and 1 like it) " + text;
    EXPECT_EQ(std::count(all.begin(), all.end(), wanted), 1) << text << ", not " << all[0];
  };
  const std::string op = "op Sgd in=[4,5,-1,3,6,2] out=[4]";
  const std::string scalar = "  value 6 f64[]\n";
  expect({{scalar, scalar + "  value 7 f32[1,2]\n"},
          {op, "op Neg in=[4] out=[7]\n  op Sgd in=[4,7,-1,3,6,2] out=[4]"}},
         "updates 'w0' with something else than its gradient");
  expect({{op, "op Sgd in=[5,5,-1,3,6,2] out=[4]"}}, "updates 'w0' from something else");
  expect({{op, op + "\n  " + op}}, "writes 'w0' twice");
  expect({{op, op + "\n  op Neg in=[4] out=[4]"}}, "writes 'w0' after its update");
}

}  // namespace
}  // namespace piper::verify_update_test
