// What the verifier says of sums that do not hold what they should, and the program that says it.
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "shell.h"
#include "unit/verify_plans.h"

namespace piper {
namespace {

TEST(VerifySums, SwappedMessagesAreFoundByTheirSamples) {
  expect({{{},
           {{"  2 send label=\"send da mb=0\" args=[3] peer=[0,-1] communicator=1\n",
             "  2 copy args=[3,3]\n"},
            {"communicator=1\n  6 all_reduce",
             "communicator=1\n  6 send label=\"send da mb=0\" args=[3] peer=[0,-1] "
             "communicator=1\n  7 "
             "all_reduce"},
            {"  7 compute label=\"U\" program=2 args=[5,0] waits=[6]",
             "  8 compute label=\"U\" program=2 args=[5,0] waits=[7]"}},
           {"sum: 'B stage=0 mb=0' on rank 0 (and 1 like it) adds to 'w0.grad' for samples [0, 1) "
            "+ 2 × dp, "
            "but computes from samples [1, 2) + 2 × dp",
            "sum: 'B stage=0 mb=1' on rank 0 (and 1 like it) adds to 'w0.grad' for samples [1, 2) "
            "+ 2 × dp, "
            "but computes from samples [0, 1) + 2 × dp"}}});
}

TEST(VerifySums, ReductionsAcrossStagesMixSums) {
  const std::pair<std::string, std::string> all = {"group 0 \"dp\" axes=[1]",
                                                   "group 0 \"all\" axes=[0,1]"};
  expect({{{all},
           {all},
           {"sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g', which holds a "
            "part of 'w1.grad'",
            "sum: 'U' on rank 2 (and 1 like it) reads the sum 'w1.grad' from 'g', which holds a "
            "part of 'w0.grad'"}}});
}

TEST(VerifySums, SumsHoldEachUseAndSampleOnce) {
  expect({
      // A microbatch's contribution is missing, doubled, or of other samples.
      {{{"program=2 args=[2,6,7]\n    contribution arg=2 first=1 count=1 stride=[0,2] accumulates",
         "program=0 args=[2,6,4]"}},
       {},
       {"sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g': samples [1, 2) are "
        "missing"}},
      {{{"program=2 args=[2,6,7]\n    contribution arg=2 first=1",
         "program=2 args=[1,5,7]\n    contribution arg=2 first=0"}},
       {},
       {"sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g': samples [0, 1) are "
        "in it 2 times"}},
      {{{"program=2 args=[2,6,7]\n", "program=2 args=[1,5,7]\n"}},
       {},
       {"sum: 'B stage=0 mb=1' on rank 0 (and 1 like it) adds to 'w0.grad' for samples [1, 2) + 2 "
        "× dp, but "
        "computes from samples [0, 1) + 2 × dp"}},
      // The second microbatch sets instead of adding, with and without saying so.
      {{{"program=2 args=[2,6,7]", "program=1 args=[2,6,7]"}},
       {},
       {adds_otherwise(0),
        "sum: 'B stage=0 mb=1' on rank 0 (and 1 like it) says that it adds to 'g' for 'w0.grad', "
        "but its program overwrites it"}},
      {{{"program=2 args=[2,6,7]", "program=1 args=[2,6,7]"}, {" accumulates", ""}},
       {},
       {"sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g': samples [0, 1) are "
        "missing"}},
      // The reduction over the replicas is missing, or is done twice.
      {{{"all_reduce label=\"all_reduce w0.grad\" stream=1 args=[7] waits=[9] group=0",
         "copy stream=1 args=[7,7] waits=[9]"}},
       {},
       {"sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g': it was not summed "
        "over the replicas along 'dp'"}},
      {{{"11 compute label=\"U\"",
         "11 all_reduce label=\"again\" stream=1 args=[7] group=0\n  12 compute label=\"U\""},
        {"waits=[10]\n", "waits=[11]\n"}},
       {},
       {"sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g': samples [0, 4) are "
        "in it 2 times"}},
      // Replicas that train on the same samples.
      {{{"first=1 count=1 stride=[0,2]\n", "first=1 count=1\n"},
        {"first=1 count=1 stride=[0,2] acc", "first=1 count=1 acc"}},
       {},
       {"sum: 'B stage=1 mb=1' on rank 2 (and 1 like it) adds to 'w1.grad' for samples [1, 2) + 2 "
        "× dp, "
        "but computes from samples [1, 2)",
        "sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g': samples [1, 2) are "
        "in "
        "it 2 times"}},
      // A use that nobody contributes.
      {{{"sum 0 \"w0.grad\"", "sum 0 \"w0.grad\" uses=2"}},
       {{"sum 0 \"w0.grad\"", "sum 0 \"w0.grad\" uses=2"}},
       {"sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g': nothing of use 1 is "
        "in it"}},
      // What is passed on depends on the sum so far.
      {{{"program=2 args=[2,6,7]", "program=2 args=[2,6,7]"},
        {"label=\"B\" args=3\n  value 0 f32[1,2] read\n",
         "label=\"B\" args=3\n  value 0 f32[1,2] read written\n"},
        {"op Add in=[2,3] out=[2]", "op Add in=[2,3] out=[2]\n  op Add in=[0,2] out=[0]"}},
       {},
       {"sum: 'B stage=0 mb=1' on rank 0 (and 1 like it) computes 'x@1' from 'g', which holds a "
        "part of a sum"}},
      // A part of a sum used without a word.
      {{{"    sum_read\n", ""}},
       {},
       {"sum: 'U' on rank 0 (and 1 like it) reads 'g', which holds a part of a sum, without saying "
        "so",
        "sum: 'U' on rank 0 (and 1 like it) updates parameter 'w0' without its finished gradient"}},
  });
}

// The second microbatch's part lies by itself, and is added by an instruction of its own.
TEST(VerifySums, SumsOfPartsAreSums) {
  const auto with = [](const char* op, const char* combine) {
    const std::string stage0 =
        edited(kStage0, {{"arena=2048", "arena=2304"},
                         {"buffer 7 \"g\" f32[1,2] step at=1792\n",
                          "buffer 7 \"g\" f32[1,2] step at=1792\n"
                          "buffer 8 \"g@1\" f32[1,2] step at=2048\n"},
                         {"body\n", fmt::format("program 4 label=\"add\" args=2\n"
                                                "  value 0 f32[1,2] read\n"
                                                "  value 1 f32[1,2] read written\n"
                                                "  op {} in=[0,1] out=[1]\nbody\n",
                                                op)},
                         {"program=2 args=[2,6,7]", "program=1 args=[2,6,8]"},
                         {" accumulates\n  10 all_reduce",
                          fmt::format("\n  10 compute label=\"add\" program=4 args=[8,7]\n"
                                      "{}  11 all_reduce",
                                      combine)},
                         {"waits=[9]", "waits=[10]"},
                         {"  11 compute label=\"U\"", "  12 compute label=\"U\""},
                         {"args=[7,0] waits=[10]", "args=[7,0] waits=[11]"}});
    return findings_of(set_of({stage0, kStage1}, 2));
  };
  const char* both = "    combine arg=1 from=[0,1]\n";
  EXPECT_EQ(with("Add", both), std::vector<std::string>());
  EXPECT_EQ(with("Sub", both),
            std::vector<std::string>{"sum: 'add' on rank 0 (and 1 like it) says that 'g' becomes "
                                     "a sum, but its program computes something else"});
  const std::string add = "sum: 'add' on rank 0 (and 1 like it) ";
  const std::string silent = add + "reads 'g', which holds a part of a sum, without saying so";
  const std::string u = "sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g': ";
  EXPECT_EQ(
      with("Add", "    combine arg=1 from=[0]\n"),
      (std::vector<std::string>{
          silent, add + "says that 'g' becomes a sum, but its program computes something else",
          u + "samples [0, 1) are missing"}));
  EXPECT_EQ(
      with("Add", ""),
      (std::vector<std::string>{add + "reads 'g@1', which holds a part of a sum, without saying so",
                                silent, u + "nothing is in it"}));
}

// A gradient is rounded to travel, and is the gradient still.
TEST(VerifySums, RoundedSumsAreSums) {
  const auto with = [](const char* round, const char* widen, const char* from) {
    const std::string stage0 = edited(
        kStage0,
        {{"arena=2048", "arena=2304"},
         {"buffer 7 \"g\" f32[1,2] step at=1792\n",
          "buffer 7 \"g\" f32[1,2] step at=1792\nbuffer 8 \"g16\" bf16[1,2] step at=2048\n"},
         {"body\n", fmt::format("program 4 label=\"round\" args=2\n"
                                "  value 0 f32[1,2] read\n  value 1 bf16[1,2] written\n  {}\n"
                                "program 5 label=\"widen\" args=2\n"
                                "  value 0 bf16[1,2] read\n  value 1 f32[1,2]{}body\n",
                                round, widen)},
         {"  10 all_reduce label=\"all_reduce w0.grad\" stream=1 args=[7] waits=[9] group=0\n"
          "  11 compute label=\"U\" program=3 args=[7,0] waits=[10]\n",
          fmt::format("  10 compute label=\"round\" program=4 args=[7,8]\n"
                      "    combine arg=1 from=[0]\n"
                      "  11 all_reduce label=\"all_reduce w0.grad\" stream=1 args=[8] waits=[10] "
                      "group=0\n"
                      "  12 compute label=\"widen\" program=5 args=[8,7] waits=[11]\n"
                      "    combine arg=1 from={}\n"
                      "  13 compute label=\"U\" program=3 args=[7,0]\n",
                      from)}});
    return findings_of(set_of({stage0, kStage1}, 2));
  };
  const char* cast = "op Cast in=[0] out=[1] {to=\"bf16\"}";
  const char* negative =
      "value 2 f32[1,2]\n  op Neg in=[0] out=[2]\n  op Cast in=[2] out=[1] {to=\"bf16\"}";
  const char* back = " written\n  op Cast in=[0] out=[1] {to=\"f32\"}\n";
  EXPECT_EQ(with(cast, back, "[0]"), std::vector<std::string>());
  EXPECT_EQ(with(negative, back, "[0]"),
            std::vector<std::string>{"sum: 'round' on rank 0 (and 1 like it) says that 'g16' "
                                     "becomes a sum, but its program computes something else"});
  // What travelled is added to what was not rounded.
  EXPECT_EQ(
      with(cast,
           " read written\n  value 2 f32[1,2]\n"
           "  op Cast in=[0] out=[2] {to=\"f32\"}\n  op Add in=[1,2] out=[1]\n",
           "[0,1]")
          .at(0),
      "sum: 'U' on rank 0 (and 1 like it) reads the sum 'w0.grad' from 'g': it was not summed "
      "over the replicas along 'dp'");
}

TEST(VerifySums, ParametersAreUpdatedOnce) {
  expect({
      {{{"  11 compute label=\"U\" program=3 args=[7,0] waits=[10]\n    sum_read\n", ""}},
       {},
       {"sum: nothing updates parameter 'w0' on rank 0 (and 1 like it)"}},
      {{{"    sum_read\n",
         "    sum_read\n  12 compute label=\"U again\" program=3 args=[7,0]\n    sum_read\n"}},
       {},
       {"sum: 'U again' on rank 0 (and 1 like it) updates parameter 'w0', which 'U' has already "
        "updated"}},
      {{{"sum 0 \"w0.grad\"", "sum 0 \"other\""}},
       {},
       {"sum: 'U' on rank 0 (and 1 like it) writes parameter 'w0', which has no gradient"}},
  });
}

// Two replicas keep a parameter in parts, and gather it.
constexpr const char* kParts =
    R"(plan batch=2 arena=2304 workspace=[0] transport=2097152 scratch=4194304
axis "dp" 2
stream 0 "compute"
group 0 "dp" axes=[0]
input "x" f32[2,4]
sum 0 "w.grad"
buffer 0 "w" f32[2] state at=0 init="w" param="w" part_of=0 whole=[1,4]
buffer 1 "w.whole" f32[1,4] step at=256 param="w"
buffer 2 "x" f32[1,4] step at=512
buffer 3 "g" f32[1,4] step at=768
buffer 4 "g.part" f32[2] step at=1024
buffer 5 "x.part" f32[2] step at=1280
buffer 6 "x.again" f32[1,4] step at=1536
buffer 7 "g.other" f32[2] step at=1792
buffer 8 "w.again" f32[1,4] step at=2048
program 0 label="B" args=3
  value 0 f32[1,4] read
  value 1 f32[1,4] read
  value 2 f32[1,4] written
  op Mul in=[0,1] out=[2]
program 1 label="U" args=2
  value 0 f32[2] read
  value 1 f32[2] read written
  op Sub in=[1,0] out=[1]
body
  0 all_gather label="gather" args=[0,1] group=0
  1 input label="input x" args=[2] input="x" count=1 stride=[1]
  2 own_part label="part" args=[2,5] group=0
  3 copy label="copy x" args=[2,6]
  4 copy label="copy w" args=[1,8]
  5 compute label="B" program=0 args=[8,6,3]
    contribution arg=2 count=1 stride=[1]
  6 reduce_scatter label="reduce" args=[3,4] group=0
  7 copy label="copy g" args=[4,7]
  8 compute label="U" program=1 args=[7,0]
    sum_read
)";

TEST(VerifySums, PartsAreReadWhereTheyBelong) {
  using Edits = std::vector<std::pair<std::string, std::string>>;
  const auto said = [](const Edits& edits) {
    return findings_of(set_of({edited(kParts, edits)}, 2));
  };
  const auto first = [&](const Edits& edits) {
    const auto all = said(edits);
    return all.empty() ? std::string() : all[0];
  };
  EXPECT_EQ(said({}), std::vector<std::string>());
  const Edits again = {{"copy label=\"copy w\" args=[1,8]", "all_gather args=[0,8] group=0"}};
  EXPECT_EQ(said(again), std::vector<std::string>());
  const PlanSet turned = set_of({edited(kParts, {{"part\" args=[2,5]", "part\" args=[5,2]"}})}, 2);
  const Status checked = check_role(turned.roles[0]);
  EXPECT_TRUE(!checked && checked.error().message.find("f32[2] and f32[1,4] do not fit a group of "
                                                       "2") != std::string::npos);
  // Parts of what two replicas computed from their own samples.
  EXPECT_EQ(first({{"copy label=\"copy x\" args=[2,6]", "all_gather args=[5,6] group=0"}}),
            "sum: 'B' on rank 0 (and 1 like it) adds to 'w.grad' for samples [0, 1) + 1 × dp, but "
            "computes from samples [0, 1) and 1 more at distance 1");
  // The part of the rank before, on all of them.
  EXPECT_EQ(first({{"copy label=\"copy g\" args=[4,7]",
                    "rotate label=\"give\" args=[4,7] group=0 turn=1"}}),
            "sum: 'U' on rank 0 (and 1 like it) reads the sum 'w.grad' from 'g.other', which also "
            "holds something that is no part of it");
  // The other rank's part.
  const auto crossed = [&](int other) {
    return edited(kParts,
                  {{"7 copy label=\"copy g\" args=[4,7]",
                    fmt::format("7 send args=[4] peer=[{0}]\n  8 recv args=[7] peer=[{0}]", other)},
                   {"8 compute label=\"U\"", "9 compute label=\"U\""}});
  };
  EXPECT_EQ(findings_of(set_of({crossed(1), crossed(0)}, 1))[0],
            "sum: 'U' on rank 0 reads the sum 'w.grad' from 'g.other', which also holds something "
            "that is no part of it");
}

TEST(VerifySums, ReportsComeFromWhatTheirNamesSay) {
  const auto reported = [](const char* name) {
    const PlanSet set = set_of(
        {edited(kStage0, {{"arena=2048", "arena=2304"},
                          {"buffer 7 \"g\" f32[1,2] step at=1792\n",
                           "buffer 7 \"g\" f32[1,2] step at=1792\nbuffer 8 \"n\" f32[] step "
                           "at=2048\n"},
                          {"body\n",
                           "program 4 label=\"N\" args=2\n  value 0 f32[1,2] read\n  value 1 f32[] "
                           "written\n  op ReduceSum in=[0] out=[1] "
                           "{axes=[0,1], keepdims=0}\nbody\n"},
                          {"    sum_read\n",
                           fmt::format("    sum_read\n  12 compute label=\"N\" program=4 "
                                       "args=[7,8] waits=[10]\n    sum_read\nreport \"{}\" "
                                       "buffer=8\n",
                                       name)}}),
         kStage1},
        2);
    return findings_of(set);
  };
  for (const char* name : {"grad_norm", "learning_rate", "loss", "loss_scale", "skipped"})
    EXPECT_EQ(reported(name),
              std::vector<std::string>{fmt::format(
                  "update: rank 0 (and 1 like it) reports something else as '{}'", name)});
  EXPECT_EQ(reported("accuracy"), std::vector<std::string>());
}

// ---- The program -------------------------------------------------------------------------------

std::pair<int, std::string> piper_verify(const std::string& arguments) {
  return run_shell(PIPER_BINARY_DIR "/bin/piper-verify " + arguments + " 2>&1");
}

class PiperVerify : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& stage0) const {
    PlanSet set = set_of({stage0, kStage1}, 2);
    for (const char* name : {"w0", "w1"}) {
      set.tensor_types.emplace_back(name, TensorType{DType::kF32, {1, 2}});
      set.tensors.emplace_back(name, Bytes::zeros(8));
    }
    const auto written = write_plan_set(set, nullptr, nullptr, folder_, {});
    ASSERT_TRUE(written) << print_error(written.error());
  }
  const std::string folder_ =
      std::filesystem::temp_directory_path() / fmt::format("piper-verify-{}", getpid());
};

TEST_F(PiperVerify, SaysWhatItProved) {
  write(kStage0);
  const auto [code, text] = piper_verify(folder_);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(
      text,
      folder_ +
          ": ok: 4 ranks in 2 cells, 20 instructions\n"
          "  transfer    4 messages are received once, in order\n"
          "  collective  2 collectives are issued by all members in one order\n"
          "  deadlock    no rank waits for itself\n"
          "  order       all is written before it is read, and streams wait for what they "
          "use\n"
          "  memory      no two buffers share bytes while they are needed; at most 6.0 MiB a "
          "rank\n"
          "  microbatch  all blocks of samples do the same\n"
          "  sum         2 finished sums hold each use and sample once; 2 kept parameters are "
          "updated once\n"
          "  beside      nothing: the plans were written without one for one device "
          "(--no-oracles), so start values, names, data and what the first block of samples does "
          "are trusted\n");
}

// What is stated beside the arena is what is taken: no less, and no more.
TEST_F(PiperVerify, MemoryIsStatedExactly) {
  const std::pair<const char*, std::vector<const char*>> kStated[] = {
      {"workspace=[256,0]", {"workspace=[0,0]", "workspace=[512,0]", "workspace=[256,256]"}},
      {"transport=2097152", {"transport=0", "transport=2097153", "packed=256 transport=2097152"}},
      {"scratch=4194304", {"scratch=0", "scratch=8388608"}}};
  for (const auto& [right, wrong] : kStated)
    for (const char* other : wrong) {
      std::filesystem::remove_all(folder_);
      write(edited(kStage0, {{right, other}}));
      const auto [code, text] = piper_verify(folder_);
      EXPECT_EQ(code, 3) << other;
      EXPECT_TRUE(text.starts_with(folder_ + ": memory: role 0 states ")) << text;
    }
  std::filesystem::remove_all(folder_);
  write(edited(kStage0, {{"transport=2097152", "transport=0"}}));
  EXPECT_EQ(piper_verify(folder_).second,
            folder_ +
                ": memory: role 0 states 0 bytes for blocks that are under way, where 'cpu' "
                "takes 2097152\n");
}

TEST_F(PiperVerify, ExitCodes) {
  EXPECT_EQ(piper_verify("").first, 2);
  EXPECT_EQ(piper_verify("--help").first, 0);
  EXPECT_EQ(piper_verify(folder_).first, 4);
  write(edited(kStage0,
               {{"buffer 3 \"a@0\" f32[1,2] step at=768", "buffer 3 \"a@0\" f32[1,2] step at=0"}}));
  const auto [code, text] = piper_verify("--json " + folder_);
  EXPECT_EQ(code, 3);
  EXPECT_NE(text.find("{\"rule\": \"memory\", \"text\": \"'a@0' shares bytes with 'w0' on rank 0 "
                      "(and 1 like it), which keeps its bytes from step to step\"}"),
            text.npos)
      << text;
}

}  // namespace
}  // namespace piper
